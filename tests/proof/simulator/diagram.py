"""Draws a run as a sequence diagram in SVG.

Clients and the store are lifelines, time runs down, and each step is a row.  Requests are arrows from where they were
sent to where they arrived, replies are dashed, and what is lost is cut.
A bar shows for how long a client believes that it holds a key.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from tests.proof.simulator.story import ask, line, stands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.proof.simulator.story import Step, Violation

LEFT, LANE, ROW, HEAD, FOOT, BAR = 80, 340, 34, 96, 30, 10
INK, GREY, LINE, BLUE, RED, GREEN = "#1c2330", "#69717f", "#d5dae2", "#2f6fde", "#d8232a", "#2e9d57"
FONT: Final = "Helvetica, Arial, DejaVu Sans, sans-serif"

_LOST: Final = ("lost", "no answer", "not sent", "the connection is lost", "the reply is lost")


def diagram(violation: Violation) -> str:
    """Draw the story of a violation."""
    return "\n".join([*_Diagram(violation.law, violation.story).draw(), ""])


class _Diagram:
    def __init__(self, title: str, story: Sequence[Step]) -> None:
        self._title = title
        self._story = story
        clients = dict.fromkeys(_lane(step.who) for step in story if step.who)
        lanes = [*sorted(clients), "the store"]
        self._x = {lane: LEFT + LANE / 2 + LANE * n for n, lane in enumerate(lanes)}
        self._width = LEFT + LANE * len(lanes) + 20
        self._foot = HEAD + ROW * len(story) + 10

    def draw(self) -> Iterator[str]:
        """Draw everything."""
        width, height = self._width, self._foot + FOOT
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" font-family="{FONT}">'
        )
        yield f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
        yield _text(16, 28, self._title, size=15, weight="bold", fill=RED)
        yield _text(16, 48, "Bars: who believes that it holds.  Dashed: replies.  Crosses: lost.", fill=GREY)
        yield from self._lifelines()
        yield from self._beliefs()
        last = -1.0
        for row, step in enumerate(self._story):
            if step.time != last:
                yield _text(16, self._y(row) + 4, f"{step.time:.3f} s", fill=GREY, size=11)
                last = step.time
            yield f"<g><title>{escape(line(step))}</title>"
            yield from self._step(row, step)
            yield "</g>"
        yield "</svg>"

    def _y(self, row: int) -> float:
        return HEAD + ROW * row + ROW / 2

    def _lifelines(self) -> Iterator[str]:
        for lane, x in self._x.items():
            yield f'<path d="M{x:g} {HEAD - 12}V{self._foot:g}" stroke="{LINE}" stroke-width="2"/>'
            yield f'<rect x="{x - 45:g}" y="{HEAD - 34}" width="90" height="22" rx="4" fill="{INK}"/>'
            yield _text(x, HEAD - 19, lane, fill="white", anchor="middle", weight="bold")

    def _beliefs(self) -> Iterator[str]:
        began: dict[tuple[str, str], int] = {}
        ended: dict[tuple[str, str], int] = {}
        for row, step in enumerate(self._story):
            for hold in step.beliefs:
                (ended if (_lane(step.who), hold) in began else began)[_lane(step.who), hold] = row
        for n, ((lane, hold), row) in enumerate(began.items()):
            x = self._x[lane] - BAR / 2 - 14 * (n % 2)
            top, foot = self._y(row), self._y(ended.get((lane, hold), len(self._story) - 1))
            size = f'width="{BAR}" height="{max(foot - top, 6):g}"'
            title = f"<title>{escape(f'{lane} believes in {hold}')}</title>"
            yield f'<rect x="{x:g}" y="{top:g}" {size} rx="3" fill="{GREEN}" opacity="0.75">{title}</rect>'

    def _step(self, row: int, step: Step) -> Iterator[str]:
        y = self._y(row)
        if step.request is None:
            if not step.who:
                fill = RED if step.what.startswith("VIOLATION") else GREY
                yield f'<path d="M{LEFT} {y:g}H{self._width - 20:g}" stroke="{fill}" stroke-dasharray="1 5"/>'
                yield _text(LEFT + 4, y - 4, step.what, fill=fill, size=12)
            else:
                x = self._x[_lane(step.who)]
                yield f'<circle cx="{x:g}" cy="{y:g}" r="3.5" fill="{INK}"/>'
                yield _text(x + 10, y + 4, step.what, size=12, halo=True)
            return
        yield from self._request(row, step)

    def _request(self, row: int, step: Step) -> Iterator[str]:
        assert step.request is not None
        x, store, y = self._x[_lane(step.who)], self._x["the store"], self._y(row) - 8
        sent = min(self._y(max(step.sent, 0)), y) if row - step.sent > 1 or "late" in step.what else y
        lost = step.what in _LOST
        if step.arrives:
            yield _arrow(x, sent, store, y, BLUE)
        elif lost:
            middle = x + (store - x) * 0.45
            yield _arrow(x, y, middle, y, BLUE, head=False) + _cross(middle, y)
        what = "" if step.what == "go" else f" [{step.what}]"
        yield _text(x + 10, y - 4, ask(step.request) + what, size=11, fill=RED if lost else INK, halo=True)
        if step.answer is not None and not step.what.startswith("lands"):
            yield _arrow(store, y + 12, x, y + 12, GREY, dashed=True)
            words = ", ".join(map(stands, step.answer))
            yield _text(store - 8, y + 23, words, size=10, fill=GREY, anchor="end", halo=True)
        elif step.what == "the reply is lost":
            middle = store - (store - x) * 0.4
            yield _arrow(store, y + 12, middle, y + 12, GREY, head=False, dashed=True) + _cross(middle, y + 12)


def _lane(who: str) -> str:
    """Whose lifeline: a renewer's is its client's."""
    return who.partition("'")[0].partition(" ")[0]


def _arrow(x: float, y: float, to: float, down: float, stroke: str, *, head: bool = True, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    found = f'<path d="M{x:.1f} {y:.1f}L{to:.1f} {down:.1f}" stroke="{stroke}" stroke-width="1.6" fill="none"{dash}/>'
    if head:
        back = -7 if to > x else 7
        found += f'<path d="M{to:.1f} {down:.1f}l{back} -4v8z" fill="{stroke}"/>'
    return found


def _cross(x: float, y: float) -> str:
    return f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{RED}" stroke-width="2.2"/>'


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    weight: str = "normal",
    anchor: str = "start",
    fill: str = INK,
    halo: bool = False,
) -> str:
    behind = ' stroke="white" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{fill}"{behind}>{escape(words)}</text>'
    )
