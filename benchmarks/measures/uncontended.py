"""One client without contention, on one core with the server; the best round is reported, and the worst."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.bench import round_robin
from benchmarks.children import Child, Failed, in_child
from benchmarks.counters import Meter
from benchmarks.figures import percentile
from benchmarks.ours import SHARED
from benchmarks.places import MEMCACHED_PLACE, REDIS_PLACE, pin

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench
    from benchmarks.candidate import Candidate, Handle

WARM_UP = 20
LIMIT = 20.0


class Uncontended(NamedTuple):
    """Acquire and release by one thread without contention."""

    candidate: str
    place: str
    kind: str
    median_us: float  # of the best round
    p99_us: float  # of the same round
    worst_round_us: float  # the highest median of a round: how much noise there was
    cycles: int
    error: str


class Requests(NamedTuple):
    """The requests of one acquire and release, by the counters of the server."""

    candidate: str
    place: str
    kind: str
    requests: float
    commands: float
    by_command: str
    error: str


def uncontended(bench: Bench) -> list[Uncontended]:
    """Measure the time of a cycle."""
    with bench.places.pinned() as core:

        def act(candidate: Candidate) -> list[int]:
            return in_child(partial(_cycles, bench, candidate, core), LIMIT)

        candidates = [candidate for candidate in bench.candidates if not _is_shared(candidate)]
        lanes = round_robin(bench, candidates, bench.effort.rounds, act)
    rows = []
    for lane in lanes:
        rounds = sorted((percentile(times, 0.5), percentile(times, 0.99)) for times in lane.rounds)
        best, p99 = rounds[0] if rounds else (math.nan, math.nan)
        worst = rounds[-1][0] if rounds else math.nan
        figures = (best / 1e3, p99 / 1e3, worst / 1e3, sum(map(len, lane.rounds)))
        rows.append(Uncontended(lane.candidate.name, lane.candidate.place, lane.candidate.kind, *figures, lane.error))
    return rows


def _is_shared(candidate: Candidate) -> bool:
    return candidate.name == SHARED  # one thread has no other to share it with


def _cycles(bench: Bench, candidate: Candidate, core: int | None) -> list[int]:
    pin(core)
    handle = _warm(bench, candidate)
    times: list[int] = []
    clock = time.perf_counter_ns
    end = clock() + int(bench.effort.round_time * 1e9)
    for _ in range(bench.effort.cycles):
        begin = clock()
        handle.acquire()
        handle.release()
        now = clock()
        times.append(now - begin)
        if now > end:
            break
    return times


def _warm(bench: Bench, candidate: Candidate) -> Handle:
    """Connect, load scripts, fill caches."""
    handle = candidate.open(bench.places)(bench.places.key())
    for _ in range(WARM_UP):
        handle.acquire()
        handle.release()
    return handle


def requests(bench: Bench) -> list[Requests]:
    """Count the requests and commands of a cycle."""
    rows = []
    for candidate in bench.candidates:
        if candidate.place not in {REDIS_PLACE, MEMCACHED_PLACE} or _is_shared(candidate):
            continue
        figures, error = (math.nan, math.nan, ""), bench.places.missing.get(candidate.place, "")
        if not error:
            bench.tell(f"{candidate.name} at {candidate.place}")
            try:
                figures = _count(bench, candidate)
            except Failed as failure:
                error = str(failure)
        rows.append(Requests(candidate.name, candidate.place, candidate.kind, *figures, error))
    return rows


def _count(bench: Bench, candidate: Candidate) -> tuple[float, float, str]:
    cycles = min(100, bench.effort.cycles)

    def act(pipe: Connection) -> None:
        handle = _warm(bench, candidate)
        pipe.send("warm")
        pipe.recv()
        for _ in range(cycles):
            handle.acquire()
            handle.release()
        pipe.send("done")
        pipe.recv()  # a child that ends closes a connection, which is counted

    with Child(act) as child:
        meter = Meter(bench.places, candidate.place)
        child.hear(LIMIT)
        meter.begin()
        child.say("go")
        child.hear(LIMIT)
        count = meter.end()
        meter.close()
    by_command = ", ".join(f"{name} {times / cycles:g}" for name, times in sorted(count.by_command.items()))
    return _each(count.requests, cycles), _each(count.commands, cycles), by_command


def _each(total: float | None, cycles: int) -> float:
    return math.nan if total is None else total / cycles
