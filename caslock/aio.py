"""The law of this file: what a user of asyncio sees; it decides nothing but whom a lost lease cancels."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

from caslock.checks import Own, wait_time, waiting
from caslock.claim import Retry
from caslock.errors import CaslockError, LockLost, NotAcquired
from caslock.hold import Holding
from caslock.lockstate import LockState, Settings
from caslock.multi import Holds, MultiState, given_keys, given_locks
from caslock.task_world import TaskWorld, this_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType

    from tenacity.wait import WaitBaseT

    from caslock.claim import Claim
    from caslock.record import Record
    from caslock.store import AsyncStore, Store


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
        self._bodies = Bodies()

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
        self._bodies.enter([hold])
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        await self._bodies.leave(self.release, error)

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
        """Release every hold in reverse, all of them even when one release raises."""
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
        else:
            world = TaskWorld(store)
            self._state = MultiState(LockState(world, key, **settings) for key in given_keys(keys))
        self._timeout = waiting(timeout)
        self._bodies = Bodies()

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
        self._bodies.enter(list(holds))
        return holds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        await self._bodies.leave(self.release, error)

    async def _acquire(self, timeout: float | None) -> AsyncMultiHold:
        return await self._state.acquire(AsyncHold, AsyncMultiHold, timeout)


class Bodies:
    """The bodies of ``async with`` that the loss of a lease cancels, as `asyncio.timeout` does."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[asyncio.Task[object], list[_Body]] = {}

    def enter(self, holds: Sequence[Holding]) -> None:
        """Begin a body in this task."""
        task = this_task()
        body = _Body(task, [hold.claim for hold in holds])
        self._open.setdefault(task, []).append(body)

    async def leave(self, release: Callable[[], Awaitable[None]], error: BaseException | None) -> None:
        """End the newest body of this task, and release."""
        task = this_task()
        bodies = self._open.get(task, [])
        ours_alone = bodies.pop().leave() if bodies else False
        if not bodies:
            self._open.pop(task, None)
        try:
            await release()
        except CaslockError as trouble:
            if error is None or (ours_alone and isinstance(error, asyncio.CancelledError)):
                raise trouble from error
            error.add_note(str(trouble))
        else:
            if ours_alone and isinstance(error, asyncio.CancelledError):
                message = "a lock was lost while its body ran"
                raise LockLost(message) from error


class _Body:
    """One body of ``async with``, and the task that runs it."""

    def __init__(self, task: asyncio.Task[object], claims: list[Claim]) -> None:
        self._task = task
        self._claims = claims
        self._cancelling = task.cancelling()
        self._cancelled = False
        for claim in claims:
            claim.on_loss.append(self._cancel)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def leave(self) -> bool:
        """From here on loss cancels nothing; whether it has, and nobody else has cancelled the task."""
        for claim in self._claims:
            claim.on_loss.remove(self._cancel)
        return self._cancelled and self._task.uncancel() <= self._cancelling
