"""Herds: the real rules of locking with many waiters for one key, in virtual time.

Without a queue at the store, n waiters that ask again at intervals of p cost it n/p requests a second, so the requests
for one acquisition grow with n.  A waiter that the store queues costs at most three: a put that finds the key held, one
that waits, and a removal.  Of the threads of one process only one waits at the store, and a key that is handed over
inside the process costs one put.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.local.hold import Holding
from caslock.local.lock_state import LockState
from caslock.local.semaphore import SemaphoreState
from caslock.local.stamps import Stamps
from caslock.protocol.attempt import LockSettings
from tests.rules.herds.virtual_time import Process, Server, Timeline, pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.rules.herds.virtual_time import Waits

HOLD: Final = 0.001
TURNS: Final = 2  # of each waiter
BODIES: Final = (0.0, 0.02, 0.2)  # seconds, of those who go on
ARRIVAL: Final = 0.01  # seconds in which all arrive
SLICE: Final = 100_000  # steps, after which we look whether the herd makes progress
MOST_SLICES: Final = 60
HOPELESS: Final = 400  # requests for each acquisition, beyond those of the first thousand
TTL: Final = 100_000.0  # seconds: nothing is renewed, and no waiter looks because a lease might be over


class Figures(NamedTuple):
    """What a herd did, in which each waiter takes the lock twice."""

    requests_per_acquisition: float
    longest_wait: float  # seconds
    acquisitions: int
    overlaps: int
    ended: bool


class Herd:
    """The waiters, and what they record."""

    def __init__(self, waiters: int, threads: int) -> None:
        self.timeline = Timeline()
        self.server = Server(self.timeline)
        self.threads = min(waiters, threads)
        self.processes = waiters // self.threads
        self.waits: list[float] = []
        self.asked: dict[object, float] = {}  # of those who wait now
        self.inside = 0
        self.overlaps = 0
        self.ends = 0.0  # when those who go on take the lock no more

    def ask(self) -> None:
        self.asked[self.timeline.current] = self.timeline.now

    async def hold(self) -> None:
        self.waits.append(self.timeline.now - self.asked.pop(self.timeline.current))
        self.overlaps += self.inside > 0
        self.inside += 1
        await pause(self.timeline, HOLD)
        self.inside -= 1

    def run(self) -> bool:
        """Run until all have had their turns; whether they have, within a bound."""
        for _ in range(MOST_SLICES):
            if self.timeline.run(SLICE):
                return True
            if self.server.requests > HOPELESS * (len(self.waits) + 1000):
                break
        return False


class OwnHost(LockState):
    """The real one, in a process that has a host of its own: otherwise all have the same."""

    def _begin(self) -> None:
        super()._begin()
        self._stamps = Stamps(self._terms, f"host {id(self.runtime)}")


class Permits(OwnHost, SemaphoreState):
    """The same for a semaphore."""


async def _busy(herd: Herd, state: LockState, bodies: Sequence[float], waits: list[float], leaves: list[float]) -> None:
    """Take the lock again and again."""
    await pause(herd.timeline, random.uniform(0, ARRIVAL))
    while herd.timeline.now < herd.ends:
        began = herd.timeline.now
        hold = await state.acquire(state.begin(Holding), None)
        waits.append(herd.timeline.now - began)
        await pause(herd.timeline, random.choice(bodies))
        began = herd.timeline.now
        await hold._released()
        leaves.append(herd.timeline.now - began)


def unequal(distances: Sequence[float], threads: int, waits: Waits, seconds: float = 300.0) -> list[list[float]]:
    """Have a process at each of the distances from a store: how long the threads of each wait, again and again."""
    random.seed(threads)
    run = Herd(len(distances), 1)
    run.ends = run.timeline.now + seconds
    waited: list[list[float]] = [[] for _ in distances]
    for each, distance in zip(waited, distances, strict=True):
        process = Process(run.timeline, run.server, waits, distance)
        for _ in range(threads):
            run.timeline.start(_busy(run, OwnHost(process, "key", LockSettings(TTL)), BODIES, each, []))
    assert run.run()
    return waited


def leaving(processes: int, threads: int, permits: int, waits: Waits) -> list[float]:
    """Have all take a permit over and over for a second, doing nothing with it: how long each release takes."""
    random.seed(processes)
    run = Herd(processes, 1)
    run.ends = run.timeline.now + 1.0
    leaves: list[float] = []
    for _ in range(processes):
        process = Process(run.timeline, run.server, waits)
        for _ in range(threads):
            state = Permits(process, "key", LockSettings(TTL), permits)
            run.timeline.start(_busy(run, state, [0.0], [], leaves))
    assert run.run()
    return leaves


async def _waiter(herd: Herd, process: Process) -> None:
    state = OwnHost(process, "key", LockSettings(TTL))
    await pause(herd.timeline, random.uniform(0, ARRIVAL))
    for _ in range(TURNS):
        herd.ask()
        hold = await state.acquire(state.begin(Holding), None)
        await herd.hold()
        await hold._released()


def herd(waiters: int, threads: int, *, queueing: bool) -> Figures:
    """Run `waiters` in processes of `threads` each, at a store that can queue them, or not."""
    random.seed(waiters)  # also for the jitter of the pauses: a herd is the same each time
    run = Herd(waiters, threads)
    for _ in range(run.processes):
        process = Process(run.timeline, run.server, "queued" if queueing else "polled")
        for _ in range(run.threads):
            run.timeline.start(_waiter(run, process))
    ended = run.run()
    longest = max([*run.waits, *(run.timeline.now - asked for asked in run.asked.values())])
    return Figures(run.server.requests / len(run.waits), longest, len(run.waits), run.overlaps, ended)
