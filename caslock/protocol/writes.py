"""The writes of one attempt: which of them are in flight, and what may still arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.store import ABSENT

if TYPE_CHECKING:
    from caslock.protocol.record import Record
    from caslock.store import Entry

FREE_TTL: Final = 60.0
"""Seconds that a free record lasts: longer than any packet can be late."""


class Write(NamedTuple):
    """A put, or a removal, with its id."""

    id: str
    expected: int
    record: Record | None
    """None: a removal."""
    value: bytes
    at: float
    """When it was sent, or a little before."""

    @property
    def ttl(self) -> float:
        """Seconds that a put asks for."""
        return 0.0 if self.record is None else self.record.ttl

    def is_applied(self, entry: Entry | None) -> bool:
        """Whether the answer shows that it was applied."""
        if self.record is None:
            return entry is None or entry.version == ABSENT
        return entry is not None and entry.value == self.value


class InFlight(NamedTuple):
    """A put of our hold that may have been applied, or may be yet."""

    expected: int
    """The version that it expects."""
    at: float
    """When it was sent."""
    ttl: float
    """Seconds of the lease that it asks for."""


class Writes:
    """Numbers the writes of one attempt, and keeps by their write ids those whose effect is not known.

    A put of our hold is in flight until it is known what it has done.  A release (a write without our hold) that was
    sent in time is kept until it is known that it was not applied.  Versions never repeat, so a late write that expects
    a version which has passed does nothing.
    """

    __slots__ = ("count", "hold_id", "in_flight", "releases")

    def __init__(self, hold_id: str) -> None:
        self.hold_id: str = hold_id
        self.count: int = 0
        self.in_flight: dict[str, InFlight] = {}
        self.releases: set[str] = set()

    def next_id(self) -> str:
        """Return a write id, which distinguishes the next write of this attempt from all other writes."""
        self.count += 1
        return f"{self.hold_id}.{self.count}"

    def includes(self, record: Record, after: int) -> bool:
        """Whether `record` is one of these writes after number `after`."""
        hold_id, _, number = record.write.rpartition(".")
        return hold_id == self.hold_id and int(number) > after

    def drop(self, write_id: str) -> None:
        """Forget a write: it is known what it has done, or that it was not applied."""
        self.releases.discard(write_id)
        self.in_flight.pop(write_id, None)

    def may_land(self, version: int) -> bool:
        """Whether a put that expects `version` is in flight."""
        return self.last_sent(version) is not None

    def last_sent(self, version: int) -> float | None:
        """When the last of the puts in flight that expect `version` was sent; None: there is none."""
        # A copy: the attempt before ours may send our first put, and removes that write in a thread of its own.
        return max((each.at for each in list(self.in_flight.values()) if each.expected == version), default=None)

    def forget_dead(self, now: float) -> None:
        """Drop the puts that are too old to be in flight."""
        if self.in_flight:
            in_flight = list(self.in_flight.items())  # a copy, as above
            self.in_flight = {each: write for each, write in in_flight if write.at > now - FREE_TTL}
