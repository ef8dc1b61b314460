"""MultiLocks never deadlock: one that waits for a key holds nothing of a key that sorts after it.

Two store objects at one location act as two processes: each has local queues of its own.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from caslock import Hold, Lock, MultiHold, MultiLock
from caslock.local.queue import LocalQueue
from caslock.local.shared import shared_of
from caslock.stores.memory import MemoryStore
from caslock.testing.faults import Fault, Faults, FaultyStore, late, lose_reply, lose_request, unsent
from tests.support.locations import Place, fresh, held, observed, present, three_keys, until

SOON = 20.0
"""Seconds that waiting takes at most here when nobody has to wait for the end of a lease (30 s)."""


def queued(store: object, key: str) -> int:
    """Count the waiters for `key` in the local queue of `store`."""
    return len(shared_of(store).of_key(key, LocalQueue).waiting)


def waits_at_the_store(store: Faults, key: str) -> bool:
    """Whether the last request of `store` waits for `key`; where no request can wait, whether it wants `key` alone."""
    waits = {verb for verb in ("wait_while", "put_when_absent") if hasattr(store, verb)} or {"put_if_version"}
    return bool(store.log) and store.log[-1].key == key and store.log[-1].verb in waits


def pair(store: FaultyStore, *keys: str) -> None:
    with MultiLock(store, keys, timeout=SOON) as holds:
        holds.ensure_held()


def test_two_processes_that_hand_over_first_keys_do_not_deadlock(location: Place, pool: ThreadPoolExecutor) -> None:
    """While A's a1 and B's b2 wait for rooms, the rooms are handed over to a2 and b1, which want the same users."""
    a, b = FaultyStore(location.store()), FaultyStore(location.store())
    room5, room7, user1, user2 = sorted(fresh(name) for name in ("room:5", "room:7", "user:1", "user:2"))
    a0, b0 = held(Lock(a, room5)), held(Lock(b, room7))
    waiting: list[Future[None]] = []

    waiting.append(pool.submit(pair, a, room7, user1))  # a1 waits for b0, at the store
    assert until(lambda: waits_at_the_store(a, room7))
    waiting.append(pool.submit(pair, b, room5, user2))  # b2 waits for a0, at the store
    assert until(lambda: waits_at_the_store(b, room5))
    waiting.append(pool.submit(pair, a, room5, user1))  # a2 waits for a0, in A's queue
    assert until(lambda: queued(a, room5))
    waiting.append(pool.submit(pair, b, room7, user2))  # b1 waits for b0, in B's queue
    assert until(lambda: queued(b, room7))

    a0.release()
    b0.release()
    for one in waiting:
        one.result(timeout=2 * SOON)
    assert not any(observed(a, key) for key in (room5, room7, user1, user2))


def free_for_others(memory: MemoryStore, store: FaultyStore, key: str) -> bool:
    """Whether another thread of this process, and another process, get the key at once."""
    with ThreadPoolExecutor(1) as pool:
        for each in (store, FaultyStore(memory)):
            hold = pool.submit(Lock(each, key).acquire, timeout=0).result()
            if hold is None:
                return False
            hold.release()
    return True


def wanting(pool: ThreadPoolExecutor, store: FaultyStore, keys: list[str], key: str) -> Future[MultiHold | None]:
    """Acquire several keys in a thread, and return once it waits for `key`, at the store or in the local queue."""
    lock, before = MultiLock(store, keys, timeout=SOON), queued(store, key)
    future = pool.submit(lock.acquire)
    assert until(lambda: waits_at_the_store(store, key) or queued(store, key) > before)
    return future


@pytest.mark.parametrize("local", [False, True], ids=["by another process", "by another thread"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_waiter_for_one_key_holds_only_those_before_it(
    memory: MemoryStore, pool: ThreadPoolExecutor, position: int, *, local: bool
) -> None:
    """Of three keys one is held: the keys before it are held, and those after it are everybody else's."""
    store, keys = FaultyStore(memory), three_keys()
    theirs = held(Lock(store if local else FaultyStore(memory), keys[position]))
    acquiring = wanting(pool, store, keys, keys[position])
    assert until(lambda: all(observed(memory, key) for key in keys[:position]))
    assert all(free_for_others(memory, store, key) for key in keys[position + 1 :])
    theirs.release()
    holds = present(acquiring.result(timeout=SOON))
    holds.release()
    assert all(free_for_others(memory, store, key) for key in keys)


