"""Single steps of the state of a Lock, on a clock of the test: what it waits for, says, and leaves."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from caslock import Hold, Lock, LockLost, NotAcquired, NotHeld, StoreError, StoreUnavailable, connect, observe
from caslock.local import stamps as stamps_module
from caslock.local.finishing import finished
from caslock.local.lock_state import LockState
from caslock.local.refusals import Waited, busy, in_use
from caslock.local.stamps import Stamps
from caslock.local.threads import ThreadRuntime
from caslock.local.workers import run
from caslock.process import fork
from caslock.process.fork import generation
from caslock.protocol.attempt import Attempt
from caslock.protocol.contention import Contention
from caslock.protocol.exchange import Sent
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.protocol.record import NOTHING, Observed, Record, encode
from caslock.stores.memory import MemoryStore
from caslock.testing.faults import FaultyStore
from tests.rules.test_multilock_steps import Background, Timed, background, store
from tests.support.life import force
from tests.support.locations import held, present, until
from tests.support.recorder import Recorder

__all__ = ["background", "store"]  # fixtures


def begun(lock: Lock) -> tuple[LockState, Hold]:
    return lock._state, lock._state.begin(Hold)


def test_a_hold_says_what_has_become_of_it(store: Timed) -> None:
    """Its repr, the seconds that are left, and the error of who uses it later."""
    hold = held(Lock(store, "k", ttl=100))
    assert repr(hold).endswith("s remaining>")
    assert hold.remaining() == pytest.approx(98.998, abs=1)
    store.passed += 98.5
    assert 0 < hold.remaining() < 0.9
    hold._attempt.state = State.LEAVING
    assert hold.remaining() == 0
    with pytest.raises(NotHeld, match="this hold of 'k' is being released"):
        hold.extend()
    force(hold._attempt, State.HELD)
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
    assert present(lock.holder()).ttl == 40
    assert lock._state.settings.ttl == 40


@pytest.mark.parametrize(("timeout", "passes", "left"), [(None, 2.0, None), (5.0, 2.0, 3.0), (5.0, 7.0, 0.0)])
def test_what_is_left_of_the_timeout_is_for_the_store(
    store: Timed, timeout: float | None, passes: float, left: float | None
) -> None:
    """After the turn in this process has come."""
    state, hold = begun(Lock(store, "k"))
    attempt = hold._attempt
    limits: list[float] = []

    async def turn(_attempt: Attempt, _look_at: float, limit: float, *, once: bool) -> bool:
        limits.append(limit)
        store.passed += passes
        return not once

    state._queue = SimpleNamespace(turn=turn, inside=lambda _now: [])  # type: ignore[assignment] # of a test
    began = state.runtime.now()
    assert run(state._turn(attempt, NEVER, began, timeout, None)) == (
        None if left is None else pytest.approx(left, abs=0.2)
    )
    assert limits.pop() == (NEVER if timeout is None else began + timeout)
    with pytest.raises(NotAcquired, match="another thread or task of this process is waiting for lock 'k'"):
        run(state._turn(attempt, NEVER, began, 0, None))
    assert len(limits) == 1


@pytest.mark.parametrize("url", ["memory://", "sqlite:///locks.db"])
def test_a_key_that_nobody_wants_is_taken_by_the_short_way(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, also where waiters can't queue; and who does not get it is told how long that took."""
    monkeypatch.setattr("caslock.local.queue.ALONE_SECONDS", NEVER)
    monkeypatch.chdir(tmp_path)
    store = connect(url)
    lock = Lock(store, "k")
    with monkeypatch.context() as patch:
        patch.setattr(LockState, "win", None)
        patch.setattr(LockState, "finish_release", None)
        for _ in range(3):
            lock.acquire()
            lock.release()
    other = Lock(FaultyStore(store), "k").acquire()
    assert other is not None
    with pytest.raises(NotAcquired, match=r"\(waited [^ ]+ s\)$"), Lock(store, "k", timeout=0):
        pass


def test_an_attempt_knows_its_deadline(store: Timed) -> None:
    """That of its own acquire call."""
    for timeout in (0.0, 5.0, None):
        state, hold = begun(Lock(store, f"for {timeout}"))
        put = present(state.begin_put(hold))
        theirs = Observed(3, Record("them", ("them.1",), 5.0, "them.1.1", None))
        with contextlib.suppress(NotAcquired):
            run(state.win(hold, timeout, first=Sent(put, theirs if timeout is not None else NOTHING)))
        assert hold._attempt.limit == (NEVER if timeout is None else put.at + timeout)


