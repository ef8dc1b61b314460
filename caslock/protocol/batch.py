"""Several keys in one request: the first puts of a MultiLock, all or none, and its releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from caslock.errors import StoreError
from caslock.protocol.exchange import answered, may_have_landed, sent, unanswered
from caslock.store import ABSENT, Put, Removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Observed
    from caslock.protocol.runtime import Runtime


class PutTogether(NamedTuple):
    """The answer to the first puts of several attempts."""

    free: int
    """How many keys, counted from the first, were not in use.  If not all of them, nothing was written."""
    answers: dict[Attempt, Observed]
    """What the answer shows for each.  Empty if there was no answer: each attempt then has to ask by itself."""


async def put_together(runtime: Runtime, attempts: Sequence[Attempt]) -> PutTogether:
    """Send the first puts of several attempts as one request, all or nothing."""
    if runtime.batching is None:
        return PutTogether(0, {})
    now = runtime.now()
    records = [attempt.next_record(None, ABSENT) for attempt in attempts]
    values = [sent(attempt, ABSENT, record, now) for attempt, record in zip(attempts, records, strict=True)]
    puts = [
        Put(attempt.key, value, ABSENT, record.ttl)
        for attempt, record, value in zip(attempts, records, values, strict=True)
    ]
    try:
        entries = await runtime.batching.put_many(puts)
    except BaseException as error:
        for attempt, record in zip(attempts, records, strict=True):
            unanswered(attempt, record, error)
        if isinstance(error, StoreError):
            return PutTogether(len(attempts), {})
        raise
    answers: dict[Attempt, Observed] = {}
    free = 0
    for attempt, record, value, entry in zip(attempts, records, values, entries or [None] * len(attempts), strict=True):
        observed = answered(attempt, record, value, entry)
        if entries is not None:
            answers[attempt] = observed
            if observed.record is None or attempt.is_in(observed.record):
                free += attempts[free] is attempt
    return PutTogether(free, answers)


async def remove_together(runtime: Runtime, attempts: Sequence[Attempt]) -> dict[Attempt, Observed]:
    """Send the releases of several attempts as one request, and return what the answer shows for each.

    If there was no answer, each has to be released by itself.
    """
    for attempt in attempts:
        attempt.ending = True
        if not runtime.ended(attempt):
            async with attempt.mutex:  # settle any renewal under way; no other begins
                pass
    attempts = [each for each in attempts if each.leaves_nothing(runtime.now())]  # a renewal may have changed that
    if runtime.batching is None or len(attempts) < 2:  # noqa: PLR2004 - one alone is no batch
        return {}
    in_time = [not each.lease.lost and runtime.now() < each.lease.deadline for each in attempts]
    try:
        entries = await runtime.batching.invalidate_many([Removal(each.key, each.lease.version) for each in attempts])
    except BaseException as error:
        for attempt, early in zip(attempts, in_time, strict=True):
            attempt.left_in_time |= early and may_have_landed(error)
        if isinstance(error, StoreError):
            return {}
        raise
    removed: dict[Attempt, Observed] = {}
    for attempt, early, entry in zip(attempts, in_time, entries or [], strict=entries is not None):
        removed[attempt] = observed = answered(attempt, None, b"", entry)
        attempt.left_in_time |= early and observed.record is None
    return removed
