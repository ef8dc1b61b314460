"""Tests of the laws of a lock: without the protection that a fault calls for, a scenario fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import uuid4

import pytest

from caslock import aio
from caslock.errors import CaslockError, StoreUnavailable
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.lock_state import LockState
from caslock.protocol import exchange as request
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.protocol.record import NOTHING, Observed, Record, decode
from caslock.protocol.runtime import Runtime
from caslock.protocol.writes import Write, Writes
from caslock.store import ABSENT
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.stopwatch import Stopwatch
from tests.proof.altered import rewritten
from tests.proof.laws import holders, scene, trials
from tests.proof.laws.locks import PLAYS, LockContract
from tests.proof.laws.scene import Scene
from tests.proof.test_contract_bites import DeletesUnseen, ForgetsVersions, WakesNobody
from tests.support import protocol_functions as protocol
from tests.support.life import force

pytestmark = pytest.mark.long

RED = (AssertionError, pytest.fail.Exception, CaslockError)
WRITE_SURELY, GIVE_UP = request.write_surely, protocol.give_up


def newest_write_only(self: Attempt, record: Record | None) -> bool:
    """Know no write but the last: an earlier attempt's record is a stranger's."""
    return record is not None and record.write == f"{self.hold_id}.{self.writes.count}"


def nobodys_only(self: Attempt, record: Record | None) -> bool:
    del self
    return record is None or record.free


async def no_answer_is_busy(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    try:
        return await WRITE_SURELY(runtime, attempt, expected, record, limit)
    except StoreUnavailable:
        return Observed(1, decode(b"somebody"))


async def nothing_there_is_ours(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    observed = await WRITE_SURELY(runtime, attempt, expected, record, limit)
    if record is not None and attempt.is_in(record) and observed.record is None:
        return Observed(1, record)
    return observed


async def give_up_without_looking(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    del runtime, error
    force(attempt, State.OVER)


async def give_up_on_errors_only(runtime: Runtime, attempt: Attempt, error: BaseException) -> None:
    if isinstance(error, Exception):
        await GIVE_UP(runtime, attempt, error)


def forget_what_was_sent(self: Writes, version: int) -> bool:
    del self, version
    return False


def drop_others(self: Attempt, record: Record) -> tuple[str, ...]:
    del self, record
    return ()


def take_anybodys(self: Attempt, record: Record | None) -> bool:
    del self, record
    return True


async def get_then_delete(runtime: Runtime, attempt: Attempt, observed: Observed, limit: float) -> Observed:
    observed = await request.read(runtime, attempt, limit)
    await request.write_surely(runtime, attempt, observed.version, None, limit)
    return NOTHING


async def get_then_renew(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
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


def first_the_long_way(self: Attempt, now: float, expected: int = ABSENT) -> Write:
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


class Removal(NamedTuple):
    """What is taken out of the protocol, or which contract its store breaks, and the scenario that fails then."""

    scenario: str
    arguments: dict[str, object]
    patches: tuple[tuple[object, str, object], ...] = ()
    make: Callable[[], MemoryStore] = MemoryStore
    apis: tuple[str, ...] = ("blocking", "asyncio")

    @property
    def name(self) -> str:
        removed = [getattr(value, "__name__", "") for _, _, value in self.patches] or [self.make.__name__]
        return "-".join([*removed, self.scenario.removeprefix("test_"), *map(str, self.arguments.values())])


ASK_ONCE = rewritten(protocol, "write_surely", "failure = error", "raise", name="ask_once")
"""Neither read nor repeat after no answer."""

LEAVE_NOTHING = rewritten(
    Attempt, "remainder", "self._new_record((), rest.seconds, write_id, rest) if", "None if", name="leave_nothing"
)
"""Remove the record although a lost put may still arrive."""

EVERY_HOLD_LIVES = rewritten(
    Attempt, "others", "not hold.startswith(siblings)", "hold != self.hold_id", name="every_hold_lives"
)
"""Take a late request of one's own for another hold."""

PUT_ONCE = rewritten(protocol, "put_together", "return {}", "raise", name="put_once")
"""Give up when a request for several keys gets no answer."""

IN_ORDER = rewritten(Holds, "_released", "reversed(self._holds)", "self._holds", name="in_order")
"""Release in the order of acquiring."""

REMOVALS = [  # and those of `mutants.table`
    Removal("test_acquire_is_right", {"kind": "lost request"}, (ASK_ONCE,)),
    Removal("test_acquire_is_right", {"kind": "unsent request"}, (ASK_ONCE,)),
    Removal("test_acquire_is_right", {"kind": "request that arrives again"}, (EVERY_HOLD_LIVES,)),
    Removal("test_extend_is_right", {"kind": "lost reply"}, (ASK_ONCE,)),
    Removal("test_extend_is_right", {"kind": "late request"}, make=ForgetsVersions),
    Removal("test_extend_is_right", {"kind": "request that arrives again"}, make=ForgetsVersions),
    Removal("test_release_is_right", {"kind": "lost reply", "clean": True}, (ASK_ONCE,)),
    Removal("test_release_is_right", {"kind": "late request", "clean": True}, make=ForgetsVersions),
    Removal("test_release_is_right", {"kind": "request that arrives again", "clean": True}, make=DeletesUnseen),
    Removal("test_release_is_right", {"kind": "late request", "clean": False}, (LEAVE_NOTHING,)),
    Removal("test_busy_is_reported_as_busy", {"kind": "lost reply"}, (ASK_ONCE,)),
    Removal("test_reentry_elsewhere_is_right", {"kind": "lost reply"}, ((Attempt, "others", drop_others),)),
    Removal("test_force_release_is_right", {"kind": "lost reply"}, (ASK_ONCE,)),
    Removal("test_force_release_is_right", {"kind": "unsent request"}, (ASK_ONCE,)),
    Removal(
        "test_a_waiter_knows_its_own_late_request",
        {},
        ((Attempt, "is_in", newest_write_only), (Attempt, "may_take", nobodys_only)),
    ),
    Removal("test_a_waiter_is_served_when_the_holder_leaves", {}, ((protocol, "LONGEST_WAIT", 20),), make=WakesNobody),
    Removal("test_a_waiter_that_is_interrupted_leaves_nothing", {}, ((protocol, "give_up", give_up_without_looking),)),
    Removal("test_one_request_for_several_keys_without_an_answer", {}, (PUT_ONCE,)),
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
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "force-released"}, ((protocol, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "it vanished"}, ((protocol, "renew", get_then_renew),)),
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
    Removal("test_several_keys_are_all_or_nothing", {}, (IN_ORDER,)),
]


def hurried(patch: pytest.MonkeyPatch) -> None:
    """Wait less long: with a broken lock much that has to happen never does."""
    for module in (holders, trials):
        patch.setattr(module, "TTL", 10.0)
    patch.setattr(scene, "LONG", 8.0)


def play(api: str, memory: MemoryStore, scenario: str, arguments: dict[str, object]) -> None:
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
