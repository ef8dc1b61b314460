"""An interpreter, or an event loop, can end at any moment while a lock is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers import Server

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    """Run Python with warnings shown, and return what it has written."""
    command = [sys.executable, "-W", "default", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


AT_EXIT = """
import asyncio, atexit, time
from caslock import AsyncLock, Lock
from caslock.stores.memory import MemoryStore

async def main():
    async with AsyncLock(MemoryStore(), "key", ttl=0.6) as hold:
        await asyncio.sleep(0.1)
        hold.ensure_held()

@atexit.register
def last():
    asyncio.run(main())
    with Lock(MemoryStore(), "key", ttl=0.6) as hold:
        hold.ensure_held()
    print("locked")
"""


@pytest.mark.parametrize("before", ["", "last()"])
def test_locks_work_as_the_interpreter_ends(before: str) -> None:
    """An atexit handler can lock, with threads and with asyncio over a blocking store, used before or not."""
    assert run("-c", AT_EXIT + before) == "locked\n" * (2 if before else 1)


LOOP_END = """
import asyncio, gc, sys, warnings
from caslock import AsyncLock, connect_async
warnings.simplefilter("error")

async def main(number):
    store = connect_async(sys.argv[1])
    for key in ("one", "two"):
        await AsyncLock(store, f"ends:{sys.argv[2]}:{number}:{key}", ttl=float(sys.argv[2])).acquire()
    waits = asyncio.create_task(AsyncLock(store, f"ends:{sys.argv[2]}:{number}:one").acquire())
    await asyncio.sleep(0.3)

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


@pytest.mark.parametrize("ttl", ["30", "0.3"])
def test_a_loop_that_ends_leaves_no_connection_open(redis_server: Server, ttl: str) -> None:
    """It ends with locks held, waited for, renewed, and left open in a generator: no ResourceWarning is shown."""
    assert run("-c", LOOP_END, redis_server.url, ttl) == "done\n"
