"""Draws the SVG picture of `booking.py`.  This file is not an example by itself."""

from __future__ import annotations

import colorsys
from bisect import bisect_left
from collections import Counter, defaultdict
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

SPAN: Final = 0.5  # seconds of each run that are drawn, the busiest ones
TICK: Final = 0.05
MOST_ROOMS: Final = 16

WIDTH, LEFT, RIGHT = 1280, 90, 30
HEAD, PANEL_HEAD, AXIS = 136, 44, 40
ROW, BAR, STRIP = 25, 16, 3

HUES: Final = (0.58, 0.11, 0.42, 0.78)  # of the data centres; red is for clashes
RED, INK, GREY, LINE, BAND = "#e3262e", "#1c2330", "#69717f", "#d5dae2", "#f3f5f8"

FONT: Final = "Helvetica, Arial, DejaVu Sans, sans-serif"

INTRODUCTION: Final = (
    "Each bar is a server that handles a request for a room: it checks, charges a card, and writes the booking. "
    "Thin lines: it checked and refused."
)


class Visit(NamedTuple):
    """One request, handled by one server: when it asked for the lock, began and ended (seconds on one clock)."""

    server: str
    night: int
    room: int
    guest: int
    asked: float
    began: float
    ended: float
    booking: int | None  # None: refused


class Panel(NamedTuple):
    """One run, with its title."""

    title: str
    visits: Sequence[Visit]
    doubles: Collection[int]  # the bookings that should have been refused


class Clash(NamedTuple):
    """A time in which two servers worked on one room."""

    room: int
    began: float
    ended: float


def clashes(visits: Sequence[Visit]) -> list[Clash]:
    """Find every visit that began before another one to the same room had ended."""
    found: list[Clash] = []
    busy: dict[int, float] = {}
    for visit in sorted(visits, key=lambda visit: visit.began):
        until = busy.get(visit.room, visit.began)
        if visit.began < until:
            found.append(Clash(visit.room, visit.began, min(until, visit.ended)))
        busy[visit.room] = max(until, visit.ended)
    return found


def picture(panels: Sequence[Panel], servers: Sequence[str]) -> str:
    """Draw the panels, one below the other."""
    paint = colours(servers)
    views: list[View] = []
    height = HEAD
    for panel in panels:
        views.append(look(panel, height))
        height = views[-1].foot + AXIS
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}">',
            rectangle(0, 0, WIDTH, height, "white"),
            text(24, 38, "Who was in which room when", size=22, weight="bold"),
            text(24, 60, INTRODUCTION, fill=GREY),
            *legend(paint),
            *chain.from_iterable(draw(panel, view, paint) for panel, view in zip(panels, views, strict=True)),
            "</svg>\n",
        ]
    )


class View(NamedTuple):
    """The part of a run that is drawn, and where."""

    zero: float  # when the run began
    start: float
    top: int
    rows: dict[int, int]  # y by room

    @property
    def foot(self) -> int:
        """The coordinate below the last row."""
        return self.top + PANEL_HEAD + ROW * len(self.rows)

    def sees(self, began: float, ended: float) -> bool:
        """Whether any of this time is drawn."""
        return began < self.start + SPAN and ended > self.start

    def x(self, moment: float) -> float:
        """Convert a moment to a coordinate."""
        part = (moment - self.start) / SPAN
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(part, 0.0), 1.0)

    def bar(self, began: float, ended: float, y: int, height: int, fill: str, title: str) -> str:  # noqa: PLR0917 - the four of a box, in their usual order
        """Draw a stretch of time."""
        x = self.x(began)
        return rectangle(x, y, max(self.x(ended) - x, 1.2), height, fill, title)


def look(panel: Panel, top: int) -> View:
    """Choose the busiest part: the one with most clashes, or without any, with most waiting."""
    zero = min(visit.asked for visit in panel.visits)
    moments = [clash.began for clash in clashes(panel.visits)] or [
        visit.began for visit in panel.visits if visit.began - visit.asked > TICK / 50
    ]
    moments = sorted(moment - zero for moment in moments) or [0.0]
    starts = sorted({int(moment / TICK) * TICK for moment in moments})
    start = max(starts, key=lambda start: bisect_left(moments, start + SPAN) - bisect_left(moments, start))
    view = View(zero, zero + start, top, {})
    visitors = Counter(visit.room for visit in panel.visits if view.sees(visit.asked, visit.ended))
    rooms = sorted(room for room, _ in visitors.most_common(MOST_ROOMS))
    return view._replace(rows={room: top + PANEL_HEAD + ROW * n for n, room in enumerate(rooms)})


