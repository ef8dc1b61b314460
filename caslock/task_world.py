"""The law of this file: what is begun for a task is finished, however often the task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, cast

from caslock import clock, core
from caslock.checks import has_verbs, suspends
from caslock.process import generation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from caslock.claim import Claim
    from caslock.store import (
        AsyncBatchingStore,
        AsyncStore,
        AsyncWakingStore,
        BatchingStore,
        Entry,
        Put,
        Removal,
        Store,
        Traits,
    )


P = ParamSpec("P")
T = TypeVar("T")


class TaskWorld:
    """What the core needs, for asyncio."""

    def __init__(self, store: object) -> None:
        """Check that the store is one."""
        if not has_verbs(store):
            message = (
                f"a store has get, put_if_version, invalidate and traits; {type(store).__name__} has not: "
                "make one with caslock.connect_async(url) or a class in caslock.stores"
            )
            raise TypeError(message)
        self.home = store
        native = suspends(getattr(store, "get", None))
        self.store = cast("AsyncStore", store) if native else _InThreads(cast("Store", store))
        # A blocking store that waits would keep a worker thread from all others for as long.
        self.waking = cast("AsyncWakingStore", store) if native and hasattr(store, "put_when_free") else None
        self.batching = cast("AsyncBatchingStore", self.store) if hasattr(store, "put_many") else None

    now = staticmethod(clock.now)

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
        if cancelled is not None:
            raise cancelled

    def me(self) -> object:
        """Give the task that runs."""
        return this_task()

    def mutex(self) -> TaskMutex:
        """Make a mutex for one claim."""
        return TaskMutex()

    def event(self) -> TaskEvent:
        """Make an event for one who waits at a turnstile."""
        return TaskEvent()

    def ended(self, claim: Claim) -> bool:
        """Whether the event loop was closed in which the claim was acquired: nothing renews it any more."""
        return isinstance(claim.by, asyncio.Task) and claim.by.get_loop().is_closed()

    def watch(self, claim: Claim) -> None:
        """Set a timer for the next renewal, or the end of the lease.

        The claim is known weakly, so a forgotten one is not renewed for ever.
        """
        self._set(claim, claim.due, self._visit)

    def unwatch(self, claim: Claim) -> None:
        """Cancel its timer."""
        if claim.visit is not None:
            claim.visit.cancel()

    def _set(self, claim: Claim, when: float, act: Callable[[weakref.ref[Claim]], None]) -> None:
        self.unwatch(claim)
        claim.visit = asyncio.get_running_loop().call_later(max(0.0, when - clock.now()), act, weakref.ref(claim))

    def _end(self, reference: weakref.ref[Claim]) -> None:
        claim = reference()
        if claim is None or claim.ending:
            return
        if clock.now() < claim.deadline:
            self.watch(claim)
            return
        claim.lose("its lease ended before it was renewed")
        core.tell(claim)

    def _visit(self, reference: weakref.ref[Claim]) -> None:
        claim = reference()
        if claim is None:
            return
        self._set(claim, claim.deadline, self._end)  # which no hanging renewal may hide
        task = asyncio.ensure_future(core.keep(self, claim))
        _renewals.add(task)  # the loop itself knows tasks weakly only

        def done(task: asyncio.Task[float | None]) -> None:
            _renewals.discard(task)
            claim = reference()
            error = None if task.cancelled() else task.exception()
            if error is not None:
                message = "a callback of a lock, or its store, has raised"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            if claim is not None and not (claim.ending or claim.told):
                self.watch(claim)

        task.add_done_callback(done)


class TaskMutex:
    """A mutex for tasks of one loop that can also be taken without waiting."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        """Begin as free."""
        self._taken = False
        self._waiting: list[asyncio.Future[None]] = []

    def acquire(self, *, blocking: Literal[False]) -> bool:
        """Take it, if nobody has it."""
        del blocking
        free = not self._taken
        self._taken = True
        return free

    def release(self) -> None:
        """Wake all who wait: the first that runs takes it."""
        self._taken = False
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def __aenter__(self) -> None:
        """Wait."""
        while self._taken:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                self._waiting.remove(future)
        self._taken = True

    async def __aexit__(self, *error: object) -> None:
        """Let the next one in."""
        self.release()


_renewals: set[asyncio.Task[float | None]] = set()


class TaskEvent:
    """A future in the core's clothes, of the loop that runs."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        """Begin as not set."""
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
    """A blocking store as asyncio sees it: each verb in a worker thread of our own, for the loop's may all be busy."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def traits(self) -> Traits:
        return self._store.traits

    async def get(self, key: str) -> Entry | None:
        return await _in_thread(self._store.get, key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await _in_thread(self._store.put_if_version, key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await _in_thread(self._store.invalidate, key, version)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        return await _in_thread(cast("BatchingStore", self._store).put_many, puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        return await _in_thread(cast("BatchingStore", self._store).invalidate_many, removals)


def _in_thread(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(_workers(generation()), partial(verb, *args, **kwargs))


@lru_cache(maxsize=1)
def _workers(process: int) -> ThreadPoolExecutor:
    """Make the worker threads of this process."""
    del process  # a forked child has none of its parent's
    return ThreadPoolExecutor(32, thread_name_prefix="caslock-store")


def this_task() -> asyncio.Task[object]:
    """Give the task that runs."""
    task = asyncio.current_task()
    if task is None:
        message = "an AsyncLock needs a running task"
        raise RuntimeError(message)
    return task
