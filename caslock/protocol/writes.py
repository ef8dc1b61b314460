"""The writes of one attempt: which of them are in flight, and what may still arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from caslock.protocol.record import Record

FREE_TTL: Final = 60.0
"""Seconds that a free record lasts: longer than any packet can be late."""


class InFlight(NamedTuple):
    """A write whose reply has not come: it may have been applied, or may be yet."""

    expected: int
    """The version that it expects."""
    at: float
    """When it was sent."""
    ttl: float
    """Seconds of the lease that it asks for."""


class Writes:
    """Numbers the writes of one attempt, and keeps those in flight by their write ids.

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

    def answered(self, write_id: str) -> InFlight | None:
        """Note that a write is no longer in flight, and return it; None: it was not ours, or known before."""
        return self.in_flight.pop(write_id, None)

    def may_land(self, version: int) -> bool:
        """Whether a write that expects `version` is in flight."""
        # A copy: the attempt before ours may send our first put, and removes that write in a thread of its own.
        return bool(self.in_flight) and any(write.expected == version for write in list(self.in_flight.values()))

    def last_sent(self, version: int) -> float | None:
        """When the last of the writes in flight that expect `version` was sent; None: there is none."""
        moments = [write.at for write in list(self.in_flight.values()) if write.expected == version]  # a copy, as above
        return max(moments, default=None)

    def forget_dead(self, now: float) -> None:
        """Drop the writes that are too old to be in flight."""
        if self.in_flight:
            in_flight = list(self.in_flight.items())  # a copy, as above
            self.in_flight = {each: write for each, write in in_flight if write.at > now - FREE_TTL}
