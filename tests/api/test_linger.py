"""A key that lingers: its process keeps it after a release, and has it again without a request."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from caslock import (
    ABSENT,
    AsyncLock,
    Entry,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    NotHeld,
    StoreUnavailable,
    connect,
    locked,
    observe,
)
from caslock.local import linger
from caslock.local.threads import _end_what_lingers
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import Lease
from caslock.protocol.life import LEAVING
from caslock.stores.memory import MemoryStore
from caslock.testing.faults import Fault, FaultyStore, lose_request
from tests.support.locations import Place, Watched, fresh, held, observed, patient, until
from tests.support.recorder import Recorder
from tests.support.servers import Server

LONG = 20.0
"""Seconds that no test waits for; a lease has three times as many, so that it could linger for so long."""


class Noted(Watched):
    _store: MemoryStore

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        self._pass("put_when_absent", key)
        return self._store.put_when_absent(key, value, ttl, timeout)


class Slow(Noted):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.begun, self.may_end = threading.Event(), threading.Event()

    def invalidate(self, key: str, version: int) -> Entry | None:
        self.begun.set()
        assert self.may_end.wait(LONG)
        return super().invalidate(key, version)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        if version != ABSENT:
            self.begun.set()
            assert self.may_end.wait(LONG)
        return super().put_if_version(key, value, version, ttl)


def lock_of(store: Noted, key: str = "k", seconds: float = LONG) -> Lock:
    return Lock(store, key, ttl=3 * LONG + 1, linger=seconds)


@pytest.fixture
def store() -> Noted:
    """Return a store that notes its requests; its request timeout, for which one try may wait, is long."""
    return Noted(patient())


def test_the_next_acquire_takes_no_request(location: Place) -> None:
    """By whatever thread; its fence is that of before, and only another tenure has a larger one."""
    store = location.store()
    if not hasattr(store, "wait_while") and not hasattr(store, "put_when_absent"):
        with pytest.raises(ValueError, match="linger needs a store that wakes waiters"):
            Lock(store, "k", linger=1)
        return
    store = Noted(store)
    lock = lock_of(store, fresh())
    with lock as first:
        pass
    fences: list[int] = []

    def use() -> None:
        with lock as hold, lock:
            fences.append(hold.fence)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    with lock:
        pass
    assert store.requests == [("put", lock.key)]
    assert first._attempt in linger.lingering
    if store.traits.fences:
        assert fences == [first.fence]
    assert Lock(location.store(), lock.key).acquire(timeout=0) is None  # of another process


def test_it_is_released_when_its_time_is_over(memory: MemoryStore) -> None:
    """Then the key is free, and the next tenure begins."""
    lock = Lock(memory, fresh(), ttl=30, linger=0.1)
    with lock as first:
        pass
    assert until(lambda: observed(memory, lock.key) is None)
    with lock as second:
        assert second.fence > first.fence


def test_nobody_resumes_it_for_ever(store: Noted) -> None:
    """Its time counts from the first release, so that others have to wait for so long, and not longer."""
    lock, fences = lock_of(store, seconds=0.05), set[int]()
    while len(fences) < 3:
        with lock as hold:
            fences.add(hold.fence)
    assert len(store.requests) < 10  # to take and to give back, three times, or to hand over


@pytest.mark.parametrize("timeout", [0, 5, None])
@pytest.mark.parametrize("keys", ["k", "jk", "kl"])
def test_another_lock_of_the_process_has_it_at_once(store: Noted, keys: str, timeout: float | None) -> None:
    """Even by one try, and with other keys before it or after it: nobody holds what lingers."""
    with lock_of(store):
        pass
    lock = MultiLock(store, list(keys)) if len(keys) > 1 else Lock(store, keys)
    assert lock.acquire(timeout=timeout)


def test_who_waits_is_not_kept_waiting(store: Noted) -> None:
    """The release of a hold that somebody waits for in this process is a release."""
    lock, gate = lock_of(store), threading.Event()

    def wait() -> None:
        with Lock(store, "k"):
            gate.set()

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        assert until(lambda: lock._state._queue.waiting)
    assert gate.wait(LONG)
    thread.join()


def test_what_others_want_does_not_linger(memory: MemoryStore) -> None:
    """A process that has met another one at the key releases it, for the next minute."""
    mine, theirs = lock_of(Noted(memory)), Lock(Noted(memory), "k", timeout=5)
    hold = held(theirs)
    assert mine.acquire(timeout=0) is None
    hold.release()
    with mine:
        pass
    with theirs:
        pass


def test_it_lingers_no_longer_than_a_third_of_a_lease(store: Noted) -> None:
    """So that whoever resumes it has most of one."""
    lock = Lock(store, "k", ttl=3, linger=60)
    with lock as hold:
        pass
    assert hold._attempt.lingers_until < hold._attempt.lease.deadline - 1.9
    assert until(lambda: ("invalidate", "k") in store.requests)
    assert until(lambda: observed(store._store, "k") is None)


def test_it_is_renewed_only_while_it_is_held(store: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after it has lingered."""
    monkeypatch.setattr(Lease, "_next_renewal", lambda _lease, sent, _ttl: sent + 1)  # long before it ends
    lock = Lock(store, "k", ttl=60, linger=0.05)
    with lock:
        pass
    with lock as hold:
        first = hold._attempt.lease.deadline
        assert until(lambda: hold._attempt.lease.deadline > first)


