"""Each protection that is taken out of the core is missed by the simulator."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from caslock import claim as claims_module
from caslock import core, request
from caslock.claim import Claim, Send
from caslock.errors import StoreUnavailable
from caslock.lockstate import LockState
from caslock.store import ABSENT
from caslock.testing.simulate import Violation
from caslock.testing.simulate.chance import simulate
from caslock.testing.simulate.explore import Bounds, explore
from caslock.testing.simulate.scenes import SCENES
from caslock.turnstile import Turnstile
from tests.test_faults_bite import believe_the_old_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.claim import Standing
    from caslock.hold import Holding
    from caslock.record import Record
    from caslock.request import World

SEEDS = 5_000
"""So many seeds are run at the most; nearly every mutant is caught within a few dozen."""


def leave_nothing(self: Claim, standing: Record, version: int, now: float) -> Record | None:
    """Remove the record although a lost put may still arrive."""
    del version, now
    others = self.others(standing) if self.stands_in(standing) else standing.holds
    return standing._replace(holds=others, write=self.mark()) if others else None


def believe_from_the_reply(self: Claim, record: Record, version: int, now: float) -> None:
    """Count the lease from when the answer came."""
    STAND(self, record, version, now)
    self.deadline = now + self.lease


def shorten_others(self: Claim, standing: Record | None, version: int) -> Record:
    """Write the record with our own, shorter ttl."""
    return BID(self, standing, version)._replace(ttl=self.lease)


def new_fence_at_each_write(self: Claim, standing: Record | None, version: int) -> Record:
    """Leave the fence out of renewals and re-entries."""
    return BID(self, standing, version)._replace(fence=None)


def take_anybodys(self: Claim, record: Record | None) -> bool:
    """Write over whoever stands there."""
    del self, record
    return True


def forget_what_was_sent(self: Claim, version: int) -> bool:
    """Think that no late request can land."""
    del self, version
    return False


def stand_in_any(self: Claim, record: Record | None) -> bool:
    """Take the owner's name for the proof that this attempt stands."""
    return record is not None and record.owner == self.owner


def drop_others(self: Claim, record: Record) -> tuple[str, ...]:
    """Think that the other holds of the owner are ours."""
    del self, record
    return ()


def no_margin(lease: float) -> float:
    """Believe longer than the lease lives."""
    return -0.5 * lease


def begin_for_no_heir(self: Turnstile, claim: Claim, now: float) -> None:
    """Promise the key to the next, and forget it."""
    NAME_HEIR(self, claim, now)
    claim.heir = None


async def give_up_without_looking(world: World, claim: Claim, error: BaseException) -> None:
    """Report a failure without making it definite."""
    del world, error
    claim.settled = True


async def give_up_but_for_heirs(world: World, claim: Claim, error: BaseException) -> None:
    """Think that what was sent for us is not ours to clean up."""
    if claim.writes > 1 or not any(send.expected for send in claim.sends.values()):
        await GIVE_UP(world, claim, error)


async def hand_over_the_fence(world: World, claim: Claim, heir: Claim) -> Standing:
    """Hand the key over within one tenure."""
    bid = heir.bid

    def with_our_fence(standing: Record | None, version: int) -> Record:
        return bid(standing, version)._replace(fence=claim.fence)

    heir.bid = with_our_fence  # type: ignore[method-assign] # a mutant
    try:
        return await HAND_OVER(world, claim, heir)
    finally:
        del heir.bid


async def hand_over_at_no_answer(world: World, claim: Claim, heir: Claim) -> Standing:
    """Take a missing answer for success."""
    try:
        return await request.write(world, heir, claim.version, heir.bid(None, claim.version))
    except StoreUnavailable:
        bid = heir.bid(None, claim.version)
        heir.sends[bid.write] = sent_now(world, heir)
        return claim.version + 1, bid


def sent_now(world: World, heir: Claim) -> Send:
    """Take note of a write that was sent now."""
    return Send(heir.version, world.now(), heir.ttl)


async def hand_over_and_believe(world: World, claim: Claim, heir: Claim) -> Standing:
    """Believe to have left although the hand-over was refused."""
    version, standing = await HAND_OVER(world, claim, heir)
    return (version, standing) if heir.stands_in(standing) else (0, None)


