"""Single steps of a QuorumLock, on a clock of the test, with stores that are asked one after the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import MethodType
from typing import cast

import pytest

from caslock import Hold, Lock, LockLost, NotAcquired, OutcomeUnknown, QuorumLock, StoreError, StoreUnavailable, observe
from caslock.local import clock
from caslock.local.lane import Lane
from caslock.local.quorum import GRACE, QuorumState, place_of
from caslock.local.several import check_stores
from caslock.local.threads import ThreadRuntime, thread_runtime
from caslock.local.workers import run
from caslock.protocol.attempt import Attempt
from caslock.protocol.life import State
from caslock.protocol.quorum import Ballot, QuorumLease
from caslock.protocol.record import decode
from caslock.protocol.runtime import Runtime
from tests.rules.test_multilock_steps import TIMEOUT, Clock, Timed
from tests.support.locations import present
from tests.support.recorder import Recorder


class Enough(Exception):  # noqa: N818 - ends a test
    """So many pauses are enough."""


class Scene(Clock):
    """Three stores whose requests are made at once, in the thread of the test, and take time on its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        self.most = 1000
        self.waits: list[float] = []
        self.step = 1e9  # the longest part of a wait that passes before somebody looks again
        self.rung = 0  # how often those who wait were woken
        self.silent: set[object] = set()  # stores that no thread is free for
        self.hung: list[Member] = []  # stores whose first request gets no answer
        self.asked: list[tuple[Lane, Ballot, Attempt]] = []  # of these
        self.unsent: list[Callable[[], Coroutine[object, object, None]]] = []
        self.watched: list[Attempt] = []
        self.lost: list[Attempt] = []  # whose loss was reported
        self.meanwhile: Callable[[], object] = lambda: None  # as time passes
        self.later: list[float] = []
        self.stores = [Member(f"memory://{number}", self) for number in range(3)]
        began = clock.now()
        monkeypatch.setattr(ThreadRuntime, "now", staticmethod(lambda: began + self.passed))
        test, really = threading.current_thread(), ThreadRuntime.sleep

        def sleep(runtime: ThreadRuntime, seconds: float) -> Coroutine[object, object, None]:
            in_test = threading.current_thread() is test  # and no clean-up that an earlier test has left
            return self._sleep(seconds) if in_test else really(runtime, seconds)

        def start(runtime: ThreadRuntime, work: Callable[[], Coroutine[object, object, None]]) -> None:
            self._start(runtime, work)

        monkeypatch.setattr(ThreadRuntime, "sleep", sleep)
        monkeypatch.setattr(ThreadRuntime, "event", lambda _runtime: Pause(self))
        monkeypatch.setattr(ThreadRuntime, "start", start)
        monkeypatch.setattr(ThreadRuntime, "watch", staticmethod(self.watched.append))
        monkeypatch.setattr(ThreadRuntime, "report_loss", staticmethod(self.lost.append))
        monkeypatch.setattr(
            ThreadRuntime, "in_background", lambda _runtime, _settle, seconds: self.later.append(seconds)
        )
        monkeypatch.setattr(random, "uniform", lambda low, high: high + 1000 * low)  # the longest pause

    def lock(self, **settings: object) -> QuorumLock:
        return QuorumLock(self.stores, "k", **settings)  # type: ignore[arg-type] # of several types

    def send(self) -> None:
        while self.unsent:
            run(self.unsent.pop(0)())

    def refuse(self) -> None:
        """Have the store that has hung longest answer that somebody else has the key."""
        lane, ballot, part = self.asked.pop(0)
        ballot.end(part, NotAcquired())
        lane._is_served = False
        run(lane._serve())

    def _start(self, runtime: Runtime, work: Callable[[], Coroutine[object, object, None]]) -> None:
        if runtime.home in self.silent:
            self.unsent.append(work)
        elif any(runtime.home is store for store in self.hung):
            self.hung.remove(cast("Member", runtime.home))
            lane = cast("Lane", cast("MethodType", work).__self__)
            lane._is_served = True
            part, asks = present(lane._next())
            (ballot_ref,) = cast("partial[object]", asks).args
            assert ballot_ref().begin(part)
            self.asked.append((lane, ballot_ref(), part))
        else:
            run(work())

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.passed += seconds
        if len(self.pauses) == self.most:
            raise Enough


