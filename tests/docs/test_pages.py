"""What the pages for users say beside their programs: `docs/start.md` and `docs/failures.md`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

import caslock
from caslock.testing import StoreForTests, lose_reply
from tests.docs.test_readme import PAGES, blocks
from tests.support.locations import fresh

if TYPE_CHECKING:
    from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FAILURES = (DOCS / "failures.md").read_text(encoding="utf-8")
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


@pytest.mark.long
def test_start_shows_one_process_waiting_for_the_other(tmp_path: Path) -> None:
    """Who saves the first program, and pastes the command below it, sees that the processes take turns."""
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    (tmp_path / "start.py").write_text(blocks(text)[0].code, encoding="utf-8")
    command = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    first, second = dict.fromkeys(done.stdout.split()[::2])
    assert done.stdout.split() == [first, "begins", first, "ends", second, "begins", second, "ends"]


def test_each_error_has_its_own_answer(tmp_path: Path) -> None:
    """The program shows each of its outcomes once, in the order in which it provokes them."""
    program = tmp_path / "program.py"
    program.write_text(PAGES["failures.md"][0].code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    busy = "somebody else is booking the room: try later"
    assert done.stdout.splitlines() == ["booked", busy, "not booked, retry after a pause", "check what was written"]


def test_the_pictures_show_the_requests_that_are_sent() -> None:
    """`docs/how.md` has an acquire with a renewal and a release, an acquire whose reply is lost, and a hand-over."""
    with StoreForTests() as store:
        lock = caslock.Lock(store, "room:42")

        def sent() -> list[str]:
            verbs = [request.verb for request in store.log]
            store.log.clear()
            return verbs

        hold = lock.acquire()
        assert hold
        hold.extend()  # as a renewal does
        hold.release()
        assert sent() == ["put_if_version", "put_if_version", "invalidate"]
        store.on("put_if_version", 1, lose_reply)
        hold = lock.acquire()
        assert hold
        assert sent() == ["put_if_version", "get"]
        ticket = hold.hand_over()
        assert sent() == ["put_if_version"]
        with caslock.Lock.adopt(store, ticket) as adopted:
            assert sent() == ["get", "put_if_version"]
            assert adopted.fence == hold.fence


HOLDER = """
import sys, caslock
with caslock.Lock(caslock.connect("sqlite:///locks.db"), "room:42", ttl=2) as hold:
    print("held", flush=True)
    sys.stdin.readline()
    print(hold.lost, flush=True)
"""


@pytest.mark.long
def test_a_process_paused_for_longer_than_its_lease_sees_the_loss_when_it_continues(tmp_path: Path) -> None:
    """Meanwhile another one has acquired."""
    command, pipe = [sys.executable, "-c", HOLDER], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        with caslock.Lock(caslock.connect(f"sqlite:///{tmp_path}/locks.db"), "room:42", timeout=10):
            process.send_signal(signal.SIGCONT)
            out, errors = process.communicate("look\n")
    assert out == "True\n"
    assert "LockLost" in errors


def test_a_blocked_event_loop_loses_the_lease() -> None:
    """Renewals are sent by the loop."""

    async def main() -> None:
        async with caslock.AsyncLock(caslock.connect("memory://"), "room:42", ttl=0.2) as hold:
            time.sleep(0.3)  # noqa: ASYNC251 - this is the mistake
            assert hold.lost
            await asyncio.sleep(60)

    with pytest.raises(caslock.LockLost):
        asyncio.run(main())


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    """Return a client of the Redis that all tests share."""
    return redis.Redis.from_url(redis_server.url, decode_responses=True)


def test_the_record_in_redis_is_what_the_page_explains(redis_server: Server, client: redis.Redis) -> None:
    """GET shows the version, a colon, and the fields that the table names; after a release, nothing."""
    table = FAILURES.partition("| part | says |")[2].partition("\n\n")[0]
    shown = re.search(r"^\d+:({.*?})\n", FAILURES, re.MULTILINE | re.DOTALL)
    assert shown
    named = set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))) - {"PTTL"}
    key = fresh("pages")
    with contextlib.closing(client), caslock.connect(redis_server.url) as store:
        with caslock.Lock(store, key, note="nightly backup") as hold:
            version, _, record = str(client.get(key)).partition(":")
            assert int(version) == hold.fence
            assert set(json.loads(record)) == named == set(json.loads(shown[1].replace("\n", "")))
            assert json.loads(record)["fence"] is None
            hold.extend()
            assert json.loads(str(client.get(key)).partition(":")[2])["fence"] == hold.fence
        assert client.get(key) is None
        with caslock.Lock(store, key, min_hold=60):
            pass
        assert json.loads(str(client.get(key)).partition(":")[2])["holds"] == ["kept"]


def test_break_does_more_than_del(redis_server: Server, client: redis.Redis) -> None:
    """It leaves a free record, and the holder learns who has done it; after DEL, it learns only that it has lost."""
    environment = {**ENVIRONMENT, "CASLOCK_STORE": redis_server.url}
    with contextlib.closing(client), caslock.connect(redis_server.url) as store:
        lock = caslock.Lock(store, "pages:broken")
        hold = lock.acquire()
        assert hold
        subprocess.run(["caslock", "break", "pages:broken", "--yes"], env=environment, capture_output=True, check=True)
        assert json.loads(str(client.get("pages:broken")).partition(":")[2])["holds"] == []
        with pytest.raises(caslock.LockLost, match=r"force-released by pid \d+ on"):
            hold.release()
        hold = lock.acquire()
        assert hold
        client.delete("pages:broken")
        assert not lock.locked()
        with pytest.raises(caslock.LockLost, match="it expired, was evicted or was removed"):
            hold.extend()  # as a renewal does


def test_a_value_of_somebody_else_counts_as_held_and_is_not_broken(redis_server: Server, client: redis.Redis) -> None:
    """Who wrote it has to remove it."""
    with contextlib.closing(client), caslock.connect(redis_server.url) as store:
        client.set("pages:foreign", "hello", px=60_000)
        lock = caslock.Lock(store, "pages:foreign")
        assert "an unknown owner" in str(lock.holder())
        with pytest.raises(caslock.StoreError, match="remove it with the store's own tools"):
            lock.force_release()
        client.delete("pages:foreign")
