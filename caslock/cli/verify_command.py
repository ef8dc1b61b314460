"""``caslock verify``: its options."""

from __future__ import annotations

import click

from caslock.cli.seconds import Seconds


@click.command("verify")
@click.argument("url", default="")
@click.option(
    "--store",
    "factory",
    default="",
    metavar="URL|MODULE:FACTORY",
    help="In place of URL: the same, or what makes your store.",
)
@click.option(
    "--seconds",
    type=Seconds(0, 86_400, min_open=True),
    default=60.0,
    show_default=True,
    help="How long torture goes on.",
)
@click.option("--seed", type=int, help="Repeat the random choices of a run.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--timeline", "picture", default="", metavar="FILE.svg", help="Draw who held which key when.")
def command(url: str, factory: str, seconds: float, seed: int | None, *, as_json: bool, picture: str) -> int:
    """Test a store: the contract of a store, then torture.

    Torture is real processes whose requests are lost, late and doubled, which are stopped, killed, forked and
    interrupted, and a judge of what they believed.  It uses keys of its own only (caslock-verify:...), and removes
    them.

    \b
    Example:
      caslock verify redis://localhost --seconds 20

    Exit status: 0 passed, 1 a law was broken, 2 not tried.
    """  # noqa: D301 - \b is a mark for click
    if "://" in factory and not url:
        url, factory = factory, ""
    if bool(url) == bool(factory):
        raise click.UsageError("name a store by its URL, or by --store module:factory")
    from caslock.cli.verify import verify  # noqa: PLC0415 - not for `--help`

    return verify(url, factory, seconds, seed, picture, as_json=as_json)