class Member(Timed):
    def other(self, key: str = "k") -> None:
        assert Lock(self.memory, key, ttl=10_000).acquire(timeout=0) is not None


class Pause:
    alive = True

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def wait(self, timeout: float | None) -> None:
        assert timeout is not None
        self._scene.waits.append(timeout)
        self._scene.passed += min(timeout, self._scene.step)
        self._scene.meanwhile()

    def set(self) -> None:
        self._scene.rung += 1


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return three stores."""
    return Scene(monkeypatch)


def test_contenders_that_split_the_votes_stay_away_longer_each_time(scene: Scene) -> None:
    """By the time that a round takes, and twice as long after each: up to 64 times as long."""
    for store in scene.stores[:2]:
        store.other()
    for store in scene.stores:
        store.slow = True
    scene.most = 8
    with pytest.raises(Enough):
        scene.lock().acquire()
    taken = 4 * TIMEOUT  # three puts, and what was granted is given back
    assert scene.pauses == pytest.approx([taken * 2 ** min(number, 6) for number in range(1, 9)], abs=0.6)


def test_no_vote_is_no_split(scene: Scene) -> None:
    """Where others have all stores, it looks again as a Lock does; and with the user's own pauses in any case."""
    for store in scene.stores:
        store.other()
        store.slow = True
    scene.most = 8
    with pytest.raises(Enough):
        scene.lock().acquire()
    assert max(scene.pauses) == scene.pauses[-1] == 0.5
    entry = present(scene.stores[2].memory.get("k"))
    scene.stores[2].memory.invalidate("k", entry.version)
    scene.pauses.clear()
    with pytest.raises(Enough):
        scene.lock(poll=lambda _state: 0.25).acquire()
    assert scene.pauses == [0.25] * 8


def test_the_last_pause_ends_with_the_timeout(scene: Scene) -> None:
    """It is not longer than what is left, and not less than nothing."""
    for store in scene.stores[:2]:
        store.other()
    assert scene.lock(poll=lambda _state: 0.75).acquire(timeout=2.0) is None
    assert scene.pauses == pytest.approx([0.75, 0.75, 0.5], abs=0.2)
    assert scene.passed == pytest.approx(2.0, abs=0.3)


def test_stores_that_no_thread_is_free_for_are_given_up(scene: Scene) -> None:
    """After one request timeout; nothing has been sent, and nothing is sent later."""
    scene.silent = set(scene.stores[:2])
    with pytest.raises(StoreUnavailable, match="earlier requests have not been answered") as caught:
        scene.lock().acquire()
    assert not isinstance(caught.value, OutcomeUnknown)
    assert scene.waits[0] == pytest.approx(TIMEOUT, abs=0.5)
    assert scene.stores[2].memory.get("k") is None
    scene.send()
    assert [store.requests for store in scene.stores[:2]] == [[], []]


def test_a_hold_lasts_as_long_as_two_of_three_leases(scene: Scene) -> None:
    """Each is watched by itself; after an extension too, which a minority can't stop, nor a release."""
    lock = scene.lock(ttl=100, max_hold=250)
    hold = present(lock.acquire())
    assert [attempt.runtime.home for attempt in scene.watched] == scene.stores
    assert hold.remaining() == pytest.approx(100, abs=2)
    scene.stores[0].lose = lambda _verb, _key: True
    hold.extend(200)
    assert hold.remaining() > 150
    scene.stores[1].lose = lambda _verb, _key: True
    before = hold.remaining()
    with pytest.raises(
        StoreUnavailable, match="could not extend lock 'k', because 2 of 3 stores did not answer"
    ) as caught:
        hold.extend(220)
    assert "Its deadline is no later than before" in str(caught.value)
    assert hold.remaining() <= before
    with pytest.raises(StoreUnavailable, match="could not release lock 'k', because 2 of 3") as caught:
        hold.release()
    assert "no answer in time" not in str(caught.value)  # each says something else
    assert len(scene.later) == 2
    scene.stores[1].lose = lambda _verb, _key: False
    hold.release()
    assert not hold._is_open
    assert [store.memory.get("k") is None for store in scene.stores] == [False, True, True]


