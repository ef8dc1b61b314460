"""An acquire of a key that several may hold: what it may take, and what it writes.

All else is as for a key of one owner.  The record has a share for each hold, and an answer of the store is read as the
attempt's own record: its fence is that of its own share, and its write the one that the beat of that share shows,
whoever has written the record since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from caslock.errors import StoreError
from caslock.protocol.attempt import NO_QUARANTINE, Attempt, Quarantine
from caslock.protocol.hand_over import HandOver
from caslock.protocol.record import Observed, Record
from caslock.protocol.shares import MAX_PERMITS, READS, SHARED, WAITS, WRITES, Seen, Share, kind_of, with_fences
from caslock.protocol.writes import InFlight, Write
from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.protocol.attempt import FirstRecord, Terms
    from caslock.protocol.contention import Contention
    from caslock.protocol.runtime import Event, Mutex
    from caslock.store import Entry


LONGEST_ANNOUNCEMENT: Final = 30.0
"""Seconds: the longest ttl of the share of a waiting writer, which is written again after a third of it."""

PAUSE_ALONE: Final = 0.05
"""Shortest pause, in seconds, of a process that has the key to itself."""

QUIET: Final = 0.05
"""Seconds without a change after which the next one is waited for at the store."""


class SharedAttempt(Attempt):
    """One acquire call of a key that several may hold."""

    __slots__ = ("_beside", "freed", "has_seen", "offer", "permits", "role", "seen")

    queues = False
    permits: int
    role: int
    seen: Seen

    def __init__(
        self, terms: Terms, hold_id: str, stamps: Callable[[], FirstRecord], mutex: Mutex, caller: object
    ) -> None:
        """See `Attempt`."""
        super().__init__(terms, hold_id, stamps, mutex, caller)
        assert terms.sharing is not None  # noqa: S101 - as for all such keys
        self.permits, self.role, self.seen = terms.sharing
        self._beside: tuple[Record | None, list[Share]] = None, []  # a record that we may take, and who is in it
        self.has_seen: bool = False  # another attempt of this process has just got the key: no need to look
        self.freed: Event | None = None  # while we pause: set by who frees a place in this process
        self.offer: HandOver | None = None  # as above: lets a release of this process give us its place

    @property
    def slot(self) -> int:
        """The slot of what it holds."""
        record = self.lease.record
        assert record is not None  # noqa: S101 - it is held
        own = self._own(record.shares)
        assert own is not None  # noqa: S101 - as above
        return own.slot

    def see(self, entry: Entry | None, asked: float, record: Record | None = None, gone: int = ABSENT) -> Observed:
        """Read an answer of the store as our own record, and note which beats it shows."""
        observed = super().see(entry, asked, record)
        if record is None and observed.record is not None and observed.record.shares:
            observed = observed._replace(record=self._as_ours(observed.version, observed.record))
        self.seen.look(observed, self.runtime.now(), asked, gone)
        return observed

    def _as_ours(self, version: int, record: Record) -> Record:
        shares = with_fences(record.shares, version)
        own = self._own(shares)
        if own is None:  # the fence is that of the last one that was admitted: then the key has changed hands
            return record._replace(shares=shares, fence=max(share.fence or 0 for share in shares))
        return record._replace(shares=shares, fence=own.fence, write=f"{self.hold_id}.{own.beat}")

    def sent_again(self, record: Record) -> Record:
        """Return a record that is written once more, with a beat of its own."""
        again = super().sent_again(record)
        beat, ours = self.writes.count, self._ours
        shares = (each._replace(beat=beat) if each.hold in ours else each for each in record.shares)
        return again._replace(shares=tuple(shares))

    def as_handed(self, renewal: Record, now: float) -> Record:
        """Return our renewal with the id under which the hold is handed over, in our share too."""
        shares = (each._replace(hold=self.handed) if each.hold == self.hold_id else each for each in renewal.shares)
        return super().as_handed(renewal, now)._replace(shares=tuple(shares))

    def believe_put(self, put: Write, entry: Entry | None, now: float) -> bool:
        """See `Attempt.believe_put`."""
        won = super().believe_put(put, entry, now)
        if won and entry is not None:
            self.seen.look((entry.version, put.record), now, put.at, ABSENT)
        return won

    def catch_up(self, now: float) -> None:
        """Begin from what another attempt of this process has seen last, if we are in that."""
        version, record = self.seen.newest
        lease = self.lease
        if lease.lost or now >= lease.deadline:  # a loss is final
            return
        if version > lease.version and record is not None and self.holds_by(record):
            self.holds_with(self._as_ours(version, record), version, now)

    def ends(self, contention: Contention) -> float:
        """When the first share is over, if it is not renewed."""
        record = contention.observed.record
        if record is None or not record.shares:
            return super().ends(contention)
        now = self.runtime.now()
        return min(self.seen.over(share, now) for share in record.shares)

    def is_ours(self, share: Share) -> bool:
        """Whether it is a share of this process."""
        stamp = self.stamps().stamp
        return (share.host, share.pid) == (stamp.host, stamp.pid)

    @property
    def reads_first(self) -> bool:
        """See `Attempt.reads_first`: others may still hold when there is a place, and then such a put is in vain."""
        return self.permits > 1

    @property
    def may_watch(self) -> bool:
        """See `Attempt.may_watch`.

        A release in this process wakes only who pauses.  So while this process holds the key we pause, until the record
        has not changed for `QUIET` seconds.
        """
        record, ours = self.seen.newest[1], self._ours
        here = record is not None and any(self.is_ours(each) and each.hold not in ours for each in record.shares)
        return not here or self.runtime.now() - self.contend().seen >= QUIET

    @property
    def least_pause(self) -> float:
        """See `Attempt.least_pause`: every holder is in this process and wakes us, so we need to ask less often."""
        record = self.seen.newest[1]
        return PAUSE_ALONE if record is not None and record.shares and all(map(self.is_ours, record.shares)) else 0.0

    async def pause(self, seconds: float) -> Observed | None:
        """Wait until the next look is due, or a place becomes free in this process, or is handed to us."""
        runtime = self.runtime
        self.freed = event = runtime.event()
        self.offer = offer = HandOver(self)
        try:
            if not self.has_place():
                await event.wait(seconds)
            patience = runtime.now() + runtime.patience
            while not offer.take() and offer.pending and (left := patience - runtime.now()) > 0:
                await event.wait(left)  # a release is sending our first put
            offer.pending = False
        finally:
            self.freed = self.offer = None
        if offer.outcome is not None:
            version, record = offer.outcome  # as read by whoever released
            return Observed(version, self._as_ours(version, record) if record is not None and record.shares else record)
        yields, self.turn.yields = self.turn.yields, 0.0
        if yields:  # let other processes be first
            await runtime.sleep(yields)
        return None if yields else self.known()

    def wake(self) -> None:
        """See `Attempt.wake`."""
        event = self.freed  # it may be set to None concurrently
        if event is not None:
            event.set()

    def has_place(self) -> bool:
        """Whether there is a place for us, as far as this process has seen."""
        record = self.seen.newest[1]
        return record is None or record.free or self.known() is not None

    def begins_with(self) -> Observed | None:
        """Return what is there as we begin to ask, if that is known without a request."""
        if self.turn.yields:
            return None
        return Observed(*self.seen.newest) if self.has_seen else self.known()

    def known(self) -> Observed | None:
        """Return what is there, if it has a place for us, as far as this process has seen."""
        version, record = self.seen.newest
        fits = record is not None and record.form == SHARED and record.permits == self.permits
        return Observed(version, record) if fits and self.may_take(record) else None

    def may_take(self, record: Record | None) -> bool:
        """Whether there is a place for us.  Raises `StoreError` if others say another number of permits."""
        if record is None or record.free:
            return True
        if record.form != SHARED:
            return False
        if record.permits != self.permits:
            place, others = self.runtime.store.traits.location, kind_of(record.permits)
            message = f"{self.key!r} at {place} is {others}, not {kind_of(self.permits)}: it is held by {record}"
            raise StoreError(message)
        beside = self._others_in(record)
        self._beside = record, beside  # once for all: another thread may look meanwhile
        return self._has_place(beside)

    def _has_place(self, others: list[Share]) -> bool:
        """Whether there is a place for us beside these others."""
        return len(others) < self.permits

    def _place(self, others: list[Share]) -> int:
        """Return our slot beside these others."""
        taken = {share.slot for share in others}
        return next(slot for slot in range(self.permits) if slot not in taken)

    def first(self, now: float, expected: int = ABSENT) -> Write:
        """Note and return the put that begins a record over nothing: `next_record` and `note_write`, in fewer calls.

        This, and what the local queue does in fewer calls, saves 14 to 20 % of an uncontended cycle on Redis.
        """
        hold_id, ttl, writes, slot = self.hold_id, self.lease.ttl, self.writes, self.role  # a semaphore has role 0
        writes.count = beat = writes.count + 1
        write_id = f"{hold_id}.{beat}"  # as `next_id` makes it
        writes.in_flight[write_id] = _new(InFlight, (expected, now, ttl))
        stamp, (before, between, after) = self.stamps()
        shares = (_new(Share, (hold_id, slot, beat, None, ttl, 0.0, *stamp)),)
        permits = self.permits
        record = _new(Record, ("", (hold_id,), ttl, write_id, None, 0.0, "", "", 0, "", SHARED, "", permits, shares))
        value = f'{before}{write_id}{between}{hold_id}",{slot},{beat}{after}'.encode()
        return _new(Write, (write_id, expected, record, value, now))

    def next_record(self, observed: Record | None, version: int) -> Record:
        """Return the record to put in place of `observed`: with our share, and without those that are over."""
        return self._with_ours(observed, version, self.lease.asked, None)

    def _with_ours(self, observed: Record | None, version: int, ttl: float, slot: int | None) -> Record:
        """Return the record with our share in `slot`; None: in that which it has, or in the next one."""
        write_id, now = self.writes.next_id(), self.runtime.now()
        rest, others, own = NO_QUARANTINE, list[Share](), None
        if observed is not None:
            rest, (record, others) = self._rest(observed, now), self._beside
            others = others if record is observed else self._others_in(observed)
            own = self._replaced(with_fences(observed.shares, version))
            others = [each for each in others if own is None or each.hold != own.hold]  # nor a ticket that we adopt
        if own is None:
            place = self._place(others) if slot is None else slot
            own = Share(self.hold_id, place, 0, None, 0.0, 0.0, *self.stamps().stamp)
        elif slot is not None and own.slot != slot:
            own = own._replace(slot=slot, fence=None if slot == WRITES else own.fence)  # admitted by this write
        own = own._replace(hold=self.hold_id, beat=self.writes.count, ttl=ttl, still=0.0)
        return self._record((*self._written(others, version, now), own), write_id, rest, own.fence)

    def remainder(self, observed: Record | None, version: int, now: float) -> Record | None:
        """Return what a release leaves: the others' shares, a free record while a quarantine lasts, or nothing."""
        others = [] if observed is None else self._others_in(observed)
        if observed is None or not (others or self.is_in(observed)):
            return super().remainder(observed, version, now)
        write_id = self.writes.next_id()
        rest = self._longer_rest(self._rest(observed, now), write_id, now)
        if others:
            return self._record(self._written(others, version, now), write_id, rest, None)
        return self._new_record((), rest.seconds, write_id, rest) if rest.seconds > 0 else None

    def _record(self, shares: tuple[Share, ...], write_id: str, rest: Quarantine, fence: int | None) -> Record:
        return Record(
            "", tuple([share.hold for share in shares]), max(share.ttl for share in shares), write_id, fence,
            rest.seconds, form=SHARED, quarantine_id=rest.id, permits=self.permits, shares=shares,
        )  # fmt: skip

    def _written(self, others: list[Share], version: int, now: float) -> tuple[Share, ...]:
        """Return the shares of others as we write them."""
        return tuple([each._replace(still=self.seen.still(each, now)) for each in with_fences(others, version)])

    @property
    def _ours(self) -> tuple[str, str]:
        """The hold ids of our share: it has the second while it is being handed over."""
        return self.hold_id, self.handed

    def _own(self, shares: tuple[Share, ...]) -> Share | None:
        ours = self._ours
        return next((share for share in shares if share.hold in ours), None)

    def _replaced(self, shares: tuple[Share, ...]) -> Share | None:
        """Return the share that our next write replaces: an adoption replaces another one than our own."""
        return self._own(shares)

    def _others_in(self, record: Record) -> list[Share]:
        """Return the shares of others whose beat has moved within their ttl, as far as this process has seen."""
        now, ours = self.runtime.now(), self._ours
        return [share for share in record.shares if share.hold not in ours and self.seen.over(share, now) > now]


