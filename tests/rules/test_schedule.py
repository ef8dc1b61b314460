"""When each lease is looked at, what a look shows, and how many requests renew what is due."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import pytest

from caslock.local import linger
from caslock.local import schedule as scheduling
from caslock.local.schedule import MOST_RENEWING, Due, Renewals, Schedule, end
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.store import Entry
from tests.support.scripted import OURS, START, Scripted, held, run

TTL = 120.0
"""Seconds: what is due within one second is renewed together."""

DUE, ROUNDED, LATE, END = 40.7, 40.0, 78.0, 118.8
"""Seconds: when a lease is due, when it is looked at, when its renewal is late, and when it ends."""


def leased(due: float = DUE, end: float = END, runtime: Scripted | None = None) -> Attempt:
    """Return an attempt whose lease is due at one moment, and ends at another."""
    attempt = held(runtime or Scripted())
    attempt.lease.ttl, attempt.lease.due, attempt.lease.deadline = TTL, due, end
    return attempt


def nothing() -> Due:
    return Due([], [], [])


def test_a_lease_that_is_not_renewed_is_looked_at_three_times() -> None:
    """When it is due, when that is late, and at its end; each time once, and not a moment before."""
    schedule, attempt = Schedule(), leased()
    assert schedule.next == NEVER
    assert schedule.add(attempt) == DUE
    assert schedule.next == attempt.scheduled == ROUNDED
    assert schedule.look(39.9) == nothing()
    assert schedule.look(ROUNDED) == Due([], [attempt], [])
    assert schedule.next == LATE
    assert schedule.look(77.9) == nothing()
    assert schedule.look(LATE) == Due([], [], [attempt])
    assert schedule.next == END
    assert len(schedule) == 1
    assert schedule.look(END) == Due([attempt], [], [])
    assert schedule.next == NEVER
    assert len(schedule) == 0


def test_a_lease_that_is_looked_at_late_is_renewed_and_told_at_once() -> None:
    """If the machine was suspended, say, the renewal is asked for and late at one time, and its end comes next."""
    for now in (LATE, 90.0):
        schedule, attempt = Schedule(), leased()
        schedule.add(attempt)
        assert schedule.look(now) == Due([], [attempt], [attempt])
        assert schedule.next == END
    schedule, attempt = Schedule(), leased()
    schedule.add(attempt)
    assert schedule.look(200.0) == Due([attempt], [], [])


def test_a_lease_that_is_renewed_no_more_is_looked_at_when_it_ends() -> None:
    """Its end is not rounded: it is neither told too early, nor asked for."""
    schedule, attempt = Schedule(), leased(due=END)
    assert schedule.add(attempt) == END
    assert schedule.look(118.7) == nothing()
    assert schedule.look(END) == Due([attempt], [], [])


def test_only_the_newest_look_at_a_lease_counts() -> None:
    """After a renewal the earlier look at it shows nothing, and nothing of it is left."""
    schedule, attempt = Schedule(), leased()
    schedule.add(attempt)
    schedule.look(ROUNDED)
    attempt.lease.due, attempt.lease.deadline = 80.7, 158.8
    assert schedule.add(attempt) == 80.7
    assert schedule.look(79.0) == nothing()
    assert (len(schedule), schedule.next) == (1, 80.0)
    assert schedule.look(80.0) == Due([], [attempt], [])


@pytest.mark.parametrize("asked", [False, True])
def test_a_lease_that_was_renewed_meanwhile_is_looked_at_when_it_is_due_again(*, asked: bool) -> None:
    """Nobody has said so: the look itself finds it, before or after the renewal was asked for."""
    schedule, attempt = Schedule(), leased()
    schedule.add(attempt)
    if asked:
        schedule.look(ROUNDED)
    attempt.lease.due, attempt.lease.deadline = 80.7, 158.8
    assert schedule.look(LATE) == nothing()
    assert schedule.next == 80.0
    assert schedule.look(80.0) == Due([], [attempt], [])
    assert schedule.next == 118.0


def test_what_lingers_is_looked_at_when_its_time_is_over() -> None:
    """And not renewed meanwhile."""
    schedule, attempt = Schedule(), leased()
    attempt.state, attempt.kept_until = State.LINGERING, 20.0
    attempt.lease.rest(20.0)
    assert schedule.add(attempt) == 20.0
    assert schedule.look(19.9) == nothing()
    assert schedule.next == 20.0
    attempt.kept_until = 30.0
    assert schedule.look(20.0) == nothing()
    assert schedule.next == 30.0
    assert schedule.look(30.0) == Due([attempt], [], [])


@pytest.mark.parametrize("now", [END, END - 0.1])
def test_what_lingers_is_given_up_and_what_is_held_is_lost(now: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """But what was held again since the look goes on until its own end."""
    given_up, lost = list[object](), list[str]()
    monkeypatch.setattr(linger, "end", given_up.append)
    attempt = leased()
    monkeypatch.setattr(attempt.runtime, "now", lambda: now)
    monkeypatch.setattr(type(attempt), "lose", lambda _attempt, why: lost.append(why))
    end(attempt)
    assert (given_up, len(lost)) == ([], int(now == END))
    attempt.state = State.LINGERING
    end(attempt)
    assert (given_up, len(lost)) == ([attempt], int(now == END))


@pytest.mark.parametrize("how", ["released", "lost", "forgotten"])
def test_what_is_held_no_longer_is_not_looked_at(how: str) -> None:
    """A release, a loss, or an attempt that nothing refers to."""
    schedule, attempts = Schedule(), [leased(), leased()]
    for attempt in attempts:
        schedule.add(attempt)
    del attempt
    if how == "forgotten":
        del attempts[0]
    elif how == "released":
        attempts[0].state = State.LEAVING
    else:
        attempts[0].lease.lost = "as the test says"
    assert len(schedule) == 2
    assert schedule.look(ROUNDED) == Due([], attempts[-1:], [])
    assert len(schedule) == 1


def test_short_holds_do_not_pile_up() -> None:
    """What is released before the next look leaves its place to the next hold, or is forgotten at that look."""
    schedule, runtime = Schedule(), Scripted()
    for _ in range(100):
        schedule.add(leased(runtime=runtime))  # gone at once
    assert len(schedule) < 10
    released = [leased() for _ in range(20)]
    for attempt in released:
        schedule.add(attempt)
        attempt.state = State.LEAVING
    assert schedule.next == NEVER
    assert len(schedule) == 0


def test_longer_holds_do_not_pile_up_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """When more is sorted in than twice what was alive, the dead are forgotten at the next look, and nothing else."""
    monkeypatch.setattr(scheduling, "_MOST_DEAD", 4)
    schedule, alive = Schedule(), [leased(due=number) for number in (70.0, 50.0, 60.0)]
    dead = [leased(due=41.0)]
    for attempt in (*alive, *dead):
        schedule.add(attempt)
    assert (schedule.next, len(schedule)) == (41.0, 4)
    dead.clear()
    del attempt
    assert (schedule.next, len(schedule)) == (41.0, 4)
    fifth = leased(due=80.0)
    schedule.add(fifth)
    assert (schedule.next, len(schedule)) == (50.0, 4)
    dead = [leased(due=45.0) for _ in range(4)]
    for attempt in dead:
        schedule.add(attempt)
    assert schedule.next == 45.0
    dead.clear()
    del attempt
    assert (schedule.next, len(schedule)) == (45.0, 8)  # twice as many as were alive
    schedule.add(alive[0])
    assert (schedule.next, len(schedule)) == (50.0, 5)  # one of them twice
    looks = [schedule.look(moment).renew for moment in (50.0, 60.0, 70.0, 80.0)]
    assert looks == [[alive[1]], [alive[2]], [alive[0]], [fifth]]


class Guarded(Renewals):
    """Renewals whose threads touch nothing that they share without the guard."""

    @property  # type: ignore[override] # what it keeps is a plain attribute
    def _due(self) -> object:
        assert self._guard._is_owned()  # type: ignore[attr-defined] # `threading.Condition` asks this, too
        return self.__dict__["due"]

    @_due.setter
    def _due(self, value: object) -> None:
        self.__dict__["due"] = value

    @property
    def _requests(self) -> int:
        assert self._guard._is_owned()  # type: ignore[attr-defined] # `threading.Condition` asks this, too
        requests: int = self.__dict__["requests"]
        return requests

    @_requests.setter
    def _requests(self, value: int) -> None:
        self.__dict__["requests"] = value


class Scene:
    def __init__(self, *answers: Entry | BaseException | None, count: int, batches: bool = False) -> None:
        self.script = Scripted(*answers)
        self.script.takes = 0.0
        self.script.batching = self.script if batches else None
        self.script.renewing = self.script  # type: ignore[attr-defined] # of a runtime
        self.started: list[tuple[Coroutine[object, object, None], Callable[[], object]]] = []
        self.watched: list[Attempt] = []
        self.renewals = Guarded(lambda *job: self.started.append(job), self.watched.append, batches=batches)
        self.attempts = [held(self.script, key=f"key {number}") for number in range(count)]
        self.script.clock = START + 1

    def run(self) -> None:
        work, done = self.started.pop(0)
        try:
            run(work)
        finally:
            done()

    def run_all(self) -> None:
        while self.started:
            self.run()

    def kill(self) -> None:
        """End the oldest thread before it has done anything, as at the end of an event loop."""
        work, done = self.started.pop(0)
        work.close()
        done()


def test_no_thread_is_started_for_nothing() -> None:
    """For each lease that is due there is one, and 16 of them at the most."""
    scene = Scene(*[Entry(OURS, 6)] * 40, count=40)
    scene.renewals.add([])
    assert not scene.started
    scene.renewals.add(scene.attempts[:2])
    assert len(scene.started) == 2
    scene.run()  # it renews both
    assert scene.watched == scene.attempts[:2]
    scene.run_all()
    assert len(scene.watched) == 2
    scene.renewals.add(scene.attempts[2:20])
    scene.renewals.add(scene.attempts[20:])
    assert len(scene.started) == MOST_RENEWING
    scene.run_all()
    assert scene.watched == scene.attempts


def test_a_thread_that_ends_early_is_replaced() -> None:
    """What a cancelled task has left is renewed by another one."""
    scene = Scene(Entry(OURS, 6), count=1)
    scene.renewals.add(scene.attempts)
    scene.kill()
    assert len(scene.started) == 1
    scene.run()
    assert scene.watched == scene.attempts
    assert not scene.started


def test_what_is_held_no_longer_is_not_renewed() -> None:
    """It was released, lost or forgotten while it waited for a thread."""
    scene = Scene(Entry(OURS, 6), Entry(OURS, 6), count=4, batches=True)
    scene.renewals.add(scene.attempts)
    assert len(scene.started) == 1  # all four travel together
    scene.attempts[0].state = State.LEAVING
    scene.attempts[1].lease.lost = "as the test says"
    del scene.attempts[2]
    scene.run()
    assert scene.watched == [scene.attempts[2]]
    assert scene.script.verbs == ["put"]


def test_a_cluster_that_takes_no_batch_gets_single_requests() -> None:
    """Each of the leases is then renewed by itself, at one time."""
    scene = Scene(None, Entry(OURS, 6), Entry(OURS, 6), count=2, batches=True)
    scene.renewals.add(scene.attempts)
    scene.run()
    assert len(scene.started) == 2
    scene.run_all()
    assert scene.script.verbs == ["put_many", "put", "put"]
    assert scene.watched == [*scene.attempts, *scene.attempts]


def test_leases_whose_renewal_has_failed_are_watched_on() -> None:
    """Whatever it has raised."""
    scene = Scene(KeyboardInterrupt(), count=3, batches=True)
    scene.renewals.add(scene.attempts)
    scene.attempts[0].mutex.acquire(blocking=False)  # an extension is under way
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert scene.watched == scene.attempts
