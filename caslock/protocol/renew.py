"""Renews leases, one or many in one request, and finds losses."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.protocol.exchange import answered, note_write, unanswered, write_surely
from caslock.protocol.limits import PASSES
from caslock.store import Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Observed, Record
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.writes import Write
    from caslock.store import AsyncBatchingStore, Entry


async def renew(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Replace the lease by one of `ttl` seconds from now (None: the ttl that was accepted last).

    Raises `LockLost` when we do not hold the key any more, and `StoreError` when that could not be learned: the
    deadline then stays what it was, or is earlier.
    """
    async with attempt.mutex:
        await renew_alone(runtime, attempt, ttl)


async def renew_alone(runtime: Runtime, attempt: Attempt, ttl: float | None, *, handed: bool = False) -> None:
    """Do what `renew` does; the caller has the attempt's mutex.

    `handed`: write the hold id of the ticket in place of our own.  After an error, the next renewal or release undoes
    that.
    """
    until = runtime.now() + runtime.patience
    for number in count():
        # Others sharing the key write often; a record with one owner has no such reason to change.
        if number >= PASSES and (attempt.queues or runtime.now() >= until):
            break
        lease, before = attempt.lease, attempt.writes.count
        attempt.catch_up(runtime.now())
        record = _renewal(runtime, attempt, ttl, runtime.now())
        if record is None:
            return
        if handed:
            record = attempt.as_handed(record, runtime.now())
        # A release may wait for our mutex: after a failure, nothing begins after this.  The renewer tries again soon.
        limit = min(lease.deadline, runtime.now() + runtime.patience)
        observed = await write_surely(runtime, attempt, lease.version, record, limit)
        if _renewed(runtime, attempt, observed, before, runtime.now()):
            lease.ttl = lease.ttl if ttl is None else ttl  # what the store has accepted: the renewals go on with it
            return
    message = "its record kept changing; gave up"
    raise StoreUnavailable(message)


def _renewal(runtime: Runtime, attempt: Attempt, ttl: float | None, now: float) -> Record | None:
    """Return the record to write at the version known; None: there is nothing to renew (any more).

    The attempt's mutex has to be taken: an extension that we have waited for may have changed the ttl.
    """
    lease = attempt.lease
    if attempt.ending or lease.record is None:
        return None
    check(attempt, now)
    attempt.writes.forget_dead(now)
    deadline = lease.deadline
    if not lease.ask(ttl, now):
        return None
    if lease.deadline < deadline:  # the lease ends earlier from now on, even if the store does not answer
        runtime.watch(attempt)
    return attempt.next_record(lease.record, lease.version)


def _renewed(runtime: Runtime, attempt: Attempt, observed: Observed, before: int, now: float) -> bool:
    """Apply the answer to a renewal; whether it shows a write of ours after number `before`.  Raises `LockLost`."""
    record = observed.record
    check(attempt, now)  # a loss is final: it may have been reported, and another attempt let in
    if record is None or not attempt.is_in(record) or observed.fence != attempt.lease.fence:
        raise attempt.lose(who_holds(runtime, record))
    attempt.holds_with(record, observed.version, now)
    return attempt.writes.includes(record, before)


async def renew_due(runtime: Runtime, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Renew leases that are due, as one request where the store can; returns those that have to be renewed alone.

    One that is being extended or released at this moment is left out, so that nothing waits here.  A loss is reported
    (`Attempt.lose`).  What got no answer is due again soon: only the deadline ends a lease.
    """
    taken: dict[str, Attempt] = {}
    alone: list[Attempt] = []
    now = runtime.now()
    try:
        for attempt in attempts:
            lease = attempt.lease
            ttl = min(lease.ttl, lease.asked)  # an extension that makes it shorter may be under way
            again = min(ttl / 12, (lease.deadline - now) / 2)  # should this one fail
            lease.due = min(now + max(again, ttl / 60), lease.deadline)
            if attempt.key in taken or not (attempt.queues or len(attempts) == 1):
                alone.append(attempt)  # no request may name a key twice, or one that others change all the time
            elif attempt.mutex.acquire(blocking=False):
                taken[attempt.key] = attempt
        if len(taken) > 1 and runtime.batching is not None:
            return alone + await _renew_together(runtime, runtime.batching, list(taken.values()))
        for attempt in taken.values():
            with suppress(LockLost):
                try:
                    await renew_alone(runtime, attempt, None)
                except StoreError as error:
                    attempt.lease.failure = str(error)
        return alone
    finally:
        for attempt in taken.values():
            attempt.mutex.release()


async def _renew_together(runtime: Runtime, batching: AsyncBatchingStore, attempts: list[Attempt]) -> list[Attempt]:
    """Renew all, or return those that have to be renewed alone.

    After no answer they are written once more (unless `retry` forbids it), at the versions known and without a read:
    the answer shows what is there for each.
    """
    before = {attempt: attempt.writes.count for attempt in attempts}
    repeats = min(1, *(attempt.retry.put for attempt in attempts))
    limit = runtime.now() + runtime.patience
    for _ in range(PASSES):
        renewals = _renewals(runtime, attempts)
        try:
            puts = [Put(each.key, write.value, write.expected, write.ttl) for each, write in renewals]
            answers = await batching.put_many(puts) if puts else []
        except (StoreError, ValueError) as error:
            for attempt, write in renewals:
                unanswered(attempt, write.id, error)
                attempt.lease.failure = str(error)
            if not isinstance(error, StoreUnavailable):  # one is refused: each alone shows which
                return attempts
            if not repeats or runtime.now() >= limit:
                break
            repeats -= 1
            continue
        if answers is None:
            for attempt, write in renewals:
                attempt.writes.drop(write.id)
            return attempts
        attempts = _not_renewed(runtime, renewals, answers, before)
        if not attempts:
            break
    return []


def _renewals(runtime: Runtime, attempts: list[Attempt]) -> list[tuple[Attempt, Write]]:
    """Return what to write for each that still has to be renewed."""
    renewals: list[tuple[Attempt, Write]] = []
    now = runtime.now()
    for attempt in attempts:
        with suppress(LockLost):
            record = _renewal(runtime, attempt, None, now)
            if record is not None:
                renewals.append((attempt, note_write(attempt, attempt.lease.version, record, now)))
    return renewals


def _not_renewed(
    runtime: Runtime,
    renewals: list[tuple[Attempt, Write]],
    answers: Sequence[Entry | None],
    before: dict[Attempt, int],
) -> list[Attempt]:
    """Apply the answers, and return the attempts that were not written because another of the request had lost."""
    left: list[Attempt] = []
    now = runtime.now()
    for (attempt, write), entry in zip(renewals, answers, strict=True):
        with suppress(LockLost):
            if not _renewed(runtime, attempt, answered(attempt, write, entry), before[attempt], now):
                left.append(attempt)
    return left


def check(attempt: Attempt, now: float) -> None:
    """Raise `LockLost` unless the lease still counts as held."""
    lease = attempt.lease
    if lease.lost or now >= lease.deadline:
        raise attempt.lose(lease.end("renewed"))


def who_holds(runtime: Runtime, record: Record | None) -> str:
    """Say who holds the key in our place."""
    if record is None:
        return f"its record is no longer at {runtime.store.traits.location}: it expired, was evicted or was removed"
    if record.free:
        return f"it was force-released by pid {record.pid} on {record.host}, or has had another owner since"
    return f"it is held by {record} at {runtime.store.traits.location}"
