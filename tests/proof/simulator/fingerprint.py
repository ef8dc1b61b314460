"""Fingerprints of states: two runs with the same one cannot be told apart by anything that happens next.

A fingerprint contains everything that the protocol, the programs, the store or the rules may look at again: the place
of each coroutine and its live local variables, along all that it awaits; attempts, local queues, entries, and requests
in flight.  Moments are relative to now, and versions are numbered by their order.  A value of an unknown kind is an
error, so that nothing is left out.
"""

from __future__ import annotations

import marshal
import weakref
from collections import deque
from functools import partial
from itertools import chain
from types import CoroutineType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from tenacity import RetryCallState
from tenacity.asyncio import AsyncRetrying
from tenacity.wait import wait_base

from caslock.errors import with_notes
from caslock.local import linger
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.multi import MultiAcquire, MultiState
from caslock.protocol.attempt import Attempt, Turn
from caslock.protocol.contention import Contention
from caslock.protocol.hand_over import HandOver
from caslock.protocol.lease import Lease
from caslock.protocol.life import State
from caslock.protocol.observation import ObservingStore
from caslock.protocol.record import Record
from caslock.protocol.transfer import Adoption
from caslock.protocol.writes import Writes
from tests.proof.simulator.client import Client, NamedLockState
from tests.proof.simulator.laws import Judge
from tests.proof.simulator.liveness import live
from tests.proof.simulator.run import Run
from tests.proof.simulator.runtime import Event, Flow, Mutex, Runtime
from tests.proof.simulator.store import FIRST_VERSION, read
from tests.proof.simulator.waits import NEVER, START, Answered, Asking, Lined, Listening, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from caslock.protocol.sightings import Sightings

_MOMENTS: Final = START / 2

_CONSTANT: Final = frozenset({
    "__weakref__", "_crowd", "_pause", "_poll", "auto_renew", "by", "key", "max_hold", "mutex", "on_loss",
    "owner", "retry", "runtime", "shared", "stamps", "terms", "scheduled",
})  # fmt: skip
"""Attributes of an attempt that come from its plan, or have no effect; its mutex is added elsewhere."""

_QUEUE: Final = frozenset({"__weakref__", "_guard"})
"""Attributes of a local queue that have no effect."""


def fingerprint(run: Run) -> int:
    """Return the state of a run."""
    print_ = _Print(run)
    print_.run(run)
    print_.number_versions()
    return hash(marshal.dumps(print_._out, 2))  # hash(-1) == hash(-2); later formats tell equal texts apart


