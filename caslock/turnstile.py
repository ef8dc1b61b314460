"""The law of this file: one claim of a Lock object at a time, first come, first served, and no interrupt jams it.

One assignment, `inside`, says who is past the turnstile.  Every call can be made again after it was interrupted.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.claim import Claim


class Event(Protocol):
    """Something that one thread or task waits for."""

    @property
    def alive(self) -> bool:
        """Whether who waits for it can still be woken."""
        ...

    async def wait(self, timeout: float | None) -> None:
        """Return when it is set, or after `timeout` seconds (None: never)."""
        ...

    def set(self) -> None:
        """Wake who waits; any thread may do it, and again."""
        ...


class _Waiter(NamedTuple):
    claim: Claim
    event: Event


class Turnstile:
    """Lets one claim at a time past."""

    def __init__(self, event: Callable[[], Event]) -> None:
        """Begin as free."""
        self.inside: Claim | None = None
        self._event = event
        self._waiters: deque[_Waiter] = deque()
        self._guard = threading.Lock()  # held for a few instructions, and never across an await

    async def enter(self, claim: Claim, timeout: float | None) -> bool:
        """Wait up to `timeout` seconds (None: for ever); whether `claim` is inside then.  Always `leave` afterwards."""
        with self._guard:
            if self.inside is None:
                self.inside = claim
                return True
            if timeout == 0:
                return False
            waiter = _Waiter(claim, self._event())
            self._waiters.append(waiter)
        await waiter.event.wait(timeout)
        return self.inside is claim

    def claims(self) -> list[Claim]:
        """All that are inside or wait."""
        with self._guard:
            inside = [] if self.inside is None else [self.inside]
            return inside + [waiter.claim for waiter in self._waiters]

    def leave(self, claim: Claim) -> None:
        """Let the next one in if `claim` is inside; take it out of the queue if it waits."""
        with self._guard:
            self._waiters = deque(
                waiter for waiter in self._waiters if waiter.claim is not claim and waiter.event.alive
            )
            if self.inside is claim:
                self.inside = self._waiters[0].claim if self._waiters else None
        self.wake()

    def wake(self) -> None:
        """Wake who is let in; once more does no harm."""
        with self._guard:
            for waiter in self._waiters:
                if waiter.claim is self.inside:
                    waiter.event.set()
