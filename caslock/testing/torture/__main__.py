"""The law of this file: the same run again needs its store, its seconds and its seed, and no more."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
from dataclasses import replace
from typing import Final

from caslock.errors import StoreError
from caslock.interrupts import interruptible
from caslock.testing.torture import places
from caslock.testing.torture.own import OWN, Server, own_store
from caslock.testing.torture.plan import Plan
from caslock.testing.torture.run import reach, torture

NOT_TRIED: Final = 2
"""What it ends with when it could not even begin."""


def main() -> int:
    """Torture a store, and print the report as JSON; exit 1 when a law was broken, 2 when it could not be tried."""
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
    plan = Plan(url, ttls=(shortest, longest), **given)
    wrong = _wrong(plan)
    if wrong:
        parser.error(wrong)
    struck: list[int] = []
    try:
        with interruptible(struck):
            return _run(plan)
    except KeyboardInterrupt:
        return _say("interrupted; nothing is left behind", 128 + (struck or [signal.SIGINT])[0])


def _wrong(plan: Plan) -> str:
    """Say what a plan can't mean, if anything."""
    shortest, longest = plan.ttls
    if not 0 < plan.seconds < math.inf:
        return f"--seconds must be a number above 0, not {plan.seconds:g}"
    if not 0 < shortest <= longest < math.inf:
        return f"--ttl must be two numbers above 0, the shorter one first, not {shortest:g} {longest:g}"
    for name in ("keys", "workers", "threads", "tasks"):
        if getattr(plan, name) < 1:
            return f"--{name} must be 1 at least, not {getattr(plan, name)}"
    return ""


def _run(plan: Plan) -> int:
    with contextlib.ExitStack() as stack:
        server: Server | None = None
        try:
            if plan.url in OWN:
                url, server = stack.enter_context(own_store(plan.url))
                plan = replace(plan, url=url)
            places.close(reach(plan))
        except (StoreError, ValueError, TypeError, ImportError, AttributeError, OSError, RuntimeError) as error:
            return _say(str(error) or repr(error), NOT_TRIED)
        outcome = torture(plan, server=server)
    json.dump(outcome.report.to_dict(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if outcome.report.passed else 1


def _say(line: str, code: int) -> int:
    sys.stderr.write(f"python -m caslock.testing.torture: {' '.join(line.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