async def hand_over_free_records(world: World, claim: Claim, heir: Claim) -> Standing:
    """Forget, as the key is handed over, that a lost put may still arrive."""
    tenure = heir._tenure

    def without(late: float) -> Record:
        del late
        return tenure(0.0)

    heir._tenure = without  # type: ignore[method-assign] # a mutant
    try:
        return await HAND_OVER(world, claim, heir)
    finally:
        del heir._tenure


async def leave_at_no_answer(world: World, claims: Sequence[Claim]) -> None:
    """Take a missing answer to a batch of releases for success."""
    await LEAVE_TOGETHER(world, claims)
    for claim in claims:
        if claim.left_in_time and claim.parted is None:
            claim.parted = ABSENT, None


async def bid_at_no_answer(world: World, claims: Sequence[Claim]) -> None:
    """Forget the puts of a batch that got no answer."""
    await BID_TOGETHER(world, claims)
    for claim in claims:
        if claim.given is None:
            claim.sends.clear()


def never_leave(self: Turnstile, claim: Claim, now: float) -> None:
    """Stay in the queue."""
    del self, claim, now


async def check_before_only(world: World, claim: Claim, ttl: float) -> None:
    """Revive a lease by a renewal that is answered after its end."""
    told, claim.lost = claim.lost, ""
    deadline, claim.deadline = claim.deadline, max(claim.deadline, world.now() + 1.0)
    claim.lost = told
    try:
        await RENEW(world, claim, ttl)
    finally:
        claim.deadline = max(claim.deadline, deadline)


async def tell_nobody(world: World, claim: Claim) -> float | None:
    """Keep a loss to oneself."""
    due = await KEEP(world, claim)
    claim.told = False
    return due


async def hand_over_unseen(world: World, claim: Claim, heir: Claim) -> Standing:
    """Hand over without a look whether the heir still waits."""
    gone, heir.ending, heir.promised = heir.ending, False, True
    try:
        return await HAND_OVER(world, claim, heir)
    finally:
        heir.ending = heir.ending or gone


def write_and_not_look(self: Claim, now: float, expected: int = ABSENT) -> tuple[Record, bytes]:
    """Take note of what is sent for an heir, and believe that it waits still."""
    written = FIRST(self, now, expected)
    if expected != ABSENT:
        self.ending, self.promised = False, True
    return written


def let_follow_at_once(self: Turnstile, claim: Claim, now: float) -> None:
    """Count the releaser as gone before it has left: who comes after its heir would follow at once."""
    NAME_HEIR(self, claim, now)
    if claim.heir is not None:
        self._inside = [weakref.ref(claim.heir)]


def name_heir_beside_others(self: Turnstile, claim: Claim, now: float) -> None:
    """Think that whoever is being released has handed over to us."""
    others = [other for other in self._inside if other() is not claim and getattr(other(), "ending", False)]
    self._inside = [other for other in self._inside if other not in others]
    NAME_HEIR(self, claim, now)
    self._inside = [*others, *self._inside]


def read_the_id_again(self: LockState) -> Claim:
    """Give a claim the newest id, which may be that of another thread by now."""
    claim = CLAIM(self)
    newest = self.newest
    claim.hold = newest
    return claim


async def watch_the_dead(self: LockState, claim: Claim, ttl: float) -> None:
    """Go on renewing what was extended by an event loop that has been closed meanwhile."""
    try:
        await core.renew(self.world, claim, ttl)
    finally:
        if not claim.ending:
            self.world.watch(claim)


async def break_whoever_comes(world: World, claim: Claim) -> Record | None:
    """Break until nobody stands."""
    broken = first = await BREAK(world, claim)
    while broken is not None:
        broken = await BREAK(world, claim)
    return first


async def leave_for_all(self: LockState, hold: Holding) -> None:
    """Let the release of any level be the last."""
    if hold.is_open:
        hold.claim.levels[:] = [hold]
    await LEAVE(self, hold)