def test_the_error_says_who_has_the_key(store: Timed) -> None:
    """At the store or in this process; or that it was never seen held by the same one."""
    state, begun_hold = begun(Lock(store, "k"))
    attempt = begun_hold._attempt

    def inside() -> list[Attempt]:
        return state._queue.inside(ThreadRuntime.now())

    def text(error: NotAcquired) -> str:
        assert (error.key, error.location, error.waited) == ("k", store.traits.location, 2.0)
        return str(error)

    time = Waited(3.0, 1.0, None)
    assert text(busy(attempt, time)) == "lock 'k' kept changing hands (waited 2 s)"
    attempt.contention = Contention(None)
    assert text(busy(attempt, time)) == "lock 'k' kept changing hands (waited 2 s)"
    free = Record("me", (), 5.0, "me.1.1", None)
    attempt.contention.meet(Observed(3, free), 0.0)
    assert text(busy(attempt, time)) == "lock 'k' kept changing hands (waited 2 s)"
    assert busy(attempt, time).holder is None
    attempt.contention.meet(Observed(4, free._replace(owner="them", holds=("them.1",))), 0.0)
    assert "is held by them" in text(busy(attempt, time))
    assert text(busy(attempt, Waited(3.0, 2.5, 1.0))).endswith("(waited 2 s for all keys, the last 0.5 s for this one)")
    holder = present(busy(attempt, time).holder)
    assert (holder.owner, holder.fence) == ("them", 4)
    nobody = "another thread or task of this process is waiting for lock 'k' (waited 2 s)"
    assert text(in_use(attempt, inside(), time)) == nobody
    hold = held(Lock(store, "k"))
    error = in_use(attempt, inside(), time)
    assert "by this thread or task through another Lock object" in text(error)
    assert present(error.holder).fence == hold.fence
    attempt.caller = object()
    assert "in another thread or task of this process" in text(in_use(attempt, inside(), time))
    assert text(in_use(hold._attempt, inside(), time)) == nobody
    assert text(in_use(hold._attempt, [], time)) == nobody
    assert text(in_use(hold._attempt, [attempt], time)) == nobody


def test_a_release_after_the_lease_that_gets_no_answer_is_a_loss(store: Timed, background: Background) -> None:
    """It is released in the background, and cannot be released again; the lock can be had again."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    store.lose = lambda _verb, _key: True
    store.passed += 1000
    with pytest.raises(LockLost):
        hold.release()
    assert background.left == 1
    assert not hold._is_open
    assert hold._attempt.ending
    assert not lock._state._held
    with pytest.raises(NotHeld):
        lock.release()


def unreleased(store: Timed) -> tuple[Lock, Hold]:
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    store.lose = lambda _verb, _key: True
    with pytest.raises(StoreUnavailable):
        hold.release()
    return lock, hold


def test_a_release_without_an_answer_is_called_again_at_the_lock(store: Timed) -> None:
    """By any thread; what was released belongs to nobody."""
    lock, hold = unreleased(store)
    assert lock._state.newest_hold() is hold
    store.lose = lambda _verb, _key: False
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


def test_only_a_shorter_lease_is_watched_anew(store: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is asked for, as it ends earlier from then on; the look at a longer one comes too early, which shows."""
    watched: list[float] = []
    monkeypatch.setattr(ThreadRuntime, "watch", staticmethod(lambda attempt: watched.append(attempt.lease.due)))
    hold = held(Lock(store, "k", ttl=100))
    now = ThreadRuntime.now()
    hold.extend(200)
    hold.extend(50)
    assert watched == [pytest.approx(now + due, abs=0.5) for due in (100 / 3, 50 / 3)]


def test_an_acquire_is_known_to_nobody_before_it_has_succeeded(store: Timed) -> None:
    """What an interrupt cuts short is garbage: it is not renewed, and the next one of this process gets in."""
    state, hold = begun(Lock(store, "k", ttl=100))
    assert state.enter_at_once(hold._attempt)
    assert state._held == {}
    abandoned = weakref.ref(hold._attempt)
    del hold
    assert abandoned() is None
    assert state._queue.inside(state.runtime.now()) == []


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_an_interrupted_acquire_is_undone(store: Timed, levels: int) -> None:
    """With its hold if it has one already, but nothing else; and once is enough."""
    lock = Lock(store, "k", min_hold=50)
    for _ in range(levels - 1):
        held(lock)
    hold = lock._state.begin(Hold)
    if levels:
        run(lock._state.acquire(hold, 0.0))
    else:
        assert lock._state.enter_at_once(hold._attempt)
    for _ in range(2):
        run(lock._state.undo(hold, KeyboardInterrupt()))
        assert not hold._is_open
        assert (hold._attempt.state is State.HELD, store.memory.get("k") is None) == (levels == 2, levels < 2)
    assert len(lock._state._queue.inside(lock._state.runtime.now())) == (levels == 2)


