"""Reports what happens to leases in the background: to the log, to observers, and to the user's `on_lost`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.errors import StoreError
from caslock.observer import LockEvent, listens, log_error, tell, warn
from caslock.protocol.lease import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt

H = TypeVar("H", bound="Holding")

QUIET: Final = 10.0
"""Seconds between two warnings of one kind about one location."""


def event_of(attempt: Attempt, seconds: float, reason: str = "") -> LockEvent:
    """Return what an observer is told of `attempt`."""
    traits = attempt.runtime.store.traits
    fence = attempt.lease.fence if traits.fences and attempt.lease.fence else None
    return LockEvent(attempt.key, attempt.owner, traits.location, fence, seconds, reason)


def warn_of_loss(attempt: Attempt) -> None:
    """Log that a lease was lost, where, and why; tell the observers."""
    lost, location = attempt.lease.lost, attempt.runtime.store.traits.location
    where = "" if location in lost else f" at {location}"
    if attempt.after_renewal is not None:
        warn(f"{_lease_of(attempt)}{where} was lost: {lost}")
        return
    warn(f"lock {attempt.key!r}{where} was lost: {lost}")
    tell("lost", event_of(attempt, attempt.runtime.now() - attempt.lease.began, lost))


def warn_of_late_renewals(attempts: Iterable[Attempt]) -> None:
    """Log that leases have not been renewed in time, and that the first of them ends soon."""
    for attempt in sorted(attempts, key=lambda attempt: attempt.lease.deadline):
        location, left = attempt.runtime.store.traits.location, attempt.lease.deadline - attempt.runtime.now()
        renewed = left > attempt.lease.ttl / 2  # meanwhile
        if not renewed and not _warned_lately(f"late {location}", attempt.runtime.now()):
            why = "The store is slow or does not answer, or this process is overloaded."
            if attempt.lease.failure:
                why = f"The last renewal failed: {attempt.lease.failure}"
            warn(f"renewals at {location} are late: {_lease_of(attempt)} ends in {left:.4g} s. {why}")


def warn_of_missing_vote(attempt: Attempt, error: StoreError) -> None:
    """Log that a store gives no lease: the quorum may do without it, and then nobody else is told."""
    location = attempt.runtime.store.traits.location
    if not _warned_lately(f"vote {location}", attempt.runtime.now()):
        text = str(error.__cause__ if isinstance(error.__cause__, StoreError) else error)
        where = "" if location in text else f"{location}: "
        warn(f"a store has given no lease of lock {attempt.key!r}, which needs only a majority of them: {where}{text}")


def report_renewals(before: Iterable[tuple[Attempt, float, int]]) -> None:
    """Tell observers what a renewal has done to each, whose deadline and count of writes were these; log a failure."""
    for attempt, deadline, count in before:
        if attempt.ending or attempt.lease.lost:
            continue
        now = attempt.runtime.now()
        left = attempt.lease.deadline - now
        if attempt.lease.deadline > deadline:
            if attempt.after_renewal is not None:
                attempt.after_renewal()
            elif listens():
                tell("renewed", event_of(attempt, left))
        elif attempt.writes.count > count:  # it was sent
            location = attempt.runtime.store.traits.location
            if not _warned_lately(f"failed {location}", now):
                failure = attempt.lease.failure
                where = "" if location in failure else f" at {location}"
                why = f": {failure}" if failure else ""
                warn(
                    f"{_lease_of(attempt)}{where} could not be renewed; "
                    f"this is tried again until it ends, in {left:.4g} s{why}"
                )
            if attempt.after_renewal is None:
                tell("renewal_failed", event_of(attempt, left, attempt.lease.failure))


def _lease_of(attempt: Attempt) -> str:
    """Name a lease; the loss of one of several is not yet the loss of the lock."""
    return f"{'the' if attempt.after_renewal is None else 'one'} lease of lock {attempt.key!r}"


def _warned_lately(what: str, now: float) -> bool:
    """Whether a warning was logged in the last `QUIET` seconds; if not, note that it is logged now."""
    if now < _warned.get(what, -NEVER) + QUIET:
        return True
    _warned[what] = now
    return False


_warned: dict[str, float] = {}


def call_on_lost(on_lost: Callable[[H], object], hold: H) -> None:
    """Call the user's `on_lost`; no caller could catch its exception, so that is logged, with its traceback.

    SystemExit and the like are left to what runs this thread or event loop.
    """
    try:
        result = on_lost(hold)
    except Exception:  # noqa: BLE001 - a callback may raise whatever it likes
        log_error(f"the on_lost callback of lock {hold.key!r} raised an exception")
        return
    if isinstance(result, Coroutine):  # of an `async def` in a functools.partial, for example
        result.close()
        log_error(f"on_lost of lock {hold.key!r} returned a coroutine, which was not run: use a plain function")
