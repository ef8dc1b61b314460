"""Release a hold, or hand its key over to the next in the local queue; take a key away from its holder."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NoReturn

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.protocol.exchange import Sent, read, settle, write_surely
from caslock.protocol.hand_over import HandOver, hand_over
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HELD, LEAVING, OVER, UNSETTLED
from caslock.protocol.limits import PASSES, last_start_of_three
from caslock.protocol.record import Observed, Record
from caslock.protocol.renew import who_holds
from caslock.protocol.shares import with_fences
from caslock.protocol.withdraw import withdraw
from caslock.protocol.writes import FREE_TTL

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime


async def release(
    runtime: Runtime, attempt: Attempt, limit: float = NEVER, removed: Observed | Sent | None = None
) -> None:
    """Release the key.

    `removed` is what became of a removal that was sent already.  After a failure, no request begins at or after
    `limit`, nor after two request timeouts.

    Raises `LockLost` when another owner held the key, or our lease had ended, before the release.  If there was no
    answer either, the attempt is not over, and the caller must release in the background.  Raises `StoreUnavailable`
    when there was no answer: release can be called again.
    """
    if attempt.state is HELD:
        attempt.begin_release()
    sent = removed.write if isinstance(removed, Sent) else None  # in time: see `LockState.begin_removal`
    limit = min(limit, last_start_of_three(runtime, sent.at if sent else runtime.now()))
    mutex, lease = attempt.mutex, attempt.lease
    # First settle any renewal under way.  What has the mutex in a closed event loop never goes on: it is ours then.
    if not mutex.acquire(blocking=False) and not runtime.ended(attempt):
        await mutex.__aenter__()
    outgoing: HandOver | None = None
    observed: Observed | None = None
    loss: LockLost | None = None
    try:
        outgoing = attempt.turn.outgoing
        if attempt.state is OVER:
            if lease.lost:  # as another thread has found, which has released the key meanwhile
                raise attempt.lost()
            return
        if attempt.state is UNSETTLED:
            attempt.state = LEAVING
        now = runtime.now()
        in_time = sent is not None or (not lease.lost and now < lease.deadline)
        try:
            observed = await _leave(runtime, attempt, outgoing, removed, limit if in_time else now)
        except (StoreError, ValueError) as error:
            _raise_unsettled(attempt, error, in_time=in_time)
        if not attempt.writes.releases:
            over = observed.record is None and not in_time
            loss = attempt.lose(lease.end("released") if over else who_holds(runtime, observed.record))
        attempt.state = OVER  # last: a release that is interrupted is made once more, and finds the loss again
    finally:
        if outgoing is not None:
            outgoing.settle(observed)
            attempt.turn.outgoing = None  # after an interrupt between the two, `LocalQueue.leave` settles it
        mutex.release()
    if loss is not None:
        raise loss


def _raise_unsettled(attempt: Attempt, error: StoreError | ValueError, *, in_time: bool) -> NoReturn:
    """Raise the error of an unanswered or refused release, or `LockLost` if calling it again can't help."""
    attempt.state = UNSETTLED
    lease, sent = attempt.lease, bool(attempt.writes.releases)
    if not (in_time or sent):  # the lease had ended: lost, whatever the answer
        raise attempt.lose(lease.end("released")) from error
    ends = max(min(lease.ttl, lease.max_hold), attempt.min_hold)
    advice = f"call release() again, or its lease expires within {ends:g} s"
    if not isinstance(error, StoreError):
        error.add_note(f"Lock {attempt.key!r} was not released: {advice}.")
        raise error
    if isinstance(error, StoreUnavailable):  # an earlier request of ours may have been applied
        error.sent = error.sent or sent
    raise attempt.failure("release", error, advice) from error


def release_later(attempt: Attempt) -> None:
    """Release in the background; see `release_quietly`."""
    runtime = attempt.runtime
    runtime.in_background(partial(release_quietly, runtime, attempt), FREE_TTL)


async def release_quietly(runtime: Runtime, attempt: Attempt, limit: float) -> None:
    """Release in the background an attempt that could not be released, and whose hold nobody has any more."""
    try:
        await release(runtime, attempt, limit)
    except LockLost as loss:
        if attempt.state is not OVER:
            raise StoreUnavailable(runtime.store.traits.location) from loss


async def _leave(
    runtime: Runtime,
    attempt: Attempt,
    outgoing: HandOver | None,
    removed: Observed | Sent | None,
    limit: float,
) -> Observed:
    """Remove our hold; return what is there then."""
    if isinstance(removed, Sent):
        write, seen = removed
        observed = seen if isinstance(seen, Observed) else await settle(runtime, attempt, write, seen, limit)
    elif removed is not None:
        observed = removed
    else:
        attempt.catch_up(runtime.now())
        observed = Observed(attempt.lease.version, attempt.lease.record)
        if outgoing is not None:
            observed = await hand_over(runtime, attempt, outgoing, limit)
    return await withdraw(runtime, attempt, observed, limit)


async def force_release(runtime: Runtime, attempt: Attempt) -> Record | None:
    """Take the key away from whoever holds it, and return who that was.  `attempt` only writes; it never holds the key.

    A free record takes its place, so that the holder learns of its loss even from a release.  After a failure, no
    request begins later than two request timeouts from now.
    """
    limit = last_start_of_three(runtime, runtime.now())
    observed = await read(runtime, attempt, limit)
    broken: Record | None = None
    tenures = set[int | None]()
    for number in count():
        version, record = observed
        if record is None or record.free:
            return broken
        if number >= PASSES and (not record.shares or runtime.now() >= limit):
            break
        if record.foreign:
            message = f"at {runtime.store.traits.location} it is held by {record}; remove it with the store's own tools"
            raise StoreError(message)
        before, tenures = tenures, {share.fence for share in with_fences(record.shares, version)} or {observed.fence}
        if broken is not None and tenures.isdisjoint(before) and set(broken.holds).isdisjoint(record.holds):
            return broken  # it has left meanwhile, or our lost request was applied: spare the next holder
        broken = record._replace(fence=observed.fence)
        sent, now = attempt.writes.count, runtime.now()
        try:
            observed = await write_surely(runtime, attempt, version, attempt.free_record(now), limit)
        except StoreUnavailable:
            raise
        except StoreError as error:
            message = f"{str(error).rstrip('.')}; it is held by {record}"
            raise StoreError(message) from error
        if observed.record is not None and attempt.writes.includes(observed.record, sent):
            return broken
    message = f"its record kept changing; gave up after {number} tries"
    raise StoreUnavailable(message)
