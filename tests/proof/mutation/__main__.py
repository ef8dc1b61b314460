"""Mutation testing: ``python -m tests.proof.mutation`` tries every change, ``--sample 100 --seed 7`` some by chance."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.proof.mutation.changes import changes
from tests.proof.mutation.known import known_survivors
from tests.proof.mutation.runner import SURVIVED, Outcome, Runner

ROOT: Final = Path(__file__).parents[3]

MUTATED: Final = ("caslock/protocol", "caslock/local")

TESTS: Final = (
    "tests/proof/mutation/short_simulator.py",
    "tests/rules",
    *(f"tests/proof/test_{name}.py" for name in ("contract", "faults")),
    *(f"tests/api/test_{name}.py" for name in ("lock", "multilock", "queue", "holds", "asyncio", "renewal", "tasks")),
    *(f"tests/api/test_{name}.py" for name in ("lock_order", "bad_input", "ends", "quorum", "background", "observer")),
    *(f"tests/api/test_{name}.py" for name in ("min_hold", "locked", "fork_and_signals", "key", "linger", "election")),
    *(f"tests/api/test_{name}.py" for name in ("hand_over", "semaphore", "read_write", "errors", "regressions")),
)
"""What concerns the rules and needs no server: of tests for every store those with memory."""

SERVERS: Final = (
    *("dynamodb", "etcd", "hazelcast", "memcached", "mysql", "nats", "postgresql", "redis", "sqlite", "tair"),
    "zookeeper",
)

ELSEWHERE: Final = " and ".join(f"not {name}" for name in (*SERVERS, "takes_one_of_the_users"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; returns 1 if a change survived that is not listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", default=MUTATED, help="files or folders to change")
    parser.add_argument("--sample", type=int, default=0, help="try so many changes only, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="try only changes that have this text in their description")
    parser.add_argument("--again", type=Path, help="the output of an earlier run: try what survived there")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files of tests to run instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at the same time")
    parser.add_argument("--budget", type=float, default=25.0, help="seconds of tests for each change, at the most")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    found = [change for path in _modules(options.files) for change in changes(path, str(path.relative_to(ROOT)))]
    found = [change for change in found if options.only in str(change)]
    if options.again:
        survived = options.again.read_text(encoding="utf-8")
        found = [change for change in found if f"{change}   {SURVIVED}" in survived]
    if options.sample:
        found = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    if not found:
        parser.error("there is nothing to change")
    runner = Runner(found, root=ROOT, jobs=options.jobs, budget=options.budget, say=_say)
    pytest.main(["-q", "-s", "-n", "0", "-m", "not long", "-k", ELSEWHERE, *options.tests], plugins=[runner])
    new = report(runner.outcomes)
    _say(f"{(time.monotonic() - began) / 60:.1f} minutes")
    return int(new > 0 or len(runner.outcomes) < len(found))


def _modules(names: Sequence[str]) -> list[Path]:
    """Return the files, and those in the folders, in this order."""
    paths = [ROOT / name for name in names]
    return [path for each in paths for path in (sorted(each.glob("*.py")) if each.is_dir() else [each])]


def report(outcomes: Sequence[Outcome]) -> int:
    """Print the result of each file, and what has survived; returns how many survivors are not listed."""
    listed = known_survivors()
    tried = Counter(outcome.change.file for outcome in outcomes)
    survivors = [outcome.change for outcome in outcomes if not outcome.killer]
    alive = Counter(change.file for change in survivors)
    for file, number in tried.items():
        _say(f"{file}: {number} changes, {number - alive[file]} killed, {alive[file]} survived")
    new = [change for change in survivors if change.name not in listed]
    killed = len(outcomes) - len(survivors)
    share = 100 * killed / max(1, len(outcomes))
    _say(f"{len(outcomes)} changes, {killed} killed ({share:.1f} %), {len(survivors)} survived, {len(new)} not listed")
    for change in new:
        _say(f"survived, and not listed: {change}")
    for outcome in outcomes:
        if outcome.killer and outcome.change.name in listed:
            _say(f"listed as a survivor, and killed: {outcome.change}")
    return len(new)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command line


if __name__ == "__main__":
    sys.exit(main())
