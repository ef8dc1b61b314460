"""Who holds the key that an attempt waits for, since when, and how long to pause before the next look."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from caslock.protocol.record import NOTHING, Observed
from caslock.store import ABSENT

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.wait import WaitBaseT

FIRST_PAUSE: Final = 0.005
"""Seconds of the first pause at the most; each further one may be twice as long."""

EACH_MORE: Final = 0.001
"""Seconds by which the first pause may be longer for each process that was seen to have the key."""

LONGEST_PAUSE: Final = 0.5
"""Seconds."""


class Contention:
    """What an attempt that waits at the store has seen there."""

    __slots__ = ("_crowd", "_fence", "_poll", "_polled", "_tries", "_watched", "observed", "seen")

    def __init__(self, poll: WaitBaseT | None) -> None:
        """Begin with nothing seen; `poll` gives the pauses (None: our own)."""
        self._poll = poll
        self.observed: Observed = NOTHING  # who holds the key
        self.seen: float = 0.0  # when that version was first seen
        self._fence = 0  # of the tenure in which the pauses began
        self._crowd: frozenset[tuple[str, int]] = frozenset()  # processes seen holding the key
        self._tries = 0  # pauses in that tenure
        self._polled: RetryCallState | None = None  # what `poll` is called with
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
        if self._poll is not None:
            return self._users_pause(self._poll)
        record, fence = self.observed.record, self.observed.fence
        if fence != self._fence:
            if record is not None:
                self._crowd |= {(record.host, record.pid)}
            self._tries, self._fence = 0, fence
        self._tries += 1
        longest = (FIRST_PAUSE + EACH_MORE * len(self._crowd)) * 2 ** min(self._tries - 1, 10)
        return random.uniform(0.0, min(longest, LONGEST_PAUSE))  # noqa: S311 - a pause is no secret

    def _users_pause(self, poll: WaitBaseT) -> float:
        if self._polled is None:
            import tenacity  # noqa: PLC0415 - it is not loaded before it is needed

            self._polled = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        seconds = float(poll(self._polled))
        self._polled.attempt_number += 1
        return seconds
