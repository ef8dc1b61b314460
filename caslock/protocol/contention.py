"""Who holds the key that an attempt waits for, since when, and how long to pause before the next look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.protocol.exchange import pauses
from caslock.protocol.record import NOTHING, Observed
from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity.wait import WaitBaseT


class Contention:
    """What an attempt that waits at the store has seen there."""

    __slots__ = ("_crowd", "_fence", "_pause", "_poll", "_watched", "observed", "seen")

    def __init__(self, poll: WaitBaseT | None) -> None:
        """Begin with nothing seen; `poll` gives the pauses (None: our own)."""
        self._poll = poll
        self.observed: Observed = NOTHING  # who holds the key
        self.seen: float = 0.0  # when that version was first seen
        self._fence = 0  # of the tenure in which the pauses began
        self._crowd: frozenset[tuple[str, int]] = frozenset()  # the processes that had the key meanwhile
        self._pause: Callable[[], float] | None = None
        self._watched = ABSENT  # the version that was watched last

    def meet(self, observed: Observed, now: float) -> None:
        """Note who holds the key."""
        if observed.version != self.observed.version:
            self.seen = now
        self.observed = observed

    def watches(self, version: int) -> bool:
        """Whether to have the store wait while `version` is there.

        A wait may end for no reason, so we pause before the same version is watched again.  Never with the
        user's own `poll`, which gives every pause.
        """
        watches = self._poll is None and version not in (ABSENT, self._watched)
        self._watched = version if watches else ABSENT
        return watches

    def pause(self) -> float:
        """Return the seconds until the next look.

        Our own pauses double for as long as the same tenure lasts.  They begin anew with each tenure, so that
        every waiter gets a share of a key that changes hands: longer by 1 ms for each process that was seen to have it.
        """
        record, fence = self.observed.record, self.observed.fence
        if self._pause is None or (self._poll is None and fence != self._fence):
            if record is not None and self._poll is None:
                self._crowd |= {(record.host, record.pid)}
            self._pause, self._fence = pauses(self._poll, len(self._crowd)), fence
        return self._pause()
