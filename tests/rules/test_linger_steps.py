"""Single steps of a key that lingers, on a clock of the test; what is started beside the caller waits for the test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from caslock import Entry, Hold, Lock, observe
from caslock.local import linger
from caslock.local.threads import ThreadRuntime
from caslock.local.workers import run
from caslock.protocol.life import ASKING, HELD, LEAVING, LINGERING, OVER
from caslock.protocol.record import Observed, decode
from tests.rules.test_multilock_steps import Background, Timed, background, store
from tests.support.locations import held, present
from tests.support.recorder import Recorder

__all__ = ["background", "store"]  # fixtures

LINGER, TTL = 20.0, 90.0


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, timed: Timed) -> None:
        def put_when_absent(key: str, value: bytes, ttl: float, _timeout: float) -> Entry | None:
            return timed.put_if_version(key, value, 0, ttl)

        timed.put_when_absent = put_when_absent  # type: ignore[attr-defined] # it wakes who waits
        self.store = timed
        self.started: list[Callable[[], Coroutine[object, object, None]]] = []
        self.watched: list[object] = []
        monkeypatch.setattr(ThreadRuntime, "start", lambda _runtime, work: self.started.append(work))
        monkeypatch.setattr(ThreadRuntime, "watch", lambda _runtime, attempt: self.watched.append(attempt))
        self.lock = Lock(timed, "k", ttl=TTL, linger=LINGER)
        self.state = self.lock._state
        self.hold: Hold = held(self.lock)
        self.attempt = self.hold._attempt
        self.watched.clear()
        timed.requests.clear()

    def resumed(self) -> bool:
        """Whether the next acquire takes no request; it is released, as the first."""
        self.store.requests.clear()
        hold = present(self.lock.acquire())
        hold.release()
        return self.store.requests == []


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, store: Timed) -> Scene:
    """Return one."""
    return Scene(monkeypatch, store)


def test_a_release_that_lingers_leaves_nobody_who_holds_it(scene: Scene) -> None:
    """It is looked at when its time is over, and nobody is told of its end."""
    scene.hold.release()
    assert (scene.attempt.state, scene.store.requests, scene.watched) == (LINGERING, [], [scene.attempt])
    assert (scene.state.committed, scene.attempt.levels, scene.attempt.lease.reported) == ({}, [], True)
    assert scene.attempt.lease.due == scene.attempt.lingers_until
    assert scene.attempt in linger.lingering


def test_observers_are_told_how_long_each_hold_has_lasted(scene: Scene) -> None:
    """From its own acquire; one that takes no request takes no time."""
    told = Recorder()
    stop = observe(told)
    scene.store.passed += 3.0
    try:
        scene.hold.release()
        assert scene.resumed()
    finally:
        stop()
    seconds = [(name, event.seconds) for name, event in told.events]
    assert seconds == [("released", 3.0), ("acquired", 0.0), ("released", 0.0)]


def test_a_waiter_that_came_as_the_key_began_to_linger_gets_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It queued before it could see that the key lingers, so the release hands the key over in one request."""
    other = Lock(scene.store, "k")._state.begin(Hold)

    def watch(_runtime: ThreadRuntime, _attempt: object) -> None:
        scene.state._queue.enter(other._attempt, scene.state.runtime.now(), join=True)

    monkeypatch.setattr(ThreadRuntime, "watch", watch)
    scene.hold.release()
    (work,) = scene.started
    run(work())
    assert scene.store.requests == [("put", "k")]
    assert other._attempt in scene.state._queue.inside(scene.state.runtime.now())
    assert other._attempt.is_in(decode(present(scene.store.get("k")).value))


@pytest.mark.parametrize(
    "what", ["inherited", "leaving", "too late", "at that moment", "lost", "met", "extended", "wanted"]
)
def test_what_does_not_linger(scene: Scene, what: str) -> None:
    """Its release is one."""
    if what == "inherited":
        scene.hold._generation -= 1
    elif what == "leaving":
        scene.attempt.begin_release()
    elif what == "too late":
        scene.store.passed += TTL
    elif what == "at that moment":
        scene.attempt.kept_until = scene.state.runtime.now()
    elif what == "lost":
        scene.attempt.lease.lost = "as the test says"
    elif what == "met":
        scene.attempt.contend().meet(Observed(9, scene.attempt.lease.record), scene.state.runtime.now())
    elif what == "extended":
        scene.attempt.lease.ttl += 1
    else:
        scene.state._queue._others_until = scene.state.runtime.now() + 1
    assert not linger.keep(scene.state, scene.hold)
    assert scene.attempt.state in {HELD, LEAVING}
    assert scene.attempt not in linger.lingering


