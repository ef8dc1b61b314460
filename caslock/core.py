"""The law of this file: ask the store one thing only, "who stands there now?", and decide by nothing else.

Every rule of locking is in `claim` (what to write, what to believe), in `request` (what to do without an answer) and
here (in what order), written once, as coroutines that await nothing but the store, the clock's sleep and a mutex.
asyncio awaits them; the blocking API runs them to their end in the calling thread; the simulator chooses where they
stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.claim import FREE_TTL, NEVER, Claim, Standing, fence_of, margin
from caslock.errors import LockLost, NotAcquired, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.request import (
    Unanswered,
    World,
    answered,
    may_have_landed,
    pauses,
    put_when_free,
    read,
    sent,
    settle,
    standing_of,
    unanswered,
    write_surely,
)
from caslock.store import ABSENT, Put, Removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenacity.wait import WaitBaseT

    from caslock.record import Record

PASSES: Final = 8
"""How often one call follows a record that changes under its hands."""

LONGEST_WAIT: Final = 5.0
"""Seconds after which a waiter looks for itself: what a wake-up costs at most that is lost."""

LATE: Final = 0.1
"""Seconds by which a wait at a store may outlast its time: Redis looks for those ten times a second."""

COURTESY: Final = 0.1
"""Seconds for which a process stands in line behind the one that its release has woken."""


async def acquire(world: World, claim: Claim, timeout: float | None, poll: WaitBaseT | None = None) -> bool:
    """Try until the claim holds or `timeout` seconds (None: for ever) are over; `claim.rival` tells who stands there.

    Whatever it raises, or when it returns False, `give_up` has to follow.
    """
    now = world.now()
    limit = NEVER if timeout is None else now + timeout
    # One try is bounded by its retries alone: a deadline that is over would forbid to settle a lost reply.
    within = limit if timeout else NEVER
    given: Standing | None = None
    if claim.writes or claim.polite:
        given = await _before(world, claim, poll, limit)
        now = world.now()
    if given is None:  # the sunny path, in as few steps as there are: one request when nobody contends
        bid, value = claim.first(now)
        try:
            entry = await world.store.put_if_version(claim.key, value, ABSENT, bid.ttl)
        except BaseException as error:  # noqa: BLE001 - settled, or raised by that
            given = await settle(world, claim, Unanswered(ABSENT, bid, error), within)
        else:
            given = answered(claim, bid, value, entry)
    while not (_takes(world, claim, given) or await _attempt(world, claim, within, given)):
        if world.now() >= limit:
            return False
        given = await _wait(world, claim, poll, limit)
        claim.forget_dead(world.now())
    return True


def _takes(world: World, claim: Claim, given: Standing | None) -> bool:
    """Whether our own put stands, and is not so old that the lease has to be renewed first."""
    record = None if given is None else given[1]
    send = None if record is None else claim.sends.get(record.write)
    if given is None or record is None or send is None:
        return False
    now = world.now()
    if now - send.at >= send.lease / 2:
        return False
    claim.stand(record, given[0], now)
    return True


async def _before(world: World, claim: Claim, poll: WaitBaseT | None, limit: float) -> Standing | None:
    """Give what stands after a first put that was sent for us, or after we have let others go first."""
    given, claim.given = claim.given, None
    if given is None and claim.sends:  # whoever has let us in has written for us, and its silence counts as ours
        return await read(world, claim, NEVER)
    left = limit - world.now()
    if given is None and claim.polite and left > 0:
        # This process has woken somebody of another one, or had the key for long: others go first.
        if world.waking is not None:
            return await _put_when_free(world, claim, poll, COURTESY, limit)
        await world.sleep(min(pauses(None)(), left))
    return given


async def _attempt(world: World, claim: Claim, limit: float, given: Standing | None) -> bool:
    """Write, look who stands, and decide; again while the key is ours to take."""
    claim.lease = claim.ttl
    standing: Record | None = None
    version = ABSENT
    renewed = False
    for _ in range(PASSES):
        # 1. One request when nobody contends.
        if given is None:
            given = await write_surely(world, claim, version, claim.bid(standing, version), limit)
        (version, standing), given = given, None
        # 2. Ours.  One that is half over before we know of it (a lost reply, a slow answer) is renewed first.
        if standing is not None and claim.stands_in(standing):
            now = world.now()
            claim.stand(standing, version, now)
            left = claim.deadline - now
            if left >= claim.ttl / 2 or (renewed and left > 0):
                return True
            renewed = True
            continue
        # 3. Nobody's, or our owner's: again, at the version that stands.  Somebody else's: busy.
        claim.fall()
        if not claim.may_take(standing):
            break
    if renewed and claim.may_take(standing):  # nobody keeps it from us but the time that an answer takes
        message = f"{world.store.traits.place} answers too slowly for a ttl of {claim.ttl:g} s"
        raise StoreUnavailable(message)
    if claim.may_land(version):  # what was sent for us: nothing of a try that has failed lands afterwards
        _, (version, standing) = await _withdraw(world, claim, version, standing)
    claim.meet(standing, version, world.now())
    return False


async def _wait(world: World, claim: Claim, poll: WaitBaseT | None, limit: float) -> Standing | None:
    """Wait until the key may be free, never past the end of the lease that stands, nor past `limit`.

    Gives what stands then, where the store could be told to put for us as soon as it may.
    """
    rival = claim.rival
    if rival is not None and not rival.foreign:
        ends = claim.rival_seen + rival.ttl + world.store.traits.overstay
        over = world.now() >= ends
        limit = limit if over else min(limit, ends)
        # The end of a lease wakes nobody, nor does a tenure that is released into a free record (`late`).
        if world.waking is not None and not over and not rival.late:
            given = await _put_when_free(world, claim, poll, LONGEST_WAIT, limit)
            if given is not None:
                return given
    await world.sleep(max(0.0, min(_pause(claim, poll), limit - world.now())))
    return None


async def _put_when_free(
    world: World, claim: Claim, poll: WaitBaseT | None, longest: float, limit: float
) -> Standing | None:
    """Have the store put for us as soon as nobody stands there; None: it can't, for now."""
    longest = longest if poll is None else min(longest, _pause(claim, poll))
    # The lease counts from before the request, so most of it must be left when the wait ends; and a store may be late
    # in ending one.
    seconds = min(longest, claim.ttl / 3, limit - world.now() - LATE)
    if seconds <= 0:
        return None
    try:
        return await put_when_free(world, claim, seconds)
    except StoreUnavailable as error:
        if not error.sent:
            return None
    await world.sleep(min(_pause(claim, poll), seconds))
    return await read(world, claim, limit)


