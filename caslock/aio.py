"""The asyncio API: the same locks and holds.  A lost lease cancels the block that it protects."""

from __future__ import annotations

import asyncio
from abc import ABC
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, Unpack, cast

from caslock.errors import CaslockError, LockLost, NotAcquired, NotHeld, StoreError
from caslock.local import tickets
from caslock.local.hold import Held, Holding, slot_of
from caslock.local.holds import Holds
from caslock.local.lock import OneKey, ReadWrite, SeveralLocks, SeveralStores, SharedLock, SingleLock
from caslock.local.settings import Own, wait_time
from caslock.local.tasks import calling_task, finish, task_runtime, this_task
from caslock.local.with_blocks import WithBlocks, add_release_error
from caslock.store import AsyncStore, Store

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import TracebackType

    from caslock.local.lock import Adopting, State
    from caslock.local.lock_state import LockState
    from caslock.local.multi import MultiState
    from caslock.local.quorum import QuorumState
    from caslock.local.read_write import ReadWriteState
    from caslock.local.semaphore import SemaphoreState
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Record

    Task = asyncio.Task[object]


T = TypeVar("T", bound="_Releasing")
W = TypeVar("W")


class _Releasing(Held):
    """Makes a hold an asynchronous context manager that releases it."""

    __slots__ = ()
    _blocks: WithBlocks[_Block[Self]]

    async def extend(self, ttl: float | None = None) -> None:
        """Replace the lease; see `Hold.extend`."""
        await self._renewed(ttl)

    async def release(self) -> None:
        """Release the hold, from any task; see `Hold.release`.  If cancelled, it releases first."""
        try:
            await self._released()
        except (CaslockError, GeneratorExit):
            raise
        except BaseException as error:  # cancelled: release first
            await finish(self._each, self._released, error)
            raise

    async def __aenter__(self) -> Self:
        """Return the hold; leaving the block releases it.  If the lease is lost, the block is cancelled.

        Raises `NotHeld` after a release, and `LockLost` if the lease has already ended (what is left is released).
        """
        try:
            self.ensure_held()
        except LockLost:
            with suppress(CaslockError):
                await self.release()
            raise
        task = this_task()
        for hold in self._each:
            attempt = hold._attempt
            if isinstance(attempt.caller, asyncio.Task) and attempt.caller.done():
                attempt.caller = task  # the task that acquired has handed the hold over to this one
        _Block(self._blocks, self)
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

    async def hand_over(self) -> str:
        """Hand the hold over to another process; see `Hold.hand_over`.  If cancelled, the hold goes on here."""
        return await self._state.hand_over(self)


class AsyncSemaphoreHold(AsyncHold):
    """One successful acquire of an `AsyncSemaphore`: an asynchronous context manager that releases it."""

    __slots__ = ()

    @property
    def slot(self) -> int:
        """A number from 0 to permits - 1 that no other live hold has; see `SemaphoreHold.slot`."""
        return slot_of(self)


class AsyncWriteHold(AsyncHold):
    """One successful acquire of `AsyncReadWriteLock.write`: an asynchronous context manager that releases it."""

    __slots__ = ()

    async def downgrade(self) -> None:
        """Read from now on, and let others read; see `WriteHold.downgrade`."""
        await cast("ReadWriteState", self._state).downgrade(self)


async def _adopted(begun: H) -> H:
    """Adopt the hold of a ticket."""
    return await _committed(begun._state, begun, tickets.adopt(begun))


async def _committed(state: State[Any], begun: Any, work: Coroutine[object, object, W]) -> W:  # noqa: ANN401 - what `begin` has returned
    """Await an acquire or an adoption, and keep its hold; if cancelled, undo it first."""
    try:
        held = await work
    except (CaslockError, GeneratorExit):
        raise
    except BaseException as error:  # cancelled: undo it first
        await finish(begun._each, partial(state.undo, begun, error), error)
        raise
    state.committed[held] = None
    return held


B = TypeVar("B", AsyncHold, AsyncSemaphoreHold, AsyncWriteHold, "AsyncMultiHold")
H = TypeVar("H", bound=AsyncHold)


