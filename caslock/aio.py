"""The asyncio API: `AsyncLock`, `AsyncMultiLock` and their holds.  A lost lease cancels the block that it protects."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Never, NoReturn, Protocol, Self, TypeVar, Unpack, cast, overload

from caslock.errors import CaslockError, LockLost, NotAcquired, NotHeld, told
from caslock.local.hold import Holding
from caslock.local.lock_state import LockState, Settings
from caslock.local.multi import Holds, MultiState, given_keys, given_locks
from caslock.local.settings import Own, no_settings, not_called, not_copied, wait_time, waiting
from caslock.local.tasks import calling_task, task_runtime, this_task
from caslock.local.with_blocks import WithBlocks
from caslock.protocol.attempt import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from types import CoroutineType, TracebackType

    from tenacity.wait import WaitBaseT

    from caslock.local.settings import Several
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Record
    from caslock.store import AsyncStore, Store

    Task = asyncio.Task[object]


class _Releasable(Protocol):
    async def release(self) -> None: ...


T = TypeVar("T", bound=_Releasable)
R = TypeVar("R")


def _named(name: str, work: Coroutine[object, object, R]) -> Coroutine[object, object, R]:
    """Name a coroutine after the public call that makes it, for the warning that it was never awaited."""
    cast("CoroutineType[object, object, R]", work).__qualname__ = name
    return work


class _Releasing(ABC):
    """Makes a hold an asynchronous context manager that releases it."""

    __slots__ = ()
    _blocks: WithBlocks[_Block[Self]]

    @abstractmethod
    def ensure_held(self) -> None: ...

    @abstractmethod
    async def release(self) -> None: ...

    @property
    @abstractmethod
    def _attempts(self) -> list[Attempt]: ...

    async def __aenter__(self) -> Self:
        """Return the hold; leaving the block releases it.  If the lease is lost, the block is cancelled.

        Raises `NotHeld` after a release, and `LockLost` if the lease has already ended (what is left is released).
        """
        try:
            self.ensure_held()
        except NotHeld:
            raise
        except BaseException:  # lost, or interrupted
            with suppress(CaslockError):
                await self.release()
            raise
        task = this_task()
        for attempt in self._attempts:
            if isinstance(attempt.by, asyncio.Task) and attempt.by.done():
                attempt.by = task  # the task that acquired has handed the hold over to this one
        _Block(self._blocks, self, self._attempts)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release.  If the block raised, a release error is added to that exception as a note."""
        await self._blocks.newest(this_task).leave(error)


class AsyncHold(Holding, _Releasing):
    """One successful acquire of an `AsyncLock`: an asynchronous context manager that releases it."""

    __slots__ = ("_blocks",)

    def __init__(self, state: LockState, attempt: Attempt) -> None:
        super().__init__(state, attempt)
        self._blocks = WithBlocks()

    @property
    def _attempts(self) -> list[Attempt]:
        return [self._attempt]

    async def extend(self, ttl: float | None = None) -> None:
        """Replace the lease; see `Hold.extend`."""
        await self._renewed(ttl)

    async def release(self) -> None:
        """Release this hold, from any task; see `Hold.release`.  If cancelled, it releases first."""
        await self._released()


B = TypeVar("B", AsyncHold, "AsyncMultiHold")


