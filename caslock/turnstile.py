"""The law of this file: of one process's claims to a key only the first talks to the store; the rest cost it nothing.

Claims queue first come, first served, over all Lock objects of one store object.  Past the turnstile is one owner at
a time (with one claim of each of its Lock objects: an owner re-enters its own lock).  A claim whose lease is over, or
that everybody has forgotten, is past no more.  No interrupt jams it: every call can be made again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from caslock.claim import Claim, Event


ROW: Final = 64
"""How many times in a row a process may hand a key over inside itself, while others wait at the store."""

ROW_SECONDS: Final = 0.05
"""Seconds from the first of these tenures on, after which it does so no more."""

POLITE_SECONDS: Final = 0.1
"""Seconds in which a process whose release has woken somebody stands in line behind it."""


class Surroundings(Protocol):
    """What a turnstile needs of who waits at it."""

    def now(self) -> float:
        """Seconds on the local clock."""
        ...

    def event(self) -> Event:
        """Make an event to wait for."""
        ...


class Turnstile:
    """The queue of one process for one key of one store object."""

    def __init__(self, store: object) -> None:
        """Begin as free."""
        self._store = store  # so that its id is not used again while we are known by it
        self._inside: list[weakref.ref[Claim]] = []
        self._waiting: deque[Claim] = deque()
        self._guard = threading.Lock()  # held for a few instructions, and never across an await
        self._row = 0
        self._row_began = 0.0
        self._polite_until = 0.0
        self._had_its_row = False

    def enter(self, claim: Claim, now: float) -> bool:
        """Go in, unless somebody else is inside or waits; always `leave` afterwards."""
        with self._guard:
            if not self._inside and not self._waiting:
                self._row = 0
                self._inside = [weakref.ref(claim)]
                if self._polite_until:
                    claim.polite = now < self._polite_until
                return True
            other = self._inside[0]() if self._inside else None
            if other is not None and not claim.shared and not _is_over(other, now):
                return False
            inside = self._admit(now)
            if inside and not _may_join(claim, inside):
                return False
            self._let_in(claim, now)
            return True

    async def turn(self, claim: Claim, world: Surroundings, limit: float) -> bool:
        """Wait for our turn until the moment `limit`; whether `claim` is inside then.  Always `leave` afterwards."""
        claim.event = event = world.event()
        patience = 0.0
        with self._guard:
            self._waiting.append(claim)
        while True:
            now = world.now()
            with self._guard:
                inside = self._admit(now)
                if claim in inside and not claim.promised:
                    break
                if claim in inside:  # our first put is under way: its sender will tell, unless its event loop has ended
                    patience = until = patience or now + claim.ttl
                    if now >= until:
                        claim.promised = False
                        break
                elif now >= limit:
                    return False
                else:
                    until = min(limit, *(other.deadline if other.levels else now + other.ttl for other in inside))
            await event.wait(until - now)
        claim.event = None
        return True

    def name_heir(self, claim: Claim, now: float) -> None:
        """Choose who gets the key straight from `claim`, which is about to be released."""
        with self._guard:
            # Others that are being released may still be inside: they have handed over to us, or to who did.  But those
            # of a shared owner leave a record behind them that is not ours alone.
            inside = [other for other in self._admit(now) if other is claim or other.shared or not other.ending]
            if claim.heir is not None or inside != [claim] or not self._waiting:
                return
            if not self._row:
                self._row_began = claim.began
            self._had_its_row = self._row >= ROW or now - self._row_began >= ROW_SECONDS
            if self._had_its_row:
                return
            heir = self._waiting[0]
            heir.promised, claim.heir = True, heir
            self._inside = [*self._inside, weakref.ref(heir)]  # nobody follows until both have left
            self._waiting.popleft()
            self._row += 1

    def leave(self, claim: Claim, now: float) -> None:
        """Let the next one in."""
        with self._guard:
            if claim.woke:
                self._polite_until = now + POLITE_SECONDS
            if len(self._inside) == 1 and not self._waiting and self._inside[0]() is claim:
                self._inside = []
                return
            claim.promised = False
            if claim.heir is not None:  # nothing was sent for it
                claim.heir.promised = False
                claim.heir = None
            self._inside = [other for other in self._inside if other() is not claim]
            if claim.event is not None and claim in self._waiting:
                self._waiting.remove(claim)
            self._admit(now)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def inside(self, now: float) -> list[Claim]:
        """Give the claims that are past."""
        with self._guard:
            return self._admit(now)

    def _admit(self, now: float) -> list[Claim]:
        """Put out what is over, let in who may come in, and wake them; returns who is inside."""
        inside = [claim for other in self._inside if (claim := other()) is not None and not _is_over(claim, now)]
        if len(inside) < len(self._inside):
            self._inside = [weakref.ref(claim) for claim in inside]
        while self._waiting:
            first = self._waiting[0]
            if first in inside or first.event is None or not first.event.alive:
                self._waiting.popleft()
            elif inside:
                break
            else:
                inside.append(first)
                self._let_in(first, now)
        if inside and inside[0].shared:
            for claim in list(self._waiting):
                if _may_join(claim, inside):
                    inside.append(claim)
                    self._let_in(claim, now)
                    self._waiting.remove(claim)
        for claim in inside:  # once more does no harm
            if claim.event is not None and not claim.promised:
                claim.event.set()
        return inside

    def _let_in(self, claim: Claim, now: float) -> None:
        self._row = 0
        claim.polite = self._had_its_row or now < self._polite_until
        self._had_its_row = False
        self._inside = [*self._inside, weakref.ref(claim)]


def _may_join(claim: Claim, inside: list[Claim]) -> bool:
    """Whether `claim` re-enters what its owner holds through other Lock objects."""
    return claim.shared and all(
        other.owner == claim.owner and not other.hold.startswith(claim.siblings) for other in inside
    )


def _is_over(claim: Claim, now: float) -> bool:
    if claim.levels and (now >= claim.deadline or claim.lost):
        return True
    return claim.ended(claim)


def turnstile_of(store: object, key: str) -> Turnstile:
    """Give the one turnstile of this process for `key` of `store`."""
    with _guard:
        turnstile = _turnstiles.get((id(store), key))
        if turnstile is None:
            turnstile = _turnstiles[id(store), key] = Turnstile(store)
        return turnstile


_guard = threading.RLock()  # a signal handler may make a Lock while its thread is in here
_turnstiles: weakref.WeakValueDictionary[tuple[int, str], Turnstile] = weakref.WeakValueDictionary()


def _forget_parent() -> None:
    """A forked child has none of its parent's claims."""
    global _guard, _turnstiles  # noqa: PLW0603 - the guard may be locked in the parent at this moment
    _guard = threading.RLock()
    _turnstiles = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_forget_parent)
