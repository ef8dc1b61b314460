"""Contenders of one process wait in a local queue, make no requests there, and hand the key over in one request."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pytest

from caslock import AsyncHold, AsyncLock, Hold, Lock, LockLost, MultiLock, NotAcquired, StoreError, StoreUnavailable
from caslock.local import clock
from caslock.local import queue as local_queue
from caslock.local.shared import shared_of
from caslock.local.threads import ThreadRuntime
from caslock.protocol.hand_over import HandOver
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, FaultyStore, late, lose_reply, lose_request, raising, unsent
from tests.support.locations import Place, fresh, observed, until
from tests.support.watching import WatchingMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock import Store
    from caslock.protocol.record import Observed
    from caslock.store import Entry
    from caslock.testing.faults import Fault

T = TypeVar("T")
ENOUGH = 20.0
"""Seconds; longer than anything here takes."""


def held(lock: Lock, timeout: float | None = ENOUGH) -> Hold:
    """Acquire a lock, and be sure of it."""
    hold = lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


def waiters(store: object, key: str) -> int:
    """Count the waiters in this process."""
    return len(shared_of(store).queue(key).waiting)


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
        hold = one.result()
        assert hold is not None
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
    record = observed(store, key)
    assert record is not None
    assert (record.holds, record.note, record.fence) == ((second._attempt.hold_id,), "successor", None)
    second.extend()
    second.release()
    assert observed(store, key) is None


def put_to_sleep(
    monkeypatch: pytest.MonkeyPatch, store: object, sleep: Callable[[float], Coroutine[object, object, None]]
) -> None:
    """Have the locks of `store` call `sleep` in place of sleeping; what other tests left in the background sleeps."""
    really = ThreadRuntime.sleep

    async def either(runtime: ThreadRuntime, seconds: float) -> None:
        await (sleep(seconds) if runtime.home is store else really(runtime, seconds))

    monkeypatch.setattr(ThreadRuntime, "sleep", either)


@pytest.mark.parametrize(("plain", "verbs"), [(False, "pppppiwpppppiwi"), (True, "pppppisppppppispi")])
def test_hand_overs_in_a_row_are_bounded_in_number(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, *, plain: bool, verbs: str
) -> None:
    """After so many hand-overs in a row the key is released, and waiters of other processes go first.

    Where the store has a line, those are the waiters in it; else the next local attempt pauses, because others poll.
    """
    monkeypatch.setattr(local_queue, "MOST_HAND_OVERS", 5)
    monkeypatch.setattr(local_queue, "HAND_OVER_SECONDS", ENOUGH)
    store, key = FaultyStore(memory, plain=plain), fresh()
    asleep: list[float] = []

    async def sleep(seconds: float) -> None:
        asleep.append(seconds)
        store.get(key)

    put_to_sleep(monkeypatch, store, sleep)
    first = held(Lock(store, key))
    theirs = {"poll": lambda _state: ENOUGH}  # between tries, and this is before one
    waiting = [in_line(pool, store, key, lambda: held(Lock(store, key, **theirs)).release()) for _ in range(12)]  # type: ignore[arg-type] # of several types
    store.log.clear()
    first.release()
    for one in waiting:
        one.result(timeout=ENOUGH)
    letters = {"put_if_version": "p", "invalidate": "i", "put_when_absent": "w", "get": "s"}
    assert "".join(letters[request.verb] for request in store.log) == verbs
    assert all(0 <= seconds <= 0.005 for seconds in asleep)


@pytest.mark.parametrize(("limit", "seen"), [("HAND_OVER_SECONDS", True), ("LONG_HAND_OVER_SECONDS", False)])
def test_hand_overs_in_a_row_are_bounded_in_time(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, limit: str, *, seen: bool
) -> None:
    """Hand-overs that have gone on for too long end, however few they were: sooner if another process was seen."""
    monkeypatch.setattr(local_queue, limit, 0.0)
    store, key = FaultyStore(memory), fresh()
    lock = Lock(store, key)
    if seen:
        with Lock(FaultyStore(memory), key):
            assert lock.acquire(timeout=0) is None
    first = held(lock)
    waiting = in_line(pool, store, key, lambda: held(Lock(store, key)).release())
    store.log.clear()
    first.release()
    waiting.result(timeout=ENOUGH)
    assert [request.verb for request in store.log] == ["invalidate", "put_when_absent", "invalidate"]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list: the clock of all threads is ahead by its sum."""
    passed: list[float] = []
    monkeypatch.setattr(ThreadRuntime, "now", staticmethod(lambda: clock.now() + sum(passed)))
    return passed