def test_force_release_is_told_to_the_holder_of_that_time_only(store: Timed) -> None:
    """One that acquires, or has another tenure, has lost nothing."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    other = held(Lock(Timed(), "k", ttl=100))
    hold._attempt.hold_id += "1"
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
    """Records of one second share it."""
    moment = [1000.25]
    monkeypatch.setattr(stamps_module, "time", SimpleNamespace(**{**vars(time), "time": lambda: moment[0]}))
    stamps = Stamps(Lock(MemoryStore(), "k")._state.begun()._terms, "host")
    first = stamps()
    moment[0] = 1000.75
    assert stamps() is first
    moment[0] = 1001.0
    second = stamps()
    assert (first.stamp.since_iso, second.stamp.since_iso) == ("1970-01-01T00:16:40Z", "1970-01-01T00:16:41Z")
    assert stamps() is second


def test_the_first_record_has_the_settings_of_its_lock() -> None:
    """The text that is prepared once a second is that of the record."""
    memory = MemoryStore()
    hold = held(Lock(memory, "k", ttl=1.5, note='100 % "ü" {}'))
    assert present(memory.get("k")).value == encode(present(hold._attempt.lease.record))


def test_a_hold_of_an_event_loop_that_has_ended_is_lost_to_who_comes_next(
    store: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not re-entered: its loss is told, and it leaves the local queue."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    state, attempt = lock._state, hold._attempt
    attempt.caller = object()
    monkeypatch.setattr(ThreadRuntime, "ended", lambda _runtime, which: which is attempt)
    assert state.begin(Hold)._attempt is not attempt
    assert attempt.lease.lost == "its event loop has ended"
    assert (state._held, state._queue._inside) == ({}, [])


def test_a_lock_is_begun_re_entered_and_left_by_one_at_a_time(store: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two first uses waits for the first; a re-entry and a release wait for another thread's step."""
    lock = Lock(store, "k", ttl=100)
    held(lock)
    inner = held(lock)
    state, new = lock._state, Lock(store, "new")._state
    begins: list[LockState] = []
    monkeypatch.setattr(ThreadRuntime, "me", lambda _runtime: inner._attempt.caller)
    monkeypatch.setattr(LockState, "_begin", begins.append)
    with ThreadPoolExecutor(3) as pool:
        with state._guard, fork.guard:
            acts: list[Callable[[], object]] = [lambda: state.re_enter(state.begin(Hold)), new.begun, inner.release]
            steps = [pool.submit(act) for act in acts]
            for step in steps:
                with pytest.raises(TimeoutError):
                    step.result(0.1)
            new.generation = generation()
        assert all(step.exception(50) is None for step in steps)
    assert begins == []


def test_a_release_that_has_begun_is_not_re_entered(store: Timed) -> None:
    """From the moment at which it is known to be that of the last level."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    assert lock._state._leave_level(hold)
    assert hold._attempt.ending
    again = Hold(lock._state, hold._attempt)
    assert not lock._state.re_enter(again)
    assert again._attempt is not hold._attempt
    assert again._attempt.state is State.ASKING
    assert lock._state.begin(Hold)._attempt is not hold._attempt


def test_a_release_during_a_renewal_is_no_single_request(store: Timed) -> None:
    """It waits for the renewal first."""
    hold = held(Lock(store, "k", ttl=100))
    with ThreadPoolExecutor(1) as renewer:
        assert renewer.submit(hold._attempt.mutex.acquire, blocking=False).result()
        assert hold._state.begin_removal(hold) is None
        renewer.submit(hold._attempt.mutex.release).result()
    hold.release()


def test_a_child_releases_its_copies_and_frees_nothing(store: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holds of its parent, the newest first; then it has none, and may acquire as an owner of its own."""
    lock = Lock(store, "k", ttl=100)
    outer, inner = held(lock), held(lock)
    owner, attempt = lock.owner, outer._attempt
    store.requests.clear()
    monkeypatch.setattr(fork, "_generation", generation() + 1)
    with pytest.raises(NotHeld, match="belongs to the parent process"):
        outer.ensure_held()
    assert lock._state.newest_hold() is inner
    assert not lock._state.leaves_key(outer)
    lock.release()
    assert attempt.levels == [outer]
    assert not lock._state.leaves_key(outer)
    lock.release()
    assert attempt.levels == []
    with pytest.raises(NotHeld):
        lock.release()
    assert store.requests == []
    assert store.memory.get("k") is not None
    assert lock.acquire(timeout=0) is None
    assert lock.owner != owner


@pytest.mark.usefixtures("background")
def test_a_hold_whose_release_got_no_answer_is_not_that_of_a_later_acquire(store: Timed) -> None:
    """Another thread that calls `Lock.release` is told so."""
    lock, hold = unreleased(store)
    store.lose = lambda _verb, _key: False
    again = held(lock)
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotHeld, match="by another thread or task"):
        pool.submit(lock.release).result(50)
    hold._attempt.levels.clear()
    lock._state._unsettled = hold
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotHeld, match="by another thread or task"):
        pool.submit(lock.release).result(50)
    again.release()


