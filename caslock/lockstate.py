"""The law of this file: what one Lock object knows of its own holds, for both APIs, as coroutines.

It behaves as `threading.RLock` does: one thread (or task) at a time, the same one re-enters at no request, n releases
for n acquires.  Identity is an object of the thread or task, never its name or number, which are used again.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar, cast

from caslock import core
from caslock.checks import MAX_NOTE_BYTES, MAX_OWNER_BYTES, callback, key_of, retries, seconds, switch, text, waiting
from caslock.claim import NEVER, Claim, Retry, Terms
from caslock.errors import CaslockError, NotAcquired, NotHeld
from caslock.hold import Holding
from caslock.process import generation
from caslock.record import opening
from caslock.request import World, read
from caslock.turnstile import turnstile_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity.wait import WaitBaseT

    from caslock.claim import Event, First, Mutex
    from caslock.record import Record


class Settings(TypedDict, total=False):
    """What a lock may be told beside store, key and timeout; explained at `Lock`."""

    ttl: float
    owner: str | None
    auto_renew: bool
    max_hold: float | None
    on_lost: Callable[[Holding], object] | None
    note: str
    retry: Retry | tuple[int, int]
    poll: WaitBaseT | None


class Surroundings(World, Protocol):
    """What the state of a Lock needs beyond what the core does."""

    def me(self) -> object:
        """Identity of the thread or task that runs."""
        ...

    def mutex(self) -> Mutex:
        """Make a mutex for one claim."""
        ...

    def event(self) -> Event:
        """Make an event for one who waits at a turnstile."""
        ...

    def ended(self, claim: Claim) -> bool:
        """Whether what ran the claim, and renewed it, is no more (an event loop that was closed)."""
        ...

    def watch(self, claim: Claim) -> None:
        """Have the keeper visit the claim."""
        ...

    def unwatch(self, claim: Claim) -> None:
        """Spare the keeper a claim that was released."""
        ...


H = TypeVar("H", bound=Holding)


class LockState:
    """The state of one Lock object."""

    def __init__(
        self,
        world: Surroundings,
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
        """Check everything, before any request; the arguments are explained at `Lock`."""
        self.world = world
        self.key = key_of(key)
        self.ttl = seconds("ttl", ttl)
        self.timeout = waiting(timeout)
        self.max_hold = NEVER if max_hold is None else seconds("max_hold", max_hold)
        self.auto_renew = switch("auto_renew", auto_renew)
        self.on_lost = callback("on_lost", on_lost)
        self.note = text("note", note, MAX_NOTE_BYTES)
        self.retry = retries(retry)
        self.poll = callback("poll", poll)
        self._given_owner = None if owner is None else text("owner", owner, MAX_OWNER_BYTES)
        if owner == "":
            message = "owner must not be empty: leave it out for a private one"
            raise ValueError(message)
        self._claims: dict[str, Claim] = {}  # by hold id: all that wait, hold or are being released
        self._begin()

    def _begin(self) -> None:
        """Take a fresh identity: at birth, and in a forked child, whose inherited holds are inert."""
        self._inherited = list(self._claims.values())  # by a forked child, which never held them
        self._claims = {}
        self._turnstile = turnstile_of(self.world.home, self.key)
        self._guard = threading.Lock()  # of a claim's levels: a hold may be released from another thread
        self._unsettled: Holding | None = None  # a release went without an answer and may be called again
        self._host = _hostname()
        self._nonce = os.urandom(16).hex()
        self._numbers = itertools.count(1)
        self.owner = self._given_owner or f"{self._host}:{self._nonce}"
        ttl = min(self.ttl, self.max_hold)
        shared = self._given_owner is not None
        ended = self.world.ended
        self._terms = Terms(self.key, self.owner, ttl, self.auto_renew, self.max_hold, self.retry, shared, ended)
        self._first: tuple[int, First] = (-1, (("", "", 0, ""), ("", "", "")))  # in this second of the wall clock
        self.newest = ""  # hold id
        self.generation = generation()  # last: from here on other threads of a child rely on the rest

    def _claim(self) -> Claim:
        self.newest = hold = f"{self._nonce}.{next(self._numbers)}"  # which another thread may replace at once
        second = int(time.time())
        of, first = self._first
        if of != second:
            stamp = _iso(second), self._host, os.getpid(), self.note
            first = stamp, opening(self.owner, self._terms.ttl, stamp)
            self._first = second, first
        return Claim(self._terms, hold, first, self.world.mutex(), self.world.me())

    async def acquire(self, make: Callable[[LockState, Claim], H], timeout: float | None) -> H:
        """Acquire or re-enter; raises `NotAcquired` after `timeout` seconds.

        Whatever else it raises, it has left nothing behind; what interrupts its caller after that, `take_back` mends.
        """
        return self.re_enter(make) or await self.win(self.begin(), make, timeout)

    def re_enter(self, make: Callable[[LockState, Claim], H]) -> H | None:
        """Go one level deeper, where this thread or task holds the lock."""
        self._after_fork()
        if not self._claims:
            return None
        me = self.world.me()
        for claim in list(self._claims.values()):
            if claim.by is me:
                with self._guard:
                    if claim.levels and not claim.ending:
                        core.check(self.world, claim)
                        hold = make(self, claim)
                        claim.levels.append(hold)
                        return hold
            elif self.world.ended(claim):
                claim.lose("its event loop has ended")
                self._forget(claim)
        return None

    def begin(self) -> Claim:
        """Prepare a new claim: `win` has to follow, or `undo`."""
        claim = self._claim()
        self._claims[claim.hold] = claim
        return claim

    async def enter(self, claim: Claim, timeout: float | None) -> float | None:
        """Wait for our turn in this process; returns what is left of `timeout`, or raises `NotAcquired`."""
        began = self.world.now()
        return timeout if self._turnstile.enter(claim, began) else await self._turn(claim, began, timeout)

    async def _turn(self, claim: Claim, began: float, timeout: float | None) -> float | None:
        limit = NEVER if timeout is None else began + timeout
        if timeout == 0 or not await self._turnstile.turn(claim, self.world, limit):
            raise NotAcquired(self._in_use(claim, began))
        return None if timeout is None else max(0.0, limit - self.world.now())

    async def win(
        self, claim: Claim, make: Callable[[LockState, Claim], H], timeout: float | None, *, entered: bool = False
    ) -> H:
        """Acquire; whatever it raises, nothing of the claim is left behind."""
        began = self.world.now()
        try:
            if not entered and not self._turnstile.enter(claim, began):
                timeout = await self._turn(claim, began, timeout)
            if not await core.acquire(self.world, claim, timeout, self.poll):
                raise NotAcquired(self._busy(claim, began))  # noqa: TRY301 - undone below, as whatever else happens
            hold = make(self, claim)
            claim.levels.append(hold)
            on_lost = self.on_lost
            if on_lost is not None:
                claim.on_loss.append(lambda: on_lost(hold))
            self._unsettled = None
            self.world.watch(claim)
        except GeneratorExit:
            raise
        except BaseException as error:
            await self.undo(claim, error)
            raise
        return hold

    async def undo(self, claim: Claim, error: BaseException) -> None:
        """Leave nothing of an acquire behind: no hold that nobody has, no turnstile that nobody leaves."""
        try:
            await core.give_up(self.world, claim, error)
        finally:
            claim.levels.clear()
            self._turnstile.leave(claim, self.world.now())
            if claim.settled:
                self._claims.pop(claim.hold, None)

    def _forget(self, claim: Claim) -> None:
        self._turnstile.leave(claim, self.world.now())
        self._claims.pop(claim.hold, None)

    async def take_back(self, error: BaseException) -> None:
        """After an interrupt of this thread: mend what it has left half done here."""
        me = self.world.me()
        for claim in list(self._claims.values()):
            if claim.by is me and (claim.ending or not claim.levels):
                try:
                    await self.undo(claim, error)
                finally:
                    self._claims.pop(claim.hold, None)
        self._turnstile.inside(self.world.now())

    async def release(self, hold: Holding) -> None:
        """Release one hold; the key is free after the last one.  It can be called again after any interrupt."""
        self._after_fork()
        claim = hold.claim
        if hold.generation != self.generation:  # inherited: this copy of the claim is the child's alone
            claim.levels = [other for other in claim.levels if other is not hold]
            return
        with self._guard:
            if hold not in claim.levels:
                message = f"this hold of {self.key!r} was released already"
                raise NotHeld(message)
            ending = len(claim.levels) == 1
            if ending:
                claim.ending = True
            else:
                claim.levels.remove(hold)
        if not ending:
            core.check(self.world, claim)
            return
        try:
            self.world.unwatch(claim)
            if self._turnstile.is_awaited:
                self._turnstile.name_heir(claim, self.world.now())
            await core.release(self.world, claim)
        except (CaslockError, GeneratorExit):
            raise
        except BaseException as error:  # interrupted or cancelled: leave first, then go on with it
            await core.leave_surely(self.world, claim, error)
            raise
        finally:
            self._unsettled = hold if claim.record is not None else None
            self._forget(claim)
            if claim.record is None:
                claim.levels.clear()

    def leaves_key(self, hold: Holding) -> bool:
        """Whether the release of `hold` removes the record, and nobody in this process waits for it."""
        claim = hold.claim
        last = claim.levels == [hold] and not hold.inherited
        return last and not self._turnstile.is_awaited and claim.leaves_nothing(self.world.now())

    async def renew(self, claim: Claim, ttl: float) -> None:
        """Replace the lease, and tell the keeper, which may be due earlier than it thinks."""
        try:
            await core.renew(self.world, claim, ttl)
        finally:
            if not (claim.ending or self.world.ended(claim)):
                self.world.watch(claim)

    def newest_hold(self) -> Holding:
        """Give the newest hold of this thread or task, or one whose release went without an answer."""
        self._after_fork()
        me = self.world.me()
        newest = self._claims.get(self.newest)
        if newest is not None and newest.by is me and newest.levels:
            return cast("Holding", newest.levels[-1])
        for claim in reversed(list(self._claims.values())):
            if claim.by is me and claim.levels:
                return cast("Holding", claim.levels[-1])
        for claim in reversed(self._inherited):
            if claim.levels:
                return cast("Holding", claim.levels[-1])
        if self._unsettled is not None and self._unsettled.is_open:
            return self._unsettled
        message = f"lock {self.key!r} is not held by this thread or task"
        raise NotHeld(message)

    def _in_use(self, claim: Claim, began: float) -> str:
        now = self.world.now()
        waited = f"(waited {now - began:.3g} s)"
        others = [other for other in self._turnstile.inside(now) if other is not claim]
        record = others[0].record if others else None
        if record is None:
            return f"lock {self.key!r} is waited for by another thread or task of this process {waited}"
        place = self.world.store.traits.place
        return f"lock {self.key!r} at {place} is held by {record}, in another thread or task of this process {waited}"

    def _busy(self, claim: Claim, began: float) -> str:
        waited = f"(waited {self.world.now() - began:.3g} s)"
        if claim.rival is None or claim.rival.free:
            return f"lock {self.key!r} changed hands faster than it could be taken {waited}"
        return f"lock {self.key!r} at {self.world.store.traits.place} is held by {claim.rival} {waited}"

    async def holder(self) -> Record | None:
        """Who holds the key."""
        self._after_fork()
        _, standing = await read(self.world, self._claim(), NEVER)
        return None if standing is None or standing.free else standing

    async def break_(self) -> Record | None:
        """Take the key away from whoever holds it."""
        self._after_fork()
        broken = await core.break_(self.world, self._claim())
        for claim in self._turnstile.inside(self.world.now()) if broken is not None else ():
            if claim.stands_in(broken):
                claim.lose("it was broken by this process")
        self._turnstile.inside(self.world.now())
        return broken

    def _after_fork(self) -> None:
        if self.generation != generation():
            with _fork_guard:
                if self.generation != generation():  # another thread of the child may have been first
                    self._begin()


_fork_guard = threading.Lock()


def _free_fork_guard() -> None:
    global _fork_guard  # noqa: PLW0603 - the parent may have held it at this moment
    _fork_guard = threading.Lock()


os.register_at_fork(after_in_child=_free_fork_guard)


@lru_cache(maxsize=1)
def _hostname() -> str:
    return socket.gethostname()


@lru_cache(maxsize=1)
def _iso(second: int) -> str:
    """Tell the time for people; nothing compares it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
