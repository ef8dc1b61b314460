"""Tests of the laws of a lock: without the protection that a fault calls for, a scenario fails."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import uuid4

import pytest

from caslock import aio
from caslock.errors import CaslockError, StoreUnavailable
from caslock.local.holds import Holds
from caslock.local.lock_state import LockState
from caslock.protocol import exchange as request
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.protocol.record import NOTHING, Observed, Record, decode
from caslock.protocol.writes import Write, Writes
from caslock.store import ABSENT, Put
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.stopwatch import Stopwatch
from tests.proof.laws import holders, scene, trials
from tests.proof.laws.locks import PLAYS, LockContract
from tests.proof.laws.scene import Scene
from tests.proof.test_contract_bites import DeletesUnseen, ForgetsVersions, WakesNobody
from tests.support import protocol_functions as protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.local.hold import Holding
    from caslock.protocol.batch import Answers
    from caslock.protocol.hand_over import HandOver
    from caslock.protocol.runtime import Runtime

pytestmark = pytest.mark.long

T = TypeVar("T")

RED = (AssertionError, pytest.fail.Exception, CaslockError)
WRITE_SURELY, GIVE_UP, RETRY, RENEW = request.write_surely, protocol.give_up, request._retry, protocol.renew
NEXT_RECORD, REMAINDER = Attempt.next_record, Attempt.remainder


def newest_write_only(self: Attempt, record: Record | None) -> bool:
    """Know no write but the last: an earlier attempt's record is a stranger's."""
    return record is not None and record.write == f"{self.hold_id}.{self.writes.count}"


async def believe_the_old_lease(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Count on what was answered last."""
    deadline = attempt.lease.deadline
    try:
        await RENEW(runtime, attempt, ttl)
    except StoreUnavailable:
        attempt.lease.deadline = deadline
        raise


