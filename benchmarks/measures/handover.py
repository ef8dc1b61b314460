"""The time from a release in one process to the return of a blocked acquire in another.

The holder keeps the lock for a random time, so that no polling waiter is in step with it.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from benchmarks.bench import round_robin
from benchmarks.children import Child
from benchmarks.figures import percentile

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench
    from benchmarks.candidate import Candidate

LIMIT: Final = 10.0
HELD: Final = (0.010, 0.060)  # seconds
ROUNDS: Final = 10


class Handover(NamedTuple):
    """The time from the call of release to the return of the other acquire."""

    candidate: str
    place: str
    kind: str
    p50_ms: float
    p99_ms: float
    early: int  # acquires that returned before the release: the lock did not exclude
    handovers: int
    error: str


def handover(bench: Bench) -> list[Handover]:
    """Measure it for each candidate that works between processes."""
    candidates = [candidate for candidate in bench.candidates if not candidate.threads_only]
    times = max(1, bench.effort.handovers // ROUNDS)
    act = partial(_pair, bench, times)
    rows = []
    for lane in round_robin(bench, candidates, min(ROUNDS, bench.effort.handovers), act):
        spans = [span for spans in lane.rounds for span in spans]
        figures = (percentile(spans, 0.5) / 1e6, percentile(spans, 0.99) / 1e6, sum(span < 0 for span in spans))
        who = lane.candidate
        rows.append(Handover(who.name, who.place, who.kind, *figures, len(spans), lane.error))
    return rows


def _pair(bench: Bench, times: int, candidate: Candidate) -> list[int]:
    key = bench.places.key()
    chance = random.Random(key)  # noqa: S311 - no secret
    spans = []
    hold, wait = (partial(act, bench, candidate, key) for act in (_holder, _waiter))
    with Child(hold) as holder, Child(wait) as waiter:
        for child in (holder, waiter):
            child.hear(LIMIT)
        for _ in range(times):
            holder.say(chance.uniform(*HELD))
            holder.hear(LIMIT)  # it holds
            waiter.say("go")
            released = holder.hear(LIMIT)
            got = waiter.hear(LIMIT)
            spans.append(cast("int", got) - cast("int", released))
    return spans


def _holder(bench: Bench, candidate: Candidate, key: str, pipe: Connection) -> None:
    make = candidate.open(bench.places)
    handle, warm = make(key), make(f"{key}:holder")
    warm.acquire()
    warm.release()
    pipe.send("ready")
    while True:
        held = pipe.recv()
        handle.acquire()
        pipe.send("held")
        time.sleep(held)
        now = time.monotonic_ns()
        handle.release()
        pipe.send(now)


def _waiter(bench: Bench, candidate: Candidate, key: str, pipe: Connection) -> None:
    make = candidate.open(bench.places)
    handle, warm = make(key), make(f"{key}:waiter")
    warm.acquire()
    warm.release()
    pipe.send("ready")
    while True:
        pipe.recv()
        handle.acquire()
        now = time.monotonic_ns()
        handle.release()
        pipe.send(now)
