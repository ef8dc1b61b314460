"""The law of this file: the core's coroutines, awaited; a cancelled task leaves nothing behind that it did not know of."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from typing import TYPE_CHECKING, Unpack, cast

from caslock import clock, core
from caslock.claim import Retry
from caslock.errors import LockLost, NotAcquired
from caslock.lockstate import Holding, LockState, Own, Settings, leave, wait_time, waiting
from caslock.multi import Holds, MultiState, given_keys, given_locks
from caslock.store import AsyncStore, Entry, Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from tenacity.wait import WaitBaseT

    from caslock.claim import Claim
    from caslock.record import Record
    from caslock.store import Traits


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

    def __init__(  # noqa: PLR0913 - as Lock
        self,
        store: AsyncStore | Store,
        key: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = None,  # noqa: ASYNC109 - a lock's timeout is part of what it is
        owner: str | None = None,
        auto_renew: bool = True,
        max_hold: float | None = None,
        on_lost: Callable[[Holding], object] | None = None,
        note: str = "",
        retry: Retry | tuple[int, int] = Retry(),  # noqa: B008 - an immutable tuple
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

    async def acquire(self, blocking: bool = True, timeout: float | None | Own = Own.TIMEOUT) -> AsyncHold | None:  # noqa: ASYNC109, FBT001, FBT002 - as Lock
        """Acquire the lock, or re-enter it; see `Lock.acquire`.  Cancelled, it leaves nothing behind."""
        try:
            return await self._state.acquire(AsyncHold, wait_time(self._state.timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    async def release(self) -> None:
        """Release the newest hold of this task; see `Hold.release`."""
        await self._state.release_last()

    async def __aenter__(self) -> AsyncHold:
        """Acquire within the lock's own timeout, or raise `NotAcquired`."""
        hold = await self._state.acquire(AsyncHold, self._state.timeout)
        self._bodies.enter([hold])
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        await self._bodies.leave(self._state, error)

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
        timeout: float | None = None,  # noqa: ASYNC109 - as AsyncLock
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

    async def acquire(self, blocking: bool = True, timeout: float | None | Own = Own.TIMEOUT) -> AsyncMultiHold | None:  # noqa: ASYNC109, FBT001, FBT002 - as Lock
        """Acquire all keys; None, and none held, when they could not all be had in time."""
        try:
            return await self._acquire(wait_time(self._timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    async def release(self) -> None:
        """Release what this task has acquired last."""
        await self._state.release_last()

    async def __aenter__(self) -> AsyncMultiHold:
        """Acquire all within the timeout, or raise `NotAcquired`."""
        holds = await self._acquire(self._timeout)
        self._bodies.enter(list(holds))
        return holds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        await self._bodies.leave(self._state, error)

    async def _acquire(self, timeout: float | None) -> AsyncMultiHold:  # noqa: ASYNC109 - as AsyncLock
        return await self._state.acquire(AsyncHold, AsyncMultiHold, timeout)


class Bodies:
    """The bodies of ``async with`` that the loss of a lease cancels, as `asyncio.timeout` does."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[asyncio.Task[object], list[_Body]] = {}

    def enter(self, holds: Sequence[Holding]) -> None:
        """Begin a body in this task."""
        task = _this_task()
        body = _Body(task, [hold.claim for hold in holds])
        self._open.setdefault(task, []).append(body)

    async def leave(self, state: LockState | MultiState[AsyncMultiHold], error: BaseException | None) -> None:
        """End the newest body of this task, and release."""
        task = _this_task()
        body = self._open[task].pop()
        if not self._open[task]:
            del self._open[task]
        ours_alone = body.leave()
        try:
            await leave(state, error)
        except LockLost as lost:
            raise lost from error
        if ours_alone and isinstance(error, asyncio.CancelledError):
            message = "; ".join(getattr(error, "__notes__", ["the lease was lost"]))
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


class TaskWorld:
    """What the core needs, for asyncio."""

    def __init__(self, store: object) -> None:
        """Check that the store is one."""
        if not isinstance(store, (AsyncStore, Store)):
            message = (
                f"a store has get, put_if_version, invalidate and traits; {type(store).__name__} has not: "
                "make one with caslock.connect_async(url) or a class in caslock.stores"
            )
            raise TypeError(message)
        native = inspect.iscoroutinefunction(store.get)
        self.store = cast("AsyncStore", store) if native else _InThreads(cast("Store", store))

    def now(self) -> float:
        """Seconds on the local clock."""
        return clock.now()

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        await asyncio.sleep(seconds)

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in a task of its own and wait for its end, however often this one is cancelled meanwhile."""
        task = asyncio.ensure_future(work())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        task.result()
        if cancelled is not None:
            raise cancelled

    def me(self) -> object:
        """Give the task that runs."""
        return _this_task()

    def mutex(self) -> AbstractAsyncContextManager[object]:
        """Make a mutex for one claim."""
        return asyncio.Lock()

    def turnstile(self) -> TaskTurnstile:
        """Make a turnstile for one Lock object."""
        return TaskTurnstile()

    def watch(self, claim: Claim) -> None:
        """Set a timer for the next renewal; the claim is known weakly, so a forgotten one is not renewed for ever."""
        self._come_back(weakref.ref(claim), min(claim.due, claim.deadline) if claim.auto_renew else claim.deadline)

    def unwatch(self, claim: Claim) -> None:
        """Cancel its timer."""
        if claim.no_visit is not None:
            claim.no_visit()

    def _come_back(self, reference: weakref.ref[Claim], due: float) -> None:
        claim = reference()
        if claim is not None and not claim.ending:
            loop = asyncio.get_running_loop()
            claim.no_visit = loop.call_later(max(0.0, due - clock.now()), self._visit, reference).cancel

    def _visit(self, reference: weakref.ref[Claim]) -> None:
        claim = reference()
        if claim is None:
            return
        task = asyncio.ensure_future(core.keep(self, claim))
        _renewals.add(task)  # the loop itself knows tasks weakly only

        def done(task: asyncio.Task[float | None]) -> None:
            _renewals.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            claim = reference()
            if error is not None:
                message = "a callback of a lock, or its store, has raised"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            if claim is not None and not claim.lost:
                again = clock.now() + claim.ttl / 12 if error is not None else task.result()
                if again is not None:
                    self._come_back(reference, again)

        task.add_done_callback(done)


_renewals: set[asyncio.Task[float | None]] = set()


class TaskTurnstile:
    """Lets one task at a time past, in the order of arrival."""

    def __init__(self) -> None:
        """Begin as free."""
        self._lock = asyncio.Lock()

    async def enter(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the core's own deadline
        """Wait up to `timeout` seconds (None: for ever)."""
        if timeout == 0 and self._lock.locked():
            return False
        try:
            async with asyncio.timeout(timeout):
                return await self._lock.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Let the next one in."""
        self._lock.release()


class _InThreads:
    """A blocking store as asyncio sees it: each verb in a worker thread."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def traits(self) -> Traits:
        return self._store.traits

    async def get(self, key: str) -> Entry | None:
        return await asyncio.to_thread(self._store.get, key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await asyncio.to_thread(self._store.put_if_version, key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await asyncio.to_thread(self._store.invalidate, key, version)


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        message = "an AsyncLock needs a running task"
        raise RuntimeError(message)
    return task
