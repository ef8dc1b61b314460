"""The store contract: what caslock needs of a place that keeps locks, and what such a place may offer beyond that.

A store keeps one value under each key, and gives each write a version.  It needs `Traits` and three verbs (`Store`, or
`AsyncStore` for asyncio), and it must keep these rules:

1. Every verb returns the entry under the key after the call, or None if there is none.  A lock therefore asks only "who
   is there now?": a first attempt, a retry after a timeout and a re-entry are the same code.
2. Every verb is one atomic effect.  ``put_if_version`` succeeded if and only if the entry that it returns has the value
   just written.
3. The versions of a key never repeat and only grow, also across removal, expiry and re-creation.  If a store can only
   promise that they never repeat, its ``traits.fences`` is False.
4. The ttl is measured by the store's clock, and rounded up if that clock is coarse.  An expired entry is not there.
   If the store can't do that, its ``traits.expires`` is False, and an entry stays.
5. A key is a str of 1 to 1,024 characters of any kind, a value is up to `MAX_VALUE` bytes.  A store whose keys are more
   restricted encodes them so that no two keys collide and no key is read as a command.
6. A verb ends within one request timeout, including the time to connect, whatever the server does.  The client library
   must not retry on its own, and a request that was given up must not take effect long afterwards.
7. Besides ValueError and TypeError for bad arguments, a verb raises two errors.  The client's own exception is their
   ``__cause__``.

    - `StoreError`: the request was certainly refused.  Nothing was applied.
    - `StoreUnavailable`: there was no answer, or one that says "try again".  The request may have been applied.  With
      ``sent=False``, it certainly never left this process (connection refused, no connection free).  Every verb must
      say so if it is true, because otherwise the outcome counts as unknown.

8. A connection is closed and never reused after any BaseException, because a late reply would answer the next request.
9. A forked child uses no connection of its parent.
10. ``close()`` (for asyncio ``aclose()``) closes the connections.  It may be called twice, and ``with`` calls it.  A
    later request, such as that of a clean-up in the background, opens a new one, and should leave none open.

`caslock.testing.StoreContract` tests all of this.  Everything below `AsyncStore` is optional: `WatchingStore`,
`QueueingStore`, `BatchingStore`, `ListingStore` and `IdentifiedStore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
    from types import TracebackType

ABSENT: Final = 0
"""The version that means "there is no entry".  No entry ever has it."""

MAX_KEY: Final = 1024
"""The longest key, in characters."""

MAX_VALUE: Final = 4096
"""The largest value, in bytes, that a store must keep."""


class Entry(NamedTuple):
    """The value under a key, and its version."""

    value: bytes
    """What was written."""
    version: int
    """Changed by each write; never `ABSENT`."""


class Traits(NamedTuple):
    """Where a store keeps its entries, and what it promises about them."""

    location: str
    """Where the entries are, without any secret, such as ``redis://localhost:6379/0``: the same text in every process
    that uses the same place.  It appears in errors, and `MultiLock` sorts by it if the store is not an
    `IdentifiedStore`."""
    fences: bool = True
    """Whether the versions of a key only grow, for as long as the place exists.  Only then is a version a fencing
    number."""
    expires: bool = True
    """Whether the store ends leases by itself.  If not, an entry stays until it is written over or removed, and a lock
    that waits takes the key over once it has seen one version for a whole ttl (`caslock.protocol.observation`).  A
    process remembers what it has seen by location and key, so two places must not share a location then."""
    expiry_lag: float = 0.05
    """Seconds by which an entry may outlast its ttl because the store's clock is coarse."""
    request_timeout: float = 2.0
    """Seconds within which every verb returns or raises, including the time to connect.  Even if the server hangs, an
    acquire returns within its own timeout plus two of these, and a release within three."""


@runtime_checkable
class Store(Protocol):
    """The three verbs that a blocking lock needs.  Safe to share between threads."""

    @property
    def traits(self) -> Traits:
        """Where the entries are, and what the store promises about them."""
        ...

    def get(self, key: str) -> Entry | None:
        """Read the entry under `key`, from the primary.

        Raises `StoreUnavailable` and `StoreError`, as described above.
        """
        ...

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds if the entry under `key` has exactly `version` (`ABSENT`: if there is none).

        Raises `StoreUnavailable` and `StoreError`, as described above.
        """
        ...

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove the entry under `key` if it has exactly `version`.

        Raises `StoreUnavailable` and `StoreError`, as described above.
        """
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """The same three verbs for asyncio."""

    @property
    def traits(self) -> Traits:
        """Where the entries are, and what the store promises about them."""
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
class WatchingStore(Protocol):
    """A store that can wait for an entry to change.  Without it, a waiting lock polls the key."""

    def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        """Return when the entry under `key` may no longer have `version`, and no later than after `timeout` seconds.

        `version` is that of an entry, never `ABSENT`.  The wait must end soon after a removal or another write, and at
        once if either came before it began.  It may return early without a reason, and need not notice an expiry.  It
        leaves the entry as it is, and what a waiter that dies leaves behind expires; any number of waiters end at the
        same change.

        A store that has read the key as the wait ended may return the entry that it found: that saves a semaphore a
        request.  None says nothing of what is there.

        It ends within `timeout` plus one request timeout.  Raises what `Store.get` raises; `StoreUnavailable` with
        ``sent=False``, at once, if no further waiter can be served now: the caller then sleeps instead.
        """
        ...


@runtime_checkable
class AsyncWatchingStore(Protocol):
    """The same for asyncio."""

    def wait_while(self, key: str, version: int, timeout: float) -> Awaitable[Entry | None]:
        """See `WatchingStore.wait_while`."""
        ...


WOKEN: Final = Entry(b"", ABSENT)
"""May be returned by `Store.invalidate` instead of None: the entry was removed and a waiter was woken."""


