"""The law of this file: a belief is taken for no longer than its holder has proved it.

It begins when the acquire has returned, and ends when the release is called, the loss is told, or at the deadline that
the holder has seen last; where the store has announced that it forgot it, or somebody has begun to break it, it ends
there.
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
    lease: float = math.inf  # the longest that it has asked for
    most: float = math.inf  # when `max_hold` is over
    end: float = math.nan  # when it is closed: the end of the belief
    leave: float = math.inf
    left: str = ""
    over: float = math.inf  # when the release was
    told: bool = False
    forgotten: bool = False  # the store has announced that it forgot it
    struck: float = math.inf  # since when it may have been broken: from the first call that may have meant it
    gone: float = math.inf  # since when the store has certainly not had it

    def close(self, at: float) -> None:
        """End the belief, once."""
        if math.isnan(self.end):
            self.end = min(self.until, at)

    @property
    def shared(self) -> bool:
        """Whether several processes go by this owner's name."""
        return self.owner.endswith(":owner")


class Break(NamedTuple):
    """A call of `break_`."""

    key: str
    called: float
    returned: float
    owner: str
    holds: frozenset[str] | None
    """Those that were broken; None: it may be any."""

    def strike(self, tenure: Tenure) -> None:
        """Break a tenure, if it is one that was meant; who shares a broken owner may be."""
        named = self.holds is not None and tenure.hold in self.holds
        meant = named or self.holds is None or (tenure.shared and tenure.owner == self.owner)
        if meant and tenure.key == self.key and tenure.tried <= self.returned and tenure.leave >= self.called:
            tenure.close(math.inf)
            tenure.end = min(tenure.end, max(self.called, tenure.got))
            tenure.struck = min(tenure.struck, self.called)
            if named and tenure.got < self.called:  # else it may have been acquired once more meanwhile
                tenure.gone = min(tenure.gone, self.returned)


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


SOON: Final = 0.3
"""Seconds within which the end of `max_hold` is told, as a rule."""

_LOUD: Final = {
    "untold": "untold loss",
    "forever": "no ttl",
    "ghost": "ghost",
    "child": "fork",
    "hung": "hang",
    "cut": "history cut short",
}
"""What breaks a law by itself."""


EPSILON: Final = 0.001
"""Seconds that are lost in computing."""

RETRIED: Final = 1.0
"""Seconds by which a renewal that was sent once more may carry a lease past its `max_hold`."""


class Reader:
    """Reads a history, event by event in the order of time."""

    def __init__(self, found: Judgement) -> None:
        """Write into `found`."""
        self._found = found
        self._holds: dict[str, Tenure] = {}
        self._open: dict[str, Tenure] = {}
        """Those that were not released, nor dropped."""
        self._asked: dict[tuple[str, str], Event] = {}
        self._down, self._up = math.inf, -math.inf
        self._breaking: dict[str, Event] = {}  # by who
        self._breaks = list[Break]()
        self._leaving = list[Tenure]()
        """Those that were released, or dropped, while somebody was breaking a key."""

    def read(self, events: Iterable[Event]) -> None:
        """Read them all."""
        found = self._found
        for event in events:
            found.counts[event.what] += 1
            hold = self._holds.get(event.hold)
            if event.what == "try":
                self._asked[event.who, event.key] = event
            elif event.what in ("got", "none", "failed"):
                self._answered(event, hold)
            elif event.what == "fault":
                found.faults[event.note] += 1
            elif event.what in ("down", "up"):
                self._forgets(event)
            elif event.what in ("break", "broke", "kill"):
                self._breaks_off(event)
            elif event.what in _LOUD:
                if event.note != "inert":  # as a forked child's copy should be
                    found.break_(_LOUD[event.what], event.at, event.key, f"{event.hold} {event.note}".strip())
            elif hold is not None:
                self._follow(event, hold)

    def _answered(self, event: Event, hold: Tenure | None) -> None:
        found, asked = self._found, self._asked.get((event.who, event.key), event)
        found.longest_wait = max(found.longest_wait, event.at - asked.at)
        if event.what == "failed":
            found.counts[f"failed {event.note}"] += 1
        if event.what != "got":
            return
        if hold is not None:
            found.break_("second success", event.at, event.key, f"hold {event.hold} was acquired twice")
            return
        tenure = Tenure(event.key, event.owner, event.hold, event.who, event.fence, asked.at, event.at, event.until)
        tenure.lease = asked.until or math.inf
        tenure.most = event.at + float(event.note or math.inf)
        self._holds[event.hold] = self._open[event.hold] = tenure
        found.tenures.append(tenure)
        if self._down <= event.at and (self._down > self._up or asked.at < self._up):
            tenure.forgotten = True  # it may stem from before the server forgot
            tenure.close(event.at)
        for break_ in reversed(self._breaks):
            if break_.returned < asked.at:
                break
            break_.strike(tenure)

    def _forgets(self, event: Event) -> None:
        if event.what == "down":
            self._down = event.at
            for tenure in self._open.values():  # those too whose deadline was last seen before: they may be renewed
                tenure.forgotten = True
                tenure.close(event.at)
        else:
            self._up = event.at
            for tenure in self._open.values():
                if tenure.got < self._down:
                    tenure.gone = min(tenure.gone, event.at)

    def _breaks_off(self, event: Event) -> None:
        """Take note of a key that was taken away; who is killed meanwhile may have done it to anybody."""
        if event.what == "break":
            self._breaking[event.who] = event
            return
        for who in [who for who in self._breaking if who == event.who or who.startswith(f"{event.who}/")]:
            call = self._breaking.pop(who)
            known = event.what == "broke" and event.note != "unknown"
            holds = frozenset(event.note.split()) if known else None
            self._breaks.append(Break(call.key, call.at, event.at, event.owner, holds))
            for tenure in [*self._open.values(), *self._leaving]:
                self._breaks[-1].strike(tenure)
        if not self._breaking:
            self._leaving.clear()

    def _follow(self, event: Event, hold: Tenure) -> None:
        """Go on with the story of one hold."""
        if event.what == "at" and event.until:
            self._believes(event, hold)
        elif event.what == "extend":
            hold.until = min(hold.until, event.until)
            hold.lease = max(hold.lease, (event.until - event.at) / 0.98 + 0.01)
        elif event.what in ("at", "told", "dropped", "leave"):
            hold.close(event.at)
            hold.told = hold.told or event.what == "told"
            hold.leave = event.at if event.what == "leave" else hold.leave
            self._found.counts["max_hold over"] += event.what == "told" and abs(event.at - hold.most) < SOON
        elif event.what == "left":
            hold.left = hold.left or event.note
            hold.over = min(hold.over, event.at)
            self._found.counts[f"left {event.note}"] += 1
        if event.what in ("dropped", "left") and event.hold in self._open:
            del self._open[event.hold]
            if self._breaking:
                self._leaving.append(hold)

    def _believes(self, event: Event, hold: Tenure) -> None:
        """Go on with one who believes in its hold, until `event.until`."""
        hold.until = event.until
        if hold.told:
            text = f"{hold.hold} was told lost, and believes again"
            self._found.break_("loss taken back", event.at, hold.key, text)
        if event.until > hold.most + RETRIED:
            text = f"{hold.hold} is believed in for {event.until - hold.most:.4f} s longer than its max_hold"
            self._found.break_("max_hold", event.at, hold.key, text)
        if event.until > hold.gone + hold.lease + EPSILON:
            text = f"{hold.hold} was gone at {hold.gone:.4f}, and was renewed after that"
            self._found.break_("untold loss", event.at, hold.key, text)
