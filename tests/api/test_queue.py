"""Contenders of one process wait in a local queue, make no requests there, and hand the key over in one request."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

import pytest

from caslock import AsyncLock, Hold, Lock, LockLost, MultiLock, NotAcquired, Store
from caslock.local import queue as local_queue
from caslock.local.queue import LocalQueue
from caslock.local.shared import shared_of
from caslock.protocol.hand_over import HandOver
from caslock.protocol.record import Observed
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, FaultyStore, late, lose_reply, lose_request, raising, unsent
from tests.support.locations import Place, fresh, observed, present, until
from tests.support.loops import in_a_loop
from tests.support.watching import WatchingMemory

T = TypeVar("T")
ENOUGH = 20.0
"""Seconds; longer than anything here takes."""


def held(lock: Lock, timeout: float | None = ENOUGH) -> Hold:
    return present(lock.acquire(timeout=timeout))


def waiters(store: object, key: str) -> int:
    return len(shared_of(store).of_key(key, LocalQueue).waiting)


def in_line(pool: ThreadPoolExecutor, store: Store, key: str, act: Callable[[], T]) -> Future[T]:
    """Run `act` in a thread, and return once it waits for `key` in this process's queue."""
    before = waiters(store, key)
    future = pool.submit(act)
    assert until(lambda: waiters(store, key) > before)
    return future


async def line_up(store: object, key: str, number: int) -> None:
    """Let tasks and threads run until so many wait for `key` in this process's queue."""
    while waiters(store, key) < number:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)


def test_threads_are_served_in_the_order_of_their_coming(location: Place, pool: ThreadPoolExecutor) -> None:
    """First come, first served, over many Lock objects of one store; each fence is larger than the last."""
    store, key = location.store(), fresh()
    order: list[int] = []
    fences: list[int] = []

    def work(number: int) -> None:
        with Lock(store, key) as hold:
            order.append(number)
            fences.append(hold.fence)

    first = held(Lock(store, key))
    waiting = [in_line(pool, store, key, lambda number=number: work(number)) for number in range(10)]  # type: ignore[misc] # its parameter has a default
    first.release()
    for one in waiting:
        one.result(timeout=ENOUGH)
    assert order == list(range(10))
    assert fences == sorted(set(fences))
    assert fences[0] > first.fence
    assert observed(store, key) is None


def test_waiters_cost_the_store_nothing(location: Place, pool: ThreadPoolExecutor) -> None:
    """While another process holds the key, thirty threads that wait for it send what one of them sends."""
    store, key = FaultyStore(location.store()), fresh()
    theirs = held(Lock(location.store() if location.kind != "memory" else FaultyStore(location.store()), key))
    asked = threading.Event()
    store.after("any", 1, asked.set)

    waiting = [pool.submit(Lock(store, key).acquire, timeout=ENOUGH) for _ in range(30)]
    assert asked.wait(ENOUGH)
    assert until(lambda: waiters(store, key) == 29)  # the first is past the local queue
    assert {request.verb for request in store.log} <= {"put_if_version", "put_when_absent"}
    theirs.release()
    while waiting:
        assert until(lambda: any(one.done() for one in waiting))
        one = next(one for one in waiting if one.done())
        waiting.remove(one)
        hold = present(one.result())
        hold.release()
    assert waiters(store, key) == 0


def test_a_hand_over_is_one_request(location: Place, pool: ThreadPoolExecutor) -> None:
    """Release and the next acquire are one put together: a new hold id, a new tenure, a larger fence."""
    store, key = FaultyStore(location.store()), fresh()
    first = held(Lock(store, key))
    next_one = in_line(pool, store, key, lambda: held(Lock(store, key, note="successor")))
    store.calls.clear()
    first.release()
    second = next_one.result(timeout=ENOUGH)
    assert store.calls == {"put_if_version": 1}
    assert second.fence > first.fence
    assert second._attempt.hold_id != first._attempt.hold_id
    record = present(observed(store, key))
    assert (record.holds, record.note, record.fence) == ((second._attempt.hold_id,), "successor", None)
    second.extend()
    second.release()
    assert observed(store, key) is None


