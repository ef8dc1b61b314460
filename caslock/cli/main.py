"""The command line.  Exit code: 0 all is well, 1 a law was broken, 2 it could not be tried."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from caslock import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="caslock", description="Locks on the store you already run.")
    parser.add_argument("--version", action="version", version=f"caslock {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser(
        "verify",
        help="test a store: the contract of a store, then torture",
        description="Run the contract of a store, then torture: real processes whose requests are lost, late and "
        "doubled, which are stopped, killed, forked and interrupted, and a judge of what they believed.  It uses keys "
        "of its own only (caslock-verify:...), and removes them.  Exit: 0 passed, 1 a law was broken, 2 not tried.",
    )
    verify.add_argument("url", nargs="?", default="", help="the store, as caslock.connect takes it")
    verify.add_argument(
        "--store", default="", metavar="MODULE:FACTORY", help="in place of a URL: what makes your store"
    )
    verify.add_argument("--seconds", type=_seconds, default=60.0, help="of torture (60)")
    verify.add_argument("--seed", type=int, default=None, help="of all that is left to chance")
    verify.add_argument("--json", action="store_true", help="print the report as JSON")
    verify.add_argument("--timeline", default="", metavar="FILE.svg", help="draw who held which key when")
    options = parser.parse_args(arguments)
    if bool(options.url) == bool(options.store):
        parser.error("name a store by its URL, or by --store module:factory")

    from caslock.cli.verify import verify as run  # noqa: PLC0415 - only what is asked for

    return run(options.url, options.store, options.seconds, options.seed, options.timeline, as_json=options.json)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:  # noqa: PLR2004 - a day
        raise argparse.ArgumentTypeError("a number of seconds, more than 0 and at most a day of 86,400 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
