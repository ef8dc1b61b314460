"""The law of this file: three verbs on one versioned key are all that a lock may ask of a store.

Every verb answers with the entry that stands *after* the call (``None``: nothing stands).  So a lock asks one question
only, "who stands there now?", and a first attempt, a retry after a timeout and a re-entry are all the same code.

- ``put_if_version`` succeeded if, and only if, the entry that stands carries the value just written.
- Versions of a key never repeat and only grow, across removal, expiry and re-creation.
- An entry whose ttl is over does not stand.  The store's clock measures the ttl, and rounds it up where it is coarse.
- Every verb is one atomic request.  It raises `StoreUnavailable` where it may or may not have been applied, and
  `StoreError` where the store has refused it for certain.  Nothing else escapes.
- A value that caslock did not write is an entry like any other: it is never overwritten, for its version is not ours.

What a store can do beyond that is optional: `WakingStore`, `BatchingStore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

ABSENT: Final = 0
"""The version of a key under which nothing stands.  No entry ever has it."""

MAX_VALUE: Final = 4096
"""The largest value, in bytes, that a store must hold."""


class Entry(NamedTuple):
    """What stands under a key."""

    value: bytes
    version: int


WOKEN: Final = Entry(b"", ABSENT)
"""What `invalidate` may answer in place of None: nothing stands, and somebody who waits for the key was told so."""


class Put(NamedTuple):
    """One of several puts: the arguments of `Store.put_if_version`."""

    key: str
    value: bytes
    version: int
    ttl: float


class Removal(NamedTuple):
    """One of several removals: the arguments of `Store.invalidate`."""

    key: str
    version: int


class Traits(NamedTuple):
    """What a store promises beyond its verbs, and where its entries live."""

    place: str
    """Where the entries live, without any secret: the same text in every process that means the same place
    (``redis://localhost:6379/0``).  It stands in errors, and `MultiLock` sorts by it."""
    fences: bool = True
    """Whether versions only grow for the whole life of the place: only then can a version be a fencing number."""
    expires: bool = True
    """Whether the store ends leases by itself."""
    overstay: float = 0.05
    """Seconds that an entry may stand longer than its ttl, because the store's clock is coarse."""


@runtime_checkable
class Store(Protocol):
    """A place that holds one versioned value under each key, for code that blocks.  Safe to share between threads."""

    @property
    def traits(self) -> Traits:
        """What this store promises."""
        ...

    def get(self, key: str) -> Entry | None:
        """Read what stands under `key`, from the primary."""
        ...

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds if exactly `version` stands (`ABSENT`: if nothing stands)."""
        ...

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove what stands under `key` if its version is exactly `version`."""
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """The same three verbs for asyncio."""

    @property
    def traits(self) -> Traits:
        """What this store promises."""
        ...

    def get(self, key: str) -> Awaitable[Entry | None]:
        """See `Store.get`."""
        ...

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Awaitable[Entry | None]:
        """See `Store.put_if_version`."""
        ...

    def invalidate(self, key: str, version: int) -> Awaitable[Entry | None]:
        """See `Store.invalidate`."""
        ...


@runtime_checkable
class WakingStore(Protocol):
    """A store that can tell a waiter that a key was let go of."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Put as one that expects `ABSENT` does, at once if nothing stands, else when what stands has been removed.

        All in one request: what wakes the waiter also writes for it.  Where others wait it may line up behind them even
        if nothing stands at this moment, for one of them has just been woken.  Who waits stands in line for the next
        `invalidate` that removes something, whoever holds the key until then: one removal wakes one waiter, first
        come, first served; a put and an expiry need wake nobody.  After `timeout` seconds, and now and then for no
        reason, it puts all the same, and that tells who stands there.  A waiter that dies may take a wake-up with it.
        Answers as `put_if_version` does, when nothing of it can land any more; the `ttl` counts from the write.
        Raises ``StoreUnavailable(sent=False)``, at once, where it can't wait now (too many wait already): the caller
        sleeps as it would without.
        """
        ...


@runtime_checkable
class BatchingStore(Protocol):
    """A store that can apply several requests as one.

    The answers are those of `Store`'s verbs, one for each, in order; None: these can't travel together (their keys
    live on several nodes, say), and nothing was sent.  Of one request's keys none comes twice.
    """

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """Write all of them if every one's version stands, else none, in one atomic request."""
        ...

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """Remove each whose version stands, in one atomic request."""
        ...


@runtime_checkable
class AsyncWakingStore(Protocol):
    """The same for asyncio."""

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Awaitable[Entry | None]:
        """See `WakingStore.put_when_free`."""
        ...


@runtime_checkable
class AsyncBatchingStore(Protocol):
    """The same for asyncio."""

    def put_many(self, puts: Sequence[Put]) -> Awaitable[Sequence[Entry | None] | None]:
        """See `BatchingStore.put_many`."""
        ...

    def invalidate_many(self, removals: Sequence[Removal]) -> Awaitable[Sequence[Entry | None] | None]:
        """See `BatchingStore.invalidate_many`."""
        ...
