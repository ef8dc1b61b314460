"""A lock knows the asyncio task that holds it, even if `asyncio.wait_for` runs its coroutine in another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from caslock import AsyncHold, AsyncLock, AsyncMultiHold, AsyncMultiLock, Lock, LockLost, MultiLock, NotHeld
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.locations import fresh, observed, present
from tests.support.loops import in_a_loop

if TYPE_CHECKING:
    Within = Callable[[Awaitable[AsyncHold | None]], Awaitable[AsyncHold | None]]

TIMEOUT = 200


async def waited_for(acquire: Awaitable[AsyncHold | None]) -> AsyncHold | None:
    """Wait as one does: Python 3.11 runs the coroutine in a task of its own."""
    return await asyncio.wait_for(acquire, TIMEOUT)


async def within_a_timeout(acquire: Awaitable[AsyncHold | None]) -> AsyncHold | None:
    async with asyncio.timeout(TIMEOUT):
        return await acquire


async def in_a_task(acquire: Awaitable[AsyncHold | None]) -> AsyncHold | None:
    return await asyncio.ensure_future(acquire)


WITHIN = pytest.mark.parametrize("within", [waited_for, within_a_timeout, in_a_task])


@WITHIN
@in_a_loop
async def test_the_task_that_calls_acquire_has_the_lock(memory: MemoryStore, within: Within) -> None:
    """Whatever runs the coroutine of acquire: its caller may re-enter and release, and another task may not."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())

    async def another() -> None:
        assert await lock.acquire(timeout=0) is None
        with pytest.raises(NotHeld):
            await lock.release()

    hold = present(await within(lock.acquire()))
    assert await lock.acquire(timeout=0) is not None
    await asyncio.create_task(another())
    await lock.release()
    hold.ensure_held()
    await lock.release()
    assert observed(memory, lock.key) is None


@pytest.mark.parametrize("run", [asyncio.ensure_future, lambda acquire: asyncio.wait_for(acquire, TIMEOUT)])
@in_a_loop
async def test_the_task_that_calls_acquire_re_enters_several(
    memory: MemoryStore, run: Callable[[Awaitable[AsyncMultiHold | None]], Awaitable[AsyncMultiHold | None]]
) -> None:
    """Whatever runs the coroutine of acquire: its caller re-enters an AsyncMultiLock that it holds."""
    keys = [fresh(), fresh()]
    several = AsyncMultiLock(AsyncMemoryStore(memory), keys, timeout=1)
    async with several as outer:
        inner = present(await run(several.acquire()))
        assert inner.fences == outer.fences
        await inner.release()
        outer.ensure_held()
    assert [observed(memory, key) for key in keys] == [None] * 2


@WITHIN
@in_a_loop
async def test_the_task_that_uses_a_hold_is_cancelled_at_its_loss(memory: MemoryStore, within: Within) -> None:
    """Whatever runs the coroutine of acquire: the block of ``async with hold`` is cancelled when the lease is lost."""
    store = AsyncMemoryStore(memory)
    lock = AsyncLock(store, fresh(), ttl=1000)  # no renewal finds the loss
    hold = present(await within(lock.acquire()))
    with pytest.raises(LockLost):  # noqa: PT012 - raised at the end of the block
        async with hold:
            await AsyncLock(store, lock.key).force_release()
            await asyncio.sleep(TIMEOUT)
            pytest.fail("the body ran on")


@in_a_loop
async def test_release_may_be_waited_for(memory: MemoryStore) -> None:
    """`asyncio.wait_for` of release, too, releases what its caller holds: of a lock, and of several."""
    store = AsyncMemoryStore(memory)
    keys = [fresh(), fresh()]
    lock, several = AsyncLock(store, fresh()), AsyncMultiLock(store, keys)
    assert await asyncio.wait_for(lock.acquire(), TIMEOUT) is not None
    assert await asyncio.wait_for(several.acquire(), TIMEOUT) is not None
    await asyncio.wait_for(lock.release(), TIMEOUT)
    await asyncio.wait_for(several.release(), TIMEOUT)
    assert [observed(memory, key) for key in (lock.key, *keys)] == [None] * 3


@in_a_loop
async def test_a_hold_of_a_task_that_has_ended_belongs_to_whoever_enters_it(memory: MemoryStore) -> None:
    """A task may acquire for another one: that one gets the lock with ``async with hold``."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())

    async def acquired() -> AsyncHold:
        return present(await lock.acquire())

    hold = await asyncio.create_task(acquired())
    with pytest.raises(NotHeld):
        await lock.release()
    async with hold:
        assert await lock.acquire(timeout=0) is not None
        await lock.release()
    assert observed(memory, lock.key) is None


def test_a_coroutine_made_outside_of_tasks_belongs_to_the_one_that_runs_it(memory: MemoryStore) -> None:
    """A coroutine of acquire that was made before the loop ran, or in another loop, is of the task that runs it."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())

    async def run(acquire: Awaitable[AsyncHold | None]) -> None:
        assert await acquire is not None
        await lock.release()
        assert observed(memory, lock.key) is None

    async def elsewhere() -> Awaitable[AsyncHold | None]:
        return lock.acquire()

    asyncio.run(run(lock.acquire()))
    asyncio.run(run(asyncio.run(elsewhere())))


@pytest.mark.parametrize("several", [False, True])
@in_a_loop
async def test_a_blocking_lock_tells_tasks_of_one_thread_to_use_async_lock(memory: MemoryStore, several: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Where a second task would re-enter a blocking lock, acquire raises an error that names AsyncLock."""
    lock = MultiLock(memory, [fresh(), fresh()]) if several else Lock(memory, fresh())
    keys, inside = lock.keys if isinstance(lock, MultiLock) else (lock.key,), list[str]()

    async def work(name: str) -> None:
        with lock:
            inside.append(name)
            with lock:  # the same task re-enters
                await asyncio.sleep(0)
            assert inside == [name]
            inside.remove(name)

    results = await asyncio.gather(*map(work, "ab"), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), RuntimeError]
    assert "AsyncLock" in str(results[1])
    assert [observed(memory, key) for key in keys] == [None] * len(keys)


@in_a_loop
async def test_a_task_does_not_release_what_another_one_holds(memory: MemoryStore) -> None:
    """`Lock.release` in a task that was refused leaves the hold of the other task alone."""
    lock = Lock(memory, fresh())

    async def refused() -> None:
        with pytest.raises(RuntimeError, match="AsyncLock"):
            lock.acquire(timeout=0)
        with pytest.raises(NotHeld):
            lock.release()

    with lock as hold:
        await asyncio.create_task(refused())
        hold.ensure_held()


def test_a_thread_that_runs_a_loop_holds_its_locks_inside(memory: MemoryStore) -> None:
    """A task re-enters what its thread has acquired outside of tasks, or in a task that has ended."""
    lock = Lock(memory, fresh())

    async def acquired() -> None:
        assert lock.acquire(timeout=0) is not None

    async def main() -> None:
        await asyncio.create_task(acquired())
        await asyncio.create_task(acquired())
        lock.release()

    assert lock.acquire(timeout=0) is not None
    asyncio.run(main())
    lock.release()
    lock.release()
    assert observed(memory, lock.key) is None
