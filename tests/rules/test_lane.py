"""What a QuorumLock does at one store: one job after the other, each in the event loop of who wants it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine

import pytest

from caslock.local.lane import Lane
from caslock.local.workers import run
from caslock.protocol.attempt import Attempt
from tests.support.scripted import Scripted, an_attempt


class Loops(Scripted):
    """The event loops that jobs are started in: a test runs what was started, when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.here = "one"
        self.closed: set[object] = set()
        self.started: list[tuple[object, Callable[[], Coroutine[object, object, None]]]] = []
        self.lane = Lane()
        self.parts = [an_attempt(self) for _ in range(4)]
        self.did: list[tuple[int, object]] = []
        self.runs: object = None

    def me(self) -> object:
        return self.here

    def ended(self, caller: object) -> bool:
        return caller in self.closed

    def start(self, work: Callable[[], Coroutine[object, object, None]], caller: object = None) -> None:
        self.started.append((caller, work))

    def wants(self, number: int, *, where: str = "one") -> None:
        self.here = where
        self.lane.do(self.parts[number], self._work)

    async def _work(self, part: Attempt) -> None:
        assert self.runs is not None
        self.did.append((self.parts.index(part), self.runs))
        self.meanwhile()

    def meanwhile(self) -> None:
        """What happens as a job is done."""

    def go_on(self) -> None:
        while self.started:
            self.runs, work = self.started.pop(0)
            run(work())


@pytest.fixture
def loops() -> Loops:
    """Return two event loops."""
    return Loops()


def test_each_job_is_done_once_in_its_own_loop(loops: Loops) -> None:
    """However often it was started, and in the order in which they came."""
    loops.wants(0)
    loops.wants(1, where="two")
    loops.wants(2)
    assert [caller for caller, _ in loops.started] == ["one"] * 3  # the first is not under way yet
    loops.go_on()
    assert loops.did == [(0, "one"), (1, "two"), (2, "one")]


def test_nothing_is_done_beside_what_is_under_way(loops: Loops) -> None:
    """Unless its loop was closed, or nobody refers to its part any more: then its end starts nothing."""

    def others_come() -> None:
        started = len(loops.started)
        loops.wants(1)
        assert len(loops.started) == started
        del loops.meanwhile
        loops.closed.add("two")
        loops.wants(2)
        loops.go_on()
        assert loops.did == [(0, "two"), (1, "one"), (2, "one")]

    loops.wants(0, where="two")
    loops.meanwhile = others_come  # type: ignore[method-assign]
    loops.go_on()
    assert len(loops.did) == 3


def test_what_nobody_waits_for_keeps_no_other(loops: Loops) -> None:
    """A part that is gone, and a loop that was closed, are passed over."""
    loops.wants(0)
    loops.wants(1, where="two")
    loops.wants(2)
    loops.wants(3)
    loops.closed.add("two")
    loops.parts[2] = loops.parts[3]
    gc.collect()
    loops.go_on()
    assert loops.did == [(0, "one"), (2, "one")]  # the third is the fourth now


def test_after_an_error_the_next_is_done(loops: Loops) -> None:
    """As of a handler of the log, which may raise anything."""

    def fail() -> None:
        del loops.meanwhile
        raise ZeroDivisionError

    loops.wants(0)
    loops.wants(1)
    loops.meanwhile = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        loops.go_on()
    loops.go_on()
    assert loops.did == [(0, "one"), (1, "one")]
