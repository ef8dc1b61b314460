"""Plays every scene with every lock library, each pair in a process of its own, and prints what happened."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import caslock
from benchmarks.children import Child, Failed
from benchmarks.counters import server_versions
from benchmarks.faults.ours import OURS
from benchmarks.faults.peers import PEERS
from benchmarks.faults.scenes import SCENES, VERDICTS, excuse
from benchmarks.faults.stage import Cell, Stage
from benchmarks.places import circumstances, digest, opened
from benchmarks.report import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.faults.subject import AsyncSubject, Subject
    from benchmarks.places import Places

LEASE: Final = 10.0
"""Seconds: longer than redis-py waits for an answer (5 s)."""

SHORT_LEASE: Final = 2.0
LIMIT: Final = 45.0
"""Seconds for one library in one scene."""

UNUSED: Final = {"redlock-py", "filelock", "diskcache", "portalocker"}
"""Packages of the other benchmarks."""

AT_ONCE: Final = 6
"""How many run at the same time: nearly all of their time is waiting."""


@dataclass(frozen=True)
class Play:
    """How much is played."""

    subjects: Sequence[Subject | AsyncSubject]
    scenes: Sequence[str]
    lease: float = LEASE
    short_lease: float = SHORT_LEASE
    side_by_side: int = AT_ONCE
    limit: float = LIMIT


Outcome = tuple["Subject | AsyncSubject", str, Cell]


def played(play: Play, places: Places) -> Iterator[Outcome]:
    """Play every scene with every subject; the outcomes come in the order of the table."""
    running = deque[tuple["Subject | AsyncSubject", str, "Child[Cell] | Cell"]]()
    for subject in play.subjects:
        for name in play.scenes:
            if len(running) >= play.side_by_side:
                yield _ended(play, *running.popleft())
            running.append((subject, name, _begun(play, places, subject, name)))
    while running:
        yield _ended(play, *running.popleft())


def _begun(play: Play, places: Places, subject: Subject | AsyncSubject, name: str) -> Child[Cell] | Cell:
    if why := excuse(name, subject) or places.missing.get(subject.place):
        return Cell("n/a", why)
    scene = SCENES[name]
    stage = Stage(subject, places, play.short_lease if scene.brief else play.lease, places.key())

    def act(_: Connection) -> Cell:
        return scene.play(stage)

    return Child[Cell](act)


def _ended(play: Play, subject: Subject | AsyncSubject, name: str, child: Child[Cell] | Cell) -> Outcome:
    if isinstance(child, Cell):
        return subject, name, child
    with child:
        try:
            return subject, name, child.result(play.limit)
        except Failed as error:
            return subject, name, Cell("HUNG" if str(error).startswith("no answer within") else "failed", str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _options(arguments)
    scenes: list[str] = options.scene or list(SCENES)
    subjects = [one for one in (*OURS, *PEERS) if not options.library or options.library in one.label]
    play = Play(subjects, scenes)
    start = time.monotonic()
    with opened() as places:
        told = {"date": datetime.now(UTC).strftime("%Y-%m-%d")} | circumstances(places) | server_versions(places)
        told = {name: value for name, value in told.items() if name not in UNUSED}
        told["caslock sources"] = digest(Path(caslock.__file__).parent)
        told["lease"] = f"{LEASE:g} s; {SHORT_LEASE:g} s where it has to end: {_names(lambda name: SCENES[name].brief)}"
        told["settings"] = "the defaults of each library, and of the client that its README shows; one server"
        print("\n".join(f"{name}: {value}" for name, value in told.items()), "\n")
        print("\n".join(f"{name}: {SCENES[name].right}" for name in scenes), flush=True)
        outcomes = list(played(play, places))
    rows = {subject.label: {"library": subject.label} for subject in subjects}
    for subject, name, cell in outcomes:
        rows[subject.label][name] = cell.verdict
    print(table("Results", list(rows.values())), "\n")
    print("\n".join(f"{word}: {meaning}" for word, meaning in VERDICTS.items()), "\n")
    print("\n".join(f"{subject.label}: {name}: {cell.verdict}: {cell.note}" for subject, name, cell in outcomes))
    if options.json:
        cells = [{"library": one.label, "scene": name, **cell._asdict()} for one, name, cell in outcomes]
        right = {name: SCENES[name].right for name in scenes}
        written = {"circumstances": told, "scenes": right, "verdicts": VERDICTS, "cells": cells}
        text = json.dumps(written, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    print(f"\n{time.monotonic() - start:.0f} s")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--scene", action="append", choices=SCENES, metavar="NAME", help=", ".join(SCENES))
    parser.add_argument("--library", help="only libraries whose name contains LIBRARY")
    return parser.parse_args(arguments)


def _names(chosen: Callable[[str], bool]) -> str:
    return ", ".join(filter(chosen, SCENES))


if __name__ == "__main__":
    sys.exit(main())
