"""Several locks as one: always taken in one order, all or nothing, and lost together."""

# ruff: noqa: PT012 - what is raised at the end of a `with` block needs a block

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest
import tenacity

from caslock import (
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    Entry,
    Lock,
    LockLost,
    MultiHold,
    MultiLock,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    ReadWriteLock,
    Semaphore,
    SemaphoreHold,
    StoreError,
)
from caslock.local import clock
from caslock.local.queue import LocalQueue
from caslock.local.shared import shared_of
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, FaultyStore, lose_request, raising
from tests.support.locations import Place, Watched, observed, present, three_keys, until
from tests.support.loops import in_a_loop

POLL = tenacity.wait_random(0.0, 0.004)
"""Between two tries, where many of them are the point."""


def held(lock: MultiLock) -> MultiHold:
    return present(lock.acquire(timeout=0))


def test_a_multi_lock_mixes_what_one_and_what_several_may_hold() -> None:
    """Each hold is what its own lock gives, and all are released; one that is full, or written, keeps out the whole."""
    store = MemoryStore()
    lock, both, pool = Lock(store, "k"), ReadWriteLock(store, "j"), Semaphore(store, "l", 2)
    mixed = MultiLock([pool, lock, both.read], timeout=0)
    with mixed as holds, both.read, pool:
        assert isinstance(holds["l"], SemaphoreHold)
        assert holds["l"].slot == 0
        assert (both.read.locked(), lock.locked(), pool.locked()) == (True, True, True)
        holds.extend(20)
        other = MultiLock([pool, Lock(store, "m")], timeout=0)
        with pytest.raises(NotAcquired), other:
            pass
        assert not Lock(store, "m").locked()
    assert [store.get(key) for key in "jkl"] == [None] * 3
    with pool, mixed:
        assert len(pool.holders()) == 2
    with both.write, pytest.raises(RuntimeError, match="this thread or task writes 'j'"), mixed:
        pass
    assert [store.get(key) for key in "jkl"] == [None] * 3


@in_a_loop
async def test_an_async_multi_lock_mixes_what_one_and_what_several_may_hold() -> None:
    """A lock, a semaphore and a read-write lock, together."""
    store = AsyncMemoryStore()
    pool, both = AsyncSemaphore(store, "l", 2), AsyncReadWriteLock(store, "j")
    async with AsyncMultiLock([AsyncLock(store, "k"), pool, both.write]) as holds:
        assert [hold.key for hold in holds] == ["j", "k", "l"]
        assert len(await pool.holders()) == 1
        with pytest.raises(NotAcquired):
            async with AsyncMultiLock([pool, AsyncReadWriteLock(store, "j").read], timeout=0):
                pass
    assert [await store.get(key) for key in "jkl"] == [None] * 3


def test_a_key_is_of_one_kind() -> None:
    """Two kinds of lock on one key would wait for each other: an error before any request."""
    store, both = MemoryStore(), ReadWriteLock(MemoryStore(), "k")
    with pytest.raises(ValueError, match="'k' can't be both the read side of a read-write lock and the write side of"):
        MultiLock([both.read, both.write])
    with pytest.raises(ValueError, match="'k' can't be both a semaphore of 2 permits and a Lock: use a key of its own"):
        MultiLock([Semaphore(store, "k", 2), Lock(store, "k")])
    with pytest.raises(ValueError, match="'k' can't be both a semaphore of 2 permits and a semaphore of 3 permits"):
        MultiLock([Semaphore(store, "k", permits) for permits in (2, 3)])
    with pytest.raises(TypeError, match=r"a ReadWriteLock has two sides: give its \.read or its \.write"):
        MultiLock([both])  # type: ignore[list-item]
    pool = Semaphore(store, "k", 2)
    with MultiLock([pool, pool]):
        assert len(pool.holders()) == 1


def test_who_waits_for_a_permit_keeps_no_later_key() -> None:
    """The order of keys is the same for all kinds of locks."""
    store, later = MemoryStore(), threading.Event()
    pool = Semaphore(store, "j", 1)

    def wait() -> None:
        with MultiLock([Lock(store, "k"), Semaphore(store, "j", 1)]):
            later.set()

    with pool:
        thread = threading.Thread(target=wait)
        thread.start()
        assert until(lambda: any(each.contention for each in pool._state._queue.inside(0.0)))  # all keys were tried
        for _ in range(20):
            with Lock(store, "k", timeout=0):
                pass
        assert not later.is_set()
    thread.join()
    assert later.is_set()


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
    a, b, c = three_keys()
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
    a, b, c = three_keys()
    with Lock(store, b):
        lock = MultiLock(store, [a, b, c], timeout=0.05)
        assert lock.acquire() is None
        assert lock.acquire(blocking=False) is None
        with pytest.raises(NotAcquired, match=b), lock:
            pytest.fail("two hold one lock")
        assert observed(store, a) is None
        assert observed(store, c) is None
    held(lock).release()


def test_a_key_that_could_not_be_given_back_raises_instead_of_returning_none(memory: MemoryStore) -> None:
    """None means that nothing is held: a key that was held, and whose release gets no answer, is OutcomeUnknown."""
    store = Watched(memory)
    a, b, _ = three_keys()
    with Lock(memory, b):
        store.lose = lambda verb, key: verb != "put" and key == a
        with pytest.raises(OutcomeUnknown, match="may not have been released") as caught:
            MultiLock(store, [a, b], retry=(0, 0)).acquire(timeout=0)
    assert repr(a) in str(caught.value)
    assert isinstance(caught.value.__cause__, NotAcquired)