@runtime_checkable
class QueueingStore(Protocol):
    """A store that can queue waiters, and write for the first of them when the entry is removed.

    A `Lock` prefers it to `wait_while`: the waiter has the key after one request, and no other waiter is woken.
    Semaphores, read-write locks and those who watch an election use `wait_while` alone.
    """

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Put `value` for `ttl` seconds as soon as there is no entry under `key`.

        It puts at once if there is no entry (if others are queued it may queue behind them: one of them has just been
        woken).  Otherwise it waits for an `invalidate` that removes an entry, whoever put it.  One removal wakes
        one waiter, first come, first served; another put and an expiry need not wake anybody.  After `timeout` seconds,
        or earlier without a reason, it puts as with `ABSENT`, and so returns the entry that is there.

        It returns what `Store.put_if_version` would, once nothing of it can take effect any more.  The ttl counts from
        the write.  If a waiter dies, one wake-up may be lost.

        It ends within `timeout` plus one request timeout.  Raises what `Store.put_if_version` raises;
        `StoreUnavailable` with ``sent=False``, at once, if no further waiter can be served now: the caller then sleeps
        instead.
        """
        ...


@runtime_checkable
class AsyncQueueingStore(Protocol):
    """The same for asyncio."""

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Awaitable[Entry | None]:
        """See `QueueingStore.put_when_absent`."""
        ...


class Put(NamedTuple):
    """One of several puts: the arguments of `Store.put_if_version`."""

    key: str
    """The key."""
    value: bytes
    """What to write."""
    version: int
    """Which version must be there; `ABSENT`: none."""
    ttl: float
    """Seconds until the entry expires."""


class Removal(NamedTuple):
    """One of several removals: the arguments of `Store.invalidate`."""

    key: str
    """The key."""
    version: int
    """Which version must be there."""


@runtime_checkable
class BatchingStore(Protocol):
    """A store that can apply several requests as one atomic request.

    The answers are those of the single verbs, in order.  None: these keys cannot be changed together (for example, they
    are on different nodes), and nothing was sent.  No key appears twice in one request.
    """

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """Write all of them if every one finds its version, otherwise none.  Raises what `Store` does."""
        ...

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """Remove each entry that has the version named for it.  Raises what `Store` does."""
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


@runtime_checkable
class ListingStore(Protocol):
    """A store that can list its entries.  For inspection only; the protocol never calls it."""

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """Yield each key that begins with `prefix`, and its entry, in any order; every key if `prefix` is empty.

        The keys are those that `Store.get` takes, and each comes at most once.  What `Store.get` would not return, such
        as a removed or an expired entry, is left out; what it would return is included, also a value that caslock did
        not write, because it keeps others from the key.  An entry that exists throughout the iteration is included; one
        that comes or goes meanwhile may be.

        Each step raises what `Store.get` raises.
        """
        ...


@runtime_checkable
class AsyncListingStore(Protocol):
    """The same for asyncio: an asynchronous generator."""

    def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """See `ListingStore.list`."""
        ...


@runtime_checkable
class IdentifiedStore(Protocol):
    """A store that can identify its server independently of its address.

    A `MultiLock` over several stores sorts by it, and takes a key once if two of its stores share it.  Without it,
    `Traits.location` has to tell them apart.
    """

    def identify(self) -> str | None:
        """Return the server's own name for itself: the same text in every process, and never that of another server.

        It costs one request, and another one after each new connection.  None: the server has no such name.  Raises
        what `Store.get` raises.
        """
        ...

    def stored_name(self, key: str) -> str:
        """Return the name under which the server keeps `key`, with all prefixes.  It sends no request."""
        ...


@runtime_checkable
class AsyncIdentifiedStore(Protocol):
    """The same for asyncio."""

    def identify(self) -> Awaitable[str | None]:
        """See `IdentifiedStore.identify`."""
        ...

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        ...


@runtime_checkable
class ClosableStore(Store, Protocol):
    """What `caslock.connect` returns: ``with`` closes it, and ``async with`` where it serves `AsyncLock`."""

    def close(self) -> None:
        """Close the connections.  A later request opens a new one."""
        ...

    def __enter__(self) -> Self:
        """Return the store."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        """Close the store."""
        ...

    async def aclose(self) -> None:
        """See `close`."""
        ...

    async def __aenter__(self) -> Self:
        """Return the store."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        """Close the store."""
        ...


@runtime_checkable
class AsyncClosableStore(AsyncStore, Protocol):
    """What `caslock.connect_async` returns where there is a store for asyncio."""

    async def aclose(self) -> None:
        """Close the connections of the running loop.  A later request opens a new one."""
        ...

    async def __aenter__(self) -> Self:
        """Return the store."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        """Close the store."""
        ...


def check_key(key: str) -> bytes:
    """Return a key as UTF-8; raises TypeError for another type, ValueError for a bad length or a lone surrogate."""
    if not isinstance(key, str):
        raise TypeError(f"key must be a str, not {type(key).__name__}: caslock.key() makes one of ids and names")
    if not 1 <= len(key) <= MAX_KEY:
        raise ValueError(f"key must be 1 to {MAX_KEY:,} characters long, not {len(key):,}")
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the key contains a lone surrogate, at index {error.start}") from None


def check_put(value: bytes, ttl: float, longest: float) -> None:
    """Raise ValueError for a value or a ttl that can't be kept; `longest` is the longest ttl of the store."""
    if len(value) > MAX_VALUE:
        raise ValueError(f"a value must be at most {MAX_VALUE} bytes long, not {len(value)}")
    if not 0 < ttl <= longest:
        raise ValueError(f"ttl must be more than 0 and at most {longest:,} seconds, not {ttl!r}")
