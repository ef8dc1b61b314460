"""One run: each step is one choice of the scheduler, and the same choices make the same run.

A choice is a pair of names: who (a coroutine, a late request, the time, the store or a process), and what happens to
it.  Whoever makes the choices (chance, a search, a replay) is given what may happen; ``go`` is what happens without a
fault.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, NoReturn

from tenacity import wait_fixed

from caslock.local import linger
from caslock.protocol.writes import FREE_TTL
from tests.proof.simulator.client import Client, NamedLockState
from tests.proof.simulator.fate import befall, faults
from tests.proof.simulator.laws import Judge
from tests.proof.simulator.outage import forget_dead, happen
from tests.proof.simulator.plan import PACKET_LIFE, ClientPlan, Plan, Round
from tests.proof.simulator.race import race
from tests.proof.simulator.runtime import Flow, Runtime
from tests.proof.simulator.store import Request, SimulatedStore
from tests.proof.simulator.story import Choice, Step, Violation
from tests.proof.simulator.waits import NEVER, RUNS, START, Answered, Asking, Blocked, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.transfer import Ticket
    from caslock.store import Entry

_WELL: Final = frozenset({"go", "1", "lands"})  # what happens when nothing goes wrong

LONGEST: Final = 10_000
"""The most steps of a run: the longest that end have a third of that."""


class Late(NamedTuple):
    """A request that may be applied yet."""

    name: str
    request: Request
    client: Client
    dies: float


class Run:
    judge_type: ClassVar[Callable[..., Judge]] = Judge

    def __init__(self, plan: Plan) -> None:
        random.seed(plan.seed)  # tenacity's jitter
        self.plan = plan
        self.now = START
        self.store = SimulatedStore(plan.early, expires=plan.expires)
        self.story: list[Step] = []
        self.choices: list[Choice] = []
        self.violation: Violation | None = None
        self.flows: dict[str, Flow] = {}
        self.late: list[Late] = []
        self.tickets: list[Ticket] = []  # of all hand-overs, the newest last
        self.judge = self.judge_type(self)
        self.raced = 0  # at which line of the last step it has struck, if that was a race
        self.troubled = -NEVER  # when something has gone wrong last
        self._graves: list[Flow] = []
        self._poll = None if plan.poll is None else wait_fixed(plan.poll)
        self.processes = [
            Runtime(self, number, threads=threads, rate=rate, plan=plan)
            for number, (threads, rate) in enumerate(zip(plan.threads, plan.rates, strict=True), 1)
        ]
        self._locks: dict[tuple[int, str, str], NamedLockState] = {}
        self.clients: list[Client] = []
        for client in plan.clients:
            self.enter(client)

    def enter(self, plan: ClientPlan) -> None:
        process = self.processes[plan.process]
        states = [self._lock(plan, process, plan.lock, key) for key in plan.keys]
        others = []
        if plan.owner is not None and any(
            stay.does == "enter elsewhere" for round_ in plan.rounds for stay in round_.body
        ):
            others = [self._lock(plan, process, f"{plan.lock}2", key) for key in plan.keys]
        adopting = []
        if any(round_.adopts for round_ in plan.rounds):
            alone = plan._replace(owner=None, linger=None, min_hold=None)
            # Of its own: each adoption has a Lock object for itself.
            adopting = [self._lock(alone, process, f"{plan.name}0", key) for key in plan.keys]
        client = Client(self, plan, process, states, others, adopting=adopting)
        self.clients.append(client)
        self.start(Flow(client.name, client, client.program(), Wait()))

    def _lock(self, plan: ClientPlan, process: Runtime, lock: str, key: str) -> NamedLockState:
        place = plan.process, lock, key
        if place not in self._locks:
            self._locks[place] = self._new_lock(lock, process, key, plan)
        return self._locks[place]

    def _new_lock(self, name: str, process: Runtime, key: str, plan: ClientPlan) -> NamedLockState:
        return NamedLockState(f"{name}{key}", process, key, plan, self._poll)

    def start(self, flow: Flow) -> Flow:
        flow.waits = flow.coroutine.send(None)  # every flow waits for a moment first
        self.flows[flow.name] = flow
        return flow

    @property
    def states(self) -> list[NamedLockState]:
        return list(self._locks.values())

    def attempts(self) -> Iterator[Attempt]:
        """All attempts that wait, hold or are being released."""
        for state in self._locks.values():
            yield from state.attempts.values()

    def tell(self, who: str, what: str) -> None:
        self.story.append(Step(self.now - START, who, what))

    def note(self, flow: Flow, what: str, asking: Asking, answer: Sequence[Entry | None] | None = None) -> None:
        """Add what happens to a request to the story."""
        self.story.append(Step(self.now - START, flow.name, what, asking.request, answer))

    def violate(self, law: str) -> NoReturn:
        self.tell("", f"VIOLATION: {law}")
        self.violation = self.violation or Violation(law, self.plan, self.choices, self.story)
        raise self.violation

    def ready(self) -> list[Flow]:
        now = self.now
        return [
            flow
            for flow in self.flows.values()
            if flow.waits.ready(flow.client.process.now()) and flow.client.process.stopped_until <= now
        ]

    @property
    def tense(self) -> bool:
        """Whether a client waits for a mutex or cleans up, where faults matter most."""
        return any(type(flow.waits) is Blocked or flow.finishes or flow.undoes for flow in self.flows.values())

    @property
    def over(self) -> bool:
        """Whether nothing is left to happen."""
        return not self.flows and not self.late

    def moments(self, *, every: bool = False) -> list[float]:
        """When somebody can go on who can't now; and, of `every` kind, when a lease or a belief ends."""
        now = self.now
        found = {process.stopped_until for process in self.processes}
        for flow in self.flows.values():
            if flow.waits.until < NEVER:
                found.add(flow.client.process.real(flow.waits.until))
        if every:
            found.update(lease.ends for lease in self.store.leases.values())
            found.add(self.store.full_until)
            for client in self.clients:
                found.update(client.process.real(hold._attempt.lease.deadline) for hold in client.holding)
        if not self.flows:
            found.update(late.dies for late in self.late)
        return sorted(moment for moment in found if now < moment < NEVER)

    def can(self, who: str, what: str) -> bool:
        """Whether that may happen now: what a shrunk story leaves out may have made it impossible."""
        flow = self.flows.get(who)
        if flow is not None:
            if what.startswith("race "):
                what = "go"
            stopped = flow.client.process.stopped_until > self.now
            return what in faults(flow) or (
                what == "go" and not stopped and flow.waits.ready(flow.client.process.now())
            )
        if who == "time":
            return bool(self.moments(every=what.startswith("stall")))
        if who == "store":
            return True
        return any(late.name == who for late in self.late) or any(
            process.name == who and process.alive for process in self.processes
        )

    def do(self, who: str, what: str) -> None:
        self.choices.append((who, what))
        flow = self.flows.get(who)
        self.raced, late = 0, False
        if flow is not None and what.startswith("race "):
            self.raced = race(self, flow, what)
        elif flow is not None:
            befall(self, flow, what)
        else:
            if who == "time":
                self.judge.waits()
                late = bool(self.ready())  # a shrunk story may have left out what they did
            happen(self, who, what)
        if late or not (what in _WELL or (what.startswith("race ") and what.endswith(" go"))):
            self.troubled = self.now
        for process in self.processes:
            process.forget_ending()
        self.judge.changed()
        self.judge.beliefs()
        if self.late:
            forget_dead(self)
        if self.violation:
            raise self.violation

    def go_on(self) -> bool:
        """Take the step that does when all is well; False when nothing is left to happen."""
        ready = self.ready()
        if ready:
            self.do(ready[0].name, "go")
        elif self.over:
            return False
        else:
            self.wait()
        return True

    def wait(self) -> None:
        if not self.moments():
            self.violate(f"{', '.join(self.flows)} will wait for ever")
        self.do("time", "1")

    def finish(self) -> None:
        """Without any more faults, come to an end, and check that every process can have every key then."""
        self.store.full_until, self.troubled = 0.0, self.now
        self._drain()
        self.judge.ended()
        keys = sorted({state.key for state in self.states})
        ttl = max([20.0, *(client.ttl for client in self.plan.clients)])
        if any(client.min_hold for client in self.plan.clients):
            ttl += FREE_TTL  # what is kept keeps out late requests, too
        for number, process in enumerate(self.processes):
            if process.alive:
                for key in keys:
                    before = len(self.judge.succeeded)
                    trial = Round(0.0, 1.0 + ttl * max(1.0, process.rate))
                    self.enter(ClientPlan(f"end{number}{key}", number, f"end{number}", (key,), 1.0, None, (trial,)))
                    self._drain()
                    if len(self.judge.succeeded) == before:
                        self.violate(f"process {number + 1} can't have {key!r} although all is well")
                self._take_all(number, tuple(keys))

    def _take_all(self, number: int, keys: tuple[str, ...]) -> None:
        """Check that keys that nobody holds are acquired at once, and by few requests, whatever records are there."""
        before, name = len(self.judge.succeeded), f"all{number}"
        self.enter(ClientPlan(name, number, name, keys, 1.0, None, (Round(0.0, 0.0),)))
        client = self.clients[-1]
        self._drain()
        if len(self.judge.succeeded) != before + len(keys):
            self.violate(f"process {number + 1} can't have all keys at once although nobody holds them")
        if self.judge.asked[client] > self._enough(keys):
            self.violate(f"process {number + 1} took {self.judge.asked[client]} requests for keys that nobody holds")

    def _enough(self, keys: tuple[str, ...]) -> int:
        """Return how many requests may be needed for keys that nobody holds: the first tell which records are there."""
        return 2 if self.plan.batching and len(keys) > 1 else 2 * len(keys)

    def check_length(self) -> None:
        """Check that it has not gone on for ever."""
        if len(self.choices) > LONGEST:
            self.violate("the run does not end")

    def _drain(self) -> None:
        while self.go_on():
            self.check_length()

    def apply(self, request: Request, client: Client) -> list[Entry | None] | None:
        """Apply a request, unless the store refuses it."""
        self.judge.sent(request, client)
        return self.store.apply(request, self.now, client)

    def resume(self, flow: Flow, answer: object, error: BaseException | None = None) -> None:
        self.current = flow
        flow.waits = RUNS
        try:
            flow.waits = flow.coroutine.throw(error) if error else flow.coroutine.send(answer)
        except StopIteration:
            del self.flows[flow.name]
        except Violation:
            raise
        except BaseException as raised:  # noqa: BLE001 - a program catches the promised errors: any other is a violation
            del self.flows[flow.name]
            self.violate(f"{flow.name} raises {raised!r}")

    def drop(self, flow: Flow) -> None:
        """End a coroutine that waits for nothing but a moment, if it has not ended."""
        self.flows.pop(flow.name, None)
        flow.coroutine.close()

    def delay(self, flow: Flow) -> None:
        """Put what a flow has sent among what may land yet."""
        asking = flow.waits
        if isinstance(asking, Asking) and not isinstance(asking, Answered) and asking.request.verb != "get":
            name = f"late {flow.name} {asking.request.verb}"
            self.late.append(Late(name, asking.request, flow.client, self.now + PACKET_LIFE))

    def bury(self, flow: Flow) -> None:
        """Never resume a coroutine again, nor close it before the end."""
        del self.flows[flow.name]
        self._graves.append(flow)

    def close(self) -> None:
        """Let go of every coroutine, and of what lingers."""
        linger.lingering.clear()
        for flow in [*self.flows.values(), *self._graves]:
            self.current = flow
            flow.coroutine.close()
        self.flows.clear()
        self._graves.clear()