@pytest.mark.parametrize("seen", [True, False])
def test_a_long_block_is_followed_by_a_hand_over_in_one_request(
    memory: MemoryStore, pool: ThreadPoolExecutor, passed: list[float], *, seen: bool
) -> None:
    """The time of hand-overs counts from the first one; if no other process was seen, it lasts for many blocks."""
    store, key = FaultyStore(memory, plain=True), fresh()
    lock = Lock(store, key)
    if seen:
        with Lock(FaultyStore(memory), key):
            assert lock.acquire(timeout=0) is None

    def work() -> None:
        with Lock(store, key, timeout=ENOUGH):
            passed.append(0.06)

    first = held(lock)
    waiting = [in_line(pool, store, key, work) for _ in range(1 if seen else 7)]
    passed.append(0.06)
    store.log.clear()
    first.release()
    for one in waiting:
        one.result(timeout=ENOUGH)
    assert [request.verb for request in store.log] == ["put_if_version"] * len(waiting) + ["invalidate"]


@pytest.mark.parametrize(("seen", "block", "longest"), [(True, 2.0, 0.4), (False, 2.0, 0.2), (True, 20.0, 0.5)])
def test_an_attempt_that_polls_stays_away_the_longer_the_longer_its_process_had_the_key(
    memory: MemoryStore,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    passed: list[float],
    *,
    block: float,
    longest: float,
    seen: bool,
) -> None:
    """Others look less and less often while the key does not become free, but always twice a second."""
    store, key, asleep = FaultyStore(memory, plain=True), fresh(), list[float]()

    async def sleep(seconds: float) -> None:
        asleep.append(seconds)

    put_to_sleep(monkeypatch, store, sleep)
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    lock = Lock(store, key)
    if seen:
        with Lock(FaultyStore(memory), key):
            assert lock.acquire(timeout=0) is None
    first = held(lock)

    def work() -> None:
        with Lock(store, key):
            passed.append(block)

    waiting = [in_line(pool, store, key, work) for _ in range(2)]
    first.release()
    for one in waiting:
        one.result(timeout=ENOUGH)
    assert asleep == [pytest.approx(longest, rel=0.2)]


@pytest.mark.long
def test_a_pause_that_nobody_has_taken_is_forgotten(
    memory: MemoryStore, pool: ThreadPoolExecutor, passed: list[float]
) -> None:
    """Whoever comes when nobody has the key, or wants it, makes no pause for what was before, nor does the next one."""
    store, key = FaultyStore(memory, plain=True), fresh()
    first = held(Lock(store, key))
    second = in_line(pool, store, key, lambda: held(Lock(store, key)))
    first.release()
    hold = second.result(timeout=ENOUGH)
    impatient = in_line(pool, store, key, lambda: Lock(store, key, timeout=5).acquire())
    passed.append(4.0)  # so long a row is over

    def outlast() -> None:
        passed.append(2.0)
        impatient.result(timeout=ENOUGH)

    store.before("invalidate", 1, outlast)
    hold.release()
    assert impatient.result() is None
    queue = shared_of(store).queue(key)
    assert queue._pause == pytest.approx(0.5, rel=0.2)
    with Lock(store, key):
        assert queue._pause == 0


@pytest.mark.parametrize(("has_it", "pauses"), [(True, [0.4]), (False, [])])
def test_only_a_process_that_has_had_the_key_lets_others_go_first(
    monkeypatch: pytest.MonkeyPatch, passed: list[float], pauses: list[float], *, has_it: bool
) -> None:
    """Without a queue at the store, it pauses for a fifth of that time; one that only tried does not pause."""
    store, asleep = WatchingMemory(), list[float]()
    rival = copy.copy(store)  # on the same memory, as of another process

    async def sleep(seconds: float) -> None:
        asleep.append(seconds)

    put_to_sleep(monkeypatch, store, sleep)
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    lock, other = Lock(store, "k"), Lock(rival, "k")
    with other:
        assert lock.acquire(timeout=0) is None
    if has_it:
        hold = held(lock)
        passed.append(2.0)
        hold.release()
    held(lock).release()
    assert asleep == [pytest.approx(pause, rel=0.2) for pause in pauses]
    passed.append(0.2)
    held(lock).release()
    assert len(asleep) == len(pauses)


