"""A Lock behaves as `threading.RLock` does, and reports its lease correctly."""

# ruff: noqa: FBT003 - acquire takes threading's own positional arguments
# ruff: noqa: PT012 - what is raised at the end of a `with` block needs a block

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

from caslock import Hold, Lock, LockLost, MultiLock, NotAcquired, NotHeld, Record, StoreError
from caslock.stores.memory import MemoryStore
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import Place, Watched, fresh, held, observed, present, until

T = TypeVar("T")


def elsewhere(act: Callable[[], T]) -> T:
    """Run `act` in another thread, and return what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(timeout=20)


def test_a_free_lock_is_acquired_by_every_form_of_call(memory: MemoryStore) -> None:
    """acquire takes threading.Lock's arguments, by position or by name."""
    lock = Lock(memory, fresh())
    calls: list[Callable[[], Hold | None]] = [
        lock.acquire,
        lambda: lock.acquire(True),
        lambda: lock.acquire(False),
        lambda: lock.acquire(True, 5),
        lambda: lock.acquire(True, -1),
        lambda: lock.acquire(False, -1),
        lambda: lock.acquire(blocking=False),
        lambda: lock.acquire(timeout=0),
        lambda: lock.acquire(timeout=None),
        lambda: lock.acquire(blocking=True, timeout=0.5),
    ]
    for call in calls:
        hold = present(call())
        hold.release()


def test_a_busy_lock_returns_none(location: Place) -> None:
    """When somebody else holds the key, acquire gives None: at once without blocking, else after the timeout."""
    store, key = location.store(), fresh()
    other = Lock(location.store(), key)

    with Lock(store, key):
        assert other.acquire(False) is None
        assert other.acquire(timeout=0) is None
        began = time.monotonic()
        assert other.acquire(True, 0.1) is None
        assert time.monotonic() - began >= 0.1
        assert Lock(location.store(), key, timeout=0.01).acquire() is None  # its own timeout

    assert other.acquire(False) is not None


def test_one_try_is_one_request(memory: MemoryStore) -> None:
    """blocking=False asks the store once, whoever holds the key."""
    store, key = Watched(memory), fresh()
    with Lock(memory, key):
        assert Lock(store, key).acquire(False) is None
    assert store.requests == [("put", key)]


def test_not_acquired_shows_who_holds_it(location: Place) -> None:
    """NotAcquired names the key, the location, the owner, since when and with what lease; it is a TimeoutError."""
    key, store = fresh(), location.store()
    first = Lock(store, key, ttl=750.5, note="nightly run")

    with first:
        with pytest.raises(NotAcquired) as caught, Lock(store, key, timeout=0.05):
            pytest.fail("two hold one lock")
        record = first.holder()

    assert record is not None
    told = str(caught.value)
    for fact in (
        repr(key),
        store.traits.location,
        first.owner,
        record.since_iso,
        "750.5 s",
        "nightly run",
        str(record.pid),
    ):
        assert fact in told
    assert isinstance(caught.value, TimeoutError)


def test_re_entry_asks_nobody(memory: MemoryStore) -> None:
    """The same thread acquires again, and releases all but the last hold, without any request."""
    store = Watched(memory)
    lock = Lock(store, fresh(), ttl=1000)
    with lock as outer:
        after_first = len(store.requests)
        with lock as middle, lock as inner:
            assert outer.fence == middle.fence == inner.fence
        assert len(store.requests) == after_first == 1
    assert [verb for verb, _ in store.requests] == ["put", "invalidate"]


def test_n_releases_for_n_acquires(location: Place) -> None:
    """The key is free after as many releases as acquires, and not before."""
    store, key = location.store(), fresh()
    lock, other = Lock(store, key), Lock(store, key)
    for _ in range(3):
        held(lock)
    for _ in range(3):
        assert other.acquire(False) is None
        lock.release()
    assert not lock.locked()
    with pytest.raises(NotHeld, match=key) as caught:
        lock.release()
    assert (caught.value.key, caught.value.location) == (key, store.traits.location)
    held(other).release()


def test_another_thread_cannot_release_a_lock_but_a_hold(location: Place) -> None:
    """Lock.release belongs to the thread that holds; Hold.release may be called from any thread."""
    store, key = location.store(), fresh()
    lock = Lock(store, key)
    hold = held(lock)

    with pytest.raises(NotHeld, match=key):
        elsewhere(lock.release)
    hold.ensure_held()
    elsewhere(hold.release)

    assert not lock.locked()
    with pytest.raises(NotHeld):
        lock.release()
    held(lock).release()


def test_holds_released_by_another_thread_in_any_order(memory: MemoryStore) -> None:
    """A thread that re-entered may hand its holds to another one, which releases them in any order."""
    lock = Lock(memory, fresh())
    outer, inner = held(lock), held(lock)
    elsewhere(outer.release)
    assert lock.locked()
    inner.ensure_held()
    elsewhere(inner.release)
    assert not lock.locked()
    assert elsewhere(lambda: held(lock)).remaining() > 0


