"""What each of several holds has of one key, as it is written in the record of that key.

A share has a beat, which each write of its holder moves on.  Whoever writes the record notes for how long it has seen
each beat stand still, by a clock of its own, and who reads that counts on from there; so no moment counts twice.  Once
that is the whole ttl of the share, it may be taken out of the record: a dead holder costs one ttl, whoever else lives.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from caslock.errors import StoreError
from caslock.protocol.lease import margin
from caslock.store import ABSENT, MAX_VALUE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.protocol.record import Record, Stamp

SHARED: Final = 2
"""The number of the form of a record that several may be in."""

MAX_PERMITS: Final = 48
"""The most holds in one record: it must fit in `caslock.store.MAX_VALUE` bytes, however long their numbers become."""


HANDED: Final = "~"
"""Begins the id of a hold that was handed over, and awaits adoption: the rest is the id that the hold had before.

It is short, for the record must have room for as many of them as there are permits.
"""

READS: Final = 0
"""The slot of a share that reads, as others may at the same time."""

WRITES: Final = 1
"""The slot of a share that writes, alone."""

WAITS: Final = 2
"""The slot of a share that holds nothing: it waits to write, and keeps out readers that come later."""

ROLES: Final = 3
"""How many of these there are."""


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
    still: float = 0.0
    """Seconds for which others have seen its beat stand still, one after the other, until this record was written."""
    since: str = ""
    host: str = ""
    pid: int = 0
    note: str = ""

    def __str__(self) -> str:
        """Say who holds it."""
        note = f" ({self.note})" if self.note else ""
        who = f"pid {self.pid} on {self.host}{note} since {self.since}" if self.host else self.hold
        return f"{who} (handed over, awaiting adoption)" if self.hold.startswith(HANDED) else who


def kind_of(permits: int) -> str:
    """Say what a record with so many permits belongs to."""
    return f"a semaphore of {permits} permits" if permits else "a read-write lock"


def told(permits: int, shares: tuple[Share, ...]) -> str:
    """Say who holds a key, or waits for it."""
    if permits:
        return f"a semaphore with {len(shares)} of {permits} permits taken: {', '.join(map(str, shares))}"
    return ", ".join(f"a {('reader', 'writer', 'waiting writer')[share.slot]}: {share}" for share in shares)


def with_fences(shares: list[Share] | tuple[Share, ...], version: int) -> tuple[Share, ...]:
    """Give its fence to the share that the write of this version has admitted."""
    return tuple([share if share.fence is not None else share._replace(fence=version) for share in shares])


class Seen:
    """What this process has seen of one key."""

    __slots__ = ("_at", "_beats", "_place", "newest", "ordered")

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.newest: tuple[int, Record | None] = ABSENT, None  # a version, and what is there
        self.ordered: bool = True  # whether a later version is larger, at this store
        self._at = 0.0  # when that was seen
        self._place = 0  # twice the newest version; one more when that version is known to be gone
        # By hold id: a beat, for how long it was known to stand still, and when that was first seen here.
        self._beats: dict[str, tuple[int, float, float]] = {}

    def look(self, observed: tuple[int, Record | None], now: float, asked: float, gone: int) -> None:
        """Note the answer, received now, to a request that was sent at `asked`; `gone` is a version that it shows gone.

        It replaces what was seen before it was sent, even if its version is smaller: after a failover, a server may
        have lost its last writes.  Where requests overlap and versions are ordered, the larger version wins.
        """
        version, record = observed
        place = 2 * version or 2 * gone + 1
        if not self.ordered or asked >= self._at or place > self._place:
            self._at, self._place = now, place if version else max(place, self._place)
            self._beats = {share.hold: self._seen(share, now) for share in record.shares} if record else {}
            self.newest = observed

    def still(self, share: Share, now: float) -> float:
        """Return for how long the beat of a share has stood still, as far as we know, in whole milliseconds."""
        _, still, since = self._seen(share, now)
        return int(1000 * (still + now - since)) / 1000

    def over(self, share: Share, now: float) -> float:
        """Return when a share is over, by our clock."""
        _, still, since = self._seen(share, now)
        return since + share.ttl + margin(share.ttl) - still

    def _seen(self, share: Share, now: float) -> tuple[int, float, float]:
        seen = self._beats.get(share.hold)
        # The same beat, so it has stood still all the time; unless somebody else has seen it for longer.
        if seen is not None and seen[0] == share.beat and seen[1] + now - seen[2] >= share.still:
            return seen
        return share.beat, share.still, now


class Sharing(NamedTuple):
    """What all attempts of an object have in common for a key that several may hold."""

    permits: int
    """How many may hold it; 0: it is that of a read-write lock."""
    role: int
    """What the object takes of a read-write lock: `READS` or `WRITES`."""
    seen: Seen
    """What this process has seen of the key."""


def as_json(permits: int, shares: tuple[Share, ...], rest: str) -> bytes:
    """Write a shared record; where there is no room, without notes, and then without all that is for people.

    Raises `StoreError` if there is no room all the same.
    """
    value = _text(permits, rest, shares)
    if len(value) > MAX_VALUE:
        value = _text(permits, rest, [share._replace(note="") for share in shares])
    if len(value) > MAX_VALUE:
        value = _text(permits, rest, shares, for_people=False)
    if len(value) > MAX_VALUE:
        message = f"a record of {len(shares)} holds takes more than {MAX_VALUE} bytes: use several keys"
        raise StoreError(message)
    return value


def shared_opening(permits: int, ttl: float, stamp: Stamp) -> tuple[str, str, str]:
    """Return three parts of the text of a record with one new share, which always fits.

    They end before the write id, end before the hold id, and begin after the beat: ``",slot,beat`` follows the hold id.
    """
    share = Share("\n", 0, 0, None, ttl, 0.0, *stamp)  # in JSON, \n stands where the two ids will
    text = _text(permits, f'"ttl":{ttl!r},"write":"\\n","quarantine":0.0,"quarantine_id":""', [share]).decode()
    before, between, after = text.split("\\n", 2)
    return before, between, after.removeprefix('",0,0')


def shares_in(fields: list[list[Any]], permits: int) -> tuple[Share, ...]:
    """Read the shares of a record; raises ValueError or TypeError for any that caslock does not write."""
    shares = []
    for hold, slot, beat, fence, ttl, still, *about in fields:
        share = Share(hold, slot, beat, fence, ttl / 1000, still / 1000, *about)
        numbers = (slot, beat, 0 if fence is None else fence, ttl, still, share.pid, permits)
        texts = (hold, share.since, share.host, share.note)
        sound = all(type(each) is int and each >= 0 for each in numbers) and all(
            isinstance(each, str) for each in texts
        )
        if not (sound and ttl and slot < (permits or ROLES)):
            raise ValueError(share)
        "".join(texts).encode()  # or else it can't be written again
        shares.append(share)
    if not shares or len({share.hold for share in shares}) < len(shares):
        raise ValueError(shares)
    if permits and len({share.slot for share in shares}) < len(shares):
        raise ValueError(shares)
    return tuple(shares)


_quote: Final = json.encoder.encode_basestring


def _text(permits: int, rest: str, shares: Iterable[Share], *, for_people: bool = True) -> bytes:
    """Write the record by hand: in less than half the time of a `json.JSONEncoder`."""
    texts = []
    for hold, slot, beat, fence, ttl, still, since, host, pid, note in shares:
        numbers = f"{slot},{beat},{'null' if fence is None else fence},{math.ceil(ttl * 1000)},{int(still * 1000)}"
        about = f",{_quote(since)},{_quote(host)},{pid},{_quote(note)}" if for_people else ""
        texts.append(f"[{_quote(hold)},{numbers}{about}]")
    return f'{{"caslock":{SHARED},"permits":{permits},{rest},"shares":[{",".join(texts)}]}}'.encode()
