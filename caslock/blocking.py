"""The blocking API: `Lock`, `MultiLock`, `QuorumLock` and their holds.

An interrupt (Ctrl-C, a signal handler that raises) may strike between any two steps here: each public call that takes
or gives back something has one guard, which has that finished in another thread first (`finish`).  Before the first
step of `__exit__` nothing can be guarded: then the hold is still there to be released, or its lease ends.
"""

from __future__ import annotations

import sys
import weakref
from abc import ABC
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast

from caslock.errors import CaslockError, NotAcquired, NotHeld, StoreError
from caslock.local import linger, tickets
from caslock.local.hold import Held, Holding, slot_of
from caslock.local.holds import Holds
from caslock.local.lock import OneKey, ReadWrite, SeveralLocks, SeveralStores, SharedLock, SingleLock
from caslock.local.settings import Own, wait_time
from caslock.local.threads import finish, mend, running_task, thread_runtime
from caslock.local.with_blocks import add_release_error
from caslock.local.workers import run
from caslock.process.guards import on_failure
from caslock.protocol.exchange import Sent, answered
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HELD
from caslock.store import ABSENT, Store

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from caslock.local.lock import Adopting, State
    from caslock.local.lock_state import LockState
    from caslock.local.multi import MultiState
    from caslock.local.quorum import QuorumState
    from caslock.local.read_write import ReadWriteState
    from caslock.local.semaphore import SemaphoreState
    from caslock.local.threads import ThreadRuntime
    from caslock.local.with_blocks import WithBlocks
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Record

    Task = asyncio.Task[object]


class _Held(Held):
    """What `Hold` and `MultiHold` have in common: to be released, extended, and a context manager that releases."""

    __slots__ = ()

    def extend(self, ttl: float | None = None) -> None:
        """Replace the lease with one of `ttl` seconds from now (None: its present ttl), also for later renewals.

        A `MultiHold` extends the leases of all its keys.  Never adds to a lease, extends it past ``max_hold``, or
        re-creates a lost one.  Raises `LockLost` if the lease is lost, `StoreUnavailable` if there was no answer,
        `NotHeld` after the release.
        """
        with on_failure(self._mend):  # an interrupt may leave a mutex taken, and the renewer waiting for it
            run(self._renewed(ttl))

    def _mend(self) -> None:
        for hold in self._each:
            mend(hold._attempt)

    def release(self) -> None:
        """Release the hold; any thread may call this.  The key becomes free with the owner's last hold.

        A `MultiHold` releases all its keys, in reverse order, even if one release raises.  Raises `LockLost` if the
        lease had ended or was taken away before, `NotHeld` if this hold has already been released, `StoreUnavailable`
        if there was no answer: call it again, or let the lease expire.  Returns or raises within three request
        timeouts, even if the server hangs.
        """
        try:
            self._release()
        except CaslockError:
            raise
        except BaseException as error:  # interrupted: release first
            finish(self._each, self._released, error)
            raise

    def _release(self) -> None:
        run(self._released())

    @property
    def _is_held(self) -> bool:
        """Whether no release of it has begun."""
        return any(hold._is_open and hold._attempt.state is HELD for hold in self._each)

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
        except BaseException as trouble:  # an error of the release, or an interrupt
            if isinstance(trouble, NotHeld) and self._handed_over:
                return
            if not isinstance(trouble, CaslockError) and self._is_held:  # interrupted before the release had begun
                with suppress(CaslockError, ValueError):
                    self.release()
            if error is None or not isinstance(trouble, Exception):
                raise
            add_release_error(error, trouble)  # whatever a release raises, it never masks the error of the block