class _Acquired(ABC, Generic[B]):
    """What `AsyncLock` and `AsyncMultiLock` have in common: to be acquired, and an asynchronous context manager."""

    _timeout: float | None
    _blocks: WithBlocks[_Block[B]]

    @abstractmethod
    async def _take(self, timeout: float | None, caller: Task | None = None) -> B:
        """Acquire; raises `NotAcquired`."""

    @abstractmethod
    async def _release(self, caller: Task | None) -> None:
        """Release what `caller` has acquired last."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would count as the same holder."""
        raise not_copied(self)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to be called, and so to be used as a decorator: that is `caslock.locked`."""
        del args, kwargs
        raise not_called(self, "async with")

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as Lock
        timeout: float | Own | None = Own.TIMEOUT,
    ) -> Coroutine[object, object, B | None]:
        """Acquire or re-enter; see `Lock.acquire`.  If cancelled, it withdraws its request first.

        That takes a request, and up to two request timeouts if the server does not answer.

        The hold belongs to the task that calls this method, even if another task awaits the coroutine, as in
        `asyncio.wait_for` of Python 3.11.
        """
        work = self._acquire_for(calling_task(), wait_time(self._timeout, timeout, blocking=blocking))
        return _named(f"{type(self).__name__}.acquire", work)

    async def _acquire_for(self, caller: Task | None, timeout: float | None) -> B | None:
        try:
            held = await self._take(timeout, _here(caller))
        except NotAcquired:
            return None
        for attempt in held._attempts:
            _give(caller, attempt)
        return held

    def release(self) -> Coroutine[object, object, None]:
        """Release what the task that makes this call has acquired last; see `Hold.release`."""
        return _named(f"{type(self).__name__}.release", self._release(calling_task()))

    async def __aenter__(self) -> B:
        """Acquire within the lock's own timeout, or raise `NotAcquired`."""
        held = await self._take(self._timeout)
        _Block(self._blocks, held, held._attempts)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release.  If the block raised, a release error is added to that exception as a note."""
        await self._blocks.newest(this_task).leave(error)


class AsyncLock(_Acquired[AsyncHold]):
    """A lease lock on one key of a store, for asyncio: one task at a time holds it, the same task re-enters.

    If the lease is lost, the ``async with`` block is cancelled (as by `asyncio.timeout`) and raises `LockLost`.
    """

    def __init__(
        self,
        store: AsyncStore | Store,
        key: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = None,
        owner: str | None = None,
        auto_renew: bool = True,
        max_hold: float | None = None,
        min_hold: float | None = None,
        on_lost: Callable[[AsyncHold], object] | None = None,
        note: str = "",
        retry: Retry | tuple[int, int] = Retry(),
        poll: WaitBaseT | None = None,
        **unknown: Never,
    ) -> None:
        """Create the lock; the arguments are those of `Lock`.  A blocking store is called from worker threads."""
        self._state = LockState(
            task_runtime(store),
            key,
            ttl=ttl,
            timeout=timeout,
            owner=owner,
            auto_renew=auto_renew,
            max_hold=max_hold,
            min_hold=min_hold,
            on_lost=on_lost,
            note=note,
            retry=retry,
            poll=poll,
            **unknown,
        )
        self._timeout, self._blocks = self._state.timeout, WithBlocks()

    def __repr__(self) -> str:
        return f"<AsyncLock {self.key!r} at {self._state.runtime.store.traits.location}>"

    @property
    def key(self) -> str:
        """The key."""
        return self._state.key

    @property
    def owner(self) -> str:
        """The owner in the record while this lock is held."""
        return self._state.owner

    async def _take(self, timeout: float | None, caller: Task | None = None) -> AsyncHold:
        return await self._state.acquire(AsyncHold, timeout, caller)

    async def _release(self, caller: Task | None) -> None:
        await self._state.newest_hold(caller)._released()

    async def locked(self) -> bool:
        """Whether anybody holds the key now."""
        return await self.holder() is not None

    async def holder(self) -> Record | None:
        """Who holds the key now; None when nobody does."""
        return await self._state.holder()

    async def force_release(self) -> Record | None:
        """Take the key away from whoever holds it; see `Lock.force_release`."""
        return await self._state.force_release()


class AsyncMultiHold(Holds[AsyncHold], _Releasing):
    """The holds of one successful `AsyncMultiLock.acquire`: an asynchronous context manager.

    ``holds["room:42"]`` is one of them, and ``"room:42" in holds`` says whether that key is.
    """

    __slots__ = ("_blocks",)

    def __init__(self, holds: Sequence[AsyncHold]) -> None:
        """Take them in the order in which they were acquired."""
        super().__init__(holds)
        self._blocks = WithBlocks()

    @property
    def _attempts(self) -> list[Attempt]:
        return [hold._attempt for hold in self]

    async def extend(self, ttl: float | None = None) -> None:
        """Extend every hold; see `Hold.extend`."""
        await self._renewed(ttl)

    async def release(self) -> None:
        """Release what is not released yet, in reverse, all of it even when one raises; see `AsyncHold.release`."""
        await self._released()


class AsyncMultiLock(_Acquired[AsyncMultiHold]):
    """Several locks as one, for asyncio; see `MultiLock`."""

    @overload
    def __init__(
        self,
        store: AsyncStore | Store,
        keys: Several | Iterator[str],
        *,
        timeout: float | None = None,
        **settings: Unpack[Settings[AsyncHold]],
    ) -> None: ...

    @overload
    def __init__(self, store: Iterable[AsyncLock], *, timeout: float | None = None) -> None: ...

    def __init__(
        self,
        store: AsyncStore | Store | Iterable[AsyncLock],
        keys: Several | Iterator[str] | None = None,
        *,
        timeout: float | None = None,
        **settings: Unpack[Settings[AsyncHold]],
    ) -> None:
        """Lock several keys of one store, or existing locks of any stores; see `MultiLock`."""
        if keys is None:
            self._state = MultiState((lock._state for lock in given_locks(store, AsyncLock)), AsyncMultiHold)
            no_settings(settings)
        else:
            runtime = task_runtime(store)
            self._state = MultiState((LockState(runtime, key, **settings) for key in given_keys(keys)), AsyncMultiHold)
        self._timeout = waiting(timeout)
        self._blocks = WithBlocks()

    def __repr__(self) -> str:
        return f"<AsyncMultiLock of {', '.join(map(repr, self.keys))}>"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which they are acquired."""
        return tuple(state.key for state in self._state.states)

    async def _take(self, timeout: float | None, caller: Task | None = None) -> AsyncMultiHold:
        return await self._state.acquire(AsyncHold, timeout, caller)

    async def _release(self, caller: Task | None) -> None:
        await self._state.newest_holds(caller)._released()


