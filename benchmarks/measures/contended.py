"""Many workers contend for one key for a given time, and what each of them records is evaluated afterwards.

A worker acquires, holds for the hold time, releases, and acquires again at once: the hardest case for fairness.  Errors
are counted, and the worker continues.  A worker that does not end in time is counted and left behind.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.bench import round_robin
from benchmarks.children import Child, one_line
from benchmarks.counters import Meter
from benchmarks.figures import Section, fairness, overlaps

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench
    from benchmarks.candidate import Candidate, Handle, Make
    from benchmarks.effort import Crew

LIMIT: Final = 20.0  # for connecting and warming up
GRACE: Final = 3.0  # for the last release and acquire of each worker
RUN_UP: Final = 0.02


class Contended(NamedTuple):
    """One measurement: a candidate, a crew, and a hold time."""

    candidate: str
    place: str
    kind: str
    crew: str
    hold_ms: float
    per_second: float  # acquisitions
    handed_on: float  # share that went to another worker than the last
    handover_p50_ms: float
    handover_p99_ms: float
    jain: float
    longest_wait_ms: float
    overlaps: int
    requests: float  # per acquisition, by the server's counters
    commands: float
    errors: str
    error: str


class Watch(NamedTuple):
    """What one worker has recorded."""

    sections: list[tuple[int, int, int]]
    waiting_since: int | None  # it asked, and was not answered by the end
    errors: Counter[str]


class Cell(NamedTuple):
    """One round of a measurement."""

    watches: list[Watch]
    start: int
    end: int
    requests: float | None
    commands: float | None


def contended(bench: Bench) -> list[Contended]:
    """Measure every crew with every hold time."""
    rows: list[Contended] = []
    effort = bench.effort
    for crew in effort.crews:
        candidates = [candidate for candidate in bench.candidates if crew.processes == 1 or not candidate.threads_only]
        for hold in effort.holds:
            seconds = effort.contended_time / effort.contended_rounds
            act = partial(_cell, bench, crew, hold, seconds)
            here = replace(bench, tell=partial(_tell, bench, f"{crew}, {hold * 1000:g} ms hold"))
            lanes = round_robin(here, candidates, effort.contended_rounds, act)
            rows += [_row(lane.candidate, crew, hold, lane.rounds, lane.error) for lane in lanes]
    return rows


def _tell(bench: Bench, where: str, line: str) -> None:
    bench.tell(f"{where}, {line}")


def _cell(bench: Bench, crew: Crew, hold: float, seconds: float, candidate: Candidate) -> Cell:
    key = bench.places.key()

    def act(pipe: Connection) -> list[Watch]:
        make = candidate.open(bench.places)
        return _contend([Worker(make, key, f"{key}:warm:{number}", hold) for number in range(crew.threads)], pipe)

    with ExitStack() as stack:
        children = [stack.enter_context(Child(act)) for _ in range(crew.processes)]
        for child in children:
            child.hear(LIMIT)
        meter = Meter(bench.places, candidate.place)
        stack.callback(meter.close)
        start = time.monotonic_ns() + int(RUN_UP * 1e9)
        end = start + int(seconds * 1e9)
        for child in children:
            child.say((start, end))
        meter.begin()
        time.sleep(max(0.0, (end - time.monotonic_ns()) / 1e9))
        count = meter.end()  # before they leave
        watches = [watch for child in children for watch in child.result(GRACE + 2 + LIMIT)]
    return Cell(watches, start, end, count.requests, count.commands)


def _contend(workers: list[Worker], pipe: Connection) -> list[Watch]:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.ready.wait(LIMIT)
    pipe.send("ready")
    start, end = pipe.recv()
    for worker in workers:
        worker.start_at, worker.end_at = start, end
        worker.go.set()
    latest = end / 1e9 + GRACE
    for worker in workers:
        worker.join(max(0.0, latest - time.monotonic()))
    return [worker.watch() for worker in workers]


class Worker(threading.Thread):
    """One thread with a lock object of its own."""

    def __init__(self, make: Make, key: str, own_key: str, hold: float) -> None:
        """Prepare it; it makes its lock objects itself."""
        super().__init__(daemon=True)
        self.ready, self.go = threading.Event(), threading.Event()
        self.start_at = self.end_at = 0
        self._make, self._key, self._own_key, self._hold = make, key, own_key, hold
        self._sections: list[tuple[int, int, int]] = []
        self._asked: int | None = None
        self._errors: Counter[str] = Counter()

    def run(self) -> None:
        """Warm up on a key of its own, wait for the start, and contend."""
        try:
            handle = self._make(self._key)
            warm = self._make(self._own_key)
            warm.acquire()
            warm.release()
        except Exception as error:  # noqa: BLE001 - an error is a result
            self._errors[one_line(error)] += 1
            return
        finally:
            self.ready.set()
        self.go.wait()
        time.sleep(max(0.0, (self.start_at - time.monotonic_ns()) / 1e9))
        self._contend(handle)

    def _contend(self, handle: Handle) -> None:
        clock, end, hold = time.monotonic_ns, self.end_at, self._hold
        while (asked := clock()) < end:
            self._asked = asked
            try:
                handle.acquire()
            except Exception as error:  # noqa: BLE001 - as above
                self._errors[one_line(error)] += 1
                time.sleep(0.001)
                continue
            got = clock()
            if hold:
                time.sleep(hold)
            self._sections.append((asked, got, clock()))
            self._asked = None
            try:
                handle.release()
            except Exception as error:  # noqa: BLE001 - as above
                self._errors[one_line(error)] += 1

    def watch(self) -> Watch:
        """What it has noted down until now."""
        errors = self._errors.copy()
        if self.is_alive():
            errors["stuck"] += 1
        return Watch(list(self._sections), self._asked, errors)


def _row(candidate: Candidate, crew: Crew, hold: float, cells: list[Cell], error: str) -> Contended:
    where = (candidate.name, candidate.place, candidate.kind, str(crew), hold * 1000)
    counted, clashes = 0, 0
    judged = []
    errors: Counter[str] = Counter()
    for cell in cells:
        everything = [
            Section(number, *section) for number, watch in enumerate(cell.watches) for section in watch.sections
        ]
        clashes += overlaps(everything)
        inside = [section for section in everything if section.got < cell.end]
        late = [section.asked for section in everything if section.got >= cell.end]
        waiting = late + [watch.waiting_since for watch in cell.watches if watch.waiting_since is not None]
        counted += len(inside)
        judged.append(fairness(inside, crew.workers, waiting, cell.end))
        for watch in cell.watches:
            errors += watch.errors
    told = "; ".join(f"{times} x {text}" for text, times in errors.most_common(3))
    if not counted:
        nothing = (math.nan,) * 6
        return Contended(*where, *nothing, clashes, math.nan, math.nan, told, error or told or "no acquisition")
    seconds = sum(cell.end - cell.start for cell in cells) / 1e9
    return Contended(
        *where,
        counted / seconds,
        _mean([each.handed_on for each in judged]),
        _mean([each.handover_ms[0] for each in judged]),
        max(_known([each.handover_ms[1] for each in judged]), default=math.nan),
        _mean([each.jain for each in judged]),
        max(each.longest_wait_ms for each in judged),
        clashes,
        _per([cell.requests for cell in cells], counted),
        _per([cell.commands for cell in cells], counted),
        told,
        error,
    )


def _known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: list[float]) -> float:
    known = _known(values)
    return sum(known) / len(known) if known else math.nan


def _per(counts: list[float | None], acquisitions: int) -> float:
    known = [count for count in counts if count is not None]
    return sum(known) / acquisitions if known else math.nan
