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
    except (StoreError, ValueError) as error:
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
    await _end(runtime, attempts)
    attempts = [each for each in attempts if each.releases_by_removal(runtime.now())]  # a renewal may have changed that
    if runtime.batching is None or len(attempts) < 2:  # noqa: PLR2004 - one alone is no batch
        return {}
    removals = [Removal(each.key, each.lease.version) for each in attempts]
    timely = [each.releases_in_time(None, runtime.now()) for each in attempts]
    for attempt, in_time in zip(attempts, timely, strict=True):
        attempt.timely_releases += in_time
    try:
        entries = await runtime.batching.invalidate_many(removals)
    except (StoreError, ValueError) as error:
        if may_have_landed(error):
            return {}
        entries = None
    if entries is None:
        for attempt, in_time in zip(attempts, timely, strict=True):
            attempt.timely_releases -= in_time
        return {}
    for attempt, in_time, entry in zip(attempts, timely, entries, strict=True):
        attempt.timely_releases -= in_time and entry is not None and entry.version != ABSENT
    return {each: answered(each, None, b"", entry) for each, entry in zip(attempts, entries, strict=True)}


async def _end(runtime: Runtime, attempts: Sequence[Attempt]) -> None:
    """Settle the renewals of these attempts that are under way; no others begin."""
    for attempt in attempts:  # all, before the first wait: each wait is then for a renewal that has begun before
        attempt.ending = True
    for attempt in attempts:
        if not runtime.ended(attempt):
            async with attempt.mutex:
                pass