def draw(panel: Panel, view: View, paint: dict[str, str]) -> Iterator[str]:
    """Draw a run: a row for each room, and the time below."""
    visits = [visit for visit in panel.visits if visit.room in view.rows]
    yield f'<g id="{panel.title.lower().replace(" ", "-")}">'
    facts = f"{len(panel.visits):,} requests, {len(panel.doubles):,} double bookings"
    yield text(24, view.top + 24, f"{panel.title}: {facts}", size=16, weight="bold")
    yield text(WIDTH - RIGHT, view.top + 24, f"its busiest {SPAN:g} seconds", anchor="end", fill=GREY)
    yield from grid(view)
    for visit in visits:
        y, title = view.rows[visit.room], tell(visit, panel.doubles)
        if view.sees(visit.asked, visit.began) and view.x(visit.began) - view.x(visit.asked) > 1:
            yield view.bar(visit.asked, visit.began, y + BAR + 2, STRIP, paint[visit.server], f"waiting: {title}")
        if view.sees(visit.began, visit.ended):
            yield view.bar(visit.began, visit.ended, y, BAR, paint[visit.server], title)
    for clash in clashes(visits):
        if view.sees(clash.began, clash.ended):
            yield view.bar(clash.began, clash.ended, view.rows[clash.room], BAR, RED, "two servers in one room")
    for visit in visits:
        if visit.booking in panel.doubles and view.sees(visit.ended, visit.ended):
            yield cross(view.x(visit.ended), view.rows[visit.room] + BAR / 2)
    yield "</g>"


def grid(view: View) -> Iterator[str]:
    """Draw the background of the bars."""
    for room, y in view.rows.items():
        yield rectangle(LEFT, y, WIDTH - LEFT - RIGHT, ROW - 3, BAND)
        yield text(LEFT - 10, y + 13, f"room {room}", anchor="end")
    for n in range(round(SPAN / TICK) + 1):
        moment = view.start + TICK * n
        x = view.x(moment)
        yield f'<path d="M{x:.1f} {view.top + PANEL_HEAD - 4}V{view.foot}" stroke="{LINE}"/>'
        yield text(x, view.foot + 14, f"{moment - view.zero:.2f} s", size=11, anchor="middle", fill=GREY)


def tell(visit: Visit, doubles: Collection[int]) -> str:
    """Describe a bar, for the tooltip."""
    result = "refused" if visit.booking is None else "DOUBLE BOOKING" if visit.booking in doubles else "taken"
    waited, stayed = 1000 * (visit.began - visit.asked), 1000 * (visit.ended - visit.began)
    return (
        f"{visit.server}, room {visit.room}, night {visit.night}, guest {visit.guest}: {result} "
        f"(waited {waited:.1f} ms, stayed {stayed:.1f} ms)"
    )


def colours(servers: Sequence[str]) -> dict[str, str]:
    """Give the servers of each data centre shades of one colour."""
    centres: defaultdict[str, list[str]] = defaultdict(list)
    for server in servers:
        centres[centre_of(server)].append(server)
    paint: dict[str, str] = {}
    for n, members in enumerate(centres.values()):
        for m, server in enumerate(members):
            lightness = 0.40 + 0.34 * m / max(len(members) - 1, 1)
            rgb = colorsys.hls_to_rgb(HUES[n % len(HUES)], lightness, 0.85)
            paint[server] = "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
    return paint


def centre_of(server: str) -> str:
    """Return the data centre of a server."""
    return server.partition("-")[0]


def legend(paint: dict[str, str]) -> Iterator[str]:
    """Draw the legend."""
    x = 24
    for centre in dict.fromkeys(map(centre_of, paint)):
        yield text(x, 94, f"Data centre {centre}:", weight="bold")
        x += 122
        for server, fill in paint.items():
            if centre_of(server) == centre:
                yield rectangle(x, 82, 18, BAR, fill)
                yield text(x + 24, 94, server)
                x += 76
    yield rectangle(24, 106, 18, BAR, RED)
    yield text(48, 118, "two servers in one room")
    yield cross(242, 114)
    yield text(257, 118, "double booking")
    yield rectangle(384, 113, 18, STRIP, GREY)
    yield text(408, 118, "waiting for the lock")


def rectangle(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:  # noqa: PLR0917 - the four of a box, in their usual order
    """Draw a box; the title is its tooltip."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{fill}">{inside}</rect>'


def cross(x: float, y: float) -> str:
    """Draw the mark of a double booking."""
    lines = f"M{x - 4:.1f} {y - 4:g}l8 8m0 -8l-8 8"
    return f'<path d="{lines}" stroke="white" stroke-width="4.5"/><path d="{lines}" stroke="{INK}" stroke-width="2"/>'


def text(
    x: float, y: float, words: str, *, size: int = 13, weight: str = "normal", anchor: str = "start", fill: str = INK
) -> str:
    """Draw a line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{fill}">{escape(words)}</text>'
    )
