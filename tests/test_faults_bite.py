"""The laws of a lock are themselves on trial: without the protection that a fault calls for, a scenario goes red."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import uuid4

import pytest

from caslock import core, multi, request
from caslock.claim import NEVER, Claim, Standing
from caslock.errors import CaslockError, StoreUnavailable
from caslock.multi import Holds
from caslock.record import Record, decode
from caslock.store import ABSENT, Put
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.task_world import TaskWorld
from caslock.testing import LockContract
from caslock.testing.locks import PLAYS
from caslock.testing.scene import Scene
from caslock.testing.trouble import KINDS
from caslock.thread_world import ThreadWorld
from tests.test_contract_bites import DeletesUnseen, ForgetsVersions, RefusesSilently, WakesNobody

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity.wait import WaitBaseT

    from caslock.hold import Holding
    from caslock.request import World

T = TypeVar("T")

RED = (AssertionError, pytest.fail.Exception, CaslockError)
WRITE_SURELY, GIVE_UP, RETRY, BID = request.write_surely, core.give_up, request._retry, Claim.bid
RENEW = core.renew


def newest_write_only(self: Claim, record: Record | None) -> bool:
    """Know no write but the last: an earlier attempt's record is a stranger's."""
    return record is not None and record.write == f"{self.hold}.{self.writes}"


async def believe_the_old_lease(world: World, claim: Claim, ttl: float) -> None:
    """Count on what was answered last."""
    deadline = claim.deadline
    try:
        await RENEW(world, claim, ttl)
    except StoreUnavailable:
        claim.deadline = deadline
        raise


async def again_as_a_stranger(world: World, claim: Claim, expected: int, bid: Record | None, limit: float) -> Standing:
    """Repeat with a new identity, and without looking."""
    try:
        return await request.write(world, claim, expected, bid)
    except StoreUnavailable:
        claim.hold += "0"
        again = bid and bid._replace(holds=(claim.hold,), write=claim.mark())
        return await WRITE_SURELY(world, claim, expected, again, limit)


def nobodys_only(self: Claim, record: Record | None) -> bool:
    """Take nothing that has an owner, not even our own."""
    del self
    return record is None or record.free


async def no_answer_is_busy(world: World, claim: Claim, expected: int, bid: Record | None, limit: float) -> Standing:
    """Take an error for "held by somebody else"."""
    try:
        return await WRITE_SURELY(world, claim, expected, bid, limit)
    except StoreUnavailable:
        return 1, decode(b"somebody")


async def ask_once(world: World, claim: Claim, expected: int, bid: Record | None, limit: float) -> Standing:
    """Neither read nor repeat after no answer."""
    del limit
    return await request.write(world, claim, expected, bid)


async def nothing_there_is_ours(
    world: World, claim: Claim, expected: int, bid: Record | None, limit: float
) -> Standing:
    """Take a miss for a win."""
    version, standing = await WRITE_SURELY(world, claim, expected, bid, limit)
    if bid is not None and claim.stands_in(bid) and standing is None:
        return 1, bid
    return version, standing


async def miss_after_no_answer_is_ours(
    world: World, claim: Claim, expected: int, bid: Record | None, limit: float
) -> Standing:
    """Believe that a write has landed because nobody else's has."""
    try:
        return await request.write(world, claim, expected, bid)
    except StoreUnavailable:
        version, standing = await request.read(world, claim, limit)
        return (version, standing) if standing else (1, bid)


async def give_up_without_looking(*args: object) -> None:
    """Report a failure without making it definite."""


async def give_up_on_errors_only(world: World, claim: Claim, error: BaseException) -> None:
    """Forget that a call may be interrupted."""
    if isinstance(error, Exception):
        await GIVE_UP(world, claim, error)


def leave_nothing(self: Claim, standing: Record, version: int, now: float) -> Record | None:
    """Remove the record although a lost put may still arrive."""
    del version, now
    others = self.others(standing)
    return standing._replace(holds=others, write=self.mark()) if others else None


def nothing_can_land(self: Claim, version: int) -> bool:
    """Think that what got no answer is lost."""
    del self, version
    return False


def every_hold_lives(self: Claim, record: Record) -> tuple[str, ...]:
    """Take an echo of an own request for another hold."""
    return tuple(hold for hold in record.holds if hold != self.hold)


def no_hold_but_ours(self: Claim, record: Record) -> tuple[str, ...]:
    """Forget that an owner may have entered elsewhere."""
    del self, record
    return ()


def new_fence_at_each_write(self: Claim, standing: Record | None, version: int) -> Record:
    """Leave the fence out of renewals and re-entries."""
    return BID(self, standing, version)._replace(fence=None)


