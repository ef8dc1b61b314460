"""The blocking API: `Lock`, `MultiLock`, `QuorumLock` and their holds.

An interrupt (Ctrl-C, a signal handler that raises) may strike between any two steps here: each public call that takes
or gives back something has one guard, which finishes that first.  Before the first step of `__exit__` nothing can be
guarded: then the hold is still there to be released, or its lease ends.
"""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

from caslock.errors import CaslockError, NotAcquired, NotHeld, with_notes
from caslock.guards import on_failure
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.lock import SeveralLocks, SeveralStores, SingleLock
from caslock.local.settings import Own, wait_time
from caslock.local.threads import mend, running_task, start_thread, thread_runtime
from caslock.local.workers import run
from caslock.store import Store

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Sequence
    from types import TracebackType

    from caslock.local.lock_state import LockState
    from caslock.local.multi import MultiState
    from caslock.local.quorum import QuorumState
    from caslock.local.with_blocks import WithBlocks
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Record

    Task = asyncio.Task[object]


class _Held(ABC):
    """What `Hold` and `MultiHold` have in common: to be released, extended, and a context manager that releases."""

    __slots__ = ()

    @abstractmethod
    def ensure_held(self) -> None:
        """See `Holding.ensure_held`."""

    @abstractmethod
    def _each(self) -> Sequence[Hold]: ...

    @abstractmethod
    def _renewed(self, ttl: float | None) -> Coroutine[object, object, None]: ...

    @abstractmethod
    def _released(self) -> Coroutine[object, object, None]: ...

    def extend(self, ttl: float | None = None) -> None:
        """Replace the lease with one of `ttl` seconds from now (None: its present ttl), also for later renewals.

        A `MultiHold` extends the leases of all its keys.  Never adds to a lease, extends it past ``max_hold``, or
        re-creates a lost one.  Raises `LockLost` if the lease is lost, `StoreUnavailable` if there was no answer,
        `NotHeld` after the release.
        """
        with on_failure(self._mend):  # an interrupt may leave a mutex taken, and the renewer waiting for it
            run(self._renewed(ttl))

    def _mend(self) -> None:
        for hold in self._each():
            mend(hold._attempt)

    def release(self) -> None:
        """Release the hold; any thread may call this.  The key becomes free with the owner's last hold.

        A `MultiHold` releases all its keys, in reverse order, even if one release raises.  Raises `LockLost` if the
        lease had ended or was taken away before, `NotHeld` if this hold has already been released, `StoreUnavailable`
        if there was no answer: call it again, or let the lease expire.  Returns or raises within three request
        timeouts, even if the server hangs.
        """
        try:
            run(self._released())
        except CaslockError:
            raise
        except BaseException:  # interrupted: release first
            try:
                self._leave()
            except BaseException:  # that was interrupted, too: once more
                self._leave()
                raise
            raise

    def _leave(self) -> None:
        """Release what is still to be released."""
        self._mend()
        for hold in reversed(self._each()):
            if hold._is_open:
                with suppress(CaslockError, ValueError):
                    run(hold._released())

    def __enter__(self) -> Self:
        """Return the hold; leaving the block releases it.

        Raises `NotHeld` after a release, and `LockLost` if the lease has already ended (what is left is released).
        """
        try:
            self.ensure_held()
        except NotHeld:
            raise
        except BaseException:  # lost, or interrupted
            with suppress(CaslockError, ValueError):
                self.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release.  If the block raised, a release error is added to that exception as a note."""
        try:
            self.release()
        except Exception as trouble:  # whatever a release raises, it never masks the error of the block
            if error is None:
                raise
            error.add_note(with_notes(trouble))
        except BaseException:  # an interrupt may strike before the release has begun
            with suppress(CaslockError, ValueError):
                self.release()
            raise


class Hold(Holding, _Held):
    """One successful acquire of a `Lock`: a context manager that releases it."""

    __slots__ = ("_task",)
    _task: weakref.ref[Task]  # set only where an asyncio task has acquired it

    def _each(self) -> Sequence[Hold]:
        return (self,)

    def _other_task(self) -> Task | None:
        """Return the asyncio task that has acquired this hold and goes on, unless it is the one that runs."""
        known = getattr(self, "_task", None)
        holder: Task | None = None if known is None else known()
        return None if holder is None or holder.done() or holder is running_task() else holder


def _refuse_other_task(attempt: Attempt) -> None:
    for level in attempt.levels:
        other = cast("Hold", level)._other_task()
        if other is not None:
            message = (
                f"lock {attempt.key!r} is held by another task of this thread, {other.get_name()}: "
                "a Lock can't tell the tasks of one thread apart. Use AsyncLock."
            )
            raise RuntimeError(message)


def _newest(state: LockState) -> Hold:
    hold = cast("Hold", state.newest_hold())
    if hold._other_task() is not None:
        message = f"lock {state.key!r} is not held by this task, but by another one of this thread"
        raise NotHeld(message)
    return hold


class HoldMaker(list[Hold]):
    """Makes holds and keeps them, so that those that an interrupt keeps from the caller can be released."""

    def __call__(self, state: LockState, attempt: Attempt) -> Hold:
        """Make one; raises RuntimeError where another asyncio task of this thread holds the lock."""
        if attempt.levels:
            _refuse_other_task(attempt)
        hold = Hold(state, attempt)
        if "asyncio" in sys.modules and (task := running_task()) is not None:
            hold._task = weakref.ref(task)
        self.append(hold)
        return hold

    def take_back(self, interrupt: BaseException) -> None:
        """Release what is still held; errors become notes of the interrupt."""
        for hold in reversed(self):
            if hold._is_open:
                hold._keep_nothing()
                try:
                    hold.release()
                except (CaslockError, ValueError) as trouble:
                    interrupt.add_note(with_notes(trouble))


B = TypeVar("B", Hold, "MultiHold")
B_co = TypeVar("B_co", covariant=True)


class _State(Protocol[B_co]):
    """What the states of all locks have in common."""

    @property
    def states(self) -> Sequence[LockState]: ...

    def acquire(self, make: HoldMaker, timeout: float | None) -> Coroutine[object, object, B_co]: ...


class _Acquired(ABC, Generic[B]):
    """What all locks have in common: to be acquired, and a context manager."""

    _state: _State[B]
    _timeout: float | None
    _blocks: WithBlocks[B]

    def acquire(self, blocking: bool = True, timeout: float | Own | None = Own.TIMEOUT) -> B | None:  # noqa: FBT001, FBT002 - threading.Lock's own signature
        """Acquire or re-enter.  Returns None if another owner held the key for all of `timeout` seconds.

        As with `threading.Lock`: ``blocking=False`` is one try, ``timeout=-1`` (or None) waits forever.
        Raises `StoreUnavailable` or `OutcomeUnknown` if the store did not answer, `LockLost` when re-entering a
        lock whose lease has ended: release its hold first.  If it returns None, a request that got no answer may still
        be applied after the holder releases; its record then expires within one ttl.
        """
        try:
            return self._acquire(wait_time(self._timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    def __enter__(self) -> B:
        """Acquire within the lock's own timeout, or raise `NotAcquired`."""
        return self._acquire(self._timeout, self._blocks)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release.  If the block raised, a release error is added to that exception as a note."""
        held: B | None = None
        try:
            held = self._blocks.newest(self._me)
            try:
                held.__exit__(kind, error, trace)
            except Exception:  # the release has ended, though not well; after an interrupt the block is left again
                self._blocks.leave(held)
                raise
            self._blocks.leave(held)
        except Exception:  # an outcome of the release, and no interrupt
            raise
        except BaseException:  # interrupted: release first, and only this block
            held = held or self._blocks.newest(self._me)
            if self._blocks.has(held):
                held.__exit__(None, error or KeyboardInterrupt(), None)
                self._blocks.leave(held)
            raise

    def _me(self) -> object:
        return self._state.states[0].runtime.me()

    def _acquire(self, timeout: float | None, blocks: WithBlocks[B] | None = None) -> B:
        """Acquire, and begin one of `blocks`."""
        made, held = HoldMaker(), None
        try:
            held = run(self._state.acquire(made, timeout))
            if blocks is not None:
                blocks.append((made[-1]._attempt.caller, held))
            return held  # noqa: TRY300 - inside the guard
        except CaslockError:
            raise
        except BaseException as error:  # interrupted: release first
            try:
                self._take_back(made, held, error)
            except BaseException:  # that was interrupted, too: once more
                self._take_back(made, held, error)
                raise
            raise

    def _take_back(self, made: HoldMaker, held: B | None, error: BaseException) -> None:
        """Undo what was acquired, and leave nothing of what was begun."""
        if held is not None:
            self._blocks.leave(held)
        made.take_back(error)
        for state in self._state.states:
            run(state.take_back(error))


class Lock(SingleLock[Store, Hold], _Acquired[Hold]):
    """A lease lock on one key of a store.  Cheap to create, thread-safe, reusable.

    Like `threading.RLock`: one thread at a time holds it, the same thread re-enters without a request, and it is free
    after as many releases as acquires.  It can't tell the asyncio tasks of one thread apart: where a second task would
    re-enter it, acquire raises RuntimeError; use `AsyncLock`.  A signal handler must not wait for a key that its own
    thread holds or is acquiring, as that thread continues only when the handler returns: use ``timeout=0`` there, and a
    Lock object of its own.  Nor may it raise a `CaslockError`: the interrupted code would take it for its own.
    """

    _state: LockState
    _runtime = staticmethod(thread_runtime)

    def release(self) -> None:
        """Release the newest hold of this thread; see `Hold.release`.  Raises `NotHeld` when it has none."""
        _newest(self._state).release()

    def locked(self) -> bool:
        """Return whether the key is held, by any owner."""
        return self.holder() is not None

    def holder(self) -> Record | None:
        """Return the record of the present holder, with its fence, or None."""
        return run(self._state.holder())

    def force_release(self) -> Record | None:
        """Take the key from its holder and return the holder's record; the holder learns of the loss when it renews.

        The next fence is larger; a resource that does not check fences is not protected from the old holder.
        """
        return run(self._state.force_release())


class QuorumLock(SeveralStores[Store, Hold], _Acquired[Hold]):
    """A lock on one key at several independent stores, held by whoever has a majority of their leases (Redlock).

    It goes on working while fewer than half of the stores are lost.  There are no fences, because the stores do not
    agree on a number: `Hold.fence` raises `StoreError`.  In all else it behaves as `Lock` does.
    """

    _state: QuorumState
    _runtime = staticmethod(thread_runtime)
    _start = staticmethod(start_thread)

    def release(self) -> None:
        """Release the newest hold of this thread; see `Hold.release`.  Raises `NotHeld` when it has none."""
        _newest(self._state).release()


class MultiHold(Holds[Hold], _Held):
    """The holds of one successful `MultiLock.acquire`: a context manager.

    ``holds["room:42"]`` is one of them, and ``"room:42" in holds`` says whether that key is.
    """

    __slots__ = ()

    def _each(self) -> Sequence[Hold]:
        return self._holds


class MultiLock(SeveralLocks[Store, Lock, Hold, MultiHold], _Acquired[MultiHold]):
    """Several locks as one: all or nothing, acquired in one order.

    So MultiLocks do not deadlock each other, as long as no thread acquires one while it holds another lock.  There is
    no `locked` and no `holder`, because each key may have a holder of its own: ask a `Lock` of that key.
    """

    _state: MultiState[Hold, MultiHold]
    _lock_type, _hold_type = Lock, MultiHold

    def release(self) -> None:
        """Release the newest hold of this thread; see `MultiHold.release`."""
        self._state.newest_hold().release()
