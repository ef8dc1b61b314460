"""``caslock top``: a live table of the keys that are held."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from caslock.cli.holders import COLUMNS, fields, holders, print_json, row
from caslock.cli.seconds import Seconds
from caslock.cli.which_store import json_option, opened, store_option
from caslock.errors import StoreUnavailable

if TYPE_CHECKING:
    from rich.table import Table

    from caslock.protocol.record import Record
    from caslock.store import Store


@click.command("top")
@click.argument("prefix", default="")
@store_option
@click.option("--interval", type=Seconds(0.1, 3600), default=1.0, show_default=True, help="Seconds between two looks.")
@json_option
def command(prefix: str, url: str | None, interval: float, *, as_json: bool) -> None:
    """Watch the keys that are held, and begin with PREFIX, until Ctrl-C.

    LEFT is how long the lease can last if it is not renewed.  With --json, each look is one line.

    \b
    Example:
      caslock top room: --interval 2 --store redis://localhost
    """  # noqa: D301 - \b is a mark for click
    if not (as_json or sys.stdout.isatty()):
        raise click.UsageError("top needs a terminal: use caslock list, or --json")
    with opened(url, looks=True) as store:
        leases = Leases(store, prefix)
        if as_json:
            while True:
                print_json([fields(key, record) | {"left": left} for key, record, left in leases.look()])
                time.sleep(interval)
        try:
            _show(leases, interval)
        except KeyboardInterrupt:
            return


class Leases:
    """What is held, and how long at most: a store does not say when a lease began, but a change of it can be seen."""

    def __init__(self, store: Store, prefix: str) -> None:
        """Begin with nothing seen."""
        self.store = store
        self._prefix = prefix
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def look(self) -> list[tuple[str, Record, float]]:
        """Give each key, its record, and how many seconds its lease can last at most."""
        now, seen, leases = time.monotonic(), self._seen, []
        self._seen = {}
        for key, version, record in holders(self.store, self._prefix):
            name, number, still = "", version, 0.0
            for share in record.shares:  # the only one: others write the record, too, but leave its beat as it is
                name, number, still = share.hold, share.beat, share.still
            before, since = seen.get((key, name), (None, now))
            since = min(since if before == number else now, now - still)
            self._seen[key, name] = number, since
            leases.append((key, record, max(0.0, record.ttl - (now - since))))
        return leases


def _show(leases: Leases, interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 - it takes as long as all the rest
    from rich.text import Text  # noqa: PLC0415 - as above

    with Live(Text("..."), auto_refresh=False, screen=True) as live:
        while True:
            try:
                live.update(_table(leases), refresh=True)
            except StoreUnavailable as error:  # it may answer again
                live.update(Text(str(error), style="red"), refresh=True)
            time.sleep(interval)


def _table(leases: Leases) -> Table:
    from rich.table import Column, Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    held = leases.look()
    *names, note = COLUMNS
    kept = sum(record.kept for _, record, _ in held)
    title = f"{len(held) - kept} held" + (f", {kept} kept" if kept else "") + f" at {leases.store.traits.location}"
    columns = [Column(name.upper(), no_wrap=True) for name in (*names, "left", note)]
    table = Table(*columns, title=Text(title, no_wrap=True, overflow="ellipsis"), box=None, expand=True)
    for key, record, left in held:
        *cells, note = row(key, record)
        table.add_row(*map(Text, (*cells, f"{left:.0f} s", note)))
    return table