class Hold(Holding, _Held):
    """One successful acquire of a `Lock`: a context manager that releases it."""

    __slots__ = ("_task",)
    _task: weakref.ref[Task]  # set only where an asyncio task has acquired it

    def _release(self) -> None:
        """Send one request, if that is enough: see `LockState.begin_removal`."""
        state, attempt = self._state, self._attempt
        if state.settings.linger and linger.keep(state, self):
            return
        runtime: ThreadRuntime = state.runtime  # type: ignore[assignment] # it is that of the blocking API
        removal = state.begin_removal(self)
        sent: Sent | None = None
        if removal is not None:
            try:
                try:
                    entry = runtime.direct.invalidate(attempt.key, removal.expected)
                except (StoreError, ValueError) as error:
                    sent = Sent(removal, error)
                else:
                    if state.end_removal(self, entry):
                        return
                    sent = Sent(removal, answered(attempt, removal, entry))
            finally:
                attempt.mutex.release()  # which `begin_removal` has taken
        run(state.finish_release(self, NEVER, sent))

    def hand_over(self) -> str:
        """Hand the hold over to another process, and return a ticket for `Lock.adopt` or `Semaphore.adopt` there.

        The ticket works once.  It is a text of letters, digits, ``-`` and ``_``: about 130 characters and the key.  It
        names no server and has no password.  The hold keeps its fence, but nobody renews it until it is adopted: that
        has to happen within one `ttl` from now (or half of the rest of `max_hold`, if less).  Here the hold is over, as
        after a release: leaving its block does nothing then.  It takes one request.

        Raises `LockLost`, `StoreError` or `StoreUnavailable` as `extend` does: then it is still held here; release it.
        Raises RuntimeError if it was entered more than once, or belongs to no `Lock` or `Semaphore`; `NotHeld` after a
        release or in a forked child.
        """
        with on_failure(self._mend):
            return run(self._state.hand_over(self))

    def _other_task(self) -> Task | None:
        """Return the asyncio task that has acquired this hold and goes on, unless it is the one that runs."""
        known = getattr(self, "_task", None)
        holder: Task | None = None if known is None else known()
        return None if holder is None or holder.done() or holder is running_task() else holder


class SemaphoreHold(Hold):
    """One successful acquire of a `Semaphore`: a context manager that releases it."""

    __slots__ = ()

    @property
    def slot(self) -> int:
        """A number from 0 to permits - 1 that no other live hold has: to pick a port, a licence, a shard."""
        return slot_of(self)


class WriteHold(Hold):
    """One successful acquire of `ReadWriteLock.write`: a context manager that releases it."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Read from now on, and let others read: no other writer gets in between.

        It takes one request, which replaces the lease as `extend` does.  The hold keeps its fence, and leaving its
        block releases it.  It is one of the ``read`` side now, which this thread may enter once more.

        Raises what `Hold.extend` does.  After `StoreUnavailable`, others can read from the next renewal or `extend`
        on, if not before.  Raises RuntimeError if the side was entered more than once.
        """
        with on_failure(self._mend):
            run(cast("ReadWriteState", self._state).downgrade(self))


def _refuse_other_task(attempt: Attempt) -> None:
    for level in attempt.levels:
        other = cast("Hold", level)._other_task()
        if other is not None:
            message = (
                f"lock {attempt.key!r} is held by another task of this thread, {other.get_name()}: "
                "a Lock can't tell the tasks of one thread apart. Use AsyncLock."
            )
            raise RuntimeError(message)


def _hold(state: LockState, attempt: Attempt, kind: type[H] = Hold) -> H:  # type: ignore[assignment] # python/mypy#3737
    """Make a hold; raises RuntimeError where another asyncio task of this thread holds the lock."""
    if attempt.levels and attempt.caller is state.runtime.me():  # else another thread has just resumed it
        _refuse_other_task(attempt)
    hold = kind(state, attempt)
    if "asyncio" in sys.modules and (task := running_task()) is not None:
        hold._task = weakref.ref(task)
    return hold


def _adopted(begun: H) -> H:
    """Adopt the hold of a ticket."""
    state = begun._state
    try:
        held = run(tickets.adopt(begun))
        state.committed[held] = None
        return held  # noqa: TRY300 - inside the guard
    except CaslockError:
        raise
    except BaseException as error:  # interrupted: undo it first
        finish(begun._each, partial(state.undo, begun, error), error)
        raise


