"""The law of this file: ask the store one thing only, "who stands there now?", and decide by nothing else.

Every rule of locking is in `claim` (what to write, what to believe), in `request` (what to do without an answer) and
here (in what order), written once, as coroutines that await nothing but the store, the clock's sleep and a mutex.
asyncio awaits them; the blocking API runs them to their end in the calling thread; the simulator chooses where they
stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.claim import FREE_TTL, NEVER, Claim, margin
from caslock.errors import CaslockError, LockLost, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.request import World, pauses, read, write_surely
from caslock.store import ABSENT

if TYPE_CHECKING:
    from tenacity.wait import WaitBaseT

    from caslock.record import Record

PASSES: Final = 8
"""How often one call follows a record that changes under its hands."""


async def acquire(world: World, claim: Claim, timeout: float | None, poll: WaitBaseT | None = None) -> bool:
    """Try until the claim holds or `timeout` seconds (None: for ever) are over; `claim.rival` tells who stands there.

    Raises `StoreUnavailable` when the lock is certainly not ours and no late request can make it so, `OutcomeUnknown`
    when that could not be made certain.
    """
    limit = NEVER if timeout is None else world.now() + timeout
    pause = None
    try:
        while True:
            # One try is bounded by its retries alone: a deadline that is over would forbid to settle a lost reply.
            if await _attempt(world, claim, limit if timeout else NEVER):
                return True
            left = limit - world.now()
            if left <= 0:
                return False
            pause = pause or pauses(poll)
            await world.sleep(min(pause(), left))
            claim.forget_dead(world.now())
    except GeneratorExit:  # the event loop is gone: nothing can be awaited any more, the lease is the bound
        raise
    except BaseException as error:  # whatever it is: make the outcome definite before it is told
        await _give_up(world, claim, error)
        raise


async def _attempt(world: World, claim: Claim, limit: float) -> bool:
    """Write, look who stands, and decide; again while the key is ours to take."""
    claim.lease = claim.ttl
    standing: Record | None = None
    version = ABSENT
    renewed = False
    for _ in range(PASSES):
        # 1. One request when nobody contends.
        version, standing = await write_surely(world, claim, version, claim.bid(standing, version), limit)
        # 2. Ours.  One that is half over before we know of it (a lost reply, a slow answer) is renewed first.
        if standing is not None and claim.stands_in(standing):
            claim.stand(standing, version, world.now())
            left = claim.deadline - world.now()
            if left >= claim.ttl / 2 or (renewed and left > 0):
                return True
            renewed = True
            continue
        # 3. Nobody's, or our owner's: again, at the version that stands.  Somebody else's: busy.
        claim.fall()
        if not claim.may_take(standing):
            break
    if claim.record is not None:
        message = f"{world.store.traits.place} answers too slowly for a ttl of {claim.ttl:g} s"
        raise StoreUnavailable(message)
    claim.rival = standing
    return False


async def _give_up(world: World, claim: Claim, error: BaseException) -> None:
    """Make a failed acquire's outcome definite: nothing of it stands, and no late request of it can land."""
    claim.ending = True
    trouble: list[str] = []

    async def clean_up() -> None:
        try:
            _, standing = await _withdraw(world, claim, *await read(world, claim, NEVER))
            claim.record = None
        except StoreError as inner:
            trouble.append(f"which could not be asked ({inner})")
        else:
            if claim.may_land(ABSENT) and standing is not None and not standing.free:
                trouble.append(f"when {standing} has left")

    if claim.sends or claim.record is not None:
        await world.finish(clean_up)
    place = world.store.traits.place
    if trouble:
        message = (
            f"lock {claim.key!r} is not held, but a request for it may still be applied at {place}, {trouble[0]}; "
            f"what it leaves there would end by itself within {claim.ttl:g} s"
        )
        if isinstance(error, StoreUnavailable):
            raise OutcomeUnknown(message) from error
        error.add_note(message)
    elif isinstance(error, StoreUnavailable):
        message = f"lock {claim.key!r} is not held and nothing of it is left behind: {place} gave no answer ({error})"
        raise StoreUnavailable(message) from error
    elif isinstance(error, StoreError):
        message = f"lock {claim.key!r} is not held: {place} has refused it ({error})"
        raise StoreError(message) from error


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
            first = claim.writes
            bid = claim.bid(claim.record, claim.version)
            version, standing = await write_surely(world, claim, claim.version, bid, claim.deadline)
            if standing is None or not claim.stands_in(standing):
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
        if claim.auto_renew and now >= claim.due:
            claim.due = now + claim.ttl / 12  # should this one fail: again soon, until the deadline
            await renew(world, claim, claim.ttl)
    except LockLost:
        tell(claim)
        return None
    except StoreError:  # no answer, or refused for now: only the deadline ends a lease
        pass
    return min(claim.due, claim.deadline) if claim.auto_renew else claim.deadline


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
    try:
        await _release(world, claim)
    except (CaslockError, GeneratorExit):
        raise
    except BaseException as error:  # interrupted or cancelled: leave first, then go on with it
        interruption = error

        async def leave() -> None:
            try:
                await _release(world, claim)
            except LockLost:
                pass
            except StoreError as trouble:
                interruption.add_note(f"lock {claim.key!r} ends by itself within {claim.ttl:g} s: {trouble}")

        await world.finish(leave)
        raise


async def _release(world: World, claim: Claim) -> None:
    claim.ending = True
    async with claim.mutex:  # first settle any renewal under way
        if claim.record is None:
            return  # an earlier call has done it
        in_time = not claim.lost and world.now() < claim.deadline
        claim.unanswered = False
        try:
            by_us, standing = await _withdraw(world, claim, claim.version, claim.record)
        finally:
            claim.left_in_time = claim.left_in_time or (in_time and claim.unanswered)
        claim.record = None
    if claim.left_in_time or (in_time and (by_us or standing is None)):
        return
    raise claim.lose("its lease ended before it was released" if by_us else _instead(world, standing))


async def _withdraw(world: World, claim: Claim, version: int, standing: Record | None) -> tuple[bool, Record | None]:
    """Write until nothing of the claim stands or can land at once; returns whether it was we who left, and who stands.

    A put that expects absence can't be stopped while somebody else stands there.
    """
    for _ in range(PASSES):
        first = claim.writes
        ours = claim.stands_in(standing)
        # A request of ours that expects what stands now may land yet, unless we win that version before it does.
        if not ours and not claim.may_land(version):
            return False, standing
        if standing is None:
            bid: Record | None = claim.free(FREE_TTL)
        else:
            bid = claim.farewell(standing, version, world.now())
        version, standing = await write_surely(world, claim, version, bid, NEVER)
        if standing is None if bid is None else standing is not None and claim.wrote(standing, first):
            return True, standing
    message = f"lock {claim.key!r} could not be left: its record changed {PASSES} times under our hands"
    raise StoreUnavailable(message)


async def break_(world: World, claim: Claim) -> Record | None:
    """Take the key away from whoever holds it; returns who that was.  `claim` is only the hand that writes.

    A free record takes the place, so that the holder learns of its loss even from a release.
    """
    version, standing = await read(world, claim, NEVER)
    broken = standing
    for _ in range(PASSES):
        if standing is None or standing.free:
            return None if broken is standing else broken
        if standing.foreign:
            message = f"{claim.key!r} is held by {standing} at {_place(world)}: remove it by other means"
            raise StoreError(message)
        if broken is None or not set(broken.holds) & set(standing.holds):
            return broken  # it has left meanwhile, or our lost request has broken it: who came after is not meant
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
