"""The state of one Semaphore object, for both APIs: each acquire is a hold of its own, and none re-enters."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from caslock import observer
from caslock.local.hold import Holding
from caslock.local.lock_state import LockState
from caslock.local.shared_queue import SharedQueue
from caslock.protocol import release
from caslock.protocol.exchange import read
from caslock.protocol.life import HELD
from caslock.protocol.limits import PASSES, last_start_of_three
from caslock.protocol.record import Record, Stamp
from caslock.protocol.shared_attempt import SharedAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.protocol.attempt import Attempt, LockSettings
    from caslock.protocol.exchange import Sent
    from caslock.protocol.record import Observed
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.shares import Share
    from caslock.protocol.writes import Write
    from caslock.store import Entry

H = TypeVar("H", bound=Holding)


class SemaphoreState(LockState):
    """The state of one Semaphore object."""

    __slots__ = ("permits",)

    _queue_type = SharedQueue
    _nonce_bytes = 8  # many hold ids are in one record

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings, permits: int) -> None:
        super().__init__(runtime, key, settings)
        self.permits: int = permits

    def begin(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> H:
        """Return a hold for `acquire`, of the type `make`, with an attempt of its own."""
        del caller
        self.begun()
        return make(self, self._attempt())

    def _attempt(self) -> SharedAttempt:
        runtime, queue = self.runtime, cast("SharedQueue", self._queue)
        self.newest = hold = f"{self._nonce}.{next(self._numbers)}"
        made = self._terms, hold, self._stamps, runtime.mutex(), runtime.me()
        return SharedAttempt(*made, permits=self.permits, seen=queue.seen)

    def begin_put(self, hold: Holding) -> Write | None:
        """See `LockState.begin_put`: not where others are known to hold."""
        return super().begin_put(hold) if cast("SharedQueue", self._queue).seen.record is None else None

    def end_removal(self, hold: Holding, entry: Entry | None) -> bool:
        """See `LockState.end_removal`."""
        cast("SharedAttempt", hold._attempt).see(entry)
        return super().end_removal(hold, entry)

    def _ask(
        self, attempt: Attempt, timeout: float | None, first: Observed | Sent | None
    ) -> Coroutine[object, object, bool]:
        return super()._ask(attempt, timeout, first or cast("SharedAttempt", attempt).known())

    def _hold(self, hold: Holding) -> None:
        super()._hold(hold)
        self._queue.leave(hold._attempt, self.runtime.now())

    async def holders(self) -> tuple[Record, ...]:
        """Who holds the key."""
        self.begun()
        limit = last_start_of_three(self.runtime, self.runtime.now())
        observed = await read(self.runtime, self._attempt(), limit)
        record = observed.record
        if record is None or record.free:
            return ()
        if not record.shares:
            return (self._told(record, observed.fence),)
        return tuple([self._told(holder_of(share), share.fence) for share in record.shares])

    async def force_release_all(self) -> tuple[Record, ...]:
        """Take the key away from all who hold it."""
        self.begun()
        found: dict[str, Share] = {}
        for _ in range(PASSES):  # one may have got in meanwhile
            broken = await release.force_release(self.runtime, self._attempt())
            if broken is None:
                break
            found |= {share.hold: share for share in broken.shares}
        for attempt in self._attempts():
            if attempt.hold_id in found and attempt.state is HELD:
                attempt.lose("this process called force_release()")
        holders = tuple([self._told(holder_of(share), share.fence) for share in found.values()])
        if holders:
            location, names = self.runtime.store.traits.location, ", ".join(map(str, found.values()))
            observer.warn(f"semaphore {self.key!r} at {location} was released by force; it was held by {names}")
        return holders


def holder_of(share: Share) -> Record:
    """Return what a record of this holder alone would say."""
    owner = f"{share.host or 'unknown'}:{share.hold.partition('.')[0]}"
    stamp = Stamp(share.since, share.host, share.pid, share.note)
    return Record(owner, (share.hold,), share.ttl, "", share.fence, 0.0, *stamp)
