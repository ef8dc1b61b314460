"""Draws a run as SVG: who held which key when, and where the faults were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.verify.run import Outcome
    from caslock.verify.tenures import Tenure, Violation

MOST_BARS: Final = 4_000
"""A longer run shows its last holds only, or those around its first violation."""

WIDTH, LEFT, ROW, TOP = 1400, 110, 64, 64

BAR: Final = 26
"""Pixels that a bar is high."""

LANES: Final = 4
"""Thin bars that have room where a bar has."""

TICKS: Final = 10

_COLOURS: Final = ("#4c78a8", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#8cd17d", "#499894")
_DOTS: Final = {
    "stop": ("worker stopped", "#f28e2b"),
    "kill": ("worker killed", "#000"),
    "freeze": ("server stopped", "#f28e2b"),
    "down": ("server killed", "#000"),
}

_LEGEND: Final = (
    "a bar: somebody believes to hold the key (a colour for each worker); thin bars: holds of one owner whose name "
    "several workers share, who may hold together; red ticks: faults of requests; dots: stopped or killed"
)


def timeline(outcome: Outcome) -> str:
    """Draw a run: a row for each key, a bar for each hold in its worker's colour, red ticks for faults."""
    picture = _Picture(outcome)
    word = "PASS" if outcome.report.passed else f"FAIL: {outcome.report.reason[:120]}"
    title = escape(f"{outcome.report.location}, {picture.end - picture.start:.1f} s: {word}")
    size = f'width="{WIDTH}" height="{picture.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="white"/>',
        f'<text x="10" y="20" font-size="15">{title}</text>',
        f'<text x="10" y="40" fill="#666">{_LEGEND}</text>',
        *picture.rows(),
        *picture.bars(),
        *picture.events(),
        *picture.violations(),
        *picture.axis(),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _shown(tenures: list[Tenure], violations: list[Violation]) -> list[Tenure]:
    if len(tenures) <= MOST_BARS:
        return tenures
    at = violations[0].at if violations else tenures[-1].got
    middle = sum(tenure.got <= at for tenure in tenures)
    first = max(0, min(middle - MOST_BARS // 2, len(tenures) - MOST_BARS))
    return tenures[first : first + MOST_BARS]


class _Picture:
    """The parts of the picture."""

    def __init__(self, outcome: Outcome) -> None:
        violations = outcome.judgement.violations
        self._tenures = _shown(sorted(outcome.judgement.tenures, key=lambda tenure: tenure.got), violations)
        self.start = self._tenures[0].got if self._tenures else 0.0
        self.end = max((tenure.end for tenure in self._tenures), default=self.start) + 0.01
        keys = {tenure.key for tenure in self._tenures} | {violation.key for violation in violations if violation.key}
        self._rows = {key: TOP + ROW * number for number, key in enumerate(sorted(keys))}
        self._events = [event for event in outcome.events if self.start <= event.at <= self.end]
        self._violations = [violation for violation in violations if self.start <= violation.at <= self.end]
        self.height = TOP + ROW * (len(keys) + 1) + 30

    def _x(self, at: float) -> float:
        at = min(max(at, self.start), self.end)
        return LEFT + (at - self.start) / (self.end - self.start) * (WIDTH - LEFT - 10)

    def rows(self) -> Iterator[str]:
        """Name the keys."""
        for key, y in self._rows.items():
            yield f'<text x="10" y="{y + 26}">key {escape(key.rpartition(":")[2])}</text>'
            yield f'<line x1="{LEFT}" y1="{y + 40}" x2="{WIDTH - 10}" y2="{y + 40}" stroke="#ddd"/>'

    def bars(self) -> Iterator[str]:
        """Draw the holds."""
        workers: dict[str, int] = {}
        for tenure in self._tenures:
            if tenure.end <= tenure.got:
                continue
            number = workers.setdefault(tenure.who.partition("/")[0], len(workers))
            x, width = self._x(tenure.got), max(0.6, self._x(tenure.end) - self._x(tenure.got))
            y, height = self._rows[tenure.key] + 8.0, float(BAR)
            if tenure.shared:
                height = BAR / LANES
                y += height * (number % LANES)
            text = f"{tenure.who}, fence {tenure.fence}, {tenure.end - tenure.got:.3f} s, {tenure.left or 'never left'}"
            yield (
                f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" '
                f'fill="{_COLOURS[number % len(_COLOURS)]}"><title>{escape(text)}</title></rect>'
            )

    def events(self) -> Iterator[str]:
        """Mark the faults of requests under the key that they are about, and what happened to processes."""
        for event in self._events:
            x = self._x(event.at)
            if event.what == "fault" and event.key in self._rows:
                y = self._rows[event.key] + 40
                yield (
                    f'<line class="fault" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 8}" stroke="#d62728">'
                    f"<title>{escape(event.note)}</title></line>"
                )
            elif event.what in _DOTS:
                what, colour = _DOTS[event.what]
                text = escape(f"{what} {event.who}".strip())
                y = self.height - 60
                yield f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{colour}"><title>{text}</title></circle>'

    def violations(self) -> Iterator[str]:
        """Mark where a law was broken."""
        for violation in self._violations:
            x, y = self._x(violation.at), self._rows.get(violation.key, TOP)
            yield (
                f'<path class="violation" d="M{x:.1f} {y + 6} l-6 -10 h12 z" fill="#d62728">'
                f"<title>{escape(f'{violation.law}: {violation.text}')}</title></path>"
            )

    def axis(self) -> Iterator[str]:
        """Draw the time."""
        for tick in range(TICKS + 1):
            at = self.start + (self.end - self.start) * tick / TICKS
            anchor = "end" if tick == TICKS else "middle"  # the last one is at the edge
            text = f'x="{self._x(at):.1f}" y="{self.height - 12}" fill="#666" text-anchor="{anchor}"'
            yield f"<text {text}>{at - self.start:.1f} s</text>"
