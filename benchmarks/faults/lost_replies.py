"""Scenes in which a reply is lost: what the client is told is compared with who can acquire afterwards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.faults.stage import PAUSE, Cell
from benchmarks.faults.subject import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.faults.stage import Fault, Stage
    from benchmarks.faults.subject import Report

WAIT: Final = 1.0
"""Seconds for which an acquire is asked to wait: far less than the lease."""

AT_ONCE: Final = 0.5
"""Seconds within which somebody else should be able to acquire."""

PERSISTENCE: Final = 5.0
"""Seconds for which a release is repeated after the server is back; libmemcached avoids it for 2 to 3 s (seen)."""


def acquire_unanswered(stage: Stage, fault: Fault) -> Cell:
    """Lose the reply of an acquire."""
    with stage.faulty() as (make, faults):
        ours = make(stage.key)
        faults.strike(stage.key, fault)
        report = attempt(lambda: ours.acquire(WAIT))
        if not faults.struck:
            raise RuntimeError("the fault did not strike")
        said = f"acquire {report}"
        if not report.result:
            stood = stage.observed()
            _, blocked = stage.free_in()
            return Cell(
                told_not_held(blocked),
                f"{said}; on the server: {_listed(stood)}; the next one acquired after {blocked:.1f} s",
            )
        if stage.rival().acquire(0):
            return Cell("TWO INSIDE", f"{said}, and so did another's")
        released = attempt(ours.release)
        _, blocked = stage.free_in()
        return Cell(
            told_not_held(blocked),
            f"{said}, and it holds; release {released}; the next one acquired after {blocked:.1f} s",
        )


def release_unanswered(stage: Stage, fault: Fault) -> Cell:
    """Lose the reply of a release, and call it again when somebody else has acquired."""
    with stage.faulty() as (make, faults):
        ours = make(stage.key)
        _acquired(ours.acquire(0))
        faults.strike(stage.key, fault)
        first = attempt(ours.release)
        if not faults.struck:
            raise RuntimeError("the fault did not strike")
        taker, blocked = stage.free_in()
        second = _repeated(ours.release, stage.subject.not_yours)
        safe = not stage.rival().acquire(0)
        attempt(taker.release)
        note = (
            f"release {first}; the next one acquired after {blocked:.1f} s; release again {second}; "
            f"the next one's lock {'is in place' if safe else 'is gone'}"
        )
        return Cell(told_released(first, second, blocked, stage.subject.not_yours, safe=safe), note)


def outage(stage: Stage) -> Cell:
    """Release while no request arrives, and again when requests arrive."""
    with stage.faulty() as (make, faults):
        ours = make(stage.key)
        _acquired(ours.acquire(0))
        faults.down = True
        first = attempt(ours.release)
        faults.down = False
        second = _repeated(ours.release, stage.subject.not_yours) if first.raised else None
        stood = stage.observed()
        _, blocked = stage.free_in()
        note = f"release {first}" + (f"; again, the server back, {second}" if second else "")
        note += f"; on the server: {_listed(stood)}; the next one acquired after {blocked:.1f} s"
        return Cell(told_released(first, second or first, blocked, stage.subject.not_yours, safe=True), note)


def told_not_held(blocked: float) -> str:
    """Judge a client that says that it does not hold the lock, by how long others could not acquire it."""
    return "ok" if blocked <= AT_ONCE else f"BLOCKED {blocked:.0f} s"


def told_released(first: Report, second: Report, blocked: float, not_yours: Sequence[str], *, safe: bool) -> str:
    """Judge a release and its repetition.

    It is a false loss if the caller is told at once that the lock was not its own, and unclear if it is told first that
    there was no answer, and then that.
    """
    if not safe:
        return "LOST LOCK"
    if blocked > AT_ONCE:
        return f"BLOCKED {blocked:.0f} s"
    if not (first.raised and second.raised):
        return "ok"
    return "FALSE LOSS" if first.error in not_yours else "unclear"


def _repeated(release: Callable[[], object], not_yours: Sequence[str]) -> Report:
    """Call release again, and for a while if it gives no definite answer, because some clients avoid a server."""
    start = time.monotonic()
    while True:
        report = attempt(release)
        took = time.monotonic() - start
        if not report.raised or report.error in not_yours or took > PERSISTENCE:
            return report._replace(seconds=took)
        time.sleep(PAUSE)


def _acquired(held: object) -> None:
    if not held:
        raise RuntimeError("the first acquire did not succeed")


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "nothing"
