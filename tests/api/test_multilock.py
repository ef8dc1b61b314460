"""Several locks as one: always taken in one order, all or nothing, and lost together."""

# ruff: noqa: PT012 - what is raised at the end of a `with` block needs a block

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import tenacity

from caslock import (
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    Lock,
    LockLost,
    MultiHold,
    MultiLock,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, FaultyStore, lose_reply, lose_request, raising
from tests.support.locations import Address, Place, Watched, fresh, observed, opened, until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from caslock import Entry, Removal

T = TypeVar("T")

POLL = tenacity.wait_random(0.0, 0.004)
"""Between two tries, where many of them are the point."""


def three() -> list[str]:
    """Make three keys, in the order in which they are taken."""
    name = fresh()
    return [f"{name}:{letter}" for letter in "abc"]


def held(lock: MultiLock) -> MultiHold:
    """Acquire what must be free."""
    holds = lock.acquire(timeout=0)
    assert holds is not None
    return holds


def test_a_key_of_two_stores_is_not_mixed_up() -> None:
    """Given one key at two stores, no hold and no fence stands for both: asking by the key is a KeyError."""
    locks = [Lock(MemoryStore(), "room"), Lock(MemoryStore(), "room"), Lock(MemoryStore(), "user")]
    with MultiLock(locks) as holds:
        assert len(holds) == 3
        assert holds["user"].key == "user"
        for ask in (lambda: holds["room"], lambda: holds.fences):
            with pytest.raises(KeyError, match="2 stores"):
                ask()


def test_any_order_and_duplicates_are_one_lock(location: Place) -> None:
    """Keys are taken in sorted order, each once, however they are given; all are free after the block."""
    store = Watched(location.store())
    a, b, c = three()
    lock = MultiLock(store, [c, a, b, a, c, c])

    with lock as holds:
        assert [hold.key for hold in holds] == [a, b, c]
        assert lock.keys == (a, b, c)
        assert len(holds) == 3
        assert holds[b].key == b
        assert holds.fences == {key: holds[key].fence for key in (a, b, c)}
        assert all(Lock(store, key).acquire(timeout=0) is None for key in (a, b, c))
        holds.ensure_held()
        holds.extend()
        assert 0 < holds.remaining() <= 30
        with pytest.raises(KeyError):
            holds["another"]
        assert a in holds
        assert holds[c] in holds
        assert "another" not in holds

    assert store.requests[:3] == [("put", a), ("put", b), ("put", c)]
    assert store.requests[-3:] == [("invalidate", c), ("invalidate", b), ("invalidate", a)]
    assert not any(observed(store, key) for key in (a, b, c))


def test_a_busy_key_is_none_and_the_rest_is_given_back(location: Place) -> None:
    """When one key can't be had, acquire gives None and holds nothing; `with` raises NotAcquired, naming that key."""
    store = location.store()
    a, b, c = three()
    with Lock(store, b):
        lock = MultiLock(store, [a, b, c], timeout=0.05)
        assert lock.acquire() is None
        assert lock.acquire(blocking=False) is None
        with pytest.raises(NotAcquired, match=b), lock:
            pytest.fail("two hold one lock")
        assert observed(store, a) is None
        assert observed(store, c) is None
    held(lock).release()


def test_a_key_that_could_not_be_given_back_is_no_none(memory: MemoryStore) -> None:
    """None means that nothing is held: a key that was held, and whose release gets no answer, is OutcomeUnknown."""
    store = Watched(memory)
    a, b, _ = three()
    with Lock(memory, b):
        store.lose = lambda verb, key: verb != "put" and key == a
        with pytest.raises(OutcomeUnknown, match="may not have been released") as caught:
            MultiLock(store, [a, b], retry=(0, 0)).acquire(timeout=0)
    assert repr(a) in str(caught.value)
    assert isinstance(caught.value.__cause__, NotAcquired)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_failure_at_any_key_gives_the_others_back_in_reverse(memory: MemoryStore, position: int) -> None:
    """A store that fails at the k-th key: what was taken is released in reverse, the rest never asked."""
    store, keys = Watched(memory), three()
    failing = keys[position]
    store.lose = lambda verb, key: verb == "put" and key == failing

    with pytest.raises(StoreUnavailable, match=failing):
        MultiLock(store, keys).acquire()

    puts = [key for verb, key in store.requests if verb == "put" and key != failing]
    given_back = [key for verb, key in store.requests if verb == "invalidate"]
    assert puts == keys[:position]
    assert given_back == keys[:position][::-1]
    assert not any(observed(memory, key) for key in keys)


def test_a_release_goes_on_when_one_fails_and_raises_it(memory: MemoryStore) -> None:
    """All holds are released in reverse, although one release raises; that error is raised at the end."""
    store, keys = Watched(memory), three()
    holds = held(MultiLock(store, keys, retry=(0, 0)))
    store.lose = lambda _verb, key: key == keys[1]

    with pytest.raises(StoreUnavailable):
        holds.release()

    assert [key for verb, key in store.requests if verb == "invalidate"] == keys[::-1]
    assert [observed(memory, key) is None for key in keys] == [True, False, True]
    store.lose = lambda _verb, _key: False
    holds.release()
    assert observed(memory, keys[1]) is None


def test_a_failed_release_can_be_called_again_at_the_lock(memory: MemoryStore) -> None:
    """After StoreUnavailable, MultiLock.release can be called again, as Lock.release can."""
    store, keys = Watched(memory), three()
    lock = MultiLock(store, keys)
    held(lock)
    store.lose = lambda _verb, key: key == keys[1]
    with pytest.raises(StoreUnavailable):
        lock.release()
    store.lose = lambda _verb, _key: False
    lock.release()
    assert not any(observed(memory, key) for key in keys)


def test_two_failing_releases_are_both_reported(memory: MemoryStore) -> None:
    """When two releases fail, the first error is raised and the other is its note."""
    store, keys = Watched(memory), three()
    holds = held(MultiLock(store, keys, retry=(0, 0)))
    for key in keys[:2]:
        Lock(memory, key).force_release()
    with pytest.raises(LockLost, match=keys[1]) as caught:
        holds.release()
    assert any(keys[0] in note for note in caught.value.__notes__)


def test_an_interrupt_is_raised_whatever_else_went_wrong(memory: MemoryStore) -> None:
    """One release gets no answer, the next is interrupted: the interrupt is raised, with a note of the other."""
    store, keys = FaultyStore(memory, plain=True), three()
    holds = held(MultiLock(store, keys, retry=(0, 0)))
    store.on("invalidate", 1, lose_request)
    store.on("get", 1, lose_request)
    store.on("invalidate", 2, raising(KeyboardInterrupt, applied=False))
    with pytest.raises(KeyboardInterrupt) as caught:
        holds.release()
    assert repr(keys[2]) in "".join(caught.value.__notes__)
    assert not any(observed(memory, key) for key in keys)


def test_locks_of_different_stores_are_one(request: pytest.FixtureRequest) -> None:
    """Locks of three stores can be held as one: taken in the order of location and key, and released in reverse."""
    with opened("memory", request) as a, opened("sqlite", request) as b, opened("redis", request) as c:
        stores = [location.store() for location in (c, a, b, a)]
        locks = [Lock(store, fresh()) for store in stores]
        locations = [store.traits.location for store in stores]
        order = [lock for _, _, lock in sorted(zip(locations, [lock.key for lock in locks], locks, strict=True))]

        with MultiLock([*locks, locks[0]]) as holds:
            assert [hold.key for hold in holds] == [lock.key for lock in order]
            assert all(lock.locked() for lock in locks)

        assert not any(lock.locked() for lock in locks)
        with locks[2], pytest.raises(NotAcquired), ThreadPoolExecutor(1) as pool:
            pool.submit(MultiLock(locks, timeout=0).__enter__).result()
        assert not any(lock.locked() for lock in locks)


def test_loss_of_one_is_loss_of_all(location: Place) -> None:
    """When one lease is gone, the whole is lost: at questions and at exit; the other keys are free afterwards."""
    store, keys = location.store(), three()
    told: list[str] = []
    lock = MultiLock(store, keys, ttl=0.5, on_lost=lambda hold: told.append(hold.key))

    with pytest.raises(LockLost, match=keys[1]), lock as holds:
        Lock(store, keys[1]).force_release()
        assert until(lambda: holds.lost)
        with pytest.raises(LockLost, match=keys[1]):
            holds.ensure_held()
        assert holds.remaining() == 0
        assert until(lambda: told)

    assert told == [keys[1]]
    assert not any(observed(store, key) for key in keys)


def test_there_is_one_deadline_for_all(memory: MemoryStore) -> None:
    """The timeout counts for all keys together: time spent on the first is not there for the second."""
    tooks = list[float]()
    while not tooks or tooks[-1] >= 0.79:  # with two deadlines it would take 0.8 s each time, on a quiet machine too
        assert len(tooks) < 10, tooks
        keys = three()
        first = Lock(memory, keys[0]).acquire()
        assert first is not None
        with Lock(memory, keys[2]):
            timer = threading.Timer(0.3, first.release)
            began = time.monotonic()
            timer.start()
            assert MultiLock(memory, keys, poll=POLL).acquire(timeout=0.5) is None
            tooks.append(time.monotonic() - began)
            timer.join()
        assert tooks[-1] > 0.45
        assert not any(observed(memory, key) for key in keys)


def test_a_first_lease_that_ends_before_the_last_is_had_is_a_loss(memory: MemoryStore) -> None:
    """An acquire that takes longer than an unrenewed lease does not pretend to hold all: LockLost, and nothing held."""
    keys = three()
    last = Lock(FaultyStore(memory), keys[2]).acquire()  # in another process
    assert last is not None
    timer = threading.Timer(0.3, last.release)
    timer.start()
    with pytest.raises(LockLost, match=keys[0]):
        MultiLock(memory, keys, ttl=0.2, auto_renew=False, poll=POLL).acquire()
    timer.join()
    assert not any(observed(memory, key) for key in keys)


def test_nested_multi_locks_share_keys(memory: MemoryStore) -> None:
    """MultiLocks of the same Lock objects, or of one explicit owner, may be nested where they share keys."""
    a, b, c = (Lock(memory, key) for key in three())
    with MultiLock([a, b]) as outer:
        with MultiLock([b, c]) as inner:
            assert outer[b.key].fence == inner[b.key].fence
        assert [lock.locked() for lock in (a, b, c)] == [True, True, False]
    assert [lock.locked() for lock in (a, b, c)] == [False] * 3

    keys = three()
    with (
        MultiLock(memory, keys[:2], owner="one") as outer,
        MultiLock(memory, keys[1:], owner="one", timeout=0) as inner,
    ):
        assert outer[keys[1]].fence == inner[keys[1]].fence
    assert not any(observed(memory, key) for key in keys)


def test_one_multi_lock_re_enters(memory: MemoryStore) -> None:
    """The same thread may enter a MultiLock again; the keys are free after the last exit."""
    store, keys = Watched(memory), three()
    lock = MultiLock(store, keys)
    with lock:
        asked = len(store.requests)
        with lock:
            assert len(store.requests) == asked
        assert all(observed(memory, key) for key in keys)
    assert not any(observed(memory, key) for key in keys)
    with pytest.raises(NotHeld):
        lock.release()


def test_holds_released_by_hand_do_not_keep_the_block_from_releasing(memory: MemoryStore) -> None:
    """A block that acquires again and releases those holds by hand still gives back its own at the end."""
    keys = three()
    lock = MultiLock(memory, keys)
    with lock:
        again = held(lock)
        again.release()
    assert not any(observed(memory, key) for key in keys)


def test_a_multi_lock_released_by_its_holds_is_not_held(memory: MemoryStore) -> None:
    """After MultiHold.release, MultiLock.release raises NotHeld, and the object no longer has the holds."""
    lock = MultiLock(memory, three())
    for _ in range(10):
        held(lock).release()
    with pytest.raises(NotHeld):
        lock.release()


def test_another_thread_can_not_release(memory: MemoryStore) -> None:
    """MultiLock.release belongs to the thread that acquired; MultiHold.release may be called from any."""
    keys = three()
    lock = MultiLock(memory, keys)
    holds = held(lock)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(NotHeld):
            pool.submit(lock.release).result()
        assert all(observed(memory, key) for key in keys)
        pool.submit(holds.release).result()
    assert not any(observed(memory, key) for key in keys)


def test_the_error_of_the_block_is_never_masked(memory: MemoryStore) -> None:
    """The block's own exception leaves, with a note for each lock that was lost."""
    keys = three()
    lock = MultiLock(memory, keys)

    def fail() -> None:
        with lock:
            Lock(memory, keys[0]).force_release()
            raise KeyError

    with pytest.raises(KeyError) as caught:
        fail()
    assert any(keys[0] in note for note in caught.value.__notes__)
    assert not any(observed(memory, key) for key in keys)


def count(address: Address, keys: list[str], folder: str, rounds: int) -> int:
    """Add to a number under each key, in two steps, so many times."""
    store = address.open()
    lock = MultiLock(store, keys, timeout=40, poll=POLL)
    files = [Path(folder) / key.rpartition(":")[2] for key in keys]
    for _ in range(rounds):
        with lock:
            for file in files:
                file.write_text(str(int(file.read_text()) + 1))
    return rounds


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_users_in_opposite_order_never_wait_for_each_other(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Processes that ask for the same keys in different orders, hundreds of times: all end, and no addition is lost."""
    rounds, keys = 100, three()
    for key in keys:
        (tmp_path / key.rpartition(":")[2]).write_text("0")
    orders = [keys[:2], [keys[2], keys[1]], [keys[2], keys[0]]]
    with (
        opened(kind, request) as location,
        ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        running = [pool.submit(count, location.address, order, str(tmp_path), rounds) for order in orders]
        assert [one.result(timeout=50) for one in running] == [rounds] * 3
        store = location.store()
        assert not any(observed(store, key) for key in keys)
    assert [(tmp_path / letter).read_text() for letter in "abc"] == [str(2 * rounds)] * 3


def test_threads_in_opposite_order_never_wait_for_each_other(memory: MemoryStore) -> None:
    """Threads that share Lock objects, and put them together in different orders, all come to their end."""
    locks = [Lock(memory, key, poll=POLL) for key in three()]
    number = [0]

    def add(order: list[Lock]) -> None:
        lock = MultiLock(order)
        for _ in range(100):
            with lock:
                seen = number[0]
                time.sleep(0)
                number[0] = seen + 1

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(add, order) for order in (locks, locks[::-1], [locks[1], locks[2], locks[0]])]
        for one in running:
            one.result(timeout=40)
    assert number == [300]


async def async_held(lock: AsyncMultiLock) -> AsyncMultiHold:
    """Acquire what must be free."""
    holds = await lock.acquire(timeout=0)
    assert holds is not None
    return holds


def test_a_multi_lock_is_released_by_the_task_that_holds_all_of_it(memory: MemoryStore) -> None:
    """One that has re-entered holds of two tasks is released by its own holds only: neither task frees the other's."""

    async def main() -> None:
        store, keys = AsyncMemoryStore(memory), three()
        locks = [AsyncLock(store, key) for key in keys]
        lock = AsyncMultiLock(locks)
        acquired = asyncio.Event()

        async def other(acquire: Coroutine[object, object, AsyncMultiHold | None]) -> AsyncMultiHold | None:
            async with locks[1]:
                holds = await acquire
                acquired.set()
                with pytest.raises(NotHeld):
                    await lock.release()
                return holds

        async with locks[0]:
            task = asyncio.create_task(other(lock.acquire()))
            await acquired.wait()
            with pytest.raises(NotHeld):
                await lock.release()
            holds = await task
            assert holds is not None
            await holds.release()
        assert not any(observed(memory, key) for key in keys)

    asyncio.run(main())


def test_async_any_order_and_duplicates(location: Place) -> None:
    """For asyncio too, keys are taken in sorted order, each once, and all are free after the block."""
    a, b, c = three()

    async def main() -> None:
        async with location.async_store() as store:
            lock = AsyncMultiLock(store, [c, a, b, a])
            async with lock as holds:
                assert [hold.key for hold in holds] == [a, b, c]
                assert await AsyncLock(store, b).acquire(timeout=0) is None
                await holds.extend()
                holds.ensure_held()
            again = await async_held(lock)
            await again.release()

    asyncio.run(main())
    store = location.store()
    assert not any(observed(store, key) for key in (a, b, c))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_async_failure_gives_back_in_reverse(memory: MemoryStore, position: int) -> None:
    """For asyncio too, a failure at the k-th key releases what was taken, in reverse."""
    store, keys = Watched(memory), three()
    failing = keys[position]
    store.lose = lambda verb, key: verb == "put" and key == failing

    async def main() -> None:
        with pytest.raises(StoreUnavailable, match=failing):
            await AsyncMultiLock(store, keys).acquire()

    asyncio.run(main())
    assert [key for verb, key in store.requests if verb == "invalidate"] == keys[:position][::-1]
    assert not any(observed(memory, key) for key in keys)


def test_async_loss_of_one_cancels_the_block(memory: MemoryStore) -> None:
    """For asyncio, loss of one cancels the block, and surfaces as LockLost of that key; the others are free."""
    keys = three()
    told: list[str] = []

    async def main() -> None:
        lock = AsyncMultiLock(AsyncMemoryStore(memory), keys, ttl=0.3, on_lost=lambda hold: told.append(hold.key))

        async def work() -> None:
            async with lock:
                Lock(memory, keys[1]).force_release()
                await asyncio.sleep(20)

        with pytest.raises(LockLost, match=keys[1]):
            await work()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(main())
    assert told == [keys[1]]
    assert not any(observed(memory, key) for key in keys)


def test_async_cancelled_acquire_holds_nothing(memory: MemoryStore) -> None:
    """A MultiLock whose acquire is cancelled while it waits for its last key gives back the others."""
    keys = three()

    async def main() -> None:
        store = AsyncMemoryStore(memory)
        async with AsyncLock(AsyncMemoryStore(memory), keys[2]):  # in another process
            waiting = asyncio.create_task(AsyncMultiLock(store, keys).acquire())
            while not observed(memory, keys[1]):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not any(observed(memory, key) for key in keys[:2])

    asyncio.run(main())


def test_a_release_without_an_answer_swallows_no_cancellation(memory: MemoryStore) -> None:
    """One release gets no answer, the next is cancelled: the task is cancelled, and all that can be is released."""
    keys = three()

    async def main() -> None:
        store = AsyncFaultyStore(AsyncMemoryStore(memory), plain=True)
        holds = await async_held(AsyncMultiLock(store, keys, retry=(0, 0)))
        store.on("invalidate", 1, lose_request)
        store.on("get", 1, lose_request)
        store.on("invalidate", 2, raising(asyncio.CancelledError, applied=False))
        with pytest.raises(asyncio.CancelledError) as caught:
            await holds.release()
        assert repr(keys[2]) in "".join(caught.value.__notes__)
        assert [observed(memory, key) is None for key in keys] == [True, True, False]
        await holds.release()

    asyncio.run(main())
    assert not any(observed(memory, key) for key in keys)


def test_async_tasks_in_opposite_order_never_wait_for_each_other() -> None:
    """Tasks that ask for the same keys in different orders all come to their end, one at a time."""
    keys, inside = three(), [0]

    async def add(store: AsyncMemoryStore, order: list[str]) -> None:
        lock = AsyncMultiLock(store, order, poll=POLL)
        for _ in range(50):
            async with lock:
                inside[0] += 1
                await asyncio.sleep(0)
                assert inside == [1]
                inside[0] -= 1

    async def main() -> None:
        store = AsyncMemoryStore()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for order in (keys, keys[::-1], [keys[1], keys[2], keys[0]]):
                group.create_task(add(store, order))

    asyncio.run(main())


def test_async_holds_released_by_hand_do_not_keep_the_block_from_releasing(memory: MemoryStore) -> None:
    """For asyncio too, a block that acquires again and releases by hand gives back its own at the end."""
    keys = three()

    async def main() -> None:
        lock = AsyncMultiLock(AsyncMemoryStore(memory), keys)
        async with lock:
            await (await async_held(lock)).release()

    asyncio.run(main())
    assert not any(observed(memory, key) for key in keys)


def test_a_multi_lock_says_what_it_is(memory: MemoryStore) -> None:
    """repr shows the keys, and of the holds how long they are certain."""
    lock = MultiLock(memory, ["b", "a"])
    assert repr(lock) == "<MultiLock of 'a', 'b'>"
    with lock as holds:
        assert "remaining" in repr(holds)


def test_a_release_that_gave_no_answer_in_time_is_no_loss(memory: MemoryStore) -> None:
    """All replies to it are lost before the deadline: after it, a second release says what it says for one key."""
    store, keys = FaultyStore(memory), [fresh(), fresh()]
    holds = MultiLock(store, keys, ttl=0.3, retry=(0, 0)).acquire()
    assert holds is not None
    store.on("any", range(1, 20), lose_reply)
    with pytest.raises(StoreUnavailable):
        holds.release()
    store.heal()
    assert until(lambda: all(hold.lost for hold in holds))
    others = [Lock(store, key).acquire(timeout=1) for key in keys]
    assert all(others)
    holds.release()


def test_the_release_of_many_lost_keys_at_a_hanging_store_is_bounded() -> None:
    """It ends within three request timeouts, however many keys there are, and says that they are lost."""

    class Hanging(MemoryStore):
        hangs = False

        def invalidate(self, key: str, version: int) -> Entry | None:
            self._wait()
            return super().invalidate(key, version)

        def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
            self._wait()
            return super().invalidate_many(removals)

        def _wait(self) -> None:
            if self.hangs:
                time.sleep(0.2)
                raise StoreUnavailable("no answer")

    store = Hanging()
    store.traits = store.traits._replace(request_timeout=0.2)
    holds = MultiLock(store, [fresh() for _ in range(10)], ttl=0.3, auto_renew=False).acquire()
    assert holds is not None
    store.hangs = True
    assert until(lambda: holds.remaining() == 0)
    began = time.monotonic()
    with pytest.raises(LockLost):
        holds.release()
    assert time.monotonic() - began < 3 * 0.2
    store.hangs = False


def test_a_lost_key_that_could_not_be_given_back_is_an_unknown_outcome(pool: ThreadPoolExecutor) -> None:
    """Its renewals and its release are refused while it waits for another key: nobody can say that nothing is left."""

    class Refusing(MemoryStore):
        full = False

        def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if self.full and key == "a":
                raise StoreError("out of memory")
            return super().put_if_version(key, value, version, ttl)

    store = Refusing()
    for key in ("a", "b"):
        Lock(store, key, ttl=30).acquire()
    Lock(store, "a").force_release()  # so that a release of "a" writes a free record
    waiting = pool.submit(MultiLock(store, ["a", "b"], ttl=0.4, timeout=0.8).acquire)
    assert until(lambda: (holder := Lock(store, "a").holder()) is not None and holder.ttl < 1, 2)
    store.full = True
    with pytest.raises(OutcomeUnknown, match="'a'"):
        waiting.result()


ENOUGH = 20.0
"""Seconds in which all of this is over."""


class Halting(MemoryStore):
    """Stops before a batch of removals, and can lose all replies."""

    def __init__(self) -> None:
        """Lose none."""
        super().__init__()
        self.loses = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def get(self, key: str) -> Entry | None:
        """Read."""
        return self._answer(super().get(key))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove."""
        return self._answer(super().invalidate(key, version))

    def invalidate_many(self, removals: Sequence[Removal]) -> list[Entry | None]:
        """Remove them, a little later."""
        self.begun.set()
        self.go_on.wait(ENOUGH)
        return list(super().invalidate_many(removals))

    def _answer(self, entry: Entry | None) -> Entry | None:
        if self.loses:
            raise StoreUnavailable("no answer")
        return entry


def test_two_threads_that_release_one_key_are_told_of_no_loss(pool: ThreadPoolExecutor) -> None:
    """Given a removal whose reply is lost, another one that finds the next owner says nothing of a loss."""
    store, told = Halting(), list[str]()
    holds = MultiLock(store, ["a", "b"], on_lost=lambda hold: told.append(hold.key)).acquire()
    assert holds is not None
    released = pool.submit(holds.release)
    assert store.begun.wait(ENOUGH)
    store.loses = True
    with pytest.raises(StoreUnavailable):
        holds["a"].release()
    store.loses = False
    other = Lock(FaultyStore(store), "a").acquire(timeout=0)
    assert other is not None
    store.go_on.set()
    released.result(ENOUGH)
    assert told == []
    other.release()
