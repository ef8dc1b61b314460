"""Hands a hold over to another process, by a ticket.

The first process writes the hold id of the ticket in place of its own; the adopter, who has the ticket, replaces that
by an id of its own.  Both are conditional writes, so one adopter wins.  The fence stays, because the tenure does.  No
attempt renews or releases the ticket's hold id once the ticket was given away: if nobody adopts the hold, its lease
ends it.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from caslock.errors import LockLost, StoreUnavailable
from caslock.protocol.acquire import acquire
from caslock.protocol.attempt import Attempt
from caslock.protocol.exchange import read
from caslock.protocol.limits import last_start
from caslock.protocol.renew import renew_alone
from caslock.protocol.shares import HANDED
from caslock.store import check_key

if TYPE_CHECKING:
    from caslock.protocol.record import Observed, Record
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.shared_transfer import SharedAdoption

MAX_TICKET: Final = 6_000
"""Characters; the ticket of a short key has about 130."""

_FORM: Final = "2"


class Ticket(NamedTuple):
    """What the adopter of a hold has to know.  Whoever has it, and reaches the store, can adopt the hold."""

    key: str
    hold: str
    """The hold id that the record has until the adoption."""
    fence: int
    ttl: float
    """Seconds of the lease, unless the adopter has a ttl of its own."""
    max_hold: float
    """Seconds that are left of it at the latest moment of an adoption; infinite: there is none."""
    min_hold: float
    """Seconds that were left of it as the hold was handed over."""
    permits: int = 0
    """How many permits the semaphore has; 0 for a hold of a Lock."""

    def __str__(self) -> str:
        """Return it as a text of letters, digits, ``-`` and ``_``."""
        hold = self.hold.removeprefix(HANDED)
        seconds = f"{self.ttl!r} {self.max_hold!r} {self.min_hold!r}"
        text = f"{_FORM} {hold} {self.fence} {self.permits} {seconds} {self.key}".encode()
        return base64.urlsafe_b64encode(zlib.crc32(text).to_bytes(4) + text).decode().rstrip("=")


def read_ticket(text: str) -> Ticket:
    """Return the ticket in a text; raises ValueError if it has none, or not all of it."""
    if not isinstance(text, str):
        message = f"the ticket must be a str, as hand_over() has returned it, not {type(text).__name__}"
        raise TypeError(message)
    try:
        text = text.strip()  # as it comes from a file or a pipe
        if len(text) > MAX_TICKET:
            raise ValueError(len(text))  # noqa: TRY301 - told below
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4]):
            raise ValueError(data)  # noqa: TRY301 - as above
        form, hold, fence, permits, *seconds, key = data[4:].decode().split(" ", 7)
        ttl, max_hold, min_hold = map(float, seconds)
        if form != _FORM or not (hold and math.isfinite(ttl) and math.isfinite(min_hold)):
            raise ValueError(form)  # noqa: TRY301 - as above
        check_key(key)
        return Ticket(key, HANDED + hold, int(fence), ttl, max_hold, min_hold, int(permits))
    except ValueError:
        message = f"what begins with {text[:20]!r} is not a ticket of hand_over(), or is incomplete"
        raise ValueError(message) from None


async def hand_over(runtime: Runtime, attempt: Attempt) -> Ticket:
    """Put a ticket's hold id in place of ours, with a whole lease, and return the ticket.

    The attempt's mutex has to be taken.  After an error it is held as before, and whatever of this is at the store is
    taken back by its next renewal or release; so no ticket may be given away.
    """
    lease, ttl = attempt.lease, attempt.lease.ttl
    left = lease.began + lease.max_hold - runtime.now()
    # No clock tells the adopter how long the ticket was under way, at most for this lease: max_hold counts all of it.
    await renew_alone(runtime, attempt, min(ttl, left / 2), handed=True)
    now = runtime.now()
    max_hold = lease.began + lease.max_hold - now - lease.asked - runtime.store.traits.expiry_lag
    min_hold = max(0.0, lease.began + attempt.min_hold - now)
    permits = 0 if lease.record is None else lease.record.permits
    return Ticket(attempt.key, attempt.handed, lease.fence, ttl, max(0.0, max_hold), min_hold, permits)


class Adoption(Attempt):
    """An attempt that takes over the hold of a ticket, and nothing else.

    Its owner is that of the record; it never asks for a key that nobody holds.  If it fails, it is withdrawn like any
    acquire: if its put was applied, the ticket is used up, and nobody has the hold.
    """

    __slots__ = ("ticket",)

    purpose: ClassVar[str] = "adopt"
    owner: str
    min_hold: float
    ticket: Ticket  # set by `local.tickets.begin`

    def may_take(self, record: Record | None) -> bool:
        """Whether the hold of the ticket is there, in the tenure in which it was handed over; or ours."""
        if record is None or record.foreign:
            return False
        return self.is_in(record) or (self.ticket.hold in record.holds and record.fence == self.ticket.fence)

    def next_record(self, observed: Record | None, version: int) -> Record:
        """Return the record to put in place of `observed`: with our hold in place of the ticket's."""
        if observed is None or self.is_in(observed):
            return super().next_record(observed, version)  # a renewal
        self.owner = observed.owner
        others = tuple([hold for hold in observed.holds if hold != self.ticket.hold])
        ttl = max(self.lease.asked, observed.ttl) if others else self.lease.asked
        rest, stamp = self._rest(observed, self.runtime.now()), self.stamps().stamp
        return observed._replace(
            holds=(*others, self.hold_id), ttl=ttl, write=self.writes.next_id(), quarantine=rest.seconds,
            quarantine_id=rest.id, host=stamp.host, pid=stamp.pid, note=stamp.note or observed.note,
        )  # fmt: skip


async def adopt(runtime: Runtime, attempt: Adoption | SharedAdoption) -> None:
    """Take over the hold of the attempt's ticket: read its record, and put ours at the version that was seen.

    No request begins later than two request timeouts from now.  After an error, call `give_up`.  Raises `LockLost`,
    which says what has become of the hold, if the ticket's is not there.
    """
    attempt.limit = runtime.now()
    observed = await read(runtime, attempt, last_start(runtime, attempt.limit))
    if attempt.may_take(observed.record):
        if await acquire(runtime, attempt, 0.0, observed):
            return
        observed = attempt.contend().observed
        if attempt.may_take(observed.record):
            raise StoreUnavailable("its record kept changing")
    reason = _became_of(runtime, attempt.ticket, observed)
    loss = LockLost(f"could not adopt lock {attempt.key!r}: {reason}")
    loss.reason = reason
    raise attempt.concerns(loss)


def _became_of(runtime: Runtime, ticket: Ticket, observed: Observed) -> str:
    """Say what has become of the hold of a ticket that is not there."""
    record, location = observed.record, runtime.store.traits.location
    if record is None or record.free:
        otherwise = "belongs to another store, or the store has lost its hold"
        return f"nobody holds it at {location}: the ticket has expired, was used before, {otherwise}"
    if record.shares:
        used = any(share.fence == ticket.fence for share in record.shares)
        became = "was used before" if used else "has expired, was used before, or belongs to another store"
        return f"the ticket {became}: at {location} its holders are {record}"
    if record.foreign or observed.fence < ticket.fence:
        return f"the ticket belongs to another store than {location}, where it is held by {record}"
    if observed.fence == ticket.fence:
        return f"the ticket was used before: at {location} the lock is held by {record}"
    return f"the ticket has expired, or belongs to another store: at {location} the lock is held by {record}"
