"""How commands show who holds a key.  What is in a record was written by others: no terminal gets it as it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from caslock.store import ListingStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from caslock.protocol.record import Record
    from caslock.store import Store

COLUMNS = ("key", "owner", "since", "note")


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


def row(key: str, record: Record) -> list[str]:
    """Return the columns of a key."""
    note = f"{record.note} (handed over, awaits adoption)".lstrip() if record.handed_over else record.note
    return [printable(each) for each in (key, record.owner, record.since_iso, note)]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for each in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip()