def _pause(claim: Claim, poll: WaitBaseT | None) -> float:
    """Give the seconds until the next look.

    Our own pauses double for as long as the same tenure stands.  Of a key that changes hands everybody is to get a
    share, so they begin anew with each tenure: a little longer the more processes were seen to have it.
    """
    fence = 0 if claim.rival is None else fence_of(claim.rival, claim.rival_version)
    if claim.pause is None or (poll is None and fence != claim.rival_fence):
        if claim.rival is not None and poll is None:
            claim.crowd |= {(claim.rival.host, claim.rival.pid)}
        claim.pause, claim.rival_fence = pauses(poll, len(claim.crowd)), fence
    return claim.pause()


async def give_up(world: World, claim: Claim, error: BaseException) -> None:
    """Make a failed acquire's outcome definite: nothing of it stands, and no late request of it can land.

    In place of a `StoreError` it raises one that tells so: `StoreUnavailable` when the lock is certainly not ours and
    no late request can make it so, `OutcomeUnknown` when that could not be made certain.
    """
    claim.ending = True
    trouble: list[str] = []
    unasked: list[StoreError] = []

    async def clean_up() -> None:
        claim.settled = False
        try:
            async with claim.mutex:  # first settle any renewal under way
                start = (claim.version, claim.record) if claim.record else await read(world, claim, NEVER)
                _, (_, standing) = await _withdraw(world, claim, *start)
                claim.record = None
        except StoreError as inner:
            unasked.append(inner)
            trouble.append(f"which could not be asked ({inner})")
        else:
            if claim.may_land(ABSENT) and standing is not None and not standing.free:
                trouble.append(f"when {standing} has left")
        claim.settled = True  # else an interrupt has struck, and it has to be done again

    if claim.sends or claim.record is not None:
        await world.finish(clean_up)
    place = world.store.traits.place
    if trouble:
        message = (
            f"lock {claim.key!r} is not held, but a request for it may still be applied at {place}, {trouble[0]}; "
            f"what it leaves there would end by itself within {claim.ttl:g} s"
        )
        if isinstance(error, StoreUnavailable) or (unasked and isinstance(error, NotAcquired)):
            raise OutcomeUnknown(message) from error
        error.add_note(message)
    elif isinstance(error, StoreUnavailable):
        message = f"lock {claim.key!r} is not held and nothing of it is left behind: {place} gave no answer ({error})"
        raise StoreUnavailable(message) from error
    elif isinstance(error, StoreError):
        message = f"lock {claim.key!r} is not held: {place} has refused it ({error})"
        raise StoreError(message) from error


