"""A key is kept for `min_hold` after it was acquired, though it is released before."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from caslock import Lock, LockLost, MultiLock, NotAcquired, Store, StoreUnavailable
from caslock.protocol.attempt import Retry
from caslock.stores.memory import MemoryStore
from caslock.testing.faults import Fault, FaultyStore, Verb, late, lose_reply, lose_request, raising
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import Place, Watched, fresh, held, observed, present, until


def is_free(store: Store, key: str) -> bool:
    hold = Lock(store, key).acquire(timeout=0)
    if hold is None:
        return False
    hold.release()
    return True


@pytest.mark.long
def test_the_key_is_taken_until_min_hold_is_over(location: Place) -> None:
    """Released at once, the key is had by nobody before its time, and by somebody then; the release does not wait."""
    store, key = location.store(), fresh()
    lock = Lock(store, key, ttl=30, min_hold=1.5)
    began = time.monotonic()
    with Stopwatch() as watch, lock:
        pass
    assert watch.seconds < 1.3
    assert not is_free(location.store(), key) or time.monotonic() - began >= 1.5
    assert not is_free(store, key) or time.monotonic() - began >= 1.5
    with Lock(location.store(), key, timeout=10):
        assert time.monotonic() - began >= 1.5


def test_a_hold_that_was_long_enough_is_released_at_once(memory: MemoryStore) -> None:
    """When min_hold is over, the release is a removal as it is without one."""
    store, key = Watched(memory), fresh()
    with Lock(store, key, ttl=1000, min_hold=0.05):
        threading.Event().wait(0.06)
    assert store.requests == [("put", key), ("invalidate", key)]
    assert is_free(memory, key)


@pytest.mark.parametrize("ttl", [30, 90])
def test_min_hold_may_be_longer_or_shorter_than_the_lease(memory: MemoryStore, ttl: float) -> None:
    """The record that stays has the time that is left, whatever the ttl is."""
    key = fresh()
    with Stopwatch() as watch:
        held(Lock(memory, key, ttl=ttl, min_hold=60)).release()
        record = present(observed(memory, key))
        assert 60 - watch.elapsed <= record.ttl < 61


def test_nobody_gets_the_key_before_not_even_the_same_lock(memory: MemoryStore) -> None:
    """The Lock that has released it, others of its thread, and waiters in other threads of the process have to wait."""
    key = fresh()
    lock = Lock(memory, key, min_hold=60)
    hold = held(lock)

    def waits(waiter: Lock) -> int:
        with waiter as had:
            return had.fence

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(waits, Lock(memory, key)), pool.submit(waits, Lock(memory, key, min_hold=0.01))]
        assert until(lambda: len(lock._state._queue.waiting) == 2)
        hold.release()
        assert lock.acquire(timeout=0) is None
        assert lock.acquire(timeout=0.05) is None
        broken = present(lock.force_release())
        assert (broken.kept, broken.fence) == (True, hold.fence)  # nobody has had it since
        assert all(future.result() > hold.fence for future in waiting)


def test_only_the_last_release_of_a_lock_that_was_entered_twice_keeps_the_key(memory: MemoryStore) -> None:
    """That takes one request, inner levels make none, and min_hold counts from the first acquire."""
    store, key = Watched(memory), fresh()
    lock = Lock(store, key, ttl=1000, min_hold=60)
    with lock:
        threading.Event().wait(0.2)
        with lock:
            pass
        assert store.requests == [("put", key)]
    assert store.requests == [("put", key), ("put", key)]
    record = present(observed(memory, key))
    assert record.kept
    assert record.ttl < 60.5


def test_who_keeps_the_key_is_told(memory: MemoryStore) -> None:
    """`holder` says who has released the key, and that it is kept; so does the error of who does not get it."""
    key = fresh()
    lock = Lock(memory, key, min_hold=60, note="nightly report")
    with lock as hold:
        assert not present(lock.holder()).kept
        fence = hold.fence
    holder = present(lock.holder())
    assert holder.kept
    assert (holder.owner, holder.note, holder.fence) == (lock.owner, "nightly report", fence)
    assert lock.locked()
    assert f"and min_hold keeps it from others for {round(holder.ttl, 3):g} s after the release" in str(holder)
    with (
        pytest.raises(NotAcquired, match=r"is held by nobody: .* has released it, and min_hold keeps it"),
        Lock(memory, key, timeout=0),
    ):
        pass


def test_force_release_frees_what_is_kept(location: Place) -> None:
    """A key that is kept too long can be taken away; the next fence is larger."""
    store, key = location.store(), fresh()
    with Lock(store, key, min_hold=60) as hold:
        fence = hold.fence
    assert present(Lock(store, key).force_release()).kept
    with Lock(location.store(), key, timeout=5) as hold:
        assert hold.fence > fence
    assert Lock(store, key).holder() is None


@pytest.mark.parametrize(
    ("verb", "fault", "raised"),
    [
        *(("put_if_version", fault, None) for fault in (lose_reply, lose_request, late(before=2))),
        *(("put_if_version", raising(KeyboardInterrupt, applied=here), KeyboardInterrupt) for here in (False, True)),
        ("any", lose_request, StoreUnavailable),
    ],
)
def test_a_release_without_an_answer_keeps_the_key(
    memory: MemoryStore, verb: Verb, fault: Fault, raised: type[BaseException] | None
) -> None:
    """One that is lost, late or interrupted keeps it, and one that got no answer at all when it is called again."""
    store, key = FaultyStore(memory), fresh()
    hold = held(Lock(store, key, min_hold=60, retry=Retry(0, 0) if verb == "any" else Retry()))
    store.on(verb, range(1, 3 if verb == "any" else 2), fault)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        hold.release()
    if raised is StoreUnavailable:
        hold.release()
    if raised is None:
        store.deliver()
    assert present(observed(memory, key)).kept
    assert not is_free(memory, key)


def test_a_lost_lease_keeps_nothing(memory: MemoryStore) -> None:
    """A holder that has lost the key does not keep it from the next holder."""
    key = fresh()
    hold = held(Lock(memory, key, min_hold=60))
    Lock(memory, key).force_release()
    other = held(Lock(memory, key))
    with pytest.raises(LockLost):
        hold.release()
    other.ensure_held()
    other.release()
    assert is_free(memory, key)


def test_all_keys_of_a_multilock_are_kept(location: Place) -> None:
    """Each key is kept, and a re-entry inside changes nothing."""
    store, keys = location.store(), [fresh(), fresh()]
    with MultiLock(store, keys, min_hold=60):
        pass
    assert not any(is_free(store, key) for key in keys)
    assert all((record := observed(store, key)) and record.kept for key in keys)


@pytest.mark.parametrize("timeout", [0, 0.1])
def test_a_multilock_that_fails_keeps_nothing(location: Place, timeout: float) -> None:
    """The keys that it had taken before it found one in use are free at once."""
    store, keys = location.store(), sorted([fresh(), fresh(), fresh()])
    for busy in keys:
        with Lock(location.store(), busy):
            assert MultiLock(store, keys, min_hold=60, timeout=timeout).acquire() is None
            assert all(is_free(store, key) for key in keys if key != busy)


def test_without_renewal_the_key_is_kept_if_it_is_released_in_time(memory: MemoryStore) -> None:
    """auto_renew=False: a release within the lease keeps the key; after it, it is lost as ever."""
    key = fresh()
    with Lock(memory, key, ttl=5, auto_renew=False, min_hold=60):
        pass
    assert not is_free(memory, key)
    hold = held(Lock(memory, key := fresh(), ttl=0.5, auto_renew=False, min_hold=60))
    assert until(lambda: memory.get(key) is None)
    with pytest.raises(LockLost):
        hold.release()
    assert is_free(memory, key)
