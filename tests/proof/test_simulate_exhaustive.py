"""The exhaustive search of a small scene is complete, and finds planted bugs."""

from __future__ import annotations

import random
from itertools import count

import pytest

from caslock.local.queue import LocalQueue
from caslock.protocol.lease import Lease
from tests.proof.simulator import Plan, Run, Violation
from tests.proof.simulator.explore import Bounds, choices, explore
from tests.proof.simulator.fingerprint import fingerprint
from tests.proof.simulator.scenes import SCENES
from tests.proof.simulator.shrink import kind_of, shrunk
from tests.proof.simulator.story import Choice
from tests.proof.test_laws_bite import LEAVE_NOTHING, give_up_without_looking
from tests.proof.test_simulate_bites import (
    believe_from_the_reply,
    give_up_but_for_successors,
    leave_in_silence,
    never_leave,
)
from tests.support import protocol_functions as protocol

# They open nothing: what is collected as garbage meanwhile was left by a test before them.
warns = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
pytestmark = [pytest.mark.long, warns, pytest.mark.timeout(3_000)]  # one took over 300 s beside 15 other processes

SMALL = ("two tasks, briefly", "two threads of one Lock", "two threads, racing", "two threads of one Lock, racing")

LARGEST = "MultiLocks and Locks of two processes, waking"
"""It has six clients: more than 60,000 states without any fault."""

EACH = 4_900
"""States of each of the other 31 scenes: together 152,000."""


@pytest.mark.parametrize("name", SMALL)
def test_a_small_scene_holds_under_any_two_faults(name: str) -> None:
    """Every state that two faults can lead to is looked at, and no law is broken."""
    found = explore(SCENES[name], Bounds(faults=2, states=100_000))
    print(found)  # noqa: T201 - how many states CI looks at is to be seen
    assert found.complete == 2
    assert found.states > 2_000


@pytest.mark.parametrize("name", [name for name in SCENES if name not in SMALL])
def test_a_scene_holds(name: str) -> None:
    """No state breaks a law: of those with the fewest faults, as many as there is time for."""
    found = explore(SCENES[name], Bounds(faults=2, states=EACH))
    print(found)  # noqa: T201 - as above
    assert found.states >= EACH
    assert found.complete >= 0 or name == LARGEST


def test_a_planted_bug_that_needs_two_faults_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that counts from its reply: one fault does no harm, with two the search finds it."""
    scene = SCENES["two threads of one Lock"]
    monkeypatch.setattr(Lease, "believe", believe_from_the_reply)
    assert explore(scene, Bounds(faults=1, states=60_000)).complete == 1
    with pytest.raises(Violation) as caught:
        explore(scene, Bounds(faults=2, states=60_000))
    shortest = shrunk(caught.value)
    assert len(shortest.story) <= len(caught.value.story)
    assert "believes" in shortest.law


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        LEAVE_NOTHING,
        (protocol, "give_up", give_up_without_looking),
        (protocol, "give_up", give_up_but_for_successors),
        (LocalQueue, "leave", never_leave),
        (LocalQueue, "leave", leave_in_silence),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_bug_is_hidden_by_the_states_that_are_left_out(
    owner: object, name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found where every path is followed to its end is found where no state is looked at twice."""
    found = []
    numbers = count()
    monkeypatch.setattr(owner, name, mutant)
    for key in (fingerprint, lambda _: next(numbers)):
        monkeypatch.setattr("tests.proof.simulator.explore.fingerprint", key)
        with pytest.raises(Violation) as caught:
            explore(SCENES[SMALL[0]], Bounds(faults=1, states=50_000))
        found.append(kind_of(shrunk(caught.value)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", SCENES)
def test_states_with_one_fingerprint_go_on_alike(name: str) -> None:
    """Whatever two paths lead to one fingerprint, the same may happen next, and leads to the same again."""
    plan = SCENES[name]
    chance = random.Random(name)
    met: dict[int, set[tuple[Choice, ...]]] = {}
    for _ in range(60):
        walk(plan, chance, met)
    twice = [sorted(paths)[:2] for paths in met.values() if len(paths) > 1]
    for one, other in chance.sample(twice, min(60, len(twice))):
        assert successors(plan, one) == successors(plan, other), (one, other)
    assert len(twice) > 5


def walk(plan: Plan, chance: random.Random, met: dict[int, set[tuple[Choice, ...]]]) -> None:
    """Go somewhere, and take note of what was met on the way."""
    run = Run(plan)
    try:
        while not run.over and len(run.choices) < 40:
            met.setdefault(fingerprint(run), set()).add(tuple(run.choices))
            found = list(choices(run, faulty=chance.random() < 0.1))
            run.do(*chance.choice(found)[0])
    finally:
        run.close()


def successors(plan: Plan, path: tuple[Choice, ...]) -> dict[Choice, int]:
    run = arrive(plan, path)
    found = [choice for choice, _ in choices(run, faulty=True)]
    run.close()
    after = {}
    for choice in found:
        run = arrive(plan, (*path, choice))
        after[choice] = fingerprint(run)
        run.close()
    return after


def arrive(plan: Plan, path: tuple[Choice, ...]) -> Run:
    run = Run(plan)
    for choice in path:
        run.do(*choice)
    return run


def test_a_value_of_an_unknown_kind_is_refused() -> None:
    """What the fingerprint does not know could tell two states apart: it is not left out in silence."""
    run = Run(SCENES[SMALL[0]])
    next(iter(run.states)).local_queue.waiting.append(object())  # type: ignore[arg-type] # nobody waits like this
    with pytest.raises(TypeError, match="does not know what a object is"):
        fingerprint(run)
    run.close()
