"""The adoption of a hold of a semaphore, as in `transfer`: one share of the record is replaced by another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from caslock.protocol.shared_attempt import SharedAttempt
from caslock.protocol.shares import SHARED

if TYPE_CHECKING:
    from caslock.protocol.record import Record
    from caslock.protocol.shares import Share
    from caslock.protocol.transfer import Ticket


class SharedAdoption(SharedAttempt):
    """See `transfer.Adoption`."""

    __slots__ = ("adopted", "before", "ticket")

    purpose: ClassVar[str] = "adopt"
    ticket: Ticket
    before: Share | None  # the share that it has replaced, or tried to
    adopted: bool

    def begin(self, ticket: Ticket) -> None:
        """Prepare to take over the hold of `ticket`."""
        self.ticket, self.before, self.adopted = ticket, None, False

    def may_take(self, record: Record | None) -> bool:
        """Whether the record has the ticket's share, or ours already."""
        if record is None or record.form != SHARED or record.permits != self.permits:
            return False
        hold, fence = self.ticket.hold, self.ticket.fence
        return self.is_in(record) or any(share.hold == hold and share.fence == fence for share in record.shares)

    def remainder(self, observed: Record | None, version: int, now: float) -> Record | None:
        """Return what a release leaves: the ticket's share again, if the adoption was not completed."""
        others = [] if observed is None else super()._others_in(observed)  # with the ticket's share, if it is there
        if self.adopted or self.before is None or observed is None or not (others or self.is_in(observed)):
            return super().remainder(observed, version, now)
        if self.is_in(observed):
            others.append(self.before)
        write_id, rest = self.writes.next_id(), self._rest(observed, now)
        return self._record(self._written(others, version, now), write_id, rest, None)

    def _before(self, shares: tuple[Share, ...]) -> Share | None:
        own = super()._before(shares)
        if own is not None:
            return own
        self.before = next((share for share in shares if share.hold == self.ticket.hold), None)
        stamp = self.stamps().stamp
        return self.before and self.before._replace(
            hold=self.hold_id, host=stamp.host, pid=stamp.pid, note=stamp.note or self.before.note
        )

    def _others_in(self, record: Record) -> list[Share]:
        return [share for share in super()._others_in(record) if share.hold != self.ticket.hold]
