"""How commands show who holds a key.  What is in a record was written by others: no terminal gets it as it is."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from caslock.store import ListingStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from caslock.protocol.record import Record
    from caslock.store import Store

COLUMNS: Final = ("key", "state", "host", "pid", "age", "owner", "note")

_RANDOM: Final = re.compile(":([0-9a-f]{8})[0-9a-f]{24}")
"""How the owner of a lock ends that was given none: 8 of its 32 digits tell it from others."""

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def holders(store: Store, prefix: str) -> Iterator[tuple[str, int, Record]]:
    """Give each key that is held, its version and its record, sorted; refuse a store that can't list its keys."""
    from caslock.protocol.record import decode, fence_of  # noqa: PLC0415 - not for `--help`

    if not isinstance(store, ListingStore):
        raise click.UsageError(f"{store.traits.location} can't list its keys: ask for one with caslock show")
    for key, entry in sorted(store.list(prefix)):
        record = decode(entry.value)
        for each in () if record.free else record.each:
            fence = fence_of(each, entry.version) if store.traits.fences and not each.foreign else None
            yield key, entry.version, each._replace(fence=fence)


def fields(key: str, record: Record | None) -> dict[str, object]:
    """Return what --json prints of a key; one that is kept by ``min_hold`` is not held any more."""
    if record is None:
        return {"key": key, "held": False, "kept": False, "handed_over": False}
    if record.shares and not record.owner:
        holders = [fields(key, each) for each in record.each]
        return {"key": key, "held": True, "kept": False, "permits": record.permits, "holders": holders}
    slot = {"permits": record.permits, "slot": record.shares[0].slot} if record.shares else {}
    return {
        "key": key,
        "held": not record.kept,
        "kept": record.kept,
        "handed_over": record.handed_over,
        "owner": record.owner,
        "fence": record.fence,
        "since": record.since_iso,
        "ttl": record.ttl,
        "host": record.host,
        "pid": record.pid,
        "note": record.note,
        **slot,
    }


def print_json(value: object) -> None:
    """Print JSON."""
    click.echo(json.dumps(value))


def printable(text: object) -> str:
    """Return a text without what could change a terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text))


def state(record: Record) -> str:
    """Say in a word or two how the key is taken."""
    if record.foreign:
        return "not caslock's"
    if record.shares:
        slot = record.shares[0].slot
        return f"slot {slot}" if record.permits else ("reads", "writes", "waits")[slot]
    return "kept" if record.kept else "handed over" if record.handed_over else "held"


def age(record: Record) -> str:
    """Say how long ago a tenure began, in one unit; nothing if the record does not tell when."""
    if record.since is None:
        return ""
    seconds = max(0.0, time.time() - record.since.timestamp())
    for length, unit in _UNITS:
        if seconds >= 2 * length or unit == "s":
            return f"{seconds / length:.0f} {unit}"
    raise AssertionError


def row(key: str, record: Record) -> list[str]:
    """Return the columns of a key."""
    owner = _RANDOM.fullmatch(record.owner.removeprefix(record.host))
    who = owner[1] if owner else record.owner
    pid = "" if record.foreign else record.pid
    return [printable(each) for each in (key, state(record), record.host, pid, age(record), who, record.note)]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows in columns; at a terminal, cut what is too long for a line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for each in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip()
        yield line if len(line) <= width else f"{line[: width - 1]}…"