class _Acquired(ABC, Generic[B]):
    """What `AsyncLock` and `AsyncMultiLock` have in common: to be acquired, and an asynchronous context manager."""

    _state: State[B]
    _timeout: float | None
    _blocks: WithBlocks[_Block[B]]
    _make: type[AsyncHold] = AsyncHold

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
        return self._acquire_for(calling_task(), wait_time(self._timeout, timeout, blocking=blocking))

    async def _acquire_for(self, caller: Task | None, timeout: float | None) -> B | None:
        if caller is not None and (caller.done() or caller.get_loop() is not asyncio.get_running_loop()):
            caller = None  # it has ended, or is of another loop, and so can't own a hold
        try:
            held = await self._take(timeout, caller)
        except NotAcquired:
            return None
        if caller is not None and not caller.done():  # another task may have run this
            for hold in held._each:
                if len(hold._attempt.levels) == 1:
                    hold._attempt.caller = caller
        return held

    def _take(self, timeout: float | None, caller: Task | None = None) -> Coroutine[object, object, B]:
        begun = self._state.begin(self._make, caller)
        return _committed(self._state, begun, self._state.acquire(begun, timeout))

    def release(self) -> Coroutine[object, object, None]:
        """Release what the task that makes this call has acquired last; see `Hold.release`."""
        return self._release_for(calling_task())

    async def _release_for(self, caller: Task | None) -> None:
        await cast("B", self._state.newest_hold(caller)).release()

    async def __aenter__(self) -> B:
        """Acquire within the lock's own timeout, or raise `NotAcquired`."""
        held = await self._take(self._timeout)
        _Block(self._blocks, held)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release.  If the block raised, a release error is added to that exception as a note."""
        await self._blocks.newest(this_task).leave(error)


class AsyncLock(SingleLock[AsyncStore | Store, AsyncHold], _Acquired[AsyncHold]):
    """A lock on one key of a store, for asyncio: one task at a time holds it, the same task re-enters.

    >>> async with AsyncLock(store, "room:42", timeout=5) as hold:  # NotAcquired if somebody else keeps it for 5 s
    ...     await book(room=42, fence=hold.fence)

    If the lease is lost, the ``async with`` block is cancelled (as by `asyncio.timeout`) and raises `LockLost`.
    """

    _state: LockState
    _runtime = staticmethod(task_runtime)
    _is_blocking = False

    @classmethod
    async def adopt(cls, store: AsyncStore | Store, ticket: str, **settings: Unpack[Adopting[AsyncHold]]) -> AsyncHold:
        """Take over a hold that was handed over; see `Lock.adopt`.  If cancelled, it first undoes what it has sent."""
        return await _adopted(cls._adoption(store, ticket, settings, AsyncHold))

    async def locked(self) -> bool:
        """Whether anybody holds the key now."""
        return await self.holder() is not None

    async def holder(self) -> Record | None:
        """Who holds the key now; None when nobody does."""
        return await self._state.holder()

    async def force_release(self) -> Record | None:
        """Take the key away from whoever holds it; see `Lock.force_release`."""
        return await self._state.force_release()


class AsyncSemaphore(SharedLock[AsyncStore | Store, AsyncSemaphoreHold], _Acquired[AsyncSemaphoreHold]):
    """A key that up to `permits` may hold at a time, over all processes, for asyncio; see `Semaphore`.

    If a lease is lost, its ``async with`` block is cancelled and raises `LockLost`.
    """

    _state: SemaphoreState
    _runtime = staticmethod(task_runtime)
    _make = AsyncSemaphoreHold

    @classmethod
    async def adopt(
        cls, store: AsyncStore | Store, ticket: str, **settings: Unpack[Adopting[AsyncSemaphoreHold]]
    ) -> AsyncSemaphoreHold:
        """Take over a semaphore's hold that was handed over; see `Semaphore.adopt` and `AsyncLock.adopt`."""
        return await _adopted(cls._adoption(store, ticket, settings, AsyncSemaphoreHold))

    async def locked(self) -> bool:
        """Whether all permits are taken."""
        return await self._state.locked()

    async def holders(self) -> tuple[Record, ...]:
        """Return a record for each hold; see `Semaphore.holders`."""
        return await self._state.holders()

    async def force_release(self) -> tuple[Record, ...]:
        """Take the key from all who hold it; see `Semaphore.force_release`."""
        return await self._state.force_release_all()


class _Side(OneKey, _Acquired[B]):
    """What both sides of an `AsyncReadWriteLock` have in common."""

    _state: ReadWriteState

    async def locked(self) -> bool:
        """Whether anybody holds this side, or something else has the key."""
        return bool(await self.holders())

    async def holders(self) -> tuple[Record, ...]:
        """Return a record for each hold of this side."""
        return await self._state.holders()