class _Print:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._now = run.now
        self._out: list[object] = []
        self._versions: list[tuple[int, int]] = []
        """Where there is a version, and which."""
        self._attempts: dict[Attempt, None] = {}

    def number_versions(self) -> None:
        order = {version: -1 - n for n, version in enumerate(sorted({version for _, version in self._versions}))}
        for place, version in self._versions:
            self._out[place] = order[version]

    def run(self, run: Run) -> None:
        self.stored(run)
        self.queued(run)
        for process in run.processes:
            self.of((process.alive, max(process.stopped_until, run.now)))
            if isinstance(process.store, ObservingStore):
                self.sightings(process.store._seen, process.now())
            self.sightings(process.quarantines, process.now())
        for client in run.clients:
            self.of((client.alive, client.holding, client.attempts))
        for flow in run.flows.values():
            self.flow(flow)
        done = 0
        while done < len(self._attempts):
            for attempt in list(self._attempts)[done:]:
                done += 1
                self.an_attempt(attempt)
        self.judge(run.judge)

    def stored(self, run: Run) -> None:
        """Add what is at the store, who waits there, and what may land yet."""
        lined = {id(flow.waits.waiter): name for name, flow in run.flows.items() if isinstance(flow.waits, Lined)}
        for key, lease in sorted(run.store.leases.items()):
            if lease.ends > run.now:
                self.of((key, lease.entry.version, lease.ends, lease.record))
                self.of(run.judge.fences.get(key, {}).get(lease.tenure))
        for key, lease in sorted(run.store.remains.items()):
            self.of((key, lease.entry.version, lease.record))
            self.of(run.judge.fences.get(key, {}).get(lease.tenure))
        for key, line in run.store.lines.items():
            self.of([key, *((lined.get(id(waiter), "dead"), waiter.woken) for waiter in line)])
        self.of(max(run.store.full_until, run.now))
        for late in run.late:
            self.of((late.name, late.request, late.dies))
        self.several(run.tickets)

    def queued(self, run: Run) -> None:
        """Add what Lock objects know, and who is in their local queues."""
        local_queues = {}
        for state in run.states:
            self.of((state.newest, list(state.attempts.values()), state.unsettled))
            local_queues[id(state.local_queue)] = state.local_queue
        for local_queue in local_queues.values():
            self.of(run.judge.releases.get(local_queue, 0))
            known = {name: getattr(local_queue, name) for name in local_queue.__slots__ if name not in _QUEUE}
            for moment in ("_yields_until", "_others_until"):
                known[moment] = max(known[moment], run.now)
            self.of(known)

    def of(self, value: object) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._out.append(value)
        else:
            (_KINDS.get(kind) or _kind_of(value))(self, value)

    def several(self, values: Iterable[object]) -> None:
        values, out = list(values), self._out
        out += ("several", len(values))
        for value in values:  # as `of`, without a call for each
            kind = type(value)
            if kind in _PLAIN:
                out.append(value)
            else:
                (_KINDS.get(kind) or _kind_of(value))(self, value)

    def mapping(self, values: Mapping[object, object]) -> None:
        self.several(chain.from_iterable(values.items()))

    def number(self, value: int) -> None:
        if value >= FIRST_VERSION:
            self._versions.append((len(self._out), value))
        self._out.append(value)

    def moment(self, value: float) -> None:
        self._out.append(round(value - self._now, 6) if _MOMENTS < value < NEVER else value)

    def of_any_order(self, values: set[str]) -> None:
        self.several(sorted(values))

    def sightings(self, sightings: Sightings, now: float) -> None:
        self.of({place: (mark, max(over, now)) for place, (mark, over) in sightings._seen.items()})

    def reference(self, attempt: Attempt) -> None:
        self._attempts[attempt] = None
        self._out.append(attempt.hold_id)

    def weakly(self, reference: weakref.ref[Attempt]) -> None:
        self.of(reference())

    def record(self, record: Record) -> None:
        self._out += ("record", record.owner, record.ttl, record.write, record.quarantine, record.quarantine_id)
        self._out += (len(record.holds), *record.holds)
        self.of(record.fence)

    def bytes(self, value: bytes) -> None:
        self.of(read(value) if value else None)

    def hold(self, hold: Holding) -> None:
        self.reference(hold._attempt)

    def several_keys(self, attempt: MultiAcquire[Holding]) -> None:
        limit = None if attempt._timeout is None else attempt._began + attempt._timeout
        self.several((attempt._holds, limit))

    def state(self, state: State) -> None:
        self._out.append(state.name)

    def name(self, named: Client | Flow | NamedLockState | Runtime) -> None:
        self._out.append(named.name)

    def error(self, error: BaseException) -> None:
        self._out += (type(error).__name__, getattr(error, "sent", None), hasattr(error, "__notes__"))
        self._out.append("was lost" in with_notes(error))

    def function(self, function: FunctionType | MethodType) -> None:
        self._out.append(function.__qualname__)

    def partial(self, function: partial[object]) -> None:
        self.several((function.func, *function.args))

    def attempt(self, state: RetryCallState) -> None:
        self._out.append(state.attempt_number)

    def event(self, event: Event) -> None:
        self._out.append(event.flag)

    def nothing(self, _value: object) -> None:
        """Leave out what does not change, or is added elsewhere."""
        self._out.append(None)  # in its place

    def an_attempt(self, attempt: Attempt) -> None:
        self._out += (attempt.hold_id, isinstance(attempt.mutex, Mutex) and attempt.mutex.taken)
        self._out.append(attempt in linger.lingering)
        self.fields(attempt)

    def fields(self, value: Attempt | Lease | Writes | Contention | HandOver) -> None:
        kind = type(value)
        self._out.append(kind.__name__)
        for name in _fields_of(kind):
            self.of(getattr(value, name))

    def judge(self, judge: Judge) -> None:
        # What it knows of holds that nothing else refers to has no effect on what happens next.
        known = cast("set[str]", set(self._out))  # what else is in it is no key of these
        self.several(
            (
                sorted(known & judge.settled.keys()),
                sorted(known & judge.excused),
                sorted(known & judge.unsure),
                sorted(known & judge.given_up),
            )
        )
        self.several(
            (
                sorted(known & judge.succeeded),
                [(hold, judge.broken[hold]) for hold in sorted(known & judge.broken.keys())],
                [(hold, judge.extended[hold]) for hold in sorted(known & judge.extended.keys())],
            )
        )
        for key, (hold, until) in sorted(judge.least.items()):
            if until > self._run.now:
                self.several((key, hold, until))
        self.several((sorted(known & self._run.store.expired), sorted(known & judge.breaks.keys())))
        self.several((sorted(judge.handed), sorted(judge.used.items())))
        self.several([max(fences.values()) for fences in judge.fences.values()])
        for client, (silent, before) in judge.leaving.items():
            self.several((client, silent == client.silent))
            for lost, lease in before:
                self.several((lost, lease and (lease.entry.version, lease.record.holds)))

    def flow(self, flow: Flow) -> None:
        self._out += (flow.name, flow.finishes, flow.undoes, len(flow.unfinished), flow.struck)
        self.wait(flow.waits)
        awaited: object = flow.coroutine
        while awaited is not None:
            if isinstance(awaited, CoroutineType):
                frame, following = awaited.cr_frame, awaited.cr_await
            elif isinstance(awaited, GeneratorType):
                frame, following = awaited.gi_frame, awaited.gi_yieldfrom
            else:
                message = f"the fingerprint can't look into {awaited!r}"
                raise TypeError(message)
            assert frame is not None
            code = frame.f_code
            self._out += (code.co_qualname, frame.f_lasti)
            names = live(code, frame.f_lasti)
            if names:
                values = frame.f_locals
                for name in names:
                    self.of(values.get(name, ...))
            awaited = following

    def wait(self, waits: Wait) -> None:
        self._out.append(type(waits).__name__)
        self.of(waits.until)
        if isinstance(waits, Asking):
            self.of(waits.request)
        if isinstance(waits, Answered):
            self.of(waits.answer)
        elif isinstance(waits, Lined):
            self.of(waits.waiter.woken)
        elif isinstance(waits, Listening):
            self.of(waits.event.flag)


