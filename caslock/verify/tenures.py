"""What each hold believed, from the events of a history.

A belief is taken for no longer than its holder has proved it.  It begins when the acquire has returned.  It ends when
the release is called, when the loss is told, or at the deadline that the holder has seen last.  Where the store has
announced that it forgot the record, or somebody has called `force_release`, it ends there.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from caslock.verify.history import Event

SOON: Final = 0.3
"""Seconds within which the end of `max_hold` is told, as a rule."""

EPSILON: Final = 0.001
"""Seconds that are lost in computing."""

RETRIED: Final = 1.0
"""Seconds by which a renewal that was sent once more may carry a lease past its `max_hold`."""

MOMENT: Final = 1.0
"""Seconds within which a process that is killed has ended: the kill is written down before."""


def whole(part: str) -> str:
    """Return the key to which a part (a slot, or a side) belongs: see `Plan.parts`."""
    return part.partition("#")[0]


class Violation(NamedTuple):
    """A law that was broken."""

    law: str
    """The name of the rule."""
    at: float
    """When, in seconds."""
    key: str
    """Empty where it is not about a key."""
    text: str
    """What happened."""

    def __str__(self) -> str:
        """Say it in one line."""
        where = f", key {self.key}" if self.key else ""
        return f"{self.law}{where}, at {self.at:.4f}: {' '.join(self.text.split())}"


@dataclass
class Attempt:
    """A call of acquire: from its beginning until its end its record may be at the store."""

    began: float
    lease: float = math.inf
    ended: float = math.inf  # by an answer, or with its process
    hold: str = ""  # once it is answered, by success or not


@dataclass
class Tenure:
    """What one hold believed."""

    key: str
    """The key."""
    owner: str
    """Its owner."""
    hold: str
    """The id of the hold."""
    who: str
    """The client."""
    fence: int
    """Its fence; 0: none."""
    tried: float
    """When the acquire was called."""
    got: float
    """When it returned."""
    until: float
    """When the lease ends, as the holder believes."""
    lease: float = math.inf
    """The longest lease that it has asked for, in seconds."""
    most: float = math.inf
    """When `max_hold` is over."""
    end: float = math.nan
    """When the belief ended; NaN while it goes on."""
    written: float = -math.inf
    """The last lease that was seen was written from then on ..."""
    answered: float = math.inf
    """... until then."""
    shortened: float = 0.0
    """Seconds by which the server may have ended that lease too early."""
    leave: float = math.inf
    """When the release was called."""
    left: str = ""
    """How the release ended."""
    over: float = math.inf
    """When the release returned."""
    reported: bool = False
    """Whether the holder was told of a loss."""
    forgotten: bool = False
    """Whether the store has announced that it forgot it."""
    forced: float = math.inf
    """When the first `force_release` was called that may have taken its key away."""
    gone: float = math.inf
    """Since when the store has certainly not had it."""

    def close(self, at: float) -> None:
        """End the belief, once."""
        if math.isnan(self.end):
            self.end = min(self.until, at)

    @property
    def sure(self) -> float:
        """Until when nobody else may believe."""
        return min(self.end, self.until - self.shortened)

    @property
    def shared(self) -> bool:
        """Whether several processes use this owner's name."""
        return self.owner.endswith(":owner")


class ForceRelease(NamedTuple):
    """A call of `force_release`."""

    key: str
    called: float
    returned: float
    owner: str
    holds: frozenset[str] | None
    """Those that lost the key; None: it may be any."""

    def apply(self, tenure: Tenure) -> None:
        """End a tenure, if it may have lost its key; one that shares the owner's name may have."""
        named = self.holds is not None and tenure.hold in self.holds
        meant = named or self.holds is None or (tenure.shared and tenure.owner == self.owner)
        if meant and whole(tenure.key) == self.key and tenure.tried <= self.returned and tenure.leave >= self.called:
            tenure.close(math.inf)
            tenure.end = min(tenure.end, max(self.called, tenure.got))
            tenure.forced = min(tenure.forced, self.called)
            if named and tenure.got < self.called:  # else it may have been acquired once more meanwhile
                tenure.gone = min(tenure.gone, self.returned)


@dataclass
class Judgement:
    """What a history shows."""

    tenures: list[Tenure] = field(default_factory=list)
    """All of them."""
    violations: list[Violation] = field(default_factory=list)
    """What was broken; empty if all is well."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events of the clients, by kind."""
    faults: Counter[str] = field(default_factory=Counter)
    """Faults, by kind."""
    hand_overs: list[float] = field(default_factory=list)
    """Seconds from a release to the next acquire that has waited for it."""
    longest_wait: float = 0.0
    """Of an acquire, in seconds."""
    requests: int = 0
    """Verbs that clients have asked the store for."""

    def violate(self, law: str, at: float, key: str, text: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(law, at, key, text))


