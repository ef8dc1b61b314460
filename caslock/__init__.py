"""A distributed lock that is safe to retry, on the store you already run."""

from typing import TYPE_CHECKING

from caslock.blocking import (
    Hold,
    Lock,
    MultiHold,
    MultiLock,
    QuorumLock,
    ReadWriteLock,
    Semaphore,
    SemaphoreHold,
    WriteHold,
)
from caslock.connect import connect, connect_async
from caslock.errors import (
    CaslockError,
    LockLost,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from caslock.observer import LockEvent, Observer, log_long_waits, observe
from caslock.protocol.attempt import Retry
from caslock.protocol.record import Record
from caslock.store import (
    ABSENT,
    AsyncBatchingStore,
    AsyncClosableStore,
    AsyncIdentifiedStore,
    AsyncListingStore,
    AsyncQueueingStore,
    AsyncStore,
    AsyncWatchingStore,
    BatchingStore,
    ClosableStore,
    Entry,
    IdentifiedStore,
    ListingStore,
    Put,
    QueueingStore,
    Removal,
    Store,
    Traits,
    WatchingStore,
)

if TYPE_CHECKING:
    from caslock.aio import (
        AsyncHold,
        AsyncLock,
        AsyncMultiHold,
        AsyncMultiLock,
        AsyncQuorumLock,
        AsyncReadWriteLock,
        AsyncSemaphore,
        AsyncSemaphoreHold,
        AsyncWriteHold,
    )
    from caslock.async_election import AsyncElection
    from caslock.decorator import current_hold, locked
    from caslock.election import Election
    from caslock.keys import key

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "AsyncBatchingStore",
    "AsyncClosableStore",
    "AsyncElection",
    "AsyncHold",
    "AsyncIdentifiedStore",
    "AsyncListingStore",
    "AsyncLock",
    "AsyncMultiHold",
    "AsyncMultiLock",
    "AsyncQueueingStore",
    "AsyncQuorumLock",
    "AsyncReadWriteLock",
    "AsyncSemaphore",
    "AsyncSemaphoreHold",
    "AsyncStore",
    "AsyncWatchingStore",
    "AsyncWriteHold",
    "BatchingStore",
    "CaslockError",
    "ClosableStore",
    "Election",
    "Entry",
    "Hold",
    "IdentifiedStore",
    "ListingStore",
    "Lock",
    "LockEvent",
    "LockLost",
    "MultiHold",
    "MultiLock",
    "NotAcquired",
    "NotHeld",
    "Observer",
    "OutcomeUnknown",
    "Put",
    "QueueingStore",
    "QuorumLock",
    "ReadWriteLock",
    "Record",
    "Removal",
    "Retry",
    "Semaphore",
    "SemaphoreHold",
    "StaleFence",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Traits",
    "WatchingStore",
    "WriteHold",
    "connect",
    "connect_async",
    "current_hold",
    "key",
    "locked",
    "log_long_waits",
    "observe",
]

_LATER = {
    "AsyncElection": "async_election",
    "Election": "election",
    "current_hold": "decorator",
    "key": "keys",
    "locked": "decorator",
}
"""The modules of names that are not imported above; all others are in `caslock.aio`."""


def __getattr__(name: str) -> object:
    """Import asyncio, which takes longer than everything else, and what is seldom used, only at its use (PEP 562)."""
    if name not in __all__:
        message = f"module 'caslock' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"caslock.{_LATER.get(name, 'aio')}"), name)


def __dir__() -> list[str]:
    """Include what `__getattr__` would import."""
    return sorted({*globals(), *__all__})
