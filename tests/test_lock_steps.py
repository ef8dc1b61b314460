"""Single steps of the state of a Lock, on a clock of the test: what it waits for, says, and leaves."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from caslock import Hold, Lock, LockLost, NotAcquired, NotHeld, StoreUnavailable
from caslock.local import stamps as stamps_module
from caslock.local.lock_state import LockState
from caslock.local.refusals import busy, in_use
from caslock.local.stamps import Stamps
from caslock.local.threads import ThreadRuntime
from caslock.local.workers import run
from caslock.protocol.contention import Contention
from caslock.protocol.lease import NEVER
from caslock.protocol.record import Observed, Record
from tests.test_multilock_steps import Background, Timed, background, store

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt

__all__ = ["background", "store"]  # fixtures


def held(lock: Lock, timeout: float | None = None) -> Hold:
    """Acquire what is free."""
    hold = lock.acquire(timeout=timeout)
    assert hold is not None
    return hold


def begun(lock: Lock) -> tuple[LockState, Attempt]:
    """Begin an attempt that asks for nothing."""
    lock._state.begun()
    return lock._state, lock._state.begin()


def test_a_hold_says_what_has_become_of_it(store: Timed) -> None:
    """Its repr, the seconds that are left, and the error of who uses it later."""
    hold = held(Lock(store, "k", ttl=100))
    assert repr(hold).endswith("s remaining>")
    assert hold.remaining() == pytest.approx(98.998, abs=1)
    store.passed += 98.5
    assert 0 < hold.remaining() < 0.9
    hold._attempt.ending = True
    assert hold.remaining() == 0
    with pytest.raises(NotHeld, match="this hold of 'k' is being released"):
        hold.extend()
    hold._attempt.ending = False
    hold.release()
    assert (hold.remaining(), repr(hold).endswith("released>")) == (0, True)
    with pytest.raises(NotHeld, match="this hold of 'k' has already been released"):
        hold.extend()
    lost = held(Lock(store, "k", ttl=100))
    store.passed += 1000
    assert repr(lost).endswith("lost>")


def test_no_lease_is_longer_than_max_hold(store: Timed) -> None:
    """The record says so, too."""
    lock = Lock(store, "k", ttl=100, max_hold=40)
    hold = held(lock)
    assert hold.remaining() <= 40
    record = lock.holder()
    assert record is not None
    assert record.ttl == 40
    assert lock._state.settings.ttl == 40


@pytest.mark.parametrize(("timeout", "passes", "left"), [(None, 2.0, None), (5.0, 2.0, 3.0), (5.0, 7.0, 0.0)])
def test_what_is_left_of_the_timeout_is_for_the_store(
    store: Timed, timeout: float | None, passes: float, left: float | None
) -> None:
    """After the turn in this process has come."""
    state, attempt = begun(Lock(store, "k"))
    limits: list[float] = []

    async def turn(_attempt: Attempt, _runtime: object, limit: float) -> bool:
        limits.append(limit)
        store.passed += passes
        return True

    state._queue = SimpleNamespace(turn=turn, inside=lambda _now: [])  # type: ignore[assignment] # of a test
    began = state.runtime.now()
    assert run(state._turn(attempt, began, timeout, None)) == (None if left is None else pytest.approx(left, abs=0.2))
    assert limits == [NEVER if timeout is None else began + timeout]
    with pytest.raises(NotAcquired, match="another thread or task of this process is waiting for lock 'k'"):
        run(state._turn(attempt, began, 0, None))
    assert len(limits) == 1


def test_an_attempt_knows_its_deadline(store: Timed) -> None:
    """That of its own acquire call."""
    now = ThreadRuntime.now()
    assert held(Lock(store, "a"), 5.0)._attempt.limit == pytest.approx(now + 5.0, abs=0.5)
    assert held(Lock(store, "b"))._attempt.limit == NEVER


def test_the_error_says_who_has_the_key(store: Timed) -> None:
    """At the store or in this process; or that it was never seen held by the same one."""
    state, attempt = begun(Lock(store, "k"))

    def inside() -> list[Attempt]:
        return state._queue.inside(ThreadRuntime.now())

    assert busy(attempt, "(w)") == "lock 'k' kept changing hands (w)"
    attempt.contention = Contention(None)
    assert busy(attempt, "(w)") == "lock 'k' kept changing hands (w)"
    free = Record("me", (), 5.0, "me.1.1", None)
    attempt.contention.meet(Observed(3, free), 0.0)
    assert busy(attempt, "(w)") == "lock 'k' kept changing hands (w)"
    attempt.contention.meet(Observed(4, free._replace(owner="them", holds=("them.1",))), 0.0)
    assert "is held by them" in busy(attempt, "(w)")
    assert in_use(attempt, inside(), "(w)") == "another thread or task of this process is waiting for lock 'k' (w)"
    hold = held(Lock(store, "k"))
    assert "is held by" in in_use(attempt, inside(), "(w)")
    assert in_use(hold._attempt, inside(), "(w)").startswith("another thread")


def test_a_release_after_the_lease_that_gets_no_answer_is_a_loss(store: Timed, background: Background) -> None:
    """It is released in the background, and cannot be released again; the lock can be had again."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    store.silent = lambda _verb, _key: True
    store.passed += 1000
    with pytest.raises(LockLost):
        hold.release()
    assert background.left == 1
    assert not hold._is_open
    assert hold._attempt.ending
    assert not lock._state._attempts
    with pytest.raises(NotHeld):
        lock.release()


