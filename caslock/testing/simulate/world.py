"""The law of this file: whatever the core awaits, the scheduler sees, and answers when it likes.

Clients of one process share its store object, and so its queues.  Each process has its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from caslock import core
from caslock.store import ABSENT, Put, Traits
from caslock.testing.simulate.store import Request
from caslock.testing.simulate.waits import NEVER, START, Asking, Blocked, Cancelled, Listening, Wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from caslock.claim import Claim
    from caslock.store import Entry
    from caslock.testing.simulate.client import Client
    from caslock.testing.simulate.run import Run


class Mutex:
    """A mutex whose waiting the scheduler sees."""

    def __init__(self) -> None:
        """Begin as free."""
        self.taken = False

    def acquire(self, *, blocking: Literal[False]) -> bool:
        """Take it, if nobody has it."""
        del blocking
        free, self.taken = not self.taken, True
        return free

    def release(self) -> None:
        """Let the next one in."""
        self.taken = False

    async def __aenter__(self) -> None:
        """Wait."""
        while self.taken:
            await Blocked(self)
        self.taken = True

    async def __aexit__(self, *error: object) -> None:
        """Let the next one in."""
        self.taken = False


class Event:
    """What a client waits for at a turnstile."""

    def __init__(self, world: World) -> None:
        """Begin as not set."""
        self._world = world
        self._client = world.run.current.client
        self.flag = False

    @property
    def alive(self) -> bool:
        """Whether who waits for it is not gone with its event loop."""
        return self._client.alive

    async def wait(self, timeout: float | None) -> None:
        """Stop until it is set, or for `timeout` seconds."""
        await Listening(self, NEVER if timeout is None else self._world.now() + timeout)

    def set(self) -> None:
        """Wake who waits."""
        self.flag = True


@dataclass(eq=False)
class Flow:
    """One coroutine of a client: its program, or the visits of its keeper."""

    name: str
    client: Client
    coroutine: Coroutine[Wait, object, object]
    waits: Wait
    interruptible: bool = True
    shielded: int = 0  # levels of `finish` that it is in
    cancelled: bool = False  # meanwhile
    deferred: bool = False  # it was, in this call, so what it tells of a failure may be too little
    blind: bool = False  # something in there went without an answer
    ended: bool = False  # its event loop has, in this call
    doomed: int = 0  # levels of `finish` that this has cancelled, too
    struck: int = 0  # how often a thread was interrupted in this call
    spoiled: int = 0  # and how often in a clean-up
    row: int = 0  # of the story, where it went on last

    def begin(self) -> None:
        """Begin a call of the library."""
        self.deferred = self.blind = self.ended = False
        self.doomed = self.struck = self.spoiled = 0


class World:
    """What the core needs, as one process sees it."""

    def __init__(self, run: Run, number: int, *, threads: bool, rate: float, waking: bool, batching: bool) -> None:
        """Share the run's store and clock, which runs at `rate` here."""
        self.run = run
        self.name = f"process {number}"
        self.threads = threads
        self.rate = rate
        self.alive = True
        self.stopped_until = 0.0
        self.home: object = self
        self.store = self
        self.waking = self if waking else None
        self.batching = self if batching else None
        self.traits = Traits("simulated://")
        self.keepers: dict[Claim, Flow] = {}

    def now(self) -> float:
        """Seconds on the clock of this process."""
        now = self.run.now
        return now if self.rate == 1 else START + (now - START) * self.rate

    def real(self, moment: float) -> float:
        """When the store's clock tells what that of this process calls `moment`, or just after."""
        return moment if self.rate == 1 else START + (moment - START) / self.rate + 1e-8

    async def get(self, key: str) -> Entry | None:
        """See `caslock.store.Store`."""
        return (await _ask("get", Put(key, b"", ABSENT, 0.0)))[0]

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `caslock.store.Store`."""
        return (await _ask("put", Put(key, value, version, ttl)))[0]

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `caslock.store.Store`."""
        return (await _ask("remove", Put(key, b"", version, 0.0)))[0]

    async def put_many(self, puts: Sequence[Put]) -> list[Entry | None]:
        """See `caslock.store.BatchingStore`."""
        return await _ask("put", *puts)

    async def invalidate_many(self, removals: Sequence[tuple[str, int]]) -> list[Entry | None]:
        """See `caslock.store.BatchingStore`."""
        return await _ask("remove", *(Put(key, b"", version, 0.0) for key, version in removals))

    async def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `caslock.store.WakingStore`."""
        return (await _ask("wait", Put(key, value, ABSENT, ttl), timeout=timeout))[0]

    async def sleep(self, seconds: float) -> None:
        """Wait for a moment; a jitter is no choice, so the shortest sleeps are all alike."""
        await Wait(self.now() + (seconds if seconds > 0.02 else 0.01))  # noqa: PLR2004 - `request._retry` jitters so long

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` to its end: a task hears of its cancellation afterwards, a thread is interrupted here as well.

        The end of a task's loop strikes `work` too: then it is run once more.
        """
        flow = self.run.current
        flow.shielded += 1
        try:
            await work()
        except Cancelled:
            if self.threads:
                raise
            await work()
        finally:
            flow.shielded -= 1
        if 0 < flow.shielded <= flow.doomed:
            flow.doomed = flow.shielded - 1
            raise Cancelled
        if flow.cancelled and not flow.shielded:
            flow.cancelled = False
            raise Cancelled

    def me(self) -> object:
        """Give the client that runs."""
        return self.run.current.client

    def mutex(self) -> Mutex:
        """Make a mutex for one claim."""
        return Mutex()

    def event(self) -> Event:
        """Make an event for one who waits at a turnstile."""
        return Event(self)

    def ended(self, claim: Claim) -> bool:
        """Whether the event loop of a claim's client was closed."""
        return not cast("Client", claim.by).alive

    def watch(self, claim: Claim) -> None:
        """Have a keeper visit the claim."""
        due = min(claim.due, claim.deadline) if claim.auto_renew else claim.deadline
        flow = self.keepers.get(claim)
        if flow is None or flow.name not in self.run.flows:
            self.keepers[claim] = self.run.keep(claim, due)
        elif type(flow.waits) is Wait:  # else it is visiting, and looks itself
            flow.waits.until = due

    def unwatch(self, claim: Claim) -> None:
        """Spare the keeper a claim that is being released."""
        flow = self.keepers.pop(claim, None)
        if flow is not None and type(flow.waits) is Wait:
            self.run.drop(flow)

    async def visits(self, claim: Claim, due: float | None) -> None:
        """Keep a claim."""
        while due is not None:
            await Wait(due)
            if claim.ending:
                return
            due = await core.keep(self, claim)
        self.run.judge.kept(claim)


async def _ask(verb: str, *parts: Put, timeout: float = 0.0) -> list[Entry | None]:
    return cast("list[Entry | None]", await Asking(Request(verb, parts, timeout)))
