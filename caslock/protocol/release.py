"""Release a hold, or hand its key over to the next in the local queue; take a key away from its holder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.protocol.exchange import answered, note_write, read, settle, write_surely
from caslock.protocol.hand_over import HandOver, hand_over
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import PASSES, last_start_of_three
from caslock.protocol.record import NOTHING, Observed, Record
from caslock.protocol.renew import who_holds
from caslock.protocol.withdraw import withdraw
from caslock.store import ABSENT

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime


async def release(runtime: Runtime, attempt: Attempt, limit: float = NEVER, removed: Observed | None = None) -> None:
    """Release the key.

    `removed` is the answer to a removal that was sent with others.  After a failure, no request begins at or after
    `limit`, nor after two request timeouts.

    Raises `LockLost` when another owner held the key, or our lease had ended, before the release.  If there was no
    answer either, `lease.record` stays set, and the caller must release in the background.  Raises `StoreUnavailable`
    when there was no answer: release can be called again.
    """
    attempt.ending = True
    limit = min(limit, last_start_of_three(runtime))
    mutex, lease = attempt.mutex, attempt.lease
    # First settle any renewal under way.  What has the mutex in a closed event loop never goes on: it is ours then.
    if not mutex.acquire(blocking=False) and not runtime.ended(attempt):
        await mutex.__aenter__()
    outgoing: HandOver | None = None
    observed: Observed | None = None
    loss: LockLost | None = None
    try:
        outgoing = attempt.turn.outgoing
        if lease.record is None:
            return  # already released
        now = runtime.now()
        in_time = not lease.lost and now < lease.deadline
        try:
            observed = await _leave(runtime, attempt, outgoing, removed, limit if in_time else now)
        except (StoreError, ValueError) as error:
            if not (in_time or attempt.writes.releases):  # the lease had ended: lost, whatever the answer
                raise attempt.lose(lease.end("released")) from error
            if isinstance(error, StoreUnavailable):  # an earlier request of ours may have been applied
                error.sent = error.sent or bool(attempt.writes.releases)
            ends = max(lease.ttl, attempt.min_hold)
            error.add_note(f"Call release() again; otherwise the lease of {attempt.key!r} expires within {ends:g} s.")
            raise
        if not attempt.writes.releases:
            over = observed.record is None and not in_time
            loss = attempt.lose(lease.end("released") if over else who_holds(runtime, observed.record))
        lease.record = None  # last: a release that is interrupted is made once more, and finds the loss again
    finally:
        if outgoing is not None:
            outgoing.settle(observed)
            attempt.turn.outgoing = None  # after an interrupt between the two, `LocalQueue.leave` settles it
        mutex.release()
    if loss is not None:
        raise loss


async def release_quietly(runtime: Runtime, attempt: Attempt, limit: float) -> None:
    """Release in the background an attempt that could not be released, and whose hold nobody has any more."""
    try:
        await release(runtime, attempt, limit)
    except LockLost as loss:
        if attempt.lease.record is not None:
            raise StoreUnavailable(runtime.store.traits.location) from loss


async def _leave(
    runtime: Runtime, attempt: Attempt, outgoing: HandOver | None, removed: Observed | None, limit: float
) -> Observed:
    """Remove our hold; return what is there then."""
    lease, now = attempt.lease, runtime.now()
    if removed is not None:
        observed = removed
    elif outgoing is not None:
        observed = await hand_over(runtime, attempt, outgoing, limit)
    elif attempt.releases_by_removal(now):  # one request
        removal = note_write(attempt, lease.version, None, now)
        try:
            entry = await runtime.store.invalidate(attempt.key, lease.version)
        except (StoreError, ValueError) as error:
            observed = await settle(runtime, attempt, removal, error, limit)
        else:
            if entry is None:  # as `releases_by_removal` has looked, no put of ours may land here
                return NOTHING
            observed = answered(attempt, removal, entry)
    else:
        observed = Observed(lease.version, lease.record)
    return await withdraw(runtime, attempt, observed, limit)


async def leave_surely(runtime: Runtime, attempt: Attempt, interruption: BaseException) -> None:
    """Finish a release that was interrupted or cancelled."""

    async def go() -> None:
        try:
            await release(runtime, attempt)
        except LockLost:
            pass
        except (StoreError, ValueError) as trouble:
            ttl = attempt.lease.ttl
            interruption.add_note(f"could not release lock {attempt.key!r}, which expires within {ttl:g} s: {trouble}")

    await runtime.shielded(go)


async def force_release(runtime: Runtime, attempt: Attempt) -> Record | None:
    """Take the key away from whoever holds it, and return who that was.  `attempt` only writes; it never holds the key.

    A free record takes its place, so that the holder learns of its loss even from a release.  After a failure, no
    request begins later than two request timeouts from now.
    """
    limit = last_start_of_three(runtime)
    observed = await read(runtime, attempt, limit)
    broken: Record | None = None
    fence = ABSENT
    for _ in range(PASSES):
        version, record = observed
        if record is None or record.free:
            return broken
        if record.foreign:
            held = f"{attempt.key!r} at {runtime.store.traits.location} is held by {record}"
            raise StoreError(f"{held}; remove it with the store's own tools")
        if broken is not None and observed.fence != fence:
            return broken  # it has left meanwhile, or our lost request was applied: spare the next holder
        fence = observed.fence
        broken = record._replace(fence=fence)
        before, now = attempt.writes.count, runtime.now()
        try:
            observed = await write_surely(runtime, attempt, version, attempt.free_record(now), limit)
        except StoreUnavailable:
            raise
        except StoreError as error:
            error.add_note(f"Lock {attempt.key!r} was not released: it is held by {record}.")
            raise
        if observed.record is not None and attempt.writes.includes(observed.record, before):
            return broken
    message = f"lock {attempt.key!r} could not be released by force: its record kept changing; gave up after {PASSES}"
    raise StoreUnavailable(f"{message} tries")
