"""What the error of a refused acquire says: who has the key, and how long it was waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.local.linger import is_kept

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.protocol.attempt import Attempt

BY_OURSELVES: Final = "by this thread or task through another Lock object: use one Lock, or give both the same owner"


def waited(now: float, began: float, since: float | None) -> str:
    """Say how long; `since`: when a MultiLock began to wait for all its keys."""
    if since is None:
        return f"(waited {now - began:.3g} s)"
    return f"(waited {now - since:.3g} s for all keys, the last {now - began:.3g} s for this one)"


def in_use(attempt: Attempt, inside: Iterable[Attempt], time: str) -> str:
    """Say which attempt of this process, of those inside its local queue, has the key."""
    for other in inside:
        record = other.lease.record
        lock = f"lock {attempt.key!r} at {attempt.runtime.store.traits.location}"
        if other is not attempt and record is not None:
            if is_kept(other):
                return f"{lock} is still being released by this process {time}"
            where = BY_OURSELVES if other.caller is attempt.caller else "in another thread or task of this process"
            return f"{lock} is held by {record}, {where} {time}"
    return f"another thread or task of this process is waiting for lock {attempt.key!r} {time}"


def busy(attempt: Attempt, time: str) -> str:
    """Say who holds the key at the store."""
    holder = None if attempt.contention is None else attempt.contention.observed.record
    if holder is None or holder.free:
        return f"lock {attempt.key!r} kept changing hands {time}"
    return f"lock {attempt.key!r} at {attempt.runtime.store.traits.location} is held by {holder} {time}"
