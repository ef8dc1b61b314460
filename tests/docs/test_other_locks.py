"""What the pages say of other locks: `docs/migrate.md` of redis-py's, and `docs/compare.md` of filelock and PostgreSQL.

A lock of redis-py and one of ours exclude each other on one key, so both can be in use during a migration.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis

import caslock
from caslock import Lock, NotAcquired
from tests.support.locations import fresh, until
from tests.support.servers import Server


@pytest.mark.parametrize("prefix", ["", "locks:"])
def test_a_lock_of_redis_py_keeps_ours_out(redis_server: Server, pool: ThreadPoolExecutor, prefix: str) -> None:
    """It is held by an unknown owner; once it is released, one that waits gets it."""
    with redis.Redis.from_url(redis_server.url) as client, caslock.connect(client, prefix=prefix) as store:
        key = fresh()
        theirs, ours = client.lock(prefix + key, timeout=30), Lock(store, key, timeout=20)
        assert theirs.acquire(blocking=False)
        assert ours.acquire(timeout=0) is None
        with pytest.raises(NotAcquired, match="an unknown owner"), Lock(store, key, timeout=0):
            pass
        waiting = pool.submit(ours.acquire)
        assert not until(waiting.done, 0.2)
        theirs.release()
        hold = waiting.result(timeout=20)
        assert hold is not None
        hold.release()


@pytest.mark.parametrize("prefix", ["", "locks:"])
def test_ours_keeps_a_lock_of_redis_py_out(redis_server: Server, prefix: str) -> None:
    """Until it is released; a lock of theirs that has ended meanwhile neither removes it nor takes it for its own."""
    with redis.Redis.from_url(redis_server.url) as client, caslock.connect(client, prefix=prefix) as store:
        key = fresh()
        ended, theirs = client.lock(prefix + key, timeout=0.1), client.lock(prefix + key, timeout=30)
        assert ended.acquire(blocking=False)
        with Lock(store, key, timeout=20) as hold:
            assert not theirs.acquire(blocking=False)
            assert theirs.locked()
            assert not ended.owned()
            with pytest.raises(redis.exceptions.LockNotOwnedError):
                ended.release()
            hold.extend()
        assert theirs.acquire(blocking=False)
        theirs.release()
        assert client.get(prefix + key) is None


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
