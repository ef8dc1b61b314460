"""A task that is cancelled leaves nothing behind, and one that loses its lease is cancelled."""

# ruff: noqa: PT012 - what is raised at the end of a `with` block needs a block

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import itertools
import random
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from caslock import (
    AsyncHold,
    AsyncLock,
    AsyncMultiLock,
    AsyncStore,
    Lock,
    LockLost,
    NotAcquired,
    NotHeld,
    StoreUnavailable,
)
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.locations import Place, Watched, fresh, observed, opened, until
from tests.support.watching import WatchingMemory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from caslock import Entry, Put, Traits

T = TypeVar("T")


class Travelling:
    """A memory store with delays: a request that was sent arrives, even if its sender is cancelled meanwhile."""

    def __init__(self, memory: MemoryStore, *turns: int) -> None:
        """Have each request take so many turns of the loop, one after the other, and its reply as many."""
        self._memory = memory
        self._turns = itertools.cycle(turns or (1,))
        self.under_way = 0
        self.requests = 0

    @property
    def traits(self) -> Traits:
        """Those of the memory."""
        return self._memory.traits

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._send(lambda: self._memory.get(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return await self._send(lambda: self._memory.put_if_version(key, value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._send(lambda: self._memory.invalidate(key, version))

    def _send(self, request: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def arrive(left: int, back: int) -> None:
            if left:
                loop.call_soon(arrive, left - 1, back)
            else:
                answer(request(), back)

        def answer(found: T, left: int) -> None:
            if left:
                loop.call_soon(answer, found, left - 1)
            else:
                self.under_way -= 1
                if not reply.done():
                    reply.set_result(found)

        turns = next(self._turns)
        self.under_way += 1
        self.requests += 1
        loop.call_soon(arrive, turns, turns)
        return reply

    async def settled(self) -> None:
        """Return when all that is under way has arrived."""
        while self.under_way:  # noqa: ASYNC110 - counted in turns of the loop
            await asyncio.sleep(0)


async def held(lock: AsyncLock, timeout: float | None = 0) -> AsyncHold:
    """Acquire a lock that must be free."""
    hold = await lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


async def turns(number: int) -> None:
    """Let the loop turn."""
    for _ in range(number):
        await asyncio.sleep(0)


async def over(task: asyncio.Task[T]) -> T | None:
    """Wait for the end of a task that may be cancelled."""
    try:
        return await task
    except asyncio.CancelledError:
        return None


def not_cancelling() -> bool:
    """Whether nobody has a cancellation pending on this task."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling() == 0


async def visit(lock: AsyncLock) -> None:
    """Acquire and release."""
    async with lock:
        await asyncio.sleep(0)


ACTS: list[Callable[[AsyncLock], Awaitable[object]]] = [AsyncLock.acquire, visit]
"""What is cancelled."""

WAYS = [(0,), (1,), (3,), (5, 1), (9, 0), (1, 6), (7, 2, 0), (0, 4, 1, 8), (12, 0, 0, 0, 12)]
"""Turns of the loop that the first request takes, the second, and so on."""


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_acquire_cancelled_at_any_turn_leaves_nothing(memory: MemoryStore, way: tuple[int, ...]) -> None:
    """Cancelled after k turns, for every k to its end and whatever is under way then, acquire leaves the key free."""

    async def main() -> int:
        cancelled = 0
        for act, number in itertools.product(ACTS, range(90)):
            store = Travelling(memory, *way)
            lock = AsyncLock(store, fresh())
            task: asyncio.Task[object] = asyncio.ensure_future(act(lock))
            await turns(number)
            task.cancel()
            hold = await over(task)
            if isinstance(hold, AsyncHold):
                await hold.release()
            cancelled += task.cancelled()
            assert observed(memory, lock.key) is None, f"{act} leaves an orphan, cancelled after {number} turns"
            await store.settled()
            assert observed(memory, lock.key) is None, f"a late request has landed, cancelled after {number} turns"
            await (await held(lock)).release()
        return cancelled

    assert asyncio.run(main()) > 5


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_acquire_cancelled_again_and_again_leaves_nothing(memory: MemoryStore, way: tuple[int, ...]) -> None:
    """A second and a third cancellation of a task that cleans up do not stop its clean-up."""

    async def main() -> None:
        for first, more in itertools.product(range(30), (0, 1, 2, 5)):
            store = Travelling(memory, *way)
            lock = AsyncLock(store, fresh())
            task = asyncio.create_task(visit(lock))
            await turns(first)
            for _ in range(3):
                task.cancel()
                await turns(more)
            await over(task)
            await store.settled()
            assert observed(memory, lock.key) is None, f"cancelled after {first} turns, and every {more} turns"
            await (await held(lock)).release()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_thousands_of_acquires_out_of_time_leave_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """Acquires and releases that run into `wait_for` or are cancelled, at any moment: each key is free at once."""
    rounds = 2000
    chance = random.Random(2)

    async def one(lock: AsyncLock, usual: float) -> bool:
        act = chance.choice(ACTS)
        task: asyncio.Task[object] = asyncio.ensure_future(act(lock))
        waiting: asyncio.Task[object] = task
        if chance.random() < 0.5:
            waiting = asyncio.ensure_future(asyncio.wait_for(task, chance.uniform(0, usual)))
        else:
            await asyncio.sleep(chance.uniform(0, usual))
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await waiting
        if not task.cancelled() and isinstance(hold := task.result(), AsyncHold):
            await hold.release()
        return task.cancelled()

    async def main(location: Place) -> int:
        plain = location.store()
        async with location.async_store() as native:
            # A memory answers without a pause, so there it is at the end of a request.
            memory = MemoryStore()
            store, seen = (native, plain) if kind == "redis" else (Travelling(memory, 3, 0, 5), memory)
            spinning = asyncio.create_task(turns(sys.maxsize))  # a loop that sleeps wakes by the millisecond only
            times = list[float]()
            for _ in range(30):
                began = time.perf_counter()
                await visit(AsyncLock(store, fresh()))
                times.append(time.perf_counter() - began)
            usual = statistics.median(times)
            cut = 0
            for done in range(5 * rounds):
                if (
                    done >= rounds and cut > rounds / 10
                ):  # on a busy machine most get through: go on until enough are cut
                    break
                lock = AsyncLock(store, fresh())
                cut += await one(lock, usual)
                assert observed(seen, lock.key) is None
            spinning.cancel()
            return cut

    with opened(kind, request) as location:
        assert asyncio.run(main(location)) > rounds / 10


def test_a_plain_store_serves_from_worker_threads(location: Place) -> None:
    """Every blocking store serves an AsyncLock: it locks, re-enters, renews and releases."""
    plain = location.store()
    plain.get("warm")  # a new memcached asks for seconds

    async def main() -> None:
        lock = AsyncLock(plain, fresh(), ttl=0.6)
        async with lock as hold, lock as again:
            assert again.fence == hold.fence
            assert Lock(plain, lock.key).acquire(timeout=0) is None
            await asyncio.sleep(0.8)
            hold.ensure_held()
            await hold.extend(5)
            assert await lock.locked()
        assert observed(plain, lock.key) is None

    asyncio.run(main())


def test_a_cancelled_acquire_in_a_worker_thread_leaves_nothing(memory: MemoryStore) -> None:
    """A put that goes on in its worker thread after the cancellation does not leave a lock behind."""
    gate, arrived = threading.Event(), threading.Event()

    class Slow(Watched):
        def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if not self.requests:
                self.requests.append(("put", key))
                assert gate.wait(20)
                try:
                    return memory.put_if_version(key, value, version, ttl)
                finally:
                    arrived.set()
            return super().put_if_version(key, value, version, ttl)

    async def main() -> None:
        store = Slow(memory)
        lock = AsyncLock(store, fresh())
        task = asyncio.create_task(lock.acquire())
        while not store.requests:  # noqa: ASYNC110 - another thread does it
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert observed(memory, lock.key) is None
        gate.set()
        await asyncio.to_thread(arrived.wait, 20)
        assert observed(memory, lock.key) is None
        await (await held(lock)).release()

    asyncio.run(main())


def test_cancelled_while_waiting_for_another(location: Place) -> None:
    """A task cancelled while it waits for somebody else's lock leaves the holder alone, and nothing behind."""

    async def main() -> None:
        async with location.async_store() as store:
            holder, waiter = AsyncLock(store, fresh(), ttl=20), None
            async with holder as hold:
                waiter = AsyncLock(store, holder.key)
                for pause in (0, 0.001, 0.01, 0.03):
                    task = asyncio.create_task(waiter.acquire())
                    await asyncio.sleep(pause)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(waiter.acquire(), 0.02)
                await hold.extend()
            await (await held(waiter)).release()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_cancelled_release_leaves_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """A release that is cancelled after any number of turns is finished: the key is free, and the object is usable."""

    async def main(location: Place) -> None:
        plain = location.store()
        async with location.async_store() as native:
            for number in range(60):
                memory = MemoryStore()
                store = native if kind == "redis" else Travelling(memory, number % 7, 2)
                seen = plain if kind == "redis" else memory
                lock = AsyncLock(store, fresh())
                hold = await held(lock)
                task = asyncio.create_task(hold.release())
                await turns(number)
                task.cancel()
                await over(task)
                if hold._is_open:  # it was cancelled before it began
                    assert number == 0
                    await hold.release()
                assert observed(seen, lock.key) is None
                await (await held(lock)).release()

    with opened(kind, request) as location:
        asyncio.run(main(location))


def test_a_loop_that_ends_right_after_a_cancellation_leaves_nothing(memory: MemoryStore) -> None:
    """A program that cancels an acquire and ends, at any turn of its clean-up, leaves no orphan."""

    async def main(lock: AsyncLock, before: int, after: int) -> asyncio.Task[AsyncHold | None]:
        task = asyncio.create_task(lock.acquire())
        await turns(before)
        task.cancel()
        await turns(after)
        return task

    orphans = []
    for before, after in itertools.product(range(8), range(10)):
        key = fresh()
        task = asyncio.run(main(AsyncLock(Travelling(memory, 1), key), before, after))
        if task.cancelled() and observed(memory, key) is not None:
            orphans.append((before, after))
    assert orphans == []


def test_two_tasks_that_share_one_lock_exclude_each_other(location: Place) -> None:
    """Tasks of one AsyncLock object are inside one at a time; one try of the other is None, and says so."""

    async def main() -> None:
        async with location.async_store() as store:
            lock, inside, visits = AsyncLock(store, fresh()), [0], [0]

            async def work() -> None:
                for _ in range(5):
                    async with lock:
                        inside[0] += 1
                        visits[0] += 1
                        await asyncio.sleep(0)
                        assert inside == [1]
                        inside[0] -= 1

            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(work())
            assert visits == [25]

            async with lock:

                async def acquired(timeout: float) -> AsyncHold | None:
                    return await lock.acquire(timeout=timeout)

                assert await asyncio.create_task(acquired(0)) is None
                assert await asyncio.create_task(acquired(0.02)) is None

                async def another() -> None:
                    await lock.release()

                with pytest.raises(NotHeld, match="by another thread or task: call release"):
                    await asyncio.create_task(another())

    asyncio.run(main())


def test_the_same_task_re_enters(memory: MemoryStore) -> None:
    """The same task enters again without a request; a task that it has started does not inherit that."""

    async def main() -> None:
        store = Travelling(memory)
        lock = AsyncLock(store, fresh())
        async with lock as outer:
            async with lock as inner:
                assert inner.fence == outer.fence
            assert store.requests == 1

            async def another() -> AsyncHold | None:
                return await lock.acquire(timeout=0)

            async with asyncio.TaskGroup() as group:
                child = group.create_task(another())
            assert child.result() is None
            outer.ensure_held()
        assert observed(memory, lock.key) is None
        with pytest.raises(NotHeld):
            await lock.release()

    asyncio.run(main())


def test_a_hold_may_be_released_by_another_task(memory: MemoryStore) -> None:
    """AsyncHold.release may be called from any task, and a waiting task then gets the lock."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh())
        hold = await held(lock)
        waiting = asyncio.create_task(held(lock, None))
        await turns(5)
        assert not waiting.done()
        await asyncio.create_task(hold.release())
        got = await asyncio.wait_for(waiting, 10)
        await got.release()
        with pytest.raises(NotHeld):
            await hold.release()

    asyncio.run(main())


async def close(generator: AsyncGenerator[int, None]) -> None:
    """Close a generator, as the event loop does with a forgotten one."""
    await generator.aclose()


def test_a_block_that_ends_in_another_task_gives_back_its_hold(memory: MemoryStore) -> None:
    """Leaving ``async with`` in another task than it was entered in releases what was entered, and that only once."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh())
        hold = await lock.__aenter__()
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert observed(memory, lock.key) is None
        with pytest.raises(NotHeld):
            await hold.release()
        with pytest.raises(NotHeld):
            await lock.__aexit__(None, None, None)

        async def rooms() -> AsyncGenerator[int, None]:
            async with lock:
                yield 1
                yield 2

        generator = rooms()
        async for _ in generator:
            break
        assert observed(memory, lock.key) is not None
        await asyncio.create_task(close(generator))
        assert observed(memory, lock.key) is None

    asyncio.run(main())


def test_not_acquired_shows_who_holds_it(memory: MemoryStore) -> None:
    """NotAcquired of ``async with`` names key, owner, and since when."""

    async def main() -> None:
        first = AsyncLock(memory, fresh(), note="nightly run")
        async with first:
            record = await first.holder()
            assert record is not None
            with pytest.raises(NotAcquired) as caught:
                async with AsyncLock(memory, first.key, timeout=0.02):
                    pytest.fail("two hold one lock")
        for fact in (repr(first.key), first.owner, record.since_iso, "nightly run"):
            assert fact in str(caught.value)

    asyncio.run(main())


def test_loss_cancels_the_block_and_surfaces_as_lock_lost(location: Place) -> None:
    """A block whose lease is taken away is cancelled, and its task sees LockLost, with no cancellation left over."""
    plain = location.store()

    async def main() -> None:
        async with location.async_store() as store:
            lock = AsyncLock(store, fresh(), ttl=0.6)
            reached = False
            with pytest.raises(LockLost, match=lock.key):
                async with lock:
                    Lock(plain, lock.key).force_release()
                    await asyncio.sleep(20)
                    reached = True
            assert not reached
            assert not_cancelling()
            await asyncio.sleep(0)
            await (await held(lock)).release()

    asyncio.run(main())


def test_a_lease_that_nobody_renews_cancels_the_block(memory: MemoryStore) -> None:
    """With auto_renew=False, the block is cancelled at the end of the lease."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.1, auto_renew=False)
        with pytest.raises(LockLost, match=lock.key):
            async with lock:
                await asyncio.sleep(20)
        assert not_cancelling()

    asyncio.run(main())


def test_a_store_that_is_down_for_a_lease_cancels_the_block(memory: MemoryStore) -> None:
    """A block whose lease could not be renewed is cancelled at the deadline, although nobody answers."""

    async def main() -> None:
        store = Watched(memory)
        lock = AsyncLock(store, fresh(), ttl=0.3)
        with pytest.raises((LockLost, StoreUnavailable)):
            async with lock:
                store.lose = lambda _verb, _key: True
                await asyncio.sleep(20)
        assert not_cancelling()

    asyncio.run(main())


def test_a_foreign_cancellation_stays_one(memory: MemoryStore) -> None:
    """A task that is cancelled by somebody else ends cancelled, and the lock is released."""

    async def main() -> None:
        lock = AsyncLock(Travelling(memory, 2), fresh())
        inside = asyncio.Event()

        async def work() -> None:
            async with lock:
                inside.set()
                await asyncio.sleep(20)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel("from outside")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert observed(memory, lock.key) is None

    asyncio.run(main())


def test_a_foreign_cancellation_at_the_moment_of_the_loss_stays_one(memory: MemoryStore) -> None:
    """When the loss and somebody else cancel a block together, it is cancelled: LockLost hides no cancellation."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)
        inside = asyncio.Event()

        async def work() -> None:
            async with lock as hold:
                task = asyncio.current_task()
                assert task is not None
                hold._attempt.lease.on_loss.append(lambda: task.cancel("from outside"))
                inside.set()
                await asyncio.sleep(20)

        task = asyncio.create_task(work())
        await inside.wait()
        Lock(memory, lock.key).force_release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_a_timeout_around_the_block_is_a_timeout(memory: MemoryStore) -> None:
    """asyncio.timeout around the lock ends the block by TimeoutError, and the lock is released."""

    async def main() -> None:
        lock = AsyncLock(Travelling(memory, 1), fresh())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), lock:
                await asyncio.sleep(20)
        assert not_cancelling()
        assert observed(memory, lock.key) is None

    asyncio.run(main())


def test_a_timeout_inside_the_block_is_its_own_affair(memory: MemoryStore) -> None:
    """asyncio.timeout inside the block ends what it guards; the lock is held further."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh())
        async with lock as hold:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(20)
            hold.ensure_held()
            assert not_cancelling()
        assert observed(memory, lock.key) is None

    asyncio.run(main())


@pytest.mark.parametrize("where", ["around", "inside", "both"])
def test_loss_within_timeouts_is_lock_lost(memory: MemoryStore, where: str) -> None:
    """Timeouts around and inside that have not expired don't change it: the loss surfaces as LockLost."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)

        async def body() -> None:
            async with lock:
                Lock(memory, lock.key).force_release()
                async with asyncio.timeout(None if where == "around" else 20):
                    await asyncio.sleep(20)

        with pytest.raises(LockLost, match=lock.key):
            async with asyncio.timeout(None if where == "inside" else 20):
                await body()
        assert not_cancelling()

    asyncio.run(main())


def test_a_block_that_swallows_the_cancellation_still_learns_of_the_loss(memory: MemoryStore) -> None:
    """A block that goes on after its cancellation ends in LockLost, and no cancellation is left over."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)
        with pytest.raises(LockLost, match=lock.key):
            async with lock:
                Lock(memory, lock.key).force_release()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(20)
                await asyncio.sleep(0)
        assert not_cancelling()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_the_error_of_the_block_is_never_masked(memory: MemoryStore) -> None:
    """A block that answers its cancellation with an error of its own leaves by that, with a note of the loss."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)
        with pytest.raises(KeyError) as caught:
            async with lock:
                Lock(memory, lock.key).force_release()
                try:
                    await asyncio.sleep(20)
                except asyncio.CancelledError:
                    raise KeyError from None
        assert any(lock.key in note for note in caught.value.__notes__)
        assert not_cancelling()

    asyncio.run(main())


def test_loss_in_nested_blocks(memory: MemoryStore) -> None:
    """Of two nested locks, loss of the outer one, the inner one, or both cancels the block, and ends in LockLost."""

    async def main(lost: tuple[int, ...]) -> None:
        store = AsyncMemoryStore(memory)
        locks = [AsyncLock(store, fresh(), ttl=0.2) for _ in range(2)]
        with pytest.raises(LockLost) as caught:
            async with locks[0], locks[1]:
                for number in lost:
                    Lock(memory, locks[number].key).force_release()
                await asyncio.sleep(20)
        assert any(locks[number].key in str(caught.value) for number in lost)
        assert not_cancelling()
        assert not any(observed(memory, lock.key) for lock in locks)

    for lost in ((0,), (1,), (0, 1), (1, 0)):
        asyncio.run(main(lost))


def test_loss_in_a_re_entered_block(memory: MemoryStore) -> None:
    """A task that has entered one lock twice and loses it ends in LockLost outside, with no cancellation left over."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)
        with pytest.raises(LockLost, match=lock.key):
            async with lock, lock:
                Lock(memory, lock.key).force_release()
                await asyncio.sleep(20)
        assert not_cancelling()
        await (await held(lock)).release()

    asyncio.run(main())


def test_a_task_group_inside_the_block_is_cancelled_with_it(memory: MemoryStore) -> None:
    """Loss ends a TaskGroup inside the block: its tasks are cancelled, and LockLost surfaces."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)
        with pytest.raises(LockLost, match=lock.key):
            async with lock:
                Lock(memory, lock.key).force_release()
                async with asyncio.TaskGroup() as group:
                    children = [group.create_task(asyncio.sleep(20)) for _ in range(3)]
        assert all(child.cancelled() for child in children)
        assert not_cancelling()

    asyncio.run(main())


def test_loss_in_one_task_of_a_group_is_that_groups_affair(memory: MemoryStore) -> None:
    """A task of a TaskGroup that loses its lock fails with LockLost; its siblings are cancelled."""

    async def main() -> None:
        store = AsyncMemoryStore(memory)
        doomed, other = AsyncLock(store, fresh(), ttl=0.2), AsyncLock(store, fresh(), ttl=0.2)

        async def work(lock: AsyncLock) -> None:
            async with lock:
                await asyncio.sleep(20)

        with pytest.raises(BaseExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(work(doomed))
                group.create_task(work(other))
                await turns(3)
                Lock(memory, doomed.key).force_release()
        assert [type(error) for error in caught.value.exceptions] == [LockLost]
        assert observed(memory, other.key) is None

    asyncio.run(main())


def test_on_lost_is_called_once(memory: MemoryStore) -> None:
    """on_lost is called once, with the hold, also where no block is to be cancelled."""
    calls: list[object] = []

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2, on_lost=calls.append)
        hold = await held(lock)
        Lock(memory, lock.key).force_release()
        await asyncio.sleep(0.3)
        assert calls == [hold]
        assert hold.lost
        with pytest.raises(LockLost):
            await hold.release()
        assert len(calls) == 1

    asyncio.run(main())


def test_a_failing_on_lost_is_reported_and_cancels_the_block_all_the_same(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of on_lost is logged, with its traceback; the block is cancelled, and other locks renewed."""
    key = fresh()

    def fail(_: object) -> None:
        message = "of the callback"
        raise RuntimeError(message)

    async def main() -> None:
        store = AsyncMemoryStore(memory)
        doomed = AsyncLock(store, key, ttl=0.3, on_lost=fail)
        async with AsyncLock(store, fresh(), ttl=0.3) as other:
            with pytest.raises(LockLost):
                async with doomed:
                    Lock(memory, doomed.key).force_release()
                    await asyncio.sleep(20)
            await asyncio.sleep(0.4)
            other.ensure_held()

    asyncio.run(main())
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [(error.name, error.getMessage()) for error in errors] == [
        ("caslock", f"the on_lost callback of lock {key!r} raised an exception")
    ]
    assert "RuntimeError: of the callback" in caplog.text


@pytest.mark.parametrize("notice", ["extend", "ensure_held"])
def test_loss_that_another_task_notices_first_cancels_the_block(memory: MemoryStore, notice: str) -> None:
    """The block is cancelled, and on_lost called, even when another task's question is the first to find the loss."""
    calls: list[object] = []

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2, on_lost=calls.append)
        inside: asyncio.Future[AsyncHold] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            async with lock as hold:
                inside.set_result(hold)
                await asyncio.sleep(0.6)

        task = asyncio.create_task(work())
        hold = await inside
        if notice == "extend":
            Lock(memory, lock.key).force_release()
            with pytest.raises(LockLost):
                await hold.extend()
        else:
            hold._attempt.lease.deadline = 0.0  # it has just passed
            with pytest.raises(LockLost):
                hold.ensure_held()
        began = asyncio.get_running_loop().time()
        with pytest.raises(LockLost):
            await task
        assert asyncio.get_running_loop().time() - began < 0.5, "the body ran on to its end"
        assert len(calls) == 1

    asyncio.run(main())


def test_a_forgotten_hold_is_not_renewed_for_ever(memory: MemoryStore) -> None:
    """An AsyncLock and its hold that nothing refers to end within a lease."""

    async def main() -> None:
        key = fresh()
        await held(AsyncLock(AsyncMemoryStore(memory), key, ttl=0.3, on_lost=lambda _: None))
        assert observed(memory, key)
        gc.collect()  # on a busy machine it may take longer than the lease
        await asyncio.sleep(0.5)
        assert observed(memory, key) is None

    asyncio.run(main())


def test_a_lock_serves_one_loop_after_another(memory: MemoryStore) -> None:
    """The same AsyncLock works in a second event loop after the first has ended."""
    lock = AsyncLock(memory, fresh())
    for _ in range(2):
        asyncio.run(visit(lock))
    assert observed(memory, lock.key) is None


def test_a_lock_that_tasks_waited_for_serves_another_loop(memory: MemoryStore) -> None:
    """The same AsyncLock works in a second event loop also where tasks wait for each other in both."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())

    async def main() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(visit(lock))

    for _ in range(2):
        asyncio.run(main())
    assert observed(memory, lock.key) is None


def test_a_loop_that_ended_while_it_held_blocks_no_other_for_longer_than_a_lease(memory: MemoryStore) -> None:
    """A lock held when its loop ended can be had in the next one, after a lease at the latest."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh(), ttl=0.2)

    async def leak() -> None:
        await held(lock)

    async def again() -> None:
        async with asyncio.timeout(0.6):
            await (await held(lock, timeout=None)).release()

    asyncio.run(leak())
    assert until(lambda: observed(memory, lock.key) is None, 1)
    asyncio.run(again())


def test_the_cause_of_a_failed_release_is_kept(memory: MemoryStore) -> None:
    """The exit of a block raises what the release raises, with the client's exception as its cause."""

    class ClientError(Exception):
        pass

    class Cut(AsyncMemoryStore):
        async def invalidate(self, key: str, version: int) -> Entry | None:
            raise StoreUnavailable("cut") from ClientError(key, version)

        async def get(self, key: str) -> Entry | None:
            raise StoreUnavailable("cut") from ClientError(key)

    async def main() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            async with AsyncLock(Cut(memory), fresh(), retry=(0, 0)):
                pass
        assert isinstance(caught.value.__cause__, ClientError)

    asyncio.run(main())


def test_a_loss_that_the_block_has_seen_is_raised_at_its_exit() -> None:
    """A block that releases, and goes on after the `LockLost` of that, still ends with `LockLost`."""

    async def main() -> None:
        lock = AsyncLock(AsyncMemoryStore(), fresh())
        with pytest.raises(LockLost):
            async with lock as hold:
                await lock.force_release()
                with contextlib.suppress(LockLost):
                    await hold.release()
                await asyncio.sleep(5)

    asyncio.run(main())


class Renewing(AsyncMemoryStore):
    """Keeps each renewal until it is told to go on."""

    def __init__(self) -> None:
        """Let everything through at first."""
        super().__init__()
        self.keeps, self.keeping, self.go_on = False, threading.Event(), threading.Event()

    async def _keep(self) -> None:
        if self.keeps:
            self.keeping.set()
            while not self.go_on.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.001)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        await self._keep()
        return await super().put_if_version(key, value, version, ttl)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """See `BatchingStore.put_many`."""
        await self._keep()
        return await super().put_many(puts)


def test_a_release_in_another_loop_waits_for_a_renewal_and_no_longer() -> None:
    """Given a renewal under way in one loop, a release in the loop of another thread ends right after it."""
    store, taken, over = Renewing(), list[AsyncHold](), threading.Event()

    async def hold() -> None:
        taken.append(await held(AsyncLock(store, "k", ttl=3)))
        store.keeps = True
        await asyncio.to_thread(over.wait, 20)

    async def leave() -> None:
        releasing = asyncio.ensure_future(taken[0].release())
        await asyncio.sleep(0)  # it waits for the mutex
        store.go_on.set()
        async with asyncio.timeout(20):
            await releasing

    holder = threading.Thread(target=lambda: asyncio.run(hold()))
    holder.start()
    try:
        assert store.keeping.wait(20)
        store.keeps = False
        began = time.monotonic()
        asyncio.run(leave())
        assert time.monotonic() - began < 1.5
    finally:
        over.set()
        holder.join()


@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
def test_a_loop_that_was_closed_during_a_renewal_keeps_no_release_waiting(keys: list[str]) -> None:
    """Given holds of a loop that was closed while it renewed them, they can be released in another loop."""
    store, loop = Renewing(), asyncio.new_event_loop()
    holds = loop.run_until_complete(AsyncMultiLock(store, keys, ttl=3).acquire())
    store.keeps = True

    async def renewal() -> None:
        while not store.keeping.is_set():  # noqa: ASYNC110 - it is set by another task
            await asyncio.sleep(0.001)

    loop.run_until_complete(renewal())
    loop.close()
    store.keeps = False

    async def leave() -> None:
        assert holds is not None
        async with asyncio.timeout(2):
            await holds.release()

    asyncio.run(leave())


class CountedWaits(WatchingMemory):
    """Tells how many of its users wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """Count it."""
        self.waiting += 1
        try:
            super().wait_while(key, version, timeout)
        finally:
            self.waiting -= 1


def test_a_blocking_store_that_is_watched_wakes_tasks() -> None:
    """It waits in a thread, not by polling; a waiter that is cancelled is free at once."""
    store = CountedWaits()
    rival = copy.copy(store)  # on the same memory, as of another process

    async def main() -> None:
        held = await AsyncLock(rival, "k").acquire()
        assert held is not None
        tired, waiter = (asyncio.create_task(AsyncLock(store, "k").acquire()) for _ in range(2))
        while not store.waiting:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.001)
        tired.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tired
        assert store.waiting == 1
        while store.waiting < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        await held.release()
        async with asyncio.timeout(5):
            hold = await waiter
        assert hold is not None
        await hold.release()

    asyncio.run(main())


def _is_store(store: AsyncStore) -> AsyncStore:
    return store


_is_store(Travelling(MemoryStore()))