def take_anybodys(self: Claim, record: Record | None) -> bool:
    """Write over whoever stands there."""
    del self, record
    return True


async def get_then_delete(world: World, claim: Claim, version: int, standing: Record | None) -> tuple[bool, Standing]:
    """Release whatever stands there."""
    del standing
    version, _ = await request.read(world, claim, NEVER)
    await request.write_surely(world, claim, version, None, NEVER)
    return True, (ABSENT, None)


async def get_then_renew(world: World, claim: Claim, ttl: float) -> None:
    """Renew whatever stands there."""
    version, _ = await request.read(world, claim, NEVER)
    claim.lease = claim.ttl = ttl
    version, standing = await request.write_surely(world, claim, version, claim.bid(claim.record, version), NEVER)
    assert standing
    claim.stand(standing, version, world.now())


def all_may_land(error: BaseException) -> bool:
    """Forget that some requests were never sent."""
    del error
    return True


def unreadable_is_free(value: bytes) -> Record:
    """Take what can't be read for nobody's."""
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


async def once_more(world: World, times: int, limit: float, verb: Callable[[], Awaitable[T]]) -> T:
    """Repeat once more than asked."""
    return await RETRY(world, times + 1, limit, verb)


async def in_order(self: Holds[Holding]) -> None:
    """Release in the order of acquiring."""
    for hold in self:
        await hold.released()


async def until_one_fails(self: Holds[Holding]) -> None:
    """Stop at the first trouble."""
    for hold in reversed(list(self)):
        if hold.is_open:
            await hold.released()


ACQUIRE, LEAVE = core.acquire, core._leave


def bid_the_long_way(self: Claim, now: float, expected: int = ABSENT) -> tuple[Record, bytes]:
    """Begin as every other write is made."""
    bid = self.bid(None, ABSENT)
    return bid, request.sent(self, expected, bid, now)


async def acquire_the_long_way(
    world: World, claim: Claim, timeout: float | None, poll: WaitBaseT | None = None
) -> bool:
    """Begin an acquire as every other write is done."""
    if not claim.writes and not claim.polite:
        within = world.now() + timeout if timeout else NEVER
        claim.given = await vars(core)["write_surely"](world, claim, ABSENT, claim.bid(None, ABSENT), within)
    return await ACQUIRE(world, claim, timeout, poll)


async def leave_the_long_way(world: World, claim: Claim, heir: Claim | None, now: float) -> tuple[bool, Standing]:
    """Remove a record as every other write is done."""
    if claim.parted is None and heir is None and claim.leaves_nothing(now):
        claim.parted = await vars(core)["write_surely"](world, claim, claim.version, None, NEVER)
    return await LEAVE(world, claim, heir, now)


LONG_WAY: tuple[tuple[object, str, object], ...] = (
    (core, "acquire", acquire_the_long_way),
    (core, "_leave", leave_the_long_way),
    (Claim, "first", bid_the_long_way),
)
"""The sunny path has its own few steps: without them a mutant of the others is met everywhere."""


async def leave_it_at_that(world: World, claim: Claim, interruption: BaseException) -> None:
    """Do not go on with a release that was interrupted."""


async def wait_once(world: World, claim: Claim, poll: object, longest: float, limit: float) -> Standing:
    """Give up when a wait gets no answer, or can't be."""
    del poll, longest
    return await request.put_when_free(world, claim, min(5.0, limit - world.now()))


async def hand_over_the_fence(world: World, claim: Claim, heir: Claim) -> Standing:
    """Let the next tenure in a process have the number of the last."""
    heir.lease = heir.ttl
    bid = heir.bid(None, ABSENT)._replace(fence=claim.fence)
    return await request.write(world, heir, claim.version, bid)


async def bid_for_itself(world: World, claims: object) -> None:
    """Send nothing together."""


async def bid_once(world: World, claims: list[Claim]) -> None:
    """Give up when a request for several keys gets no answer."""
    assert world.batching is not None
    bids = [claim.bid(None, ABSENT) for claim in claims]
    values = [request.sent(claim, ABSENT, bid, world.now()) for claim, bid in zip(claims, bids, strict=True)]
    await world.batching.put_many([Put(claim.key, value, 0, 20) for claim, value in zip(claims, values, strict=True)])


async def stay(*args: object) -> None:
    """Keep what was taken of several keys."""


class Removal(NamedTuple):
    """What is taken out of the core, or which contract its store breaks, and the scenario that goes red then."""

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


FORGETFUL = ((core, "write_surely", again_as_a_stranger), (Claim, "may_take", nobodys_only))

