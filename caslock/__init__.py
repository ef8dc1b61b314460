"""A distributed lock that is safe to retry, on the store you already run."""

from caslock.aio import AsyncHold, AsyncLock, AsyncMultiHold, AsyncMultiLock
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