def test_a_second_release_of_one_hold_is_not_held(location: Place) -> None:
    """Releasing a hold twice raises NotHeld and frees nobody else's hold; so do its other verbs."""
    store, key = location.store(), fresh()
    first = held(Lock(store, key))
    first.release()
    second = held(Lock(store, key))

    for call in (first.release, first.extend, first.ensure_held):
        with pytest.raises(NotHeld, match=key) as caught:
            call()
        assert (caught.value.key, caught.value.location) == (key, store.traits.location)

    second.ensure_held()
    second.extend()
    second.release()


def test_holder_shows_who_has_the_key_and_locked_whether_anybody_has(location: Place) -> None:
    """`holder` returns the record of a tenure, renewed or not, to any client; None when the key is free."""
    store, key = location.store(), fresh()
    lock, stranger = Lock(store, key, note="a note", ttl=1200), Lock(store, key)
    assert (stranger.holder(), stranger.locked()) == (None, False)
    began = datetime.now(UTC)
    hold = held(lock)
    seen = [stranger.holder()]
    hold.extend()
    assert stranger.locked()
    seen += [stranger.holder(), lock.force_release()]
    for record in seen:
        assert isinstance(record, Record)
        assert (record.owner, record.note, record.ttl, record.fence) == (lock.owner, "a note", 1200, hold.fence)
        assert record.since is not None
        assert began - timedelta(seconds=2) < record.since <= datetime.now(UTC)
    assert stranger.holder() is None


def test_a_store_that_cannot_promise_a_fence_gives_none(memory: MemoryStore) -> None:
    """Where versions may not grow for ever, asking for the fence is a StoreError, and `holder` shows no number."""
    memory.traits = memory.traits._replace(fences=False)
    lock = Lock(memory, fresh())
    with lock as hold:
        hold.extend()
        assert present(lock.holder()).fence is None
        with pytest.raises(StoreError, match="fence"):
            _ = hold.fence


def test_the_error_of_the_block_is_never_masked(memory: MemoryStore) -> None:
    """When the block fails and the lease was lost too, the block's own exception leaves, with a note of the loss."""
    lock = Lock(memory, fresh())
    with pytest.raises(KeyError, match="of the body") as caught, lock:
        Lock(memory, lock.key).force_release()
        message = "of the body"
        raise KeyError(message)
    assert any("was lost" in note and lock.key in note for note in caught.value.__notes__)


def test_a_loss_that_the_block_has_raised_is_told_once(memory: MemoryStore) -> None:
    """The release raises the same one."""
    lock = Lock(memory, fresh())
    with pytest.raises(LockLost) as caught, lock as hold:
        lock.force_release()
        hold.ensure_held()
    assert not hasattr(caught.value, "__notes__")


def test_the_error_of_the_block_is_not_masked_by_a_store_that_is_down(memory: MemoryStore) -> None:
    """When the block fails and the release gets no answer, the block's own exception leaves, with a note of that."""
    store = Watched(memory)
    with pytest.raises(KeyError) as caught, Lock(store, fresh(), ttl=5):
        store.lose = lambda _verb, _key: True
        raise KeyError
    assert any("network is down" in note for note in caught.value.__notes__)


def test_re_entry_of_a_lost_lock_is_refused(memory: MemoryStore) -> None:
    """A thread that lost its lease can't re-enter; every level learns of it, and then it may begin anew."""
    lock = Lock(memory, fresh())
    outer, inner = held(lock), held(lock)
    Lock(memory, lock.key).force_release()

    with pytest.raises(LockLost, match=lock.key):
        lock.acquire(timeout=0)

    for hold in (inner, outer):
        with pytest.raises(LockLost, match=lock.key):
            hold.release()
    again = held(lock)
    assert again.fence > outer.fence
    again.release()


@pytest.mark.long
def test_max_hold_ends_the_renewals(memory: MemoryStore) -> None:
    """A hold is renewed until max_hold and no longer: then it is lost, and the key free."""
    lock = Lock(memory, fresh(), ttl=6, max_hold=7)
    with Stopwatch() as watch:
        hold = held(lock)
        assert until(lambda: observed(memory, lock.key) is None)
    assert 6.5 < watch.elapsed < 7.5 + watch.late
    assert hold.lost
    with pytest.raises(LockLost, match="max_hold of 7 s"):
        hold.extend()
    with pytest.raises(LockLost, match="max_hold of 7 s"):
        hold.release()


def test_extend_replaces_the_lease(location: Place) -> None:
    """extend counts from now: a longer one lengthens the lease, a shorter one shortens it."""
    hold = held(Lock(location.store(), fresh(), ttl=10))
    hold.extend(60)
    assert 50 < hold.remaining() < 60
    hold.extend(20)
    assert 10 < hold.remaining() < 20
    hold.extend()
    assert 10 < hold.remaining() < 20
    hold.release()


def test_locks_and_their_holds_say_what_they_are(memory: MemoryStore) -> None:
    """A lock by its key and place, or its keys; a hold by how long it is certain."""
    lock, several = Lock(memory, "room:42"), MultiLock(memory, ["b", "a"])
    assert repr(lock) == f"<Lock 'room:42' at {memory.traits.location}>"
    assert repr(several) == "<MultiLock of 'a', 'b'>"
    with lock as hold, several as holds:
        assert [repr(each).endswith(" s remaining>") for each in (hold, holds)] == [True, True]