def test_a_lease_that_is_won_back_ends_with_max_hold(scene: Scene) -> None:
    """It is asked for what is left of it, and for nothing when nothing is left."""
    hold = present(scene.lock(ttl=100, max_hold=150).acquire())
    state, attempt = hold._state, hold._attempt
    assert [part.lease.max_hold for part in scene.watched] == [150.0] * 3
    for passed, asked in ((60.0, 90.0), (100.0, 50.0)):
        scene.passed = passed
        assert scene.stores[0].memory.get("k") is not None
        part = state._part(thread_runtime(scene.stores[0]), "nonce.1", attempt)  # type: ignore[attr-defined] # of a QuorumState
        assert part.lease.ttl == pytest.approx(asked, abs=1)
        assert part.lease.max_hold == pytest.approx(asked, abs=1)
    scene.passed = 200.0
    part = state._part(thread_runtime(scene.stores[0]), "nonce.1", attempt)  # type: ignore[attr-defined] # as above
    assert part.lease.ttl == 0
    assert part.limit <= thread_runtime(scene.stores[0]).now()


def test_a_quorum_is_a_place_that_keeps_nothing(scene: Scene) -> None:
    """It has the location of all, the longest request timeout, and no fences; the same stores are one place."""
    scene.stores[1].traits = scene.stores[1].traits._replace(request_timeout=7.0)
    nodes = [thread_runtime(store) for store in scene.stores]
    place = place_of(nodes)
    assert place is place_of(nodes[::-1])
    assert place.traits.location == "a quorum of memory://0, memory://1, memory://2"
    assert (place.traits.fences, place.traits.request_timeout) == (False, 7.0)
    for verb in (place.get, place.put_if_version, place.invalidate):
        with pytest.raises(StoreError, match="keeps no entries: ask one of its stores"):
            verb("k")


def test_stores_at_one_location_are_not_independent(scene: Scene) -> None:
    """Though they are several objects."""
    again = Member("memory://0", scene)
    stores = [*scene.stores, again]
    with pytest.raises(ValueError, match="must be independent, but two of them are memory://0"):
        check_stores(stores, cast("Callable[[object], Runtime]", thread_runtime))
    assert len(check_stores(scene.stores, cast("Callable[[object], Runtime]", thread_runtime))) == 3


def test_stores_that_do_not_answer_leave_the_outcome_open(scene: Scene) -> None:
    """After three request timeouts; the error says which they are, and until when a request may be applied."""
    scene.hung = list(scene.stores[:2])
    lock = scene.lock(ttl=50)
    with pytest.raises(OutcomeUnknown) as caught:
        lock.acquire()
    assert str(caught.value) == (
        "could not acquire lock 'k', because 2 of 3 stores did not answer: memory://0: no answer in time; "
        "memory://1: no answer in time. A request that may still be applied expires within 50 s after that"
    )
    assert (caught.value.key, caught.value.location) == ("k", lock._state.runtime.store.traits.location)
    # The last one is for what has to be given back, and is not repeated when the acquire is undone.
    assert scene.waits == pytest.approx([TIMEOUT, 2 * TIMEOUT, GRACE], abs=0.5)
    assert lock._state._events == []
    assert scene.stores[2].memory.get("k") is None