async def bid_together(world: World, claims: Sequence[Claim]) -> None:
    """Send the first puts of several claims as one request, all or nothing; each finds its answer in `given`.

    Without an answer each asks for itself, as after any put of its own that got none.
    """
    if world.batching is None:
        return
    bids = [claim.bid(None, ABSENT) for claim in claims]
    now = world.now()
    values = [sent(claim, ABSENT, bid, now) for claim, bid in zip(claims, bids, strict=True)]
    puts = [Put(claim.key, value, ABSENT, claim.lease) for claim, value in zip(claims, values, strict=True)]
    try:
        answers = await world.batching.put_many(puts)
    except BaseException as error:
        for claim, bid in zip(claims, bids, strict=True):
            unanswered(claim, bid, error)
        if isinstance(error, StoreError):
            return
        raise
    for claim, bid, value, entry in zip(claims, bids, values, answers or [None] * len(claims), strict=True):
        given = answered(claim, bid, value, entry)
        claim.given = None if answers is None else given


async def renew(world: World, claim: Claim, ttl: float) -> None:
    """Replace the lease by one of `ttl` seconds from now.

    Raises `LockLost` when we do not stand there any more, and `StoreError` when that could not be learned: the
    deadline then stays what it was, or is earlier.
    """
    async with claim.mutex:
        if claim.ending or claim.record is None:
            return
        check(world, claim)
        claim.forget_dead(world.now())
        for _ in range(PASSES):
            now = world.now()
            claim.lease = min(ttl, claim.began + claim.max_hold - now)
            if claim.lease <= 0:
                return
            # A shorter lease is believed from the moment it is sent, a longer one only once it is answered.
            claim.deadline = min(claim.deadline, now + claim.lease - margin(claim.lease))
            claim.due = min(claim.due, claim.deadline)
            first = claim.writes
            bid = claim.bid(claim.record, claim.version)
            version, standing = await write_surely(world, claim, claim.version, bid, claim.deadline)
            check(world, claim)  # lost is lost: it may have been told, and another claim of ours been let in
            if standing is None or not claim.stands_in(standing) or fence_of(standing, version) != claim.fence:
                raise claim.lose(_instead(world, standing))
            claim.stand(standing, version, world.now())
            if claim.wrote(standing, first):
                claim.ttl = ttl  # what the store has accepted: the keeper goes on with it
                return
        message = f"lock {claim.key!r} could not be renewed: its record changed {PASSES} times under our hands"
        raise StoreUnavailable(message)


async def keep(world: World, claim: Claim) -> float | None:
    """One visit of the keeper: renew what is due, notice what is over; returns when to come again, None for never."""
    now = world.now()
    if claim.ending or claim.told:
        return None
    try:
        check(world, claim)
        if now >= claim.due:
            claim.due = now + claim.ttl / 12  # should this one fail: again soon, until the deadline
            await renew(world, claim, claim.ttl)
    except LockLost:
        tell(claim)
        return None
    except StoreError:  # no answer, or refused for now: only the deadline ends a lease
        pass
    claim.due = min(claim.due, claim.deadline)
    return claim.due