def test_a_process_that_has_woken_another_lets_it_go_first(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MultiLock whose release wakes a waiter at the store queues behind it, as a Lock does."""
    monkeypatch.setattr(local_queue, "YIELD_SECONDS", ENOUGH)
    ours, theirs, keys = FaultyStore(memory), FaultyStore(memory), sorted(fresh() for _ in range(2))
    lock = MultiLock(ours, keys)
    holds = lock.acquire()
    assert holds is not None
    waiting = pool.submit(held, Lock(theirs, keys[0]))
    assert until(lambda: keys[0] in memory._lines)
    ours.log.clear()
    holds.release()
    waiting.result(timeout=ENOUGH).release()
    with lock:
        assert [request.verb for request in ours.log] == ["invalidate_many", "put_when_absent", "put_if_version"]


def test_a_waiter_that_is_out_of_time_leaves_the_queue(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """One that gives up in the middle of the queue holds up nobody behind it."""
    key = fresh()
    first = held(Lock(memory, key))
    impatient = in_line(pool, memory, key, lambda: Lock(memory, key).acquire(timeout=0.05))
    patient = in_line(pool, memory, key, lambda: held(Lock(memory, key)))
    assert impatient.result(timeout=ENOUGH) is None
    assert waiters(memory, key) == 1
    first.release()
    patient.result(timeout=ENOUGH).release()
    assert waiters(memory, key) == 0
    assert observed(memory, key) is None


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


def test_a_lock_object_that_waits_for_its_own_thread_gets_an_error(memory: MemoryStore) -> None:
    """Another Lock object, or AsyncLock, of the holder's own thread or task: the error says so, and what to do."""
    key = fresh()
    own = "by this thread or task through another Lock object: use one Lock, or give both the same owner"

    async def main() -> None:
        async with AsyncLock(memory, key):
            with pytest.raises(NotAcquired, match=own):
                await AsyncLock(memory, key, timeout=0).__aenter__()

    with Lock(memory, key), pytest.raises(NotAcquired, match=own):
        Lock(memory, key, timeout=0.05).__enter__()
    asyncio.run(main())


def test_a_thread_that_waits_for_itself_is_told_at_once(memory: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """One that waits for ever would never see the error; a thread that waits for another one is not told."""
    key = fresh()

    def told() -> list[str]:
        return [said for record in caplog.records if repr(key) in (said := record.getMessage())]

    with Lock(memory, key):
        assert Lock(memory, key).acquire(timeout=0) is None
        assert not told()
        assert Lock(memory, key).acquire(timeout=0.01) is None
        assert [f"lock {key!r} waits for itself" in said for said in told()] == [True]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(Lock(memory, key).acquire, timeout=0.01).result() is None
        assert len(told()) == 1


def test_queues_are_forgotten_with_their_locks(memory: MemoryStore) -> None:
    """Nothing grows: what is known of a key ends with the Lock objects that use it."""
    gc.collect()
    queues = shared_of(memory)._queues
    before = len(queues)
    for number in range(100):
        with Lock(memory, f"key {number}"):
            pass
    gc.collect()
    assert len(queues) == before


def test_a_lease_that_is_over_holds_nobody_up(memory: MemoryStore) -> None:
    """An attempt that has lost its lease without noticing is not waited for in its own process either."""
    key = fresh()
    lost = held(Lock(memory, key, ttl=0.2, auto_renew=False))
    hold = held(Lock(memory, key))
    assert hold.fence > lost.fence
    with pytest.raises(LockLost):
        lost.release()
    hold.ensure_held()
    hold.release()


def test_a_hold_that_nothing_refers_to_holds_nobody_up(memory: MemoryStore) -> None:
    """A hold that was dropped without a release ends with its lease, also for its own process."""
    key = fresh()
    other = Lock(memory, key)
    held(Lock(memory, key, ttl=0.3))
    gc.collect()
    held(other).release()


def test_a_hold_that_is_forgotten_while_somebody_waits_is_not_renewed(
    memory: MemoryStore, pool: ThreadPoolExecutor
) -> None:
    """The one who waits for it in this process does not keep it alive."""
    forgotten = [held(Lock(memory, "k", ttl=0.3))]
    waiting = in_line(pool, memory, "k", lambda: held(Lock(memory, "k")))
    forgotten.clear()
    gc.collect()
    waiting.result(ENOUGH).release()


def test_an_owner_re_enters_past_those_who_wait(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """An explicit owner that holds the key is not queued behind others who want it, and they wait for its last hold."""
    key = fresh()
    first = held(Lock(memory, key, owner="order 9"))
    stranger = in_line(pool, memory, key, lambda: held(Lock(memory, key)))
    again = held(Lock(memory, key, owner="order 9"), timeout=0)
    assert again.fence == first.fence
    first.release()
    assert not stranger.done()
    again.ensure_held()
    again.release()
    stranger.result(timeout=ENOUGH).release()


def test_one_lock_object_of_an_owner_lets_one_thread_in(memory: MemoryStore) -> None:
    """Threads that share one Lock object exclude each other, even where its owner was given."""
    lock = Lock(memory, fresh(), owner="order 9")
    with lock, ThreadPoolExecutor(1) as pool:
        assert pool.submit(lock.acquire, timeout=0).result(timeout=ENOUGH) is None


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
    record = observed(memory, key)
    assert record is not None
    assert record.holds == (second._attempt.hold_id,)
    store.deliver()
    second.extend()
    second.release()
    store.deliver()
    left = observed(memory, key)
    assert left is None or left.free


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_hand_over_to_one_that_has_gone(fault: object) -> None:
    """The successor is cancelled while its put is under way: nothing of it is left, whenever that put arrives."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        first = await AsyncLock(store, key).acquire()
        assert first is not None
        successor = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)

        async def cancel() -> None:
            successor.cancel()
            await asyncio.sleep(0)

        store.before("put_if_version", 1, cancel)
        store.on("put_if_version", 1, fault)  # type: ignore[arg-type] # a parameter of the test
        await first.release()
        with pytest.raises(asyncio.CancelledError):
            await successor
        await store.deliver()
        left = observed(memory, key)
        assert left is None or left.free
        again = await AsyncLock(store, key).acquire(timeout=1)
        assert again is not None
        await again.release()

    asyncio.run(main())


def test_nothing_is_handed_over_to_one_that_has_gone_before() -> None:
    """The successor is cancelled while the releaser still waits for a slow renewal: nothing is sent in its name."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        first = await AsyncLock(store, key).acquire()
        assert first is not None
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

    asyncio.run(main())


def test_nobody_follows_a_successor_that_has_gone_until_the_releaser_has_left() -> None:
    """The successor is cancelled while its put is in flight: a task of the releaser's own Lock can't overwrite it."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        lock = AsyncLock(store, key)
        first = await lock.acquire()
        assert first is not None
        successor = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)
        following: list[asyncio.Task[AsyncHold | None]] = []

        async def meanwhile() -> None:
            successor.cancel()
            with pytest.raises(asyncio.CancelledError):
                await successor
            following.append(asyncio.create_task(lock.acquire()))
            await line_up(store, key, 1)

        store.before("put_if_version", 1, meanwhile)
        await first.release()
        second = await asyncio.wait_for(following[0], ENOUGH)
        assert second is not None
        assert second.fence > first.fence
        await second.release()

    asyncio.run(main())


@pytest.mark.parametrize("applied", [True, False])
def test_a_releaser_that_is_cancelled_as_it_hands_over(*, applied: bool) -> None:
    """Its successor gets the key all the same, and it has left."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        first = await AsyncLock(store, key).acquire()
        assert first is not None
        successor = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)
        store.on("put_if_version", 1, raising(asyncio.CancelledError, applied=applied))
        with pytest.raises(asyncio.CancelledError):
            await first.release()
        second = await asyncio.wait_for(successor, ENOUGH)
        assert second is not None
        assert second.fence > first.fence
        assert not first._is_open
        await second.release()
        left = observed(memory, key)
        assert left is None or left.free

    asyncio.run(main())


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
    entry = memory.get(key)
    assert entry is not None
    memory.invalidate(key, entry.version)
    return held(Lock(FaultyStore(memory), key)) if how == "held by another" else None


@pytest.mark.parametrize("how", ["gone", "broken", "held by another"])
def test_a_lost_lock_can_not_be_handed_over(memory: MemoryStore, pool: ThreadPoolExecutor, how: str) -> None:
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


def test_what_the_store_refuses_the_heir_is_no_trouble_of_the_releaser(
    memory: MemoryStore, pool: ThreadPoolExecutor
) -> None:
    """A put that is refused for certain is followed by the releaser's own release, and its successor gets the error."""

    def refuse() -> StoreError:
        return StoreError("out of memory, as the test has planned")

    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    successor = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.on("put_if_version", range(1, 3), raising(refuse, applied=False))
    first.release()
    with pytest.raises(StoreError, match="out of memory"):
        successor.result(timeout=ENOUGH)
    assert observed(memory, key) is None


def test_a_release_without_an_answer_that_should_hand_over(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """When the store is gone the releaser says so, can release again, and its successor finds out by itself."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    successor = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.down()
    with pytest.raises(StoreUnavailable):
        first.release()
    with pytest.raises(StoreUnavailable):
        successor.result(timeout=ENOUGH)
    store.heal()
    first.release()
    assert not first._is_open
    left = observed(memory, key)
    assert left is None or left.free


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
    waiting.result(timeout=2).release()


def test_a_lease_that_is_handed_over_is_renewed(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """The successor's renewer renews what the releaser wrote for it, with the successor's own ttl."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key, ttl=20))
    ttl = 3.0  # long enough for a busy machine to renew it in time
    successor = in_line(pool, store, key, lambda: held(Lock(store, key, ttl=ttl)))
    first.release()
    second = successor.result(timeout=ENOUGH)
    assert second.remaining() <= ttl
    store.log.clear()
    assert until(lambda: len(store.log) >= 2)
    second.ensure_held()
    assert {request.ttl for request in store.log} == {ttl}
    second.release()


def test_threads_and_tasks_hand_over_to_each_other() -> None:
    """Both APIs over one store object share one queue."""
    memory, key = MemoryStore(), fresh()
    store = FaultyStore(memory)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = await AsyncLock(store, key).acquire()
        assert first is not None
        thread = loop.run_in_executor(None, held, Lock(store, key))
        await line_up(store, key, 1)
        task = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 2)
        store.calls.clear()
        await first.release()
        second = await thread
        await loop.run_in_executor(None, second.release)
        third = await task
        assert third is not None
        await third.release()
        assert first.fence < second.fence < third.fence
        assert store.calls == {"put_if_version": 2, "invalidate": 1}

    asyncio.run(main())


def test_a_cancelled_waiter_at_the_head_lets_the_next_one_try() -> None:
    """The head of the queue waits at the store for another process; cancelled, it makes room for the next."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        theirs = await AsyncLock(AsyncMemoryStore(memory), key).acquire()
        assert theirs is not None
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        heads = [asyncio.create_task(AsyncLock(store, key).acquire()) for _ in range(3)]
        await line_up(store, key, 2)
        for head in heads[:2]:
            head.cancel()
            with pytest.raises(asyncio.CancelledError):
                await head
        await theirs.release()
        last = await asyncio.wait_for(heads[2], ENOUGH)
        assert last is not None
        await last.release()
        assert observed(memory, key) is None

    asyncio.run(main())


def test_a_burst_of_cancelled_tasks_leaves_nothing() -> None:
    """A thousand tasks of one key, cancelled at random moments: the rest all hold in turn, and nothing is left."""
    memory, key = MemoryStore(), fresh()
    done: list[int] = []

    async def main() -> None:
        store = AsyncMemoryStore(memory)

        async def work(number: int) -> None:
            async with AsyncLock(store, key):
                await asyncio.sleep(0)
                done.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(1000)]
        for number in range(0, 1000, 2):
            await asyncio.sleep(0)
            tasks[number].cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert waiters(store, key) == 0

    asyncio.run(main())
    assert set(range(1, 1000, 2)) <= set(done)
    assert done == sorted(done)
    assert observed(memory, key) is None


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


def test_keys_that_are_partly_taken_are_had_in_order(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """When one of the keys is held elsewhere, nothing is written at once, and the rest is taken one by one."""
    store, keys = FaultyStore(memory), sorted(fresh() for _ in range(4))
    theirs = held(Lock(FaultyStore(memory), keys[2]))
    assert MultiLock(store, keys, timeout=0).acquire() is None
    assert [observed(memory, key) is not None for key in keys] == [False, False, True, False]
    taking = pool.submit(MultiLock(store, keys).acquire, timeout=ENOUGH)
    assert until(lambda: observed(memory, keys[1]) is not None)
    theirs.release()
    holds = taking.result(timeout=ENOUGH)
    assert holds is not None
    holds.ensure_held()
    holds.release()
    assert not any(observed(memory, key) for key in keys)


OF_A_BATCH = [None, lose_reply, lose_request, unsent, late(), late(after=1), late(after=2)]


@pytest.mark.parametrize("release", OF_A_BATCH, ids=str)
@pytest.mark.parametrize("put", OF_A_BATCH, ids=str)
def test_a_batch_without_an_answer(memory: MemoryStore, put: Fault | None, release: Fault | None) -> None:
    """A lost put of several keys, or its reply, is settled for each key; so is a lost release."""
    store, keys = FaultyStore(memory), sorted(fresh() for _ in range(3))
    if put is not None:
        store.on("put_many", 1, put)
    holds = MultiLock(store, keys).acquire()
    assert holds is not None
    holds.ensure_held()
    assert all(observed(memory, hold.key).holds == (hold._attempt.hold_id,) for hold in holds)  # type: ignore[union-attr] # None fails the test too
    if release is not None:  # of one request, but for who has to keep a late put out
        store.on("any", 1, release)
    holds.release()
    store.deliver()
    assert not any(observed(memory, key) is not None and not observed(memory, key).free for key in keys)  # type: ignore[union-attr] # None fails the test too


def test_pauses_of_the_users_own_are_kept_after_a_lost_wait(memory: MemoryStore) -> None:
    """A wait at the store that gets no answer is followed by the pauses that were asked for."""
    asked: list[object] = []

    def poll(state: object) -> float:
        asked.append(state)
        return 0.01

    store, key = FaultyStore(memory), fresh()
    theirs = held(Lock(FaultyStore(memory), key))
    store.on("put_when_absent", 1, lose_request)
    assert Lock(store, key, poll=poll).acquire(timeout=0.3) is None
    assert len(asked) > 3
    theirs.release()


@pytest.mark.parametrize("moves", [True, False], ids=["it changes hands", "one has it for long"])
def test_an_attempt_that_polls_backs_off_only_while_one_tenure_lasts(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, moves: bool
) -> None:
    """Pauses grow while one holder keeps the key; when it changes hands every waiter has a chance soon."""
    store, key = FaultyStore(memory, plain=True), fresh()
    holds, asleep = [held(Lock(memory, key))], list[float]()

    async def sleep(seconds: float) -> None:
        asleep.append(seconds)
        if len(asleep) == 20:
            raise KeyError
        if moves:
            holds.pop().release()
            holds.append(held(Lock(memory, key)))

    put_to_sleep(monkeypatch, store, sleep)
    with pytest.raises(KeyError):
        Lock(store, key).acquire(timeout=ENOUGH)
    assert (max(asleep) <= 0.006) is moves  # 5 ms, and 1 for the one process that has had it
    holds.pop().release()


class CountingMemory(WatchingMemory):
    """Counts its requests."""

    requests = 0

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Count a put."""
        self.requests += 1
        return super().put_if_version(key, value, version, ttl)

    def get(self, key: str) -> Entry | None:
        """Count a get."""
        self.requests += 1
        return super().get(key)


def test_a_waiter_watches_the_store_instead_of_polling(pool: ThreadPoolExecutor) -> None:
    """Given a store with `wait_while`, a waiter of another process asks nothing until the release, and then puts."""
    ours, key = CountingMemory(), fresh()
    theirs = copy.copy(ours)  # another store object on the same memory, as another process has it
    hold = held(Lock(theirs, key))
    waiting = pool.submit(Lock(ours, key).acquire, timeout=20)
    assert until(lambda: bool(ours._changed._waiters))  # type: ignore[attr-defined] # of a threading.Condition
    before, began = ours.requests, time.monotonic()
    time.sleep(1)
    assert ours.requests == before
    hold.release()
    mine = waiting.result()
    assert mine is not None
    assert time.monotonic() - began < 1.5
    assert ours.requests == before + 1
    mine.release()


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
    record = Lock(ours, key).holder()
    assert record is not None
    assert record.since == datetime.fromtimestamp(came + 3600, UTC)
    mine.release()


class NoRightToWatch(WatchingMemory):
    """A store whose server refuses to let this client watch."""

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """Refuse."""
        del key, version, timeout
        raise StoreError("no right to watch")


def test_a_waiter_that_may_not_watch_polls(pool: ThreadPoolExecutor) -> None:
    """Given a store that refuses `wait_while` and nothing else, a waiter has the key after the release all the same."""
    ours, key = NoRightToWatch(), fresh()
    hold = held(Lock(copy.copy(ours), key))
    waiting = pool.submit(Lock(ours, key).acquire, timeout=20)
    assert until(lambda: any(attempt.contention for attempt in shared_of(ours).queue(key).inside(clock.now())))
    hold.release()
    mine = waiting.result()
    assert mine is not None
    mine.release()
