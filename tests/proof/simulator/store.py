"""A store on a virtual clock, which applies each request in one step.

Versions only grow, even when the store forgets.  A removal wakes the first waiter, which may have died.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.protocol.record import Record, decode, fence_of
from caslock.store import ABSENT, WOKEN, Entry, Put

if TYPE_CHECKING:
    from tests.proof.simulator.client import Client

FIRST_VERSION: Final = 10**9
"""Versions begin here, so that no other number in a state is taken for one."""

read = lru_cache(maxsize=4096)(decode)


class Request(NamedTuple):
    """One verb in flight, of one part or of several sent together; ``wait`` puts once nothing is there any more."""

    verb: str
    parts: tuple[Put, ...]
    timeout: float = 0.0


class Lease(NamedTuple):
    entry: Entry
    ends: float
    record: Record
    tenure: int  # records that share a hold with the one before them are one tenure; so are those of a hand-over


def _goes_on(there: Lease, record: Record) -> bool:
    """Whether a record goes on with the tenure of the one that is there."""
    if not set(there.record.holds).isdisjoint(record.holds):
        return True
    transferred = there.record.handed_over or record.handed_over
    return transferred and record.fence == fence_of(there.record, there.entry.version)


class Change(NamedTuple):
    """What one request has done to a key."""

    key: str
    before: Lease | None
    after: Lease | None
    sender: Client


class Waiter:
    """Who waits in line at the store."""

    __slots__ = ("until", "woken")

    def __init__(self, until: float) -> None:
        """Wait until a moment of the client's own clock."""
        self.until = until
        self.woken = False


class SimulatedStore:
    """Versioned entries, and a line of waiters for each key: first come, first woken, even one that has died."""

    def __init__(self, early: float, *, expires: bool = True) -> None:
        """Begin empty; leases end by the part `early` of a holder's margin too early.

        Args:
            early: that part.
            expires: whether the entry goes when its lease ends; else it stays until it is written over or removed.

        """
        self.expires = expires
        self.leases: dict[str, Lease] = {}
        self.remains: dict[str, Lease] = {}  # entries that have outlasted their lease
        self.lines: dict[str, list[Waiter]] = {}
        self.changes: list[Change] = []
        self.expired: set[str] = set()  # holds whose record was there until their lease ended
        self.unguarded: list[str] = []  # keys whose holder knew of a lost put, and whose lease has ended
        self.last = FIRST_VERSION
        self.tenures = 0
        self.tenure_of: dict[int, int] = {}  # by version
        self.full_until = 0.0
        self._early = early

    def apply(self, request: Request, now: float, sender: Client) -> list[Entry | None] | None:
        """Apply the request, and return what is there then, for each part; None: it is refused, for want of memory."""
        parts = request.parts
        if request.verb in {"put", "wait"}:
            if now < self.full_until:
                return None
            observed = [self.entry(part.key, now) for part in parts]
            expected = [lease.entry.version if lease else ABSENT for lease in observed]
            if all(part.version == version for part, version in zip(parts, expected, strict=True)):
                return [self._write(part, now, sender) for part in parts]
            return [lease and lease.entry for lease in observed]
        if request.verb == "remove":
            return [self._remove(part, now, sender) for part in parts]
        return [lease and lease.entry for lease in (self.entry(part.key, now) for part in parts)]

    def entry(self, key: str, now: float) -> Lease | None:
        return self.observed(key, now) or self.remains.get(key)

    def observed(self, key: str, now: float) -> Lease | None:
        """What is under `key`, unless its lease has ended."""
        lease = self.leases.get(key)
        if lease is not None and lease.ends <= now:
            del self.leases[key]
            if not self.expires:
                self.remains[key] = lease
            self.expired.update(lease.record.holds)
            if lease.record.quarantine and lease.record.holds:
                self.unguarded.append(key)
            return None
        return lease

    def line_up(self, key: str, now: float, until: float) -> Waiter | None:
        """Wait in line; None where nothing is there."""
        if self.entry(key, now) is None:
            return None
        waiter = Waiter(until)
        self.lines.setdefault(key, []).append(waiter)
        return waiter

    def step_out(self, waiter: Waiter) -> None:
        for line in self.lines.values():
            if waiter in line:
                line.remove(waiter)

    def forget(self) -> None:
        """Lose every entry, but not the count of versions."""
        self.leases.clear()
        self.remains.clear()

    def _write(self, part: Put, now: float, sender: Client) -> Entry:
        there, before = self.entry(part.key, now), self.observed(part.key, now)
        self.remains.pop(part.key, None)
        record = read(part.value)
        self.last += 1
        entry = Entry(part.value, self.last)
        if there is not None and (record.kept or _goes_on(there, record)):
            tenure = there.tenure
        else:
            self.tenures += 1
            tenure = self.tenures
        self.tenure_of[self.last] = tenure
        early = self._early * min(0.01 * part.ttl + 0.002, part.ttl / 2)
        after = self.leases[part.key] = Lease(entry, now + part.ttl - early, record, tenure)
        self.changes.append(Change(part.key, before, after, sender))
        return entry

    def _remove(self, part: Put, now: float, sender: Client) -> Entry | None:
        there, before = self.entry(part.key, now), self.observed(part.key, now)
        if there is None or there.entry.version != part.version:
            return there and there.entry
        self.leases.pop(part.key, None)
        self.remains.pop(part.key, None)
        self.changes.append(Change(part.key, before, None, sender))
        line = self.lines.get(part.key)
        if not line:
            return None
        line.pop(0).woken = True
        return WOKEN
