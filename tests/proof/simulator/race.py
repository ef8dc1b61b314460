"""Races of threads: between any two lines of one thread's step, another thread may take its own.

A thread that holds a guard is left alone, because the other one would wait for it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from caslock.local import lock_state as lockstate
from caslock.local import queue as local_queue
from caslock.protocol import acquire, batch, hand_over, release, renew, transfer, withdraw, writes
from tests.proof.simulator.fate import befall, faults
from tests.proof.simulator.story import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

    from _typeshed import TraceFunction

    from tests.proof.simulator.run import Run
    from tests.proof.simulator.runtime import Flow
    from tests.proof.simulator.story import Choice

RACED: Final = frozenset(
    str(Path(module.__file__ or ""))
    for module in (acquire, batch, hand_over, release, renew, transfer, withdraw, writes, lockstate, local_queue)
)
"""The files whose lines are counted: all that threads of one process have in common is touched there."""


def rivals(run: Run, flow: Flow) -> list[Flow]:
    """Name who may overtake a thread: the others of its process."""
    process = flow.client.process
    if not process.threads:
        return []
    return [other for other in run.flows.values() if other.client.process is process and other is not flow]


def race(run: Run, flow: Flow, what: str) -> int:
    """Let a flow go on and ("race 7 B cancel") another one in its midst; returns the line before which that was."""
    _, line, name, then = what.split()

    def act() -> None:
        other = run.flows.get(name)
        if other is None or not (then in faults(other) or (then == "go" and other in run.ready())):
            return
        run.tell(flow.name, f"is overtaken by {name}")
        current = run.current
        with suppress(Violation):  # the run keeps it
            run.judge.changed()
            befall(run, other, then)
        run.current = current

    with _Race(run, int(line), act) as running:
        befall(run, flow, "go")
    return running.struck_at


def races(run: Run) -> Iterator[Choice]:
    """Name the races that may be, each at its first line."""
    ready = run.ready()
    for flow in ready:
        for other in rivals(run, flow):
            if other in ready:
                yield flow.name, f"race 1 {other.name} go"
            if "cancel" in faults(other) and "cancel" in run.plan.faults:
                yield flow.name, f"race 1 {other.name} cancel"


def next_race(choice: Choice, struck_at: int) -> Choice:
    """Name the same race a line later."""
    who, what = choice
    _, _, other = what.split(maxsplit=2)
    return who, f"race {struck_at + 1} {other}"


class _Race:
    """A step in whose midst something is done."""

    def __init__(self, run: Run, line: int, act: Callable[[], None]) -> None:
        """Do `act` just before the line of that number, counted from 1, or the next where nobody has a guard."""
        self.struck_at = 0
        self._locks = [lock for state in run.states for lock in state.guards]
        self._line = line
        self._lines = 0
        self._act = act

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        del event, argument
        return self._pass if frame.f_code.co_filename in RACED else None

    def _pass(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        del frame, argument
        if event == "line":
            self._lines += 1
            guarded = any(lock._is_owned() for lock in self._locks)  # type: ignore[attr-defined] # typeshed knows it not
            if self._lines >= self._line and not guarded:
                self.struck_at = self._lines
                sys.settrace(self._before)
                self._act()
                return None
        return self._pass
