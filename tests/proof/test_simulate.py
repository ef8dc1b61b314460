"""The real protocol under a scheduler that loses, delays and repeats requests, and cancels and kills callers."""

from __future__ import annotations

import os
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from caslock.protocol.writes import Writes
from tests.proof.simulator import Plan, Run, Violation, drawn
from tests.proof.simulator.__main__ import Failure, main, seeds_from
from tests.proof.simulator.chance import simulate
from tests.proof.simulator.diagram import diagram
from tests.proof.simulator.shrink import replay, shrunk
from tests.proof.simulator.story import text

SEEDS = int(os.environ.get("CASLOCK_SEEDS", "20000"))


@pytest.fixture
def violation(monkeypatch: pytest.MonkeyPatch) -> Violation:
    """A long story that breaks a law, in a protocol that forgets which of its requests may still land."""

    def forget_what_was_sent(self: Writes, version: int) -> bool:
        del self, version
        return False

    monkeypatch.setattr(Writes, "may_land", forget_what_was_sent)
    for seed in range(500):
        try:
            simulate(seed)
        except Violation as violation:
            if len(violation.story) > 30:
                return violation
    message = "no seed fails"
    raise AssertionError(message)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, SEEDS // 20),
        pytest.param(SEEDS // 20, SEEDS // 10, marks=pytest.mark.long),
        *(pytest.param(SEEDS * n // 10, SEEDS * (n + 1) // 10, marks=pytest.mark.long) for n in range(1, 10)),
    ],
)
def test_no_interleaving_of_faults_breaks_a_law(first: int, last: int) -> None:
    """Whatever is lost, late, doubled, cancelled, stopped, killed or forgotten, each law holds."""
    steps, failure = seeds_from(first, last - first)
    assert failure is None, f"{failure.name}: {failure.story}"
    assert steps > 50 * (last - first)


def test_a_seed_replays_exactly() -> None:
    """The same seed tells the same story, and so do its recorded choices."""
    runs = []
    for _ in range(2):
        choices, story = record(31)
        runs.append((choices, story))
    assert runs[0] == runs[1]
    choices, story = runs[0]
    run = Run(drawn(31))
    for who, what in choices:
        run.do(who, what)
    run.close()
    assert text(run.story) == story
    assert len(choices) > 20


def record(seed: int) -> tuple[tuple[tuple[str, str], ...], str]:
    """Run a seed; returns its choices and its story."""
    made: list[Run] = []

    class Recorded(Run):
        def __init__(self, plan: Plan) -> None:
            super().__init__(plan)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.proof.simulator.chance.Run", Recorded)
        simulate(seed)
    choices, story = made[0].choices, made[0].story
    finished = next((n for n, (who, _) in enumerate(choices) if who.startswith("end")), len(choices))
    told = next((n for n, step in enumerate(story) if step.who.startswith("end")), len(story))
    return tuple(choices[:finished]), text(story[:told])


def test_every_kind_of_fault_happens() -> None:
    """Within some thousand seeds each fault strikes, keys are handed over, waiters woken, and batches sent."""
    seen: Counter[str] = Counter()
    for seed in range(1200):
        choices, story = record(seed)
        seen.update(what for _, what in choices)
        seen["forgets"] += story.count("the store forgets everything")
        seen["overtaken"] += story.count("is overtaken by")
        seen["handed over"] += sum(
            line.split()[1][0] != line.split("k=")[1][0]
            for line in story.splitlines()
            if ": put k=" in line and " at " in line and "+" not in line and "free" not in line
        )
        seen["woken"] += story.count("[is woken]")
        seen["together"] += story.count(" + l=")
        seen["full"] += story.count("[refused: full]")
    struck = {"lose", "lose reply", "late", "twice", "slow", "refuse", "unsent", "cancel", "abandon", "kill", "restart"}
    struck |= {
        "end",
        "overtaken",
        "lands",
        "woken for nothing",
        "forgets",
        "full",
        "handed over",
        "woken",
        "together",
        "stop 12",
        "stall 2",
    }
    assert not [what for what in sorted(struck) if seen[what] < 3], seen


def test_a_story_is_shrunk_and_still_fails(violation: Violation) -> None:
    """The shrunk story breaks the same law, is not longer, and replays exactly."""
    shortest = shrunk(violation)
    assert len(shortest.story) <= len(violation.story)
    assert len(shortest.choices) < len(violation.choices)
    again = replay(shortest.plan, shortest.choices)
    assert again is not None
    assert str(again) == str(shortest)
    assert str(shortest).startswith(shortest.law)
    assert "VIOLATION" in str(shortest)


def test_a_story_is_drawn(violation: Violation) -> None:
    """The picture is well-formed and has a lifeline for each client and the store, and a row for each step."""
    shortest = shrunk(violation)
    root = ET.fromstring(diagram(shortest))  # noqa: S314 - our own
    words = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "the store" in words
    assert {step.who[0] for step in shortest.story if step.who} <= set(words)
    assert shortest.law in words
    assert len(list(root.iter("{http://www.w3.org/2000/svg}g"))) == len(shortest.story)


def test_the_command_line_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tests.proof.simulator --seeds` says how many it ran."""
    assert main(["--seeds", "20", "--from", "7"]) == 0
    assert "20 seeds from 7" in capsys.readouterr().out


def test_a_failure_is_reported_with_its_seed(violation: Violation) -> None:
    """What CI prints of a failure is the seed, the shortest story, and a picture."""
    del violation
    _, failure = seeds_from(0, 500)
    assert isinstance(failure, Failure)
    assert failure.name.startswith("seed ")
    assert "choices: (" in failure.story
    assert failure.picture.startswith("<svg")
