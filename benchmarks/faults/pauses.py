"""Scenes in which the holder is stopped or forks: the holder is a process of its own, and reports what it is told."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.faults.stage import PAUSE, Cell, Other, bind_to_parent
from benchmarks.faults.subject import attempt

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.faults.stage import Stage
    from benchmarks.faults.subject import Grip

LIMIT: Final = 15.0
"""Seconds for an answer of the other process."""

NOTICE: Final = 1.0
"""Seconds within which a holder that continues should be told without asking."""


class _Woken(NamedTuple):
    told: bool | None  # None: the library cannot tell without being asked
    asked: str  # what it answered when asked
    mine: bool | None  # None: it cannot be asked, or raised


def stale(stage: Stage) -> Cell:
    """Release after the lease is over and somebody else has acquired."""

    def part(pipe: Connection) -> None:
        grip = stage.opens()(stage.key)
        pipe.send(bool(grip.acquire(0)))
        pipe.recv()
        pipe.send(attempt(grip.release))

    with Other(part) as holder:
        taker, stopped = _stopped(stage, holder)
        holder.say()
        holder.go_on()
        report = holder.hear(LIMIT)
        safe = not stage.rival().acquire(0)
        verdict = "LOST LOCK" if not safe else "ok" if getattr(report, "raised", False) else "not told"
        note = f"{stopped}; release {report}; the next one's lock {'is in place' if safe else 'is gone'}"
        attempt(taker.release)
        return Cell(verdict, note)


def paused(stage: Stage) -> Cell:
    """See whether the holder learns that its lease is over before it releases."""

    def part(pipe: Connection) -> None:
        grip = stage.opens()(stage.key)
        pipe.send(bool(grip.acquire(0)))
        pipe.recv()
        end = time.monotonic() + NOTICE
        while grip.told and not grip.told() and time.monotonic() < end:
            time.sleep(PAUSE)
        told = grip.told() if grip.told else None
        report = attempt(grip.mine) if grip.mine else None
        pipe.send(_Woken(told, str(report), report.result if report else None))

    with Other(part) as holder:
        taker, stopped = _stopped(stage, holder)
        holder.say()
        holder.go_on()
        woken = holder.hear(LIMIT)
        if not isinstance(woken, _Woken):
            raise TypeError(f"the holder said {woken!r}")
        verdict = "ok" if woken.told else "if asked" if woken.mine is False else "not told"
        unasked = (
            "has no notice of loss" if woken.told is None else "told of the loss" if woken.told else "told nothing"
        )
        attempt(taker.release)
        return Cell(
            verdict, f"{stopped}; unasked, the library {unasked}; asked whether it still holds, it {woken.asked}"
        )


def _stopped(stage: Stage, holder: Other) -> tuple[Grip, str]:
    if holder.hear(LIMIT) is not True:
        raise RuntimeError("the first acquire did not succeed")
    holder.stop()
    taker, taken = stage.free_in()
    if taken == float("inf"):
        raise RuntimeError("the lease of a stopped holder never ended")
    return taker, f"the holder stopped, the next one acquired after {taken:.1f} s"


def fences(stage: Stage) -> Cell:
    """Compare the numbers of three holders."""
    numbers = []
    for _ in range(3):
        grip = stage.rival()
        if not grip.acquire(1):
            raise RuntimeError("an acquire did not succeed")
        if grip.fence is None:
            return Cell("no fence", "its API gives no number that grows")
        numbers.append(grip.fence())
        grip.release()
    grows = all(earlier < later for earlier, later in itertools.pairwise(numbers))
    return Cell("ok" if grows else "NOT GROWING", ", ".join(map(str, numbers)))


def forked(stage: Stage) -> Cell:
    """Fork inside a `with` block, and have the child leave it."""
    body = stage.rival().body
    if body is None:
        raise TypeError("there is no with statement in asyncio")
    parent = os.getpid()
    freed, status = False, 0

    def inside() -> None:
        nonlocal freed, status
        with body:
            child = os.fork()
            if child == 0:
                bind_to_parent()
                sys.exit(0)  # leaves the block
            status = os.waitpid(child, 0)[1]
            freed = bool(stage.rival().acquire(0))

    try:
        report = attempt(inside)
    except SystemExit:
        os._exit(0)
    if os.getpid() != parent:
        os._exit(1)
    left = "left the block" if status == 0 else "was told of an error"
    note = f"the child {left}; another one {'acquired' if freed else 'was kept out'}; the parent's block {report}"
    return Cell("LOST LOCK" if freed else "ok", note)
