"""Lays out tables.  A candidate that failed is in them, with its error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Cell: TypeAlias = "str | float | int | None"
Row: TypeAlias = "Mapping[str, Cell]"

_HIDDEN = {"kind", "error"}


def tables(title: str, rows: Sequence[Row]) -> str:
    """Lay out rows; those of contention in one table for each crew and hold time."""
    if not rows or "crew" not in rows[0]:
        return table(title, rows)
    cells = dict.fromkeys((row["crew"], row["hold_ms"]) for row in rows)
    parts = []
    for crew, hold in cells:
        chosen = [row for row in rows if (row["crew"], row["hold_ms"]) == (crew, hold)]
        short = [{name: cell for name, cell in row.items() if name not in {"crew", "hold_ms"}} for row in chosen]
        parts.append(table(f"{title}: {crew}, held for {show(hold)} ms", short))
    return "\n".join(parts)


def table(title: str, rows: Sequence[Row]) -> str:
    """Lay out rows, which have the same columns."""
    if not rows:
        return f"\n{title}: nothing was measured"
    columns = [name for name in rows[0] if name not in _HIDDEN]
    head = [name.replace("_", " ") for name in columns]
    body = [[show(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[n]) for line in (head, *body)) for n in range(len(columns))]
    left = [all(isinstance(row[name], str) for row in rows) for name in columns]
    lines = [_line(head, widths, left), "  ".join("-" * width for width in widths)]
    for row, cells in zip(rows, body, strict=True):
        lines.append(_line(cells, widths, left))
        if row.get("error"):
            lines.append(f"    ^ {row['error']}")
    return "\n".join(["", title, *lines])


def show(cell: Cell) -> str:
    """Show a figure with three or four significant digits."""
    if isinstance(cell, float):
        if math.isnan(cell):
            return "-"
        size = abs(cell)
        digits = next((digits for least, digits in ((100, 0), (10, 1), (0.9995, 2)) if size >= least), None)
        return f"{cell:.3g}" if digits is None else f"{cell:,.{digits}f}"
    return "-" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


def _line(cells: Iterable[str], widths: Iterable[int], left: Iterable[bool]) -> str:
    padded = (
        cell.ljust(width) if is_left else cell.rjust(width)
        for cell, width, is_left in zip(cells, widths, left, strict=True)
    )
    return "  ".join(padded).rstrip()
