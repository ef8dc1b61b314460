"""Run the benchmarks: start the servers, measure, print the tables, and write the figures with their circumstances."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import chart
from benchmarks.bench import Bench
from benchmarks.candidate import Kind
from benchmarks.counters import server_versions
from benchmarks.effort import EFFORTS, FULL
from benchmarks.floors import FLOORS, FLOORS_ASYNC
from benchmarks.measures.contended import contended
from benchmarks.measures.footprint import imports, objects
from benchmarks.measures.handover import handover
from benchmarks.measures.tasks import many_tasks, one_task
from benchmarks.measures.uncontended import requests, uncontended
from benchmarks.measures.waiters import waiters
from benchmarks.ours import OURS, OURS_ASYNC
from benchmarks.peers import PEERS, PEERS_ASYNC
from benchmarks.places import circumstances, digest, opened
from benchmarks.ratios import ratios
from benchmarks.report import table, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.report import Row

ROOT: Final = Path(__file__).parent.parent
PUBLISHED: Final = ROOT / "benchmarks" / "results"
UNPUBLISHED: Final = ROOT / "build" / "benchmarks"

MEASURES: Final[dict[str, tuple[str, Callable[[Bench], Sequence[object]]]]] = {
    "uncontended": ("Acquire and release by one thread, client and server on one core", uncontended),
    "requests": ("What one acquire and release cost the server", requests),
    "one_task": ("asyncio: acquire and release by one task, client and server on one core", one_task),
    "many_tasks": ("asyncio: many tasks, each with a key of its own, all at once", many_tasks),
    "imports": ("What an import adds to a bare interpreter", imports),
    "objects": ("Memory of a lock object", objects),
    "handover": ("Hand-over from one process to another one that waits", handover),
    "waiters": ("Threads of one process that wait while nothing happens", waiters),
    "contended": ("Contention for one key", contended),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _options(arguments)
    effort = EFFORTS["quick" if options.quick else options.effort]
    if options.seconds:
        effort = replace(effort, contended_time=options.seconds)
    names: list[str] = options.only or list(MEASURES)
    whole = effort is FULL and not options.only and not options.without_peers
    folder: Path = options.output or (PUBLISHED if whole else UNPUBLISHED)
    peers, peers_async = ((), ()) if options.without_peers else (PEERS, PEERS_ASYNC)
    began = time.monotonic()
    results: dict[str, list[Row]] = {}
    took: dict[str, float] = {}
    with opened() as places:
        told = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "effort": effort.name} | circumstances(places)
        told |= {"caslock sources": digest(ROOT / "caslock")} | server_versions(places)
        print("\n".join(f"{name}: {value}" for name, value in told.items()))
        for name in names:
            title, measure = MEASURES[name]
            bench = Bench(
                places, (*OURS, *FLOORS, *peers), (*OURS_ASYNC, *FLOORS_ASYNC, *peers_async), effort, _progress(name)
            )
            start = time.monotonic()
            results[name] = [_row(row) for row in measure(bench)]
            took[name] = time.monotonic() - start
            _progress(name)("")
            print(tables(title, results[name]), flush=True)
    if told["caslock sources"] != digest(ROOT / "caslock"):
        told["caslock sources"] += ", but changed during the run: the figures belong to no single state of them"
        print(f"\ncaslock sources: {told['caslock sources']}")
    divided = [_row(ratio) for ratio in ratios(results)]
    print(table("caslock divided by others", divided))
    folder.mkdir(parents=True, exist_ok=True)
    written = {"circumstances": told, "measures": results, "ratios": divided, "seconds": took}
    (folder / "latest.json").write_text(json.dumps(_plain(written), indent=1) + "\n", encoding="utf-8")
    (folder / "chart.svg").write_text(chart.picture(results, told), encoding="utf-8")
    spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in took.items())
    print(f"\n{time.monotonic() - began:.0f} s ({spent}); written to {folder}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure caslock and other lock libraries."
    )
    parser.add_argument("--quick", action="store_true", help="all measures in about a minute, with rough figures")
    parser.add_argument("--effort", choices=EFFORTS, default=FULL.name, help="how much to measure (default: full)")
    parser.add_argument("--only", action="append", choices=MEASURES, metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--seconds", type=float, help="seconds of each measurement of contention (default: 2)")
    parser.add_argument(
        "--without-peers", action="store_true", help="measure only caslock and the locks written by hand"
    )
    parser.add_argument(
        "--output", type=Path, help="folder to write to (only a complete full run writes to benchmarks/results)"
    )
    return parser.parse_args(arguments)


def _progress(name: str) -> Callable[[str], None]:
    def tell(line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{name}: {line}"[:120] if line else "\r\x1b[K")
            sys.stderr.flush()

    return tell


def _row(row: object) -> Row:
    fields: dict[str, str | float | int | None] = row._asdict()  # type: ignore[attr-defined]  # all are NamedTuples
    return fields


def _plain(value: object) -> object:
    """Make values that JSON can represent: NaN becomes null."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Kind) else value


if __name__ == "__main__":
    sys.exit(main())
