"""The law of this file: the real rules of locking, ten to ten thousand waiters, virtual time.

On paper: let n waiters want one key.  Whoever asks again at intervals of p costs the store n/p requests a second, so an
acquisition that lasts h costs n * h/p of them: linear in n.  Whoever waits in line at the store, and is woken alone,
costs a bounded number: a put that finds the key held, one that waits, and a removal.  Of the t threads of one process
only one waits at the store, so those that are handed the key inside cost one put each.  The longest wait is n turns
either way, where the line is kept; where the luck of the interval decides, nothing bounds it.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.virtual import Process, Server, Timeline, pause
from caslock.hold import Holding
from caslock.lockstate import LockState
from caslock.store import ABSENT, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from benchmarks.bench import Bench

HOLD: Final = 0.001
TURNS: Final = 2  # of each waiter
ARRIVAL: Final = 0.01  # seconds in which all arrive
POLL: Final = 0.1  # as redis-py's Lock does by default
SLICE: Final = 100_000  # steps, after which it is looked whether this goes anywhere
MOST_SLICES: Final = 60
HOPELESS: Final = 400  # requests for each acquisition, beyond those of the first thousand
TTL: Final = 100_000.0  # seconds: nothing is renewed, and no waiter looks because a lease might be over


class Scale(NamedTuple):
    """One herd: each of its waiters takes the lock twice."""

    contender: str
    waiters: int
    processes: int
    threads: int
    requests_per_acquisition: float
    longest_wait_s: float
    in_turn_s: float  # the longest wait if a turn cost nothing but the hold
    acquisitions: int
    overlaps: int
    error: str


class Herd:
    """Who waits, and what they note down."""

    def __init__(self, waiters: int, threads: int) -> None:
        """Begin an empty timeline."""
        self.timeline = Timeline()
        self.server = Server(self.timeline)
        self.threads = min(waiters, threads)
        self.processes = waiters // self.threads
        self.waits: list[float] = []
        self.asked: dict[object, float] = {}  # of those who wait now
        self.inside = 0
        self.overlaps = 0

    def ask(self) -> None:
        """Begin to wait."""
        self.asked[self.timeline.current] = self.timeline.now

    async def hold(self) -> None:
        """Be in the critical section."""
        self.waits.append(self.timeline.now - self.asked.pop(self.timeline.current))
        self.overlaps += self.inside > 0
        self.inside += 1
        await pause(self.timeline, HOLD)
        self.inside -= 1

    def run(self) -> bool:
        """Let all come and go; whether that came to its end within reason."""
        for _ in range(MOST_SLICES):
            if self.timeline.run(SLICE):
                return True
            if self.server.requests > HOPELESS * (len(self.waits) + 1000):
                break
        return False


async def _caslock(herd: Herd, process: Process) -> None:
    state = LockState(process, "key", ttl=TTL)
    state._host = f"host {id(process)}"  # noqa: SLF001 - or all were the same
    await pause(herd.timeline, random.uniform(0, ARRIVAL))  # noqa: S311 - no secret
    for _ in range(TURNS):
        herd.ask()
        hold = await state.acquire(Holding, None)
        await herd.hold()
        await hold.released()


async def _poller(herd: Herd, name: bytes) -> None:
    server = herd.server
    await pause(herd.timeline, random.uniform(0, ARRIVAL))  # noqa: S311 - no secret
    for _ in range(TURNS):
        herd.ask()
        entry = await server.ask(partial(server.put, name, ABSENT, TTL))
        while not isinstance(entry, Entry) or entry.value != name:
            await pause(herd.timeline, POLL)
            entry = await server.ask(partial(server.put, name, ABSENT, TTL))
        await herd.hold()
        await server.ask(partial(server.invalidate, entry.version))


def _ours(herd: Herd, *, wakes: bool) -> Iterator[Coroutine[object, object, object]]:
    for _ in range(herd.processes):
        process = Process(herd.timeline, herd.server, wakes=wakes)
        for _ in range(herd.threads):
            yield _caslock(herd, process)


def _pollers(herd: Herd) -> Iterator[Coroutine[object, object, object]]:
    for number in range(herd.processes * herd.threads):
        yield _poller(herd, b"%d" % number)


CONTENDERS: Final[tuple[tuple[str, int, Callable[[Herd], Iterator[Coroutine[object, object, object]]]], ...]] = (
    ("caslock, store wakes", 1, partial(_ours, wakes=True)),
    ("caslock, store wakes", 10, partial(_ours, wakes=True)),
    ("caslock, store wakes", 100, partial(_ours, wakes=True)),
    ("caslock, store can't wake", 1, partial(_ours, wakes=False)),
    ("caslock, store can't wake", 100, partial(_ours, wakes=False)),
    (f"asks again each {POLL * 1000:g} ms", 1, _pollers),
)


def scale(bench: Bench) -> list[Scale]:
    """Let each herd run."""
    return [herd for waiters in bench.effort.scale for herd in herds(waiters, bench.tell)]


def herds(waiters: int, tell: Callable[[str], None]) -> Iterator[Scale]:
    """Let each kind of contender run, in herds of `waiters`."""
    for name, threads, start in CONTENDERS:
        if threads > waiters:
            continue
        tell(f"{waiters} waiters, {threads} threads each: {name}")
        random.seed(waiters)  # the back-off's jitter, too: one seed is one run
        herd = Herd(waiters, threads)
        for coroutine in start(herd):
            herd.timeline.start(coroutine)
        ended = herd.run()
        done = len(herd.waits)
        yield Scale(
            name,
            waiters,
            herd.processes,
            herd.threads,
            herd.server.requests / done,
            max([*herd.waits, *(herd.timeline.now - asked for asked in herd.asked.values())]),
            (waiters - 1) * HOLD,
            done,
            herd.overlaps,
            "" if ended else "broken off: it takes too long; the longest wait would be longer",
        )
