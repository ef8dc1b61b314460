"""``caslock list``: which keys are held."""

from __future__ import annotations

import click

from caslock.cli.holders import COLUMNS, fields, holders, print_json, row, table
from caslock.cli.main import say
from caslock.cli.which_store import json_option, opened, store_option


@click.command("list")
@click.argument("prefix", default="")
@store_option
@json_option
def command(prefix: str, url: str | None, *, as_json: bool) -> None:
    """List the keys that are held, and begin with PREFIX.

    The owner of a lock that was given none is shortened to 8 digits; --json has the whole one.

    \b
    Example:
      caslock list room: --store redis://localhost

    Exit status: 0, or 2 if the store could not be reached or can't list its keys.
    """  # noqa: D301 - \b is a mark for click
    with opened(url, looks=True) as store:
        held = [(key, record) for key, _, record in holders(store, prefix)]
    if as_json:
        print_json([fields(key, record) for key, record in held])
    elif held:
        click.echo("\n".join(table([[name.upper() for name in COLUMNS], *(row(*each) for each in held)])))
    else:
        which = f"no key that begins with {prefix!r}" if prefix else "no key"
        say(f"{which} is held at {store.traits.location}")
