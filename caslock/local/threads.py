"""The runtime of the blocking API: the protocol's coroutines run to their end in the calling thread.

None of them ever suspends, because the store, the clock and sleep block instead.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from caslock.local import clock, linger
from caslock.local.finishing import finished, stop_renewals
from caslock.local.settings import check_store, suspends
from caslock.local.shared import Shared, shared_of
from caslock.local.thread_renewer import report_loss, watch
from caslock.local.workers import Workers, run
from caslock.protocol.clean_up import CleanUp, run_clean_ups
from caslock.protocol.observation import ObservingStore
from caslock.protocol.sightings import OF_QUARANTINES

if TYPE_CHECKING:
    import asyncio
    from _thread import RLock
    from collections.abc import Callable, Coroutine, Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt
    from caslock.store import (
        AsyncBatchingStore,
        AsyncQueueingStore,
        AsyncStore,
        AsyncWatchingStore,
        BatchingStore,
        Entry,
        IdentifiedStore,
        Put,
        QueueingStore,
        Removal,
        Store,
        Traits,
        WatchingStore,
    )

T = TypeVar("T")


def running_task() -> asyncio.Task[object] | None:
    """Return the asyncio task that runs in this thread, if any; asyncio itself is not imported for that."""
    try:
        imported = sys.modules["asyncio"]
        running, current = imported._get_running_loop, imported.current_task
    except (KeyError, AttributeError):  # not imported yet, or another thread is importing it
        return None
    task: asyncio.Task[object] | None = None if running() is None else current()
    return task


if not TYPE_CHECKING:
    RLock = type(threading.RLock())  # that of `_thread`; under gevent, one for greenlets


class ThreadMutex(RLock):  # type: ignore[misc] # typeshed has it as final; CPython and PyPy have not
    """A `threading.RLock` that a coroutine can wait for: an interrupt as it is taken can't block its own thread."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        """Wait."""
        self.acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""
        self.release()

    def mend(self) -> None:
        """Give it back after an interrupt that struck as this thread took it or gave it back."""
        with contextlib.suppress(RuntimeError):
            while True:
                self.release()


class ThreadEvent:
    """A bare lock that is free once it is set, and taken by the waiter: a `threading.Event` has ten times the steps."""

    __slots__ = ("_lock",)

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
            try:  # noqa: SIM105 - `suppress` takes three calls more
                self._lock.release()
            except RuntimeError:  # another has set it at this very moment
                pass


