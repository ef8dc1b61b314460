"""The law of this file: the core's coroutines run to their end in the calling thread; none of them ever suspends."""

from __future__ import annotations

import contextlib
import threading
import time
from _thread import RLock
from typing import TYPE_CHECKING, Self, TypeVar, cast

from caslock import clock
from caslock.checks import has_verbs, suspends
from caslock.keeper import Keeper, unwatch, watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from caslock.claim import Claim
    from caslock.store import BatchingStore, Entry, Put, Removal, Store, Traits, WakingStore

T = TypeVar("T")


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # typeshed gives StopIteration.value as Any
    coroutine.close()
    message = "a store for the blocking API must not suspend: is it an AsyncStore?"
    raise RuntimeError(message)


class ThreadMutex(RLock):  # type: ignore[misc] # typeshed has it as final; CPython and PyPy have not
    """A `threading.RLock` that the core can wait for: an interrupt as it is taken can't block its own thread."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        """Wait."""
        self.acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let the next one in."""
        self.release()

    def mend(self) -> None:
        """After an interrupt that struck as this thread took it or gave it back: give it back."""
        with contextlib.suppress(RuntimeError):
            while True:
                self.release()


class ThreadWorld:
    """What the core needs, for code that blocks."""

    def __init__(self, store: object) -> None:
        """Check that the store is one."""
        if not has_verbs(store):
            message = (
                f"a store has get, put_if_version, invalidate and traits; {type(store).__name__} has not: "
                "make one with caslock.connect(url) or a class in caslock.stores"
            )
            raise TypeError(message)
        store = cast("Store", store)
        if suspends(store.get):
            message = f"{type(store).__name__} is an AsyncStore: use it with AsyncLock, or a blocking store with Lock"
            raise TypeError(message)
        self.home = store
        self.keeper: Keeper | None = None  # of the last hold
        self.store = immediate = _Immediate(store)
        self.waking = immediate if hasattr(store, "put_when_free") else None
        self.batching = immediate if hasattr(store, "put_many") else None

    now = staticmethod(clock.now)

    async def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - these coroutines block by design

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nothing can cancel a thread."""
        await work()

    def me(self) -> object:
        """Give an object of the thread: unlike its name and number, it is never used again."""
        return _thread.me

    def event(self) -> ThreadEvent:
        """Make an event for one who waits at a turnstile."""
        return ThreadEvent()

    def ended(self, claim: Claim) -> bool:
        """Tell that the keeper outlives the threads."""
        del claim
        return False

    mutex = ThreadMutex
    run = staticmethod(run)
    watch, unwatch = watch, unwatch


class _Thread(threading.local):
    def __init__(self) -> None:
        self.me = object()


_thread = _Thread()


class ThreadEvent:
    """A bare lock that is free once it is set, and taken by who waits: a `threading.Event` has ten times the steps."""

    __slots__ = ("_lock",)
    alive = True

    def __init__(self) -> None:
        """Begin as not set."""
        self._lock = threading.Lock()
        self._lock.acquire()

    async def wait(self, timeout: float | None) -> None:
        """Block the thread."""
        self._lock.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))

    def set(self) -> None:
        """Wake the thread."""
        if self._lock.locked():
            with contextlib.suppress(RuntimeError):  # another has set it at this very moment
                self._lock.release()


def mend(claim: Claim) -> None:
    """After an interrupt, see to it that the claim's mutex keeps nobody else waiting."""
    if isinstance(claim.mutex, ThreadMutex):
        claim.mutex.mend()


class _Immediate:
    """A blocking store as the core sees it: verbs to await that never suspend."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def traits(self) -> Traits:
        return self._store.traits

    async def get(self, key: str) -> Entry | None:
        return self._store.get(key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return self._store.put_if_version(key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return self._store.invalidate(key, version)

    async def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        return cast("WakingStore", self._store).put_when_free(key, value, ttl, timeout)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        return cast("BatchingStore", self._store).put_many(puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        return cast("BatchingStore", self._store).invalidate_many(removals)
