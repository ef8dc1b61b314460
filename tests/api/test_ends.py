"""An interpreter, or an event loop, can end at any moment while a lock is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from caslock import Lock, connect
from tests.support.command_line import python
from tests.support.servers import Server

AT_EXIT = """
import asyncio, atexit, time
from caslock import AsyncLock, Lock
from caslock.stores.memory import MemoryStore

async def main():
    async with AsyncLock(MemoryStore(), "key") as hold:
        await asyncio.sleep(0.1)
        hold.ensure_held()

@atexit.register
def last():
    asyncio.run(main())
    with Lock(MemoryStore(), "key") as hold:
        hold.ensure_held()
    print("locked")
"""


@pytest.mark.parametrize("before", ["", "last()"])
def test_locks_work_as_the_interpreter_ends(before: str) -> None:
    """An atexit handler can lock, with threads and with asyncio over a blocking store, used before or not."""
    assert python("-W", "default", "-c", AT_EXIT + before) == (0, "locked\n" * (2 if before else 1), "")


LOOP_END = """
import asyncio, gc, sys, warnings
from caslock import AsyncLock, connect_async
from tests.support.locations import make_due
warnings.simplefilter("error")

async def main(number):
    store = connect_async(sys.argv[1])
    for key in ("one", "two"):
        hold = await AsyncLock(store, f"ends:{sys.argv[2]}:{number}:{key}", ttl=60).acquire()
    lock = AsyncLock(store, f"ends:{sys.argv[2]}:{number}:one")
    waits = asyncio.create_task(lock.acquire())
    while not (lock.owner and lock._state._queue.waiting):
        await asyncio.sleep(0)
    if sys.argv[2] == "renewed":
        before = hold._attempt.lease.deadline
        make_due(hold._attempt)
        while hold._attempt.lease.deadline == before:
            await asyncio.sleep(0.01)

    async def generator():
        async with AsyncLock(store, f"ends:{sys.argv[2]}:{number}:generator"):
            yield

    left = generator()
    await anext(left)
    kept.append(left)

kept = []
for number in range(2):
    asyncio.run(main(number))
    kept.clear()
    gc.collect()
print("done")
"""


@pytest.mark.parametrize("how", ["renewed", "not renewed"])
def test_a_loop_that_ends_leaves_no_connection_open(redis_server: Server, how: str) -> None:
    """It ends with locks held, waited for, renewed, and left open in a generator: no ResourceWarning is shown."""
    assert python("-W", "default", "-c", LOOP_END, redis_server.url, how) == (0, "done\n", "")


HELD = """
import os, signal, sys, time
import caslock

store = caslock.connect("sqlite:///locks.db")
lock = caslock.Lock(store, "key", ttl=60)
"""

LEAVES_IT = {
    "never released": "hold = lock.acquire()",
    "os._exit": "with lock: os._exit(0)",
    "SIGKILL": "with lock: signal.raise_signal(signal.SIGKILL)",
    "SIGTERM": "with lock: signal.raise_signal(signal.SIGTERM)",
}
FREES_IT = {
    "sys.exit": "with lock: sys.exit()",
    "SIGINT": "with lock: signal.raise_signal(signal.SIGINT)",
    "SIGTERM that is handled": (
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))\n"
        "with lock: signal.raise_signal(signal.SIGTERM)"
    ),
    "a generator that the end closes": (  # when nothing can be imported any more
        "def session():\n"
        "    with caslock.MultiLock(store, ['key', 'other'], ttl=60): yield\n"
        "left = session()\n"
        "next(left)"
    ),
}


@pytest.mark.parametrize("ending", [*LEAVES_IT, *FREES_IT])
def test_a_process_frees_its_key_if_it_leaves_the_block(ending: str, tmp_path: Path) -> None:
    """As `docs/stores.md` says: what ends Python without leaving its ``with`` blocks leaves the key to the lease."""
    python("-c", HELD + (LEAVES_IT | FREES_IT)[ending], cwd=tmp_path)
    with connect(f"sqlite:///{tmp_path}/locks.db") as store:
        assert Lock(store, "key").locked() == (ending in LEAVES_IT)