async def again_as_a_stranger(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Repeat with a new identity, and without looking."""
    try:
        return await request.send(runtime, attempt, request.note_write(attempt, expected, record, runtime.now()))
    except StoreUnavailable:
        attempt.hold_id = attempt.writes.hold_id = f"{attempt.hold_id}0"
        again = record and record._replace(holds=(attempt.hold_id,), write=attempt.writes.next_id())
        return await WRITE_SURELY(runtime, attempt, expected, again, limit)


def nobodys_only(self: Attempt, record: Record | None) -> bool:
    """Take nothing that has an owner, not even our own."""
    del self
    return record is None or record.free


async def no_answer_is_busy(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Take an error for "held by somebody else"."""
    try:
        return await WRITE_SURELY(runtime, attempt, expected, record, limit)
    except StoreUnavailable:
        return Observed(1, decode(b"somebody"))


async def ask_once(runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float) -> Observed:
    """Neither read nor repeat after no answer."""
    del limit
    return await request.send(runtime, attempt, request.note_write(attempt, expected, record, runtime.now()))


async def nothing_there_is_ours(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Take a miss for a win."""
    observed = await WRITE_SURELY(runtime, attempt, expected, record, limit)
    if record is not None and attempt.is_in(record) and observed.record is None:
        return Observed(1, record)
    return observed


async def miss_after_no_answer_is_ours(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Believe that a write has landed because nobody else's has."""
    try:
        return await request.send(runtime, attempt, request.note_write(attempt, expected, record, runtime.now()))
    except StoreUnavailable:
        observed = await request.read(runtime, attempt, limit)
        return observed if observed.record else Observed(1, record)


async def give_up_without_looking(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    """Report a failure without making it definite."""
    del runtime, error
    attempt.state = State.OVER


async def give_up_on_errors_only(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    """Forget that a call may be interrupted."""
    if isinstance(error, Exception):
        await GIVE_UP(runtime, attempt, error)


def leave_nothing(self: Attempt, observed: Record | None, version: int, now: float) -> Record | None:
    """Remove the record although a lost put may still arrive."""
    if observed is None:
        return REMAINDER(self, observed, version, now)
    others = self.others(observed) if self.is_in(observed) else observed.holds
    return observed._replace(holds=others, write=self.writes.next_id()) if others else None


def forget_what_was_sent(self: Writes, version: int) -> bool:
    """Think that what got no answer is lost."""
    del self, version
    return False


def every_hold_lives(self: Attempt, record: Record) -> tuple[str, ...]:
    """Take a late request of one's own for another hold."""
    return tuple(hold for hold in record.holds if hold != self.hold_id)


def drop_others(self: Attempt, record: Record) -> tuple[str, ...]:
    """Forget that an owner may have entered elsewhere."""
    del self, record
    return ()


def new_fence_at_each_write(self: Attempt, observed: Record | None, version: int) -> Record:
    """Leave the fence out of renewals and re-entries."""
    return NEXT_RECORD(self, observed, version)._replace(fence=None)


def take_anybodys(self: Attempt, record: Record | None) -> bool:
    """Write over whoever holds the key."""
    del self, record
    return True


async def get_then_delete(runtime: Runtime, attempt: Attempt, observed: Observed, limit: float) -> Observed:
    """Release whatever is there."""
    observed = await request.read(runtime, attempt, limit)
    await request.write_surely(runtime, attempt, observed.version, None, limit)
    return NOTHING


async def get_then_renew(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Renew whatever is there."""
    version, lease = (await request.read(runtime, attempt, NEVER)).version, attempt.lease
    lease.asked = lease.ttl = lease.ttl if ttl is None else ttl
    renewal = attempt.next_record(lease.record, version)
    observed = await request.write_surely(runtime, attempt, version, renewal, NEVER)
    assert observed.record
    attempt.holds_with(observed.record, observed.version, runtime.now())


def all_may_land(attempt: Attempt, write_id: str, error: CaslockError | ValueError) -> None:
    """Forget that some requests were never sent."""


def unreadable_is_free(value: bytes) -> Record:
    """Take a value that can't be read for a free record."""
    record = decode(value)
    return record._replace(holds=(), form=1) if record.foreign else record


def thread_name(self: object) -> object:
    """Know a thread by its name."""
    del self
    return threading.current_thread().name


def task_name(self: object) -> object:
    """Know a task by its name."""
    del self
    task = asyncio.current_task()
    return task and task.get_name()


def nobody() -> None:
    """Know no task that has called."""


async def once_more(runtime: Runtime, times: int, limit: float, verb: Callable[[], Awaitable[T]]) -> T:
    """Repeat once more than asked."""
    return await RETRY(runtime, times + 1, limit, verb)


async def in_order(self: Holds[Holding], limit: float = NEVER) -> None:
    """Release in the order of acquiring."""
    for hold in self:
        await hold._released(limit)


async def until_one_fails(self: Holds[Holding], limit: float = NEVER) -> None:
    """Stop at the first trouble."""
    for hold in reversed(list(self)):
        if hold._is_open:
            await hold._released(limit)


def first_the_long_way(self: Attempt, now: float, expected: int = ABSENT) -> Write:
    """Begin as every other write is made."""
    return request.note_write(self, expected, self.next_record(None, ABSENT), now)


def not_at_once(self: LockState, hold: Holding) -> None:
    """Leave the first put, and the removal, to those who make all other writes."""


LONG_WAY: tuple[tuple[object, str, object], ...] = (
    (LockState, "begin_put", not_at_once),
    (LockState, "begin_removal", not_at_once),
    (Attempt, "first", first_the_long_way),
)
"""The uncontended path has few steps of its own: without them, a mutant of the others is met everywhere."""


async def leave_it_at_that(holds: object, work: object, interrupt: BaseException) -> None:
    """Do not finish what was cancelled."""


async def hand_over_the_fence(runtime: Runtime, attempt: Attempt, outgoing: HandOver, limit: float) -> Observed:
    """Let the next tenure in a process have the number of the last."""
    del limit
    successor = outgoing.successor
    successor.lease.asked = successor.lease.ttl
    record = successor.next_record(None, ABSENT)._replace(fence=attempt.lease.fence)
    write = request.note_write(successor, attempt.lease.version, record, runtime.now())
    return await request.send(runtime, successor, write)


async def put_once(runtime: Runtime, attempts: list[Attempt], known: Answers) -> Answers | None:
    """Give up when a request for several keys gets no answer."""
    del known
    assert runtime.batching is not None
    now = runtime.now()
    writes = [request.note_write(attempt, ABSENT, attempt.next_record(None, ABSENT), now) for attempt in attempts]
    await runtime.batching.put_many(
        [Put(attempt.key, write.value, 0, 20) for attempt, write in zip(attempts, writes, strict=True)]
    )
    return {}


class Removal(NamedTuple):
    """What is taken out of the protocol, or which contract its store breaks, and the scenario that fails then."""

    scenario: str
    arguments: dict[str, object]
    patches: tuple[tuple[object, str, object], ...] = ()
    make: Callable[[], MemoryStore] = MemoryStore
    apis: tuple[str, ...] = ("blocking", "asyncio")

    @property
    def name(self) -> str:
        """Name it by both."""
        removed = [getattr(value, "__name__", "") for _, _, value in self.patches] or [self.make.__name__]
        return "-".join([*removed, self.scenario.removeprefix("test_"), *map(str, self.arguments.values())])


FORGETFUL = ((protocol, "write_surely", again_as_a_stranger), (Attempt, "may_take", nobodys_only))

REMOVALS = [  # and those of `mutants.table`
    Removal("test_acquire_is_right", {"kind": "lost request"}, ((protocol, "write_surely", no_answer_is_busy),)),
    Removal("test_acquire_is_right", {"kind": "lost request"}, ((protocol, "write_surely", ask_once),)),
    Removal("test_acquire_is_right", {"kind": "unsent request"}, ((protocol, "write_surely", ask_once),)),
    Removal("test_acquire_is_right", {"kind": "lost reply"}, FORGETFUL),
    Removal("test_acquire_is_right", {"kind": "late request"}, FORGETFUL),
    Removal("test_acquire_is_right", {"kind": "request that arrives again"}, ((Attempt, "others", every_hold_lives),)),
    Removal("test_extend_is_right", {"kind": "lost reply"}, ((protocol, "write_surely", ask_once),)),
    Removal("test_extend_is_right", {"kind": "late request"}, make=ForgetsVersions),
    Removal("test_extend_is_right", {"kind": "request that arrives again"}, make=ForgetsVersions),
    Removal("test_release_is_right", {"kind": "lost reply", "clean": True}, ((protocol, "write_surely", ask_once),)),
    Removal("test_release_is_right", {"kind": "late request", "clean": True}, make=ForgetsVersions),
    Removal("test_release_is_right", {"kind": "request that arrives again", "clean": True}, make=DeletesUnseen),
    Removal(
        "test_release_is_right", {"kind": "late request", "clean": False}, ((Attempt, "remainder", leave_nothing),)
    ),
    Removal("test_busy_is_reported_as_busy", {"kind": "lost reply"}, ((protocol, "write_surely", ask_once),)),
    Removal("test_reentry_elsewhere_is_right", {"kind": "lost reply"}, ((Attempt, "others", drop_others),)),
    Removal("test_force_release_is_right", {"kind": "lost reply"}, ((protocol, "write_surely", ask_once),)),
    Removal("test_force_release_is_right", {"kind": "unsent request"}, ((protocol, "write_surely", ask_once),)),
    Removal(
        "test_a_waiter_knows_its_own_late_request",
        {},
        ((Attempt, "is_in", newest_write_only), (Attempt, "may_take", nobodys_only)),
    ),
    Removal("test_a_waiter_is_served_when_the_holder_leaves", {}, ((protocol, "LONGEST_WAIT", 2.0),), make=WakesNobody),
    Removal("test_a_waiter_that_is_interrupted_leaves_nothing", {}, ((protocol, "give_up", give_up_without_looking),)),
    Removal("test_one_request_for_several_keys_without_an_answer", {}, ((protocol, "put_together", put_once),)),
    Removal("test_giving_up_is_for_certain", {}, ((Writes, "may_land", forget_what_was_sent),)),
    *(
        Removal(
            "test_an_interrupted_acquire_leaves_nothing",
            {"applied": applied},
            ((protocol, "give_up", give_up_on_errors_only),),
        )
        for applied in (1, 2)
    ),
    Removal(  # a thread's release is protected once more, by the blocking API itself
        "test_an_interrupted_release_leaves_nothing",
        {"applied": False},
        ((aio, "finish", leave_it_at_that),),
        apis=("asyncio",),
    ),
    Removal("test_three_outcomes_are_never_mixed", {}, ((request, "unanswered", all_may_land),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "another has it"}, ((protocol, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "force-released"}, ((protocol, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "it vanished"}, ((protocol, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "another has it"}, make=ForgetsVersions),
    Removal("test_an_expired_lock_is_won_by_one_and_lost_to_its_holder", {}, make=DeletesUnseen),
    Removal("test_one_at_a_time", {}, ((Attempt, "may_take", take_anybodys),)),
    Removal(
        "test_a_miss_after_a_refusal_is_not_a_win",
        {"answer": "read again", "then": "it stays free"},
        ((protocol, "write_surely", nothing_there_is_ours),),
    ),
    Removal(
        "test_the_record_may_change_between_two_steps",
        {"then": "leaves, and another comes"},
        ((Attempt, "may_take", take_anybodys),),
    ),
    Removal("test_several_keys_are_all_or_nothing", {}, ((Holds, "_released", in_order),)),
]


def hurried(patch: pytest.MonkeyPatch) -> None:
    """Wait less long: with a broken lock much that has to happen never does."""
    for module in (holders, trials):
        patch.setattr(module, "TTL", 10.0)
    patch.setattr(scene, "LONG", 8.0)


def play(api: str, memory: MemoryStore, scenario: str, arguments: dict[str, object]) -> None:
    """Run one scenario on a store."""
    store = memory if api == "blocking" else AsyncMemoryStore(memory)
    given = Scene(PLAYS[api](), store, store, f"key:{uuid4().hex}")
    getattr(LockContract(), scenario)(scene=given, **arguments)


def play_in_time(api: str, removal: Removal) -> None:
    """Run a scenario; again if the machine was late for a tenth of it, which does not count, and may hide a bound."""
    for _ in range(5):
        with Stopwatch() as watch:
            play(api, removal.make(), removal.scenario, removal.arguments)
        if watch.late < watch.elapsed / 10:
            return


@pytest.mark.parametrize(
    ("removal", "api"),
    [pytest.param(removal, api, id=f"{api}-{removal.name}") for removal in REMOVALS for api in removal.apis],
)
def test_a_protection_that_is_removed_is_missed(monkeypatch: pytest.MonkeyPatch, removal: Removal, api: str) -> None:
    """A scenario that passes fails without what protects it."""
    play(api, MemoryStore(), removal.scenario, removal.arguments)

    for owner, name, mutant in (*removal.patches, *LONG_WAY):
        monkeypatch.setattr(owner, name, mutant)
    hurried(monkeypatch)
    with pytest.raises(RED):
        play_in_time(api, removal)
