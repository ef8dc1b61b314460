"""What the error of a refused acquire says: who has the key, and how long it was waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.errors import NotAcquired
from caslock.local import linger
from caslock.protocol.record import NOTHING, Observed, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.protocol.attempt import Attempt

BY_OURSELVES: Final = "by this thread or task through another Lock object: use one for both, or leave out the inner one"


class Waited(NamedTuple):
    """How long an acquire has waited."""

    now: float
    began: float
    """When it began to wait for this key."""
    since: float | None
    """When a MultiLock began to wait for all its keys."""

    @property
    def seconds(self) -> float:
        """For all keys."""
        return self.now - (self.began if self.since is None else self.since)

    def __str__(self) -> str:
        """Say so."""
        rest = "" if self.since is None else f" for all keys, the last {_seconds(self.now - self.began)} for this one"
        return f"(waited {_seconds(self.seconds)}{rest})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def in_use(attempt: Attempt, inside: Iterable[Attempt], waited: Waited) -> NotAcquired:
    """Say which attempt of this process, of those inside its local queue, has the key."""
    for other in inside:
        record = other.lease.record
        lock = f"lock {attempt.key!r} at {attempt.runtime.store.traits.location}"
        if other is not attempt and record is not None:
            where = "in another thread or task of this process"
            text = f"{lock} is held by {record}, {BY_OURSELVES if other.caller is attempt.caller else where}"
            if other in linger.lingering:
                text = f"{lock} is still being released by this process"
            return _refused(attempt, text, Observed(other.lease.fence, record), waited)
    text = f"another thread or task of this process is waiting for lock {attempt.key!r}"
    return _refused(attempt, text, NOTHING, waited)


def busy(attempt: Attempt, waited: Waited) -> NotAcquired:
    """Say who holds the key at the store."""
    observed = NOTHING if attempt.contention is None else attempt.contention.observed
    holder = observed.record
    if holder is not None and holder.shares:  # it may say that we wait to write
        others = tuple([share for share in holder.shares if share.hold != attempt.hold_id])
        holder = holder._replace(holds=tuple([share.hold for share in others]), shares=others)
        observed = observed._replace(record=holder)
    if holder is None or holder.free:
        return _refused(attempt, f"lock {attempt.key!r} kept changing hands", NOTHING, waited)
    text = f"lock {attempt.key!r} at {attempt.runtime.store.traits.location} is held by {holder}"
    return _refused(attempt, text, observed, waited)


def _refused(attempt: Attempt, text: str, observed: Observed, waited: Waited) -> NotAcquired:
    error = attempt.concerns(NotAcquired(f"{text} {waited}"))
    error.waited = waited.seconds
    if observed.record is not None:
        error.holder = shown(observed.record, observed.fence, fences=attempt.runtime.store.traits.fences)
    return error
