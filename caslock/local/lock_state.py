"""The state of one Lock object, for both APIs, as coroutines.

It behaves as `threading.RLock` does: one thread (or task) at a time, the same one re-enters at no request, n releases
for n acquires.  Identity is an object of the thread or task, never its name or number, which are reused.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Self, TypeVar, cast

from caslock import observer
from caslock.errors import CaslockError, LockLost, NotAcquired, NotHeld
from caslock.fork import at_fork, generation
from caslock.guards import undoing
from caslock.local.hold import Holding
from caslock.local.refusals import BY_OURSELVES, busy, in_use, waited
from caslock.local.reports import call_on_lost, event_of
from caslock.local.stamps import Stamps, hostname
from caslock.protocol import acquire, release, renew, withdraw
from caslock.protocol.attempt import Attempt, LockSettings, Terms
from caslock.protocol.exchange import read
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import last_start_of_three
from caslock.protocol.writes import FREE_TTL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.local.shared import Shared
    from caslock.protocol.record import Observed, Record
    from caslock.protocol.runtime import Runtime

H = TypeVar("H", bound=Holding)


class LockState:
    """The state of one Lock object.  What it needs only once it is used is made at the first use."""

    __slots__ = (
        "_attempts",
        "_guard",
        "_inherited",
        "_nonce",
        "_numbers",
        "_queue",
        "_stamps",
        "_terms",
        "_unsettled",
        "generation",
        "key",
        "newest",
        "runtime",
        "settings",
    )

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings) -> None:
        self.runtime: Runtime = runtime
        self.key: str = key
        shorter = settings.max_hold < settings.ttl
        self.settings: LockSettings = settings._replace(ttl=settings.max_hold) if shorter else settings
        self.generation: int = 0  # of the process that uses it: none yet

    def _begin(self) -> None:
        """Take a new identity: at the first use, and in a forked child, which holds nothing of its parent's."""
        self._inherited = list(self._attempts.values()) if self.generation else []  # a forked child never held them
        self._attempts: dict[str, Attempt] = {}  # by hold id: all that wait, hold or are being released
        self._queue = cast("Shared", self.runtime.shared).queue(self.key)
        # Guards the attempts' levels, as any thread may release a hold; reentrant for signal handlers and `__del__`.
        self._guard = RLock()
        self._unsettled: Holding | None = None  # a release went without an answer and may be called again
        self._nonce = os.urandom(16).hex()
        self._numbers = itertools.count(1)
        settings = self.settings
        owner = settings.owner or f"{hostname()}:{self._nonce}"
        self._terms = Terms(self.runtime, self.key, owner, settings)
        self._stamps = Stamps(owner, settings.ttl, hostname(), settings.note)
        self.newest: str = ""  # hold id
        self.generation = generation()  # last, because other threads then rely on the rest

    def begun(self) -> Self:
        """Return this state as that of this process; call it before anything else that is used."""
        if self.generation != generation():
            with _begin_guard:
                if self.generation != generation():  # another thread may have been first
                    self._begin()
        return self

    @property
    def states(self) -> tuple[LockState]:
        """Those of the keys, as a `MultiState` has them."""
        return (self,)

    @property
    def owner(self) -> str:
        """The owner in the record while the lock is held."""
        return self.begun()._terms.owner

    def _attempt(self) -> Attempt:
        self.newest = hold = f"{self._nonce}.{next(self._numbers)}"  # which another thread may replace at once
        return Attempt(self._terms, hold, self._stamps, self.runtime.mutex(), self.runtime.me())

    def acquire(
        self, make: Callable[[LockState, Attempt], H], timeout: float | None, caller: object = None
    ) -> Coroutine[object, object, H]:
        """Acquire or re-enter (see `re_enter`); raises `NotAcquired` after `timeout` seconds.  To be awaited at once.

        Whatever else it raises, it has left nothing behind.  After an interrupt, call `take_back`.
        """
        if self.generation != generation():
            self.begun()
        hold = self.re_enter(make, caller) if self._attempts else None
        return self.win(self.begin(), make, timeout) if hold is None else _at_once(hold)

    def re_enter(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> H | None:
        """Re-enter, if this thread or task holds the lock, or the task `caller` for which it runs; else return None."""
        if self.generation != generation():
            self.begun()
        if not self._attempts:
            return None
        me = self.runtime.me()
        for attempt in list(self._attempts.values()):
            if attempt.caller is me or attempt.caller is caller:
                with self._guard:
                    if attempt.levels and not attempt.ending:
                        renew.check(attempt, self.runtime.now())
                        hold = make(self, attempt)
                        attempt.levels.append(hold)
                        return hold
            elif self.runtime.ended(attempt):
                attempt.lose("its event loop has ended")
                self._forget(attempt)
        return None

    def begin(self, limit: float = NEVER) -> Attempt:
        """Prepare a new attempt, which waits until `limit`: call `win` or `undo` next."""
        attempt = self._attempt()
        attempt.limit = limit
        self._attempts[attempt.hold_id] = attempt
        return attempt

    def enter_at_once(self, attempt: Attempt) -> bool:
        """Take our turn in this process if nobody else has it or waits for it; `undo` or `step_back` gives it back."""
        return self._queue.enter(attempt, self.runtime.now())

    async def step_back(self, attempt: Attempt) -> None:
        """Give back our turn, and the key if a put without an answer has taken it; `attempt` can try again.

        Whatever it raises, nothing of the attempt is left behind.
        """
        async with undoing(partial(self.undo, attempt)):
            await withdraw.step_back(self.runtime, attempt)
        self._queue.leave(attempt, self.runtime.now())

    async def _turn(self, attempt: Attempt, began: float, timeout: float | None, since: float | None) -> float | None:
        """Wait for our turn in this process; returns what is left of `timeout`, or raises `NotAcquired`."""
        limit = NEVER if timeout is None else began + timeout
        inside = [] if timeout == 0 else self._queue.inside(began)
        if any(other.caller is attempt.caller and other.levels for other in inside):
            observer.warn(f"lock {self.key!r} waits for itself: it is held {BY_OURSELVES}")
        del inside  # a waiter must not keep an abandoned hold alive
        if timeout == 0 or not await self._queue.turn(attempt, self.runtime, limit):
            now = self.runtime.now()
            raise NotAcquired(in_use(attempt, self._queue.inside(now), waited(now, began, since)))
        return None if timeout is None else max(0.0, limit - self.runtime.now())

    async def win(
        self,
        attempt: Attempt,
        make: Callable[[LockState, Attempt], H],
        timeout: float | None,
        *,
        entered: bool = False,
        since: float | None = None,
        observed: Observed | None = None,
    ) -> H:
        """Acquire; whatever it raises, nothing of the attempt is left behind.

        `entered`: it is our turn in this process already.  `since`: when a MultiLock began to wait, for the error.
        `observed`: the answer to a first put that was sent with others.
        """
        began = self.runtime.now()
        if since is None:
            attempt.limit = NEVER if timeout is None else began + timeout
        queued = False
        try:
            if not entered and not self._queue.enter(attempt, began):
                queued = True
                timeout = await self._turn(attempt, began, timeout, since)
            if not await self._ask(attempt, timeout, observed):
                raise NotAcquired(busy(attempt, waited(self.runtime.now(), began, since)))  # noqa: TRY301 - told below
            hold = self._hold(attempt, make)
        except GeneratorExit:  # its coroutine is closed: nothing can be awaited
            raise
        except BaseException as error:
            await self.undo(attempt, error)  # which may raise another one in its place
            if isinstance(error, NotAcquired) and observer.listens():
                self._tell_outcome(attempt, "busy", since or began, queued=queued, reason=str(error))
            raise
        if observer.listens():
            self._tell_outcome(attempt, "acquired", since or began, queued=queued)
        return hold

    def _tell_outcome(
        self, attempt: Attempt, name: str, since: float, *, queued: bool = False, reason: str = ""
    ) -> None:
        """Tell observers and the log how an acquire has ended that began at the moment `since`."""
        seconds = self.runtime.now() - since
        if attempt.limit > since and (queued or attempt.contention is not None):  # one try does not wait
            observer.tell("waited", event_of(attempt, seconds))
        observer.tell(name, event_of(attempt, seconds, reason))

    async def settle(
        self, attempt: Attempt, make: Callable[[LockState, Attempt], H], observed: Observed | None, since: float
    ) -> H | None:
        """Acquire in one try after a put that was sent with others; after None, call `undo` or `step_back`.

        Whatever it raises, nothing of the attempt is left behind.
        """
        async with undoing(partial(self.undo, attempt)):
            if not await acquire.acquire(self.runtime, attempt, 0.0, observed):
                return None
            hold = self._hold(attempt, make)
        if observer.listens():
            self._tell_outcome(attempt, "acquired", since)
        return hold

    def _hold(self, attempt: Attempt, make: Callable[[LockState, Attempt], H]) -> H:
        hold = make(self, attempt)
        on_lost = self.settings.on_lost
        if on_lost is not None:
            attempt.lease.on_loss.append(partial(call_on_lost, on_lost, hold))
        attempt.levels.append(hold)  # last: from now on others may report a loss
        self._unsettled = None
        self._watch(attempt)
        return hold

    # What a `QuorumState` does at several stores:

    def _ask(
        self, attempt: Attempt, timeout: float | None, observed: Observed | None
    ) -> Coroutine[object, object, bool]:
        return acquire.acquire(self.runtime, attempt, timeout, observed)

    def _withdraw(self, attempt: Attempt, error: BaseException) -> Coroutine[object, object, None]:
        return withdraw.give_up(self.runtime, attempt, error)

    def _watch(self, attempt: Attempt) -> None:
        self.runtime.watch(attempt)

    async def undo(self, attempt: Attempt, error: BaseException) -> None:
        """Leave nothing of a failed acquire behind, at the store or in the local queue."""
        try:
            await self._withdraw(attempt, error)
        finally:
            attempt.levels.clear()
            self._queue.leave(attempt, self.runtime.now())
            if attempt.settled:
                self._attempts.pop(attempt.hold_id, None)

    def _forget(self, attempt: Attempt) -> None:
        """Leave the local queue, and tell observers and the log once of a release, also if the store gave no answer."""
        now = self.runtime.now()
        self._queue.leave(attempt, now)
        known = self._attempts.pop(attempt.hold_id, None) is not None
        if known and not attempt.lease.lost and observer.listens():
            failed = "" if attempt.lease.record is None else "the release failed"
            observer.tell("released", event_of(attempt, now - attempt.lease.began, failed))

    async def take_back(self, error: BaseException) -> None:
        """Undo what an interrupt of this thread has left half done here."""
        if not self.generation:  # it was never used
            return
        me = self.runtime.me()
        for attempt in list(self._attempts.values()):
            if attempt.caller is me and (attempt.ending or not attempt.levels):
                await self.undo(attempt, error)
        self._queue.inside(self.runtime.now())

    async def release(self, hold: Holding, limit: float = NEVER, removed: Observed | None = None) -> None:
        """Release one hold; the key is free after the last one.  It can be called again after any interrupt.

        `removed` is the answer to a removal that was sent with others.  After a failure, no request begins at or after
        `limit`, nor after two request timeouts.
        """
        if not self._ends(hold):
            return
        attempt = hold._attempt
        try:
            if self._queue.waiting:
                self._queue.name_successor(attempt, self.runtime.now())
            await release.release(self.runtime, attempt, limit, removed)
        except LockLost:
            if attempt.lease.record is not None:  # the store has not answered
                self.release_later(hold)
                attempt.levels.clear()
            raise
        except (CaslockError, ValueError, GeneratorExit):
            raise
        except BaseException as error:  # interrupted or cancelled: release first, then raise it
            await release.leave_surely(self.runtime, attempt, error)
            raise
        finally:
            self._end(hold)

    def _ends(self, hold: Holding) -> bool:
        """Whether `hold` is the last level of its attempt; if it is not, release it."""
        if self.generation != generation():
            self.begun()
        attempt = hold._attempt
        if hold._generation != self.generation:  # inherited: only the child has this copy of the attempt
            attempt.levels = [other for other in attempt.levels if other is not hold]
            return False
        with self._guard:
            if hold not in attempt.levels:
                message = f"this hold of {self.key!r} has already been released"
                raise NotHeld(message)
            if len(attempt.levels) == 1:
                attempt.ending = True
                return True
            attempt.levels.remove(hold)
        renew.check(attempt, self.runtime.now())
        return False

    def _end(self, hold: Holding) -> None:
        """Note that a release has ended; one that got no answer may be called again."""
        attempt = hold._attempt
        if attempt.lease.record is None:
            self._forget(attempt)
            attempt.levels.clear()  # last: as long as a hold is open, an interrupted release is made once more
        else:
            self._unsettled = hold
            self._forget(attempt)

    def release_later(self, hold: Holding) -> None:
        """Release a hold in the background: its own release got no answer, or was not tried."""
        attempt = hold._attempt
        attempt.ending = True
        self._forget(attempt)
        self.runtime.in_background(partial(release.release_quietly, self.runtime, attempt), FREE_TTL)

    def leaves_key(self, hold: Holding) -> bool:
        """Whether the release of `hold` removes the record, and nobody in this process waits for it."""
        attempt = hold._attempt
        last = attempt.levels == [hold] and not hold._inherited
        return last and not self._queue.waiting and attempt.releases_by_removal(self.runtime.now())

    async def renew(self, attempt: Attempt, ttl: float | None) -> None:
        """Replace the lease."""
        await renew.renew(self.runtime, attempt, ttl)

    def newest_hold(self, me: object = None) -> Holding:
        """Return the newest hold of `me` (None: this thread or task), or one whose release went without an answer."""
        self.begun()
        me = me or self.runtime.me()
        for attempt in reversed(list(self._attempts.values())):
            if attempt.caller is me and attempt.levels:
                return cast("Holding", attempt.levels[-1])
        for attempt in reversed(self._inherited):
            if attempt.levels:
                return cast("Holding", attempt.levels[-1])
        if self._unsettled is not None and self._unsettled._is_open:
            return self._unsettled
        message = f"lock {self.key!r} is not held by this thread or task"
        if any(attempt.levels for attempt in self._attempts.values()):
            message = f"lock {self.key!r} is held by another thread or task: call release() on its Hold instead"
        raise NotHeld(message)

    async def holder(self) -> Record | None:
        """Who holds the key."""
        self.begun()
        limit = last_start_of_three(self.runtime)
        observed = await read(self.runtime, self._attempt(), limit)
        record = observed.record
        return None if record is None or record.free else self._told(record, observed.fence)

    def _told(self, record: Record, fence: int | None) -> Record:
        """Return a record as users see it: with its fence, if the store has fences."""
        fences = self.runtime.store.traits.fences and not record.foreign
        return record._replace(fence=fence if fences else None)

    async def force_release(self) -> Record | None:
        """Take the key away from whoever holds it."""
        self.begun()
        broken = await release.force_release(self.runtime, self._attempt())
        inside = self._queue.inside(self.runtime.now())
        if broken is None:
            return None
        for attempt in inside:
            # Not one whose acquire is still under way: it may have the key again, and there is nobody to tell yet.
            # Nor one whose release has begun: only its answer shows whether it was in time.
            if attempt.levels and not attempt.ending and attempt.lease.fence == broken.fence:
                attempt.lose("this process called force_release()")
        self._queue.inside(self.runtime.now())
        location = self.runtime.store.traits.location
        observer.warn(f"lock {self.key!r} at {location} was released by force; it was held by {broken}")
        return self._told(broken, broken.fence)


async def _at_once(hold: H) -> H:
    return hold


_begin_guard = RLock()


def _free_begin_guard() -> None:
    global _begin_guard  # noqa: PLW0603 - the parent may have held it at this moment
    _begin_guard = RLock()


at_fork(after_in_child=_free_begin_guard)