def _give(caller: Task | None, attempt: Attempt) -> None:
    """Give what was just acquired to the task that called `acquire`, if another one has run it."""
    caller = _here(caller)
    if caller is not None and len(attempt.levels) == 1:
        attempt.by = caller


def _here(caller: Task | None) -> Task | None:
    """Return the task that called `acquire`, unless it has ended or is of another loop, and so can't own a hold."""
    if caller is None or caller.done() or caller.get_loop() is not asyncio.get_running_loop():
        return None
    return caller


class _Block(Generic[T]):
    """One block of ``async with``: its task is cancelled at the loss of a lease, as `asyncio.timeout` does."""

    def __init__(self, blocks: WithBlocks[_Block[T]], held: T, attempts: list[Attempt]) -> None:
        self.held = held
        self._blocks = blocks
        self._task = this_task()
        self._attempts = attempts
        self._cancelling = self._task.cancelling()
        self._cancelled = False
        for attempt in attempts:
            attempt.lease.on_loss.append(self._cancel)
        blocks.append((self._task, self))

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def leave(self, error: BaseException | None) -> None:
        """End the block, and release what it holds."""
        self._blocks.leave(self)
        for attempt in self._attempts:
            attempt.lease.on_loss.remove(self._cancel)
        # A cancellation of ours is taken back; it is ours alone unless somebody else has cancelled the task as well.
        ours_alone = self._cancelled and self._task.uncancel() <= self._cancelling
        ours_alone = ours_alone and isinstance(error, asyncio.CancelledError)
        try:
            await self.held.release()
        except Exception as trouble:
            if error is None or (ours_alone and isinstance(trouble, CaslockError)):
                raise trouble from error
            error.add_note(told(trouble))
        if ours_alone:
            keys = ", ".join(repr(attempt.key) for attempt in self._attempts if attempt.lease.lost)
            why = next((attempt.lease.lost for attempt in self._attempts if attempt.lease.lost), "")
            message = f"lock {keys} was lost during its async with block: {why}"
            raise LockLost(message) from error
