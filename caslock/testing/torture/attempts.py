"""The law of this file: who has called acquire may stand in the record, whether its success was written down or not."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.testing.torture.history import Event

MOMENT: Final = 1.0
"""Seconds within which who is killed is dead: it is noted before."""


@dataclass
class Attempt:
    """A call of acquire."""

    began: float
    ended: float = math.inf  # by an answer, or with who made it
    hold: str = ""  # once it is answered, by success or not


def attempts(events: Iterable[Event]) -> defaultdict[str, list[Attempt]]:
    """Find all, by key, in events in the order of time."""
    found = defaultdict[str, list[Attempt]](list)
    trying = dict[tuple[str, str], Attempt]()
    for event in events:
        if event.what == "try":
            trying[event.who, event.key] = attempt = Attempt(event.at)
            found[event.key].append(attempt)
        elif event.what in ("got", "none", "failed") and (event.who, event.key) in trying:
            attempt = trying.pop((event.who, event.key))
            attempt.ended, attempt.hold = event.at, event.hold
        elif event.what in ("kill", "alarm"):
            for who, key in [name for name in trying if f"{name[0]}/".startswith(f"{event.who}/")]:
                trying.pop((who, key)).ended = event.at + MOMENT
    return found
