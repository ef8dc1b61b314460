"""Contenders of one process queue, cost the store nothing, and hand the key over in one request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest

from caslock import (
    AsyncHold,
    AsyncLock,
    Hold,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    StoreError,
    StoreUnavailable,
    turnstile,
)
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, FaultyStore, late, lose_reply, lose_request, raising, unsent
from caslock.thread_world import ThreadWorld
from caslock.turnstile import turnstile_of
from tests.places import KINDS, Place, fresh, opened, standing, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock import Store
    from caslock.testing.faults import Fault

T = TypeVar("T")
ENOUGH = 20.0
"""Seconds that nothing here takes."""


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Give each place in turn."""
    with opened(request.param, request) as place:
        yield place


@pytest.fixture
def memory() -> MemoryStore:
    """Give a store for what does not depend on the store."""
    return MemoryStore()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Give threads."""
    with ThreadPoolExecutor(64) as pool:
        yield pool


def held(lock: Lock, timeout: float | None = ENOUGH) -> Hold:
    """Acquire a lock, and be sure of it."""
    hold = lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


def waiters(store: object, key: str) -> int:
    """Count who waits in this process."""
    return len(turnstile_of(store, key)._waiting)


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


def test_threads_are_served_in_the_order_of_their_coming(place: Place, pool: ThreadPoolExecutor) -> None:
    """First come, first served, over many Lock objects of one store; each fence is larger than the last."""
    store, key = place.store(), fresh()
    order: list[int] = []
    fences: list[int] = []

    def work(number: int) -> None:
        with Lock(store, key) as hold:
            order.append(number)
            fences.append(hold.fence)

    first = held(Lock(store, key))
    waiting = [in_line(pool, store, key, lambda number=number: work(number)) for number in range(10)]  # type: ignore[misc]
    first.release()
    for one in waiting:
        one.result(timeout=ENOUGH)
    assert order == list(range(10))
    assert fences == sorted(set(fences))
    assert fences[0] > first.fence
    assert standing(store, key) is None


def test_who_waits_costs_the_store_nothing(place: Place, pool: ThreadPoolExecutor) -> None:
    """While another process holds the key, thirty threads that wait for it send what one of them sends."""
    store, key = FaultyStore(place.store()), fresh()
    theirs = held(Lock(place.store() if place.kind != "memory" else FaultyStore(place.store()), key))
    asked = threading.Event()
    store.after("any", 1, asked.set)

    waiting = [pool.submit(Lock(store, key).acquire, timeout=ENOUGH) for _ in range(30)]
    assert asked.wait(ENOUGH)
    assert until(lambda: waiters(store, key) == 29)  # the first is past the turnstile
    assert {request.verb for request in store.log} <= {"put_if_version", "put_when_free"}
    theirs.release()
    while waiting:
        assert until(lambda: any(one.done() for one in waiting))
        one = next(one for one in waiting if one.done())
        waiting.remove(one)
        hold = one.result()
        assert hold is not None
        hold.release()
    assert waiters(store, key) == 0


def test_a_hand_over_is_one_request(place: Place, pool: ThreadPoolExecutor) -> None:
    """Release and the next acquire are one put together: a new hold id, a new tenure, a larger fence."""
    store, key = FaultyStore(place.store()), fresh()
    first = held(Lock(store, key))
    next_one = in_line(pool, store, key, lambda: held(Lock(store, key, note="heir")))
    store.calls.clear()
    first.release()
    second = next_one.result(timeout=ENOUGH)
    assert store.calls == {"put_if_version": 1}
    assert second.fence > first.fence
    assert second.claim.hold != first.claim.hold
    record = standing(store, key)
    assert record is not None
    assert (record.holds, record.note, record.fence) == ((second.claim.hold,), "heir", None)
    second.extend()
    second.release()
    assert standing(store, key) is None


@pytest.mark.parametrize(("plain", "verbs"), [(False, "pppppiwpppppiwi"), (True, "pppppisppppppispi")])
def test_hand_overs_in_a_row_are_bounded_in_number(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, *, plain: bool, verbs: str
) -> None:
    """After so many in a row the key is let go of, and whoever of another process waits for it goes first.

    That is who stands in line at the store; where there is no line, we stay away for a moment, for others look again
    and again.
    """
    monkeypatch.setattr(turnstile, "ROW", 5)
    monkeypatch.setattr(turnstile, "ROW_SECONDS", ENOUGH)
    store, key = FaultyStore(memory, plain=plain), fresh()
    asleep: list[float] = []

    async def sleep(_world: ThreadWorld, seconds: float) -> None:
        asleep.append(seconds)
        store.get(key)

    monkeypatch.setattr(ThreadWorld, "sleep", sleep)
    first = held(Lock(store, key))
    theirs = {"poll": lambda _state: ENOUGH}  # between tries, and this is before one
    waiting = [in_line(pool, store, key, lambda: held(Lock(store, key, **theirs)).release()) for _ in range(12)]  # type: ignore[arg-type]
    store.log.clear()
    first.release()
    for one in waiting:
        one.result(timeout=ENOUGH)
    letters = {"put_if_version": "p", "invalidate": "i", "put_when_free": "w", "get": "s"}
    assert "".join(letters[request.verb] for request in store.log) == verbs
    assert all(0 <= seconds <= 0.005 for seconds in asleep)


def test_hand_overs_in_a_row_are_bounded_in_time(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that has lasted too long ends, however few hand-overs it had."""
    monkeypatch.setattr(turnstile, "ROW_SECONDS", 0.0)
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    waiting = in_line(pool, store, key, lambda: held(Lock(store, key)).release())
    store.log.clear()
    first.release()
    waiting.result(timeout=ENOUGH)
    assert [request.verb for request in store.log] == ["invalidate", "put_when_free", "invalidate"]


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
    assert standing(memory, key) is None


