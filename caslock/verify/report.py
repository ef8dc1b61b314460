"""The report of a run: its figures, and what broke a law."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.store import Traits
    from caslock.verify.history import Event
    from caslock.verify.tenures import Judgement, Violation

NO_FENCES: Final = "the laws of fences and of the guarded counter (traits.fences is False)"

SHOWN: Final = 20
"""Violations that are reported in full."""

BEFORE, AFTER, LINES = 8.0, 0.1, 300
"""Of the excerpt around the first violation: seconds before and after it, and the most events."""

_PROCESS: Final = {
    "stop": "worker stopped",
    "kill": "worker killed",
    "child": "worker forked",
    "alarm": "interrupted or cancelled",
    "freeze": "server stopped",
    "down": "server killed",
    "squeeze": "server out of memory",
    "broke": "force_release called",
    "clock": "wall clock set",
    "max_hold over": "max_hold over",
    "shortened": "lease shortened by a stop of the server",
}
"""The names of faults that are no faults of requests, by event."""

_OUTCOMES: Final = {
    "got": "held",
    "none": "busy",
    "failed sure": "unavailable",
    "failed unknown": "unknown",
    "failed StoreError": "refused",
}
"""The names of the outcomes of acquires, by event."""


@dataclass
class Report:
    """What a run has found."""

    location: str
    """The store."""
    seed: int
    """That of the plan."""
    seconds: float
    """How long the run took."""
    requests: int = 0
    """Verbs that clients have asked the store for; with greetings and retries, more goes over the wire."""
    faults: dict[str, int] = field(default_factory=dict)
    """Faults of requests, processes and the server, by kind."""
    sections: int = 0
    """Acquires that returned a hold."""
    acquires: dict[str, int] = field(default_factory=dict)
    """All acquires, by outcome."""
    overlaps: int = 0
    """How often two believed that they held one key."""
    fence_inversions: int = 0
    """How often a later tenure had no larger fence."""
    orphans: int = 0
    """Keys that stayed taken although nobody held them."""
    lost_and_reported: int = 0
    """Leases that were lost, and whose holders were told."""
    late_writes: int = 0
    """Writes of holders that were paused for longer than their lease, and that only the fence has stopped."""
    hand_over_p50: float | None = None
    """Seconds, with all the faults in them."""
    hand_over_p99: float | None = None
    """As `hand_over_p50`."""
    longest_wait: float = 0.0
    """Of an acquire, in seconds."""
    skipped: list[str] = field(default_factory=list)
    """What was not tried, and why."""
    violations: list[Violation] = field(default_factory=list)
    """The first of them."""
    broken: dict[str, int] = field(default_factory=dict)
    """How often each rule was violated."""
    excerpt: list[str] = field(default_factory=list)
    """What happened to its key before the first violation, in seconds from there."""

    @property
    def passed(self) -> bool:
        """Whether no rule was violated, and at least one lock was acquired."""
        return not self.broken and self.sections > 0

    @property
    def reason(self) -> str:
        """Why it did not pass; else an empty text."""
        if self.broken:
            laws = ", ".join(f"{law} ({times})" for law, times in self.broken.items())
            return f"{laws}; the first: {self.violations[0]}"
        return "" if self.sections else "no lock was ever acquired: if the machine is busy, give more --seconds"

    def to_dict(self) -> dict[str, object]:
        """Give it as plain data."""
        violations = [violation._asdict() for violation in self.violations]
        return asdict(self) | {"violations": violations, "passed": self.passed, "reason": self.reason}


def report(traits: Traits, seed: int, seconds: float, judgement: Judgement, events: Iterable[Event]) -> Report:
    """Draw up the report of a judgement."""
    counts, laws = judgement.counts, Counter(violation.law for violation in judgement.violations)
    hand_overs = sorted(judgement.hand_overs)
    return Report(
        location=traits.location,
        seed=seed,
        seconds=round(seconds, 3),
        requests=judgement.requests,
        faults=judgement.faults | {name: counts[what] for what, name in _PROCESS.items() if counts[what]},
        sections=counts["got"],
        acquires={name: counts[what] for what, name in _OUTCOMES.items()},
        overlaps=laws["overlap"],
        fence_inversions=laws["fence inversion"] + laws["fence twice"],
        orphans=laws["orphaned record"],
        lost_and_reported=counts["reported"] + counts["left lost"],
        late_writes=counts["late writes"],
        hand_over_p50=_quantile(hand_overs, 0.5),
        hand_over_p99=_quantile(hand_overs, 0.99),
        longest_wait=round(judgement.longest_wait, 4),
        skipped=[] if traits.fences else [NO_FENCES],
        violations=judgement.violations[:SHOWN],
        broken=dict(laws),
        excerpt=_excerpt(judgement.violations[0], events) if judgement.violations else [],
    )


def _excerpt(violation: Violation, events: Iterable[Event]) -> list[str]:
    near = [
        event
        for event in events
        if event.key in ("", violation.key) and -BEFORE < event.at - violation.at < AFTER and event.what != "tally"
    ]
    return [f"{event.at - violation.at:+.4f} {' '.join(map(str, event[1:]))}" for event in sorted(near)[-LINES:]]


def _quantile(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(share * len(values)))], 5) if values else None