def tell(claim: Claim) -> None:
    """Tell of a loss, once."""
    if claim.ending or claim.told:
        return
    claim.told = True
    for call in reversed(claim.on_loss):  # the bodies first: a callback of the user's may raise
        call()


def check(world: World, claim: Claim) -> None:
    """Raise `LockLost` unless the claim is to be believed now."""
    if claim.lost or world.now() >= claim.deadline:
        raise claim.lose("its lease ended before it was renewed")


async def release(world: World, claim: Claim) -> None:
    """Stop standing there.

    Raises `LockLost` when somebody else stood there, or our lease was over, before we left; `StoreUnavailable` when
    there was no answer: the claim is not forgotten, release can be called again.
    """
    claim.ending = True
    mutex = claim.mutex
    if not mutex.acquire(blocking=False) and not claim.ended(claim):  # first settle any renewal under way
        await mutex.__aenter__()
    heir: Claim | None = None
    given: Standing | None = None
    try:
        heir, claim.heir = claim.heir, None
        if claim.record is None:
            return  # an earlier call has done it
        now = world.now()
        in_time = not claim.lost and now < claim.deadline
        claim.unanswered = False
        try:
            by_us, given = await _leave(world, claim, heir, now)
        except StoreError as error:
            error.add_note(f"Release lock {claim.key!r} again; else it ends by itself within {claim.ttl:g} s.")
            raise
        finally:
            claim.left_in_time = claim.left_in_time or (in_time and claim.unanswered)
        claim.record = None
    finally:
        if heir is not None:
            event = heir.event  # it may lose patience at this very moment
            heir.given, heir.promised = given, False
            if event is not None:
                event.set()
        mutex.release()
    standing = given[1]
    by_us = by_us or (heir is not None and heir.stands_in(standing))
    if claim.left_in_time or (in_time and by_us):
        return
    raise claim.lose("its lease ended before it was released" if by_us else _instead(world, standing))


async def _leave(world: World, claim: Claim, heir: Claim | None, now: float) -> tuple[bool, Standing]:
    """Leave, and tell whether it was certainly we who have, and what stands then."""
    if claim.leaves_nothing(now) and claim.parted is None and heir is None:  # the sunny path
        try:
            entry = await world.store.invalidate(claim.key, claim.version)
        except BaseException as error:  # noqa: BLE001 - settled, or raised by that
            start = await settle(world, claim, Unanswered(claim.version, None, error), NEVER)
        else:
            start = answered(claim, None, b"", entry)
    elif claim.parted is not None:  # it was sent together with others
        start, claim.parted = claim.parted, None
    elif heir is not None:
        start = await _hand_over(world, claim, heir)
    else:
        start = claim.version, claim.record
    by_us = False
    if start[1] is not None or claim.sends:
        by_us, start = await _withdraw(world, claim, *start)
    return by_us or start[1] is None, start


async def leave_surely(world: World, claim: Claim, interruption: BaseException) -> None:
    """Release after all what an interrupt or a cancellation has kept from being released."""

    async def go() -> None:
        try:
            await release(world, claim)
        except LockLost:
            pass
        except StoreError as trouble:
            interruption.add_note(f"lock {claim.key!r} ends by itself within {claim.ttl:g} s: {trouble}")

    await world.finish(go)


async def _hand_over(world: World, claim: Claim, heir: Claim) -> Standing:
    """Release and acquire in one request: the first put of `heir`, in this process, at the version that is ours.

    To the heir it is a put like its own: without an answer it looks, and gives up as for certain as ever.
    """
    assert claim.record is not None  # noqa: S101 - only who stands hands over
    rest = claim.farewell(claim.record, claim.version, world.now())
    if heir.promised and (rest is None or rest.free):
        heir.lease = heir.ttl
        if rest is None:
            bid, value = heir.first(world.now(), claim.version)
        else:
            bid = heir.bid(rest, claim.version)
            value = sent(heir, claim.version, bid, world.now())
        # We write and then look; who gives up, or loses patience, withdraws and then looks: one of us sees the other.
        if heir.ending or not heir.promised:
            heir.sends.pop(bid.write, None)
            return claim.version, claim.record
        try:
            entry = await world.store.put_if_version(heir.key, value, claim.version, bid.ttl)
        except (StoreError, ValueError) as error:
            unanswered(heir, bid, error)
            if isinstance(error, StoreUnavailable):
                claim.unanswered = claim.unanswered or error.sent
                return await read(world, claim, NEVER)
            # a refusal concerns the heir alone, which will be told when it asks
        except BaseException as error:
            unanswered(heir, bid, error)
            claim.unanswered = True
            raise
        else:
            return answered(heir, bid, value, entry)
    return claim.version, claim.record


