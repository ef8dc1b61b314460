"""The law of this file: the real core over a virtual clock; one seed is one run, and each choice is the scheduler's.

Clients run the real `LockState`, claim and core.  Their store suspends at every verb, and the scheduler picks what
happens next: a request is answered, lost, its reply is lost, it is delivered late (any later step) or twice; time
passes; a client is cancelled or killed.  After every step the laws are checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from caslock import core
from caslock.errors import CaslockError, LockLost, NotAcquired, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.hold import Holding
from caslock.lockstate import LockState
from caslock.record import decode
from caslock.store import ABSENT, Entry, Traits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from caslock.claim import Claim, Event

    Program = Coroutine[object, object, object]

KEY = "key"


class Violation(AssertionError):  # noqa: N818 - named by what it is
    """A law was broken; the text is the story that led to it."""


class Cancelled(BaseException):
    """Stands for `asyncio.CancelledError` and `KeyboardInterrupt`."""


class Request(NamedTuple):
    """One verb on its way."""

    verb: str
    value: bytes
    version: int
    ttl: float


class _Suspend(NamedTuple):
    """What a client waits for: an answer, a moment, or its turn."""

    what: object

    def __await__(self) -> Generator[object, object, object]:
        return (yield self.what)


class SimulatedStore:
    """The contract of a store on a virtual clock, applied at once."""

    def __init__(self) -> None:
        """Begin empty."""
        self.entry: Entry | None = None
        self.ends = 0.0
        self.counter = 0

    def apply(self, request: Request, now: float) -> Entry | None:
        """Do what the request says, and tell what stands then."""
        if self.entry is not None and self.ends <= now:
            self.entry = None
        version = self.entry.version if self.entry else ABSENT
        if request.verb != "get" and request.version == version:
            if request.verb == "put_if_version":
                self.counter += 1
                self.entry, self.ends = Entry(request.value, self.counter), now + request.ttl
            else:
                self.entry = None
        return self.entry


@dataclass(eq=False)
class Flow:
    """One coroutine of a client: its program, or a visit of its keeper."""

    client: Client
    coroutine: Coroutine[object, object, object]
    waits: object = None
    interruptible: bool = True


@dataclass(eq=False)
class Client:
    """One process with one Lock object."""

    name: str
    world: SimulatedWorld
    state: LockState
    alive: bool = True
    held: Holding | None = None  # what the program believes it holds
    trying: str = ""  # hold id of the acquire under way
    finished: list[tuple[str, bool]] = field(default_factory=list)


class _Mutex:
    """A mutex whose waiting the scheduler sees."""

    def __init__(self) -> None:
        self.taken = False

    async def __aenter__(self) -> None:
        while self.taken:
            await _Suspend(self)
        self.taken = True

    async def __aexit__(self, *error: object) -> None:
        self.taken = False


class SimulatedWorld:
    """What the core needs, as one client sees it."""

    def __init__(self, run: Run, name: str) -> None:
        """Share the run's store and clock."""
        self._run = run
        self._name = name
        self.store = self.home = self
        self.waking = self.batching = None
        self.traits = Traits("simulated://")
        self.finishing = 0

    async def get(self, key: str) -> Entry | None:
        """See `caslock.store.Store`."""
        del key
        return await self._ask(Request("get", b"", ABSENT, 0))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `caslock.store.Store`."""
        del key
        if ttl <= 0:
            message = "a record without a ttl"
            raise Violation(message)
        return await self._ask(Request("put_if_version", value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `caslock.store.Store`."""
        del key
        return await self._ask(Request("invalidate", b"", version, 0))

    async def _ask(self, request: Request) -> Entry | None:
        answer = await _Suspend(request)
        return answer if isinstance(answer, Entry) else None

    def now(self) -> float:
        """Virtual seconds."""
        return self._run.now

    async def sleep(self, seconds: float) -> None:
        """Wait for a virtual moment."""
        await _Suspend(self._run.now + seconds)

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing cancels this."""
        self.finishing += 1
        try:
            await work()
        finally:
            self.finishing -= 1

    def me(self) -> object:
        """Give the client."""
        return self._name

    def mutex(self) -> _Mutex:
        """Make a mutex for one claim."""
        return _Mutex()

    def event(self) -> Event:
        """One program a client: nobody waits at a turnstile."""
        raise AssertionError

    def ended(self, claim: Claim) -> bool:
        """Tell that a claim ends with its client."""
        del claim
        return False

    def watch(self, claim: Claim) -> None:
        """Have a keeper visit the claim."""
        self._run.watch(self._name, claim)

    def unwatch(self, claim: Claim) -> None:
        """The keeper looks at `claim.ending` itself."""


class Run:
    """One simulated run."""

    def __init__(self, seed: int, *, clients: int = 2, rounds: int = 3, faults: float = 0.3) -> None:
        """Prepare a run: `rounds` acquires by each of `clients`, with a fault at that share of the requests."""
        self.random = random.Random(seed)  # noqa: S311 - replays, not secrets
        self.now = 1000.0
        self.store = SimulatedStore()
        self.story: list[str] = []
        self.late: list[tuple[str, Request]] = []
        self.flows: list[Flow] = []
        self.clients: dict[str, Client] = {}
        self.fence = 0
        self.settled: dict[str, str] = {}  # hold ids of acquires that reported a settled failure
        self.faults = faults
        self.quiet = False
        for number in range(clients):
            name = "ABCDEFGH"[number]
            world = SimulatedWorld(self, name)
            owner = self.random.choice([None, "shared"])
            state = LockState(world, KEY, ttl=self.random.choice([1.0, 3.0, 10.0]), owner=owner)
            client = self.clients[name] = Client(name, world, state)
            self._start(client, self._program(client, rounds))

    def watch(self, name: str, claim: Claim) -> None:
        """Start the keeper's visits."""
        client = self.clients[name]

        async def visits() -> None:
            due: float | None = min(claim.due, claim.deadline)
            while due is not None:
                await _Suspend(due)
                if claim.ending:
                    return
                due = await core.keep(client.world, claim)

        self._start(client, visits(), interruptible=False)

    async def _program(self, client: Client, rounds: int) -> None:  # noqa: C901 - a client tries everything
        pick = self.random
        for _ in range(rounds):
            await _Suspend(self.now + pick.choice([0.0, 0.1, 1.0]))
            timeout = pick.choice([0.0, 0.5, 5.0])
            try:
                hold = await client.state.acquire(Holding, timeout)
            except NotAcquired:
                self._tell(f"{client.name}: not acquired")
                continue
            except OutcomeUnknown:
                self._tell(f"{client.name}: outcome unknown")
                continue
            except StoreError as error:
                self._tell(f"{client.name}: {type(error).__name__}")
                self._reported_failure(client)
                continue
            except Cancelled:
                self._tell(f"{client.name}: cancelled")
                continue
            client.held = hold
            self._tell(f"{client.name}: holds, fence {hold.fence}")
            self._check_fence(client, hold)
            try:
                for _ in range(pick.randrange(3)):
                    await _Suspend(self.now + pick.choice([0.0, 0.3, 2.0, 8.0]))
                    if pick.random() < 0.4:  # noqa: PLR2004 - a share
                        await hold.renewed(pick.choice([None, 0.5, 2.0, 20.0]))
            except (CaslockError, Cancelled) as error:
                self._tell(f"{client.name}: {type(error).__name__} in the body")
            client.held = None
            self._tell(f"{client.name}: releases")
            for _ in range(3):
                try:
                    await hold.released()
                except StoreUnavailable:
                    self._tell(f"{client.name}: no answer to the release")
                    continue
                except (LockLost, Cancelled) as error:
                    self._tell(f"{client.name}: {type(error).__name__} at the release")
                break

    def _start(
        self, client: Client, coroutine: Coroutine[object, object, object], *, interruptible: bool = True
    ) -> None:
        flow = Flow(client, coroutine, interruptible=interruptible)
        self.flows.append(flow)
        self._resume(flow, None)

    def _resume(self, flow: Flow, answer: object, error: BaseException | None = None) -> None:
        try:
            flow.waits = flow.coroutine.throw(error) if error else flow.coroutine.send(answer)
        except StopIteration:
            self.flows.remove(flow)

    def _tell(self, line: str) -> None:
        self.story.append(f"{self.now - 1000:9.4f}  {line}")

    def run(self, steps: int = 4000) -> int:
        """Run to the end; returns the number of steps, raises `Violation` with the story."""
        for step in range(steps):
            choices = self._choices()
            if not choices:
                self._check_end()
                return step
            self.random.choice(choices)()
            self._check()
        message = "the run does not end"
        raise self._violation(message)

    def _choices(self) -> list[Callable[[], None]]:
        """Everything that may happen next."""
        choices: list[Callable[[], None]] = []
        moments: list[float] = []
        for flow in self.flows:
            if isinstance(flow.waits, Request):
                choices += [partial(self._deliver, flow)] * 3
            elif isinstance(flow.waits, _Mutex):
                if not flow.waits.taken:
                    choices.append(partial(self._resume, flow, None))
            elif isinstance(flow.waits, float):
                if flow.waits <= self.now:
                    choices.append(partial(self._resume, flow, None))
                else:
                    moments.append(flow.waits)
        if self.late:
            choices.append(self._deliver_late)
        if moments and (not choices or self.random.random() < 0.2):  # noqa: PLR2004 - a share
            target = self.random.choice(sorted(moments)[:3])
            choices.append(lambda: self._pass(target))
        return choices

    def _pass(self, moment: float) -> None:
        if self.random.random() < 0.3:  # noqa: PLR2004 - a share
            moment = self.random.uniform(self.now, moment)
        self.now = max(self.now, moment)

    def _deliver(self, flow: Flow) -> None:
        request = flow.waits
        assert isinstance(request, Request)  # noqa: S101 - only those are delivered
        name = flow.client.name
        fault = "none"
        if self.random.random() < self.faults:
            fault = self.random.choice(["request", "reply", "late", "twice", "cancel", "cancel late", "cancel after"])
        if "cancel" in fault and (not flow.interruptible or flow.client.world.finishing):
            fault = "late"
        what = f"{name}: {request.verb} at {request.version}"
        if request.verb == "put_if_version":
            record = decode(request.value)
            what += f" {[hold[-3:] for hold in record.holds]} ttl {request.ttl:g} fence {record.fence}"
        self._tell(f"{what}: {fault}")
        answer = None
        if fault in {"none", "reply", "twice", "cancel after"}:
            answer = self.store.apply(request, self.now)
        if fault == "twice" and request.version == ABSENT:
            # The copy of a put that was *answered* comes at once: nothing below repeats a request after its answer.
            answer = self.store.apply(request, self.now)
        elif fault in {"late", "cancel late", "twice"} and request.verb != "get":
            self.late.append((name, request))
        self._stood()
        if fault.startswith("cancel"):
            self._resume(flow, None, Cancelled())
        elif fault in {"none", "twice"}:
            self._resume(flow, answer)
        else:
            self._resume(flow, None, StoreUnavailable(fault))

    def _deliver_late(self) -> None:
        name, request = self.late.pop(self.random.randrange(len(self.late)))
        before = self.store.counter
        self.store.apply(request, self.now)
        landed = "lands" if self.store.counter != before else "does nothing"
        self._tell(f"{name}: late {request.verb} at {request.version} {landed}")
        self._stood()

    def _stood(self) -> None:
        entry = self.store.entry
        if entry is None or self.store.ends <= self.now:
            return
        for hold in decode(entry.value).holds:
            if hold in self.settled:
                message = f"a hold of an acquire that {self.settled[hold]} stands"
                raise self._violation(message)

    def _reported_failure(self, client: Client) -> None:
        hold = client.state.newest
        self.settled[hold] = f"{client.name} reported as failed"
        self._stood()

    def _check_fence(self, client: Client, hold: Holding) -> None:
        believers = [other for other in self.clients.values() if other is not client and self._believes(other)]
        if believers:  # the same owner: one tenure, one fence
            if any(other.held and other.held.fence != hold.fence for other in believers):
                raise self._violation("two fences in one tenure")
        elif hold.fence < self.fence:
            raise self._violation(f"fence {hold.fence} after {self.fence}")
        self.fence = max(self.fence, hold.fence)

    def _believes(self, client: Client) -> bool:
        return client.held is not None and not client.held.lost

    def _check(self) -> None:
        owners = {client.held.owner for client in self.clients.values() if client.held and self._believes(client)}
        if len(owners) > 1:
            raise self._violation("two owners believe that they hold the key")
        for client in self.clients.values():
            if client.held and self._believes(client):
                entry = self.store.entry if self.store.ends > self.now else None
                if entry is None or client.held.claim.hold not in decode(entry.value).holds:
                    raise self._violation(f"{client.name} believes, but does not stand")

    def _check_end(self) -> None:
        self.now += 200.0
        if self.store.apply(Request("get", b"", ABSENT, 0), self.now) is not None:
            raise self._violation("the key is not free in the end")

    def _violation(self, what: str) -> Violation:
        return Violation("\n".join([*self.story, f"{self.now - 1000:9.4f}  VIOLATION: {what}"]))
