"""The law of this file: whatever the core awaits, the scheduler sees, and answers when it likes.

Clients of one process share its store object, and so its queues.  Each process has its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from caslock import core
from caslock.store import ABSENT, Put, Traits
from caslock.testing.simulate.store import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence

    from caslock.claim import Claim
    from caslock.store import Entry
    from caslock.testing.simulate.client import Client
    from caslock.testing.simulate.run import Run
    from caslock.testing.simulate.store import Waiter

START: Final = 1e6
"""Clocks begin here, so that a moment is never taken for a number of seconds."""

NEVER: Final = float("inf")


class Cancelled(BaseException):
    """Stands for `asyncio.CancelledError` and `KeyboardInterrupt`."""


class Wait:
    """What a coroutine is stopped at."""

    __slots__ = ("until",)

    def __init__(self, until: float = NEVER) -> None:
        """Wait at most until a moment of the client's own clock."""
        self.until = until

    def __await__(self) -> Generator[Wait, object, object]:
        """Stop."""
        return (yield self)

    def ready(self, now: float) -> bool:
        """Whether it can go on."""
        return self.until <= now


class Asking(Wait):
    """A request is on its way."""

    __slots__ = ("request",)

    def __init__(self, request: Request) -> None:
        """Send `request`."""
        self.until = NEVER
        self.request = request

    def ready(self, now: float) -> bool:
        """Whether it may arrive."""
        del now
        return True


class Answered(Asking):
    """An answer is on its way."""

    __slots__ = ("answer",)

    def __init__(self, asking: Asking, answer: Sequence[Entry | None]) -> None:
        """Send `answer`."""
        super().__init__(asking.request)
        self.answer = answer


class Lined(Asking):
    """Stands in line at the store."""

    __slots__ = ("waiter",)

    def __init__(self, asking: Asking, waiter: Waiter) -> None:
        """Be `waiter`."""
        super().__init__(asking.request)
        self.until = waiter.until
        self.waiter = waiter

    def ready(self, now: float) -> bool:
        """Whether it was woken, or waits no longer."""
        return self.waiter.woken or self.until <= now


class Listening(Wait):
    """Waits for an event."""

    __slots__ = ("event",)

    def __init__(self, event: Event, until: float) -> None:
        """Wait for `event`, at most until a moment."""
        self.until = until
        self.event = event

    def ready(self, now: float) -> bool:
        """Whether it is set, or time is over."""
        return self.event.flag or self.until <= now


class Blocked(Wait):
    """Waits for a mutex."""

    __slots__ = ("mutex",)

    def __init__(self, mutex: Mutex) -> None:
        """Wait for `mutex`."""
        self.until = NEVER
        self.mutex = mutex

    def ready(self, now: float) -> bool:
        """Whether it is free."""
        del now
        return not self.mutex.taken


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
    struck: bool = False  # a thread is interrupted once in a call: more is more than is promised
    deferred: bool = False  # it was, so what it tells of a failure may be too little
    row: int = 0  # of the story, where it went on last


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
        """Run `work` to its end: a task hears of its cancellation afterwards, a thread is interrupted here as well."""
        if self.threads:
            await work()
            return
        flow = self.run.current
        flow.shielded += 1
        try:
            await work()
        finally:
            flow.shielded -= 1
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