REMOVALS = [
    Removal("test_acquire_is_right", {"kind": "lost request"}, ((core, "write_surely", no_answer_is_busy),)),
    Removal("test_acquire_is_right", {"kind": "lost request"}, ((core, "write_surely", ask_once),)),
    Removal("test_acquire_is_right", {"kind": "unsent request"}, ((core, "write_surely", ask_once),)),
    Removal("test_acquire_is_right", {"kind": "lost reply"}, FORGETFUL),
    Removal("test_acquire_is_right", {"kind": "late request"}, FORGETFUL),
    Removal("test_acquire_is_right", {"kind": "late request"}, ((Claim, "farewell", leave_nothing),)),
    Removal("test_acquire_is_right", {"kind": "late request"}, ((Claim, "may_land", nothing_can_land),)),
    Removal("test_acquire_is_right", {"kind": "request that arrives twice"}, make=RefusesSilently),
    Removal("test_acquire_is_right", {"kind": "request that arrives again"}, ((Claim, "others", every_hold_lives),)),
    Removal("test_extend_is_right", {"kind": "lost reply"}, ((core, "write_surely", ask_once),)),
    Removal("test_extend_is_right", {"kind": "late request"}, make=ForgetsVersions),
    Removal("test_extend_is_right", {"kind": "request that arrives again"}, make=ForgetsVersions),
    Removal("test_release_is_right", {"kind": "lost reply", "clean": True}, ((core, "write_surely", ask_once),)),
    Removal("test_release_is_right", {"kind": "late request", "clean": True}, make=DeletesUnseen),
    Removal("test_release_is_right", {"kind": "late request", "clean": True}, make=ForgetsVersions),
    Removal("test_release_is_right", {"kind": "request that arrives again", "clean": True}, make=DeletesUnseen),
    Removal("test_release_is_right", {"kind": "late request", "clean": False}, ((Claim, "farewell", leave_nothing),)),
    Removal("test_busy_is_told_as_busy", {"kind": "lost reply"}, ((core, "write_surely", ask_once),)),
    Removal("test_busy_is_told_as_busy", {"kind": "lost request"}, ((Claim, "may_take", take_anybodys),)),
    Removal("test_reentry_elsewhere_is_right", {"kind": "lost reply"}, ((Claim, "others", no_hold_but_ours),)),
    Removal("test_break_is_right", {"kind": "lost reply"}, ((core, "write_surely", ask_once),)),
    Removal("test_break_is_right", {"kind": "unsent request"}, ((core, "write_surely", ask_once),)),
    Removal(
        "test_who_waits_knows_its_own_late_request",
        {},
        ((Claim, "stands_in", newest_write_only), (Claim, "may_take", nobodys_only)),
    ),
    Removal("test_a_shorter_lease_is_believed_when_it_is_sent", {}, ((core, "renew", believe_the_old_lease),)),
    Removal("test_who_waits_is_served_when_the_holder_leaves", {}, ((core, "LONGEST_WAIT", 0.3),), make=WakesNobody),
    Removal("test_a_wake_up_that_is_lost_costs_a_pause", {}, ((core, "_put_when_free", wait_once),)),
    Removal("test_what_wakes_a_waiter_gets_no_answer", {}, ((core, "_put_when_free", wait_once),)),
    Removal("test_a_waiter_that_is_interrupted_leaves_nothing", {}, ((core, "give_up", give_up_without_looking),)),
    Removal("test_one_process_serves_all_its_waiters", {}, ((core, "_hand_over", hand_over_the_fence),)),
    Removal("test_several_keys_travel_as_one_request", {}, ((core, "bid_together", bid_for_itself),)),
    Removal("test_of_one_request_for_several_keys_all_is_written_or_nothing", {}, ((multi, "_roll_back", stay),)),
    Removal("test_one_request_for_several_keys_without_an_answer", {}, ((core, "bid_together", bid_once),)),
    Removal("test_giving_up_is_for_certain", {}, ((core, "give_up", give_up_without_looking),)),
    Removal("test_giving_up_is_for_certain", {}, ((Claim, "may_land", nothing_can_land),)),
    Removal(
        "test_an_outcome_that_nobody_knows_is_told_as_unknown",
        {"store_is": "down after a late put"},
        ((core, "give_up", give_up_without_looking),),
    ),
    Removal("test_reads_and_writes_are_repeated_a_bounded_number_of_times", {}, ((request, "_retry", once_more),)),
    *(
        Removal("test_an_interrupted_acquire_leaves_nothing", {"applied": applied}, ((core, "give_up", mutant),))
        for applied, mutant in ((1, give_up_on_errors_only), (2, give_up_on_errors_only))
    ),
    Removal(  # a thread's release is protected once more, by the blocking API itself
        "test_an_interrupted_release_leaves_nothing",
        {"applied": False},
        ((core, "leave_surely", leave_it_at_that),),
        apis=("asyncio",),
    ),
    Removal("test_three_outcomes_are_never_mixed", {}, ((core, "write_surely", no_answer_is_busy),)),
    Removal("test_three_outcomes_are_never_mixed", {}, ((request, "may_have_landed", all_may_land),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "another has it"}, ((core, "_withdraw", get_then_delete),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "another has it"}, ((core, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "it was broken"}, ((core, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "it vanished"}, ((core, "renew", get_then_renew),)),
    Removal("test_a_stale_holder_can_do_nothing", {"loss": "another has it"}, make=ForgetsVersions),
    Removal("test_an_expired_lock_is_won_by_one_and_lost_to_its_holder", {}, make=DeletesUnseen),
    Removal("test_one_at_a_time", {}, ((Claim, "may_take", take_anybodys),)),
    *(
        Removal(
            "test_a_miss_after_a_refusal_is_not_a_win",
            {"answer": answer, "then": then},
            ((core, "write_surely", mutant),),
        )
        for answer, mutant in (("lost", miss_after_no_answer_is_ours), ("read again", nothing_there_is_ours))
        for then in ("it stays free",)
    ),
    Removal(
        "test_who_stands_there_may_move_between_two_steps",
        {"then": "leaves, and another comes"},
        ((Claim, "may_take", take_anybodys),),
    ),
    Removal("test_a_holder_may_be_renewed_while_it_releases", {}, make=DeletesUnseen),
    Removal("test_what_caslock_did_not_write_is_never_overwritten", {}, ((request, "decode", unreadable_is_free),)),
    Removal(
        "test_a_name_that_is_used_again_is_nobody", {}, ((ThreadWorld, "me", thread_name), (TaskWorld, "me", task_name))
    ),
    Removal("test_the_sunny_path_is_two_requests", {}, ((Claim, "may_land", lambda *_: True),)),
    Removal("test_an_owner_enters_from_anywhere", {"order": (0, 1, 2)}, ((Claim, "others", no_hold_but_ours),)),
    Removal("test_an_owner_enters_from_anywhere", {"order": (0, 1, 2)}, ((Claim, "bid", new_fence_at_each_write),)),
    Removal("test_fences_only_grow", {}, make=ForgetsVersions),
    Removal("test_several_keys_are_all_or_nothing", {}, ((Holds, "released", in_order),)),
    Removal("test_several_keys_are_released_though_one_fails", {}, ((Holds, "released", until_one_fails),)),
    Removal("test_of_several_keys_one_may_be_lost", {}, ((Holds, "released", until_one_fails),)),
]


def play(api: str, memory: MemoryStore, scenario: str, arguments: dict[str, object]) -> None:
    """Run one scenario on a store."""
    store = memory if api == "blocking" else AsyncMemoryStore(memory)
    scene = Scene(PLAYS[api](), store, store, f"key:{uuid4().hex}")
    getattr(LockContract(), scenario)(scene=scene, **arguments)


@pytest.mark.parametrize(
    ("removal", "api"),
    [pytest.param(removal, api, id=f"{api}-{removal.name}") for removal in REMOVALS for api in removal.apis],
)
def test_a_protection_that_is_removed_is_missed(monkeypatch: pytest.MonkeyPatch, removal: Removal, api: str) -> None:
    """A scenario that is green goes red without what protects it."""
    play(api, MemoryStore(), removal.scenario, removal.arguments)

    for owner, name, mutant in (*removal.patches, *LONG_WAY):
        monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(RED):
        play(api, removal.make(), removal.scenario, removal.arguments)


def test_every_kind_of_fault_bites() -> None:
    """There is no kind of fault that all protections could be removed for, unseen."""
    assert {removal.arguments["kind"] for removal in REMOVALS if "kind" in removal.arguments} == set(KINDS)


def test_no_scenario_is_idle() -> None:
    """All but a few scenarios have been seen red."""
    scenarios = {name for name in dir(LockContract) if name.startswith("test_")}
    unseen = scenarios - {removal.scenario for removal in REMOVALS}
    assert unseen == {
        "test_a_broken_lock_is_free_and_its_holder_told",
        "test_an_interrupted_renewal_loses_nothing",
        "test_arguments_are_checked_before_any_request",
        "test_loss_is_told_to_the_body",
    }
