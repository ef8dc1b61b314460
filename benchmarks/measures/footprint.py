"""The time and memory of an import, in a fresh interpreter each time, and the memory of lock objects."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.candidate import Handle, Kind
from benchmarks.children import Failed, in_child, one_line
from benchmarks.ours import SHARED
from benchmarks.peers import MODULES
from benchmarks.places import FILE_PLACE, MEMORY_PLACE, REDIS_PLACE

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.candidate import Candidate

LIMIT: Final = 60.0
SCRIPT: Final = """\
import sys, time

def resident():
    try:
        return int(open("/proc/self/statm").read().split()[1])
    except OSError:
        return 0

before, begin = resident(), time.perf_counter_ns()
if sys.argv[1]:
    __import__(sys.argv[1])
print(time.perf_counter_ns() - begin, resident() - before)
"""
PAGE_KB: Final = 4.096  # statm counts pages


class Import(NamedTuple):
    """What `import` adds to a bare interpreter."""

    module: str
    import_ms: float  # the best of several
    memory_kb: float
    error: str


class Objects(NamedTuple):
    """Python's memory for lock objects, as tracemalloc counts it."""

    candidate: str
    place: str
    kind: str
    lock_bytes: float
    held_bytes: float  # more, while it is held
    error: str


def imports(bench: Bench) -> list[Import]:
    """Import each library in turn, several times."""
    names = ["", "caslock", *(MODULES if any(candidate.kind == Kind.PEER for candidate in bench.candidates) else ())]
    runs: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    errors = dict.fromkeys(names, "")
    for number in range(bench.effort.imports):
        bench.tell(f"round {number + 1}")
        for name in names:
            if not errors[name]:
                try:
                    runs[name].append(_import(name))
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    errors[name] = one_line(error)
    bare = min(runs[""], default=(0, 0))
    rows = []
    for name in names[1:]:
        took = min((took for took, _ in runs[name]), default=math.nan)
        pages = min((pages for _, pages in runs[name]), default=math.nan)
        rows.append(Import(name, (took - bare[0]) / 1e6, (pages - bare[1]) * PAGE_KB, errors[name]))
    return rows


def _import(name: str) -> tuple[int, int]:
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().rpartition("\n")[2])
    took, pages = map(int, done.stdout.split())
    return took, pages


def objects(bench: Bench) -> list[Objects]:
    """Make many lock objects, then hold them all."""
    rows = []
    for candidate in bench.candidates:
        if candidate.kind == Kind.FLOOR or candidate.name == SHARED:
            continue
        if candidate.place not in {REDIS_PLACE, FILE_PLACE, MEMORY_PLACE}:
            continue
        sizes, error = (math.nan, math.nan), bench.places.missing.get(candidate.place, "")
        if not error:
            bench.tell(f"{candidate.name} at {candidate.place}")
            try:
                sizes = in_child(partial(_sizes, bench, candidate), LIMIT)
            except Failed as failure:
                error = str(failure)
        rows.append(Objects(candidate.name, candidate.place, candidate.kind, *sizes, error))
    return rows


def _sizes(bench: Bench, candidate: Candidate) -> tuple[float, float]:
    number, key = bench.effort.objects, bench.places.key()
    make = candidate.open(bench.places)
    warm = make(f"{key}:warm")
    warm.acquire()
    warm.release()
    names = [f"{key}:{n}" for n in range(number)]
    tracemalloc.start()
    empty = _traced()
    pairs = [Handle(names.copy, names.clear) for _ in names]  # what the benchmark itself keeps of a lock
    ours = _traced() - empty
    empty += ours
    made = [make(name) for name in names]
    full = _traced()
    for handle in made:
        handle.acquire()
    held = _traced()
    return (full - empty - ours) / len(pairs), (held - full) / number


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
