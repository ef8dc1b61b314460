"""The law of this file: what a user of asyncio sees; it decides nothing but whom a lost lease cancels."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, Unpack

from caslock.bodies import Bodies
from caslock.checks import Own, no_settings, wait_time, waiting
from caslock.claim import Retry
from caslock.errors import CaslockError, LockLost, NotAcquired, NotHeld, told
from caslock.hold import Holding
from caslock.lockstate import LockState, Settings
from caslock.multi import Holds, MultiState, given_keys, given_locks
from caslock.task_world import TaskWorld, this_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from tenacity.wait import WaitBaseT

    from caslock.claim import Claim
    from caslock.record import Record
    from caslock.store import AsyncStore, Store


class _Releasable(Protocol):
    async def release(self) -> None: ...


T = TypeVar("T", bound=_Releasable)


class AsyncHold(Holding):
    """One successful acquire of an `AsyncLock`."""

    __slots__ = ()

    async def extend(self, ttl: float | None = None) -> None:
        """Replace the lease; see `Hold.extend`."""
        await self.renewed(ttl)

    async def release(self) -> None:
        """Release this hold, from any task; see `Hold.release`.  Cancelled, it leaves first."""
        await self.released()


class AsyncLock:
    """A lease lock on one key of a store, for asyncio: one task at a time holds it, the same task re-enters.

    Loss of the lease cancels the body of ``async with`` as `asyncio.timeout` does, and surfaces as `LockLost`.
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
        on_lost: Callable[[Holding], object] | None = None,
        note: str = "",
        retry: Retry | tuple[int, int] = Retry(),
        poll: WaitBaseT | None = None,
    ) -> None:
        """Name the key; the arguments are those of `Lock`.  A blocking store serves from worker threads."""
        self._state = LockState(
            TaskWorld(store),
            key,
            ttl=ttl,
            timeout=timeout,
            owner=owner,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            note=note,
            retry=retry,
            poll=poll,
        )
        self._bodies = Bodies[_Body[AsyncHold]]()

    def __repr__(self) -> str:
        """Say which key, and where."""
        return f"<AsyncLock {self.key!r} at {self._state.world.store.traits.place}>"

    @property
    def key(self) -> str:
        """The key."""
        return self._state.key

    @property
    def owner(self) -> str:
        """The owner that stands in the record while this lock is held."""
        return self._state.owner

    async def acquire(self, blocking: bool = True, timeout: float | Own | None = Own.TIMEOUT) -> AsyncHold | None:  # noqa: FBT001, FBT002 - as Lock
        """Acquire the lock, or re-enter it; see `Lock.acquire`.  Cancelled, it leaves nothing behind."""
        try:
            return await self._state.acquire(AsyncHold, wait_time(self._state.timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    async def release(self) -> None:
        """Release the newest hold of this task; see `Hold.release`."""
        await self._state.newest_hold().released()

    async def __aenter__(self) -> AsyncHold:
        """Acquire within the lock's own timeout, or raise `NotAcquired`."""
        hold = await self._state.acquire(AsyncHold, self._state.timeout)
        _Body(self._bodies, hold, [hold.claim])
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        await _leave(self._bodies, error)

    async def locked(self) -> bool:
        """Whether anybody holds the key now."""
        return await self.holder() is not None

    async def holder(self) -> Record | None:
        """Who holds the key now; None when nobody does."""
        return await self._state.holder()

    async def break_(self) -> Record | None:
        """Take the key away from whoever holds it; see `Lock.break_`."""
        return await self._state.break_()


class AsyncMultiHold(Holds[AsyncHold]):
    """The holds of one successful `AsyncMultiLock.acquire`; ``holds["room:42"]`` is one of them."""

    __slots__ = ()

    async def extend(self, ttl: float | None = None) -> None:
        """Extend every hold; see `Hold.extend`."""
        await self.renewed(ttl)

    async def release(self) -> None:
        """Release what is not released yet, in reverse, all of it even when one raises; see `AsyncHold.release`."""
        await self.released()


class AsyncMultiLock:
    """Several locks as one, for asyncio; see `MultiLock`."""

    def __init__(
        self,
        store: AsyncStore | Store | Iterable[AsyncLock],
        keys: Iterable[str] | None = None,
        *,
        timeout: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Name the keys of one store, or hand over locks of any stores; see `MultiLock`."""
        if keys is None:
            self._state = MultiState[AsyncMultiHold](lock._state for lock in given_locks(store, AsyncLock))  # noqa: SLF001 - our own class
            no_settings(settings)
        else:
            world = TaskWorld(store)
            self._state = MultiState(LockState(world, key, **settings) for key in given_keys(keys))
        self._timeout = waiting(timeout)
        self._bodies = Bodies[_Body[AsyncMultiHold]]()

    def __repr__(self) -> str:
        """Say which keys."""
        return f"<AsyncMultiLock of {', '.join(map(repr, self.keys))}>"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which they are taken."""
        return tuple(state.key for state in self._state.states)

    async def acquire(self, blocking: bool = True, timeout: float | Own | None = Own.TIMEOUT) -> AsyncMultiHold | None:  # noqa: FBT001, FBT002 - as Lock
        """Acquire all keys; None, and none held, when they could not all be had in time."""
        try:
            return await self._acquire(wait_time(self._timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    async def release(self) -> None:
        """Release what this task has acquired last."""
        await self._state.newest_holds().released()

    async def __aenter__(self) -> AsyncMultiHold:
        """Acquire all within the timeout, or raise `NotAcquired`."""
        holds = await self._acquire(self._timeout)
        _Body(self._bodies, holds, [hold.claim for hold in holds])
        return holds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        await _leave(self._bodies, error)

    async def _acquire(self, timeout: float | None) -> AsyncMultiHold:
        return await self._state.acquire(AsyncHold, AsyncMultiHold, timeout)


class _Body(Generic[T]):
    """One body of ``async with``: its task is cancelled at the loss of a lease, as `asyncio.timeout` does."""

    def __init__(self, bodies: Bodies[_Body[T]], held: T, claims: list[Claim]) -> None:
        self.held = held
        self._bodies = bodies
        self._task = this_task()
        self._claims = claims
        self._cancelling = self._task.cancelling()
        self._cancelled = False
        for claim in claims:
            claim.on_loss.append(self._cancel)
        bodies.enter(self._task, self)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def leave(self, error: BaseException | None) -> None:
        """End the body, and release what it holds."""
        self._bodies.left(self)
        for claim in self._claims:
            claim.on_loss.remove(self._cancel)
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
            message = "a lock was lost while its body ran"
            raise LockLost(message) from error


async def _leave(bodies: Bodies[_Body[T]], error: BaseException | None) -> None:
    body = bodies.newest(this_task)
    if body is None:
        message = "this lock is not held by an async with statement"
        raise NotHeld(message)
    await body.leave(error)