B = TypeVar("B", Hold, SemaphoreHold, WriteHold, "MultiHold")
K = TypeVar("K", Hold, SemaphoreHold, WriteHold)
H = TypeVar("H", bound=Hold)


class _Acquired(ABC, Generic[B]):
    """What all locks have in common: to be acquired, and a context manager."""

    _state: State[B]
    _timeout: float | None
    _blocks: WithBlocks[B]
    _make: Callable[[LockState, Attempt], Hold] = staticmethod(_hold)

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - threading.Lock's own signature
        timeout: float | Own | None = Own.TIMEOUT,
    ) -> B | None:
        """Acquire or re-enter.  Returns None if another owner held the key for all of `timeout` seconds.

        As with `threading.Lock`: ``blocking=False`` is one try, ``timeout=-1`` (or None) waits forever.
        Raises `StoreUnavailable` or `OutcomeUnknown` if the store did not answer, `LockLost` when re-entering a
        lock whose lease has ended: release its hold first.  Even after None, a request that got no answer may still be
        applied once the holder has released; its record then keeps the key taken for one ttl at the most.
        """
        try:
            return self._acquire(wait_time(self._timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    def release(self) -> None:
        """Release the newest hold of this thread; see `Hold.release`.  Raises `NotHeld` when it has none."""
        hold = cast("Hold", self._state.newest_hold())
        if hold._other_task() is not None:
            message = f"lock {hold.key!r} is not held by this task, but by another one of this thread"
            raise hold._attempt.concerns(NotHeld(message))
        hold.release()

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
            held.release()
            self._blocks.pop(held, None)
        except BaseException as trouble:  # an error of the release, or an interrupt
            if not isinstance(trouble, CaslockError):  # interrupted, perhaps before the release had begun
                with suppress(CaslockError, ValueError):
                    held = held or self._blocks.newest(self._me)
                    if held._is_held:
                        held.release()
            if held is not None:
                self._blocks.pop(held, None)
                if isinstance(trouble, NotHeld) and held._handed_over:
                    return
            if error is None or not isinstance(trouble, Exception):
                raise
            add_release_error(error, trouble)

    def _me(self) -> object:
        return self._state.runtime.me()

    def _take(self, begun: Any, timeout: float | None) -> B:  # noqa: ANN401 - what `begin` has returned
        return run(self._state.acquire(begun, timeout))

    def _acquire(self, timeout: float | None, blocks: WithBlocks[B] | None = None) -> B:
        """Acquire, and begin one of `blocks`."""
        begun, me, held = self._state.begin(self._make), self._state.runtime.me(), None
        try:
            held = self._take(begun, timeout)
            # Last, and Python looks for signals after none of these: an interrupt before them leaves garbage.
            self._state.committed[held] = None
            if blocks is not None:
                blocks[held] = me
            return held  # noqa: TRY300 - inside the guard
        except CaslockError:
            raise
        except BaseException as error:  # interrupted: undo it first
            self._blocks.pop(held, None)  # type: ignore[arg-type] # None is not there
            finish(begun._each, partial(self._state.undo, begun, error), error)
            raise


class _OneKey(_Acquired[K]):
    """What locks on one key of one store have in common."""

    _state: Any  # a LockState

    def _take(self, begun: Any, timeout: float | None) -> K:  # noqa: ANN401 - what `begin` has returned
        """Send one request, if that is enough: see `LockState.begin_put`."""
        state: LockState = self._state
        runtime: ThreadRuntime = state.runtime  # type: ignore[assignment] # it is that of the blocking API
        hold: K = begun
        put = state.begin_put(hold)
        if put is None:
            if (state.settings.linger and linger.resume(state, hold)) or state.re_enter(hold):
                return hold
            return run(state.win(hold, timeout))
        try:
            entry = runtime.direct.put_if_version(state.key, put.value, ABSENT, state.settings.ttl)
        except (StoreError, ValueError) as error:
            first = Sent(put, error)
        else:
            if state.end_put(hold, put, entry):
                return hold
            first = Sent(put, answered(hold._attempt, put, entry))
        return run(state.win(hold, timeout, first=first))  # not above: each later error would tell of the first one


class Lock(SingleLock[Store, Hold], _OneKey[Hold]):
    """A lock on one key of a store, renewed until it is released.  Cheap to create, thread-safe, reusable.

    >>> with Lock(store, "room:42", timeout=5) as hold:  # NotAcquired if somebody else keeps it for 5 s
    ...     book(room=42, fence=hold.fence)

    Like `threading.RLock`: one thread at a time holds it, the same thread re-enters without a request, and it is free
    after as many releases as acquires.  It can't tell the asyncio tasks of one thread apart: where a second task would
    re-enter it, acquire raises RuntimeError; use `AsyncLock`.  A signal handler must not wait for a key that its own
    thread holds or is acquiring, as that thread continues only when the handler returns: use ``timeout=0`` there, and a
    Lock object of its own.  Nor may it raise a `CaslockError`: the interrupted code would take it for its own.
    """

    _state: LockState
    _runtime = staticmethod(thread_runtime)
    _is_blocking = True

    @classmethod
    def adopt(cls, store: Store, ticket: str, **settings: Unpack[Adopting[Hold]]) -> Hold:
        """Take over the hold that `Hold.hand_over` has handed over, with the same key, owner and fence.

        It takes two requests, and does not wait.  From then on the hold is renewed here, for as long as something
        refers to it; release it, or use it in a ``with`` block.  Only a Lock with the same named `owner`
        can re-enter it.

        Args:
            store: where the hold is: the same server, and the same prefix.
            ticket: what `Hold.hand_over` has returned.
            settings: ``ttl``, ``auto_renew``, ``max_hold``, ``on_lost``, ``note`` and ``retry``, as for `Lock`.
                Without ``ttl`` or ``note``, they are those of before.  Without ``max_hold``, the old one goes on,
                less one lease for the ticket's time in transit; a new one counts from now.

        Raises:
            LockLost: the ticket was used, also by an adoption that got no answer, has expired, or is for another store;
                nothing was changed.
            StoreUnavailable: no answer.  Either the ticket is still valid, or it was used and nobody has the hold
                (and `min_hold` keeps the key no longer): adopt again to find out.  `OutcomeUnknown`: a request may
                still be applied.
            StoreError: the store has refused the request.
            ValueError, TypeError: the text is no ticket, or a setting is invalid; no request was sent.

        """
        return _adopted(cls._adoption(store, ticket, settings, _hold))

    def locked(self) -> bool:
        """Return whether the key is taken: held by any owner, or kept after a release (`min_hold`, `linger`)."""
        return self.holder() is not None

    def holder(self) -> Record | None:
        """Return the record of the present holder, with its fence, or None."""
        return run(self._state.holder())

    def force_release(self) -> Record | None:
        """Take the key from its holder and return the holder's record; the holder learns of the loss when it renews.

        The next fence is larger; a resource that does not check fences is not protected from the old holder.
        """
        return run(self._state.force_release())


class Semaphore(SharedLock[Store, SemaphoreHold], _OneKey[SemaphoreHold]):
    """A key that up to `permits` may hold at a time, over all processes.  Cheap to create, thread-safe, reusable.

    >>> with Semaphore(store, "licences", permits=3) as hold:
    ...     use(licence=hold.slot)

    Each acquire takes a permit, even in a thread that holds one already; ``hold.slot`` is the number of the permit.
    The fence grows with each acquire.  A holder that dies blocks its permit for one `ttl`, counted while somebody else
    holds or waits.
    """

    _state: SemaphoreState
    _runtime = staticmethod(thread_runtime)
    _make = staticmethod(partial(_hold, kind=SemaphoreHold))

    @classmethod
    def adopt(cls, store: Store, ticket: str, **settings: Unpack[Adopting[SemaphoreHold]]) -> SemaphoreHold:
        """Take over a semaphore's hold that `Hold.hand_over` has handed over, with the same key, slot and fence.

        The settings and errors are those of `Lock.adopt`; the number of permits comes with the ticket.
        """
        return _adopted(cls._adoption(store, ticket, settings, cls._make))

    def locked(self) -> bool:
        """Return whether all permits are taken, perhaps by holders that have died and whose places are not free yet."""
        return run(self._state.locked())

    def holders(self) -> tuple[Record, ...]:
        """Return a record for each hold, with its fence; some of them may have died."""
        return run(self._state.holders())

    def force_release(self) -> tuple[Record, ...]:
        """Take the key from all who hold it, and return their records; they learn of the loss when they renew."""
        return run(self._state.force_release_all())


class _Side(OneKey, _OneKey[K]):
    """What both sides of a `ReadWriteLock` have in common."""

    _state: ReadWriteState

    def locked(self) -> bool:
        """Return whether anybody holds this side, or something else has the key."""
        return bool(self.holders())

    def holders(self) -> tuple[Record, ...]:
        """Return a record for each hold of this side, with its fence; some of them may have died."""
        return run(self._state.holders())


class ReadSide(_Side[Hold]):
    """The side of a `ReadWriteLock` that many may hold at a time, while nobody writes or waits to write."""


class WriteSide(_Side[WriteHold]):
    """The side of a `ReadWriteLock` that one may hold, alone."""

    _make = staticmethod(partial(_hold, kind=WriteHold))


class ReadWriteLock(ReadWrite[Store, Hold]):
    """A key that many may read, or one write.

    >>> prices = ReadWriteLock(store, "prices")
    >>> with prices.read:
    ...     show()

    Each side is acquired as a `Lock` is, and re-enters as it does.  A writer that waits lets no new reader in.  A
    thread that reads can't upgrade to writing: two that do so would deadlock.  All holds have fences: a resource can
    refuse the late write of an earlier writer, or earlier reader.
    """

    _runtime = staticmethod(thread_runtime)
    read: ReadSide
    """The side for those who read."""
    write: WriteSide
    """The side for those who write."""

    def _sides(self, reads: ReadWriteState, writes: ReadWriteState, timeout: float | None) -> None:
        self.read, self.write = ReadSide(reads, timeout), WriteSide(writes, timeout)

    def force_release(self) -> tuple[Record, ...]:
        """Take the key from all who hold it, and return their records; they learn of the loss when they renew."""
        return run(self.write._state.force_release_all())


class QuorumLock(SeveralStores[Store, Hold], _Acquired[Hold]):
    """A lock on one key at several independent stores, held by whoever has a majority of their leases (Redlock).

    >>> with QuorumLock([store1, store2, store3], "room:42", timeout=5) as hold:
    ...     book(room=42)

    It goes on working while fewer than half of the stores are lost.  There are no fences, because the stores do not
    agree on a number: `Hold.fence` raises `StoreError`.  In all else it behaves as `Lock` does.
    """

    _state: QuorumState
    _runtime = staticmethod(thread_runtime)


class MultiHold(Holds[Hold], _Held):
    """The holds of one successful `MultiLock.acquire`: a context manager.

    ``holds["room:42"]`` is one of them, and ``"room:42" in holds`` says whether that key is.
    """

    __slots__ = ()


class MultiLock(SeveralLocks[Store, Lock | Semaphore | ReadSide | WriteSide, Hold, MultiHold], _Acquired[MultiHold]):
    """Several locks as one: all or nothing, acquired in one order.

    >>> with MultiLock(store, ["room:42", "user:7"], timeout=5) as holds:
    ...     book(room=42, user=7, fence=holds["room:42"].fence)

    Because of that order MultiLocks do not deadlock each other, unless a thread acquires one while it holds another
    lock.  There is no `locked` and no `holder`: each key may have a holder of its own, so ask a `Lock` of that key.
    """

    _state: MultiState[Hold, MultiHold]
    _lock_types, _hold_type = (Lock, Semaphore, ReadSide, WriteSide), MultiHold

    def release(self) -> None:
        """Release the newest hold of this thread; see `MultiHold.release`."""
        self._state.newest_hold().release()
