"""The runtime of the asyncio API.  A clean-up runs to its end, however often its task is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar, cast

from caslock.errors import StoreUnavailable
from caslock.local import clock
from caslock.local.schedule import MOST_RENEWING
from caslock.local.settings import check_store, suspends
from caslock.local.shared import Shared, shared_of
from caslock.local.task_renewer import notice, renewer_of
from caslock.local.workers import Workers
from caslock.protocol.observation import ObservingStore
from caslock.protocol.withdraw import Unsettled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime
    from caslock.store import (
        AsyncBatchingStore,
        AsyncQueueingStore,
        AsyncStore,
        AsyncWatchingStore,
        BatchingStore,
        Entry,
        IdentifiedStore,
        Put,
        Removal,
        Store,
        Traits,
        WatchingStore,
    )


P = ParamSpec("P")
T = TypeVar("T")

QUEUE_SHARE: Final = 0.25
"""Share of a request timeout for which a request to a blocking store waits for a thread; then it is dropped unsent."""

MOST_ASKING: Final = 32
"""Threads that send requests to one blocking store at one time, beside those that renew; and as many that wait."""


class TaskRuntime:
    """What the protocol needs, for asyncio."""

    def __init__(self, shared: Shared) -> None:
        """Check that the store is one."""
        self.shared: Shared = shared
        store = shared.store
        check_store(store, "connect_async")
        self.home: object = store
        native = suspends(getattr(store, "get", None))
        asked = cast("AsyncStore", store) if native else _InThreads(shared, "requests", MOST_ASKING)
        self.store: AsyncStore = asked if asked.traits.expires else ObservingStore(asked, self.now)
        # A request timeout, without the time for which the last request may wait for a thread.
        self.patience: float = (1.0 if native else 1.0 - QUEUE_SHARE) * self.store.traits.request_timeout
        # A wait in a blocking store occupies its thread all that time, so waits have threads of their own.
        waiting = cast("AsyncWatchingStore", store) if native else _InThreads(shared, "waits", MOST_ASKING)
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
            self.renewing.store = _InThreads(shared, "task renewals", MOST_RENEWING)
            if self.batching is not None:
                self.renewing.batching = cast("AsyncBatchingStore", self.renewing.store)

    now: staticmethod[[], float] = staticmethod(clock.now)

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        await asyncio.sleep(seconds)

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in a task of its own and wait for its end, however often this one is cancelled meanwhile.

        The end of the loop cancels that task too (`asyncio.run`): then it is run once more.
        """
        cancelled: asyncio.CancelledError | None = None
        for _ in range(2):
            task: asyncio.Future[None] = asyncio.ensure_future(work())
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
            if not task.cancelled():
                task.result()
                break
        else:
            raise cancelled or asyncio.CancelledError
        if cancelled is not None:
            raise cancelled

    def later(self, settle: Callable[[float], Coroutine[object, object, object]], seconds: float) -> None:
        """Run it in the one task of the running loop that does so for this store."""
        renewer_of(asyncio.get_running_loop()).settle(self, Unsettled(settle, self.now() + seconds))

    def me(self) -> object:
        """Return the task that runs."""
        return this_task()

    def mutex(self) -> TaskMutex:
        """Make a mutex for one attempt."""
        return TaskMutex()

    def event(self) -> TaskEvent:
        """Make an event for an attempt that waits in a local queue."""
        return TaskEvent()

    def ended(self, attempt: Attempt) -> bool:
        """Whether the event loop was closed in which the attempt was acquired: nothing renews it any more."""
        return isinstance(attempt.by, asyncio.Task) and attempt.by.get_loop().is_closed()

    def watch(self, attempt: Attempt) -> None:
        """Renew the lease when it is due, and report its end, in the event loop in which it was acquired."""
        running = asyncio.get_running_loop()
        loop = attempt.by.get_loop() if isinstance(attempt.by, asyncio.Task) else running
        if loop is running:
            renewer_of(loop).watch(attempt)
        else:  # it is extended in another one
            with contextlib.suppress(RuntimeError):  # its own is closed
                loop.call_soon_threadsafe(lambda: renewer_of(loop).watch(attempt))

    notice: staticmethod[[Attempt], None] = staticmethod(notice)


def task_runtime(store: object) -> TaskRuntime:
    """Return the runtime of all asyncio locks on `store`; raises TypeError unless it is a store."""
    return shared_of(store).runtime(TaskRuntime)


def start_task(runtime: Runtime, work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run what `work` returns in a task of the running loop."""
    del runtime
    renewer_of(asyncio.get_running_loop()).start(work(), lambda: None)


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

    @property
    def alive(self) -> bool:
        """Whether its loop is not closed."""
        return not self._loop.is_closed()

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


class _InThreads:
    """A blocking store as asyncio sees it: each verb in a thread of the store's own, as the loop's may all be busy."""

    __slots__ = ("_new_workers", "_purpose", "_shared", "_store", "traits")

    def __init__(self, shared: Shared, purpose: str, most: int) -> None:
        self._store = cast("Store", shared.store)
        self.traits: Traits = self._store.traits
        self._shared, self._purpose = shared, purpose
        self._new_workers = partial(Workers, f"caslock-{purpose.replace(' ', '-')}", most)

    async def identify(self) -> str | None:
        return await self._ask(cast("IdentifiedStore", self._store).identify)

    async def get(self, key: str) -> Entry | None:
        return await self._ask(self._store.get, key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await self._ask(self._store.put_if_version, key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await self._ask(self._store.invalidate, key, version)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        await self._ask(cast("WatchingStore", self._store).wait_while, key, version, timeout)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        return await self._ask(cast("BatchingStore", self._store).put_many, puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        return await self._ask(cast("BatchingStore", self._store).invalidate_many, removals)

    def _ask(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        unsent: list[None] = [None]  # list.pop is atomic: either a thread takes it, or the time is over
        patience = QUEUE_SHARE * self.traits.request_timeout
        busy = loop.call_later(patience, _drop, future, unsent, self.traits.location)
        future.add_done_callback(lambda _: busy.cancel())
        workers = self._shared.part(self._purpose, self._new_workers)  # a forked child has others
        workers.do(partial(_answer, loop, future, unsent, partial(verb, *args, **kwargs)))
        return future


def _drop(future: asyncio.Future[T], unsent: list[None], location: str) -> None:
    """Give up on a request that no thread has taken."""
    try:
        unsent.pop()
    except IndexError:
        return
    if not future.done():
        message = f"too many requests are waiting for {location}"
        future.set_exception(StoreUnavailable(message, sent=False))


def _answer(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], unsent: list[None], verb: Callable[[], T]
) -> None:
    """Call a verb in a worker thread, and pass its result to the loop."""
    if future.done():  # nothing waits for it any more, and nothing was sent
        return
    try:
        unsent.pop()
    except IndexError:
        return
    try:
        settle = partial(_resolve, future, verb())
    except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
        settle = partial(_fail, future, error)
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(settle)


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def this_task() -> asyncio.Task[object]:
    """Return the task that runs."""
    task = asyncio.current_task()
    if task is None:
        message = "AsyncLock must be used inside an asyncio task"
        raise RuntimeError(message)
    return task


def calling_task() -> asyncio.Task[object] | None:
    """Return the task that runs, if any."""
    loop = _running_loop()
    return None if loop is None else asyncio.current_task(loop)
