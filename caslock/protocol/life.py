"""The life of an attempt: from its first put to its last release it is in one of these states.

                     LINGERING
                      ^     |
                      v     v
    ASKING ------> HELD --> LEAVING <---> UNSETTLED
       |                       |
       +--> WITHDRAWING ----> OVER

A loss is not a state.  Whoever renews may find it at any moment, also while its user releases, so it is a fact of the
lease (`Lease.lost`), and what has been lost is still to be released.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final


class State(Enum):
    """How far an attempt is."""

    ASKING = "it waits for its turn in this process, or asks the store"
    HELD = "its acquire has succeeded; it is renewed, unless that is lost or switched off"
    LINGERING = "nobody holds it, and this process keeps the key for a while: see `caslock.local.linger`"
    LEAVING = "its release has begun"
    UNSETTLED = "its release got no answer, and may be made again"
    WITHDRAWING = "its acquire has failed, and what it has left is being removed"
    OVER = "nothing is left for its caller; a clean-up may go on in the background"

    if not TYPE_CHECKING:  # type checkers see that of `Enum`, of the same type
        __hash__ = object.__hash__  # that of `Enum` is a function of Python, and a lock looks into sets all the time


ASKING: Final = State.ASKING
HELD: Final = State.HELD
LINGERING: Final = State.LINGERING
LEAVING: Final = State.LEAVING
UNSETTLED: Final = State.UNSETTLED
WITHDRAWING: Final = State.WITHDRAWING
OVER: Final = State.OVER
# Bound as globals: `State.HELD` takes ten times as long on Python 3.11, which was 0.5 us of each cycle of a lock.

HAD: Final = frozenset({HELD, LINGERING, LEAVING, UNSETTLED})
"""Its acquire has succeeded, and its release has not."""

RELEASING: Final = frozenset({LEAVING, UNSETTLED})
"""Its release has begun, and has not ended."""

NEXT: Final = {
    ASKING: frozenset({HELD, WITHDRAWING}),
    HELD: frozenset({LINGERING, LEAVING}),
    LINGERING: frozenset({HELD, LEAVING}),
    LEAVING: frozenset({UNSETTLED, OVER}),
    UNSETTLED: frozenset({LEAVING}),
    WITHDRAWING: frozenset({OVER}),
    OVER: frozenset[State](),
}
"""What may follow, besides the same state: an interrupted release or withdrawal is begun once more.  Tests check it."""
