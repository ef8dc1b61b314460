"""The state of one Lock object, for both APIs, as coroutines.

It behaves as `threading.RLock` does: one thread (or task) at a time, the same one re-enters at no request, n releases
for n acquires.  Identity is an object of the thread or task, never its name or number, which are reused.
"""

from __future__ import annotations

import itertools
import os
import weakref
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, cast

from caslock import observer
from caslock.errors import CaslockError, LockLost, NotAcquired, NotHeld, StoreError
from caslock.local import linger, tickets
from caslock.local.hold import Holding
from caslock.local.queue import LocalQueue, next_look
from caslock.local.refusals import BY_OURSELVES, Waited, busy, in_use
from caslock.local.reports import call_on_lost, event_of
from caslock.local.stamps import Stamps, hostname
from caslock.process import fork
from caslock.process.fork import generation
from caslock.protocol import acquire, release, renew, withdraw
from caslock.protocol.attempt import Attempt, LockSettings, Terms
from caslock.protocol.exchange import Sent, answered, note_write, read
from caslock.protocol.lease import NEVER
from caslock.protocol.life import ASKING, HAD, HELD, LEAVING, LINGERING, OVER
from caslock.protocol.limits import last_start_of_three
from caslock.protocol.record import shown
from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.local.shared import Shared
    from caslock.protocol.record import Observed, Record
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.shares import Sharing
    from caslock.protocol.writes import Write
    from caslock.store import Entry

H = TypeVar("H", bound=Holding)


