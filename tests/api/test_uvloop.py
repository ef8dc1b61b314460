"""AsyncLocks on the event loop of uvloop, whose transports are its own: with every store that has an asyncio form."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from caslock import AsyncLock, AsyncMultiLock, connect_async, key
from tests.support.locations import EVERY, fresh, url_of

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython" or sys.platform == "win32",
    reason="uvloop is installed on CPython only, and not on Windows",
)


async def scene(url: str) -> None:
    """Have tasks exclude each other, and cancel some of them as they wait or hold."""
    name = fresh()
    async with connect_async(url) as store:
        every = [key(name, letter) for letter in "abc"]
        inside = dict.fromkeys(every, 0)

        async def work(number: int) -> None:
            for turn in range(10):
                keys = random.Random(100 * number + turn).sample(every, 2)
                lock = AsyncLock(store, every[0], ttl=30) if turn % 2 else AsyncMultiLock(store, keys, ttl=30)
                taken = every[:1] if turn % 2 else keys
                async with lock:
                    for each in taken:
                        inside[each] += 1
                    try:
                        await asyncio.sleep(0.001)
                        assert all(inside[each] == 1 for each in taken), inside
                    finally:
                        for each in taken:
                            inside[each] -= 1

        tasks = [asyncio.create_task(work(number)) for number in range(16)]
        await asyncio.sleep(0.05)
        for task in tasks[:8]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(result, asyncio.CancelledError) for result in results[:8])
        assert [result for result in results if not isinstance(result, asyncio.CancelledError | None)] == []
        assert results[8:] == [None] * 8
        for each in every:
            assert await AsyncLock(store, each).acquire(timeout=5), "a cancelled task has left it"


@pytest.mark.parametrize("kind", EVERY)
def test_tasks_on_uvloop_exclude_each_other(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Locks and MultiLocks that overlap: two are never inside, and those that are cancelled leave nothing."""
    import uvloop  # noqa: PLC0415 - not installed everywhere

    uvloop.run(scene(url_of(kind, request, tmp_path)))
