"""Watching who leads: what is told of each change of a key's holder, for both APIs, as coroutines.

The watchers of one key at one store object share their looks, whatever thread, task or event loop they are in.  One of
them reads the key, the others wait for what it sees; if it stops, another one goes on.  Its turn also ends by itself,
because the event loop in which it looks may have been closed.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock import observer
from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import LONGEST_WAIT
from caslock.protocol.record import observed_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.local.lock_state import LockState
    from caslock.protocol.record import Observed, Record
    from caslock.protocol.runtime import Event, Runtime

PAUSE: Final = 1.0
"""Seconds from one look to the next, unless the store says that the key has changed."""

WOKEN_PAUSE: Final = 0.1
"""Seconds from a look that has shown something new to the next one, even if the store says at once that there is more:
a lease of a few milliseconds is renewed all the time."""


class Change(NamedTuple):
    """What is told: who leads from now on."""

    leader: Record | None


class Looks:
    """What this process has seen of one key, and which watcher looks."""

    def __init__(self) -> None:
        self.guard: RLock = RLock()  # reentrant: a signal handler may close a watcher, or be one
        self.seen: Observed | None = None  # the last answer; None: there was none, or it is out of date
        self.since: float = 0.0  # when its version was first seen
        self.ended: float = -NEVER  # when the last look ended, answered or not
        self.answered: bool = True
        self.looker: Changes | None = None
        self.until: float = 0.0  # when the turn of the looker ends by itself
        self.waiting: set[Changes] = set()

    def is_current(self, now: float) -> bool:
        """Whether what was seen is at most one pause old, or is being watched."""
        return self.answered and (now < self.ended + PAUSE or (self.looker is not None and now < self.until))

    def enter(self, watcher: Changes, now: float, longest: float) -> bool:
        """Have `watcher` look, for up to `longest` seconds; False: another one does, and wakes it."""
        if self.looker is None or now >= self.until:
            if not self.is_current(now):
                self.seen = None
            self.looker, self.until = watcher, now + longest
            return True
        self.waiting.add(watcher)
        return False

    def leave(self, watcher: Changes) -> None:
        """End the turn of `watcher`; the others see what is new, and one of them looks from now on."""
        with self.guard:
            if self.looker is watcher:
                self.looker = None
            waiting, self.waiting = self.waiting, set()
        for each in waiting:
            each.wake()

    def note(self, observed: Observed, now: float) -> None:
        """Note an answer."""
        if self.seen is None or self.seen.version != observed.version:
            self.since = now
        self.seen, self.ended, self.answered = observed, now, True


class Changes:
    """One watcher: what it has been told."""

    def __init__(self, state: LockState, looks: Callable[[], Looks]) -> None:
        """Begin in the thread or task that is told; `looks` returns those of this process, also in a forked child."""
        self._state: LockState = state
        self._looks: Callable[[], Looks] = looks
        self._runtime: Runtime = state.runtime
        # Longer than a pause and a request take:
        self._spare: float = 2 * state.runtime.store.traits.request_timeout + PAUSE
        self._event: Event = state.runtime.event()
        self._told: int | None = None  # the fence of the term that was told last, 0 for none; None: nothing yet
        self._closed = False

    def wake(self) -> None:
        """Have it look at what was seen."""
        self._event.set()

    def close(self) -> None:
        """End it, from any thread: at once, or when the request that it makes has ended."""
        self._closed = True
        self.wake()

    async def next(self) -> Change | None:
        """Wait for the next change; None: it was closed."""
        while not self._closed:
            looks = self._looks()
            with looks.guard:
                now = self._runtime.now()
                if looks.is_current(now) and self._is_news(looks.seen):
                    return self._tell(looks.seen)
                looking = looks.enter(self, now, self._spare)
            try:
                if looking:
                    await self._look(looks)
                else:
                    await self._event.wait(looks.until - now)
            finally:
                if looking:
                    looks.leave(self)
                else:
                    looks.waiting.discard(self)
        return None

    def _is_news(self, seen: Observed | None) -> bool:
        return seen is not None and _term(seen) != self._told

    def _tell(self, seen: Observed | None) -> Change:
        assert seen is not None  # noqa: S101 - it is news
        self._told = _term(seen)
        return Change(self._state._told(seen.record, seen.fence) if seen.record is not None and self._told else None)

    async def _look(self, looks: Looks) -> None:
        """Look until there is news, unless its turn ends before."""
        while self._may_look(looks):
            await self._wait(looks)
            if not self._may_look(looks):
                return
            looks.ended = now = self._runtime.now()  # an interrupted look counts, too
            looks.until = now + self._spare
            try:
                observed = observed_in(await self._runtime.store.get(self._state.key))
            except StoreUnavailable as error:
                self._miss(looks, error)
                continue
            with looks.guard:
                if looks.looker is not self:  # it took so long that another one looks, and may have seen more
                    return
                answers_again = not looks.answered
                looks.note(observed, self._runtime.now())
            if answers_again or self._is_news(observed):  # to others it may be news that nothing has changed
                return

    def _may_look(self, looks: Looks) -> bool:
        return not self._closed and looks.looker is self

    def _miss(self, looks: Looks, error: StoreUnavailable) -> None:
        """Go on with what is known, and say so once."""
        looks.ended = self._runtime.now()
        if looks.answered:
            looks.answered = False
            observer.warn(f"who leads {self._state.key!r} can't be seen until the store answers again: {error}")

    async def _wait(self, looks: Looks) -> None:
        """Wait until the next look is due."""
        runtime, seen, now = self._runtime, looks.seen, self._runtime.now()
        due = looks.ended + PAUSE
        watching = runtime.watching if looks.answered else None
        if watching is not None and seen is not None and seen.record is not None:
            # The end of a lease need not wake anybody, so the wait is not longer than the lease that was seen.
            left = looks.since + seen.record.ttl + runtime.store.traits.expiry_lag - now
            seconds = min(LONGEST_WAIT, left) if left > 0 else LONGEST_WAIT
            looks.until = now + seconds + self._spare
            try:
                await watching.wait_while(self._state.key, seen.version, seconds)
            except StoreError:  # the next look shows what is wrong; this was a request as well
                due = runtime.now() + 2 * PAUSE
            else:
                due = looks.ended + (WOKEN_PAUSE if looks.since == looks.ended else PAUSE)
        while not self._closed and (left := due - runtime.now()) > 0:
            await self._event.wait(left)


def _term(seen: Observed) -> int:
    """Return a number that each term has of its own, whether the store has fences or not; 0: nobody leads."""
    record = seen.record
    return 0 if record is None or record.free or record.kept else seen.fence