def test_a_store_that_has_not_answered_is_asked_again_once_it_has(scene: Scene) -> None:
    """For the hold of that time; if there is none, not at all."""
    lock = scene.lock()
    scene.hung = list(scene.stores[:1])
    present(lock.acquire()).release()
    scene.waits.clear()
    present(lock.acquire()).release()
    assert scene.waits == []  # it was not asked, so there is nothing to wait for
    third = present(lock.acquire())
    assert scene.stores[0].requests == []  # it waits for the first answer
    assert len(scene.asked[0][0]._jobs) == 1  # however many acquires have come meanwhile
    third.release()
    scene.refuse()
    assert scene.stores[0].requests == []
    scene.hung = list(scene.stores[:1])
    present(lock.acquire()).release()
    fifth = present(lock.acquire())
    scene.refuse()
    assert [verb for verb, _ in scene.stores[0].requests] == ["put"]
    assert free(scene) == [False] * 3
    fifth.release()
    assert free(scene) == [True] * 3


def test_a_store_that_has_not_released_is_asked_again_once_it_has(scene: Scene) -> None:
    """By an acquire that waits for the answer to the release of before."""
    lock = scene.lock()
    first = present(lock.acquire())
    scene.silent = {scene.stores[0]}
    first.release()
    scene.stores[0].requests.clear()
    second = present(lock.acquire())
    assert scene.stores[0].requests == []
    scene.silent = set()
    scene.send()
    assert [verb for verb, _ in scene.stores[0].requests] == ["invalidate", "put"]
    second.release()
    assert free(scene) == [True] * 3


def holds_at(store: Member) -> tuple[str, ...]:
    return decode(present(store.memory.get("k")).value).holds


@pytest.mark.parametrize(("silent", "text"), [(False, "refused"), (True, "did not answer")])
def test_the_error_says_what_each_store_has_said(scene: Scene, text: str, *, silent: bool) -> None:
    """In the words of the store, with its location once; a refusal is a refusal only if no store was silent."""
    scene.stores[0].refused = lambda _verb, _key: True
    if silent:
        scene.stores[1].lose = lambda _verb, _key: True
    else:
        scene.stores[1].refused = lambda _verb, _key: True
    with pytest.raises(StoreError) as caught:
        scene.lock().acquire()
    assert isinstance(caught.value, StoreUnavailable) is silent
    message = str(caught.value)
    assert message.startswith(
        f"could not acquire lock 'k', because 2 of 3 stores {text}: memory://0: refused; memory://1"
    )
    assert isinstance(caught.value.__cause__, StoreError)


def test_an_error_that_names_its_store_is_told_as_it_is(scene: Scene) -> None:
    """The location is said once."""
    failures = [StoreError(f"{store.traits.location} is read-only") for store in scene.stores]

    def fail(number: int) -> bool:
        raise failures[number]

    for number, store in enumerate(scene.stores):
        store.lose = lambda _verb, _key, number=number: fail(number)  # type: ignore[misc] # its default
    with pytest.raises(StoreError, match="refused: memory://0 is read-only; memory://1 is read-only; memory://2 is"):
        scene.lock().acquire()


def test_a_fault_of_a_store_is_raised_as_it_is(scene: Scene) -> None:
    """What is no error of caslock is not said in its words."""

    def fail(verb: str, _key: str) -> bool:
        if verb == "put":
            raise ZeroDivisionError
        return False

    for store in scene.stores[:2]:
        store.lose = fail
    with pytest.raises(ZeroDivisionError):
        scene.lock().acquire()
    for store in scene.stores[:2]:
        store.lose = lambda _verb, _key: False
    hold = acquired(scene)
    for store in scene.stores[:2]:
        store.lose = fail
    with pytest.raises(ZeroDivisionError):
        hold.extend(50)


def test_the_record_of_a_hold_is_one_of_its_own(scene: Scene) -> None:
    """Not of a store that another owner has, which is tried once, and not waited for."""
    scene.stores[0].other()
    hold = present(scene.lock().acquire())
    assert present(hold._attempt.lease.record).owner == hold.owner
    assert scene.pauses == []
    hold.release()


def test_a_quorum_that_does_not_answer_is_not_busy(scene: Scene) -> None:
    """Observers are told that somebody has the key only where somebody has it."""
    recorder = Recorder()
    forget = observe(recorder)
    scene.silent = set(scene.stores)
    with pytest.raises(StoreUnavailable):
        scene.lock().acquire(timeout=0)
    forget()
    assert "busy" not in [name for name, event in recorder.events if "quorum" in event.location]


