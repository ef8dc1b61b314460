"""``caslock show``: who holds a key."""

from __future__ import annotations

import click

from caslock.cli.holders import fields, print_json, printable
from caslock.cli.which_store import json_option, opened, store_option

FREE = 1
"""Exit status: nobody holds the key."""


@click.command("show")
@click.argument("key")
@store_option
@json_option
def command(key: str, url: str | None, *, as_json: bool) -> int:
    """Say who holds KEY.

    Exit status: 0 somebody does, 1 nobody does, 2 the store could not be reached.
    """
    from caslock.blocking import Lock  # noqa: PLC0415 - not for `--help`

    with opened(url, looks=True) as store:
        holder = Lock(store, key).holder()
    if as_json:
        print_json(fields(key, holder))
    elif holder is None:
        click.echo("nobody")
    else:
        for each in holder.each:
            slot = f"slot {each.shares[0].slot} of {each.permits}: " if each.shares else ""
            fence = "" if each.fence is None else f", fencing number {each.fence}"
            click.echo(printable(f"{slot}{each}{fence}"))
    return FREE if holder is None else 0
