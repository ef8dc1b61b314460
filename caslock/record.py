"""The law of this file: whatever caslock did not write reads as held by an unknown owner, and is never an error.

A record is one line of JSON, so that a person can read it in ``redis-cli``.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Final, NamedTuple

FORM: Final = 1
"""The number of this form of record.  A record of any other form is foreign: held, and never overwritten."""

MAX_HOLDS: Final = 40
"""The most holds of one owner in one record: it must fit in `caslock.store.MAX_VALUE` bytes."""

_quote = json.encoder.encode_basestring_ascii


Stamp = tuple[str, str, int, str]
"""What a record says for people: since, host, pid and note."""


class Record(NamedTuple):
    """Who holds a key, as it is written under the key."""

    owner: str
    holds: tuple[str, ...]
    """The ids of the owner's holds.  None: the record is *free*, nobody holds the key."""
    ttl: float
    """Seconds of the lease that this record was written with."""
    write: str = ""
    """Unique to one write of one claim: tells which of several requests has landed."""
    fence: int | None = None
    """The fencing number.  None in a tenure's first write: there it is the version of the entry."""
    late: float = 0.0
    """Seconds, from the start of this tenure, in which a lost put of somebody may still arrive where nothing stands."""
    since: str = ""
    """When the tenure began, by the owner's wall clock (ISO 8601): for people, never compared."""
    host: str = ""
    pid: int = 0
    note: str = ""
    form: int = FORM

    @property
    def free(self) -> bool:
        """Whether nobody holds the key: anyone may write over this record, at its version."""
        return not self.holds

    @property
    def foreign(self) -> bool:
        """Whether something else than this version of caslock has written what stands."""
        return self.form != FORM

    def __str__(self) -> str:
        """Say who holds the key, since when, and for how long at most."""
        if self.free:
            return "nobody"
        if self.foreign:
            return f"an unknown owner (caslock did not write the value {self.note})"
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.owner} (pid {self.pid} on {self.host}){note} since {self.since}, "
            f"with a lease of {self.ttl:g} s from its last renewal"
        )


def encode(record: Record) -> bytes:
    """Write a record as bytes (by hand: seven times as fast as a `json.JSONEncoder`)."""
    owner, holds, ttl, write, fence, late, since, host, pid, note, _ = record
    ids = _quote(holds[0]) if len(holds) == 1 else ",".join(map(_quote, holds))
    return (
        f'{_head(owner)}{ids}],"ttl":{ttl!r},"write":{_quote(write)},"fence":{"null" if fence is None else fence},'
        f'"late":{late or "0.0"},{_tail(since, host, pid, note)}'
    ).encode()


def opening(owner: str, ttl: float, stamp: Stamp) -> tuple[str, str, str]:
    """Give what stands before, between and after the hold id and the mark in the first record of a tenure."""
    return f'{_head(owner)}"', f'"],"ttl":{ttl!r},"write":"', f'","fence":null,"late":0.0,{_tail(*stamp)}'


@lru_cache(maxsize=64)  # an owner writes again and again
def _head(owner: str) -> str:
    return f'{{"caslock":{FORM},"owner":{_quote(owner)},"holds":['


@lru_cache(maxsize=64)
def _tail(since: str, host: str, pid: int, note: str) -> str:
    return f'"since":{_quote(since)},"host":{_quote(host)},"pid":{pid},"note":{_quote(note)}}}'


def decode(value: bytes) -> Record:
    """Read a record; anything that is not one comes back as a foreign record, which is held by an unknown owner."""
    try:
        fields = json.loads(value)
        if fields.pop("caslock") != FORM or "form" in fields:
            return _foreign(value)
        fields["holds"] = tuple(map(str, fields["holds"]))
        fields["ttl"], fields["late"] = float(fields["ttl"]), float(fields["late"])
        fields["fence"] = None if fields["fence"] is None else int(fields["fence"])
        record = Record(**fields)
        texts = (record.owner, record.write, record.since, record.host, record.note)
        sound = all(isinstance(text, str) for text in texts) and math.isfinite(record.ttl + record.late)
        return record if sound and isinstance(record.pid, int) else _foreign(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return _foreign(value)


def json_size(text: str) -> int:
    """Bytes that a text takes in a record."""
    return len(_quote(text))


def _foreign(value: bytes) -> Record:
    return Record(owner="unknown", holds=("unknown",), ttl=0.0, note=repr(value[:60]), form=0)