def acquired(scene: Scene, **settings: object) -> Hold:
    hold = present(scene.lock(**settings).acquire())
    for store in scene.stores:
        store.requests.clear()
    scene.waits.clear()
    return hold


def free(scene: Scene) -> list[bool]:
    return [store.memory.get("k") is None for store in scene.stores]


def test_a_release_waits_a_moment_for_a_minority_and_three_timeouts_for_a_majority(scene: Scene) -> None:
    """Then it says that there was no answer, and what that means."""
    hold = acquired(scene)
    scene.silent = {scene.stores[0]}
    hold.release()
    assert scene.waits == pytest.approx([GRACE], abs=0.01)
    assert free(scene) == [False, True, True]
    scene.send()
    assert free(scene) == [True] * 3
    scene.silent = set()
    hold = acquired(scene, ttl=50)
    scene.silent = set(scene.stores[:2])
    with pytest.raises(StoreUnavailable) as caught:
        hold.release()
    assert str(caught.value) == (
        "could not release lock 'k', because 2 of 3 stores did not answer: memory://0: no answer in time; "
        "memory://1: no answer in time. Call release() again; otherwise its leases expire within 50 s"
    )
    assert (caught.value.key, caught.value.location) == ("k", hold._attempt.runtime.store.traits.location)
    assert scene.waits == pytest.approx([GRACE, 3 * TIMEOUT - GRACE], abs=0.1)
    scene.send()
    hold.release()
    assert free(scene) == [True] * 3


def test_an_extension_waits_a_moment_for_a_minority_and_three_timeouts_for_a_majority(scene: Scene) -> None:
    """Then the hold lasts as long as before, and what is won back later is asked for as long, too."""
    hold = acquired(scene, ttl=100)
    scene.silent = {scene.stores[0]}
    hold.extend(200)
    assert scene.waits == pytest.approx([GRACE], abs=0.01)
    scene.waits.clear()
    scene.silent = set(scene.stores[:2])
    with pytest.raises(StoreUnavailable, match="could not extend lock 'k', because 2 of 3") as caught:
        hold.extend(300)
    assert "memory://0: no answer in time; memory://1: no answer in time. Its deadline is" in str(caught.value)
    assert scene.waits == pytest.approx([GRACE, 3 * TIMEOUT - GRACE], abs=0.1)
    assert hold._attempt.lease.ttl == 200
    scene.silent = set()
    hold.extend(200)
    scene.passed += 1000
    with pytest.raises(LockLost):
        hold.extend(300)


@pytest.mark.parametrize("how", ["lost", "over", "max_hold"])
def test_a_lock_that_is_lost_asks_no_store_again(scene: Scene, how: str) -> None:
    """Nor one that may be held no longer."""
    scene.stores[0].lose = lambda _verb, _key: True
    hold = acquired(scene, ttl=100, max_hold=120 if how == "max_hold" else 500)
    scene.stores[0].lose = lambda _verb, _key: False
    if how == "lost":
        hold._attempt.lease.lost = "as the test says"
    else:
        scene.passed += 150
    if how == "max_hold":
        for attempt in scene.watched:
            attempt.lease.deadline += 100
    renewed = present(scene.watched[-1].after_renewal)
    renewed()
    assert scene.stores[0].requests == []


def test_a_lost_lease_is_won_back_after_a_renewal_and_two_are_a_loss(scene: Scene) -> None:
    """What is left of it is dead to the next one; after the loss of the lock the others are renewed no more."""
    hold = acquired(scene, ttl=100)
    first, second, third = scene.watched
    lose(first)
    assert not hold.lost
    assert scene.stores[0].requests == []
    before = holds_at(scene.stores[0])
    present(second.after_renewal)()
    assert holds_at(scene.stores[0]) != before
    again = scene.watched[3]
    assert holds_at(scene.stores[0]) == (again.hold_id,)
    lose(again)
    assert not hold.lost
    lose(second)
    assert hold.lost
    assert third.ending
    assert third.lease.reported
    with pytest.raises(LockLost):
        hold.release()


