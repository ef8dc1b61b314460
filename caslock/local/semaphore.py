"""The states of objects for a key that several may hold, for both APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from caslock.local.hold import Holding
from caslock.local.lock_state import LockState
from caslock.local.shared_queue import SharedQueue
from caslock.process.fork import generation
from caslock.protocol.record import NOTHING
from caslock.protocol.shared_attempt import SharedAttempt
from caslock.protocol.shares import READS, Sharing, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.protocol.attempt import Attempt, LockSettings
    from caslock.protocol.exchange import Sent
    from caslock.protocol.record import Observed, Record
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.writes import Write
    from caslock.store import Entry

H = TypeVar("H", bound=Holding)


class SharedState(LockState):
    """The state of one object for a key that several may hold."""

    __slots__ = ("permits", "role")

    _attempt_type = SharedAttempt
    _queue_type = SharedQueue
    _nonce_bytes = 8  # many hold ids are in one record
    _queue: SharedQueue

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings, permits: int, role: int = READS) -> None:
        """Begin as not held; `permits` and `role`: see `Sharing`."""
        super().__init__(runtime, key, settings)
        self.permits: int = permits
        self.role: int = role

    def _sharing(self) -> Sharing:
        seen = self._queue.seen
        seen.ordered = self.runtime.store.traits.fences
        return Sharing(self.permits, self.role, seen)

    def begin_put(self, hold: Holding) -> Write | None:
        """See `LockState.begin_put`: not where others are known to hold."""
        return super().begin_put(hold) if self._queue.seen.newest[1] is None else None

    def begin_removal(self, hold: Holding) -> Write | None:
        """See `LockState.begin_removal`; None if the place may be handed over."""
        return None if self._queue.is_asked else super().begin_removal(hold)

    def end_removal(self, hold: Holding, entry: Entry | None) -> bool:
        """See `LockState.end_removal`."""
        if entry is None:
            # When it was sent is not known here, so the version decides.
            self._queue.seen.look(NOTHING, self.runtime.now(), 0.0, hold._attempt.lease.version)
        return super().end_removal(hold, entry)

    def _ask(
        self, attempt: Attempt, timeout: float | None, first: Observed | Sent | None
    ) -> Coroutine[object, object, bool]:
        return super()._ask(attempt, timeout, first or cast("SharedAttempt", attempt).begins_with())

    def _hold(self, hold: Holding) -> None:
        super()._hold(hold)
        self._queue.leave(hold._attempt, self.runtime.now())

    async def holders(self) -> tuple[Record, ...]:
        """Who holds the key."""
        return self._told_each(await self.holder())

    async def force_release_all(self) -> tuple[Record, ...]:
        """Take the key away from all who hold it."""
        return self._told_each(await self.force_release())

    def _told_each(self, record: Record | None) -> tuple[Record, ...]:
        return () if record is None else tuple([self._told(each, each.fence) for each in record.each])


class SemaphoreState(SharedState):
    """The state of one Semaphore object: each acquire is a hold of its own."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """See `LockState.kind`."""
        return kind_of(self.permits)

    async def locked(self) -> bool:
        """Whether all permits are taken, or something else has the key."""
        holders = await self.holders()
        return len(holders) >= self.permits or not all(each.shares for each in holders)

    def begin(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> H:
        """Return a hold for `acquire`, of the type `make`, with an attempt of its own."""
        del caller
        if self.generation != generation():
            self.begun()
        return make(self, self._attempt())
