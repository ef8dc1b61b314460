"""What caslock writes under a key: one line of JSON, which a person can read in ``redis-cli``.

A value that caslock did not write is read as a record of an unknown owner.  It is never an error.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.protocol.shares import HANDED, SHARED, Share, as_json, shares_in, told, with_fences
from caslock.store import ABSENT

if TYPE_CHECKING:
    from datetime import datetime

    from caslock.store import Entry

FORM: Final = 1
"""The number of this form of record.  `SHARED` is that of a record that several may be in.

A record of any other form is foreign: held, and never overwritten.
"""

MAX_HOLDS: Final = 40
"""The most holds of one owner in one record: it must fit in `caslock.store.MAX_VALUE` bytes."""

KEPT: Final = "kept"
"""The only hold of a record whose holder has released the key before its ``min_hold`` was over."""

_FORMS: Final = frozenset({FORM, SHARED})

_OWN: Final = frozenset({"form", "permits", "shares"})
"""Fields that are not in a record of one owner."""

_quote = json.encoder.encode_basestring
_from_json: Final = json.JSONDecoder().decode


class Stamp(NamedTuple):
    """What a record says for people only."""

    since_iso: str
    host: str
    pid: int
    note: str


class Record(NamedTuple):
    """Who holds a key, as it is written under the key."""

    owner: str
    """Who holds the key: ``host:random`` unless the lock was given an ``owner``."""
    holds: tuple[str, ...]
    """The ids of the owner's holds.  Without any the record is *free*: nobody holds the key.  See also `kept`."""
    ttl: float
    """Seconds of the lease, from the write of this record; the record does not tell how many of them have passed."""
    write: str = ""
    """The write id, unique to one write of one attempt: it shows which of several requests was applied."""
    fence: int | None = None
    """The fencing number; None where the store has none.

    As it is stored: also None in a tenure's first write, whose version it is.
    """
    quarantine: float = 0.0
    """Seconds, from the write of this record, in which a lost create may still arrive if the key is removed."""
    since_iso: str = ""
    """`since` as it is stored."""
    host: str = ""
    """Of the holder, as its operating system names it."""
    pid: int = 0
    """The holder's process id on that host."""
    note: str = ""
    """What the holder's lock was given as its ``note``."""
    form: int = FORM
    """The number of the form in which the record is written."""
    quarantine_id: str = ""
    """The write id of the record with which the quarantine began, by which a process knows it again."""
    permits: int = 0
    """How many may hold the key at a time; 0: one owner."""
    shares: tuple[Share, ...] = ()
    """What each of several holds has of the key."""

    @property
    def free(self) -> bool:
        """Whether nobody holds the key: anyone may write over this record, at its version."""
        return not self.holds

    @property
    def kept(self) -> bool:
        """Whether its holder has released the key, which stays taken until its ``min_hold`` is over."""
        return self.holds == (KEPT,)

    @property
    def handed_over(self) -> bool:
        """Whether a hold in it was handed over, and nobody has adopted it yet: nobody renews it meanwhile."""
        return any(hold.startswith(HANDED) for hold in self.holds)

    @property
    def foreign(self) -> bool:
        """Whether something else than this version of caslock has written it."""
        return self.form not in _FORMS

    @property
    def each(self) -> tuple[Record, ...]:
        """A record for each holder of a semaphore, with its fence and its share; else this one alone."""
        if self.owner or not self.shares:
            return (self,)
        return tuple([
            Record(
                f"{share.host or 'unknown'}:{share.hold.removeprefix(HANDED).partition('.')[0]}",
                (share.hold,), share.ttl, "", share.fence,
                0.0, share.since, share.host, share.pid, share.note, permits=self.permits, shares=(share,),
            )
            for share in self.shares
        ])  # fmt: skip

    @property
    def since(self) -> datetime | None:
        """When the tenure began, by the wall clock of its owner: for people, never compared."""
        from datetime import datetime  # noqa: PLC0415 - seldom used, and the import takes half a millisecond

        try:
            return datetime.fromisoformat(self.since_iso)
        except ValueError:  # it is missing, or caslock did not write it
            return None

    def __str__(self) -> str:
        """Say who holds the key, since when, and for how long at most, without control characters of others."""
        text = self._told()
        return text if text.isprintable() else repr(text)[1:-1]

    def _told(self) -> str:
        if self.free:
            return "nobody"
        if self.foreign:
            return f"an unknown owner (caslock did not write the value {self.note})"
        if self.shares and not self.owner:
            return told(self.permits, self.shares)
        note = f" ({self.note})" if self.note else ""
        if self.kept:
            kept = f"min_hold keeps it from others for {round(self.ttl, 3):g} s after the release"
            return f"nobody: {self.owner} (pid {self.pid} on {self.host}){note} has released it, and {kept}"
        awaits = " has handed over a hold, which awaits adoption," if self.handed_over else ""
        return (
            f"{self.owner} (pid {self.pid} on {self.host}){note} since {self.since_iso},{awaits} "
            f"with a lease of {self.ttl:g} s from its last renewal"
        )