def test_a_store_that_is_down_for_long_is_asked_again_and_again(scene: Scene) -> None:
    """After each renewal of another lease; what failed before is forgotten."""
    hold = acquired(scene, ttl=100)
    first, second, _ = scene.watched
    scene.stores[0].lose = lambda _verb, _key: True
    lose(first)
    ballot = present(cast("QuorumLease", hold._attempt.lease).ballot)
    for _ in range(5):
        present(second.after_renewal)()
        assert len(ballot.errors) == 1
        assert len(ballot.granted) == 2
    scene.stores[0].lose = lambda _verb, _key: False
    present(second.after_renewal)()
    assert ballot.held == ballot.parts
    assert not ballot.errors
    hold.release()
    assert holds_at(scene.stores[0]) == ()
    assert free(scene) == [False, True, True]  # a record that nobody holds keeps out what was sent before


def forget(store: Member) -> None:
    entry = present(store.memory.get("k"))
    store.memory.invalidate("k", entry.version)


@pytest.mark.parametrize("waits", [1, 3])
def test_an_interrupted_acquire_says_what_is_released_in_the_background(scene: Scene, waits: int) -> None:
    """Of a store that had granted a lease and is silent now: also as that is given back, once the acquire failed."""

    def interrupt() -> None:
        if len(scene.waits) == waits:
            scene.meanwhile = lambda: None
            raise KeyboardInterrupt

    def silent(verb: str, _key: str) -> bool:
        scene.silent = {scene.stores[0]}  # from now on
        return verb != "put"

    scene.stores[0].lose = silent
    scene.hung, scene.meanwhile = list(scene.stores[1:]), interrupt
    lock = scene.lock(ttl=70)
    with pytest.raises(KeyboardInterrupt) as caught:
        lock.acquire()
    assert caught.value.__notes__ == [
        "The lease of 'k' at memory://0 is released in the background; it expires within 70 s."
    ]
    assert not lock._state._held


def test_an_acquire_that_is_interrupted_before_any_answer_takes_none(scene: Scene) -> None:
    """What is granted later is given back."""

    def interrupt() -> None:
        scene.meanwhile = lambda: None
        raise KeyboardInterrupt

    scene.hung, scene.meanwhile = list(scene.stores), interrupt
    with pytest.raises(KeyboardInterrupt):
        scene.lock().acquire()
    assert len(scene.asked) == 3
    assert not any(ballot.join(part, 0.0) for _, ballot, part in scene.asked)


def test_a_release_after_the_end_is_a_loss(scene: Scene) -> None:
    """A majority of the leases was over before it began, though the stores have answered."""
    hold = acquired(scene, ttl=100, auto_renew=False)
    scene.passed += 98
    hold.release()  # in time
    hold = acquired(scene, ttl=100, auto_renew=False)
    scene.passed += 101
    scene.silent = set(scene.stores)
    with pytest.raises(LockLost):  # even if no store can be asked
        hold.release()
    assert hold._attempt.state is State.OVER
    scene.silent.clear()
    scene.send()
    for silent in (False, True):  # or if none answers
        hold = acquired(scene, ttl=100, auto_renew=False)
        scene.passed += 101
        for store in scene.stores:
            store.lose = lambda _verb, _key, silent=silent: silent  # type: ignore[misc] # its default
        with pytest.raises(LockLost):
            hold.release()
        assert hold._attempt.state is State.OVER
        assert not hold._is_open


def test_lost_is_lost(scene: Scene) -> None:
    """Whatever the stores would say: an extension asks none of them, and a release tells it."""
    hold = acquired(scene, ttl=100)
    hold._attempt.lease.lost = "as the test says"
    with pytest.raises(LockLost):
        hold.extend(200)
    assert [store.requests for store in scene.stores] == [[], [], []]
    with pytest.raises(LockLost):
        hold.release()
    assert free(scene) == [True] * 3