@pytest.mark.parametrize("fault", [lose_reply, lose_request, unsent, late(), late(after=2), late(after=4)], ids=str)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_batch_without_an_answer_keeps_no_later_key(
    memory: MemoryStore, pool: ThreadPoolExecutor, position: int, fault: Fault
) -> None:
    """The put of three keys gets no answer, and meanwhile one of them is taken: those after it are free for others."""
    store, keys = FaultyStore(memory), three_keys()
    theirs: list[Hold] = []

    def take() -> None:
        entry = memory.get(keys[position])
        if entry is not None:  # our own put was applied, and its lease is over before we know of it
            memory.invalidate(keys[position], entry.version)
        theirs.append(held(Lock(FaultyStore(memory), keys[position])))

    store.on("put_many", 1, fault)
    store.after("put_many", 1, take)
    acquiring = wanting(pool, store, keys, keys[position])
    assert all(free_for_others(memory, store, key) for key in keys[position + 1 :])
    store.deliver()
    assert all(free_for_others(memory, store, key) for key in keys[position + 1 :])
    theirs[0].release()
    holds = present(acquiring.result(timeout=SOON))
    holds.ensure_held()
    assert [observed(memory, hold.key).holds for hold in holds] == [(hold._attempt.hold_id,) for hold in holds]  # type: ignore[union-attr] # None fails the test too
    holds.release()
    store.deliver()
    assert not any(observed(memory, key) for key in keys)


def test_a_level_of_re_entry_is_not_kept_either(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """A later key that the thread holds already is re-entered in its turn: whoever releases it meanwhile frees it."""
    store, keys = FaultyStore(memory), three_keys()
    locks = [Lock(store, key, timeout=SOON) for key in keys]
    theirs = held(Lock(FaultyStore(memory), keys[0]))
    outer: list[Hold] = []

    def nested() -> MultiHold | None:
        outer.append(held(locks[1]))
        return MultiLock(locks, timeout=SOON).acquire()

    acquiring = pool.submit(nested)
    assert until(lambda: waits_at_the_store(store, keys[0]))
    outer[0].release()
    assert free_for_others(memory, store, keys[1])
    theirs.release()
    holds = present(acquiring.result(timeout=SOON))
    assert not outer[0]._is_open
    holds.ensure_held()
    holds.release()
    assert not any(observed(memory, key) for key in keys)


def test_what_is_free_before_a_busy_key_travels_together(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """Of six keys the fourth is held: three are put together, and the last two once it was had."""
    store, keys = FaultyStore(memory), sorted(fresh() for _ in range(6))
    theirs = held(Lock(FaultyStore(memory), keys[3]))
    acquiring = wanting(pool, store, keys, keys[3])
    theirs.release()
    holds = present(acquiring.result(timeout=SOON))
    together = [[put.key for put in request.puts] for request in store.log if request.verb == "put_many"]
    assert together[:2] == [keys, keys[:3]]
    assert together[-1] == keys[4:]
    holds.release()


def test_one_try_that_fails_writes_nothing(memory: MemoryStore) -> None:
    """timeout=0: one request where another process has a key, none where another thread has it."""
    store, keys = FaultyStore(memory), three_keys()
    with Lock(FaultyStore(memory), keys[1]):
        assert MultiLock(store, keys).acquire(timeout=0) is None
        assert store.calls == {"put_many": 1}
        assert all(free_for_others(memory, store, key) for key in (keys[0], keys[2]))
    with Lock(store, keys[1]), ThreadPoolExecutor(1) as pool:
        store.calls.clear()
        assert pool.submit(MultiLock(store, keys).acquire, timeout=0).result() is None
        assert not store.calls
        assert all(free_for_others(memory, store, key) for key in (keys[0], keys[2]))


def test_one_try_re_enters_what_its_owner_holds(memory: MemoryStore) -> None:
    """timeout=0: a key that the same explicit owner holds elsewhere does not keep the others from being had."""
    keys = three_keys()
    for outer in ([keys[0]], [keys[1]], [keys[2]], [keys[0], keys[2]]):
        for other in (memory, FaultyStore(memory)):
            with MultiLock(other, outer, owner="order 9") as first:
                with MultiLock(memory, keys, owner="order 9", timeout=0) as holds:
                    assert all(holds[key].fence == first[key].fence for key in outer)
                assert [observed(memory, key) is not None for key in keys] == [key in outer for key in keys]


def test_keys_of_each_store_travel_together(memory: MemoryStore) -> None:
    """A MultiLock over two stores is one request to each."""
    stores = sorted((FaultyStore(memory), FaultyStore(MemoryStore())), key=lambda store: store.traits.location)
    with MultiLock([Lock(store, key) for key in three_keys() for store in stores]) as holds:
        assert [store.calls for store in stores] == [{"put_many": 1}] * 2
        holds.ensure_held()
