"""The simulator notices each protection that is taken out of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from caslock.errors import LockLost, StoreError
from caslock.local import linger
from caslock.local.hold import Holding
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiAcquire
from caslock.local.queue import LocalQueue, next_look
from caslock.protocol.attempt import Attempt
from caslock.protocol.batch import Answers
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.life import State
from caslock.protocol.observation import ObservingStore
from caslock.protocol.record import Observed, Record
from caslock.protocol.runtime import Runtime
from caslock.store import Entry
from tests.proof.altered import altered, rewritten
from tests.proof.simulator import Violation
from tests.proof.simulator.chance import simulate
from tests.proof.simulator.explore import Bounds, explore
from tests.proof.simulator.scenes import SCENES
from tests.support import protocol_functions as protocol
from tests.support.life import force

# They open nothing: what is collected as garbage meanwhile was left by a test before them.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

SEEDS = 5_000
"""So many seeds are run at the most; nearly every mutant is caught within a few dozen."""


async def give_up_but_for_successors(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    """Think that what was sent for us is not ours to clean up."""
    if attempt.writes.count > 1 or not any(write.expected for write in attempt.writes.in_flight.values()):
        await GIVE_UP(runtime, attempt, error)


async def take_every_turn_first(self: MultiAcquire[Holding]) -> None:
    """Wait for our turn in the local queues of all keys, then at the store for one key after the other."""
    queues = self.states if self.states[0].runtime.batching is not None else ()
    entered = {state: self._holds[state]._attempt for state in queues if not self._re_enter(state)}
    for state, attempt in entered.items():
        now = state.runtime.now()
        inside = state._queue.enter(attempt, now, join=True)
        if inside is not None:
            left = None if self._timeout is None else max(0.0, self._began + self._timeout - now)
            await state._turn(attempt, next_look(inside, now), now, left, self._began)
    answers: Answers = {}
    if len(entered) > 1:
        answers = await protocol.put_together(self.states[0].runtime, list(entered.values()), {}) or {}
    for state in self.states:
        if not self._re_enter(state):
            await self._win(state, entered=state in entered, answers=answers)
    for hold in self.taken:
        hold.ensure_held()


def leave_in_silence(self: LocalQueue, attempt: Attempt, now: float) -> None:
    event = self.waiting[0].turn.event if self.waiting else None
    LEAVE_QUEUE(self, attempt, now)
    if event is not None:
        event.flag = False  # type: ignore[attr-defined] # of the simulator's


def never_leave(self: LocalQueue, attempt: Attempt, now: float) -> None:
    del self, attempt, now


async def renew_with_the_ttl_of_before(runtime: Runtime, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Wait for an extension that is under way, and then go on with the ttl of before it."""
    for attempt in attempts:
        ttl = attempt.lease.ttl
        attempt.lease.due = min(runtime.now() + ttl / 12, attempt.lease.deadline)
        with suppress(LockLost, StoreError):
            await RENEW(runtime, attempt, ttl)
    return []


async def watch_the_dead(self: LockState, attempt: Attempt, ttl: float | None) -> None:
    """Go on renewing what was extended by an event loop that has been closed meanwhile."""
    try:
        await protocol.renew(self.runtime, attempt, ttl)
    finally:
        if not attempt.ending:
            self.runtime.watch(attempt)


async def break_whoever_comes(runtime: Runtime, attempt: Attempt) -> Record | None:
    broken = first = await BREAK(runtime, attempt)
    while broken is not None:
        broken = await BREAK(runtime, attempt)
    return first


async def leave_for_all(self: LockState, hold: Holding, limit: float = NEVER, removed: Observed | None = None) -> None:
    if hold._is_open:
        hold._attempt.levels[:] = [hold]
    await LEAVE(self, hold, limit, removed)


async def forget_at_undo(self: LockState, hold: Holding, error: BaseException) -> None:
    if hold._attempt.state is State.OVER:
        return
    try:
        await protocol.give_up(self.runtime, hold._attempt, error)
    finally:
        force(hold._attempt, State.OVER)
        hold._attempt.levels.clear()
        self._forget(hold._attempt)


LEAVE_QUEUE, LEAVE, BREAK = LocalQueue.leave, LockState.release, protocol.force_release
GIVE_UP, RENEW = protocol.give_up, protocol.renew

believe_from_the_reply = altered(Lease.believe, "end = landed.at", "end = now")
"""Count the lease from when the answer came."""


def see_nothing(self: ObservingStore, key: str, entry: Entry | None) -> None:
    """Wait for a store that ends leases by itself, although it does not."""


MUTANTS: list[tuple[object, str, Callable[..., object]]] = [
    rewritten(Attempt, "next_record", "max(asked, observed.ttl)", "asked", name="the shorter ttl counts"),
    (protocol, "give_up", give_up_but_for_successors),
    rewritten(protocol, "_first_put", "(rest, version)", "(None, version)", name="a hand-over forgets lost puts"),
    rewritten(
        protocol,
        "_not_renewed",
        "if not _renewed(runtime, attempt, answered(attempt, write, entry), before[attempt], now):\n"
        "                left.append(attempt)",
        "attempt.holds_with(write.record, entry.version if entry else attempt.lease.version, now)",
        name="a batch of renewals that was refused for one of them is taken as written",
    ),
    (protocol, "renew_due", renew_with_the_ttl_of_before),
    rewritten(Attempt, "lose", "self.run", "self.ending or self.run", name="a loss at a release is not told"),
    rewritten(ObservingStore, "_note", "record.ttl", "record.ttl / 2", name="half a lease is enough"),
    rewritten(
        ObservingStore,
        "_note",
        "now + record.ttl",
        "min(now + record.ttl, before.over if (before := self._seen.get(where)) else now + record.ttl)",
        name="a lease is over for whoever has seen any version for so long",
    ),
    (ObservingStore, "_note", see_nothing),
]


SEARCHED = (
    "MultiLocks and a Lock, handed over",
    "MultiLocks and a Lock of two processes",
    "MultiLocks and Locks of two processes, waking",
)
"""Scenes in which contenders that queue for every key first wait for each other, without any fault."""


def look_everywhere() -> None:
    """Search the smallest scene under any one fault, and run the seeds."""
    explore(SCENES["two tasks, briefly"], Bounds(faults=1))
    for seed in range(SEEDS):
        simulate(seed)


@pytest.mark.parametrize(("owner", "name", "mutant"), MUTANTS, ids=[mutant[2].__name__ for mutant in MUTANTS])
def test_the_simulator_catches_a_protocol_without_that_protection(
    owner: object, name: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each protection that is taken out of the protocol is noticed within the seeds that CI runs."""
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(Violation):
        look_everywhere()


@pytest.mark.parametrize("scene", SEARCHED)
def test_a_search_catches_a_deadlock(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scene of MultiLocks shows it by itself."""
    monkeypatch.setattr(MultiAcquire, "acquire", take_every_turn_first)
    with pytest.raises(Violation):
        explore(SCENES[scene], Bounds(0, states=20_000))


def test_a_search_catches_a_key_that_lingers_in_a_multi_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be held and renewed while the MultiLock waits for an earlier one."""
    there = "state.re_enter(hold)"
    monkeypatch.setattr("caslock.local.multi.resume", linger.resume, raising=False)
    monkeypatch.setattr(*rewritten(MultiAcquire, "_re_enter", there, f"resume(state, hold) or {there}", name="resumes"))
    with pytest.raises(Violation, match="wait for each other"):
        explore(SCENES["MultiLocks of a key that lingers"], Bounds(0, states=20_000))
