"""caslock's figures divided by those of a peer, or of a lock written by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from benchmarks.effort import PROCESSES_8, THREADS_32
from benchmarks.floors import ASYNC, BLPOP
from benchmarks.floors import PYMEMCACHE as ADD_DELETE
from benchmarks.floors import REDIS_PY as SET_EVALSHA
from benchmarks.ours import NAME
from benchmarks.peers import FILELOCK, PYTHON_REDIS_LOCK, REDIS_ASYNCIO
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, REDIS_PLACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.effort import Crew
    from benchmarks.report import Row

Results: TypeAlias = "Mapping[str, Sequence[Row]]"


class Ratio(NamedTuple):
    """caslock's figure divided by another one; NaN if either was not measured."""

    figure: str
    divided_by: str
    better: str  # "lower" or "higher"
    ratio: float


def ratios(results: Results) -> list[Ratio]:
    """Divide the figures of one run."""

    def alone(place: str, other: str) -> Ratio:
        return Ratio(f"{place}, alone: time", other, "lower", _ratio(results, "uncontended", "median_us", place, other))

    def contended(crew: Crew, other: str) -> Ratio:
        rows = [row for row in results.get("contended", ()) if (row["crew"], row["hold_ms"]) == (str(crew), 0.0)]
        ratio = _ratio({"contended": rows}, "contended", "per_second", REDIS_PLACE, other)
        return Ratio(f"Redis, {crew}: acquisitions", other, "higher", ratio)

    def on_redis(figure: str, measure: str, column: str, other: str) -> Ratio:
        return Ratio(f"Redis, {figure}", other, "lower", _ratio(results, measure, column, REDIS_PLACE, other))

    return [
        alone(REDIS_PLACE, SET_EVALSHA),
        alone(MEMCACHED_PLACE, ADD_DELETE),
        alone(FILE_PLACE, FILELOCK),
        contended(PROCESSES_8, PYTHON_REDIS_LOCK),
        contended(PROCESSES_8, BLPOP),
        contended(THREADS_32, PYTHON_REDIS_LOCK),
        contended(THREADS_32, BLPOP),
        on_redis("hand-over: median time", "handover", "p50_ms", PYTHON_REDIS_LOCK),
        on_redis("asyncio, one task: time", "one_task", "median_us", ASYNC),
        on_redis("asyncio, many tasks: time", "many_tasks", "best_ms", REDIS_ASYNCIO),
    ]


def _ratio(results: Results, measure: str, column: str, place: str, other: str) -> float:
    found = {str(row["candidate"]): row[column] for row in results.get(measure, ()) if row["place"] == place}
    ours, theirs = found.get(NAME), found.get(other)
    if not isinstance(ours, (int, float)) or not isinstance(theirs, (int, float)) or not theirs:
        return math.nan
    return ours / theirs
