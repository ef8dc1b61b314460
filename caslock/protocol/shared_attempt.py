"""An acquire of a key that several may hold: what it may take, and what it writes.

All else is as for a key of one owner.  The record has a share for each hold, and an answer of the store is read as the
attempt's own record: its fence is that of its own share, and its write the one that the beat of that share shows,
whoever has written the record since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import StoreError
from caslock.protocol.attempt import NO_QUARANTINE, Attempt, Quarantine
from caslock.protocol.record import Observed, Record, encode
from caslock.protocol.shares import SHARED, Seen, Share, with_fences
from caslock.protocol.writes import FREE_TTL, InFlight, Write
from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.protocol.attempt import FirstRecord, Terms
    from caslock.protocol.contention import Contention
    from caslock.protocol.runtime import Event, Mutex
    from caslock.store import Entry


class SharedAttempt(Attempt):
    """One acquire call of a key of `permits` holds."""

    __slots__ = ("freed", "permits", "seen")

    queues = False

    def __init__(
        self,
        terms: Terms,
        hold_id: str,
        stamps: Callable[[], FirstRecord],
        mutex: Mutex,
        caller: object,
        *,
        permits: int,
        seen: Seen,
    ) -> None:
        """See `Attempt`; `seen` is what this process has seen of the key."""
        super().__init__(terms, hold_id, stamps, mutex, caller)
        self.seen: Seen = seen
        self.permits: int = permits
        self.freed: Event | None = None  # set by who frees a place in this process

    @property
    def slot(self) -> int:
        """The slot of what it holds."""
        record = self.lease.record
        assert record is not None  # noqa: S101 - it is held
        return next(share.slot for share in record.shares if share.hold == self.hold_id)

    def see(self, entry: Entry | None, record: Record | None = None) -> Observed:
        """Read an answer of the store as our own record, and note which beats it shows."""
        observed = super().see(entry, record)
        if record is None and observed.record is not None and observed.record.shares:
            observed = observed._replace(record=self._as_ours(observed.version, observed.record))
        self.seen.look(*observed, self.runtime.now())
        return observed

    def _as_ours(self, version: int, record: Record) -> Record:
        shares = with_fences(record.shares, version)
        own = self._own(shares)
        if own is None:  # the fence is that of the last one that was admitted: then the key has changed hands
            return record._replace(shares=shares, fence=max(share.fence or 0 for share in shares))
        return record._replace(shares=shares, fence=own.fence, write=f"{self.hold_id}.{own.beat}")

    def ends(self, contention: Contention) -> float:
        """When the first share is over, if it is not renewed."""
        record = contention.observed.record
        if record is None or not record.shares:
            return super().ends(contention)
        now = self.runtime.now()
        return min(self.seen.over(share, now) for share in record.shares)

    async def pause(self, seconds: float) -> Observed | None:
        """Let time pass before the next look, or a place become free in this process."""
        self.freed = event = self.runtime.event()
        try:
            await event.wait(seconds)
        finally:
            self.freed = None
        return self.known()

    def known(self) -> Observed | None:
        """Return what is there, if it has a place for us, as far as this process has seen."""
        version, record = self.seen.version, self.seen.record
        if record is None or record.permits != self.permits or len(self._others_in(record)) >= self.permits:
            return None
        return Observed(version, record)

    def may_take(self, record: Record | None) -> bool:
        """Whether there is a place for us.  Raises `StoreError` if others say another number of permits."""
        if record is None or record.free:
            return True
        if record.form != SHARED:
            return False
        if record.permits != self.permits:
            place = self.runtime.store.traits.location
            holders = f"it is held by {record}"
            raise StoreError(f"{self.key!r} at {place} has {record.permits} permits, not {self.permits}: {holders}")
        return len(self._others_in(record)) < self.permits

    def first(self, now: float, expected: int = ABSENT) -> Write:
        """Note and return the put that begins a record over nothing."""
        record = self.next_record(None, ABSENT)
        self.writes.in_flight[record.write] = InFlight(expected, now, self.lease.ttl)
        return Write(record.write, expected, record, encode(record), now)

    def next_record(self, observed: Record | None, version: int) -> Record:
        """Return the record to put in place of `observed`: with our share, and without those that are over."""
        write_id, now = self.writes.next_id(), self.runtime.now()
        rest, others, own = NO_QUARANTINE, list[Share](), None
        if observed is not None:
            rest, others = self._rest(observed, now), self._others_in(observed)
            own = self._own(with_fences(observed.shares, version))
        if own is None:
            taken = {share.slot for share in others}
            slot = next(slot for slot in range(self.permits) if slot not in taken)
            own = Share(self.hold_id, slot, 0, None, 0.0, *self.stamps().stamp)
        own = own._replace(beat=self.writes.count, ttl=self.lease.asked)
        return self._record((*with_fences(others, version), own), write_id, rest, own.fence)

    def remainder(self, observed: Record | None, version: int, now: float) -> Record | None:
        """Return what a release leaves: the others' shares, a free record while a quarantine lasts, or nothing."""
        others = [] if observed is None else self._others_in(observed)
        if observed is None or not (others or self.is_in(observed)):
            return super().remainder(observed, version, now)
        write_id = self.writes.next_id()
        rest, sent = self._rest(observed, now), self.writes.last_sent(ABSENT)
        if sent is not None:
            rest = max(rest, self._quarantine(write_id, sent + FREE_TTL, now))  # the longer one
        if others:
            return self._record(with_fences(others, version), write_id, rest, None)
        return self._free_record(write_id, rest) if rest.seconds > 0 else None

    def _record(self, shares: tuple[Share, ...], write_id: str, rest: Quarantine, fence: int | None) -> Record:
        return Record(
            "", tuple([share.hold for share in shares]), max(share.ttl for share in shares), write_id, fence,
            rest.seconds, form=SHARED, quarantine_id=rest.id, permits=self.permits, shares=shares,
        )  # fmt: skip

    def _own(self, shares: tuple[Share, ...]) -> Share | None:
        return next((share for share in shares if share.hold == self.hold_id), None)

    def _others_in(self, record: Record) -> list[Share]:
        """Return the shares of others whose beat has moved within their ttl, as far as this process has seen."""
        now = self.runtime.now()
        return [share for share in record.shares if share.hold != self.hold_id and self.seen.over(share, now) > now]
