"""The runtime of the simulator: the scheduler sees everything that the protocol awaits, and answers when it chooses.

Clients of one process share its store object, and so its local queues.  Each process has a clock of its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from caslock.local import linger
from caslock.local.finishing import finished, stop_renewals
from caslock.local.shared import Shared
from caslock.protocol.attempt import Attempt
from caslock.protocol.clean_up import CleanUp, run_clean_ups
from caslock.protocol.life import LINGERING
from caslock.protocol.observation import ObservingStore
from caslock.protocol.sightings import Sightings
from caslock.store import ABSENT, Put, Traits
from tests.proof.simulator.store import Request
from tests.proof.simulator.waits import NEVER, START, Asking, Blocked, Listening, Wait
from tests.support import protocol_functions as protocol
from tests.support import scripted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from caslock.local.hold import Holding
    from caslock.store import AsyncStore, Entry
    from tests.proof.simulator.client import Client, NamedLockState
    from tests.proof.simulator.plan import Plan
    from tests.proof.simulator.run import Run

T = TypeVar("T")

LOOKS: Final = 0.05
"""Seconds after which a store that watches an entry looks again."""


class Mutex(scripted.Mutex):
    """A mutex whose waiting the scheduler sees."""

    async def __aenter__(self) -> None:
        while self.taken:
            await Blocked(self)
        self.taken = True


class Event:
    """What a client waits for in a local queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.flag = False

    async def wait(self, timeout: float | None) -> None:
        """Stop until it is set, or for `timeout` seconds."""
        await Listening(self, NEVER if timeout is None else self._runtime.now() + timeout)
        self.flag = False

    def set(self) -> None:
        self.flag = True


@dataclass(eq=False)
class Flow:
    """One coroutine of a client: its program, or the visits of its renewer."""

    name: str
    client: Client
    coroutine: Coroutine[Wait, object, object]
    waits: Wait
    interruptible: bool = True
    finishes: bool = False  # what an interrupt or a cancellation has cut short
    undoes: bool = False  # an acquire that has failed
    unfinished: list[str] = field(default_factory=list)  # the flows that still finish what was cut short in this call
    struck: int = 0  # how often it was interrupted, or cancelled, in this call

    def begin(self) -> None:
        """Begin a call of the library."""
        self.unfinished, self.struck = [], 0


