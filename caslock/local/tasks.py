"""The runtime of the asyncio API.  What a cancellation cuts short is finished in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar, cast

from caslock.local import clock
from caslock.local.finishing import finished, stop_renewals
from caslock.local.in_threads import QUEUE_SHARE, InThreads
from caslock.local.schedule import MOST_RENEWING
from caslock.local.settings import check_store, suspends
from caslock.local.shared import Shared, shared_of
from caslock.local.task_renewer import renewer_of, report_loss
from caslock.process.loop_end import PerLoop
from caslock.protocol.clean_up import CleanUp
from caslock.protocol.observation import ObservingStore
from caslock.protocol.sightings import OF_QUARANTINES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt
    from caslock.store import (
        AsyncBatchingStore,
        AsyncQueueingStore,
        AsyncStore,
        AsyncWatchingStore,
    )


P = ParamSpec("P")
T = TypeVar("T")

MOST_ASKING: Final = 32
"""Threads that send requests to one blocking store at one time, beside those that renew; and as many that wait."""


class TaskMutex:
    """A mutex for tasks of any event loop that can also be taken without waiting."""

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[TaskEvent] = []

    def acquire(self, *, blocking: Literal[False]) -> bool:
        """Take it, if nobody has it."""
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        """Wake all waiters: the first that runs takes it."""
        with contextlib.suppress(RuntimeError):  # the attempt's loop was closed, and another has released the key
            self._lock.release()
        for event in tuple(self._waiting):
            event.set()

    async def __aenter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        event = TaskEvent()
        self._waiting.append(event)
        try:
            while not self._lock.acquire(blocking=False):
                await event.wait(None)
        finally:
            self._waiting.remove(event)

    async def __aexit__(self, *error: object) -> None:
        self.release()


class TaskEvent:
    """An event for one task of the running loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()

    async def wait(self, timeout: float | None) -> None:
        """Let other tasks run."""
        await asyncio.wait([self._future], timeout=timeout)
        if self._future.done():
            self._future = self._loop.create_future()

    def set(self) -> None:
        """Wake the task, in whatever loop it waits."""
        if _running_loop() is self._loop:
            self._wake()
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed at this very moment
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def this_task() -> asyncio.Task[object]:
    """Return the task that runs."""
    task = asyncio.current_task()
    if task is None:
        message = "AsyncLock must be used inside an asyncio task"
        raise RuntimeError(message)
    return task


class TaskRuntime:
    """What the protocol needs, for asyncio."""

    def __init__(self, shared: Shared) -> None:
        """Check that the store is one."""
        self.shared: Shared = shared
        self.quarantines = OF_QUARANTINES
        store = shared.store
        check_store(store, "connect_async")
        self.home: object = store
        native = suspends(getattr(store, "get", None))
        asked = cast("AsyncStore", store) if native else InThreads(shared, "requests", MOST_ASKING)
        self.store: AsyncStore = asked if asked.traits.expires else ObservingStore(asked, self.now)
        # A request timeout, without the time for which the last request may wait for a thread.
        self.patience: float = (1.0 if native else 1.0 - QUEUE_SHARE) * self.store.traits.request_timeout
        # A wait in a blocking store occupies its thread all that time, so waits have threads of their own.
        waiting = cast("AsyncWatchingStore", store) if native else InThreads(shared, "waits", MOST_ASKING)
        self.watching: AsyncWatchingStore | None = waiting if hasattr(store, "wait_while") else None
        self.queueing: AsyncQueueingStore | None = (
            cast("AsyncQueueingStore", store) if native and hasattr(store, "put_when_absent") else None
        )
        self.batching: AsyncBatchingStore | None = (
            cast("AsyncBatchingStore", asked) if hasattr(store, "put_many") else None
        )
        self.renewing: TaskRuntime = self
        if not native:  # renewals never wait for the threads in which acquires do
            self.renewing = copy.copy(self)
            self.renewing.store = InThreads(shared, "task renewals", MOST_RENEWING)
            if self.batching is not None:
                self.renewing.batching = cast("AsyncBatchingStore", self.renewing.store)

    now: staticmethod[[], float] = staticmethod(clock.now)

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        await asyncio.sleep(seconds)

    def in_background(self, act: Callable[[float], Coroutine[object, object, object]], seconds: float) -> None:
        """Run it in the one task of the running loop that does so for this store."""
        renewer_of(asyncio.get_running_loop()).clean_up(self, CleanUp(act, self.now() + seconds))

    def start(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run what `work` returns in a task of the running loop."""
        renewer_of(asyncio.get_running_loop()).start(work(), lambda: None)

    def per_loop(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that gives each event loop what `make` has made for it."""
        return PerLoop(make).here

    def ended(self, attempt: Attempt) -> bool:
        """Whether the event loop was closed in which the attempt was acquired: nothing renews it any more."""
        get_loop = getattr(attempt.caller, "get_loop", None)  # of a task, of whatever class
        return get_loop is not None and get_loop().is_closed()

    def watch(self, attempt: Attempt) -> None:
        """Renew the lease when it is due, and report its end, in the event loop in which it was acquired."""
        running = asyncio.get_running_loop()
        loop = attempt.caller.get_loop() if isinstance(attempt.caller, asyncio.Task) else running
        if loop is running:
            renewer_of(loop).watch(attempt)
        else:  # it is extended in another one
            with contextlib.suppress(RuntimeError):  # its own is closed
                loop.call_soon_threadsafe(lambda: renewer_of(loop).watch(attempt))

    me: staticmethod[[], object] = staticmethod(this_task)
    report_loss: staticmethod[[Attempt], None] = staticmethod(report_loss)
    mutex = TaskMutex
    event = TaskEvent


def task_runtime(store: object) -> TaskRuntime:
    """Return the runtime of all asyncio locks on `store`; raises TypeError unless it is a store."""
    return shared_of(store).runtime(TaskRuntime)


async def finish(
    holds: Sequence[Holding], work: Callable[[], Coroutine[object, object, object]], interrupt: BaseException
) -> None:
    """Finish what a cancellation has cut short, in a task of its own, and wait for that.

    At a store that does not answer, it ends within two request timeouts, a release within three.  A second cancellation
    ends the wait only.
    """
    stop_renewals(holds)
    if holds:  # else nothing had begun
        await asyncio.wait([renewer_of(asyncio.get_running_loop()).finish(partial(finished, work, interrupt))])


def calling_task() -> asyncio.Task[object] | None:
    """Return the task that runs, if any."""
    loop = _running_loop()
    return None if loop is None else asyncio.current_task(loop)
