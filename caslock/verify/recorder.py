"""Writes down what one client does and believes.

A belief is written down smaller than it is: it begins when the acquire has returned, and ends when the release is
called, or at the deadline that was last seen.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from caslock.errors import CaslockError, LockLost, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.local import clock
from caslock.protocol.record import Record, decode
from caslock.protocol.shared_attempt import SharedAttempt
from caslock.verify.counter import FencedCounter, StaleFence

if TYPE_CHECKING:
    from pathlib import Path

    from caslock.store import Store
    from caslock.verify.apis import AnyHold, AnyLock
    from caslock.verify.faults import FaultInjector
    from caslock.verify.history import History, What
    from caslock.verify.workload import Operation


class WallClock:
    """Sets what `time.time` and `time.time_ns` tell in this process; leases are measured on other clocks."""

    def __init__(self) -> None:
        self.error = 0
        """Seconds by which it is ahead."""
        seconds, nanoseconds = time.time, time.time_ns
        setattr(time, "time", lambda: seconds() + self.error)  # noqa: B010 - a type checker holds it to be fixed
        setattr(time, "time_ns", lambda: nanoseconds() + self.error * 1_000_000_000)  # noqa: B010 - as above


class Shared(NamedTuple):
    """What the clients of one process share."""

    history: History
    injector: FaultInjector
    direct: Store
    """The store past all faults."""
    folder: Path
    until: float
    wall_clock: WallClock


class Recorder:
    """What one client writes down."""

    def __init__(self, shared: Shared, who: str) -> None:
        self._shared, self._who, self._write = shared, who, shared.history.note
        self._unanswered = dict[str, int]()
        self._force_called = 0.0
        self._parts = dict[str, str]()  # by hold id
        self.reported: set[str] = set()
        """Hold ids whose loss `on_lost` has told."""
        self.open: dict[str, AnyHold] = {}
        """The holds that somebody believes in, by hold id."""

    def tries(self, lock: AnyLock, operation: Operation) -> None:
        """An acquire is about to be called."""
        self._unanswered[lock.key] = self._shared.injector.unanswered[lock.key]
        ttl = lock._state.settings.ttl  # a lock that has served before may have another than the operation
        self._write("try", self._who, lock.key, lock.owner, until=ttl, note=f"timeout {operation.timeout:g}")

    def got(self, hold: AnyHold, operation: Operation) -> None:
        """It returned a hold."""
        until = _deadline(hold)
        self.open[hold_id(hold)] = hold
        self._note("got", hold, fence=hold._attempt.lease.fence, until=until, note=f"{operation.max_hold or ''}")

    def failed(self, lock: AnyLock, error: BaseException | None, *, private: bool) -> None:
        """It returned None, or raised: then nothing of it may be recorded, unless it says that it does not know."""
        hold = lock._state.newest
        if error is None:
            sure = self._answered(lock.key)
            self._write("none", self._who, lock.key, lock.owner, hold)
        else:
            sure = isinstance(error, StoreUnavailable) and not isinstance(error, OutcomeUnknown)
            word = "unknown" if isinstance(error, OutcomeUnknown) else "sure" if sure else type(error).__name__
            self._write("failed", self._who, lock.key, lock.owner, hold, note=word)
        if sure and private:
            try:
                entry = self._shared.direct.get(lock.key)
            except StoreError:
                return
            record = decode(entry.value) if entry else None
            if record is not None and hold in record.holds:
                fence = int(error is not None)
                self._write("stands", self._who, lock.key, lock.owner, hold, fence=fence, note=str(record))

    def looks(self, hold: AnyHold) -> bool:
        """Check whether it is still held."""
        until = _deadline(hold)
        self._note("at", hold, until=until)
        return bool(until)

    def forces(self, key: str) -> None:
        """`force_release` is about to be called."""
        self._force_called = clock.now()
        self._write("break", self._who, key)

    def forced(self, key: str, broken: Record | tuple[Record, ...] | StoreError | None) -> None:
        """It took the key from the holds of `broken`, from nobody (None), or nobody knows from whom (an error)."""
        owner, holds = "", "unknown"
        if not isinstance(broken, StoreError):
            records = [broken] if isinstance(broken, Record) else list(broken or ())
            owner = records[0].owner if records else ""
            holds = " ".join(hold for record in records for hold in record.holds)
        self._write("broke", self._who, key, owner, until=self._force_called, note=holds)

    def sets_clock(self, error: int | None) -> None:
        """Set the wall clock of the process wrong by so many seconds."""
        if error is not None:
            self._shared.wall_clock.error = error
            self._write("clock", self._who, note=f"{error:+} s")

    def extends(self, hold: AnyHold, ttl: float) -> None:
        """An extension is about to be called; its lease counts from later than now."""
        self._note("extend", hold, until=clock.now() + 0.98 * ttl - 0.003)

    def on_lost(self, hold: AnyHold) -> None:
        """`on_lost` tells of a loss."""
        self.reported.add(hold_id(hold))
        self._note("reported", hold, note="on_lost")

    def unreported(self, hold: AnyHold) -> None:
        """It has waited in vain for the report of its loss."""
        self._note("unreported", hold)

    def leaves(self, hold: AnyHold) -> None:
        """A release is about to be called."""
        if hold_id(hold) in self.open:
            self._unanswered[hold.key] = self._shared.injector.unanswered[hold.key]
            self._note("leave", hold)  # first: a signal may come between
            self.open.pop(hold_id(hold), None)

    def left(self, hold: AnyHold, error: CaslockError | None, *, unknown: bool = False) -> None:
        """The release is over; one that gave no answer at first can't tell who came after it."""
        if unknown:
            note = "unknown"
        elif error is None:
            note = "ok" if self._answered(hold.key) else "blind"
        else:
            note = "lost" if isinstance(error, LockLost) else "unanswered"
        self._note("left", hold, note=note)

    def drops(self, *, interrupted: bool) -> None:
        """All holds have been dropped."""
        if interrupted:
            self._write("alarm", self._who)
        for hold in list(self.open.values()):
            self._note("dropped", hold)
        self.open.clear()

    def child(self, hold: AnyHold, what: str) -> None:
        """Tell what a forked child saw."""
        self._note("child", hold, note=what)

    def read(self, hold: AnyHold) -> int | None:
        """Read the guarded counter; None: our fence was refused, or there are no fences to guard it."""
        if not self._shared.direct.traits.fences:
            return None
        try:
            return FencedCounter(self._shared.folder, self._part(hold)).read(hold.fence)
        except StaleFence:
            self._note("late", hold, fence=hold.fence)
            return None

    def add(self, hold: AnyHold, count: int) -> None:
        """Write the counter back, one larger."""
        self._note("adding", hold, fence=hold.fence)
        try:
            FencedCounter(self._shared.folder, self._part(hold)).write(hold.fence, count + 1)
        except StaleFence:
            self._note("late", hold, fence=hold.fence, note="write")
        else:
            self._note("added", hold, fence=hold.fence)

    def _answered(self, key: str) -> bool:
        """Whether every request for a key has been answered since the acquire or release was called."""
        return self._shared.injector.unanswered[key] == self._unanswered[key]

    def _note(self, what: What, hold: AnyHold, *, fence: int = 0, until: float = 0.0, note: str = "") -> None:
        self._write(what, self._who, self._part(hold), hold.owner, hold_id(hold), fence=fence, until=until, note=note)

    def _part(self, hold: AnyHold) -> str:
        """Name what a hold has: the key, its slot of a semaphore, or its side of a read-write lock."""
        attempt, name = hold._attempt, hold_id(hold)
        if name not in self._parts:
            self._parts[name] = f"{hold.key}#{attempt.slot}" if isinstance(attempt, SharedAttempt) else hold.key
        return self._parts[name]


def hold_id(hold: AnyHold) -> str:
    """Give the hold id of a hold."""
    return hold._attempt.hold_id


def _deadline(hold: AnyHold) -> float:
    """Give the time until which the hold is certain, rather too early than too late; 0: it is over."""
    now = clock.now()  # before it looks
    rest = hold.remaining()
    return now + rest if rest > 0 else 0.0
