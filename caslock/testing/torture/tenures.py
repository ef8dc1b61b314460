"""The law of this file: a belief is taken for no longer than its holder has proved it.

It begins when the acquire has returned, and ends when the release is called, the loss is told, or at the deadline that
the holder has seen last; where the store has announced that it forgot, it ends there.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.testing.torture.history import Event


class Violation(NamedTuple):
    """A law that was broken."""

    law: str
    at: float
    key: str
    text: str


@dataclass
class Tenure:
    """What one hold believed."""

    key: str
    owner: str
    hold: str
    who: str
    fence: int
    tried: float
    got: float
    until: float
    end: float = math.nan  # when it is closed: the end of the belief
    leave: float = math.inf
    left: str = ""
    told: bool = False
    forgotten: bool = False  # the store has announced that it forgot it

    def close(self, at: float) -> None:
        """End the belief, once."""
        if math.isnan(self.end):
            self.end = min(self.until, at)

    @property
    def shared(self) -> bool:
        """Whether several processes go by this owner's name."""
        return self.owner.endswith(":owner")


@dataclass
class Judgement:
    """What a history shows."""

    tenures: list[Tenure] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hand_overs: list[float] = field(default_factory=list)
    longest_wait: float = 0.0
    requests: int = 0

    def break_(self, law: str, at: float, key: str, text: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(law, at, key, text))


_LOUD: Final = {"untold": "untold loss", "forever": "no ttl", "ghost": "ghost", "child": "fork"}
"""What breaks a law by itself."""


class Reader:
    """Reads a history, event by event in the order of time."""

    def __init__(self, found: Judgement) -> None:
        """Write into `found`."""
        self._found = found
        self._holds: dict[str, Tenure] = {}
        self._asked: dict[tuple[str, str], float] = {}
        self._down, self._up = math.inf, -math.inf

    def read(self, events: Iterable[Event]) -> None:
        """Read them all."""
        found = self._found
        for event in events:
            found.counts[event.what] += 1
            hold = self._holds.get(event.hold)
            if event.what == "try":
                self._asked[event.who, event.key] = event.at
            elif event.what in ("got", "none", "failed"):
                self._answered(event, hold)
            elif event.what == "fault":
                found.faults[event.note] += 1
            elif event.what == "down":
                self._down = event.at
                self._forgets(event.at)
            elif event.what == "up":
                self._up = event.at
            elif event.what in _LOUD:
                if event.note != "inert":  # as a forked child's copy should be
                    found.break_(_LOUD[event.what], event.at, event.key, f"{event.hold} {event.note}".strip())
            elif hold is not None:
                self._follow(event, hold)

    def _answered(self, event: Event, hold: Tenure | None) -> None:
        found, tried = self._found, self._asked.get((event.who, event.key), event.at)
        found.longest_wait = max(found.longest_wait, event.at - tried)
        if event.what == "failed":
            found.counts[f"failed {event.note}"] += 1
        if event.what != "got":
            return
        if hold is not None:
            found.break_("second success", event.at, event.key, f"hold {event.hold} was acquired twice")
            return
        tenure = Tenure(event.key, event.owner, event.hold, event.who, event.fence, tried, event.at, event.until)
        self._holds[event.hold] = tenure
        found.tenures.append(tenure)
        if self._down <= event.at and (self._down > self._up or tried < self._up):
            tenure.forgotten = True  # it may stem from before the server forgot
            tenure.close(event.at)

    def _forgets(self, at: float) -> None:
        for tenure in self._holds.values():
            if math.isnan(tenure.end) and tenure.until > at:
                tenure.forgotten = True
                tenure.close(at)

    def _follow(self, event: Event, hold: Tenure) -> None:
        """Go on with the story of one hold."""
        if event.what == "at" and event.until:
            if hold.told:
                text = f"{hold.hold} was told lost, and believes again"
                self._found.break_("loss taken back", event.at, hold.key, text)
            hold.until = event.until
        elif event.what == "extend":
            hold.until = min(hold.until, event.until)
        elif event.what in ("at", "told", "dropped", "leave"):
            hold.close(event.at)
            hold.told = hold.told or event.what == "told"
            hold.leave = event.at if event.what == "leave" else hold.leave
        elif event.what == "left":
            hold.left = hold.left or event.note
            self._found.counts[f"left {event.note}"] += 1