def test_loss_of_one_is_loss_of_all(location: Place) -> None:
    """When one lease is gone, the whole is lost: at questions and at exit; the other keys are free afterwards."""
    store, keys = location.store(), three_keys()
    told: list[str] = []
    lock = MultiLock(store, keys, ttl=30, on_lost=lambda hold: told.append(hold.key))

    with pytest.raises(LockLost, match=keys[1]), lock as holds:
        Lock(store, keys[1]).force_release()
        assert until(lambda: holds.lost)
        with pytest.raises(LockLost, match=keys[1]):
            holds.ensure_held()
        assert holds.remaining() == 0
        assert until(lambda: told)

    assert told == [keys[1]]
    assert not any(observed(store, key) for key in keys)


def test_a_first_lease_that_ends_before_the_last_is_had_is_a_loss(
    memory: MemoryStore, pool: ThreadPoolExecutor
) -> None:
    """An acquire that takes longer than an unrenewed lease does not pretend to hold all: LockLost, and nothing held."""
    store, keys = Watched(memory), three_keys()
    last = present(Lock(FaultyStore(memory), keys[2]).acquire())  # in another process

    def release_late() -> None:
        assert until(lambda: ("put", keys[2]) in store.requests)
        memory.invalidate(keys[0], present(memory.get(keys[0])).version)  # as the end of its lease does
        (first,) = shared_of(store).of_key(keys[0], LocalQueue).inside(clock.now())
        first.lease.deadline = clock.now()
        last.release()

    releasing = pool.submit(release_late)
    with pytest.raises(LockLost, match=keys[0]):
        MultiLock(store, keys, auto_renew=False, poll=POLL).acquire()
    releasing.result()
    assert not any(observed(memory, key) for key in keys)


def test_nested_multi_locks_share_keys(memory: MemoryStore) -> None:
    """MultiLocks of the same Lock objects, or of one explicit owner, may be nested where they share keys."""
    a, b, c = (Lock(memory, key) for key in three_keys())
    with MultiLock([a, b]) as outer:
        with MultiLock([b, c]) as inner:
            assert outer[b.key].fence == inner[b.key].fence
        assert [lock.locked() for lock in (a, b, c)] == [True, True, False]
    assert [lock.locked() for lock in (a, b, c)] == [False] * 3

    keys = three_keys()
    with (
        MultiLock(memory, keys[:2], owner="one") as outer,
        MultiLock(memory, keys[1:], owner="one", timeout=0) as inner,
    ):
        assert outer[keys[1]].fence == inner[keys[1]].fence
    assert not any(observed(memory, key) for key in keys)


def test_one_multi_lock_re_enters(memory: MemoryStore) -> None:
    """The same thread may enter a MultiLock again; the keys are free after the last exit."""
    store, keys = Watched(memory), three_keys()
    lock = MultiLock(store, keys)
    with lock:
        asked = len(store.requests)
        with lock:
            assert len(store.requests) == asked
        assert all(observed(memory, key) for key in keys)
    for act in (lock.acquire, lock.acquire, lock.release, lock.release, lambda: held(lock).release()):
        act()
    assert not any(observed(memory, key) for key in keys)
    with pytest.raises(NotHeld):
        lock.release()


def test_holds_released_by_hand_do_not_keep_the_block_from_releasing(memory: MemoryStore) -> None:
    """A block that acquires again and releases those holds by hand still gives back its own at the end."""
    keys = three_keys()
    lock = MultiLock(memory, keys)
    with lock:
        again = held(lock)
        again.release()
    assert not any(observed(memory, key) for key in keys)


async def async_held(lock: AsyncMultiLock) -> AsyncMultiHold:
    return present(await lock.acquire(timeout=0))


@in_a_loop
async def test_a_multi_lock_is_released_by_the_task_that_holds_all_of_it(memory: MemoryStore) -> None:
    """One that has re-entered holds of two tasks is released by its own holds only: neither task frees the other's."""
    store, keys = AsyncMemoryStore(memory), three_keys()
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
        holds = present(await task)
        await holds.release()
    assert not any(observed(memory, key) for key in keys)


@in_a_loop
async def test_a_release_without_an_answer_swallows_no_cancellation(memory: MemoryStore) -> None:
    """One release gets no answer, the next is cancelled: the task is cancelled once all has been released."""
    keys = three_keys()
    store = AsyncFaultyStore(AsyncMemoryStore(memory), plain=True)
    holds = await async_held(AsyncMultiLock(store, keys, retry=(0, 0)))
    store.on("invalidate", 1, lose_request)
    store.on("get", 1, lose_request)
    store.on("invalidate", 2, raising(asyncio.CancelledError, applied=False))
    with pytest.raises(asyncio.CancelledError):
        await holds.release()
    assert not any(observed(memory, key) for key in keys)


def test_a_lost_key_that_could_not_be_given_back_is_an_unknown_outcome() -> None:
    """Its renewals and its release are refused while it waits for another key: nobody can say that nothing is left."""

    class Refusing(MemoryStore):
        full = False

        def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if self.full and key == "a":
                raise StoreError("out of memory")
            entry = super().put_if_version(key, value, version, ttl)
            self.full = self.full or (key == "a" and ttl < 1 and entry is not None and entry.value == value)
            return entry

    store = Refusing()
    for key in ("a", "b"):
        Lock(store, key, ttl=30).acquire()
    Lock(store, "a").force_release()  # so that a release of "a" writes a free record
    with pytest.raises(OutcomeUnknown, match="'a'") as caught:
        MultiLock(store, ["a", "b"], ttl=0.4, timeout=0.8).acquire()
    assert (caught.value.key, caught.value.location) == ("b", store.traits.location)  # what it was busy with
