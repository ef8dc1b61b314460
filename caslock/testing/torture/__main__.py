"""The law of this file: the same run again needs its URL, its seconds and its seed, and no more."""

from __future__ import annotations

import argparse
import json
import sys

from caslock.testing.torture.plan import Plan
from caslock.testing.torture.run import torture


def main() -> int:
    """Torture a store, and print the report as JSON; exit 1 when a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m caslock.testing.torture", description=main.__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ttl", type=float, nargs=2, metavar=("SHORTEST", "LONGEST"), default=(0.25, 3.0))
    parser.add_argument("--keys", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=8)
    given = vars(parser.parse_args())
    shortest, longest = given.pop("ttl")
    outcome = torture(Plan(ttls=(shortest, longest), **given))
    json.dump(outcome.report.to_dict(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if outcome.report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
