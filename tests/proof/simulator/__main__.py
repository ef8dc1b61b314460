"""Run the simulator with random seeds, or search its scenes exhaustively.

python -m tests.proof.simulator --seeds 20000 --from 0 --processes 2
python -m tests.proof.simulator --exhaustive --states 1000000
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from tests.proof.simulator.chance import simulate
from tests.proof.simulator.explore import Bounds, Explored, explore
from tests.proof.simulator.scenes import SCENES
from tests.proof.simulator.shrink import shrunk
from tests.proof.simulator.story import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH = 250
"""Seeds that one process takes at a time."""


class Failure(NamedTuple):
    """A story that broke a law, as short as it was found."""

    name: str
    story: str


def seeds_from(first: int, count: int) -> tuple[int, Failure | None]:
    """Run seeds until one fails; returns the steps taken."""
    steps = 0
    for seed in range(first, first + count):
        try:
            steps += simulate(seed)
        except Violation as violation:
            return steps, failure(f"seed {seed}", violation)
    return steps, None


def scene(name: str, bounds: Bounds) -> tuple[str, Explored | Failure]:
    try:
        return name, explore(SCENES[name], bounds)
    except Violation as violation:
        return name, failure(name, violation)


def failure(name: str, violation: Violation) -> Failure:
    """Shrink a violation, and describe it."""
    shortest = shrunk(violation)
    return Failure(name, f"{shortest}\nchoices: {shortest.choices}\nplan: {shortest.plan}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; returns 1 when a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="how many random runs")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--exhaustive", action="store_true", help="search the scenes instead")
    parser.add_argument("--states", type=int, default=100_000, help="how many states, of all scenes together")
    parser.add_argument("--faults", type=int, default=3, help="how many faults in one run of a search, at the most")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the work")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with ProcessPoolExecutor(options.processes) as pool:
        found = _search(pool, options) if options.exhaustive else _random(pool, options)
    _say(f"{time.perf_counter() - began:.1f} s")
    if found is None:
        return 0
    _say(f"{found.name} breaks a law: {found.story}")
    return 1


def _random(pool: ProcessPoolExecutor, options: argparse.Namespace) -> Failure | None:
    end = options.first + options.seeds
    firsts = range(options.first, end, BATCH)
    steps = 0
    found: Failure | None = None
    for more, trouble in pool.map(seeds_from, firsts, [min(BATCH, end - first) for first in firsts]):
        steps += more
        found = found or trouble
    _say(f"{options.seeds:,} seeds from {options.first}: {steps:,} steps")
    return found


def _search(pool: ProcessPoolExecutor, options: argparse.Namespace) -> Failure | None:
    bounds = Bounds(options.faults, -(-options.states // (len(SCENES) - 2)))  # the smallest two have fewer
    states = 0
    found: Failure | None = None
    for name, result in pool.map(scene, SCENES, repeat(bounds)):
        if isinstance(result, Failure):
            found = found or result
            continue
        states += result.states
        _say(f"{name}: {result}")
    _say(f"{states:,} distinct states, with up to {options.faults} faults")
    return found


_say = partial(print, flush=True)

if __name__ == "__main__":
    logging.disable()  # no warnings of losses and forced releases: the runs are about these
    sys.exit(main())