_FIELDS: Final[dict[type, list[str]]] = {}
_PLAIN: Final = frozenset({bool, str, type(None), type(...)})
_KINDS: Final[dict[type, Callable[[_Print, Any], None]]] = {
    MultiAcquire: _Print.several_keys,
    AsyncRetrying: _Print.nothing,
    Client: _Print.name,
    Adoption: _Print.reference,
    Attempt: _Print.reference,
    Contention: _Print.fields,
    Event: _Print.event,
    Flow: _Print.name,
    FunctionType: _Print.function,
    HandOver: _Print.fields,
    Holding: _Print.hold,
    Holds: _Print.several,
    Judge: _Print.nothing,
    Lease: _Print.fields,
    MethodType: _Print.function,
    MultiState: _Print.nothing,
    Mutex: _Print.nothing,
    NamedLockState: _Print.name,
    ObservingStore: _Print.nothing,
    Record: _Print.record,
    RetryCallState: _Print.attempt,
    Run: _Print.nothing,
    Runtime: _Print.name,
    State: _Print.state,
    Turn: _Print.fields,
    Writes: _Print.fields,
    bytes: _Print.bytes,
    deque: _Print.several,
    dict: _Print.mapping,
    float: _Print.moment,
    int: _Print.number,
    list: _Print.several,
    partial: _Print.partial,
    set: _Print.of_any_order,
    tuple: _Print.several,
    type: _Print.nothing,
    weakref.ref: _Print.weakly,
}


def _fields_of(kind: type) -> list[str]:
    names = _FIELDS.get(kind)
    if names is None:
        slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
        names = _FIELDS[kind] = [name for name in slots if name not in _CONSTANT]
    return names


def _kind_of(value: object) -> Callable[[_Print, Any], None]:
    for kind, write in (
        (BaseException, _Print.error),
        (wait_base, _Print.nothing),
        (tuple, _Print.several),
        (Wait, _Print.wait),
    ):
        if isinstance(value, kind):
            _KINDS[type(value)] = write
            return write
    message = f"the fingerprint does not know what a {type(value).__name__} is"
    raise TypeError(message)