def test_who_has_looked_and_met_nobody_lets_it_linger(scene: Scene) -> None:
    """To have asked the store again is not to have met another process."""
    scene.attempt.contend()
    assert linger.keep(scene.state, scene.hold)


def test_it_is_resumed_before_its_time_is_over(scene: Scene) -> None:
    """Not at that moment."""
    scene.hold.release()
    scene.store.passed += LINGER - 0.01
    assert scene.resumed()
    scene.store.passed += 0.01
    assert not linger.resume(scene.state, scene.state.begin(Hold))


def test_it_is_not_resumed_while_somebody_waits(scene: Scene) -> None:
    """Who waits has it first; what was lost is not resumed, nor told."""
    scene.hold.release()
    other = Lock(scene.store, "k")._state.begin(Hold)
    scene.state._queue.waiting.append(other._attempt)
    assert not linger.resume(scene.state, scene.state.begin(Hold))
    scene.state._queue.waiting.clear()
    scene.attempt.lease.lost = "as the test says"
    assert not linger.resume(scene.state, scene.state.begin(Hold))
    assert scene.attempt.lease.reported
    scene.lock.force_release()
    held(scene.lock)
    assert scene.attempt.state is LINGERING  # until its time is over: that hides no other hold
    assert scene.state.re_enter(scene.state.begin(Hold))


def test_one_of_two_threads_resumes_it(scene: Scene) -> None:
    """The other one began while it lingered, and begins anew."""
    scene.hold.release()
    first, second = (scene.state.begin(Hold) for _ in range(2))
    assert first._attempt is second._attempt is scene.attempt
    assert linger.resume(scene.state, first)
    with ThreadPoolExecutor(1) as threads:
        assert not threads.submit(linger.resume, scene.state, second).result()
        assert not threads.submit(scene.state.re_enter, second).result()
    assert second._attempt is not scene.attempt
    assert scene.attempt.levels == [first]
    assert scene.attempt not in linger.lingering  # only its hold keeps it alive, and the renewer looks at it anew
    assert scene.watched == [scene.attempt, scene.attempt]
    assert scene.state.re_enter(scene.state.begin(Hold))


def test_it_is_given_up_once(scene: Scene) -> None:
    """By one request; nothing is left of it in this process, and who began meanwhile begins anew."""
    scene.hold.release()
    begun = scene.state.begin(Hold)
    for _ in range(2):
        linger.end(scene.attempt)
    for work in scene.started:
        run(work())
    assert (len(scene.started), scene.store.requests) == (2, [("invalidate", "k")])
    assert scene.attempt.state is OVER
    assert scene.attempt not in linger.lingering
    assert (scene.state._held, scene.state._queue._inside) == ({}, [])
    linger.end(scene.attempt)
    assert len(scene.started) == 2
    assert not scene.state.re_enter(begun)
    assert begun._attempt.state is ASKING


def test_a_child_gives_up_nothing(scene: Scene) -> None:
    """The key is its parent's."""
    scene.hold.release()
    scene.state.generation -= 1
    run(linger.give_up(scene.state, scene.attempt))
    assert scene.store.requests == []


@pytest.mark.parametrize("how", ["lose", "refused"])
def test_what_cannot_be_given_up_is_left_to_the_background(scene: Scene, background: Background, how: str) -> None:
    """Nobody waits for that: the next one in this process may try."""
    scene.hold.release()
    setattr(scene.store, how, lambda _verb, _key: True)
    run(linger.give_up(scene.state, scene.attempt))
    assert (background.left, scene.state._held, scene.state._queue._inside) == (1, {}, [])
    assert scene.attempt not in linger.lingering