class LockState:
    """The state of one Lock object.  What it needs only once it is used is made at the first use."""

    __slots__ = (
        "_guard",
        "_held",
        "_inherited",
        "_nonce",
        "_numbers",
        "_queue",
        "_stamps",
        "_terms",
        "_unsettled",
        "committed",
        "generation",
        "key",
        "newest",
        "runtime",
        "settings",
    )

    _attempt_type: ClassVar[type[Attempt]] = Attempt
    _queue_type: ClassVar[type[LocalQueue]] = LocalQueue
    _nonce_bytes: ClassVar[int] = 16

    @property
    def kind(self) -> str:
        """Say what the key is locked as."""
        return "a Lock"

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings) -> None:
        self.runtime: Runtime = runtime
        self.key: str = key
        shorter = settings.max_hold < settings.ttl
        self.settings: LockSettings = settings._replace(ttl=settings.max_hold) if shorter else settings
        self.generation: int = 0  # of the process that uses it: none yet

    def _begin(self) -> None:
        """Take a new identity: at the first use, and in a forked child, which holds nothing of its parent's."""
        self._inherited = self._attempts() if self.generation else []  # a forked child never held them
        self._held: dict[str, weakref.ref[Attempt]] = {}  # by hold id: all that are held, or being released
        # What the Lock object keeps until its release; True: it belongs to a MultiHold.
        self.committed: dict[Holding, bool | None] = {}
        shared = cast("Shared", self.runtime.shared)
        self._queue = shared.of_key(self.key, self._queue_type)
        shared.keep(self.runtime, self._queue)
        # Guards the attempts' levels, as any thread may release a hold; reentrant for signal handlers and `__del__`.
        self._guard = RLock()
        self._unsettled: Holding | None = None  # a release went without an answer and may be called again
        self._nonce = os.urandom(self._nonce_bytes).hex()
        self._numbers = itertools.count(1)
        settings = self.settings
        owner = settings.owner or f"{hostname()}:{self._nonce}"
        self._terms = Terms(self.runtime, self.key, owner, settings, self._sharing())
        self._stamps = Stamps(self._terms, hostname())
        self.newest: str = ""  # hold id
        self.generation = generation()  # last, because other threads then rely on the rest

    def begun(self) -> Self:
        """Return this state as that of this process; call it before anything else that is used."""
        if self.generation != generation():
            with fork.guard:
                if self.generation != generation():  # another thread may have been first
                    self._begin()
        return self

    @property
    def owner(self) -> str:
        """The owner in the record while the lock is held."""
        return self.begun()._terms.owner

    def _sharing(self) -> Sharing | None:
        """Return what the attempts have in common for a key that several may hold."""
        return None

    def _attempt(self, kind: type[Attempt] | None = None) -> Attempt:
        self.newest = hold = f"{self._nonce}.{next(self._numbers)}"  # which another thread may replace at once
        return (kind or self._attempt_type)(self._terms, hold, self._stamps, self.runtime.mutex(), self.runtime.me())

    def _attempts(self) -> list[Attempt]:
        """Return all that are held, or being released."""
        found: list[Attempt] = []
        for hold_id, reference in list(self._held.items()):
            attempt = reference()
            if attempt is None:  # its hold was dropped, or its acquire was interrupted
                self._held.pop(hold_id, None)
            else:
                found.append(attempt)
        return found

    def begin(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> H:
        """Return a hold for `acquire`, of the type `make`; only who calls this refers to it, and nothing is sent.

        Its attempt is the one with which this thread or task, or the task `caller`, holds the lock; else the one that
        lingers; else a new one.
        """
        if self.generation != generation():
            self.begun()
        own = self._own(caller) if self._held else None
        return make(self, own or self._attempt())

    def _own(self, caller: object) -> Attempt | None:
        """Return the attempt with which this thread or task, or `caller`, holds the lock; else the one that lingers."""
        me, lingers = self.runtime.me(), None
        for attempt in self._attempts():
            if attempt.state is LINGERING:
                lingers = attempt
            elif attempt.caller is me or attempt.caller is caller:
                if attempt.state is HELD:
                    return attempt
            elif self.runtime.ended(attempt):
                attempt.lose("its event loop has ended")
                self._forget(attempt)
        return lingers

    def re_enter(self, hold: Holding) -> bool:
        """Take a hold on what this thread or task holds already; False: `hold` has an attempt that has sent nothing."""
        attempt = hold._attempt
        if attempt.state is ASKING:
            return False
        with self._guard:
            # If it has lingered (`kept_until`), another thread may have resumed it since `begin`.
            if attempt.state is HELD and (not attempt.kept_until or attempt.caller is self.runtime.me()):
                renew.check(attempt, self.runtime.now())
                attempt.levels.append(hold)
                return True
        hold._attempt = self._attempt()
        return False

    async def acquire(self, hold: H, timeout: float | None) -> H:
        """Win a hold, or re-enter; raises `NotAcquired` after `timeout` seconds."""
        put = self.begin_put(hold)
        if put is None:
            if (self.settings.linger and linger.resume(self, hold)) or self.re_enter(hold):
                return hold
            return await self.win(hold, timeout)
        try:
            entry = await self.runtime.store.put_if_version(self.key, put.value, ABSENT, self.settings.ttl)
        except (StoreError, ValueError) as error:
            first = Sent(put, error)
        else:
            if self.end_put(hold, put, entry):
                return hold
            first = Sent(put, answered(hold._attempt, put, entry))
        return await self.win(hold, timeout, first=first)

    # One request, with as few function calls as can be: `caslock.blocking` sends it between the same two steps.

    def begin_put(self, hold: Holding) -> Write | None:
        """Take our turn in this process and return the put to send; None: that is not all, `acquire` does the rest."""
        attempt, now = hold._attempt, self.runtime.now()
        if attempt.state is ASKING and self._queue.enter_alone(attempt, now):
            return attempt.first(now)
        return None

    def end_put(self, hold: Holding, put: Write, entry: Entry | None) -> bool:
        """Hold the key if the answer shows that the put has won it.  Returns False if it has not; call `win` then."""
        attempt = hold._attempt
        if not attempt.believe_put(put, entry, self.runtime.now()):
            return False
        self._hold(hold)
        if observer.listens():
            self._tell_outcome(attempt, "acquired", put.at)
        return True

    def enter_at_once(self, attempt: Attempt) -> bool:
        """Take our turn in this process if nobody else has it or waits for it; `undo` or `step_back` gives it back."""
        return self._queue.enter(attempt, self.runtime.now()) is None

    async def step_back(self, hold: Holding) -> None:
        """Give back our turn, and the key if a put without an answer has taken it; `hold` can be won later.

        After an error, nothing of its attempt is left behind.
        """
        try:
            await withdraw.step_back(self.runtime, hold._attempt)
        except Exception as error:
            await self.undo(hold, error)
            raise
        self._queue.leave(hold._attempt, self.runtime.now())

    def _warn_of_itself(self, attempt: Attempt, inside: list[Attempt]) -> None:
        """Log that an attempt waits for a hold of its own thread or task, if one of those inside is that."""
        if any(other.caller is attempt.caller and other.levels for other in inside):
            observer.warn(f"lock {self.key!r} waits for itself: it is held {BY_OURSELVES}")

    async def _turn(
        self, attempt: Attempt, look_at: float, began: float, timeout: float | None, since: float | None
    ) -> float | None:
        """Wait for our turn in this process; returns what is left of `timeout`, or raises `NotAcquired`."""
        limit = NEVER if timeout is None else began + timeout
        if timeout == 0:  # what lingers is nobody's
            limit = began + self.runtime.patience
        if not await self._queue.turn(attempt, look_at, limit, once=timeout == 0):
            now = self.runtime.now()
            raise in_use(attempt, self._queue.inside(now), Waited(now, began, since))
        return None if timeout is None else max(0.0, began + timeout - self.runtime.now())

    async def win(
        self,
        hold: H,
        timeout: float | None,
        *,
        entered: bool = False,
        since: float | None = None,
        first: Observed | Sent | None = None,
    ) -> H:
        """Acquire, and return the hold.  After an error nothing is left of it; after an interrupt, call `undo`.

        `entered`: it is our turn in this process already.  `since`: when a MultiLock began to wait, for the error.
        `first`: what became of a first put that was sent already, alone (then it is our turn) or with others.
        """
        now, attempt = self.runtime.now(), hold._attempt
        began = first.write.at if isinstance(first, Sent) else now
        if since is None:
            attempt.limit = NEVER if timeout is None else began + timeout
        timeout = None if timeout is None else max(0.0, began + timeout - now)
        queued = False
        try:
            is_in = entered or isinstance(first, Sent)
            inside = None if is_in else self._queue.enter(attempt, now, join=timeout != 0)
            if inside is not None:
                queued = True
                if timeout != 0:
                    self._warn_of_itself(attempt, inside)
                look_at = next_look(inside, now)
                del inside  # a waiter must not keep an abandoned hold alive
                timeout = await self._turn(attempt, look_at, began, timeout, since)
            if not await self._ask(attempt, timeout, first):
                raise busy(attempt, Waited(self.runtime.now(), began, since))  # noqa: TRY301 - told below
        except Exception as error:
            await self.undo(hold, error)  # which may raise another one in its place
            if isinstance(error, NotAcquired) and observer.listens():
                self._tell_outcome(attempt, "busy", since or began, queued=queued, reason=str(error))
            raise
        self._hold(hold)
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

    async def settle(self, hold: Holding, observed: Observed | None, since: float) -> bool:
        """Acquire in one try after a put that was sent with others; after False, call `undo` or `step_back`.

        After an error, nothing of its attempt is left behind.
        """
        attempt = hold._attempt
        try:
            if not await acquire.acquire(self.runtime, attempt, 0.0, observed):
                return False
        except Exception as error:
            await self.undo(hold, error)
            raise
        self._hold(hold)
        if observer.listens():
            self._tell_outcome(attempt, "acquired", since)
        return True

    def _hold(self, hold: Holding) -> None:
        """Hold what was won.  It is renewed for as long as something refers to it: then the caller has to keep it."""
        attempt, on_lost = hold._attempt, self.settings.on_lost
        if on_lost is not None:
            attempt.lease.on_loss.append(partial(call_on_lost, on_lost, hold))
        attempt.levels.append(hold)
        attempt.state = HELD  # from now on others may report a loss
        self._unsettled = None
        self._watch(attempt)
        self._held[attempt.hold_id] = weakref.ref(attempt)

    # What a `QuorumState` does at several stores:

    def _ask(
        self, attempt: Attempt, timeout: float | None, first: Observed | Sent | None
    ) -> Coroutine[object, object, bool]:
        return acquire.acquire(self.runtime, attempt, timeout, first)

    def _withdraw(self, attempt: Attempt, error: BaseException) -> Coroutine[object, object, None]:
        return withdraw.give_up(self.runtime, attempt, error)

    def _watch(self, attempt: Attempt) -> None:
        self.runtime.watch(attempt)

    async def undo(self, hold: Holding, error: BaseException) -> None:
        """Leave nothing of a failed or interrupted acquire behind, at the store or in the local queue.

        It can be called again; in place of a `StoreError`, it may raise one that says more.
        """
        attempt = hold._attempt
        if attempt.state not in HAD:
            try:
                if attempt.state is not OVER:
                    await self._withdraw(attempt, error)
            finally:
                attempt.levels.clear()
                self._queue.leave(attempt, self.runtime.now())
        elif hold._is_open:
            hold._keep_nothing()
            await self.release(hold)

    def _forget(self, attempt: Attempt) -> None:
        """Leave the local queue, and tell observers and the log once of a release, also if the store gave no answer."""
        now = self.runtime.now()
        if attempt.kept_until:
            linger.lingering.pop(attempt, None)  # an interrupt may have left it there
        self._queue.leave(attempt, now)
        for hold in attempt.levels:
            self.committed.pop(hold, None)  # type: ignore[call-overload] # of a hold
        known = self._held.pop(attempt.hold_id, None) is not None
        if known and not attempt.lease.lost and observer.listens():
            failed = "" if attempt.state is OVER else "the release failed"
            name = "handed_over" if attempt.handed_over else "released"
            observer.tell(name, event_of(attempt, now - attempt.lease.began, failed))

    async def release(self, hold: Holding, limit: float = NEVER, removed: Observed | Sent | None = None) -> None:
        """Release one hold; the key is free after the last one.  It can be called again after any interrupt.

        `removed` is what became of a removal that was sent already.  After a failure, no request begins at or after
        `limit`, nor after two request timeouts.
        """
        attempt = hold._attempt
        if removed is None and (removal := self.begin_removal(hold)) is not None:
            try:
                try:
                    entry = await self.runtime.store.invalidate(self.key, removal.expected)
                except (StoreError, ValueError) as error:
                    removed = Sent(removal, error)
                else:
                    if self.end_removal(hold, entry):
                        return
                    removed = Sent(removal, answered(attempt, removal, entry))
            finally:
                attempt.mutex.release()  # which `begin_removal` has taken
        await self.finish_release(hold, limit, removed)

    async def finish_release(self, hold: Holding, limit: float, removed: Observed | Sent | None) -> None:
        """Release a hold without first trying a single removal; `removed`: what became of one."""
        attempt = hold._attempt
        if not self._leave_level(hold):
            return
        try:
            self._queue.name_successor(attempt, self.runtime.now())
            await release.release(self.runtime, attempt, limit, removed)
        except (CaslockError, ValueError) as error:
            if isinstance(error, LockLost) and attempt.state is not OVER:  # the store has not answered
                self.release_later(hold)
                attempt.levels.clear()
            self._end(hold)
            raise
        self._end(hold)  # not after an interrupt: our record is there, and what is left of the release follows

    def begin_removal(self, hold: Holding) -> Write | None:
        """Begin a release that is one removal, and return that; None: that is not all, `release` does the rest.

        With a removal, the caller has the attempt's mutex, and gives it back.
        """
        attempt = hold._attempt
        if hold._generation != generation() or self._queue.waiting:
            return None
        with self._guard:
            if attempt.state is not HELD or attempt.levels != [hold]:
                return None
            attempt.state = LEAVING
        if not attempt.mutex.acquire(blocking=False):  # a renewal is under way
            return None
        lease, now = attempt.lease, self.runtime.now()
        if not lease.lost and now < lease.deadline and attempt.releases_by_removal(now):
            return note_write(attempt, lease.version, None, now)
        attempt.mutex.release()
        return None

    def end_removal(self, hold: Holding, entry: Entry | None) -> bool:
        """End the release if the removal's answer is that nothing is there, and nobody was woken; else it goes on."""
        if entry is not None:
            return False
        hold._attempt.state = OVER
        self._end(hold)
        return True

    def _leave_level(self, hold: Holding) -> bool:
        """Release one level, or begin to release the attempt if that is the last one; True: it was the last."""
        if self.generation != generation():
            self.begun()
        attempt = hold._attempt
        if hold._generation != self.generation:  # inherited: only the child has this copy of the attempt
            attempt.levels = [other for other in attempt.levels if other is not hold]
            return False
        with self._guard:
            if hold not in attempt.levels:
                message = f"this hold of {self.key!r} {hold._ended}"
                raise attempt.concerns(NotHeld(message))
            if len(attempt.levels) == 1:
                attempt.begin_release()
                return True
            attempt.levels.remove(hold)
            self.committed.pop(hold, None)
        renew.check(attempt, self.runtime.now())
        return False

    def _end(self, hold: Holding) -> None:
        """Note that a release has ended; one that got no answer may be called again."""
        attempt = hold._attempt
        if attempt.state is OVER:
            self._forget(attempt)
            attempt.levels.clear()  # last: as long as a hold is open, an interrupted release is made once more
        else:
            self._unsettled = hold
            self._forget(attempt)

    def release_later(self, hold: Holding) -> None:
        """Release a hold in the background: its own release got no answer, or was not tried."""
        attempt = hold._attempt
        attempt.begin_release()
        self._forget(attempt)
        release.release_later(attempt)

    def leaves_key(self, hold: Holding) -> bool:
        """Whether the release of `hold` removes the record, and nobody in this process waits for it."""
        attempt = hold._attempt
        last = attempt.levels == [hold] and not hold._inherited
        return last and not self._queue.waiting and attempt.releases_by_removal(self.runtime.now())

    async def renew(self, attempt: Attempt, ttl: float | None) -> None:
        """Replace the lease."""
        try:
            await renew.renew(self.runtime, attempt, ttl)
        except StoreError as error:
            raise attempt.failure("extend", error, "its deadline is no later than before") from error

    async def hand_over(self, hold: Holding) -> str:
        """Hand a hold over to whoever gets the ticket that this returns; after an error it is held as before."""
        return await tickets.hand_over(hold)

    def newest_hold(self, me: object = None) -> Holding:
        """Return the newest hold of `me` (None: this thread or task), or one whose release went without an answer."""
        self.begun()
        me = me or self.runtime.me()
        for attempt in reversed(self._attempts()):
            if attempt.caller is me and attempt.levels:
                return cast("Holding", attempt.levels[-1])
        for attempt in reversed(self._inherited):
            if attempt.levels:
                return cast("Holding", attempt.levels[-1])
        if self._unsettled is not None and self._unsettled._is_open:
            return self._unsettled
        message = f"lock {self.key!r} is not held by this thread or task"
        if any(attempt.levels for attempt in self._attempts()):
            message = f"lock {self.key!r} is held by another thread or task: call release() on its Hold instead"
        error = NotHeld(message)
        error.key, error.location = self.key, self.runtime.store.traits.location
        raise error

    async def holder(self) -> Record | None:
        """Who holds the key."""
        reader = self.begun()._attempt()
        limit = last_start_of_three(self.runtime, self.runtime.now())
        try:
            observed = await read(self.runtime, reader, limit)
        except StoreError as error:
            raise reader.failure("look up the holder of", error) from error
        record = observed.record
        return None if record is None or record.free else self._told(record, observed.fence)

    def _told(self, record: Record, fence: int | None) -> Record:
        """Return a record as users see it."""
        return shown(record, fence, fences=self.runtime.store.traits.fences)

    async def force_release(self) -> Record | None:
        """Take the key away from whoever holds it."""
        writer = self.begun()._attempt()
        try:
            broken = await release.force_release(self.runtime, writer)
        except StoreError as error:
            raise writer.failure("force-release", error) from error
        if broken is None:
            return None
        for attempt in (*self._queue.inside(self.runtime.now()), *self._attempts()):
            # Not one whose acquire is still under way: it may have the key again, and there is nobody to tell yet.
            # Nor one whose release has begun: only its answer shows whether it was in time.
            with self._guard:
                if attempt.state in {HELD, LINGERING} and attempt.is_in(broken):
                    attempt.lose("this process called force_release()")
        self._queue.inside(self.runtime.now())  # lets the next one in, now that these are lost
        location = self.runtime.store.traits.location
        observer.warn(f"lock {self.key!r} at {location} was released by force; it was held by {broken}")
        return self._told(broken, broken.fence)