def test_an_extension_counts_only_leases_that_there_are(scene: Scene) -> None:
    """Not a store that has granted none, and is not asked; the error names it."""
    scene.stores[0].lose = lambda _verb, _key: True
    hold = acquired(scene, ttl=100)
    scene.stores[0].lose = lambda _verb, _key: False
    scene.stores[1].lose = lambda _verb, _key: True
    with pytest.raises(
        StoreUnavailable, match=r"because 2 of 3 stores did not answer: .*1: no answer; .*0: there is no lease\."
    ):
        hold.extend(200)
    assert scene.stores[0].requests == []
    scene.stores[1].lose = lambda _verb, _key: False
    hold.extend(200)  # what failed before does not count
    assert hold.remaining() > 150
    assert free(scene) == [False] * 3  # a store without a lease is asked, too
    hold.extend()
    assert hold._attempt.lease.ttl == 200


def test_an_extension_ends_with_the_last_answer(scene: Scene) -> None:
    """It is woken by each, and does not wait longer for a majority that there can't be; the hold is as it was."""
    hold = acquired(scene, ttl=100)
    scene.silent = set(scene.stores[:2])
    scene.step = TIMEOUT
    scene.stores[0].refused = lambda _verb, _key: True

    def refuse(_verb: str, _key: str) -> bool:
        raise ValueError("too long")

    scene.stores[1].lose = refuse  # as a store refuses bad input

    def answer() -> None:
        if len(scene.waits) > 1:
            scene.rung = 0
            scene.send()

    scene.meanwhile = answer
    with pytest.raises(StoreError, match=r"could not extend lock 'k', because 2 of 3 stores refused: .*too long"):
        hold.extend(200)
    assert len(scene.waits) == 2
    assert scene.rung == 2
    assert hold.remaining() < 100


def test_a_store_is_not_asked_again_once_the_lock_is_released(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release has come just before the request."""
    scene.stores[0].lose = lambda verb, _key: verb == "put"
    hold = acquired(scene, ttl=100)
    scene.stores[0].lose = lambda _verb, _key: False
    replace = Ballot.replace

    def released(ballot: Ballot, index: int, part: Attempt) -> bool:
        replaced = replace(ballot, index, part)
        hold.release()
        return replaced

    monkeypatch.setattr(Ballot, "replace", released)
    present(scene.watched[0].after_renewal)()
    assert scene.stores[0].requests == []
    assert free(scene) == [True] * 3


def test_a_release_that_was_begun_twice_ends_once(scene: Scene) -> None:
    """The second finds nothing to release."""
    hold = acquired(scene, ttl=100)
    scene.silent = set(scene.stores)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            hold.release()
    assert len(scene.unsent) == 6
    scene.send()
    assert [[verb for verb, _ in store.requests] for store in scene.stores] == [["invalidate"]] * 3
    assert free(scene) == [True] * 3


def test_a_loss_before_there_is_a_hold_is_told_when_there_is_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that, there is nobody to tell; and after a release there is nobody left."""
    ask = QuorumState._ask

    async def then_lose(state: QuorumState, attempt: Attempt, timeout: float | None, observed: None) -> bool:
        assert await ask(state, attempt, timeout, observed)
        scene.passed += 1000
        lose(*scene.watched)
        assert scene.lost == []
        return True

    with monkeypatch.context() as patch:
        patch.setattr(QuorumState, "_ask", then_lose)
        hold = acquired(scene, ttl=100, auto_renew=False)
    assert scene.lost == [hold._attempt]
    scene.lost.clear()
    with pytest.raises(LockLost):
        hold.release()
    scene.watched.clear()
    hold = acquired(scene)

    def lost(_verb: str, _key: str) -> bool:
        scene.passed += 1000
        for part in scene.watched:
            part.lease.on_loss[0]()
        return False

    scene.stores[2].lose = lost
    scene.lost.clear()
    hold.release()
    lose(*scene.watched)
    assert scene.lost == []


def lose(*parts: Attempt) -> None:
    for part in parts:
        part.lease.lost = "it was taken away"
        part.lease.on_loss[0]()