def test_a_waiter_keeps_no_abandoned_hold_alive(store: Timed) -> None:
    """Which nobody can release any more, and which is renewed as long as it lives."""
    lock = Lock(store, "k", ttl=100)
    abandoned = weakref.ref(held(lock)._attempt)
    with ThreadPoolExecutor(1) as pool:
        queue = lock._state._queue
        waiting = pool.submit(Lock(store, "k", ttl=100).acquire, timeout=1000)
        assert until(lambda: queue.waiting)
        del lock
        gc.collect()
        assert abandoned() is None
        entry = present(store.memory.get("k"))
        store.memory.invalidate("k", entry.version)
        queue.inside(ThreadRuntime.now())
        hold = present(waiting.result(50))
        hold.release()


def test_who_waits_for_its_own_hold_is_warned(store: Timed, caplog: pytest.LogCaptureFixture) -> None:
    """Not if it only tries, nor if it waits for the hold of another, or for an attempt of its own that has none."""
    with Lock(store, "k"):
        assert Lock(store, "k").acquire(timeout=0) is None  # the error says so
    state, hold = begun(Lock(store, "k"))
    own, other = (SimpleNamespace(caller=by, levels=list[str]()) for by in (hold._attempt.caller, object()))
    other.levels.append("held")
    state._warn_of_itself(hold._attempt, [own, other])  # type: ignore[list-item] # of a test
    assert caplog.messages == []
    own.levels.append("held")
    state._warn_of_itself(hold._attempt, [own, other])  # type: ignore[list-item] # as above
    assert "waits for itself" in caplog.text


def test_what_caslock_did_not_write_has_no_fence(store: Timed) -> None:
    """Its version is none of ours."""
    store.memory.put_if_version("k", b"another program's", 0, 100)
    record = present(Lock(store, "k").holder())
    assert (record.foreign, record.fence) == (True, None)


def test_an_inner_hold_that_was_released_is_not_held(store: Timed) -> None:
    """Though the outer one is."""
    lock = Lock(store, "k", ttl=100)
    outer, inner = held(lock), held(lock)
    inner.release()
    assert inner.remaining() == 0
    with pytest.raises(NotHeld, match="has already been released"):
        inner.ensure_held()
    outer.ensure_held()


def test_an_acquire_that_is_under_way_is_no_hold(store: Timed) -> None:
    """It can't be released at the lock, and `force_release` takes nothing from it."""
    state, hold = begun(Lock(store, "k"))
    attempt = hold._attempt
    with pytest.raises(NotHeld, match="lock 'k' is not held by this thread or task"):
        state.newest_hold()
    assert state.enter_at_once(attempt)
    holder = held(Lock(FaultyStore(store), "k", ttl=100))  # in another process
    attempt.lease.fence, attempt.lease.deadline = holder.fence, NEVER
    assert run(state.force_release()) is not None
    assert attempt.lease.lost == ""


def test_force_release_lets_the_next_one_of_this_process_in(store: Timed) -> None:
    """At once: it need not wait until the holder has learned of its loss."""
    hold = held(Lock(store, "k", ttl=100))
    queue = hold._state._queue
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock(store, "k", ttl=100).acquire, timeout=1000)
        assert until(lambda: queue.waiting)
        assert Lock(store, "k").force_release() is not None
        assert waiting.result(50) is not None


@pytest.mark.usefixtures("background")
def test_what_is_released_in_the_background_is_not_renewed(store: Timed) -> None:
    """Its release has begun."""
    lock = Lock(store, "k", ttl=100)
    hold = held(lock)
    lock._state.release_later(hold)
    assert hold._attempt.ending


def test_an_acquire_that_is_refused_is_told_to_nobody_as_busy(store: Timed) -> None:
    """Nobody has the key."""
    recorder = Recorder()
    forget = observe(recorder)
    key = f"refused:{store.traits.location}"
    store.refused = lambda verb, _key: verb == "put"
    with pytest.raises(StoreError, match="refused"):
        Lock(store, key).acquire(timeout=0)
    store.refused = lambda _verb, _key: False
    held(Lock(store, key))
    assert Lock(FaultyStore(store), key).acquire(timeout=0) is None
    forget()
    assert [name for name, event in recorder.events if event.key == key].count("busy") == 1


@pytest.mark.parametrize(("error", "notes"), [(NotHeld("over"), []), (StoreError("read-only"), ["read-only"])], ids=str)
def test_an_interrupt_tells_what_could_not_be_finished(error: Exception, notes: list[str]) -> None:
    """What is over already is no news."""

    async def work() -> None:
        raise error

    interrupt = KeyboardInterrupt()
    run(finished(work, interrupt))
    assert getattr(interrupt, "__notes__", []) == notes