STAND, BID, FIRST, NAME_HEIR = Claim.stand, Claim.bid, Claim.first, Turnstile.name_heir
CLAIM, LEAVE, BREAK = LockState._claim, LockState.release, core.break_
BID_TOGETHER, LEAVE_TOGETHER = core.bid_together, core.leave_together
GIVE_UP, HAND_OVER, RENEW, KEEP = core.give_up, core._hand_over, core.renew, core.keep

MUTANTS: list[tuple[object, str, Callable[..., object]]] = [
    (Claim, "farewell", leave_nothing),
    (Claim, "stand", believe_from_the_reply),
    (Claim, "bid", shorten_others),
    (Claim, "bid", new_fence_at_each_write),
    (Claim, "may_take", take_anybodys),
    (Claim, "may_land", forget_what_was_sent),
    (Claim, "stands_in", stand_in_any),
    (Claim, "others", drop_others),
    (claims_module, "margin", no_margin),
    (core, "give_up", give_up_without_looking),
    (core, "give_up", give_up_but_for_heirs),
    (core, "_hand_over", hand_over_the_fence),
    (core, "_hand_over", hand_over_at_no_answer),
    (core, "_hand_over", hand_over_and_believe),
    (core, "_hand_over", hand_over_free_records),
    (core, "bid_together", bid_at_no_answer),
    (core, "leave_together", leave_at_no_answer),
    (core, "renew", check_before_only),
    (core, "keep", tell_nobody),
    (Turnstile, "name_heir", begin_for_no_heir),
    (Turnstile, "leave", never_leave),
]


SEARCHED: list[tuple[str, int, object, str, Callable[..., object]]] = [
    ("two tasks, extending aside", 1, core, "_hand_over", hand_over_unseen),
    ("two tasks, extending aside", 1, LockState, "renew", watch_the_dead),
    ("two threads, racing", 1, Claim, "first", write_and_not_look),
    ("two threads of one Lock, racing", 1, LockState, "_claim", read_the_id_again),
    ("three tasks of two Locks", 1, Turnstile, "name_heir", let_follow_at_once),
    ("three tasks of one owner", 0, Turnstile, "name_heir", name_heir_beside_others),
    ("two processes, extending", 2, core, "renew", believe_the_old_lease),
    ("two processes, breaking", 0, core, "break_", break_whoever_comes),
    ("two of one owner, again", 0, LockState, "release", leave_for_all),
]
"""What only few seeds miss, and in which scene, under how many faults, it is missed for certain."""


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Take a protection out of the core for a while."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def caught() -> str:
    """Name the law that is broken first: in the smallest scene under any one fault, else in a random run."""
    try:
        explore(SCENES["two tasks, briefly"], Bounds(faults=1))
        for seed in range(SEEDS):
            simulate(seed)
    except Violation as violation:
        return violation.law
    return ""


@pytest.mark.parametrize(("owner", "name", "mutant"), MUTANTS, ids=[mutant[2].__name__ for mutant in MUTANTS])
def test_the_simulator_catches_a_core_without_that_protection(
    owner: object, name: str, mutant: Callable[..., object]
) -> None:
    """Each protection that is taken out of the core is missed within the seeds that CI runs."""
    with replaced(owner, name, mutant):
        assert caught()


@pytest.mark.parametrize(
    ("scene", "faults", "owner", "name", "mutant"), SEARCHED, ids=[of[4].__name__ for of in SEARCHED]
)
def test_a_search_catches_a_core_without_that_protection(
    scene: str, faults: int, owner: object, name: str, mutant: Callable[..., object]
) -> None:
    """Each protection against few moments that must meet is missed in a scene where they can."""
    with replaced(owner, name, mutant), pytest.raises(Violation):
        explore(SCENES[scene], Bounds(faults, states=20_000))


async def forget_at_undo(self: LockState, claim: Claim, error: BaseException) -> None:
    """Forget an acquire whose clean-up was interrupted."""
    try:
        await core.give_up(self.world, claim, error)
    finally:
        claim.levels.clear()
        self._forget(claim)


def test_the_simulator_catches_a_clean_up_that_is_interrupted_and_forgotten() -> None:
    """A thread that is interrupted in the clean-up of an acquire has to do it again."""
    with replaced(LockState, "undo", forget_at_undo):
        assert "stands" in caught()
