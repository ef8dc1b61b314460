"""The law of this file: growth is drawn with both axes logarithmic, where a straight line is a power."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks import svg
from benchmarks.report import show
from benchmarks.virtual import ROUND_TRIP, SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.report import Row

PLOT: Final = 300  # wide and high
TOP: Final = 118
LEFT: Final = 62
GAP: Final = 118
SPACE: Final = 12

Point = tuple[float, float]


class Curve(NamedTuple):
    """One contender's points, by waiters."""

    name: str
    paint: str
    dashes: str
    points: list[Point]
    broken: Sequence[Point] = ()  # those of them that were broken off


class Plot(NamedTuple):
    """Where a plot stands, and what it spans, in powers of ten."""

    left: float
    x: tuple[int, int]
    y: tuple[int, int]

    def at(self, point: Point) -> Point:
        """Where a point is drawn."""
        (x0, x1), (y0, y1) = self.x, self.y
        across = (math.log10(point[0]) - x0) / (x1 - x0)
        up = (math.log10(point[1]) - y0) / (y1 - y0)
        return self.left + PLOT * across, TOP + PLOT * (1 - up)


def picture(rows: Sequence[Row], told: Mapping[str, str]) -> str:
    """Draw requests per acquisition, and the longest wait, as waiters grow."""
    requests, waits = _curves(rows, "requests_per_acquisition"), _curves(rows, "longest_wait_s")
    ideal = {float(str(row["waiters"])): float(str(row["in_turn_s"])) for row in rows}
    waits.append(Curve("(n - 1) holds, one after the other", "grey", "2 4", sorted(ideal.items())))
    parts = [
        svg.text(24, 32, "How waiting scales", size=18, bold=True),
        svg.text(24, 54, "the real rules of locking in virtual time: n waiters want one key, each twice", "grey", 12),
        *_plot("requests per acquisition", "", LEFT, requests),
        *_named(LEFT, requests),
        *_plot("longest wait", "s", LEFT + PLOT + GAP, waits),
    ]
    y = TOP + PLOT + 66.0
    for n, curve in enumerate(waits):
        x, below = 24 + n % 2 * 420, y + n // 2 * 20
        parts += [_path([(x, below - 4), (x + 30, below - 4)], curve), svg.text(x + 38, below, curve.name, size=12)]
    y += (len(waits) + 1) // 2 * 20 + 8
    facts = f"hold 1 ms, round trip {ROUND_TRIP * 1e3:g} ms, the store serves one request in {SERVICE * 1e6:g} us"
    rough = "" if told["effort"] == "full" else f" ({told['effort']} run)"
    parts.append(svg.text(24, y, f"{told['date']}{rough}; caslock {told['caslock']}; {facts}", "grey", 11))
    parts.append(svg.text(24, y + 15, "open circle: broken off before its end, for it takes too long", "grey", 11))
    return svg.picture(y + 32, parts)


def _curves(rows: Sequence[Row], column: str) -> list[Curve]:
    def name(row: Row) -> str:
        threads = int(str(row["threads"]))
        return f"{row['contender']}, {threads} threads a process" if threads > 1 else f"{row['contender']}"

    curves = []
    ordered = sorted(rows, key=lambda row: (str(row["contender"]), int(str(row["threads"]))))
    for title, group in groupby(ordered, key=name):
        rows_of = list(group)
        points = [(float(str(row["waiters"])), float(str(row[column]))) for row in rows_of]
        ours = title.startswith("caslock")
        dashes = "7 4" if "can't" in title else ""
        paint = "peer" if not ours else "floor" if "threads" in title else "ours"
        broken = [point for point, row in zip(points, rows_of, strict=True) if row["error"]]
        curves.append(Curve(title, paint, dashes, points, broken))
    return curves


def _plot(title: str, unit: str, left: float, curves: Sequence[Curve]) -> Iterator[str]:
    plot = _stand(left, curves)
    yield svg.text(left, TOP - 24, title, size=14, bold=True)
    for power in range(plot.x[0], plot.x[1] + 1):
        x, _ = plot.at((10.0**power, 10.0 ** plot.y[0]))
        yield svg.upright(x, TOP, TOP + PLOT)
        yield svg.text(x, TOP + PLOT + 18, f"{10**power:,}", "grey", 11, "middle")
    yield svg.text(left + PLOT / 2, TOP + PLOT + 36, "waiters", "grey", 11.5, "middle")
    for power in range(plot.y[0], plot.y[1] + 1):
        _, y = plot.at((10.0 ** plot.x[0], 10.0**power))
        yield svg.level(y, left, left + PLOT)
        yield svg.text(left - 8, y + 4, f"{10.0**power:,g} {unit}".strip(), "grey", 11, "end")
    for curve in curves:
        yield _path([plot.at(point) for point in curve.points if point[1] > 0], curve)
        for x, y in map(plot.at, curve.broken):
            yield f'<circle class="card {curve.paint}-line" cx="{x:.1f}" cy="{y:.1f}" r="4" stroke-width="2"/>'


def _named(left: float, curves: Sequence[Curve]) -> Iterator[str]:
    """Write the last figure of each curve beside its end, where there is room."""
    plot, taken = _stand(left, curves), list[float]()
    for curve in sorted(curves, key=lambda curve: curve.paint != "ours"):
        x, y = plot.at(curve.points[-1])
        if all(abs(y - other) > SPACE for other in taken):
            taken.append(y)
            yield svg.text(x + 8, y + 4, show(curve.points[-1][1]), f"{curve.paint} halo", 11)


def _stand(left: float, curves: Sequence[Curve]) -> Plot:
    points = [point for curve in curves for point in curve.points if point[1] > 0] or [(1.0, 1.0)]
    return Plot(left, _span([x for x, _ in points]), _span([y for _, y in points]))


def _span(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def _path(points: Sequence[Point], curve: Curve) -> str:
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{curve.dashes}"' if curve.dashes else ""
    return f'<path class="curve {curve.paint}-line" d="M{line}"{dashes}/>'
