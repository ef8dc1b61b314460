"""The law of this file: what a user of threads sees; it decides nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, Unpack, cast

from caslock.bodies import Bodies
from caslock.checks import Own, no_settings, wait_time, waiting
from caslock.claim import Retry
from caslock.errors import CaslockError, NotAcquired, NotHeld, told
from caslock.hold import Holding
from caslock.lockstate import LockState, Settings
from caslock.multi import Holds, MultiState, given_keys, given_locks
from caslock.thread_world import ThreadWorld, mend, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from tenacity.wait import WaitBaseT

    from caslock.claim import Claim
    from caslock.record import Record
    from caslock.store import Store


class Hold(Holding):
    """One successful acquire of a `Lock`."""

    __slots__ = ()

    def extend(self, ttl: float | None = None) -> None:
        """Replace the lease by one of `ttl` seconds from now (None: the ttl it has); it is renewed with that ttl then.

        It is never added to, nor carried past ``max_hold``.  Raises `LockLost` when the lease is gone (it is never
        made anew), `StoreUnavailable` when there was no answer, `NotHeld` after the release.
        """
        try:
            run(self.renewed(ttl))
        except BaseException:  # an interrupt may leave the mutex taken, and the keeper waiting for it
            mend(self.claim)
            raise

    def release(self) -> None:
        """Release this hold, from any thread; the key is free after the last hold of its owner.

        Raises `LockLost` when the lease was over or taken away before, `NotHeld` when this hold was released already,
        `StoreUnavailable` when there was no answer: call it again, or let the lease run out.
        """
        try:
            run(self._state.release(self))
        except CaslockError:
            raise
        except BaseException:  # interrupted: leave first
            mend(self.claim)
            if self.is_open:
                with suppress(CaslockError):
                    run(self._state.release(self))
            raise


class Made(list[Hold]):
    """Makes holds and knows them, so that an interrupt before the caller has them can take them back."""

    def __call__(self, state: LockState, claim: Claim) -> Hold:
        """Make one."""
        hold = Hold(state, claim)
        self.append(hold)
        return hold

    def take_back(self) -> None:
        """Release all that is held still."""
        for hold in reversed(self):
            if hold.is_open:
                with suppress(CaslockError):
                    hold.release()


class Lock:
    """A lease lock on one key of a store.  Cheap to make, safe to share between threads, reusable.

    Like `threading.RLock`: one thread at a time holds it, the same thread re-enters at no request, and it is free after
    as many releases as acquires.  A signal handler must not use the Lock object, nor the memory store, that it may have
    interrupted: it would wait for itself.
    """

    def __init__(
        self,
        store: Store,
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
        """Name the key; nothing is requested yet.

        Args:
            store: where the lock lives, from `connect` or a store class.
            key: 1 to 1,024 characters, any Unicode.
            ttl: seconds the lease lasts unless it is renewed.
            timeout: seconds to wait for the lock; None for ever, 0 for one try.  A store that gives no answer adds
                to it, for a few requests at the most.
            owner: a name of your own, at most 512 bytes: every Lock with it re-enters.  None: private to this object.
                A hold of it whose process has died ends only when a whole lease goes by without any other of its
                holds, or by `break_`.
            auto_renew: renew the lease in the background, at a third of it.
            max_hold: seconds after which it is renewed no more.  None: no bound.
            on_lost: called once with the hold when the lease is found to be over, from a background thread (in asyncio:
                from the event loop).  It must not block: it delays the other renewals on that store.
            note: at most 1,024 bytes for people who look at the record.
            retry: how many more times a get and a put are sent which got no answer.
            poll: a tenacity wait strategy for the pauses between tries; default: jittered, 5 ms
                doubling to 0.5 s, and from 5 ms again whenever the key has changed hands (1 ms more for each process
                that was seen to have it).

        Raises:
            ValueError, TypeError: an argument is of no use.

        """
        self._state = LockState(
            ThreadWorld(store),
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
        self._bodies = Bodies[Hold]()

    def __repr__(self) -> str:
        """Say which key, and where."""
        return f"<Lock {self.key!r} at {self._state.world.store.traits.place}>"

    @property
    def key(self) -> str:
        """The key."""
        return self._state.key

    @property
    def owner(self) -> str:
        """The owner that stands in the record while this lock is held."""
        return self._state.owner

    def acquire(self, blocking: bool = True, timeout: float | Own | None = Own.TIMEOUT) -> Hold | None:  # noqa: FBT001, FBT002 - threading.Lock's own signature
        """Acquire the lock, or re-enter it; None when somebody else held it for `timeout` seconds.

        As with `threading.Lock`: ``blocking=False`` is one try, ``timeout=-1`` (or None) waits for ever.
        Raises `StoreUnavailable` or `OutcomeUnknown` when the store gave no answer, `LockLost` when re-entering a
        lock whose lease is over.  After None, a request that got no answer may still be applied when the other has
        left; what it leaves behind ends by itself within a lease.
        """
        try:
            return self._acquire(wait_time(self._state.timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    def release(self) -> None:
        """Release the newest hold of this thread; see `Hold.release`.  Raises `NotHeld` when it has none."""
        cast("Hold", self._state.newest_hold()).release()

    def __enter__(self) -> Hold:
        """Acquire within the lock's own timeout, or raise `NotAcquired`."""
        hold = self._acquire(self._state.timeout)
        try:
            self._bodies.enter(hold.claim.by, hold)
        except BaseException as error:
            _release_body(self._bodies, hold, error)
            raise
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        held: Hold | None = None
        try:
            held = self._bodies.newest(self._state.world.me)
            _release_body(self._bodies, held, error)
        except Exception:
            raise
        except BaseException:  # interrupted: leave first, and nothing but this body
            held = held or self._bodies.newest(self._state.world.me)
            if held is not None and self._bodies.has(held):
                _release_body(self._bodies, held, error or KeyboardInterrupt())
            raise

    def _acquire(self, timeout: float | None) -> Hold:
        state, made = self._state, Made()
        try:
            return state.re_enter(made) or run(state.win(state.begin(), made, timeout))
        except CaslockError:
            raise
        except BaseException as error:
            made.take_back()
            run(state.take_back(error))
            raise

    def locked(self) -> bool:
        """Whether anybody holds the key now."""
        return self.holder() is not None

    def holder(self) -> Record | None:
        """Who holds the key now; None when nobody does."""
        return run(self._state.holder())

    def break_(self) -> Record | None:
        """Take the key away from whoever holds it, and tell who that was; its holder learns of the loss.

        The next fence is larger; a resource that does not check fences is not protected from the old holder.
        """
        return run(self._state.break_())


