"""The real protocol under a scheduler that loses, delays and repeats requests, and cancels and kills callers."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.proof.simulator import Plan, Run, drawn
from tests.proof.simulator.__main__ import main, seeds_from
from tests.proof.simulator.chance import simulate
from tests.proof.simulator.story import text

# They open nothing: what is collected as garbage meanwhile was left by a test before them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS = int(os.environ.get("CASLOCK_SEEDS", "10000"))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, max(1, SEEDS // 40)),
        pytest.param(max(1, SEEDS // 40), SEEDS // 10, marks=pytest.mark.long),
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
    choices, story = record(31)
    assert record(31) == (choices, story)
    run = Run(drawn(31))
    for who, what in choices:
        run.do(who, what)
    run.close()
    assert text(run.story) == story
    assert len(choices) > 20


def record(seed: int) -> tuple[tuple[tuple[str, str], ...], str]:
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


@pytest.mark.long
def test_every_kind_of_fault_happens() -> None:
    """Within some thousand seeds each fault strikes, keys are handed over, waiters woken, and batches sent."""
    struck = {"lose", "lose reply", "late", "twice", "slow", "refuse", "unsent", "cancel", "abandon", "kill", "restart"}
    struck |= {"overtaken", "lands", "woken for nothing", "forgets", "full", "handed over", "woken", "together"}
    struck |= {"stop 12", "stall 2"}
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
        if all(seen[what] >= 3 for what in struck):
            return
    pytest.fail(f"too seldom: {[what for what in sorted(struck) if seen[what] < 3]} of {seen}")


def test_the_command_line_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tests.proof.simulator --seeds` says how many it ran."""
    assert main(["--seeds", "20", "--from", "7"]) == 0
    assert "20 seeds from 7" in capsys.readouterr().out
