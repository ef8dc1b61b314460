"""A random run: chance makes every choice, and one seed makes the same choices."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.proof.simulator.fate import faults
from tests.proof.simulator.plan import drawn
from tests.proof.simulator.race import rivals
from tests.proof.simulator.run import Run

if TYPE_CHECKING:
    from tests.proof.simulator.story import Choice

TENSE = 0.3
"""At which share of the steps something goes wrong while somebody waits for a mutex or cleans up."""

_STOPS = ("0.5", "2", "12")  # seconds

_FULL = ("0.5", "4", "15")  # seconds


def simulate(seed: int) -> int:
    """Run one seed; returns the number of steps, raises `Violation` with the story."""
    return played(Run(drawn(seed)), seed)


def played(run: Run, seed: int) -> int:
    """Take the steps that a seed draws, and come to an end; returns their number, raises `Violation`."""
    try:
        by_chance(run, random.Random(~seed))
    finally:
        run.close()
    return len(run.choices)


def by_chance(run: Run, chance: random.Random) -> None:
    """Take steps by chance until nothing is left to happen."""
    plan = run.plan
    while not run.over:
        run.check_length()
        if chance.random() < (TENSE if run.tense else plan.share) and _trouble(run, chance):
            continue
        _go_on(run, chance)
    run.finish()


def _go_on(run: Run, chance: random.Random) -> None:
    ready = [flow.name for flow in run.ready()]
    if run.late and chance.random() < 0.15:
        run.do(chance.choice(run.late).name, "lands")
    elif ready:
        run.do(chance.choice(ready), "go")
    elif not run.over:
        run.wait()


def _trouble(run: Run, chance: random.Random) -> bool:
    """Let something go wrong; False where it can't now."""
    lot = chance.random()
    if lot < 0.85:
        found = (_race(run, chance) if lot < 0.15 else None) or _of_a_flow(run, chance)
    elif lot < 0.95:
        count = min(len(run.moments(every=True)), 3)
        found = ("time", f"stall {chance.randint(1, count)}") if count else None
    elif lot < 0.98:
        process = chance.choice(run.processes)
        what = "kill" if lot > 0.97 else f"stop {chance.choice(_STOPS)}"
        found = (process.name, what) if process.alive else None
    else:
        found = ("store", chance.choice(("restart", "forget", f"full {chance.choice(_FULL)}")))
    if found is None or not _allowed(found[1], run):
        return False
    run.do(*found)
    return True


def _of_a_flow(run: Run, chance: random.Random) -> Choice | None:
    flows = list(run.flows.values())
    cleaning = [flow for flow in flows if flow.undoes or flow.struck]
    if cleaning and chance.random() < 0.3:
        flow = chance.choice(cleaning)
        return flow.name, chance.choice([what for what in faults(flow) if what == "cancel"] or ["go"])
    if not flows:
        return None
    flow = chance.choice(flows)
    found = [what for what in faults(flow) if what in run.plan.faults]
    if not found:
        return None
    what = chance.choice(found)
    return None if what == "abandon" and chance.random() < 0.8 else (flow.name, what)


def _race(run: Run, chance: random.Random) -> Choice | None:
    ready = run.ready()
    if not ready:
        return None
    flow = chance.choice(ready)
    others = rivals(run, flow)
    if not others:
        return None
    line = int(2 ** chance.uniform(0, 6))
    return flow.name, f"race {line} {chance.choice(others).name} {chance.choice(('go', 'cancel'))}"


def _allowed(what: str, run: Run) -> bool:
    return what in run.plan.faults or what.split(maxsplit=1)[0] in {"race", "stall", "stop", "full"} & run.plan.faults
