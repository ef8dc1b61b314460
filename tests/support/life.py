"""In tests, and so in the simulator, an attempt that goes on to a state that may not follow is an error."""

from __future__ import annotations

from typing import Any

from caslock.protocol.attempt import Attempt
from caslock.protocol.life import NEXT, State

_slot: Any = vars(Attempt)["state"]


def check_each_step() -> None:
    Attempt.state = property(_slot.__get__, _go_on)  # type: ignore[assignment,misc] # see above


def force(attempt: Attempt, state: State) -> None:
    """Put it into a state, whatever it is in: for a test that begins there."""
    _slot.__set__(attempt, state)


def _go_on(attempt: Attempt, state: State) -> None:
    before = _slot.__get__(attempt) if hasattr(attempt, "state") else state  # its first state follows nothing
    assert state is before or state in NEXT[before], f"{before.name} -> {state.name}"
    _slot.__set__(attempt, state)