async def _withdraw(world: World, claim: Claim, version: int, standing: Record | None) -> tuple[bool, Standing]:
    """Write until nothing of the claim stands or can land at once; returns whether it was we who left, and who stands.

    A put that expects absence can't be stopped while somebody else stands there.
    """
    for _ in range(PASSES):
        first = claim.writes
        ours = standing is not None and claim.hold in standing.holds
        # A request of ours that expects what stands now may land yet, unless we win that version before it does.
        if not ours and not claim.may_land(version):
            return False, (version, standing)
        if standing is None:
            bid: Record | None = claim.free(FREE_TTL)
        else:
            bid = claim.farewell(standing, version, world.now())
        version, standing = await write_surely(world, claim, version, bid, NEVER)
        if standing is None if bid is None else standing is not None and claim.wrote(standing, first):
            return True, (version, standing)
    message = f"lock {claim.key!r} could not be left: its record changed {PASSES} times under our hands"
    raise StoreUnavailable(message)


async def leave_together(world: World, claims: Sequence[Claim]) -> None:
    """Send the releases of several claims as one request; each finds its answer in `parted`.

    Without an answer each is released for itself, as after any release of its own that got none.
    """
    for claim in claims:
        claim.ending = True
        async with claim.mutex:  # settle any renewal under way; no other begins
            pass
    claims = [claim for claim in claims if claim.leaves_nothing(world.now())]  # a renewal may have changed that
    if world.batching is None or len(claims) < 2:  # noqa: PLR2004 - one alone is no batch
        return
    in_time = [not claim.lost and world.now() < claim.deadline for claim in claims]
    try:
        answers = await world.batching.invalidate_many([Removal(claim.key, claim.version) for claim in claims])
    except BaseException as error:
        for claim, early in zip(claims, in_time, strict=True):
            claim.left_in_time = early and may_have_landed(error)
        if isinstance(error, StoreError):
            return
        raise
    for claim, early, entry in zip(claims, in_time, answers or [], strict=answers is not None):
        claim.parted = standing_of(entry)
        claim.left_in_time = early and claim.parted[1] is None


async def break_(world: World, claim: Claim) -> Record | None:
    """Take the key away from whoever holds it; returns who that was.  `claim` is only the hand that writes.

    A free record takes the place, so that the holder learns of its loss even from a release.
    """
    version, standing = await read(world, claim, NEVER)
    broken: Record | None = None
    fence = ABSENT
    for _ in range(PASSES):
        if standing is None or standing.free:
            return broken
        if standing.foreign:
            message = f"{claim.key!r} is held by {standing} at {_place(world)}: remove it by other means"
            raise StoreError(message)
        if broken is not None and fence_of(standing, version) != fence:
            return broken  # it has left meanwhile, or our lost request has broken it: who came after is not meant
        broken, fence = standing, fence_of(standing, version)
        first = claim.writes
        version, standing = await write_surely(world, claim, version, claim.free(FREE_TTL), NEVER)
        if standing is not None and claim.wrote(standing, first):
            return broken
    message = f"lock {claim.key!r} could not be broken: its record changed {PASSES} times under our hands"
    raise StoreUnavailable(message)


def _place(world: World) -> str:
    return world.store.traits.place


def _instead(world: World, standing: Record | None) -> str:
    """Say what stands where we should."""
    if standing is None:
        return f"its record is gone from {_place(world)}, which let it expire, forgot it or had it removed"
    if standing.free:
        return f"it was broken by {standing.host} (pid {standing.pid}), or somebody else has held it since"
    return f"it is held by {standing} at {_place(world)}"
