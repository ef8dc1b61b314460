"""One request and its answer.  A request without an answer may have been applied, so we read before we repeat it.

The uncontended path is one request, and never enters tenacity.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.record import NOTHING, Observed, Record, decode, encode
from caslock.protocol.writes import InFlight
from caslock.store import ABSENT, Entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime

T = TypeVar("T")

RETRY_PAUSE: Final = 0.02
"""Seconds between two tries of the same request, at the most."""


class Unanswered(NamedTuple):
    """A write that has raised."""

    expected: int
    record: Record | None
    failure: StoreError | ValueError


async def write_surely(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Write `record` (None: remove) at the version `expected`, and return what is there then.

    After no answer it reads first, and writes again, `attempt.retry.put` times, only if `expected` is still there.
    Raises `StoreUnavailable` when that was not enough.  After a failure no request begins at or after `limit`.
    """
    try:
        return await write(runtime, attempt, expected, record)
    except StoreUnavailable as error:
        failure = error
    return await settle(runtime, attempt, Unanswered(expected, record, failure), limit)


async def settle(runtime: Runtime, attempt: Attempt, lost: Unanswered, limit: float) -> Observed:
    """Continue after a write that got no answer, see `write_surely`; raise any other error of it."""
    failure = lost.failure
    unanswered(attempt, lost.record, failure)
    if not isinstance(failure, StoreUnavailable) or runtime.now() >= limit:
        raise failure
    try:
        return await _again(runtime, attempt, lost, limit)
    except StoreUnavailable as error:
        error.sent = error.sent or failure.sent  # the first write may have been applied, whatever became of the others
        raise


async def _again(runtime: Runtime, attempt: Attempt, lost: Unanswered, limit: float) -> Observed:
    """Read, and write again if the version that the write expects is still there."""
    expected, record, failure = lost
    observed = await read(runtime, attempt, limit)
    if observed.version != expected:
        return observed  # another version: applied already, or can no longer be applied
    if attempt.retry.put < 1 or runtime.now() >= limit:
        raise failure

    async def again() -> Observed:
        try:
            renamed = record and record._replace(write=attempt.writes.next_id())
            return await write(runtime, attempt, expected, renamed)
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
        return observed_in(await runtime.store.get(attempt.key))

    try:
        return await get()
    except StoreUnavailable:
        if attempt.retry.get < 1 or runtime.now() >= limit:
            raise
    return await _retry(runtime, attempt.retry.get, limit, get)


async def write(runtime: Runtime, attempt: Attempt, expected: int, record: Record | None) -> Observed:
    """Write once."""
    now = runtime.now()
    value, in_time = sent(attempt, expected, record, now), attempt.releases_in_time(record, now)
    store, key = runtime.store, attempt.key
    attempt.timely_releases += in_time
    try:
        if record is None:
            entry = await store.invalidate(key, expected)
            applied = entry is None or entry.version == ABSENT
        else:
            entry = await store.put_if_version(key, value, expected, record.ttl)
            applied = entry is not None and entry.value == value
        attempt.timely_releases -= in_time and not applied  # first: an interrupt must not forget that it was refused
    except (StoreError, ValueError) as error:
        attempt.timely_releases -= in_time and not may_have_landed(error)
        unanswered(attempt, record, error)
        raise
    return answered(attempt, record, value, entry)


async def put_when_absent(runtime: Runtime, attempt: Attempt, seconds: float) -> Observed:
    """Have the store put the attempt's first record as soon as nothing is there, or after `seconds`."""
    assert runtime.queueing is not None  # noqa: S101 - the caller has checked
    record = attempt.next_record(None, ABSENT)
    value = sent(attempt, ABSENT, record, runtime.now())
    try:
        entry = await runtime.queueing.put_when_absent(attempt.key, value, record.ttl, seconds)
    except (StoreError, ValueError) as error:
        unanswered(attempt, record, error)
        raise
    return answered(attempt, record, value, entry)


def sent(attempt: Attempt, expected: int, record: Record | None, now: float) -> bytes:
    """Return the value to be written now; it is in flight until an answer shows that it was not applied."""
    if record is None:
        return b""
    if attempt.hold_id in record.holds:
        # The ttl counts from before the request.
        attempt.writes.sent(record.write, InFlight(expected, now, attempt.lease.asked))
    return encode(record)


def answered(attempt: Attempt, record: Record | None, value: bytes, entry: Entry | None) -> Observed:
    """Read the answer to a write."""
    if record is not None:
        if entry is not None and entry.value == value:
            return _new(Observed, (entry.version, record))
        attempt.writes.answered(record.write)
    elif entry is not None and entry.version == ABSENT:
        attempt.woken = True
    return observed_in(entry)


def unanswered(attempt: Attempt, record: Record | None, error: BaseException) -> None:
    """Note that a write has raised `error`; after an interrupt it stays in flight."""
    if record is not None and not may_have_landed(error):
        attempt.writes.answered(record.write)


def may_have_landed(error: BaseException) -> bool:
    """Whether a request that raised `error` may have been applied, or may be yet."""
    # A store refuses bad input by ValueError, before any I/O (a ttl that is too long for it, say).
    return error.sent if isinstance(error, StoreUnavailable) else not isinstance(error, (StoreError, ValueError))


def observed_in(entry: Entry | None) -> Observed:
    """Read an answer; `WOKEN` says as well that nothing is there."""
    return NOTHING if entry is None or entry.version == ABSENT else Observed(entry.version, decode(entry.value))


_new = tuple.__new__  # takes half the time of a NamedTuple's own


async def _retry(runtime: Runtime, times: int, limit: float, verb: Callable[[], Awaitable[T]]) -> T:
    """Run `verb` up to `times` times while it gets no answer, until `limit`."""
    tenacity = load_tenacity()
    retrying = tenacity.AsyncRetrying(
        sleep=runtime.sleep,
        stop=lambda state: state.attempt_number >= times or runtime.now() + RETRY_PAUSE >= limit,
        wait=tenacity.wait_random(0.0, RETRY_PAUSE),
        retry=tenacity.retry_if_exception_type(StoreUnavailable),
        reraise=True,
    )
    result: T = await retrying(verb)
    return result


def load_tenacity() -> ModuleType:
    """Import tenacity at its first use, so that neither `import caslock` nor the uncontended path pays for it."""
    try:
        import tenacity  # noqa: PLC0415 - see above
    except BaseException:  # interrupted: half a package would never be imported again
        for name in [name for name in sys.modules if name.partition(".")[0] == "tenacity"]:
            del sys.modules[name]
        raise
    return tenacity