def test_one_try_does_not_queue(memory: MemoryStore) -> None:
    """timeout=0 while this process holds the key, or waits for it, is refused at once and asks the store nothing."""
    store, key = FaultyStore(memory), fresh()
    with Lock(store, key) as hold:
        store.calls.clear()
        assert Lock(store, key).acquire(timeout=0) is None
        with pytest.raises(NotAcquired, match="another thread or task of this process") as caught:
            Lock(store, key, timeout=0).__enter__()
        assert hold.owner in str(caught.value)
        assert not store.calls


def test_queues_are_forgotten_with_their_locks(memory: MemoryStore) -> None:
    """Nothing grows: what is known of a key ends with the Lock objects that use it."""
    gc.collect()
    before = len(turnstile._turnstiles)
    for number in range(100):
        with Lock(memory, f"key {number}"):
            pass
    gc.collect()
    assert len(turnstile._turnstiles) == before


def test_a_lease_that_is_over_holds_nobody_up(memory: MemoryStore) -> None:
    """Who has lost its lease and does not notice is not waited for in its own process either."""
    key = fresh()
    lost = held(Lock(memory, key, ttl=0.2, auto_renew=False))
    hold = held(Lock(memory, key))
    assert hold.fence > lost.fence
    with pytest.raises(LockLost):
        lost.release()
    hold.ensure_held()
    hold.release()


def test_a_hold_that_everybody_has_forgotten_holds_nobody_up(memory: MemoryStore) -> None:
    """A hold that was dropped without a release ends with its lease, also for its own process."""
    key = fresh()
    other = Lock(memory, key)
    held(Lock(memory, key, ttl=0.3))
    gc.collect()
    held(other).release()


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
    """Whatever becomes of its put, one has left and the other holds, with a larger fence; later nothing stands."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    heir = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.on("put_if_version", 1, fault)  # type: ignore[arg-type]
    first.release()
    second = heir.result(timeout=ENOUGH)
    assert second.fence > first.fence
    second.ensure_held()
    record = standing(memory, key)
    assert record is not None
    assert record.holds == (second.claim.hold,)
    store.deliver()
    second.extend()
    second.release()
    store.deliver()
    left = standing(memory, key)
    assert left is None or left.free


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_hand_over_to_one_that_has_gone(fault: object) -> None:
    """The heir is cancelled while its put is under way: nothing of it stands, whenever that put arrives."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        first = await AsyncLock(store, key).acquire()
        assert first is not None
        heir = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)

        async def cancel() -> None:
            heir.cancel()
            await asyncio.sleep(0)

        store.before("put_if_version", 1, cancel)
        store.on("put_if_version", 1, fault)  # type: ignore[arg-type]
        await first.release()
        with pytest.raises(asyncio.CancelledError):
            await heir
        await store.deliver()
        left = standing(memory, key)
        assert left is None or left.free
        again = await AsyncLock(store, key).acquire(timeout=1)
        assert again is not None
        await again.release()

    asyncio.run(main())


