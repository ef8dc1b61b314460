"""The blocking API and the asyncio API, with the same methods: a client is written once, as coroutines, for both.

With the blocking API a coroutine never suspends: `Blocking.run` runs it to its end in the calling thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar, cast

from caslock.aio import (
    AsyncHold,
    AsyncLock,
    AsyncMultiHold,
    AsyncMultiLock,
    AsyncReadSide,
    AsyncReadWriteLock,
    AsyncSemaphore,
    AsyncWriteSide,
)
from caslock.blocking import (
    Hold,
    Lock,
    MultiHold,
    MultiLock,
    ReadSide,
    ReadWriteLock,
    Semaphore,
    WriteSide,
)
from caslock.verify.plan import PAGE, PERMITS, POOL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import FrameType, TracebackType

    from caslock.store import AsyncStore, Store

    Work: TypeAlias = Coroutine[object, object, object]

T = TypeVar("T")

AnyLock: TypeAlias = (
    Lock | Semaphore | ReadSide | WriteSide | AsyncLock | AsyncSemaphore | AsyncReadSide | AsyncWriteSide
)
AnyHold: TypeAlias = Hold | AsyncHold
AnyMultiHold: TypeAlias = MultiHold | AsyncMultiHold

MOST_DELAYED: Final = 64
"""Requests of one blocking store that may be under way beside those that somebody waits for."""


class Alarm(BaseException):
    """Raised by a signal handler, at a random moment."""


class _Locks:
    """Makes the locks of one API."""

    _kinds: ClassVar[tuple[type[Any], type[Any], type[Any]]]

    def lock(self, store: Store | AsyncStore, key: str, *, writes: bool = False, **settings: Any) -> AnyLock:  # noqa: ANN401 - those of any lock
        """Make what a client acquires on a key: a lock, a semaphore, or a side of a read-write lock."""
        made = self.whole(store, key, **settings)
        if isinstance(made, self._kinds[2]):
            made = made.write if writes else made.read
        return cast("AnyLock", made)

    def whole(self, store: Store | AsyncStore, key: str, **settings: Any) -> Any:  # noqa: ANN401 - as above
        """Make the kind of lock that the name of the key calls for, with both sides."""
        lock, semaphore, read_write = self._kinds
        kind = key.rpartition(":")[2]
        if not kind.startswith((POOL, PAGE)):
            return lock(store, key, **settings)
        settings.pop("owner", None)
        return (
            semaphore(store, key, PERMITS, **settings) if kind.startswith(POOL) else read_write(store, key, **settings)
        )


class Blocking(_Locks):
    """Threads: each client has one to itself, so it can fork, and uses its Lock objects again."""

    threads = True
    _kinds = Lock, Semaphore, ReadWriteLock

    def __init__(self) -> None:
        self._armed = False
        self._delayed = threading.BoundedSemaphore(MOST_DELAYED)

    @staticmethod
    def run(work: Coroutine[object, object, T]) -> T:
        """Run a coroutine that never suspends."""
        try:
            work.send(None)
        except StopIteration as end:
            return cast("T", end.value)
        work.close()
        raise RuntimeError(f"{work!r} has suspended")

    def multi_lock(self, locks: Sequence[AnyLock], timeout: float) -> MultiLock:
        """Make one of several locks."""
        return MultiLock(cast("Sequence[Lock]", locks), timeout=timeout)

    def with_block(self, lock: AnyLock) -> _WithBlock:
        """Give the ``with`` block of a lock."""
        return _WithBlock(cast("Lock", lock))

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)  # noqa: ASYNC251 - the thread is ours

    def later(self, seconds: float, work: Callable[[], Work]) -> None:
        """Run `work` after so many seconds, beside the rest, unless there is too much of that."""
        if not self._delayed.acquire(blocking=False):
            return

        def arrive() -> None:
            try:
                self.run(work())
            finally:
                self._delayed.release()

        timer = threading.Timer(seconds, arrive)
        timer.daemon = True
        timer.start()

    async def interrupt(self, seconds: float | None, work: Work) -> bool:
        """Run `work`, interrupt it by a signal after so many seconds, and tell whether that ended it.

        Only the main thread can be interrupted: elsewhere `seconds` is None.
        """
        if seconds is None:
            await work
            return False
        try:
            try:
                signal.signal(signal.SIGALRM, self._ring)
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, seconds + 1e-4)
                await work
            finally:
                self._armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            self._armed = False
            return True
        return False

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            raise Alarm


class _WithBlock:
    """A ``with`` block as an ``async with`` block that never suspends."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    async def __aenter__(self) -> Hold:
        return self._lock.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)


class Asyncio(_Locks):
    """Tasks of one event loop; each operation is a task of its own."""

    threads = False
    _kinds = AsyncLock, AsyncSemaphore, AsyncReadWriteLock

    def __init__(self) -> None:
        self._delayed = set[asyncio.Task[object]]()

    def multi_lock(self, locks: Sequence[AnyLock], timeout: float) -> AsyncMultiLock:
        """Make one of several locks."""
        return AsyncMultiLock(cast("Sequence[AsyncLock]", locks), timeout=timeout)

    def with_block(self, lock: AnyLock) -> AsyncLock:
        """Give the ``async with`` block of a lock."""
        return cast("AsyncLock", lock)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    def later(self, seconds: float, work: Callable[[], Work]) -> None:
        """Run `work` after so many seconds, beside the rest."""

        async def arrive() -> None:
            await asyncio.sleep(seconds)
            await work()

        task = asyncio.ensure_future(arrive())
        self._delayed.add(task)
        task.add_done_callback(self._delayed.discard)

    async def interrupt(self, seconds: float | None, work: Work) -> bool:
        """Run `work`, cancel it after so many seconds, and tell whether that ended it."""
        task = asyncio.ensure_future(work)
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return task.cancelled()


Api: TypeAlias = Blocking | Asyncio
