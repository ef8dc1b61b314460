"""The state of the two sides of one read-write lock, for both APIs; each re-enters as a Lock does."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeVar, cast

from caslock.errors import StoreError
from caslock.local.hold import Holding
from caslock.local.semaphore import SharedState
from caslock.protocol import renew
from caslock.protocol.shared_attempt import ReadWriteAttempt
from caslock.protocol.shares import READS, WRITES, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.local.lock_state import LockState
    from caslock.protocol.attempt import Attempt, LockSettings
    from caslock.protocol.record import Record
    from caslock.protocol.runtime import Runtime

H = TypeVar("H", bound=Holding)


class ReadWriteState(SharedState):
    """The state of one side."""

    __slots__ = ("other",)

    _attempt_type = ReadWriteAttempt

    other: ReadWriteState
    """The other side."""

    @property
    def kind(self) -> str:
        """See `LockState.kind`."""
        return f"the {'read' if self.role == READS else 'write'} side of {kind_of(0)}"

    def begin(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> H:
        """See `LockState.begin`; raises RuntimeError where the same thread or task holds the other side."""
        other = self.other.begun()
        if other._held and other._own(caller) is not None:
            holds, advice = ("writes", "just read") if self.role == READS else ("reads", "release it to write")
            message = f"this thread or task {holds} {self.key!r}, and would wait for itself: {advice}"
            raise RuntimeError(message)
        return super().begin(make, caller)

    async def downgrade(self, hold: Holding) -> None:
        """Have a hold that writes read from now on; without an answer, the next renewal or extension publishes it."""
        hold._mine()
        attempt, reads = cast("ReadWriteAttempt", hold._attempt), self if self.role == READS else self.other.begun()
        with self._guard:
            if attempt.levels != [hold]:
                message = f"{self.key!r} was entered more than once: leave the inner blocks before downgrade()"
                raise RuntimeError(message)
            if self is not reads:
                reads._held[attempt.hold_id] = weakref.ref(attempt)
                if hold in self.committed:
                    reads.committed[hold] = self.committed.pop(hold)
                attempt.role, hold._state = READS, reads
                self._held.pop(attempt.hold_id, None)
        try:
            await renew.renew(self.runtime, attempt, None)
        except StoreError as error:
            raise attempt.failure("downgrade", error, "the next renewal or extend() tries again") from error
        self._queue.look_again(self.runtime.now())

    async def hand_over(self, hold: Holding) -> str:
        """Refuse it."""
        del hold
        message = f"a hold of a ReadWriteLock can't be handed over, only one of a Lock or a Semaphore: {self.key!r}"
        raise RuntimeError(message)

    async def holders(self) -> tuple[Record, ...]:
        """Who holds this side; or else what has the key in its place."""
        holders = await super().holders()
        return tuple([each for each in holders if each.permits or not each.shares or each.shares[0].slot == self.role])


def sides(runtime: Runtime, key: str, settings: LockSettings) -> tuple[ReadWriteState, ReadWriteState]:
    """Return the states of both sides: that which reads, and that which writes."""
    reads, writes = (ReadWriteState(runtime, key, settings, 0, role) for role in (READS, WRITES))
    reads.other, writes.other = writes, reads
    return reads, writes
