"""``caslock show``: who holds a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from caslock.cli.holders import age, fields, print_json, printable, state
from caslock.cli.which_store import json_option, opened, store_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.protocol.record import Record

FREE = 1
"""Exit status: nobody holds the key."""


@click.command("show")
@click.argument("key")
@store_option
@json_option
def command(key: str, url: str | None, *, as_json: bool) -> int:
    """Say who holds KEY.

    \b
    Example:
      caslock show room:42 --store redis://localhost

    Exit status: 0 somebody does, 1 nobody does, 2 the store could not be reached.
    """  # noqa: D301 - \b is a mark for click
    from caslock.blocking import Lock  # noqa: PLC0415 - not for `--help`

    with opened(url, looks=True) as store:
        holder = Lock(store, key).holder()
    if as_json:
        print_json(fields(key, holder))
    elif holder is None:
        click.echo(f"nobody holds {key!r} at {store.traits.location}")
    else:
        told = [[("key", key), *_told(each)] for each in holder.each]
        click.echo("\n\n".join("\n".join(f"{name:8} {printable(what)}" for name, what in each) for each in told))
    return FREE if holder is None else 0


def _told(record: Record) -> Iterator[tuple[str, object]]:
    """Give what is known of a holder."""
    if record.kept:
        yield "state", f"kept: its holder has released it, and min_hold keeps it for {record.ttl:.5g} s after that"
    elif record.handed_over:
        yield "state", "handed over, awaits adoption"
    elif record.permits:
        yield "state", f"{state(record)} of {record.permits}"
    else:
        yield "state", state(record)
    yield "owner", record.owner
    if record.host:
        yield "process", f"pid {record.pid} on {record.host}"
    if record.since is not None:
        yield "since", f"{record.since_iso} ({age(record)} ago)"
    if record.ttl and not record.kept:
        yield "lease", f"{record.ttl:g} s from its last renewal"
    if record.fence is not None:
        yield "fence", record.fence
    if record.note:
        yield "note", record.note
