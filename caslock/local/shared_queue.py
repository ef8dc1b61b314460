"""The local queue of a key that several may hold: only the first of those who want it talks to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from caslock.local.queue import SEEN_SECONDS, YIELD_SECONDS, LocalQueue
from caslock.protocol.life import HAD, HELD
from caslock.protocol.shares import Seen

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.shared_attempt import SharedAttempt

RUN_SECONDS: Final = 0.1
"""Seconds for which a process goes on with its own waiters: then the next one lets other processes be first."""

PAUSE_SECONDS: Final = 0.005
"""The longest pause after a short tenure; it is longer after a long one."""


class SharedQueue(LocalQueue):
    """The queue of one process for one key: who has got the key is no longer inside, and keeps nobody from asking."""

    __slots__ = ("_has_seen", "seen")

    def __init__(self) -> None:
        """Begin as free."""
        super().__init__()
        self.seen: Seen = Seen()
        self._has_seen = False  # whether the last one inside left with the key: then what it saw is fresh

    def name_successor(self, attempt: Attempt, now: float) -> None:
        """Offer the place of `attempt`, which is about to be released, to whoever asks, unless the run is over."""
        with self._guard:
            if attempt.turn.outgoing is not None or now - self._run_began >= RUN_SECONDS:
                return
            for other in cast("list[SharedAttempt]", self._admit(now)):
                offer, same = other.offer, other.permits == cast("SharedAttempt", attempt).permits
                if same and offer is not None:
                    other.offer, attempt.turn.outgoing = None, offer
                    return

    @property
    def is_asked(self) -> bool:
        """Whether somebody in this process asks for the key."""
        return bool(self._inside)

    def leave(self, attempt: Attempt, now: float) -> None:
        """Let the next one in; unless the key has just been got, wake who asks for it: there may be a place."""
        with self._guard:
            held, outgoing = attempt.state is HELD, attempt.turn.outgoing
            if held and self._is_shared(attempt):
                self._others_until = now + SEEN_SECONDS
            if outgoing is not None:  # nothing was sent
                attempt.turn.outgoing = None
                outgoing.settle()
            if not held and not self._inside and not self.waiting:
                self._yields_after(attempt, now)
                return
            others = [other for other in self._inside if other() is not attempt]
            if len(others) < len(self._inside):
                self._inside, self._has_seen = others, held
            if attempt in self.waiting:
                self.waiting.remove(attempt)
            inside = self._admit(now) if others or self.waiting else []
            if not held:
                self._wake(inside, self._yields_after(attempt, now))

    def look_again(self, now: float) -> None:
        """Wake who asks for the key: others may hold it beside us from now on."""
        with self._guard:
            self._wake(self._admit(now), 0.0)

    def _wake(self, inside: list[Attempt], yields: float) -> None:
        for other in cast("list[SharedAttempt]", inside):
            if other.freed is not None and other.has_place():
                other.turn.yields = yields
                other.wake()

    async def turn(self, attempt: Attempt, look_at: float, limit: float, *, once: bool = False) -> bool:
        """See `LocalQueue.turn`; one try needs no turn: who is inside does not hold the key."""
        if once:
            return True
        inside = await super().turn(attempt, look_at, limit)
        cast("SharedAttempt", attempt).has_seen = self._has_seen
        return inside

    def _yields_after(self, attempt: Attempt, now: float) -> float:
        """Return for how long the next one lets other processes be first; 0 until this one has had its run."""
        began = attempt.lease.began or now
        if began - self._left > YIELD_SECONDS:  # none of this process had just ended as this one began
            self._run_began = began
        self._left = now
        if now - self._run_began < RUN_SECONDS:
            return 0.0
        self._run_began, self._yields_until = now, now + YIELD_SECONDS
        self._yields = max(PAUSE_SECONDS, self._pause_after(now - began, now))
        return self._yields

    def _let_in(self, attempt: Attempt, now: float) -> None:
        super()._let_in(attempt, now)
        if now >= self._others_until:  # once is enough where nobody else wants the key, as far as we know
            self._yields_until = 0.0

    def _is_shared(self, attempt: Attempt) -> bool:
        """Whether another process was among the holders as it got the key, or among those it waited for."""
        own, contention = attempt.lease.record, attempt.contention
        if contention is None and (own is None or len(own.shares) == 1):
            return False
        records = [own, None if contention is None else contention.observed.record]
        is_ours = cast("SharedAttempt", attempt).is_ours
        return not all(is_ours(share) for record in records if record is not None for share in record.shares)

    def _is_over(self, attempt: Attempt, now: float) -> bool:
        return attempt.state in HAD or super()._is_over(attempt, now)