class Observed(NamedTuple):
    """What an answer of the store shows under the key."""

    version: int
    """`ABSENT` where there is nothing."""
    record: Record | None

    @property
    def fence(self) -> int:
        """The fencing number of the tenure that the record belongs to; 0 where there is none."""
        return 0 if self.record is None else fence_of(self.record, self.version)


NOTHING: Final = Observed(ABSENT, None)


def observed_in(entry: Entry | None) -> Observed:
    """Read an answer; `WOKEN` says as well that nothing is there."""
    return NOTHING if entry is None or entry.version == ABSENT else Observed(entry.version, decode(entry.value))


def shown(record: Record, fence: int | None, *, fences: bool) -> Record:
    """Return a record as users see it, with its fence if the store has `fences`."""
    if record.shares and not record.owner:  # each of its holders has one
        return record._replace(fence=None, shares=with_fences(record.shares, fence or 0))
    return record._replace(fence=fence if fences and not record.foreign else None)


def fence_of(record: Record, version: int) -> int:
    """Return the fencing number of the tenure that a record belongs to."""
    return version if record.fence is None else record.fence


def encode(record: Record) -> bytes:
    """Write a record as bytes (by hand: seven times as fast as a `json.JSONEncoder`)."""
    owner, holds, ttl, write, fence, quarantine, since, host, pid, note, form, quarantine_id, permits, shares = record
    if form == SHARED:
        quarantined = f'"quarantine":{quarantine!r},"quarantine_id":{_quote(quarantine_id)}'
        return as_json(permits, shares, f'"ttl":{ttl!r},"write":{_quote(write)},{quarantined}')
    ids = _quote(holds[0]) if len(holds) == 1 else ",".join(map(_quote, holds))
    return (
        f'{_head(owner)}{ids}],"ttl":{ttl!r},"write":{_quote(write)},"fence":{"null" if fence is None else fence},'
        f'"quarantine":{_quarantined(quarantine, quarantine_id)},{_tail(since, host, pid, note)}'
    ).encode()


def opening(owner: str, ttl: float, stamp: Stamp) -> tuple[str, str, str]:
    """Return the text before, between and after the hold id and the write id in the first record of a tenure."""
    before = _head.__wrapped__(owner)  # seldom the same one twice
    return f'{before}"', f'"],"ttl":{ttl!r},"write":"', f'","fence":null,"quarantine":0.0,{_tail(*stamp)}'


def _quarantined(seconds: float, quarantine_id: str) -> str:
    return f'{seconds!r},"quarantine_id":{_quote(quarantine_id)}' if seconds else "0.0"


@lru_cache(maxsize=64)  # one owner writes many records
def _head(owner: str) -> str:
    return f'{{"caslock":{FORM},"owner":{_quote(owner)},"holds":['


@lru_cache(maxsize=64)
def _tail(since: str, host: str, pid: int, note: str) -> str:
    return f'"since":{_quote(since)},"host":{_quote(host)},"pid":{pid},"note":{_quote(note)}}}'


def decode(value: bytes) -> Record:
    """Read a record; anything that is not one comes back as a foreign record, which is held by an unknown owner."""
    try:
        fields = _from_json(value.decode())  # `json.loads` takes a third longer: it first detects the encoding
        form = fields.pop("caslock")
        if form == SHARED:
            shares = shares_in(fields.pop("shares"), fields["permits"])
            holds = tuple([share.hold for share in shares])
            fields |= {"form": SHARED, "owner": "", "holds": holds, "shares": shares, "fence": None}
        elif form != FORM or not _OWN.isdisjoint(fields):
            return _foreign(value)
        fields["since_iso"] = fields.pop("since", "")
        fields["holds"] = tuple(map(str, fields["holds"]))
        fields["ttl"], fields["quarantine"] = float(fields["ttl"]), float(fields["quarantine"])
        fields["fence"] = None if fields["fence"] is None else int(fields["fence"])
        record = Record(**fields)
        texts = (record.owner, record.write, record.since_iso, record.host, record.note, record.quarantine_id)
        sound = all(isinstance(text, str) for text in texts) and math.isfinite(record.ttl + record.quarantine)
        return record if sound and isinstance(record.pid, int) else _foreign(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return _foreign(value)


def json_size(text: str) -> int:
    """Return how many bytes a text takes in a record, between the quotes."""
    return len(_quote(text).encode()) - 2


def _foreign(value: bytes) -> Record:
    return Record(owner="unknown", holds=("unknown",), ttl=0.0, note=repr(value[:60]), form=0)
