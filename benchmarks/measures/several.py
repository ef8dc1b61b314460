"""The law of this file: several keys at once; requests are counted at the server, or at the store's verbs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import caslock
from benchmarks.children import Child, Failed
from benchmarks.counters import Meter
from benchmarks.figures import percentile
from benchmarks.places import FILE_PLACE, MEMORY_PLACE, REDIS_PLACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench
    from caslock import Store

KEYS: Final = 10
LIMIT: Final = 20.0
VERBS: Final = ("get", "put_if_version", "invalidate", "put_when_free", "put_many", "invalidate_many")


class Several(NamedTuple):
    """A MultiLock, taken and released."""

    candidate: str
    place: str
    kind: str
    keys: int
    take_requests: float
    release_requests: float
    median_us: float
    p99_us: float
    error: str


def several(bench: Bench) -> list[Several]:
    """Measure caslock's MultiLock: no other candidate has one."""
    rows = []
    for place in (REDIS_PLACE, FILE_PLACE, MEMORY_PLACE):
        figures, error = (math.nan,) * 4, bench.places.missing.get(place, "")
        if not error:
            bench.tell(place)
            try:
                figures = _measure(bench, place)
            except Failed as failure:
                error = str(failure)
        rows.append(Several("caslock.MultiLock", place, "caslock", KEYS, *figures, error))
    return rows


def _measure(bench: Bench, place: str) -> tuple[float, float, float, float]:
    key = bench.places.key()
    keys = [f"{key}:{number}" for number in range(KEYS)]

    def act(pipe: Connection) -> tuple[int, int, list[int]]:
        return _play(bench, place, keys, pipe)

    with Child(act) as child:
        meter = Meter(bench.places, place)
        spent = []
        child.hear(LIMIT)
        for _ in range(2):
            meter.begin()
            child.say("go")
            child.hear(LIMIT)
            spent.append(meter.end().requests)
        meter.close()
        child.say("go")
        take, release, times = child.result(LIMIT)
    first, second = (verbs if seen is None else seen for seen, verbs in zip(spent, (take, release), strict=True))
    return first, second, percentile(times, 0.5) / 1e3, percentile(times, 0.99) / 1e3


def _play(bench: Bench, place: str, keys: list[str], pipe: Connection) -> tuple[int, int, list[int]]:
    store = caslock.connect(bench.places.url(place))
    lock = caslock.MultiLock(store, keys)
    for _ in range(3):
        lock.acquire()
        lock.release()
    pipe.send("warm")
    counted = Counted(store)
    pipe.recv()
    lock.acquire()
    pipe.send("taken")
    taken = counted.requests
    pipe.recv()
    lock.release()
    pipe.send("released")
    released = counted.requests - taken
    counted.stop()
    pipe.recv()
    times = []
    for _ in range(max(5, bench.effort.cycles // 10)):
        begin = time.perf_counter_ns()
        lock.acquire()
        lock.release()
        times.append(time.perf_counter_ns() - begin)
    return taken, released, times


class Counted:
    """Counts the calls of a store's verbs, as they are made by anybody in this process."""

    def __init__(self, store: Store) -> None:
        """Put a counter before each verb that the store has."""
        self.requests = 0
        self._kind = type(store)
        self._plain = {verb: getattr(self._kind, verb) for verb in VERBS if hasattr(self._kind, verb)}
        for verb, plain in self._plain.items():
            setattr(self._kind, verb, self._counting(plain))

    def stop(self) -> None:
        """Take the counters away."""
        for verb, plain in self._plain.items():
            setattr(self._kind, verb, plain)

    def _counting(self, plain: Callable[..., object]) -> Callable[..., object]:
        def verb(*arguments: object) -> object:
            self.requests += 1
            return plain(*arguments)

        return verb
