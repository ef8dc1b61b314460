"""The local queue of a key that several may hold: only the first of those who want it talks to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from caslock.local.queue import YIELD_SECONDS, LocalQueue
from caslock.protocol.life import HAD, HELD
from caslock.protocol.shares import Seen

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.shared_attempt import SharedAttempt

ROW_SECONDS: Final = 0.2
"""Seconds for which the releases of a process wake its own waiter: then one does not, and others may be first."""


class SharedQueue(LocalQueue):
    """The queue of one process for one key: who has got the key is no longer inside, and keeps nobody from asking."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        """Begin as free."""
        super().__init__()
        self.seen: Seen = Seen()

    def name_successor(self, attempt: Attempt, now: float) -> None:
        """Do nothing: who waits is woken, and asks by itself."""

    def leave(self, attempt: Attempt, now: float) -> None:
        """Let the next one in; unless the key has just been got, wake who asks for it: there may be a place."""
        with self._guard:
            self._inside = [other for other in self._inside if other() is not attempt]
            if attempt in self.waiting:
                self.waiting.remove(attempt)
            inside = self._admit(now)
            if attempt.state is HELD:
                return
            if now - self._left > YIELD_SECONDS:
                self._row_began = now
            self._left = now
            if now - self._row_began >= ROW_SECONDS:
                self._row_began = now
                return
            for other in inside:
                freed = cast("SharedAttempt", other).freed
                if freed is not None:
                    freed.set()

    def _is_over(self, attempt: Attempt, now: float) -> bool:
        return attempt.state in HAD or super()._is_over(attempt, now)