class AsyncReadSide(_Side[AsyncHold]):
    """The side of an `AsyncReadWriteLock` that many may hold at a time; see `ReadSide`."""


class AsyncWriteSide(_Side[AsyncWriteHold]):
    """The side of an `AsyncReadWriteLock` that one may hold, alone."""

    _make = AsyncWriteHold


class AsyncReadWriteLock(ReadWrite[AsyncStore | Store, AsyncHold]):
    """A key that many may read, or one write, for asyncio; see `ReadWriteLock`."""

    _runtime = staticmethod(task_runtime)
    read: AsyncReadSide
    """The side for those who read."""
    write: AsyncWriteSide
    """The side for those who write."""

    def _sides(self, reads: ReadWriteState, writes: ReadWriteState, timeout: float | None) -> None:
        self.read, self.write = AsyncReadSide(reads, timeout), AsyncWriteSide(writes, timeout)

    async def force_release(self) -> tuple[Record, ...]:
        """Take the key from all who hold it; see `ReadWriteLock.force_release`."""
        return await self.write._state.force_release_all()


class AsyncQuorumLock(SeveralStores[AsyncStore | Store, AsyncHold], _Acquired[AsyncHold]):
    """A lock on one key at several independent stores, for asyncio; see `QuorumLock`.

    If fewer than a majority of the leases are left, the ``async with`` block is cancelled and raises `LockLost`.
    """

    _state: QuorumState
    _runtime = staticmethod(task_runtime)


class AsyncMultiHold(Holds[AsyncHold], _Releasing):
    """The holds of one successful `AsyncMultiLock.acquire`: an asynchronous context manager.

    ``holds["room:42"]`` is one of them, and ``"room:42" in holds`` says whether that key is.
    """

    __slots__ = ("_blocks",)

    def __init__(self, holds: Sequence[AsyncHold]) -> None:
        """Take them in the order in which they were acquired."""
        super().__init__(holds)
        self._blocks = WithBlocks()


_Joined: TypeAlias = AsyncLock | AsyncSemaphore | AsyncReadSide | AsyncWriteSide


class AsyncMultiLock(SeveralLocks[AsyncStore | Store, _Joined, AsyncHold, AsyncMultiHold], _Acquired[AsyncMultiHold]):
    """Several locks as one, for asyncio; see `MultiLock`."""

    _state: MultiState[AsyncHold, AsyncMultiHold]
    _lock_types, _hold_type = (AsyncLock, AsyncSemaphore, AsyncReadSide, AsyncWriteSide), AsyncMultiHold


class _Block(Generic[T]):
    """One block of ``async with``: its task is cancelled at the loss of a lease, as `asyncio.timeout` does."""

    def __init__(self, blocks: WithBlocks[_Block[T]], held: T) -> None:
        self.held = held
        self._blocks = blocks
        self._task = this_task()
        self._attempts = [hold._attempt for hold in held._each]
        self._cancelling = self._task.cancelling()
        self._cancelled = False
        for attempt in self._attempts:
            attempt.lease.on_loss.append(self._cancel)
        blocks[self] = self._task

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def leave(self, error: BaseException | None) -> None:
        """End the block, and release what it holds."""
        self._blocks.pop(self, None)
        for attempt in self._attempts:
            attempt.lease.on_loss.remove(self._cancel)
        # A cancellation of ours is taken back; it is ours alone unless somebody else has cancelled the task as well.
        ours_alone = self._cancelled and self._task.uncancel() <= self._cancelling
        ours_alone = ours_alone and isinstance(error, asyncio.CancelledError)
        try:
            await self.held.release()
        except Exception as trouble:  # whatever a release raises, it never masks the error of the block
            if isinstance(trouble, NotHeld) and self.held._handed_over:
                return
            if error is None or (ours_alone and isinstance(trouble, (LockLost, StoreError))):
                raise
            add_release_error(error, trouble)
        if ours_alone:
            lost = [attempt for attempt in self._attempts if attempt.lease.lost]
            keys, why = ", ".join(repr(attempt.key) for attempt in lost), "".join(each.lease.lost for each in lost[:1])
            loss = LockLost(f"lock {keys} was lost during its async with block: {why}")
            loss.reason = why
            raise lost[0].concerns(loss) if len(lost) == 1 else loss from error
