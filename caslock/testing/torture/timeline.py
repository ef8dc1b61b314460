"""The law of this file: a picture of who held which key when, in which every fault has its mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from caslock.testing.torture.history import Event
    from caslock.testing.torture.run import Outcome
    from caslock.testing.torture.tenures import Tenure, Violation

MOST_BARS: Final = 4_000
"""A longer run shows its last holds only, or those around its first violation."""

WIDTH: Final = 1400
LEFT: Final = 110
ROW: Final = 64
TOP: Final = 64

_COLOURS: Final = ("#4c78a8", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#8cd17d", "#499894")
_TROUBLES: Final = {
    "stop": "worker stopped",
    "kill": "worker killed",
    "freeze": "server stopped",
    "down": "server killed",
}

_LEGEND: Final = (
    "a bar: somebody believes to hold the key (a colour for each worker); red ticks: faults of requests; "
    "dots: workers and servers stopped or killed"
)


def timeline(outcome: Outcome) -> str:
    """Draw a run as SVG: a row for each key, a bar for each hold in its worker's colour, red ticks for faults."""
    tenures = sorted(outcome.judgement.tenures, key=lambda tenure: tenure.got)
    violations = outcome.judgement.violations
    tenures = _around(tenures, violations)
    start = tenures[0].got if tenures else 0.0
    end = max((tenure.end for tenure in tenures), default=start) + 0.01
    keys = sorted({tenure.key for tenure in tenures} | {violation.key for violation in violations if violation.key})
    events = [event for event in outcome.events if start <= event.at <= end]
    seen = [violation for violation in violations if start <= violation.at <= end]
    picture = _Picture(start, end, keys)
    height = TOP + ROW * (len(keys) + 1) + 30
    word = "PASS" if outcome.report.passed else f"FAIL: {outcome.report.reason[:120]}"
    size = f'width="{WIDTH}" height="{height}"'
    title = escape(f"{outcome.report.place}, {end - start:.1f} s: {word}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="white"/>',
        f'<text x="10" y="20" font-size="15">{title}</text>',
        f'<text x="10" y="40" fill="#666">{_LEGEND}</text>',
        *picture.rows(),
        *picture.bars(tenures),
        *picture.faults(events),
        *picture.troubles(events, height - 60),
        *picture.violations(seen),
        *picture.axis(height - 12),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _around(tenures: list[Tenure], violations: list[Violation]) -> list[Tenure]:
    if len(tenures) <= MOST_BARS:
        return tenures
    at = violations[0].at if violations else tenures[-1].got
    middle = sum(tenure.got <= at for tenure in tenures)
    first = max(0, min(middle - MOST_BARS // 2, len(tenures) - MOST_BARS))
    return tenures[first : first + MOST_BARS]


class _Picture:
    """Where things are."""

    def __init__(self, start: float, end: float, keys: list[str]) -> None:
        self._start, self._end, self._keys = start, end, keys

    def _x(self, at: float) -> float:
        at = min(max(at, self._start), self._end)
        return LEFT + (at - self._start) / (self._end - self._start) * (WIDTH - LEFT - 10)

    def _y(self, key: str) -> int:
        return TOP + ROW * self._keys.index(key)

    def rows(self) -> Iterator[str]:
        """Name the keys."""
        for key in self._keys:
            y = self._y(key)
            yield f'<text x="10" y="{y + 26}">key {escape(key.rpartition(":")[2])}</text>'
            yield f'<line x1="{LEFT}" y1="{y + 40}" x2="{WIDTH - 10}" y2="{y + 40}" stroke="#ddd"/>'

    def bars(self, tenures: Iterable[Tenure]) -> Iterator[str]:
        """Draw the holds."""
        workers: dict[str, int] = {}
        for tenure in tenures:
            if tenure.end <= tenure.got:
                continue
            number = workers.setdefault(tenure.who.partition("/")[0], len(workers))
            x, width = self._x(tenure.got), max(0.6, self._x(tenure.end) - self._x(tenure.got))
            told = f"{tenure.who}, fence {tenure.fence}, {tenure.end - tenure.got:.3f} s, {tenure.left or 'never left'}"
            yield (
                f'<rect x="{x:.1f}" y="{self._y(tenure.key) + 8}" width="{width:.1f}" height="26" '
                f'fill="{_COLOURS[number % len(_COLOURS)]}"><title>{escape(told)}</title></rect>'
            )

    def faults(self, events: Iterable[Event]) -> Iterator[str]:
        """Mark the faults of requests under the key that they are about."""
        for event in events:
            if event.what == "fault" and event.key in self._keys:
                x, y = self._x(event.at), self._y(event.key) + 40
                yield (
                    f'<line class="fault" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 8}" stroke="#d62728">'
                    f"<title>{escape(event.note)}</title></line>"
                )

    def troubles(self, events: Iterable[Event], y: int) -> Iterator[str]:
        """Mark what happened to processes."""
        for event in events:
            if event.what in _TROUBLES:
                colour = "#000" if event.what in ("kill", "down") else "#f28e2b"
                told = escape(f"{_TROUBLES[event.what]} {event.who}".strip())
                x = self._x(event.at)
                yield f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{colour}"><title>{told}</title></circle>'

    def violations(self, violations: Iterable[Violation]) -> Iterator[str]:
        """Mark where a law was broken."""
        for violation in violations:
            y = self._y(violation.key) if violation.key else TOP
            x = self._x(violation.at)
            yield (
                f'<path class="violation" d="M{x:.1f} {y + 6} l-6 -10 h12 z" fill="#d62728">'
                f"<title>{escape(f'{violation.law}: {violation.text}')}</title></path>"
            )

    def axis(self, y: int) -> Iterator[str]:
        """Draw the time."""
        for tenth in range(11):
            at = self._start + (self._end - self._start) * tenth / 10
            x, told = self._x(at), f"{at - self._start:.1f} s"
            yield f'<text x="{x:.1f}" y="{y}" fill="#666" text-anchor="middle">{told}</text>'