def test_a_process_that_has_woken_another_lets_it_go_first(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MultiLock whose release wakes a waiter at the store queues behind it, as a Lock does."""
    monkeypatch.setattr(local_queue, "YIELD_SECONDS", ENOUGH)
    ours, theirs, keys = FaultyStore(memory), FaultyStore(memory), sorted(fresh() for _ in range(2))
    lock = MultiLock(ours, keys)
    holds = present(lock.acquire())
    waiting = pool.submit(held, Lock(theirs, keys[0]))
    assert until(lambda: keys[0] in memory._lines)
    ours.log.clear()
    holds.release()
    waiting.result(timeout=ENOUGH).release()
    with lock:
        assert [request.verb for request in ours.log] == ["invalidate_many", "put_when_absent", "put_if_version"]


def test_one_try_does_not_queue(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """timeout=0 while this process holds the key, or waits for it, is refused at once and makes no request."""
    store, key = FaultyStore(memory), fresh()
    with Lock(store, key) as hold:
        store.calls.clear()
        assert Lock(store, key).acquire(timeout=0) is None
        with pytest.raises(NotAcquired, match="in another thread or task of this process") as caught:
            pool.submit(Lock(store, key, timeout=0).__enter__).result()
        assert hold.owner in str(caught.value)
        assert not store.calls


FAULTS = [lose_reply, lose_request, unsent, late(before=1), late(after=1), late(after=2), late(after=3), late()]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_hand_over_without_an_answer(memory: MemoryStore, pool: ThreadPoolExecutor, fault: object) -> None:
    """Whatever becomes of its put, one has left and the other holds, with a larger fence; later nothing is there."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    successor = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.on("put_if_version", 1, fault)  # type: ignore[arg-type] # a parameter of the test
    first.release()
    second = successor.result(timeout=ENOUGH)
    assert second.fence > first.fence
    second.ensure_held()
    record = present(observed(memory, key))
    assert record.holds == (second._attempt.hold_id,)
    store.deliver()
    second.extend()
    second.release()
    store.deliver()
    left = observed(memory, key)
    assert left is None or left.free


@in_a_loop
async def test_nothing_is_handed_over_to_one_that_has_gone_before() -> None:
    """The successor is cancelled while the releaser still waits for a slow renewal: nothing is sent in its name."""
    memory, key = MemoryStore(), fresh()
    store = AsyncFaultyStore(AsyncMemoryStore(memory))
    first = present(await AsyncLock(store, key).acquire())
    successor = asyncio.create_task(AsyncLock(store, key).acquire())
    await line_up(store, key, 1)
    slow, goes_on = asyncio.Event(), asyncio.Event()

    async def renewal() -> None:
        slow.set()
        await goes_on.wait()

    store.before("put_if_version", 1, renewal)
    extending = asyncio.create_task(first.extend())
    await slow.wait()
    releasing = asyncio.create_task(first.release())
    while waiters(store, key):  # noqa: ASYNC110 - until the successor is named
        await asyncio.sleep(0)
    successor.cancel()
    with pytest.raises(asyncio.CancelledError):
        await successor
    goes_on.set()
    await asyncio.gather(extending, releasing)
    assert observed(memory, key) is None


@pytest.mark.parametrize("applied", [True, False])
def test_an_interrupt_as_the_key_is_handed_over(
    memory: MemoryStore, pool: ThreadPoolExecutor, *, applied: bool
) -> None:
    """KeyboardInterrupt in the releasing thread: it has left, and its successor holds."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    successor = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.on("put_if_version", 1, raising(KeyboardInterrupt, applied=applied))
    with pytest.raises(KeyboardInterrupt):
        first.release()
    second = successor.result(timeout=ENOUGH)
    second.ensure_held()
    assert not first._is_open
    second.release()


def lose(memory: MemoryStore, key: str, how: str) -> Hold | None:
    """Take the key from its holder, who does not learn of it."""
    if how == "broken":
        Lock(FaultyStore(memory), key).force_release()
        return None
    entry = present(memory.get(key))
    memory.invalidate(key, entry.version)
    return held(Lock(FaultyStore(memory), key)) if how == "held by another" else None


@pytest.mark.parametrize("how", ["gone", "broken", "held by another"])
def test_a_lost_lock_cannot_be_handed_over(memory: MemoryStore, pool: ThreadPoolExecutor, how: str) -> None:
    """The hand-over races with a loss: the releaser learns of it, and its successor gets only a free key."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    successor = in_line(pool, store, key, lambda: held(Lock(store, key)))
    rival: list[Hold | None] = []
    store.before("put_if_version", 1, lambda: rival.append(lose(memory, key, how)))
    with pytest.raises(LockLost):
        first.release()
    if rival[0] is not None:
        assert not successor.done()
        rival[0].ensure_held()
        rival[0].release()
    second = successor.result(timeout=ENOUGH)
    assert second.fence > first.fence
    second.ensure_held()
    second.release()
    assert observed(memory, key) is None or observed(memory, key).free  # type: ignore[union-attr] # None fails the test too


def test_an_interrupt_as_the_successor_is_told(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns at once that nobody will tell it: it does not wait for its patience to end."""
    key = fresh()
    hold = held(Lock(memory, key, ttl=30))
    waiting = in_line(pool, memory, key, lambda: held(Lock(memory, key)))
    settle, calls = HandOver.settle, list[object]()

    def interrupted(self: HandOver, outcome: Observed | None = None) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        settle(self, outcome)

    monkeypatch.setattr(HandOver, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    waiting.result(timeout=50).release()


@in_a_loop
async def test_threads_and_tasks_hand_over_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both APIs over one store object share one queue."""
    monkeypatch.setattr("caslock.local.queue.ALONE_SECONDS", float("inf"))
    memory, key = MemoryStore(), fresh()
    store = FaultyStore(memory)
    loop = asyncio.get_running_loop()
    first = present(await AsyncLock(store, key).acquire())
    thread = loop.run_in_executor(None, held, Lock(store, key))
    await line_up(store, key, 1)
    task = asyncio.create_task(AsyncLock(store, key).acquire())
    await line_up(store, key, 2)
    store.calls.clear()
    await first.release()
    second = await thread
    await loop.run_in_executor(None, second.release)
    third = present(await task)
    await third.release()
    assert first.fence < second.fence < third.fence
    assert store.calls == {"put_if_version": 2, "invalidate": 1}


def test_keys_of_a_multi_lock_travel_together(location: Place) -> None:
    """Ten keys are one request to take and one to release where the store can, else one for each."""
    store, keys = FaultyStore(location.store()), [fresh() for _ in range(10)]
    lock = MultiLock(store, keys)
    with lock as holds:
        together = location.kind != "memcached"
        assert store.calls == ({"put_many": 1} if together else {"put_if_version": 10})
        holds.ensure_held()
        store.calls.clear()
    assert store.calls == ({"invalidate_many": 1} if together else {"invalidate": 10})
    assert not any(observed(store, key) for key in keys)


@pytest.mark.parametrize("asks", [True, False], ids=["at the store", "in the local queue"])
def test_since_is_when_a_waiter_got_the_key(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, *, asks: bool
) -> None:
    """The record of a contender that has waited for an hour says when it got the key, not when it came."""
    ours, key, came = WatchingMemory(), fresh(), int(time.time())
    theirs = copy.copy(ours) if asks else ours
    monkeypatch.setattr(time, "time", lambda: came)
    hold = held(Lock(theirs, key))
    waiting = pool.submit(held, Lock(ours, key))
    assert until(lambda: bool(ours._changed._waiters) if asks else waiters(ours, key))  # type: ignore[attr-defined] # of a threading.Condition
    monkeypatch.setattr(time, "time", lambda: came + 3600)
    hold.release()
    mine = waiting.result()
    record = present(Lock(ours, key).holder())
    assert record.since == datetime.fromtimestamp(came + 3600, UTC)
    mine.release()