def test_a_release_without_an_answer_is_called_again_at_the_lock(store: Timed) -> None:
    """By any thread; what was released belongs to nobody."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    store.silent = lambda _verb, _key: True
    with pytest.raises(StoreUnavailable):
        hold.release()
    assert lock._state.newest_hold() is hold
    store.silent = lambda _verb, _key: False
    lock.release()
    with pytest.raises(NotHeld, match="lock 'k' is not held by this thread or task"):
        lock.release()
    again = held(lock)
    told: list[str] = []

    def release() -> None:
        try:
            lock.release()
        except NotHeld as error:
            told.append(str(error))

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    assert told == ["lock 'k' is held by another thread or task: call release() on its Hold instead"]
    again.release()


def test_only_a_hold_that_goes_on_is_watched_after_an_extension(store: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is being released meanwhile, or whose event loop was closed."""
    watched: list[Attempt] = []
    monkeypatch.setattr(ThreadRuntime, "watch", staticmethod(watched.append))
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    assert len(watched) == 1
    hold.extend(50)
    assert len(watched) > 1
    assert set(watched) == {hold._attempt}
    watched.clear()

    def end(_verb: str, _key: str) -> bool:
        hold._attempt.ending = True
        return False

    monkeypatch.setattr(ThreadRuntime, "ended", lambda _runtime, _attempt: True)
    hold.extend(60)
    monkeypatch.undo()
    monkeypatch.setattr(ThreadRuntime, "watch", staticmethod(watched.append))
    store.silent = end
    run(lock._state.renew(hold._attempt, 70))
    assert watched == []


def test_a_failed_acquire_is_remembered_until_it_is_settled(store: Timed, background: Background) -> None:
    """Its late requests are its own until then, for whoever takes back what an interrupt has left."""
    store.silent = lambda _verb, _key: True
    lock = Lock(store, "k", ttl=100)
    with pytest.raises(StoreUnavailable):
        lock.acquire(timeout=0)
    assert background.left == 1
    store.silent = lambda _verb, _key: False
    state, attempt = begun(Lock(store, "other"))
    assert list(state._attempts.values()) == [attempt]
    attempt.levels.append("half done")
    run(state.undo(attempt, NotAcquired("as the test says")))
    assert (attempt.levels, state._attempts) == ([], {})
    attempt = state.begin()
    attempt.settled = False
    run(state.undo(attempt, NotAcquired("as the test says")))
    assert list(state._attempts.values()) == [attempt]


def test_what_an_interrupt_has_left_is_taken_back(store: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this thread: what has no hold yet, or is being released; a hold stays, and so does what others do."""
    lock = Lock(store, "k")
    run(lock._state.take_back(KeyboardInterrupt()))  # it was never used
    state, acquiring = begun(lock)
    others = state.begin()
    others.caller = object()
    releasing, keeping = state.begin(), state.begin()
    for attempt in (releasing, keeping):
        attempt.levels.append("held")
    releasing.ending = True
    undone: list[Attempt] = []

    async def undo(_state: LockState, attempt: Attempt, _error: BaseException) -> None:
        undone.append(attempt)

    monkeypatch.setattr(LockState, "undo", undo)
    run(state.take_back(KeyboardInterrupt()))
    assert undone == [acquiring, releasing]
    assert list(state._attempts.values()) == [others, keeping]


def test_force_release_is_told_to_the_holder_of_that_time_only(store: Timed) -> None:
    """One that acquires, or has another tenure, has lost nothing."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    other = held(Lock(Timed(), "k", ttl=100))
    fence = hold._attempt.lease.fence
    hold._attempt.lease.fence = fence + 1
    assert lock.force_release() is not None
    assert not hold.lost
    assert not other.lost
    assert lock.force_release() is None


def test_a_key_that_others_wait_for_is_not_released_with_others(store: Timed) -> None:
    """Nor one whose release writes a record; the release of the last level removes it."""
    lock = Lock(store, "k", ttl=100)
    outer = held(lock)
    assert lock._state.leaves_key(outer)
    inner = held(lock)
    assert not lock._state.leaves_key(outer)
    inner.release()
    lock._state._queue.waiting.append(outer._attempt)
    assert not lock._state.leaves_key(outer)
    lock._state._queue.waiting.clear()
    kept = Lock(store, "kept", ttl=100, min_hold=50)
    hold = held(kept)
    assert not kept._state.leaves_key(hold)


def test_a_stamp_is_made_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one second share it; those of a lease of another length have their own."""
    moment = [1000.25]
    monkeypatch.setattr(stamps_module, "time", SimpleNamespace(**{**vars(time), "time": lambda: moment[0]}))
    stamps = Stamps("me", 5.0, "host", "note")
    first = stamps()
    moment[0] = 1000.75
    assert stamps() is first
    moment[0] = 1001.0
    second = stamps()
    assert (first.stamp.since_iso, second.stamp.since_iso) == ("1970-01-01T00:16:40Z", "1970-01-01T00:16:41Z")
    assert stamps() is second
    longer = stamps.with_ttl(7.0)()
    assert longer.stamp == second.stamp
    assert longer.opening != second.opening
