"""Scenes with many tasks or threads: cancelled acquires, and one lock object that two use."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from typing import TYPE_CHECKING, Final

from benchmarks.children import one_line
from benchmarks.faults.lost_replies import AT_ONCE
from benchmarks.faults.stage import Cell
from benchmarks.faults.subject import AsyncSubject, Way
from caslock.testing.proxy import FaultProxy, Passage

if TYPE_CHECKING:
    from benchmarks.faults.stage import Stage
    from benchmarks.faults.subject import AsyncGrip, AsyncMake, Grip

CANCELLED: Final = 200
BATCH: Final = 20
SETTLING: Final = 0.02

DISTANCE: Final = 0.001
"""Seconds that each reply takes, as over a network: on loopback it arrives before most cancellations."""

INSIDE: Final = 0.3
"""Seconds that each of two holds the lock."""


def cancelled(stage: Stage) -> Cell:
    """Cancel acquires at moments that cover their duration, and look what remains; in batches, before leases end."""
    subject = stage.subject
    if not isinstance(subject, AsyncSubject):
        raise TypeError("there are tasks in asyncio only")
    return asyncio.run(_cancelled(stage, subject))


async def _cancelled(stage: Stage, subject: AsyncSubject) -> Cell:
    host, port, folder = stage.straight
    rival = subject.open(stage.straight, stage.lease)
    with FaultProxy(host, port, lambda _: Passage("hold reply", DISTANCE)) as proxy:
        make = subject.open(Way("127.0.0.1", proxy.port, folder), stage.lease)
        warm = make(f"warm-{stage.key}")
        usual = statistics.median([await _timed(warm) for _ in range(10)])
        held = stood = orphans = 0
        for first in range(0, CANCELLED, BATCH):
            keys = [f"{stage.key}-{n}" for n in range(first, first + BATCH)]
            for n, key in enumerate(keys, first):
                await _timed(
                    warm
                )  # many clients drop the connection of a cancelled request: have a working one each time
                held += await _cancelled_after(make(key), usual * 2 * n / CANCELLED)
            await asyncio.sleep(SETTLING)
            stood += sum(any(entry.partition(" ")[0].endswith(key) for key in keys) for entry in stage.observed())
            for key in keys:
                grip = rival(key)
                if await grip.acquire(0):
                    await grip.release()
                else:
                    orphans += 1
    verdict = "ok" if not orphans else f"{orphans} ORPHANS"
    note = (
        f"each reply took {DISTANCE * 1000:g} ms, an acquire {usual * 1000:.1f} ms; {CANCELLED - held} of {CANCELLED}"
        f" were cancelled, the others released; {stood} keys remained on the server, {orphans} of them kept others out"
    )
    return Cell(verdict, note)


async def _cancelled_after(grip: AsyncGrip, seconds: float) -> bool:
    """Tell whether it was acquired before the cancellation; then it is released."""
    task = asyncio.ensure_future(grip.acquire(1))
    end = time.perf_counter() + seconds
    while True:  # a timer is too coarse below a millisecond
        await asyncio.sleep(0)
        if time.perf_counter() >= end:
            break
    task.cancel()
    try:
        held = bool(await task)
    except asyncio.CancelledError:
        return False
    if held:
        await grip.release()
    return held


async def _timed(grip: AsyncGrip) -> float:
    start = time.perf_counter()
    await grip.acquire(1)
    took = time.perf_counter() - start
    await grip.release()
    return took


class _Room:
    """Counts who holds the lock at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self.said: list[str] = []
        self._now = 0

    def enter(self) -> None:
        self._now += 1
        self.most = max(self.most, self._now)

    def leave(self) -> None:
        self._now -= 1


def shared(stage: Stage) -> Cell:
    """Have two use one lock object."""
    room = _Room()
    if isinstance(stage.subject, AsyncSubject):
        asyncio.run(_two_tasks(stage.subject.open(stage.straight, stage.lease), stage.key, room))
    else:
        grip = stage.opens()(stage.key)
        threads = [threading.Thread(target=_turn, args=(grip, room)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _, blocked = stage.free_in()
    verdict = "TWO INSIDE" if room.most > 1 else "ok" if blocked <= AT_ONCE else f"BLOCKED {blocked:.0f} s"
    note = f"{'; '.join(sorted(room.said))}; at most {room.most} at a time; the next one acquired after {blocked:.1f} s"
    return Cell(verdict, note)


def _turn(grip: Grip, room: _Room) -> None:
    try:
        if not grip.acquire(3):
            room.said.append("one was refused")
            return
        room.enter()
        time.sleep(INSIDE)
        room.leave()
        grip.release()
    except Exception as error:  # noqa: BLE001 - the finding
        room.said.append(f"one was told {one_line(error)}")
    else:
        room.said.append("one entered and left")


async def _two_tasks(make: AsyncMake, key: str, room: _Room) -> None:
    grip = make(key)
    await asyncio.gather(_async_turn(grip, room), _async_turn(grip, room))


async def _async_turn(grip: AsyncGrip, room: _Room) -> None:
    try:
        if not await grip.acquire(3):
            room.said.append("one was refused")
            return
        room.enter()
        await asyncio.sleep(INSIDE)
        room.leave()
        await grip.release()
    except Exception as error:  # noqa: BLE001 - the finding
        room.said.append(f"one was told {one_line(error)}")
    else:
        room.said.append("one entered and left")
