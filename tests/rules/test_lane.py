"""What a QuorumLock does at one store: one job at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import pytest

from caslock.local.lane import Lane
from caslock.local.workers import run
from caslock.protocol.attempt import Attempt
from tests.support.scripted import Scripted, an_attempt


class Scene(Scripted):
    """A lane: the test runs what was started, when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Callable[[], Coroutine[object, object, None]]] = []
        self.lane = Lane()
        self.parts = [an_attempt(self) for _ in range(4)]
        self.did: list[int] = []

    def start(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self.started.append(work)

    def wants(self, number: int) -> None:
        self.lane.do(self.parts[number], self._work)

    async def _work(self, part: Attempt) -> None:
        self.did.append(self.parts.index(part))
        self.meanwhile()

    def meanwhile(self) -> None:
        """What happens as a job is done."""

    def go_on(self) -> None:
        while self.started:
            run(self.started.pop(0)())


@pytest.fixture
def scene() -> Scene:
    """Return a lane with four attempts."""
    return Scene()


def test_each_job_is_done_once_and_in_order(scene: Scene) -> None:
    """However often the lane was started before the first one began."""
    for number in (0, 1, 2):
        scene.wants(number)
    assert len(scene.started) == 3
    scene.go_on()
    assert scene.did == [0, 1, 2]
    scene.wants(3)
    scene.go_on()
    assert scene.did == [0, 1, 2, 3]


def test_nothing_is_done_beside_what_is_under_way(scene: Scene) -> None:
    """Who serves the lane does it afterwards, even if it was started once more."""
    scene.wants(0)
    (again,) = scene.started

    def others_come() -> None:
        del scene.meanwhile
        scene.wants(1)
        assert scene.started == []
        run(again())
        assert scene.did == [0]

    scene.meanwhile = others_come  # type: ignore[method-assign]
    scene.go_on()
    assert scene.did == [0, 1]


def test_what_nobody_refers_to_is_passed_over(scene: Scene) -> None:
    """It keeps no other from its turn."""
    for number in (0, 1, 2):
        scene.wants(number)
    for gone in (0, 1):
        scene.parts[gone] = scene.parts[3]
    scene.go_on()
    assert scene.did == [2]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_after_an_error_the_next_is_done(scene: Scene, error: type[BaseException]) -> None:
    """At once after that of a handler of the log, which may raise anything; else with the next that comes."""

    def fail() -> None:
        del scene.meanwhile
        raise error

    scene.wants(0)
    scene.wants(1)
    del scene.started[1:]
    scene.meanwhile = fail  # type: ignore[method-assign]
    with pytest.raises(error):
        scene.go_on()
    assert len(scene.started) == (error is ZeroDivisionError)
    scene.wants(2)
    scene.go_on()
    assert scene.did == [0, 1, 2]
