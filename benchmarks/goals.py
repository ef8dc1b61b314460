"""The law of this file: the ratios to reach were fixed before they were measured, and a miss is called one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from benchmarks.effort import PROCESSES_8, THREADS_32
from benchmarks.floors import ASYNC
from benchmarks.floors import PYMEMCACHE as ADD_DELETE
from benchmarks.floors import REDIS_PY as SET_EVALSHA
from benchmarks.ours import NAME
from benchmarks.peers import FILELOCK, PYTHON_REDIS_LOCK, REDIS_ASYNCIO
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, REDIS_PLACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.report import Row

Results: TypeAlias = "Mapping[str, Sequence[Row]]"

NO_CPU = 0.01
"""Seconds of a waiting time below which a process has done nothing that can be measured."""


class Goal(NamedTuple):
    """One ratio, and whether it was reached."""

    goal: str
    wanted: str
    measured: float
    verdict: str  # PASS, miss, or "not measured"


def goals(results: Results) -> list[Goal]:
    """Judge the rows."""

    def figure(measure: str, column: str, candidate: str, place: str = REDIS_PLACE, **where: str | float) -> float:
        for row in results.get(measure, ()):
            wanted = {"candidate": candidate, "place": place, **where}
            if all(row.get(name) == value for name, value in wanted.items()):
                value = row[column]
                return float(value) if isinstance(value, (int, float)) else math.nan
        return math.nan

    def crew(column: str, candidate: str, who: object) -> float:
        return figure("contended", column, candidate, crew=str(who), hold_ms=0.0)

    def alone(candidate: str, place: str = REDIS_PLACE) -> float:
        return figure("uncontended", "median_us", candidate, place)

    def handover(candidate: str) -> float:
        return figure("handover", "p50_ms", candidate)

    def waiters(column: str) -> float:
        return figure("waiters", column, NAME)

    def per_second(who: object) -> float:
        return _ratio(crew("per_second", NAME, who), crew("per_second", PYTHON_REDIS_LOCK, who))

    one = _ratio(figure("one_task", "median_us", NAME), figure("one_task", "median_us", ASYNC))
    many = _ratio(figure("many_tasks", "best_ms", REDIS_ASYNCIO), figure("many_tasks", "best_ms", NAME))
    importing = next((row["import_ms"] for row in results.get("imports", ()) if row["module"] == NAME), None)
    seen = [int(row["overlaps"] or 0) for row in results.get("contended", ()) if row["kind"] == NAME]
    file = alone(NAME, FILE_PLACE)
    several = ("caslock.MultiLock", REDIS_PLACE)
    return [
        _most("Redis, alone: time / SET NX PX + EVALSHA by redis-py", 0.75, _ratio(alone(NAME), alone(SET_EVALSHA))),
        _most(
            "memcached, alone: time / add + delete by pymemcache",
            1.3,
            _ratio(alone(NAME, MEMCACHED_PLACE), alone(ADD_DELETE, MEMCACHED_PLACE)),
        ),
        _most("SQLite file, alone: us", 100, file),
        _most("SQLite file, alone: time / filelock", 1, _ratio(file, alone(FILELOCK, FILE_PLACE))),
        _least("8 processes, 0 ms: acquisitions / python-redis-lock", 1.5, per_second(PROCESSES_8)),
        _least("8 processes, 0 ms: Jain", 0.99, crew("jain", NAME, PROCESSES_8)),
        _most("8 processes, 0 ms: requests per acquisition", 4, crew("requests", NAME, PROCESSES_8)),
        _least("32 threads, 0 ms: acquisitions / python-redis-lock", 3, per_second(THREADS_32)),
        _least("32 threads, 0 ms: Jain", 0.95, crew("jain", NAME, THREADS_32)),
        _most("hand-over p50 / python-redis-lock", 0.8, _ratio(handover(NAME), handover(PYTHON_REDIS_LOCK))),
        _most("100 waiters: commands/s", 2, waiters("commands_per_second")),
        _most("100 waiters: sockets", 1, waiters("sockets")),
        _most("100 waiters: CPU seconds", NO_CPU, waiters("cpu_seconds")),
        _most("asyncio, one task: time / SET NX PX + EVALSHA by redis.asyncio", 0.8, one),
        _least("asyncio, 1,000 tasks: time of redis.asyncio's Lock / ours", 5, many),
        _most("MultiLock of 10 keys, Redis: requests to take", 2, figure("several", "take_requests", *several)),
        _most("MultiLock of 10 keys, Redis: requests to release", 2, figure("several", "release_requests", *several)),
        _most("import: ms more than bare", 40, math.nan if importing is None else float(importing)),
        _most("overlapping critical sections of caslock, all cells", 0, float(sum(seen)) if seen else math.nan),
    ]


def _ratio(over: float, under: float) -> float:
    return over / under if under else math.nan


def _most(goal: str, limit: float, measured: float) -> Goal:
    return Goal(goal, f"<= {limit:g}", measured, _verdict(measured, reached=measured <= limit))


def _least(goal: str, limit: float, measured: float) -> Goal:
    return Goal(goal, f">= {limit:g}", measured, _verdict(measured, reached=measured >= limit))


def _verdict(measured: float, *, reached: bool) -> str:
    return "not measured" if math.isnan(measured) else "PASS" if reached else "miss"
