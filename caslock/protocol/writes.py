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
    """A write that is sent."""

    id: str
    expected: int
    record: Record | None
    """None: a removal."""
    value: bytes = b""

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
    """A write that may have been applied, or may be yet: a put, or a release, which leaves no hold of ours behind."""

    expected: int
    """The version that it expects."""
    at: float
    """When it was sent."""
    ttl: float
    """Seconds of the lease that it asks for; 0 for a release."""


class Writes:
    """Numbers the writes of one attempt, and keeps those in flight by their write ids.

    A put is in flight until it is known what it has done; a release, until it is known that it was not applied.
    Versions never repeat, so a late write that expects a version which has passed does nothing.
    """

    __slots__ = ("count", "hold_id", "in_flight")

    def __init__(self, hold_id: str) -> None:
        self.hold_id: str = hold_id
        self.count: int = 0
        self.in_flight: dict[str, InFlight] = {}

    def next_id(self) -> str:
        """Return a write id, which distinguishes the next write of this attempt from all other writes."""
        self.count += 1
        return f"{self.hold_id}.{self.count}"

    def includes(self, record: Record, after: int) -> bool:
        """Whether `record` is one of these writes after number `after`."""
        hold_id, _, number = record.write.rpartition(".")
        return hold_id == self.hold_id and int(number) > after

    def sent(self, write_id: str, write: InFlight) -> None:
        """Note a write that is sent now."""
        self.in_flight[write_id] = write

    def leaves(self, expected: int, now: float) -> str:
        """Note a release that is sent now, and return its id."""
        write_id = self.next_id()
        self.in_flight[write_id] = _new(InFlight, (expected, now, 0.0))
        return write_id

    def answered(self, write_id: str) -> InFlight | None:
        """Note that a write is no longer in flight, and return it; None: it was not ours, or known before."""
        return self.in_flight.pop(write_id, None)

    @property
    def takes(self) -> bool:
        """Whether a put is in flight."""
        # A copy: the attempt before ours may send our first put, and removes that write in a thread of its own.
        return bool(self.in_flight) and any(write.ttl for write in list(self.in_flight.values()))

    def may_land(self, version: int) -> bool:
        """Whether a put that expects `version` is in flight."""
        return self.last_sent(version) is not None

    def last_sent(self, version: int) -> float | None:
        """When the last of the puts in flight that expect `version` was sent; None: there is none."""
        moments = [each.at for each in list(self.in_flight.values()) if each.ttl and each.expected == version]
        return max(moments, default=None)

    def left_before(self, moment: float) -> bool:
        """Whether a release that was sent before this moment may have been applied."""
        for write in list(self.in_flight.values()):  # noqa: SIM110 - a generator takes three times as long
            if not write.ttl and write.at < moment:
                return True
        return False

    def forget_dead(self, now: float) -> None:
        """Drop the puts that are too old to be in flight."""
        if self.in_flight:
            in_flight = list(self.in_flight.items())  # a copy, as above
            self.in_flight = {each: it for each, it in in_flight if not it.ttl or it.at > now - FREE_TTL}


_new = tuple.__new__  # takes half the time of a NamedTuple's own