def test_a_loss_is_told_to_who_holds_it(store: Noted) -> None:
    """To nobody while it lingers, and to the new hold's callback after that."""
    lost: list[object] = []
    lock = Lock(store, "k", ttl=3 * LONG + 1, linger=LONG, on_lost=lost.append)
    with lock:
        pass
    assert Lock(Noted(store._store), "k").force_release() is not None  # by another process
    hold = held(lock)  # nobody can know
    with pytest.raises(LockLost):
        hold.extend()
    assert until(lambda: lost == [hold])
    with pytest.raises(LockLost):
        hold.release()
    with lock:
        pass
    Lock(store, "k").force_release()  # by this process, which ends it first
    with lock as again:
        again.extend()
    assert lost == [hold]


def test_a_released_hold_is_not_held(store: Noted) -> None:
    """Whoever resumes the key has another one."""
    lock = lock_of(store)
    hold = held(lock)
    hold.release()
    with pytest.raises(NotHeld):
        hold.release()
    with pytest.raises(NotHeld):
        lock.release()
    with lock, pytest.raises(NotHeld):
        hold.ensure_held()


def test_observers_see_holds_and_no_requests(store: Noted) -> None:
    """Each hold is acquired and released."""
    told = Recorder()
    stop = observe(told)
    lock = lock_of(store)
    for _ in range(2):
        with lock:
            pass
    stop()
    assert told.names == ["acquired", "released"] * 2


def test_a_lock_object_that_is_gone_leaves_nothing(store: Noted) -> None:
    """What lingers is released all the same."""
    with lock_of(store, seconds=0.1):
        pass
    gc.collect()
    assert until(lambda: observed(store._store, "k") is None)


AT_EXIT = """
import caslock, sys

with caslock.Lock(caslock.connect(sys.argv[1]), "key", linger=10): pass
"""


def test_a_key_in_redis_is_free_when_its_process_has_ended(redis_server: Server) -> None:
    """The interpreter releases it as it ends."""
    subprocess.run([sys.executable, "-c", AT_EXIT, redis_server.url], check=True)
    assert observed(connect(redis_server.url), "key") is None


def test_what_lingers_is_released_at_the_end(store: Noted) -> None:
    """What is held is not."""
    lock, other = lock_of(store), lock_of(store, "held")
    hold = held(other)
    with lock:
        pass
    _end_what_lingers()
    assert observed(store._store, "k") is None
    hold.ensure_held()
    hold.extend()
    hold.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_neither_resumes_nor_releases_it(memory: MemoryStore) -> None:
    """It is the parent's."""
    lock = Lock(memory, fresh(), ttl=2000, linger=1000)
    with lock as first:
        pass
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=0) is None and not linger.lingering else 1)
    assert os.waitpid(child, 0)[1] == 0
    with lock as hold:
        assert hold.fence == first.fence
        hold.extend()


def test_what_is_being_given_up_is_nobodys() -> None:
    """One try waits for that release, by whatever lock."""
    store = Slow(patient())
    lock = lock_of(store, seconds=0.05)
    with lock:
        pass
    assert store.begun.wait(LONG)
    with ThreadPoolExecutor(1) as pool:
        trying = pool.submit(lambda: held(lock).release())
        assert until(lambda: lock._state._queue.waiting)
        store.may_end.set()
        trying.result()


