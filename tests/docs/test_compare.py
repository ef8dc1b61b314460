"""What `docs/compare.md` says of other locks that its table of faults does not have: of filelock and PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Server

PROGRAM = """
import sys, time, filelock
try:
    with filelock.FileLock(sys.argv[1], timeout=float(sys.argv[2])):
        print("held", flush=True)
        time.sleep(float(sys.argv[3]))
except filelock.Timeout:
    print("busy")
"""


def test_a_file_lock_is_free_when_its_process_has_ended_and_not_before(tmp_path: Path) -> None:
    """A holder that is stopped keeps it; one that was killed does not."""

    def program(timeout: float, work: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "job.lock"), str(timeout), str(work)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with program(5, 60) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            holder.send_signal(signal.SIGSTOP)
            assert program(0.2, 0).communicate()[0] == "busy\n"
        finally:
            holder.kill()
        assert program(5, 0).communicate()[0] == "held\n"


def test_an_advisory_lock_ends_with_its_session_or_transaction(postgresql_server: Server) -> None:
    """It is counted; a killed backend frees it; one of a transaction ends with a rollback, too."""
    key, url = time.time_ns(), postgresql_server.url
    with psycopg.connect(url, autocommit=True) as other:

        def free() -> bool:
            row = other.execute("SELECT pg_try_advisory_lock(%s)", [key]).fetchone()
            if row == (True,):
                other.execute("SELECT pg_advisory_unlock(%s)", [key])
            return row == (True,)

        holder = psycopg.connect(url, autocommit=True)
        holder.execute("SELECT pg_advisory_lock(%s), pg_advisory_lock(%s)", [key, key])
        holder.execute("SELECT pg_advisory_unlock(%s)", [key])
        assert not free()
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [holder.info.backend_pid])
        assert free()
        holder.close()
        with psycopg.connect(url) as transaction:
            transaction.execute("SELECT pg_advisory_xact_lock(%s)", [key])
            assert not free()
            transaction.rollback()
            assert free()
