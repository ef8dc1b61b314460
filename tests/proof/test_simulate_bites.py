"""The simulator notices each protection that is taken out of the protocol."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiAcquire
from caslock.local.queue import LocalQueue
from caslock.protocol import exchange as request
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.life import State
from caslock.protocol.observation import ObservingStore
from caslock.protocol.record import NOTHING, Observed
from caslock.protocol.sightings import Sightings
from caslock.protocol.writes import InFlight
from tests.proof.mutants.planted import altered
from tests.proof.simulator import Violation
from tests.proof.simulator.chance import simulate
from tests.proof.simulator.explore import Bounds, explore
from tests.proof.simulator.scenes import SCENES
from tests.support import protocol_functions as protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.batch import Answers
    from caslock.protocol.hand_over import HandOver
    from caslock.protocol.record import Record
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.writes import Write
    from caslock.store import Entry

# They open nothing: what is collected as garbage meanwhile was left by a test before them.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

SEEDS = 5_000
"""So many seeds are run at the most; nearly every mutant is caught within a few dozen."""


def believe_from_the_reply(self: Lease, record: Record, version: int, landed: InFlight | None, now: float) -> None:
    """Count the lease from when the answer came."""
    BELIEVE(self, record, version, landed, now)
    self.deadline = now + self.asked


def shorten_others(self: Attempt, observed: Record | None, version: int) -> Record:
    """Write the record with our own, shorter ttl."""
    return NEXT_RECORD(self, observed, version)._replace(ttl=self.lease.asked)


def is_in_any(self: Attempt, record: Record | None) -> bool:
    """Take the owner's name for the proof that this attempt is among the holds."""
    return record is not None and record.owner == self.owner


def no_margin(ttl: float) -> float:
    """Believe longer than the lease lives."""
    return -0.5 * ttl


def forget_the_successor(self: LocalQueue, attempt: Attempt, now: float) -> None:
    """Promise the key to the next, and forget it."""
    NAME_SUCCESSOR(self, attempt, now)
    attempt.turn.outgoing = None


def keep_nothing(self: Attempt, observed: Record, version: int, now: float) -> Record | None:
    """Forget `min_hold` at the release."""
    least, self.min_hold = self.min_hold, 0.0
    try:
        return REMAINDER(self, observed, version, now)
    finally:
        self.min_hold = least


def take_what_is_kept(self: Attempt, record: Record | None) -> bool:
    """Take what is kept for a hold of our own, and re-enter."""
    return MAY_TAKE(self, record) or (record is not None and record.kept and record.owner == self.owner)


