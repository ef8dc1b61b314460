"""``caslock break``: takes a key away from its holder."""

from __future__ import annotations

import logging
import sys

import click

from caslock.cli.holders import fields, print_json, printable
from caslock.cli.main import FAILED, say
from caslock.cli.show import FREE
from caslock.cli.which_store import json_option, opened, store_option


@click.command("break")
@click.argument("key")
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(key: str, url: str | None, *, yes: bool, as_json: bool) -> int:
    """Take KEY away from whoever holds it.

    The holder learns of it when it renews its lease, or releases.  What it does until then, only a resource that checks
    fencing numbers can refuse.

    \b
    Example:
      caslock break room:42 --yes --store redis://localhost

    Exit status: 0 done, 1 nobody held it, or the answer was no, 2 the store could not be reached, or nobody could be
    asked.
    """  # noqa: D301 - \b is a mark for click
    from caslock.blocking import Lock  # noqa: PLC0415 - not for `--help`

    with opened(url, looks=True) as store:
        lock = Lock(store, key)
        holder = lock.holder()
        asked = None
        while holder is not None and not yes and asked != (holder.owner, holder.fence, holder.since_iso, holder.holds):
            if not sys.stdin.isatty():
                say("nobody is here to be asked: give --yes")
                return FAILED
            if not click.confirm(printable(f"{key!r} is held by {holder}. Take it away?"), err=True):
                return FREE
            asked = holder.owner, holder.fence, holder.since_iso, holder.holds
            holder = lock.holder()  # the answer may have taken long, and concerns no later holder
        logging.getLogger("caslock").setLevel(logging.ERROR)  # what it warns of is printed below
        taken = None if holder is None else lock.force_release()
    if as_json:
        print_json(fields(key, taken))
    else:
        nobody = f"nobody holds {key!r} at {store.traits.location}"
        click.echo(nobody if taken is None else printable(f"{key!r} was taken from {taken}"))
    return FREE if taken is None else 0