def test_a_multilock_resumes_nothing(memory: MemoryStore) -> None:
    """Or it would keep a key while it waits for an earlier one, and who has that could wait for it for ever."""
    mine, theirs = Noted(memory), Noted(memory)
    first, second = Lock(mine, "a"), lock_of(mine, "b", seconds=0.2)
    with second:
        pass
    hold = held(Lock(theirs, "a"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(MultiLock([first, second]).acquire)
        assert until(lambda: first._state.begun()._queue.inside(0.0))
        held(Lock(theirs, "b"), LONG).release()
        hold.release()
        assert waiting.result() is not None


def test_it_is_refused_where_it_could_not_end_in_time(memory: MemoryStore) -> None:
    """In asyncio, and where a lock is made for one call."""
    with pytest.raises(ValueError, match="linger is for Lock only"):
        AsyncLock(memory, "k", linger=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'linger'"):
        locked(memory, "k", linger=1)(print)  # type: ignore[call-overload] # that is the point


def test_one_try_is_not_refused_for_a_place_given_up(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another lock has had the key and released it, but the thread that gave up the key has not ended."""
    forgotten, may_end = threading.Event(), threading.Event()

    class SlowToForget(dict[Attempt, Any]):
        def pop(self, attempt: Attempt, default: object = None) -> object:
            super().pop(attempt, default)
            forgotten.set()
            assert may_end.wait(LONG)
            return default

    monkeypatch.setattr(linger, "lingering", SlowToForget())
    store = Noted(memory)
    lock = lock_of(store)
    with lock:
        pass
    held(Lock(store, "k")).release()
    assert forgotten.wait(LONG)
    hold = lock.acquire(timeout=0)
    may_end.set()
    assert hold is not None


def test_one_try_waits_for_no_other() -> None:
    """It waits for the release of what lingers, if nobody else does; that has the key then."""
    store = Slow(patient())
    with lock_of(store):
        pass
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: held(Lock(store, "k")))
        assert store.begun.wait(LONG)
        with pytest.raises(NotAcquired, match="is still being released by this process"):
            Lock(store, "k", timeout=0).__enter__()
        store.may_end.set()
        first.result().release()


def test_no_hold_outlasts_its_lease_by_lingering(memory: MemoryStore) -> None:
    """An extension that may have shortened the lease shortens the time for which it lingers."""
    store = FaultyStore(memory)
    lock = Lock(store, "k", ttl=3 * LONG + 1, linger=LONG, auto_renew=False)
    with lock:
        pass
    with lock as hold:
        store.on("any", range(1, 99), lose_request)
        with pytest.raises(StoreUnavailable):
            hold.extend(LONG)
        assert hold.remaining() <= LONG
        store.on("any", range(1, 99), Fault())
    assert observed(memory, "k") is None
    with lock as again:
        again.ensure_held()


@pytest.mark.parametrize("resumed", [True, False])
def test_an_extension_that_is_under_way_is_waited_for(memory: MemoryStore, *, resumed: bool) -> None:
    """As its hold is released, and held again and released: it shows no loss."""
    lost: list[object] = []
    store = Slow(memory)
    lock = Lock(store, "k", ttl=3 * LONG + 1, linger=LONG if resumed else 0.01, on_lost=lost.append)
    hold = held(lock)
    with ThreadPoolExecutor(2) as pool:
        extending = pool.submit(hold.extend)
        assert store.begun.wait(LONG)
        hold.release()
        if resumed:
            held(lock).release()
        ending = pool.submit(lambda: held(Lock(store, "k"), LONG))
        assert until(lambda: any(attempt.state is LEAVING for attempt in lock._state._attempts()))
        store.may_end.set()
        extending.result()
        ending.result().release()
    assert lost == []


def test_a_loss_as_it_is_resumed_is_told(store: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else it is not resumed."""
    lost: list[object] = []
    lock = Lock(store, "k", ttl=3 * LONG + 1, linger=LONG, on_lost=lost.append)
    with lock:
        pass
    resume = Lease.resume

    def interrupted(lease: Lease, now: float) -> None:
        Lock(store, "k").force_release()
        resume(lease, now)

    monkeypatch.setattr(Lease, "resume", interrupted)
    with lock as hold:
        hold.extend()
    assert lost == []