class ReadWriteAttempt(SharedAttempt):
    """One acquire call of a read-write lock, to read or to write."""

    __slots__ = ()

    def holds_by(self, record: Record | None) -> bool:
        """Whether we hold the key by `record`, and do not only wait in it."""
        own = None if record is None else self._own(record.shares)
        return own is not None and own.slot != WAITS

    def announcement(self, record: Record | None, version: int) -> Record | None:
        """Return what keeps out readers that come later; None: that is there, and will be for a while."""
        lease, now = self.lease, self.runtime.now()
        if self.role == READS or record is None or not record.shares or now >= self.limit:
            return None
        others = self._others_in(record)
        # Beside a writer nobody gets in anyway.  Who is next is open then, or writers would keep out readers for ever.
        if len(others) >= MAX_PERMITS or any(share.slot == WRITES for share in others):
            return None
        again = self._says_again(record)
        if again is not None and now < again:
            return None
        lease.asked = 0.0  # it asks for no lease
        return self._with_ours(record, version, min(lease.ttl, LONGEST_ANNOUNCEMENT), WAITS)

    def ends(self, contention: Contention) -> float:
        """When the first share is over, or when to say again that we wait."""
        ends, again = super().ends(contention), self._says_again(contention.observed.record)
        return ends if again is None else min(ends, again)

    def next_record(self, observed: Record | None, version: int) -> Record:
        """Return the record to put in place of `observed`: with our share, and without those that are over."""
        self.lease.asked = self.lease.asked or self.lease.ttl
        return self._with_ours(observed, version, self.lease.asked, self.role)

    def _says_again(self, record: Record | None) -> float | None:
        """When to say again that we wait; None: the record does not say it, or not by a write that we remember."""
        own = None if record is None else self._own(record.shares)
        said = None if own is None else self.writes.in_flight.get(f"{self.hold_id}.{own.beat}")
        return None if own is None or said is None else said.at + own.ttl / 3

    def _has_place(self, others: list[Share]) -> bool:
        """Whether nobody writes or waits to write; whether nobody holds the key."""
        beside = READS if self.role == READS else WAITS
        return len(others) < MAX_PERMITS and all(share.slot == beside for share in others)

    def _place(self, others: list[Share]) -> int:
        """Return our role."""
        del others
        return self.role


_new = tuple.__new__  # takes half the time of a NamedTuple's own
