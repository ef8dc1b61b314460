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

    __slots__ = ("ticket",)

    purpose: ClassVar[str] = "adopt"
    ticket: Ticket

    def may_take(self, record: Record | None) -> bool:
        """Whether the record has the ticket's share, or ours already."""
        if record is None or record.form != SHARED or record.permits != self.permits:
            return False
        hold, fence = self.ticket.hold, self.ticket.fence
        return self.is_in(record) or any(share.hold == hold and share.fence == fence for share in record.shares)

    def _replaced(self, shares: tuple[Share, ...]) -> Share | None:
        own, stamp = super()._replaced(shares), self.stamps().stamp
        own = own or next((share for share in shares if share.hold == self.ticket.hold), None)
        return own and own._replace(host=stamp.host, pid=stamp.pid, note=stamp.note or own.note)
