"""A task that is cancelled leaves nothing behind, and one that loses its lease is cancelled."""

# ruff: noqa: PT012 - what is raised at the end of a `with` block needs a block

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import pytest

from caslock import AsyncHold, AsyncLock, Entry, Hold, Lock, LockLost, NotHeld, StoreUnavailable, Traits
from caslock.local import clock
from caslock.local.queue import LocalQueue
from caslock.local.shared import shared_of
from caslock.local.task_renewer import renewer_of
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.locations import Place, Watched, fresh, make_due, observed, opened, present
from tests.support.loops import in_a_loop

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
        return self._memory.traits

    async def get(self, key: str) -> Entry | None:
        return await self._send(lambda: self._memory.get(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await self._send(lambda: self._memory.put_if_version(key, value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
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
        while self.under_way:  # noqa: ASYNC110 - counted in turns of the loop
            await asyncio.sleep(0)


async def held(lock: AsyncLock, timeout: float | None = 0) -> AsyncHold:
    return present(await lock.acquire(timeout=timeout))


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def over(task: asyncio.Task[T]) -> T | None:
    """Wait for the end of a task that may be cancelled."""
    try:
        return await task
    except asyncio.CancelledError:
        return None


def not_cancelling() -> bool:
    task = present(asyncio.current_task())
    return task.cancelling() == 0


async def visit(lock: AsyncLock) -> None:
    async with lock:
        await asyncio.sleep(0)


ACTS: list[Callable[[AsyncLock], Awaitable[object]]] = [AsyncLock.acquire, visit]
"""What is cancelled."""

WAYS = [(0,), (1,), (3,), (5, 1), (9, 0), (1, 6), (7, 2, 0), (0, 4, 1, 8), (12, 0, 0, 0, 12)]
"""Turns of the loop that the first request takes, the second, and so on."""


@pytest.mark.parametrize("way", WAYS, ids=str)
@in_a_loop
async def test_an_acquire_cancelled_at_any_turn_leaves_nothing(memory: MemoryStore, way: tuple[int, ...]) -> None:
    """Cancelled after k turns, for every k to its end and whatever is under way then, acquire leaves the key free."""
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
    assert cancelled > 5


@pytest.mark.parametrize("way", WAYS, ids=str)
@in_a_loop
async def test_an_acquire_cancelled_again_and_again_leaves_nothing(memory: MemoryStore, way: tuple[int, ...]) -> None:
    """A second and a third cancellation of a task that waits for its clean-up do not stop that."""
    for first, more in itertools.product(range(30), (0, 1, 2, 5)):
        store = Travelling(memory, *way)
        lock = AsyncLock(store, fresh())
        task = asyncio.create_task(visit(lock))
        await turns(first)
        for _ in range(3):
            task.cancel()
            await turns(more)
        await over(task)
        await asyncio.gather(*renewer_of(asyncio.get_running_loop())._finishing)
        await store.settled()
        assert observed(memory, lock.key) is None, f"cancelled after {first} turns, and every {more} turns"
        await (await held(lock)).release()


async def renewed(hold: AsyncHold) -> None:
    deadline = hold._attempt.lease.deadline
    make_due(hold._attempt)
    while hold._attempt.lease.deadline == deadline:
        hold.ensure_held()
        await asyncio.sleep(0.01)


@in_a_loop
async def test_a_plain_store_serves_from_worker_threads(location: Place) -> None:
    """Every blocking store serves an AsyncLock: it locks, re-enters, renews and releases."""
    plain = location.store()
    plain.get("warm")  # a new memcached asks for seconds
    lock = AsyncLock(plain, fresh(), ttl=60)
    async with lock as hold, lock as again:
        assert again.fence == hold.fence
        assert Lock(plain, lock.key).acquire(timeout=0) is None
        await renewed(hold)
        await hold.extend(50)
        assert await lock.locked()
    assert observed(plain, lock.key) is None


@in_a_loop
async def test_cancelled_while_waiting_for_another(location: Place) -> None:
    """A task cancelled while it waits for somebody else's lock leaves the holder alone, and nothing behind."""
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


@pytest.mark.parametrize("kind", ["memory", "redis"])
@in_a_loop
async def test_a_cancelled_acquire_or_release_leaves_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """Each is cancelled after any number of turns: the key is free, and the object is usable."""
    with opened(kind, request) as location:
        plain = location.store()
        async with location.async_store() as native:
            for number in range(60):
                memory = MemoryStore()
                store = native if kind == "redis" else Travelling(memory, number % 7, 2)
                seen = plain if kind == "redis" else memory
                lock = AsyncLock(store, fresh())
                acquiring = asyncio.create_task(lock.acquire())
                await turns(number)
                acquiring.cancel()
                hold = await over(acquiring)
                if hold is None:
                    assert observed(seen, lock.key) is None
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


@in_a_loop
async def test_the_same_task_re_enters(memory: MemoryStore) -> None:
    """The same task enters again without a request; a task that it has started does not inherit that."""
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


@in_a_loop
async def test_a_hold_may_be_released_by_another_task(memory: MemoryStore) -> None:
    """AsyncHold.release may be called from any task, and a waiting task then gets the lock."""
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


async def close(generator: AsyncGenerator[int, None]) -> None:
    """Close a generator, as the event loop does with a forgotten one."""
    await generator.aclose()


@in_a_loop
async def test_a_block_that_ends_in_another_task_gives_back_its_hold(memory: MemoryStore) -> None:
    """Leaving ``async with`` in another task than it was entered in releases what was entered, and that only once."""
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


@in_a_loop
async def test_loss_cancels_the_block_and_surfaces_as_lock_lost(location: Place) -> None:
    """A block whose lease is taken away is cancelled, and its task sees LockLost, with no cancellation left over."""
    plain = location.store()
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


@in_a_loop
async def test_a_foreign_cancellation_at_the_moment_of_the_loss_stays_one(memory: MemoryStore) -> None:
    """When the loss and somebody else cancel a block together, it is cancelled: LockLost hides no cancellation."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())
    inside = asyncio.Event()

    async def work() -> None:
        async with lock as hold:
            task = present(asyncio.current_task())
            hold._attempt.lease.on_loss.append(lambda: task.cancel("from outside"))
            inside.set()
            await asyncio.sleep(20)

    task = asyncio.create_task(work())
    await inside.wait()
    await lock.force_release()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@in_a_loop
async def test_a_timeout_around_the_block_is_a_timeout(memory: MemoryStore) -> None:
    """asyncio.timeout around the lock ends the block by TimeoutError, and the lock is released."""
    lock = AsyncLock(Travelling(memory, 1), fresh())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), lock:
            await asyncio.sleep(20)
    assert not_cancelling()
    assert observed(memory, lock.key) is None


@pytest.mark.parametrize("where", ["around", "inside", "both"])
@in_a_loop
async def test_loss_within_timeouts_is_lock_lost(memory: MemoryStore, where: str) -> None:
    """Timeouts around and inside that have not expired don't change it: the loss surfaces as LockLost."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())

    async def body() -> None:
        async with lock:
            async with asyncio.timeout(None if where == "around" else 20):
                await lock.force_release()
                await asyncio.sleep(20)

    with pytest.raises(LockLost, match=lock.key):
        async with asyncio.timeout(None if where == "inside" else 20):
            await body()
    assert not_cancelling()


@in_a_loop
async def test_a_block_that_swallows_the_cancellation_still_learns_of_the_loss(memory: MemoryStore) -> None:
    """A block that goes on after its cancellation ends in LockLost, and no cancellation is left over."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())
    with pytest.raises(LockLost, match=lock.key):
        async with lock:
            await lock.force_release()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(20)
            await asyncio.sleep(0)
    assert not_cancelling()
    await asyncio.sleep(0)


@in_a_loop
async def test_the_error_of_the_block_is_never_masked(memory: MemoryStore) -> None:
    """A block that answers its cancellation with an error of its own leaves by that, with a note of the loss."""
    lock = AsyncLock(AsyncMemoryStore(memory), fresh())
    with pytest.raises(KeyError) as caught:
        async with lock:
            await lock.force_release()
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                raise KeyError from None
    assert any(lock.key in note for note in caught.value.__notes__)
    assert not_cancelling()


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (1, 0)])
@in_a_loop
async def test_loss_in_nested_blocks(memory: MemoryStore, lost: tuple[int, ...]) -> None:
    """Of two nested locks, loss of the outer one, the inner one, or both cancels the block, and ends in LockLost."""
    store = AsyncMemoryStore(memory)
    locks = [AsyncLock(store, fresh()) for _ in range(2)]
    with pytest.raises(LockLost) as caught:
        async with locks[0], locks[1]:
            for number in lost:
                await locks[number].force_release()
            await asyncio.sleep(20)
    assert any(locks[number].key in str(caught.value) for number in lost)
    assert not_cancelling()
    assert not any(observed(memory, lock.key) for lock in locks)


@in_a_loop
async def test_a_failing_on_lost_is_reported_and_cancels_the_block_all_the_same(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of on_lost is logged, with its traceback; the block is cancelled, and other locks renewed."""
    key = fresh()

    def fail(_: object) -> None:
        message = "of the callback"
        raise RuntimeError(message)

    store = AsyncMemoryStore(memory)
    doomed = AsyncLock(store, key, on_lost=fail)
    async with AsyncLock(store, fresh(), ttl=60) as other:
        with pytest.raises(LockLost):
            async with doomed:
                await doomed.force_release()
                await asyncio.sleep(20)
        await renewed(other)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [(error.name, error.getMessage()) for error in errors] == [
        ("caslock", f"the on_lost callback of lock {key!r} raised an exception")
    ]
    assert "RuntimeError: of the callback" in caplog.text


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


@in_a_loop
async def test_the_cause_of_a_failed_release_is_kept(memory: MemoryStore) -> None:
    """The exit of a block raises what the release raises, with the client's exception in its chain of causes."""

    class ClientError(Exception):
        pass

    class Cut(AsyncMemoryStore):
        async def invalidate(self, key: str, version: int) -> Entry | None:
            raise StoreUnavailable("cut") from ClientError(key, version)

        async def get(self, key: str) -> Entry | None:
            raise StoreUnavailable("cut") from ClientError(key)

    with pytest.raises(StoreUnavailable) as caught:
        async with AsyncLock(Cut(memory), fresh(), retry=(0, 0)):
            pass
    assert isinstance(present(caught.value.__cause__).__cause__, ClientError)


@in_a_loop
async def test_a_loss_that_the_block_has_seen_is_raised_at_its_exit() -> None:
    """A block that releases, and goes on after the `LockLost` of that, still ends with `LockLost`."""
    lock = AsyncLock(AsyncMemoryStore(), fresh())
    with pytest.raises(LockLost):
        async with lock as hold:
            await lock.force_release()
            with contextlib.suppress(LockLost):
                await hold.release()
            await asyncio.sleep(5)


@pytest.mark.parametrize("released", [False, True])
@in_a_loop
async def test_an_acquire_cancelled_while_another_holds_the_key_leaves_nothing(
    memory: MemoryStore, *, released: bool
) -> None:
    """After any number of turns of its wait, also as the holder leaves: no record, and nobody waits in this process."""
    for number in range(40):
        holder = held_elsewhere(memory, key := fresh())
        there = observed(memory, key)
        store = Travelling(memory, number % 7, 2)
        lock = AsyncLock(store, key)
        task = asyncio.create_task(lock.acquire())
        await turns(number)
        if released:
            holder.release()
        task.cancel()
        assert await over(task) is None
        await store.settled()
        assert observed(memory, key) == (None if released else there), f"cancelled after {number} turns"
        queue = shared_of(store).of_key(key, LocalQueue)
        assert not queue.waiting
        assert not queue.inside(clock.now())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        if not released:
            holder.release()
        await (await held(lock)).release()


def held_elsewhere(memory: MemoryStore, key: str) -> Hold:
    """Hold the key through a store object that shares nothing, like another process."""
    return present(Lock(Watched(memory), key, ttl=1000).acquire(timeout=0))