class MultiHold(Holds[Hold]):
    """The holds of one successful `MultiLock.acquire`; ``holds["room:42"]`` is one of them."""

    __slots__ = ()

    def extend(self, ttl: float | None = None) -> None:
        """Extend every hold; see `Hold.extend`."""
        for hold in self:
            hold.extend(ttl)

    def release(self) -> None:
        """Release what is not released yet, in reverse, all of it even when one release raises; see `Hold.release`."""
        try:
            run(self.released())
        except CaslockError:
            raise
        except BaseException:  # interrupted: leave first
            for hold in reversed(tuple(self)):
                mend(hold.claim)
                if hold.is_open:
                    with suppress(CaslockError):
                        hold.release()
            raise


class MultiLock:
    """Several locks as one: all or nothing, always taken in the same order, so that no two ever wait for each other."""

    def __init__(
        self,
        store: Store | Iterable[Lock],
        keys: Iterable[str] | None = None,
        *,
        timeout: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Name the keys of one store, or hand over locks of any stores: ``MultiLock([lock_a, lock_b])``.

        Duplicates count once.  The settings are those of `Lock`; locks that are handed over keep their own.  `timeout`
        is one deadline for all keys together.
        """
        if keys is None:
            self._state = MultiState[MultiHold](lock._state for lock in given_locks(store, Lock))  # noqa: SLF001 - our own class
            no_settings(settings)
        else:
            world = ThreadWorld(store)
            self._state = MultiState(LockState(world, key, **settings) for key in given_keys(keys))
        self._timeout = waiting(timeout)
        self._bodies = Bodies[MultiHold]()

    def __repr__(self) -> str:
        """Say which keys."""
        return f"<MultiLock of {', '.join(map(repr, self.keys))}>"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which they are taken."""
        return tuple(state.key for state in self._state.states)

    def acquire(self, blocking: bool = True, timeout: float | Own | None = Own.TIMEOUT) -> MultiHold | None:  # noqa: FBT001, FBT002 - as in Lock
        """Acquire all keys; None, and none held, when they could not all be had in time.  See `Lock.acquire`."""
        try:
            return self._acquire(wait_time(self._timeout, timeout, blocking=blocking))
        except NotAcquired:
            return None

    def release(self) -> None:
        """Release what this thread has acquired last; see `MultiHold.release`."""
        self._state.newest_holds().release()

    def __enter__(self) -> MultiHold:
        """Acquire all within the timeout, or raise `NotAcquired`."""
        holds = self._acquire(self._timeout)
        try:
            self._bodies.enter(self._state.me(), holds)
        except BaseException as error:
            _release_body(self._bodies, holds, error)
            raise
        return holds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release; trouble with that never masks the body's own exception (it gets a note)."""
        held: MultiHold | None = None
        try:
            held = self._bodies.newest(self._state.me)
            _release_body(self._bodies, held, error)
        except Exception:
            raise
        except BaseException:  # interrupted: leave first, and nothing but this body
            held = held or self._bodies.newest(self._state.me)
            if held is not None and self._bodies.has(held):
                _release_body(self._bodies, held, error or KeyboardInterrupt())
            raise

    def _acquire(self, timeout: float | None) -> MultiHold:
        made = Made()
        try:
            return run(self._state.acquire(made, MultiHold, timeout))
        except CaslockError:
            raise
        except BaseException as error:
            made.take_back()
            for state in self._state.states:
                run(state.take_back(error))
            raise


B = TypeVar("B", Hold, MultiHold)


def _release_body(bodies: Bodies[B], held: B | None, error: BaseException | None) -> None:
    if held is None:
        message = "this lock is not held by a with statement"
        raise NotHeld(message)
    try:
        held.release()
    except Exception as trouble:
        bodies.left(held)
        if error is None:
            raise
        error.add_note(told(trouble))
    else:
        bodies.left(held)
