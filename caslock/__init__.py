"""A distributed lock that is safe to retry, on the store you already run."""

from typing import TYPE_CHECKING

from caslock.blocking import Hold, Lock, MultiHold, MultiLock
from caslock.claim import Retry
from caslock.connect import connect, connect_async
from caslock.errors import (
    CaslockError,
    LockLost,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from caslock.record import Record
from caslock.store import ABSENT, AsyncStore, Entry, Store, Traits

if TYPE_CHECKING:
    from caslock.aio import AsyncHold, AsyncLock, AsyncMultiHold, AsyncMultiLock

__all__ = [
    "ABSENT",
    "AsyncHold",
    "AsyncLock",
    "AsyncMultiHold",
    "AsyncMultiLock",
    "AsyncStore",
    "CaslockError",
    "Entry",
    "Hold",
    "Lock",
    "LockLost",
    "MultiHold",
    "MultiLock",
    "NotAcquired",
    "NotHeld",
    "OutcomeUnknown",
    "Record",
    "Retry",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Traits",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> object:
    """Import asyncio, which takes longer than all the rest, only for who uses it (PEP 562)."""
    if name not in {"AsyncHold", "AsyncLock", "AsyncMultiHold", "AsyncMultiLock"}:
        message = f"module 'caslock' has no attribute {name!r}"
        raise AttributeError(message)
    from caslock import aio  # noqa: PLC0415 - see above

    return getattr(aio, name)
