"""What many threads of one process cost while they wait for one key and nothing happens."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.bench import round_robin
from benchmarks.children import Child, one_line
from benchmarks.counters import Meter
from benchmarks.places import REDIS_PLACE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench
    from benchmarks.candidate import Candidate, Make

LIMIT: Final = 20.0
SETTLE: Final = 1.5


class Waiters(NamedTuple):
    """The cost of waiting."""

    candidate: str
    place: str
    kind: str
    waiters: int
    seconds: float
    commands_per_second: float
    sockets: int  # of the waiting process
    cpu_seconds: float  # of the waiting process
    intruders: int  # workers that acquired although the key was held
    errors: str
    error: str


class _Cost(NamedTuple):
    commands: float
    sockets: int
    cpu: float
    intruders: int
    errors: str


def waiters(bench: Bench) -> list[Waiters]:
    """Measure it on Redis, whose server counts what is needed."""
    effort = bench.effort
    candidates = [candidate for candidate in bench.candidates if candidate.place == REDIS_PLACE]
    rows = []
    for lane in round_robin(bench, candidates, 1, partial(_wait, bench)):
        nan = float("nan")
        cost = lane.rounds[0] if lane.rounds else _Cost(nan, 0, nan, 0, "")
        who, seconds = lane.candidate, effort.waiting_time
        figures = (effort.waiters, seconds, cost.commands / seconds, *cost[1:])
        rows.append(Waiters(who.name, who.place, who.kind, *figures, lane.error))
    return rows


def _wait(bench: Bench, candidate: Candidate) -> _Cost:
    key = bench.places.key()
    with Child(partial(_hold, bench, candidate, key)) as holder:
        holder.hear(LIMIT)
        meter = Meter(bench.places, candidate.place)
        alone = meter.settled()
        with Child(partial(_crowd, bench, candidate, key)) as crowd:
            crowd.hear(LIMIT)
            time.sleep(SETTLE if bench.effort.waiting_time >= 1 else bench.effort.waiting_time)
            crowd.say("begin")
            meter.begin()
            time.sleep(bench.effort.waiting_time)
            crowd.say("end")
            count = meter.end()
            cpu, intruders, errors = crowd.result(LIMIT)
        meter.close()
    return _Cost(count.commands or 0.0, count.clients - alone, cpu, intruders, errors)


def _hold(bench: Bench, candidate: Candidate, key: str, pipe: Connection) -> None:
    handle = candidate.open(bench.places)(key)
    handle.acquire()
    pipe.send("held")
    pipe.recv()


def _crowd(bench: Bench, candidate: Candidate, key: str, pipe: Connection) -> tuple[float, int, str]:
    make = candidate.open(bench.places)
    inside: list[str] = []
    errors: list[str] = []
    for _ in range(bench.effort.waiters):
        threading.Thread(target=_come, args=(make, key, inside, errors), daemon=True).start()
    pipe.send("waiting")
    pipe.recv()
    before = time.process_time()
    pipe.recv()
    cpu = time.process_time() - before
    return cpu, len(inside), f"{len(errors)} x {errors[0]}" if errors else ""


def _come(make: Make, key: str, inside: list[str], errors: list[str]) -> None:
    try:
        make(key).acquire()
        inside.append(key)
    except Exception as error:  # noqa: BLE001 - an error is a result
        errors.append(one_line(error))
