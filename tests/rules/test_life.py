"""The states of an attempt."""

from __future__ import annotations

import pytest

from caslock.protocol.life import NEXT, State
from tests.support.scripted import Scripted, an_attempt


def test_each_state_can_be_reached_and_leads_to_the_end() -> None:
    """Nothing stays half done: from each there is a way on, and all ways end."""
    reached, new = set[State](), {State.ASKING}
    while new:
        reached |= new
        new = {after for state in new for after in NEXT[state]} - reached
    assert reached == set(State)
    assert [state for state in State if not NEXT[state]] == [State.OVER]


def test_what_is_over_does_not_begin_again() -> None:
    """Tests look at each step of each attempt."""
    attempt = an_attempt(Scripted())
    for state in (State.HELD, State.LEAVING, State.LEAVING, State.UNSETTLED, State.LEAVING, State.OVER):
        attempt.state = state
    with pytest.raises(AssertionError, match="OVER -> LEAVING"):
        attempt.state = State.LEAVING
