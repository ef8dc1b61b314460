"""One event loop, on one core with the server: one task, and many tasks at once."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.bench import round_robin
from benchmarks.candidate import Kind
from benchmarks.children import in_child
from benchmarks.figures import percentile
from benchmarks.places import pin

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.candidate import AsyncCandidate, AsyncHandle

WARM_UP: Final = 20
LIMIT: Final = 60.0


class OneTask(NamedTuple):
    """Acquire and release by one task."""

    candidate: str
    place: str
    kind: str
    median_us: float  # of the best round
    p99_us: float
    worst_round_us: float
    error: str


class ManyTasks(NamedTuple):
    """Each of many tasks acquires and releases a key of its own, all at once."""

    candidate: str
    place: str
    kind: str
    tasks: int
    best_ms: float  # of all together
    worst_ms: float
    error: str


def one_task(bench: Bench) -> list[OneTask]:
    """Measure the time of a cycle."""
    with bench.places.pinned() as core:

        def act(candidate: AsyncCandidate) -> list[int]:
            return in_child(lambda: asyncio.run(_cycles(bench, candidate, core)), LIMIT)

        lanes = round_robin(bench, bench.async_candidates, bench.effort.rounds, act)
    rows = []
    for lane in lanes:
        rounds = sorted((percentile(times, 0.5) / 1e3, percentile(times, 0.99) / 1e3) for times in lane.rounds)
        best, worst = (rounds[0], rounds[-1]) if rounds else ((math.nan, math.nan),) * 2
        who = lane.candidate
        rows.append(OneTask(who.name, who.place, who.kind, *best, worst[0], lane.error))
    return rows


async def _cycles(bench: Bench, candidate: AsyncCandidate, core: int | None) -> list[int]:
    pin(core)
    handle = candidate.open(bench.places)(bench.places.key())
    for _ in range(WARM_UP):
        await _cycle(handle)
    times: list[int] = []
    clock = time.perf_counter_ns
    end = clock() + int(bench.effort.round_time * 1e9)
    for _ in range(bench.effort.cycles):
        begin = clock()
        await handle.acquire()
        await handle.release()
        now = clock()
        times.append(now - begin)
        if now > end:
            break
    return times


async def _cycle(handle: AsyncHandle) -> None:
    await handle.acquire()
    await handle.release()


def many_tasks(bench: Bench) -> list[ManyTasks]:
    """Measure the time of all tasks together; the locks are new, the connections are not."""
    rounds = min(4, bench.effort.rounds)
    with bench.places.pinned() as core:

        def act(candidate: AsyncCandidate) -> float:
            return in_child(lambda: asyncio.run(_crowd(bench, candidate, core)), LIMIT)

        candidates = [candidate for candidate in bench.async_candidates if candidate.kind != Kind.FLOOR]
        lanes = round_robin(bench, candidates, rounds, act)
    rows = []
    for lane in lanes:
        times = [seconds * 1000 for seconds in lane.rounds] or [math.nan]
        who = lane.candidate
        rows.append(ManyTasks(who.name, who.place, who.kind, bench.effort.tasks, min(times), max(times), lane.error))
    return rows


async def _crowd(bench: Bench, candidate: AsyncCandidate, core: int | None) -> float:
    pin(core)
    make = candidate.open(bench.places)
    key = bench.places.key()
    seconds = math.nan
    for attempt in range(2):  # the first one connects
        handles = [make(f"{key}:{attempt}:{number}") for number in range(bench.effort.tasks)]
        begin = time.perf_counter()
        await asyncio.gather(*map(_cycle, handles))
        seconds = time.perf_counter() - begin
    return seconds