async def give_up_but_for_successors(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    """Think that what was sent for us is not ours to clean up."""
    if attempt.writes.count > 1 or not any(write.expected for write in attempt.writes.in_flight.values()):
        await GIVE_UP(runtime, attempt, error)


async def hand_over_at_no_answer(runtime: Runtime, attempt: Attempt, outgoing: HandOver, limit: float) -> Observed:
    """Take a missing answer for success."""
    del limit
    version, successor = attempt.lease.version, outgoing.successor
    try:
        record = successor.next_record(None, version)
        return await request.send(runtime, successor, request.note_write(successor, version, record, runtime.now()))
    except StoreUnavailable:
        record = successor.next_record(None, version)
        successor.writes.in_flight[record.write] = sent_now(runtime, successor)
        return Observed(version + 1, record)


def sent_now(runtime: Runtime, successor: Attempt) -> InFlight:
    """Note a write that was sent now."""
    return InFlight(successor.lease.version, runtime.now(), successor.lease.ttl)


async def hand_over_and_believe(runtime: Runtime, attempt: Attempt, outgoing: HandOver, limit: float) -> Observed:
    """Believe to have left although the hand-over was refused."""
    observed = await HAND_OVER(runtime, attempt, outgoing, limit)
    return observed if outgoing.successor.is_in(observed.record) else NOTHING


async def put_at_no_answer(runtime: Runtime, attempts: Sequence[Attempt], known: Answers) -> Answers | None:
    """Forget the puts of a batch that got no answer."""
    answers = await PUT_TOGETHER(runtime, attempts, known)
    for attempt in attempts if not answers else ():
        attempt.writes.in_flight.clear()
    return answers


async def put_at_absence_only(runtime: Runtime, attempts: Sequence[Attempt], known: Answers) -> Answers | None:
    """Forget what is known of the keys of a batch, so that it is refused wherever there is a free record."""
    del known
    return await PUT_TOGETHER(runtime, attempts, {})


def begin_quarantines_anew(self: Sightings, place: tuple[str, str], mark: int | str, over: float, now: float) -> float:
    """Count each quarantine from when a record with it was seen last."""
    self.forget(place)
    return SEE(self, place, mark, over, now)


async def take_every_turn_first(self: MultiAcquire[Holding]) -> None:
    """Wait for our turn in the local queues of all keys, then at the store for one key after the other."""
    queues = self.states if self.states[0].runtime.batching is not None else ()
    entered = {state: self._holds[state]._attempt for state in queues if not self._re_enter(state)}
    for state, attempt in entered.items():
        if not state.enter_at_once(attempt):
            left = None if self._timeout is None else max(0.0, self._began + self._timeout - state.runtime.now())
            await state._turn(attempt, state.runtime.now(), left, self._began)
    answers: Answers = {}
    if len(entered) > 1:
        answers = await protocol.put_together(self.states[0].runtime, list(entered.values()), {}) or {}
    for state in self.states:
        if not self._re_enter(state):
            await self._win(state, entered=state in entered, answers=answers)
    for hold in self.taken:
        hold.ensure_held()


def leave_in_silence(self: LocalQueue, attempt: Attempt, now: float) -> None:
    """Let the next one in, and not wake it."""
    event = self.waiting[0].turn.event if self.waiting else None
    LEAVE_QUEUE(self, attempt, now)
    if event is not None:
        event.flag = False  # type: ignore[attr-defined] # of the simulator's


def never_leave(self: LocalQueue, attempt: Attempt, now: float) -> None:
    """Stay in the queue."""
    del self, attempt, now


async def check_before_only(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Revive a lease by a renewal that is answered after its end."""
    lease = attempt.lease
    deadline, lease.deadline = lease.deadline, max(lease.deadline, runtime.now() + 1.0)
    try:
        await RENEW(runtime, attempt, ttl)
    finally:
        lease.deadline = max(lease.deadline, deadline)


def believe_all(
    runtime: Runtime, renewals: list[tuple[Attempt, Write]], answers: Sequence[Entry | None], before: dict[Attempt, int]
) -> list[Attempt]:
    """Take a batch of renewals that was refused for one of them as written."""
    del before
    for (attempt, write), entry in zip(renewals, answers, strict=True):
        assert write.record is not None
        attempt.holds_with(write.record, attempt.lease.version if entry is None else entry.version, runtime.now())
    return []


async def renew_with_the_ttl_of_before(runtime: Runtime, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Wait for an extension that is under way, and then go on with the ttl of before it."""
    for attempt in attempts:
        ttl = attempt.lease.ttl
        attempt.lease.due = min(runtime.now() + ttl / 12, attempt.lease.deadline)
        with suppress(LockLost, StoreError):
            await RENEW(runtime, attempt, ttl)
    return []


def lose_in_silence(self: Attempt, why: str) -> LockLost:
    """Tell of a loss that a release has found nobody but who has released."""
    if self.ending:
        self.lease.lost = self.lease.lost or why
        return LockLost(why)
    return LOSE(self, why)


def let_follow_at_once(self: LocalQueue, attempt: Attempt, now: float) -> None:
    """Count the releaser as gone before it has left: who comes after its successor would follow at once."""
    NAME_SUCCESSOR(self, attempt, now)
    if attempt.turn.outgoing is not None:
        self._inside = [weakref.ref(attempt.turn.outgoing.successor)]


def name_successor_beside_others(self: LocalQueue, attempt: Attempt, now: float) -> None:
    """Think that whoever is being released has handed over to us."""
    others = [other for other in self._inside if other() is not attempt and getattr(other(), "ending", False)]
    self._inside = [other for other in self._inside if other not in others]
    NAME_SUCCESSOR(self, attempt, now)
    self._inside = [*others, *self._inside]


def read_the_id_again(self: LockState, kind: type[Attempt] = Attempt) -> Attempt:
    """Give an attempt the newest id, which may be that of another thread by now."""
    attempt = NEW_ATTEMPT(self, kind)
    newest = self.newest
    attempt.hold_id = attempt.writes.hold_id = newest
    return attempt


async def watch_the_dead(self: LockState, attempt: Attempt, ttl: float | None) -> None:
    """Go on renewing what was extended by an event loop that has been closed meanwhile."""
    try:
        await protocol.renew(self.runtime, attempt, ttl)
    finally:
        if not attempt.ending:
            self.runtime.watch(attempt)


async def break_whoever_comes(runtime: Runtime, attempt: Attempt) -> Record | None:
    """Take the key away until nobody holds it."""
    broken = first = await BREAK(runtime, attempt)
    while broken is not None:
        broken = await BREAK(runtime, attempt)
    return first


async def leave_for_all(self: LockState, hold: Holding, limit: float = NEVER, removed: Observed | None = None) -> None:
    """Let the release of any level be the last."""
    if hold._is_open:
        hold._attempt.levels[:] = [hold]
    await LEAVE(self, hold, limit, removed)


async def forget_at_undo(self: LockState, hold: Holding, error: BaseException) -> None:
    """Forget an acquire whose clean-up was interrupted."""
    if hold._attempt.state is State.OVER:
        return
    try:
        await protocol.give_up(self.runtime, hold._attempt, error)
    finally:
        hold._attempt.state = State.OVER
        hold._attempt.levels.clear()
        self._forget(hold._attempt)


LEAVE_QUEUE, REMAINDER, MAY_TAKE = LocalQueue.leave, Attempt.remainder, Attempt.may_take
BELIEVE, NEXT_RECORD, NAME_SUCCESSOR = Lease.believe, Attempt.next_record, LocalQueue.name_successor
NEW_ATTEMPT, LEAVE, BREAK = LockState._attempt, LockState.release, protocol.force_release
PUT_TOGETHER = protocol.put_together
SEE = Sightings.see
GIVE_UP, HAND_OVER, RENEW, LOSE = protocol.give_up, protocol.hand_over, protocol.renew, Attempt.lose

FIRST_PUT = protocol._first_put

hand_over_free_records = altered(
    FIRST_PUT, "successor.next_record(rest, version)", "successor.next_record(None, version)", "hand_over_free_records"
)
"""Forget, as the key is handed over, that a lost put may still arrive."""

write_and_not_look = altered(
    FIRST_PUT, "if successor.ending or not outgoing.pending:", "if False:", "write_and_not_look"
)
"""Note what is sent for a successor, and believe that it waits still."""


hand_over_unseen = altered(
    write_and_not_look,
    "if not (outgoing.pending and fits and (taken or outgoing.take())):",
    "if not fits:",
    "hand_over_unseen",
)
"""Hand over without a look whether the successor still waits."""


resume_what_is_released = altered(
    LockState.resume, "other.state is not LINGERING", "other.state is HELD", "resume_what_is_released"
)
"""Hold again what lingers no longer."""


def half_a_lease_is_enough(self: ObservingStore, key: str, entry: Entry | None) -> None:
    """Take a lease for over that may have half of its time left."""
    seen(self, key, entry)
    where = self.traits.location, key
    sighting, now = self._seen.get(where), self._now()
    if sighting is not None:
        self._seen.see(where, sighting.mark, now + 0.5 * (sighting.over - now), now)


def any_version_will_do(self: ObservingStore, key: str, entry: Entry | None) -> None:
    """Count from the first look at any version."""
    where = self.traits.location, key
    before = self._seen.get(where)
    seen(self, key, entry)
    after = self._seen.get(where)
    if before and after:
        self._seen.see(where, after.mark, before.over, self._now())


def see_nothing(self: ObservingStore, key: str, entry: Entry | None) -> None:
    """Wait for a store that ends leases by itself, although it does not."""


seen = ObservingStore._note

MUTANTS: list[tuple[object, str, Callable[..., object]]] = [
    (Attempt, "next_record", shorten_others),
    (protocol, "give_up", give_up_but_for_successors),
    (protocol, "_first_put", hand_over_free_records),
    (protocol, "_not_renewed", believe_all),
    (protocol, "renew_due", renew_with_the_ttl_of_before),
    (Attempt, "lose", lose_in_silence),
    (ObservingStore, "_note", half_a_lease_is_enough),
    (ObservingStore, "_note", any_version_will_do),
    (ObservingStore, "_note", see_nothing),
    (LockState, "resume", resume_what_is_released),
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