class Runtime:
    """What the protocol needs, as one process sees it."""

    def __init__(self, run: Run, number: int, *, threads: bool, rate: float, plan: Plan) -> None:
        """Share the run's store and clock, which runs at `rate` here."""
        self.run = run
        self.name = f"process {number}"
        self.threads = threads
        self.rate = rate
        self.alive = True
        self.stopped_until = 0.0
        self.home: object = self
        self.renewing = self
        self.shared = Shared(self)
        self.store: AsyncStore = self
        self.queueing = self if plan.queueing else None
        self.watching = self if plan.watching else None
        self.batching = self if plan.batching else None
        self.traits = Traits("simulated://", expires=plan.expires)
        if not plan.expires:
            self.store = ObservingStore(self, self.now, Sightings())
        self.quarantines = Sightings()
        self.patience = self.traits.request_timeout
        self.renewers: dict[Attempt, Flow] = {}

    def now(self) -> float:
        """Seconds on the clock of this process."""
        now = self.run.now
        return now if self.rate == 1 else START + (now - START) * self.rate

    def real(self, moment: float) -> float:
        """When, on the store's clock, it is `moment` on that of this process, or just after."""
        return moment if self.rate == 1 else START + (moment - START) / self.rate + 1e-8

    async def get(self, key: str) -> Entry | None:
        return (await _ask("get", Put(key, b"", ABSENT, 0.0)))[0]

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        put = Put(key, value, version, ttl)
        self.run.judge.puts([put])
        return (await _ask("put", put))[0]

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return (await _ask("remove", Put(key, b"", version, 0.0)))[0]

    async def put_many(self, puts: Sequence[Put]) -> list[Entry | None]:
        self.run.judge.puts(puts)
        return await _ask("put", *puts)

    async def invalidate_many(self, removals: Sequence[tuple[str, int]]) -> list[Entry | None]:
        return await _ask("remove", *(Put(key, b"", version, 0.0) for key, version in removals))

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        return (await _ask("wait", Put(key, value, ABSENT, ttl), timeout=timeout))[0]

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `caslock.store.WatchingStore`: it ends within `LOOKS` after a change."""
        ends = self.now() + timeout
        while (entry := await self.get(key)) is not None and entry.version == version and self.now() < ends:
            await Wait(min(ends, self.now() + LOOKS))

    async def sleep(self, seconds: float) -> None:
        """Wait for a moment; a jitter is no choice, so the shortest sleeps are all alike."""
        await Wait(self.now() + (seconds if seconds > 0.02 else 0.01))

    async def finish(
        self, holds: Sequence[Holding], work: Callable[[], Coroutine[object, object, object]], interrupt: BaseException
    ) -> None:
        """Run `work` in a flow that nothing interrupts, and wait for it, as each API does."""
        flow, ended = self.run.current, Event(self)
        stop_renewals(holds)
        if not holds:
            return
        name, unfinished = flow.client.next_name(), flow.unfinished

        async def finish() -> None:
            await Wait(self.now())
            await finished(work, interrupt)
            unfinished.remove(name)
            ended.set()

        unfinished.append(name)
        self.run.start(Flow(name, flow.client, finish(), Wait(), interruptible=False, finishes=True))
        await ended.wait(2 * self.traits.request_timeout)

    def in_background(self, settle: Callable[[float], Coroutine[object, object, object]], seconds: float) -> None:
        """Run it as a flow of its own."""
        client = self.run.current.client

        async def go() -> None:
            await Wait(self.now())
            await run_clean_ups(self, deque([CleanUp(settle, self.now() + seconds)]))

        self.run.start(Flow(client.next_name(), client, go(), Wait(), interruptible=False))

    def start(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run it as a flow of its own: what lingers is given up by the client that has let it linger."""
        client, finishes = self.run.current.client, False
        if isinstance(work, partial) and work.func is linger.give_up:
            state, attempt = work.args
            work, client, finishes = partial(self._give_up, state, attempt), attempt.caller, True

        async def go() -> None:
            await Wait(self.now())
            await work()

        self.run.start(Flow(client.next_name(), client, go(), Wait(), interruptible=False, finishes=finishes))

    async def _give_up(self, state: NamedLockState, attempt: Attempt) -> None:
        """Note when it begins and ends."""
        judge, lingered = self.run.judge, attempt.state is LINGERING
        judge.releasing(state)
        await linger.give_up(state, attempt)
        if lingered:
            judge.gave_up(attempt)
        judge.released(state)

    def per_loop(self, make: Callable[[], T]) -> Callable[[], T]:
        """Each task has an event loop of its own here, which can be closed."""
        made: dict[object, T] = {}

        def here() -> T:
            place = self if self.threads else self.run.current.client
            if place not in made:
                made[place] = make()
            return made[place]

        return here

    def me(self) -> object:
        return self.run.current.client

    def mutex(self) -> Mutex:
        """Make a mutex for one attempt."""
        return Mutex()

    def event(self) -> Event:
        """Make an event for an attempt that waits in a local queue."""
        return Event(self)

    def ended(self, attempt: Attempt) -> bool:
        """Whether the event loop of an attempt's client was closed."""
        return not cast("Client", attempt.caller).alive

    def watch(self, attempt: Attempt) -> None:
        """Renew the lease when it is due, and report its end."""
        lease, renews = attempt.lease, attempt.terms.settings.auto_renew
        due = min(lease.due, lease.deadline) if renews or attempt.state is LINGERING else lease.deadline
        flow = self.renewers.get(attempt)
        if flow is None or flow.name not in self.run.flows:
            self.renewers[attempt] = self.keep(attempt, due)
        elif type(flow.waits) is Wait:  # else it is visiting, and looks itself
            flow.waits.until = due

    def keep(self, attempt: Attempt, due: float) -> Flow:
        """Start the visits of its renewer."""
        client = cast("Client", attempt.caller)
        return self.run.start(Flow(client.next_name(), client, self.visits(attempt, due), Wait(), interruptible=False))

    def forget_ending(self) -> None:
        """Stop renewing what is being released, as the renewer of each API does when it looks again."""
        for attempt, flow in list(self.renewers.items()):
            if attempt.ending and attempt.state is not LINGERING:
                del self.renewers[attempt]
                if type(flow.waits) is Wait:
                    self.run.drop(flow)

    def report_loss(self, attempt: Attempt) -> None:
        if not attempt.lease.reported:
            self.run.judge.lost(attempt)
        for call in attempt.lease.tell() or ():
            call()

    async def visits(self, attempt: Attempt, due: float | None) -> None:
        """Look after an attempt, as the renewer of each API does."""
        while due is not None:
            await Wait(due)
            if attempt.ending and attempt.state is not LINGERING:
                return
            due = await self._visit(attempt)
        self.run.judge.kept(attempt)

    async def _visit(self, attempt: Attempt) -> float | None:
        """Notice the end of the lease, or renew it together with all that is due; returns when to look again."""
        now = self.now()
        if attempt.state is LINGERING and now < attempt.lingers_until:
            return attempt.lingers_until
        if attempt.state is LINGERING:
            linger.end(attempt)
            return attempt.lease.deadline if now < attempt.lease.deadline else None
        if now >= attempt.lease.deadline:
            attempt.lose(attempt.lease.end("renewed"))
        elif now >= attempt.lease.due and not attempt.lease.lost:
            others = [other for other in self.renewers if other.caller is attempt.caller and other.lease.due <= now]
            ready = [other for other in others if other is not attempt and not (other.ending or other.lease.lost)]
            for alone in await protocol.renew_due(self, [attempt, *ready]):
                await protocol.renew_due(self, [alone])
        return None if attempt.lease.lost else min(attempt.lease.due, attempt.lease.deadline)


async def _ask(verb: str, *parts: Put, timeout: float = 0.0) -> list[Entry | None]:
    return cast("list[Entry | None]", await Asking(Request(verb, parts, timeout)))
