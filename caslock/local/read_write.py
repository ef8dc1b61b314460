"""The state of the two sides of one read-write lock, for both APIs; each re-enters as a Lock does."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeVar, cast

from caslock.errors import NotHeld
from caslock.local.hold import Holding
from caslock.local.semaphore import SharedState
from caslock.protocol import renew
from caslock.protocol.life import HELD
from caslock.protocol.shared_attempt import ReadWriteAttempt
from caslock.protocol.shares import READS, WRITES

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.local.lock_state import LockState
    from caslock.local.shared_queue import SharedQueue
    from caslock.protocol.attempt import Attempt, LockSettings
    from caslock.protocol.record import Record
    from caslock.protocol.runtime import Runtime

H = TypeVar("H", bound=Holding)


class ReadWriteState(SharedState):
    """The state of one side: `role` is `READS` or `WRITES`."""

    __slots__ = ("other", "role")

    other: ReadWriteState
    """The other side."""

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings, role: int) -> None:
        super().__init__(runtime, key, settings)
        self.role: int = role

    def begin(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> H:
        """See `LockState.begin`; raises RuntimeError where the same thread or task holds the other side."""
        other = self.other.begun()
        if other._held and other._own(caller) is not None:
            holds, wants = (
                ("writes", "read: call downgrade() on its hold")
                if self.role == READS
                else (
                    "reads",
                    "write: two that do so would wait for each other, so release first",
                )
            )
            message = f"this thread or task {holds} {self.key!r}, and can't wait to {wants}"
            raise RuntimeError(message)
        return super().begin(make, caller)

    def _attempt(self, kind: type[Attempt] = ReadWriteAttempt) -> ReadWriteAttempt:
        del kind
        runtime, queue = self.runtime, cast("SharedQueue", self._queue)
        hold = f"{self._nonce}.{next(self._numbers)}"
        self.newest: str = hold  # which another thread may replace at once
        made = self._terms, hold, self._stamps, runtime.mutex(), runtime.me()
        return ReadWriteAttempt(*made, role=self.role, seen=queue.seen)

    async def holders(self) -> tuple[Record, ...]:
        """Who holds this side."""
        return tuple([each for each in await super().holders() if each.shares and each.shares[0].slot == self.role])

    async def downgrade(self, hold: Holding, make: Callable[[LockState, Attempt], H]) -> H:
        """Go on as a reader, whom no other writer precedes; the hold is over then."""
        attempt = cast("ReadWriteAttempt", hold._attempt)
        with self._guard:
            if attempt.state is not HELD or hold not in attempt.levels:
                message = f"this hold of {self.key!r} has already been released"
                raise NotHeld(message)
            if attempt.levels != [hold]:
                message = f"{self.key!r} was entered more than once: only the last hold that is left can be downgraded"
                raise RuntimeError(message)
        attempt.role = READS
        await renew.renew(self.runtime, attempt, None)
        reader = make(self.other.begun(), attempt)
        with self._guard:
            attempt.levels = [reader]
            self._held.pop(attempt.hold_id, None)
            self.other._held[attempt.hold_id] = weakref.ref(attempt)
            self.committed.pop(hold, None)
            self.other.committed[reader] = None
        self._queue.leave(attempt, self.runtime.now())
        return reader


def sides(runtime: Runtime, key: str, settings: LockSettings) -> tuple[ReadWriteState, ReadWriteState]:
    """Return the states of both sides: that which reads, and that which writes."""
    reads, writes = (ReadWriteState(runtime, key, settings, role) for role in (READS, WRITES))
    reads.other, writes.other = writes, reads
    return reads, writes