class Tenures:
    """Makes the tenures and attempts, event by event in the order of time; finds what breaks a law by itself."""

    def __init__(self, judgement: Judgement) -> None:
        """Write into `judgement`."""
        self.attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
        """By key."""
        self._judgement = judgement
        self._trying = dict[tuple[str, str], Attempt]()  # by client and key
        self._holds = dict[str, Tenure]()
        self._open = dict[str, Tenure]()  # neither released nor dropped
        self._freed = dict[str, float]()  # when each key was released
        self._down, self._up = math.inf, -math.inf
        self._forcing = dict[str, Event]()  # who is calling `force_release`
        self._forced = list[ForceRelease]()
        self._leaving = list[Tenure]()  # released or dropped while somebody was calling `force_release`

    def read(self, event: Event) -> None:
        """Take note of an event."""
        hold = self._holds.get(event.hold)
        match event.what:
            case "try":
                attempt = self._trying[event.who, event.key] = Attempt(event.at, event.until or math.inf)
                self.attempts[event.key].append(attempt)
            case "got" | "none" | "failed":
                self._answered(event, hold)
            case "down" | "up":
                self._forgets(event)
            case "break":
                self._forcing[event.who] = event
            case "broke":
                self._took_away(event)
            case "kill" | "alarm":
                for who, key in [name for name in self._trying if event.concerns(name[0])]:
                    self._trying.pop((who, key)).ended = event.at + MOMENT
                if event.what == "kill":
                    self._took_away(event)
            case _ if hold is not None:
                self._follow(event, hold)

    def _answered(self, event: Event, hold: Tenure | None) -> None:
        tried = event.who, whole(event.key)
        judgement, attempt = self._judgement, self._trying.pop(tried, Attempt(event.at))
        attempt.ended, attempt.hold = event.at, event.hold
        judgement.longest_wait = max(judgement.longest_wait, event.at - attempt.began)
        if event.what == "failed":
            judgement.counts[f"failed {event.note}"] += 1
        if event.what != "got":
            return
        if hold is not None:
            judgement.violate("second success", event.at, event.key, f"hold {event.hold} was acquired twice")
            return
        freed = self._freed.pop(event.key, -math.inf)
        if attempt.began < freed:
            judgement.hand_overs.append(event.at - freed)
        tenure = Tenure(
            event.key, event.owner, event.hold, event.who, event.fence, attempt.began, event.at, event.until,
            lease=attempt.lease, most=event.at + float(event.note or math.inf),
            written=max(attempt.began, event.until - attempt.lease), answered=event.at,
        )  # fmt: skip
        self._holds[event.hold] = self._open[event.hold] = tenure
        judgement.tenures.append(tenure)
        if self._down <= event.at and (self._down > self._up or tenure.tried < self._up):
            tenure.forgotten = True  # it may stem from before the server forgot
            tenure.close(event.at)
        for forced in reversed(self._forced):
            if forced.returned < tenure.tried:
                break
            forced.apply(tenure)

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

    def _took_away(self, event: Event) -> None:
        """Take note of a call of `force_release` that is over; one that was killed may have hit anybody."""
        for who in [who for who in self._forcing if event.concerns(who)]:
            call = self._forcing.pop(who)
            known = event.what == "broke" and event.note != "unknown"
            holds = frozenset(event.note.split()) if known else None
            forced = ForceRelease(call.key, call.at, event.at, event.owner, holds)
            self._forced.append(forced)
            for tenure in [*self._open.values(), *self._leaving]:
                forced.apply(tenure)
        if not self._forcing:
            self._leaving.clear()

    def _follow(self, event: Event, hold: Tenure) -> None:
        """Go on with one hold."""
        if event.what == "at" and event.until:
            self._believes(event, hold)
        elif event.what == "extend":
            # It is not carried past `max_hold`, which counts from some moment after the acquire was called.
            rest = hold.most - hold.got + hold.tried - event.at
            hold.until = min(hold.until, event.until, event.at + max(0.0, 0.98 * rest - 0.003))
            hold.lease = max(hold.lease, (event.until - event.at) / 0.98 + 0.01)
        elif event.what in ("at", "reported", "dropped", "leave"):
            hold.close(event.at)
            if event.what == "reported":
                hold.reported = True
                self._judgement.counts["max_hold over"] += abs(event.at - hold.most) < SOON
            elif event.what == "leave":
                hold.leave = self._freed[event.key] = event.at
        elif event.what == "left":
            hold.left = hold.left or event.note
            hold.over = min(hold.over, event.at)
            self._judgement.counts[f"left {event.note}"] += 1
        if event.what in ("dropped", "left") and event.hold in self._open:
            del self._open[event.hold]
            if self._forcing:
                self._leaving.append(hold)

    def _believes(self, event: Event, hold: Tenure) -> None:
        """Go on with a hold that is believed in until `event.until`."""
        if event.until > hold.until:  # the deadline counts from before the request, and is a little early
            hold.written, hold.answered = event.until - hold.lease, event.at
        hold.until = event.until
        if hold.reported:
            self._violate("loss taken back", event, "was told lost, and believes again")
        if event.until > hold.most + RETRIED:
            longer = f"{event.until - hold.most:.4f} s"
            self._violate("max_hold", event, f"is believed in for {longer} longer than its max_hold")
        if event.until > hold.gone + hold.lease + EPSILON:
            self._violate("unreported loss", event, f"was gone at {hold.gone:.4f}, and was renewed after that")

    def _violate(self, law: str, event: Event, text: str) -> None:
        self._judgement.violate(law, event.at, event.key, f"{event.hold} {text}")
