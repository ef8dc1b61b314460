"""The exhaustive search: within its bounds every state is looked at, and none twice.

A coroutine cannot be copied, so a state is reached by making its choices again from the start.  A search goes on from
each new state by its first choice, and keeps the others for later: those with fewer faults, and shorter ones, first.

Two things are left out safely.  A request that gets no answer is applied at any later step or never: that covers the
loss of the request and of the reply.  What only one process can notice (the end of a sleep, say) is done before
anything at the store, because no other process can tell.  Threads race at each line in turn: the next line is looked at
when a race has struck at the one before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tests.proof.simulator.fate import faults
from tests.proof.simulator.fingerprint import fingerprint
from tests.proof.simulator.race import next_race, races
from tests.proof.simulator.run import Run
from tests.proof.simulator.waits import Asking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.proof.simulator.plan import Plan
    from tests.proof.simulator.runtime import Flow
    from tests.proof.simulator.story import Choice


class Bounds(NamedTuple):
    faults: int = 2
    states: int = 100_000


class Explored(NamedTuple):
    states: int
    steps: int
    runs: int
    complete: int
    """With up to how many faults nothing was left to look at; -1: not even without any."""

    def __str__(self) -> str:
        return f"{self.states:,} states in {self.steps:,} steps and {self.runs:,} runs; all with {self.complete} faults"


class _Path(NamedTuple):
    before: _Path | None
    choice: Choice

    def choices(self) -> list[Choice]:
        """All of them, from the start."""
        found = []
        path: _Path | None = self
        while path is not None:
            found.append(path.choice)
            path = path.before
        return found[::-1]

    def take(self, run: Run, way: deque[_Path | None]) -> None:
        """Take the choices of a path; if it ends with a race, the same race a line later is another path."""
        for who, what in self.choices():
            run.do(who, what)
        if run.raced:
            way.append(_Path(self.before, next_race(self.choice, run.raced)))


def explore(plan: Plan, bounds: Bounds) -> Explored:
    """Look at every state that `plan` leads to with so many faults, or at as many; raises `Violation`."""
    seen: set[int] = set()
    ways: list[deque[_Path | None]] = [deque() for _ in range(bounds.faults + 1)]
    ways[0].append(None)
    steps = runs = 0
    while len(seen) < bounds.states:
        used = next((number for number, way in enumerate(ways) if way), None)
        if used is None:
            break
        path = ways[used].popleft()
        run = Run(plan)
        runs += 1
        try:
            if path is not None:
                path.take(run, ways[used])
            while True:
                steps += 1
                state = fingerprint(run)
                if state in seen:
                    break
                seen.add(state)
                if run.over:
                    run.finish()
                    break
                first: Choice | None = None
                for choice, faulty in choices(run, faulty=used < bounds.faults):
                    if not faulty and first is None:
                        first = choice
                    else:
                        ways[used + faulty].append(_Path(path, choice))
                if first is None:
                    run.go_on()  # raises if a client waits for ever
                    break
                path = _Path(path, first)
                run.do(*first)
                run.check_length()
        finally:
            run.close()
    left = next((number for number, way in enumerate(ways) if way), len(ways))
    return Explored(len(seen), steps, runs, left - 1)


def choices(run: Run, *, faulty: bool) -> Iterator[tuple[Choice, bool]]:
    """All that may happen, and whether it is a fault."""
    ready = _ready(run)
    for flow in ready:
        yield (flow.name, "go"), False
    if not ready and run.moments():
        yield ("time", "1"), False
    for late in run.late:
        yield (late.name, "lands"), False
    if faulty:
        for choice in _faults(run):
            yield choice, True
        if ready and "stall" in run.plan.faults and run.moments(every=True):
            yield ("time", "stall 1"), True
        if "race" in run.plan.faults:
            for choice in races(run):
                yield choice, True


def _ready(run: Run) -> list[Flow]:
    """Who can go on: of a process that has nothing under way, if there is one, else everybody."""
    ready = run.ready()
    for process in run.processes:
        mine = [flow for flow in ready if flow.client.process is process]
        if mine and not any(isinstance(flow.waits, Asking) for flow in mine):
            return mine
    return ready


def _faults(run: Run) -> Iterator[Choice]:
    allowed = run.plan.faults
    for flow in run.flows.values():
        yield from ((flow.name, what) for what in faults(flow) if what in allowed)
    if "kill" in allowed:
        yield from ((process.name, "kill") for process in run.processes if process.alive)
    yield from (("store", what) for what in ("restart", "full 15", "forget") if what.split()[0] in allowed)
