"""One request and its answer.  A request without an answer may have been applied, so we read before we repeat it.

The uncontended path is one request, and never enters tenacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.record import Observed, Record, encode
from caslock.protocol.writes import InFlight, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime
    from caslock.store import Entry

T = TypeVar("T")

RETRY_PAUSE: Final = 0.02
"""Seconds between two tries of the same request, at the most."""


class Sent(NamedTuple):
    """A write that was sent, and what became of it: what is there, or the error that it has raised."""

    write: Write
    outcome: Observed | StoreError | ValueError


async def write_surely(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Write `record` (None: remove) at the version `expected`, and return what is there then.

    After no answer it reads first, and writes again, `attempt.retry.put` times, only if `expected` is still there.
    Raises `StoreUnavailable` when that was not enough.  After a failure no request begins at or after `limit`.
    """
    write = note_write(attempt, expected, record, runtime.now())
    try:
        return await send(runtime, attempt, write)
    except StoreUnavailable as error:
        failure = error
    return await settle(runtime, attempt, write, failure, limit)


async def settle(
    runtime: Runtime, attempt: Attempt, write: Write, failure: StoreError | ValueError, limit: float
) -> Observed:
    """Continue after a write that got no answer, see `write_surely`; raise any other error of it."""
    unanswered(attempt, write.id, failure)
    if not isinstance(failure, StoreUnavailable) or runtime.now() >= limit:
        raise failure
    try:
        return await _again(runtime, attempt, write, failure, limit)
    except StoreUnavailable as error:
        error.sent = error.sent or failure.sent  # the first write may have been applied, whatever became of the others
        raise


async def _again(runtime: Runtime, attempt: Attempt, write: Write, failure: StoreError, limit: float) -> Observed:
    """Read, and write again if the version that the write expects is still there."""
    _, expected, record, _, _ = write
    observed = await read(runtime, attempt, limit)
    if observed.version != expected:
        return observed  # another version: applied already, or can no longer be applied
    if attempt.retry.put < 1 or runtime.now() >= limit:
        raise failure

    async def again() -> Observed:
        try:
            renamed = record and attempt.sent_again(record)
            return await send(runtime, attempt, note_write(attempt, expected, renamed, runtime.now()))
        except StoreUnavailable:
            if runtime.now() >= limit:
                raise
            observed = await read(runtime, attempt, limit)
            if observed.version != expected:
                return observed
            raise

    return await _retry(runtime, attempt.retry.put, limit, again)


async def read(runtime: Runtime, attempt: Attempt, limit: float) -> Observed:
    """Return what is there; after no answer ask again, `attempt.retry.get` times, but not at or after `limit`."""

    async def get() -> Observed:
        asked = runtime.now()
        try:
            return attempt.see(await runtime.store.get(attempt.key), asked)
        except StoreError as error:
            attempt.concerns(error)
            raise

    try:
        return await get()
    except StoreUnavailable:
        if attempt.retry.get < 1 or runtime.now() >= limit:
            raise
    return await _retry(runtime, attempt.retry.get, limit, get)


async def send(runtime: Runtime, attempt: Attempt, write: Write, seconds: float | None = None) -> Observed:
    """Send a write, once.  With `seconds`, the store queues the put until the key is free, for that long at most."""
    _, expected, record, value, _ = write
    try:
        if record is None:
            entry = await runtime.store.invalidate(attempt.key, expected)
        elif seconds is not None:
            assert runtime.queueing is not None  # noqa: S101 - the caller has checked
            entry = await runtime.queueing.put_when_absent(attempt.key, value, record.ttl, seconds)
        else:
            entry = await runtime.store.put_if_version(attempt.key, value, expected, record.ttl)
    except (StoreError, ValueError) as error:
        unanswered(attempt, write.id, error)
        raise
    return answered(attempt, write, entry)


def note_write(attempt: Attempt, expected: int, record: Record | None, now: float) -> Write:
    """Note a write that is about to be sent, and return it."""
    writes = attempt.writes
    if record is None:
        write = _new(Write, (writes.next_id(), expected, None, b"", now))
        attempt.note_release(write.id, now)
        return write
    write = Write(record.write, expected, record, encode(record), now)
    if attempt.is_in(record):  # the ttl counts from before the request
        writes.in_flight[write.id] = InFlight(expected, now, attempt.lease.asked)
    else:
        attempt.note_release(write.id, now)
    return write


def answered(attempt: Attempt, write: Write, entry: Entry | None) -> Observed:
    """Read the answer to a write."""
    if not write.is_applied(entry):
        attempt.writes.drop(write.id)
    elif write.record is not None and entry is not None:
        return attempt.see(entry, write.at, write.record)
    elif entry is not None:
        attempt.woken = True
    return attempt.see(entry, write.at, None, write.expected)


def unanswered(attempt: Attempt, write_id: str, error: StoreError | ValueError) -> None:
    """Note that a write has raised `error`, which shows whether it may have been applied, or may be yet."""
    attempt.concerns(error)
    if not (isinstance(error, StoreUnavailable) and error.sent):
        attempt.writes.drop(write_id)


_new = tuple.__new__  # takes half the time of a NamedTuple's own


async def _retry(runtime: Runtime, times: int, limit: float, verb: Callable[[], Awaitable[T]]) -> T:
    """Run `verb` up to `times` times while it gets no answer, until `limit`."""
    import tenacity  # noqa: PLC0415 - neither `import caslock` nor the uncontended path pays for it

    retrying = tenacity.AsyncRetrying(
        sleep=runtime.sleep,
        stop=lambda state: state.attempt_number >= times or runtime.now() + RETRY_PAUSE >= limit,
        wait=tenacity.wait_random(0.0, RETRY_PAUSE),
        retry=tenacity.retry_if_exception_type(StoreUnavailable),
        reraise=True,
    )
    result: T = await retrying(verb)
    return result
