"""The law of this file: the same run again needs its store, its seconds and its seed, and no more."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from caslock.testing.torture.own import OWN, Server, own_store
from caslock.testing.torture.plan import Plan
from caslock.testing.torture.run import torture


def main() -> int:
    """Torture a store, and print the report as JSON; exit 1 when a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m caslock.testing.torture", description=main.__doc__)
    parser.add_argument(
        "store",
        help="a URL, as caslock.connect takes it; or sqlite, redis or memcached: one of our own, whose server is "
        "stopped, killed and out of memory besides",
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ttl", type=float, nargs=2, metavar=("SHORTEST", "LONGEST"), default=Plan.ttls)
    parser.add_argument("--keys", type=int, default=Plan.keys)
    parser.add_argument("--workers", type=int, default=Plan.workers)
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("--tasks", type=int, default=Plan.tasks)
    given = vars(parser.parse_args())
    url, (shortest, longest) = given.pop("store"), given.pop("ttl")
    with contextlib.ExitStack() as stack:
        server: Server | None = None
        if url in OWN:
            try:
                url, server = stack.enter_context(own_store(url))
            except FileNotFoundError as error:
                parser.error(str(error))
        outcome = torture(Plan(url, ttls=(shortest, longest), **given), server=server)
    json.dump(outcome.report.to_dict(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if outcome.report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
