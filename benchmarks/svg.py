"""Draws SVG that is readable on light and dark pages and needs no font or script of its own."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WIDTH: Final = 860
FONT: Final = "Helvetica, Arial, DejaVu Sans, sans-serif"

_LIGHT: Final = {
    "card": "#ffffff", "edge": "#d5dae2", "ink": "#1c2330", "grey": "#5d6675", "line": "#e3e7ed",
    "ours": "#2563eb", "peer": "#8a94a6", "floor": "#c3a15a", "bad": "#b42318",
}  # fmt: skip
_DARK: Final = {
    "card": "#10151d", "edge": "#2b3442", "ink": "#e8ecf2", "grey": "#9aa5b5", "line": "#232b37",
    "ours": "#5b9bff", "peer": "#77839a", "floor": "#b08d45", "bad": "#ff8a7a",
}  # fmt: skip


def picture(height: float, parts: Iterable[str]) -> str:
    """Put the parts on a card with a background of its own."""
    style = f"{_rules(_LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_rules(_DARK)}\n}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="{FONT}">',
            f"<style>\n{style}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _rules(paint: dict[str, str]) -> str:
    fills = [f".{name} {{ fill: {colour} }}" for name, colour in paint.items() if name not in {"card", "edge", "line"}]
    return "\n".join(
        [
            f".card {{ fill: {paint['card']}; stroke: {paint['edge']} }}",
            f".line {{ stroke: {paint['line']}; fill: none }}",
            *fills,
            f".halo {{ paint-order: stroke; stroke: {paint['card']}; stroke-width: 3px }}",
        ]
    )


def text(  # noqa: PLR0917 - where, what, and how it is painted
    x: float, y: float, words: str, paint: str = "ink", size: float = 13, anchor: str = "start", *, bold: bool = False
) -> str:
    """Write a line."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text class="{paint}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"{weight}>'
        f"{escape(words)}</text>"
    )


def bar(x: float, y: float, width: float, height: float, paint: str, *, pale: bool = False) -> str:
    """Draw a bar."""
    opacity = ' opacity="0.35"' if pale else ""
    return f'<rect class="{paint}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:g}"{opacity}/>'


def upright(x: float, top: float, foot: float) -> str:
    """Draw a line of the grid."""
    return f'<path class="line" d="M{x:.1f} {top:.1f}V{foot:.1f}"/>'


def ticks(most: float, about: int = 5) -> Iterator[float]:
    """Give round numbers from 0 to at least `most`."""
    if not most > 0:
        most = 1.0
    rough = most / about
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * part for part in (1, 2, 2.5, 5, 10) if unit * part >= rough * 0.999)
    for number in range(math.ceil(most / step - 1e-9) + 1):
        yield number * step