def test_nothing_is_handed_over_to_one_that_has_gone_before() -> None:
    """The heir is cancelled while the releaser still waits for a slow renewal: nothing is sent in its name."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        first = await AsyncLock(store, key).acquire()
        assert first is not None
        heir = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)
        slow, goes_on = asyncio.Event(), asyncio.Event()

        async def renewal() -> None:
            slow.set()
            await goes_on.wait()

        store.before("put_if_version", 1, renewal)
        extending = asyncio.create_task(first.extend())
        await slow.wait()
        releasing = asyncio.create_task(first.release())
        while waiters(store, key):  # noqa: ASYNC110 - until the heir is named
            await asyncio.sleep(0)
        heir.cancel()
        with pytest.raises(asyncio.CancelledError):
            await heir
        goes_on.set()
        await asyncio.gather(extending, releasing)
        assert standing(memory, key) is None

    asyncio.run(main())


def test_nobody_follows_an_heir_that_has_gone_until_the_one_before_has_left() -> None:
    """The heir is cancelled while its put is under way: a task of the releaser's own Lock does not write over it."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        lock = AsyncLock(store, key)
        first = await lock.acquire()
        assert first is not None
        heir = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)
        following: list[asyncio.Task[AsyncHold | None]] = []

        async def meanwhile() -> None:
            heir.cancel()
            with pytest.raises(asyncio.CancelledError):
                await heir
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
    """Its heir gets the key all the same, and it has left."""
    memory, key = MemoryStore(), fresh()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory))
        first = await AsyncLock(store, key).acquire()
        assert first is not None
        heir = asyncio.create_task(AsyncLock(store, key).acquire())
        await line_up(store, key, 1)
        store.on("put_if_version", 1, raising(asyncio.CancelledError, applied=applied))
        with pytest.raises(asyncio.CancelledError):
            await first.release()
        second = await asyncio.wait_for(heir, ENOUGH)
        assert second is not None
        assert second.fence > first.fence
        assert not first.is_open
        await second.release()
        left = standing(memory, key)
        assert left is None or left.free

    asyncio.run(main())


@pytest.mark.parametrize("applied", [True, False])
def test_an_interrupt_as_the_key_is_handed_over(
    memory: MemoryStore, pool: ThreadPoolExecutor, *, applied: bool
) -> None:
    """KeyboardInterrupt in the releasing thread: it has left, and its heir holds."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    heir = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.on("put_if_version", 1, raising(KeyboardInterrupt, applied=applied))
    with pytest.raises(KeyboardInterrupt):
        first.release()
    second = heir.result(timeout=ENOUGH)
    second.ensure_held()
    assert not first.is_open
    second.release()


def lose(memory: MemoryStore, key: str, how: str) -> Hold | None:
    """Take the key from its holder, who does not learn of it."""
    if how == "broken":
        Lock(FaultyStore(memory), key).break_()
        return None
    entry = memory.get(key)
    assert entry is not None
    memory.invalidate(key, entry.version)
    return held(Lock(FaultyStore(memory), key)) if how == "held by another" else None


@pytest.mark.parametrize("how", ["gone", "broken", "held by another"])
def test_a_lost_lock_can_not_be_handed_over(memory: MemoryStore, pool: ThreadPoolExecutor, how: str) -> None:
    """The hand-over races with a loss: the releaser is told, and its heir gets only what is free."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    heir = in_line(pool, store, key, lambda: held(Lock(store, key)))
    rival: list[Hold | None] = []
    store.before("put_if_version", 1, lambda: rival.append(lose(memory, key, how)))
    if how == "gone":  # its removal was seen to succeed: nobody can tell that from a release of our own
        first.release()
    else:
        with pytest.raises(LockLost):
            first.release()
    if rival[0] is not None:
        assert not heir.done()
        rival[0].ensure_held()
        rival[0].release()
    second = heir.result(timeout=ENOUGH)
    assert second.fence > first.fence
    second.ensure_held()
    second.release()
    assert standing(memory, key) is None or standing(memory, key).free  # type: ignore[union-attr]


def test_what_the_store_refuses_the_heir_is_no_trouble_of_the_releaser(
    memory: MemoryStore, pool: ThreadPoolExecutor
) -> None:
    """A put that is refused for certain leaves the releaser to leave by itself, and its heir to be told."""

    def refuse() -> StoreError:
        return StoreError("out of memory, as the test has planned")

    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    heir = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.on("put_if_version", range(1, 3), raising(refuse, applied=False))
    first.release()
    with pytest.raises(StoreError, match="refused"):
        heir.result(timeout=ENOUGH)
    assert standing(memory, key) is None


