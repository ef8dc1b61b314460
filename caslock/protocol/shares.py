"""What each of several holds has of one key, as it is written in the record of that key.

A share has a beat, which each write of its holder moves on.  Whoever sees a beat stand still for the whole ttl of the
share, by a clock of its own, may take the share out of the record: so a dead holder costs one ttl, whoever else lives.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from caslock.errors import StoreError
from caslock.protocol.lease import margin
from caslock.store import ABSENT, MAX_VALUE

if TYPE_CHECKING:
    from caslock.protocol.record import Record

SHARED: Final = 2
"""The number of the form of a record that several may be in."""

MAX_PERMITS: Final = 64
"""The most holds in one record: it must fit in `caslock.store.MAX_VALUE` bytes."""


READS: Final = 0
"""The slot of a share that reads, as others may at the same time."""

WRITES: Final = 1
"""The slot of a share that writes, alone."""

WAITS: Final = 2
"""The slot of a share that holds nothing: it waits to write, and keeps out who comes later to read."""

ROLES: Final = 3
"""How many of these there are."""

LONGEST_ANNOUNCEMENT: Final = 30.0
"""Seconds after which who waits to write says so again, at the latest at a third of that."""


class Share(NamedTuple):
    """What one hold has of a key."""

    hold: str
    """The hold id."""
    slot: int
    """A number from 0 to permits - 1 that no other live hold has; of a read-write lock, one of `READS` to `WAITS`."""
    beat: int
    """The number of its holder's write with which it was written last."""
    fence: int | None
    """The version of the write that admitted it; None in that write."""
    ttl: float
    """Seconds after which it is over if its beat does not move."""
    since: str = ""
    host: str = ""
    pid: int = 0
    note: str = ""

    def __str__(self) -> str:
        """Say who holds it."""
        note = f" ({self.note})" if self.note else ""
        return f"pid {self.pid} on {self.host}{note} since {self.since}" if self.host else self.hold


def kind_of(permits: int) -> str:
    """Say what a record with so many permits belongs to."""
    return f"a semaphore of {permits} permits" if permits else "a read-write lock"


def told(permits: int, shares: tuple[Share, ...]) -> str:
    """Say who holds a key, or waits for it."""
    if permits:
        return f"{len(shares)} of {permits}: {', '.join(map(str, shares))}"
    return ", ".join(f"a {('reader', 'writer', 'writer that waits')[share.slot]}: {share}" for share in shares)


def with_fences(shares: list[Share] | tuple[Share, ...], version: int) -> tuple[Share, ...]:
    """Give its fence to the share that the write of this version has admitted."""
    return tuple([share if share.fence is not None else share._replace(fence=version) for share in shares])


class Seen:
    """What this process has seen of one key."""

    __slots__ = ("_beats", "record", "version")

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.version: int = ABSENT  # of the newest record
        self.record: Record | None = None
        self._beats: dict[str, tuple[int, float]] = {}  # by hold id: a beat, and when the share is over if it stands

    def look(self, version: int, record: Record | None, now: float) -> None:
        """Note what is there now; an older answer that comes late is left out."""
        if version == ABSENT or version >= self.version:
            shares = () if record is None else record.shares
            self._beats = {share.hold: (share.beat, self.over(share, now)) for share in shares}
            self.version, self.record = version, record

    def over(self, share: Share, now: float) -> float:
        """Return when a share is over, by our clock: one ttl and margin after this beat was first seen here."""
        beat, over = self._beats.get(share.hold, (None, 0.0))
        return over if beat == share.beat else now + share.ttl + margin(share.ttl)


def as_json(permits: int, shares: tuple[Share, ...], rest: dict[str, Any]) -> bytes:
    """Write a shared record; where there is no room, it does not say for people who its holders are.

    Raises `StoreError` if there is no room all the same.
    """
    fields = [share._replace(ttl=math.ceil(share.ttl * 1000)) for share in shares]
    value = _text(permits, rest, fields)
    if len(value) > MAX_VALUE:
        value = _text(permits, rest, [each[:5] for each in fields])
    if len(value) > MAX_VALUE:
        message = f"a record of {len(shares)} holds takes more than {MAX_VALUE} bytes: use several keys"
        raise StoreError(message)
    return value


def shares_in(fields: list[list[Any]]) -> tuple[Share, ...]:
    """Read the shares of a record; raises ValueError or TypeError for any that is not one."""
    shares = []
    for hold, slot, beat, fence, ttl, *about in fields:
        share = Share(str(hold), int(slot), int(beat), None if fence is None else int(fence), ttl / 1000, *about)
        texts = all(isinstance(text, str) for text in (share.since, share.host, share.note))
        if not (texts and isinstance(share.pid, int)):
            raise TypeError(share)
        shares.append(share)
    return tuple(shares)


def _text(permits: int, rest: dict[str, Any], shares: list[Any]) -> bytes:
    whole = {"caslock": SHARED, "permits": permits, **rest, "shares": shares}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