class ThreadRuntime:
    """What the protocol needs, for code that blocks."""

    def __init__(self, shared: Shared) -> None:
        """Check that the store is one."""
        check_store(shared.store, "connect")
        store = cast("Store", shared.store)
        self.shared = shared
        self.quarantines = OF_QUARANTINES
        if suspends(store.get):
            message = f"{type(store).__name__} is an AsyncStore: use it with AsyncLock, or a blocking store with Lock"
            raise TypeError(message)
        self.home: Store = store
        immediate = _Immediate(store)
        self.patience: float = immediate.traits.request_timeout
        observing = None if immediate.traits.expires else ObservingStore(immediate, self.now)
        self.store: AsyncStore = observing or immediate
        self.direct: Store | _Observing = _Observing(observing, store) if observing else store
        self.watching: AsyncWatchingStore | None = immediate if hasattr(store, "wait_while") else None
        self.queueing: AsyncQueueingStore | None = immediate if hasattr(store, "put_when_absent") else None
        self.batching: AsyncBatchingStore | None = immediate if hasattr(store, "put_many") else None

    now: staticmethod[[], float] = staticmethod(clock.now)

    @property
    def renewing(self) -> ThreadRuntime:
        """The same: renewals have threads of their own."""
        return self

    async def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - these coroutines block by design

    def in_background(self, act: Callable[[float], Coroutine[object, object, object]], seconds: float) -> None:
        """Run it in the one thread that does so for this store, unless the interpreter ends."""
        if not sys.is_finalizing():
            clean_ups = self.shared.part("not cleaned up", deque[CleanUp])
            clean_ups.append(CleanUp(act, self.now() + seconds))
            cleaner = self.shared.part("clean-ups", partial(Workers, "caslock-clean-up", 1))
            cleaner.do(lambda: run(run_clean_ups(self, clean_ups)), here=False)

    def start(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run what `work` returns in one of the threads of the store."""
        self.shared.part("beside", partial(Workers, "caslock-beside", MOST_BESIDE)).do(lambda: run(work()))

    def per_loop(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that gives the same to all threads."""
        made = make()
        return lambda: made

    def me(self) -> object:
        """Return an object of the thread: unlike its name and number, it is never reused."""
        return _thread.me

    def ended(self, attempt: Attempt) -> bool:
        """Always False: the thread that renews outlives the others."""
        del attempt
        return False

    report_loss: staticmethod[[Attempt], None] = staticmethod(report_loss)
    watch: staticmethod[[Attempt], None] = staticmethod(watch)

    mutex = ThreadMutex
    event = ThreadEvent


def thread_runtime(store: object) -> ThreadRuntime:
    """Return the runtime of all blocking locks on `store`; raises TypeError unless it is a blocking store."""
    return shared_of(store).runtime(ThreadRuntime)


MOST_FINISHING: Final = 4
"""Threads that finish what was interrupted at one store at one time."""

MOST_BESIDE: Final = 32
"""Threads that acquire and release for QuorumLocks, or give up what lingers, at one store at one time."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.me = object()


_thread = _Thread()


def mend(attempt: Attempt) -> None:
    """After an interrupt, give back the attempt's mutex if this thread has it."""
    if isinstance(attempt.mutex, ThreadMutex):
        attempt.mutex.mend()


def finish(
    holds: Sequence[Holding], work: Callable[[], Coroutine[object, object, object]], interrupt: BaseException
) -> None:
    """Finish what an interrupt has cut short, in a thread that no signal interrupts, and wait for that.

    At a store that does not answer, it ends within two request timeouts, a release within three.  A second interrupt
    ends the wait only; if the program then ends, the thread ends with it.
    """
    stop_renewals(holds)
    for hold in holds:
        mend(hold._attempt)
    if not holds:  # nothing had begun
        return
    done = ThreadEvent()

    def job() -> None:
        try:
            run(finished(work, interrupt))
        finally:
            done.set()

    shared = cast("Shared", holds[0]._attempt.runtime.shared)
    shared.part("finisher", partial(Workers, "caslock-finisher", MOST_FINISHING)).do(job)
    run(done.wait(None))


class _Observing:
    """The verbs of a store that is observed which change something, to call; a removal needs no observation."""

    __slots__ = ("_store", "invalidate")

    def __init__(self, store: ObservingStore, home: Store) -> None:
        self._store = store
        self.invalidate: Callable[[str, int], Entry | None] = home.invalidate

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return run(self._store.put_if_version(key, value, version, ttl))


class _Immediate:
    """A blocking store as the protocol sees it: verbs to await that never suspend."""

    __slots__ = ("_store", "traits")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.traits: Traits = store.traits

    async def identify(self) -> str | None:
        return cast("IdentifiedStore", self._store).identify()

    async def get(self, key: str) -> Entry | None:
        return self._store.get(key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return self._store.put_if_version(key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return self._store.invalidate(key, version)

    async def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        return cast("WatchingStore", self._store).wait_while(key, version, timeout)

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        return cast("QueueingStore", self._store).put_when_absent(key, value, ttl, timeout)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        return cast("BatchingStore", self._store).put_many(puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        return cast("BatchingStore", self._store).invalidate_many(removals)


def _end_what_lingers() -> None:
    """At the end of the interpreter, release what else would stay until its lease ends."""
    began = clock.now()
    for attempt in tuple(linger.lingering):
        state, limit = linger.lingering.get(attempt), began + attempt.runtime.patience
        if state is not None and clock.now() < limit:  # else its lease ends it
            run(linger.give_up(state, attempt, limit))


atexit.register(_end_what_lingers)