def test_a_release_without_an_answer_that_should_hand_over(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """When the store is gone the releaser says so, can release again, and its heir is told by itself."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key))
    heir = in_line(pool, store, key, lambda: held(Lock(store, key)))
    store.down()
    with pytest.raises(StoreUnavailable):
        first.release()
    with pytest.raises(StoreUnavailable):
        heir.result(timeout=ENOUGH)
    store.heal()
    first.release()
    assert not first.is_open
    left = standing(memory, key)
    assert left is None or left.free


def test_a_lease_that_is_handed_over_is_renewed(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """The heir's keeper renews what the releaser wrote for it, with the heir's own ttl."""
    store, key = FaultyStore(memory), fresh()
    first = held(Lock(store, key, ttl=20))
    heir = in_line(pool, store, key, lambda: held(Lock(store, key, ttl=0.3)))
    first.release()
    second = heir.result(timeout=ENOUGH)
    assert second.remaining() <= 0.3
    store.log.clear()
    assert until(lambda: len(store.log) >= 3)
    second.ensure_held()
    assert {request.ttl for request in store.log} == {0.3}
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
        assert standing(memory, key) is None

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
    assert standing(memory, key) is None


def test_keys_of_a_multi_lock_travel_together(place: Place) -> None:
    """Ten keys are one request to take and one to release where the store can, else one for each."""
    store, keys = FaultyStore(place.store()), [fresh() for _ in range(10)]
    lock = MultiLock(store, keys)
    with lock as holds:
        together = place.kind != "memcached"
        assert store.calls == ({"put_many": 1} if together else {"put_if_version": 10})
        holds.ensure_held()
        store.calls.clear()
    assert store.calls == ({"invalidate_many": 1} if together else {"invalidate": 10})
    assert not any(standing(store, key) for key in keys)


def test_keys_that_are_partly_taken_are_had_in_order(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """When one of the keys is held elsewhere, nothing is written at once, and the rest is taken one by one."""
    store, keys = FaultyStore(memory), sorted(fresh() for _ in range(4))
    theirs = held(Lock(FaultyStore(memory), keys[2]))
    assert MultiLock(store, keys, timeout=0).acquire() is None
    assert [standing(memory, key) is not None for key in keys] == [False, False, True, False]
    taking = pool.submit(MultiLock(store, keys).acquire, timeout=ENOUGH)
    assert until(lambda: standing(memory, keys[1]) is not None)
    theirs.release()
    holds = taking.result(timeout=ENOUGH)
    assert holds is not None
    holds.ensure_held()
    holds.release()
    assert not any(standing(memory, key) for key in keys)


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
    assert all(standing(memory, hold.key).holds == (hold.claim.hold,) for hold in holds)  # type: ignore[union-attr]
    if release is not None:  # of one request, but for who has to keep a late put out
        store.on("any", 1, release)
    holds.release()
    store.deliver()
    assert not any(standing(memory, key) is not None and not standing(memory, key).free for key in keys)  # type: ignore[union-attr]


def test_pauses_of_the_users_own_are_kept_after_a_lost_wait(memory: MemoryStore) -> None:
    """A wait at the store that gets no answer is followed by the pauses that were asked for."""
    asked: list[object] = []

    def poll(state: object) -> float:
        asked.append(state)
        return 0.01

    store, key = FaultyStore(memory), fresh()
    theirs = held(Lock(FaultyStore(memory), key))
    store.on("put_when_free", 1, lose_request)
    assert Lock(store, key, poll=poll).acquire(timeout=0.3) is None
    assert len(asked) > 3
    theirs.release()


@pytest.mark.parametrize("moves", [True, False], ids=["it changes hands", "one has it for long"])
def test_who_polls_backs_off_only_while_one_tenure_lasts(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, moves: bool
) -> None:
    """Pauses grow while one has the key for long; where it changes hands each has its chance soon."""
    store, key = FaultyStore(memory, plain=True), fresh()
    holds, asleep = [held(Lock(memory, key))], list[float]()

    async def sleep(_world: ThreadWorld, seconds: float) -> None:
        asleep.append(seconds)
        if len(asleep) == 20:
            raise KeyError
        if moves:
            holds.pop().release()
            holds.append(held(Lock(memory, key)))

    monkeypatch.setattr(ThreadWorld, "sleep", sleep)
    with pytest.raises(KeyError):
        Lock(store, key).acquire(timeout=ENOUGH)
    assert (max(asleep) <= 0.006) is moves  # 5 ms, and 1 for the one process that has had it
    holds.pop().release()
