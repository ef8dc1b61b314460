"""Draws the figures of Redis as bars that start at 0, with every candidate; the tables have the rest."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks import svg
from benchmarks.effort import PROCESSES_8, THREADS_32
from benchmarks.floors import SOCKET
from benchmarks.ours import SHARED
from benchmarks.places import REDIS_PLACE
from benchmarks.report import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.effort import Crew
    from benchmarks.ratios import Results
    from benchmarks.report import Row

LEFT: Final = 280
RIGHT: Final = 142  # for the text beside the longest bar
HEAD: Final = 66
PANEL_HEAD: Final = 58
ROW: Final = 23
BAR: Final = 15
AXIS: Final = 34
PAINT: Final = {"caslock": "ours", "peer": "peer", "floor": "floor"}


class Line(NamedTuple):
    """One bar."""

    name: str
    kind: str
    value: float
    solid: float  # the part of it that is drawn strongly
    beside: str
    error: str


class Panel(NamedTuple):
    """Bars of one unit."""

    title: str
    subtitle: str
    unit: str
    lines: Sequence[Line]


def picture(results: Results, circumstances: Mapping[str, str]) -> str:
    """Draw the panels, one below the other."""
    panels = [panel for panel in (_alone(results), *(_together(results, crew) for crew in CREWS)) if panel.lines]
    parts: list[str] = [
        svg.text(24, 32, "caslock and other Python locks on Redis", size=18, bold=True),
        *_legend(24, 54),
    ]
    y = float(HEAD)
    for panel in panels:
        parts += _draw(panel, y)
        y += PANEL_HEAD + ROW * len(panel.lines) + AXIS
    for line in _footer(circumstances):
        parts.append(svg.text(24, y + 14, line, "grey", 11))
        y += 15
    return svg.picture(y + 16, parts)


CREWS: Final = (PROCESSES_8, THREADS_32)


def _alone(results: Results) -> Panel:
    rows = _redis(results.get("uncontended", ()))
    lines = [_line(row, "median_us", 1.0, f"{show(_number(row, 'median_us'))} us") for row in rows]
    lines.sort(key=lambda line: (math.isnan(line.value), line.value))
    subtitle = (
        "one thread, no contention; client and server share one core; median of the best round; shorter is better"
    )
    return Panel("Acquire + release, alone", subtitle, "us", lines)


def _together(results: Results, crew: Crew) -> Panel:
    rows = [
        row
        for row in _redis(results.get("contended", ()))
        if row["crew"] == str(crew) and row["hold_ms"] == 0 and row["candidate"] not in {SOCKET, SHARED}
    ]
    lines = []
    for row in rows:
        handed = _number(row, "handed_on")
        beside = f"{show(_number(row, 'per_second'))}/s, Jain {_number(row, 'jain'):.2f}"
        lines.append(_line(row, "per_second", 0.0 if math.isnan(handed) else handed, beside))
    lines.sort(key=lambda line: (math.isnan(line.value), -line.value * line.solid))
    worst = f"{1 / crew.workers:.2f}"
    subtitle = (
        f"acquisitions/s; strong: by another worker than the one before, pale: by the same again; "
        f"Jain's index: 1 is fair, {worst} means that one worker has all"
    )
    return Panel(f"{crew} contend for one key", subtitle, "acquisitions/s", lines)


def _redis(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["place"] == REDIS_PLACE]


def _line(row: Row, column: str, solid: float, beside: str) -> Line:
    return Line(str(row["candidate"]), str(row["kind"]), _number(row, column), solid, beside, str(row["error"]))


def _number(row: Row, column: str) -> float:
    value = row[column]
    return float(value) if isinstance(value, (int, float)) else math.nan


def _draw(panel: Panel, top: float) -> Iterator[str]:
    yield svg.text(24, top + 24, panel.title, size=15, bold=True)
    yield svg.text(24, top + 42, panel.subtitle, "grey", 11.5)
    values = [line.value for line in panel.lines if not math.isnan(line.value)]
    marks = list(svg.ticks(max(values, default=1.0)))
    scale = (svg.WIDTH - LEFT - RIGHT) / marks[-1]
    first = top + PANEL_HEAD
    foot = first + ROW * len(panel.lines)
    for mark in marks:
        x = LEFT + mark * scale
        yield svg.upright(x, first - 4, foot)
        yield svg.text(x, foot + 14, f"{mark:,g}", "grey", 11, "middle")
    yield svg.text(LEFT + marks[-1] * scale + 30, foot + 14, panel.unit, "grey", 11)
    yield from chain.from_iterable(_bar(line, first + ROW * n, scale) for n, line in enumerate(panel.lines))


def _bar(line: Line, y: float, scale: float) -> Iterator[str]:
    ours = line.kind == "caslock"
    yield svg.text(LEFT - 8, y + 12, line.name, size=12.5, anchor="end", bold=ours)
    if math.isnan(line.value):
        yield svg.text(LEFT + 6, y + 12, line.error or "not measured", "bad halo", 11)
        return
    paint, strong = PAINT[line.kind], line.value * line.solid * scale
    yield svg.bar(LEFT, y, strong, BAR, paint)
    yield svg.bar(LEFT + strong, y, line.value * scale - strong, BAR, paint, pale=True)
    yield svg.text(
        LEFT + line.value * scale + 6, y + 12, line.beside, "ink halo" if ours else "grey halo", 11.5, bold=ours
    )


def _legend(x: float, y: float) -> Iterator[str]:
    told = (
        ("caslock", "ours", 92),
        ("other libraries", "peer", 130),
        ("minimal, written by hand: no renewal, no fence, no safe retry", "floor", 0),
    )
    for words, paint, width in told:
        yield svg.bar(x, y - 10, 12, 12, paint)
        yield svg.text(x + 18, y, words, "grey", 12)
        x += width


def _footer(told: Mapping[str, str]) -> list[str]:
    servers = f"Redis server {told.get('Redis server', '-')}, loopback, {told['system']}"
    rough = "" if told["effort"] == "full" else f" ({told['effort']} run: rough figures)"
    names = ("caslock", "redis", "hiredis", "python-redis-lock", "redlock-py", "pottery", "sherlock")
    versions = ", ".join(f"{name} {told[name]}" for name in names if told.get(name, "not installed") != "not installed")
    return [f"{told['date']}{rough}; Python {told['Python']}; {servers}", versions]
