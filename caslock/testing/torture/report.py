"""The law of this file: what a run has found, in figures and in one word."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.testing.torture.history import Event
    from caslock.testing.torture.tenures import Judgement, Violation

SHOWN: Final = 20
"""Violations that are told in full."""

BEFORE: Final = 8.0
AFTER: Final = 0.1
LINES: Final = 300
"""Of the first violation's story: seconds before and after it, and the most events."""


@dataclass
class Report:
    """What a run has found."""

    place: str
    seed: int
    seconds: float
    requests: int = 0
    """Verbs that clients have asked the store for; with greetings and retries, more goes over the wire."""
    faults: dict[str, int] = field(default_factory=dict)
    """Faults of requests, processes and the server, by kind."""
    sections: int = 0
    """Acquires that returned a hold."""
    acquires: dict[str, int] = field(default_factory=dict)
    """All acquires, by outcome."""
    overlaps: int = 0
    fence_inversions: int = 0
    ghosts: int = 0
    lost_and_told: int = 0
    late_writes: int = 0
    """Writes of holders who slept past their lease, which only the fence has stopped.  They break no law."""
    hand_over_p50: float | None = None
    """Seconds, with all the faults in them."""
    hand_over_p99: float | None = None
    longest_wait: float = 0.0
    violations: list[dict[str, object]] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)
    """How often each law was broken."""
    story: list[str] = field(default_factory=list)
    """What happened to its key before the first violation, in seconds from there."""

    @property
    def passed(self) -> bool:
        """Whether no law was broken, and something was done."""
        return not self.broken and self.sections > 0

    @property
    def reason(self) -> str:
        """Why it did not pass; else an empty text."""
        if self.broken:
            laws = ", ".join(f"{law} ({times})" for law, times in self.broken.items())
            first = self.violations[0]
            return f"{laws}; the first: {first['law']} of {first['key']} at {first['at']}: {first['text']}"
        return "" if self.sections else "no lock was ever acquired"

    def to_dict(self) -> dict[str, object]:
        """Give it as plain data."""
        return asdict(self) | {"passed": self.passed, "reason": self.reason}


def report(place: str, seed: int, seconds: float, found: Judgement, events: Iterable[Event]) -> Report:
    """Draw up the report of a judgement."""
    counts, laws = found.counts, Counter(violation.law for violation in found.violations)
    faults = found.faults | Counter({name: counts[what] for what, name in _PROCESS.items() if counts[what]})
    hand_overs = sorted(found.hand_overs)
    return Report(
        place=place,
        seed=seed,
        seconds=round(seconds, 3),
        requests=found.requests,
        faults=dict(faults),
        sections=counts["got"],
        acquires={name: counts[what] for what, name in _OUTCOMES.items()},
        overlaps=laws["overlap"],
        fence_inversions=laws["fence inversion"] + laws["fence twice"],
        ghosts=laws["ghost"],
        lost_and_told=counts["told"] + counts["left lost"],
        late_writes=counts["late writes"],
        hand_over_p50=_quantile(hand_overs, 0.5),
        hand_over_p99=_quantile(hand_overs, 0.99),
        longest_wait=round(found.longest_wait, 4),
        violations=[_told(violation) for violation in found.violations[:SHOWN]],
        broken=dict(laws),
        story=_story(found.violations[0], events) if found.violations else [],
    )


_PROCESS: Final = {
    "stop": "worker stopped",
    "kill": "worker killed",
    "child": "worker forked",
    "alarm": "interrupted or cancelled",
    "freeze": "server stopped",
    "down": "server killed",
    "squeeze": "server out of memory",
    "broke": "broken by somebody",
    "clock": "wall clock set",
    "max_hold over": "max_hold over",
}
_OUTCOMES: Final = {
    "got": "held",
    "none": "busy",
    "failed sure": "unavailable",
    "failed unknown": "unknown",
    "failed StoreError": "refused",
}


def _story(violation: Violation, events: Iterable[Event]) -> list[str]:
    near = [
        event
        for event in events
        if event.key in ("", violation.key) and -BEFORE < event.at - violation.at < AFTER and event.what != "tally"
    ]
    return [f"{event.at - violation.at:+.4f} {' '.join(map(str, event[1:]))}" for event in sorted(near)[-LINES:]]


def _told(violation: Violation) -> dict[str, object]:
    return {**violation._asdict(), "at": round(violation.at, 4)}


def _quantile(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(share * len(values)))], 5) if values else None
