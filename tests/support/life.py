"""In tests, and so in the simulator, an attempt that goes on to a state that may not follow is an error."""

from __future__ import annotations

from caslock.protocol.attempt import Attempt
from caslock.protocol.life import NEXT, State


def check_each_step() -> None:
    """Do so in this process."""
    Attempt.go = _go  # type: ignore[method-assign] # see above


def _go(self: Attempt, state: State) -> None:
    """Note that it goes on to `state`."""
    before = self.state
    assert state is before or state in NEXT[before], f"{before.name} -> {state.name}"
    self.state = state
