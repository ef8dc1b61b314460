"""Several keys in one request: the first puts of a MultiLock, all or none, and its releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from caslock.errors import StoreError
from caslock.protocol.exchange import answered, note_write, unanswered
from caslock.protocol.record import NOTHING
from caslock.store import Put, Removal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Observed
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.writes import Write


Answers: TypeAlias = "Mapping[Attempt, Observed]"
"""What the answer to a batch shows for each attempt."""


async def put_together(runtime: Runtime, attempts: Sequence[Attempt], known: Answers) -> Answers | None:
    """Send a put of each attempt as one request, all or nothing, at the versions `known` (not known: absence).

    Returns what is there for each then; an empty mapping if the request failed, so that each has to ask by itself; None
    if the store can't send these keys together.
    """
    if runtime.batching is None:
        return None
    now = runtime.now()
    writes: list[Write] = []
    for attempt in attempts:
        version, record = known.get(attempt, NOTHING)
        writes.append(note_write(attempt, version, attempt.next_record(record, version), now))
    puts = [Put(each.key, write.value, write.expected, write.ttl) for each, write in zip(attempts, writes, strict=True)]
    try:
        entries = await runtime.batching.put_many(puts)
    except (StoreError, ValueError) as error:
        for attempt, write in zip(attempts, writes, strict=True):
            unanswered(attempt, write.id, error)
        if isinstance(error, StoreError):
            return {}
        raise
    if entries is None:
        for attempt, write in zip(attempts, writes, strict=True):
            attempt.writes.drop(write.id)
        return None
    return {each: answered(each, write, entry) for each, write, entry in zip(attempts, writes, entries, strict=True)}


async def remove_together(runtime: Runtime, attempts: Sequence[Attempt]) -> dict[Attempt, Observed]:
    """Send the releases of several attempts as one request, and return what the answer shows for each.

    If there was no answer, each has to be released by itself.
    """
    await _end(runtime, attempts)
    attempts = [each for each in attempts if each.releases_by_removal(runtime.now())]  # a renewal may have changed that
    if runtime.batching is None or len(attempts) < 2:  # noqa: PLR2004 - one alone is no batch
        return {}
    removals = [Removal(each.key, each.lease.version) for each in attempts]
    now = runtime.now()
    writes = [note_write(each, each.lease.version, None, now) for each in attempts]
    try:
        entries = await runtime.batching.invalidate_many(removals)
    except (StoreError, ValueError) as error:
        for attempt, write in zip(attempts, writes, strict=True):
            unanswered(attempt, write.id, error)
        return {}
    if entries is None:
        for attempt, write in zip(attempts, writes, strict=True):
            attempt.writes.drop(write.id)
        return {}
    return {each: answered(each, write, entry) for each, write, entry in zip(attempts, writes, entries, strict=True)}


async def _end(runtime: Runtime, attempts: Sequence[Attempt]) -> None:
    """Settle the renewals of these attempts that are under way; no others begin."""
    for attempt in attempts:  # all, before the first wait: each wait is then for a renewal that has begun before
        attempt.begin_release()
    for attempt in attempts:
        if not runtime.ended(attempt):
            async with attempt.mutex:
                pass
