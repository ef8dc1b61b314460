"""Decides when each lease is to be renewed, and which of those that are due comes first.

Nothing here blocks, or calls other code: the threads and the event loops that renew leases share it.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from caslock.protocol.lease import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime

W = TypeVar("W", bound="Runtime")

MOST_TOGETHER: Final = 128
"""Leases that are renewed by one request: Redis serves nothing else meanwhile, for a millisecond."""

MOST_BATCHES: Final = 4
"""Such requests to one store that are under way at one time."""

MOST_RENEWING: Final = 16
"""Requests that renew one lease each and are under way at one store at one time: as many threads, or tasks."""

TOGETHER: Final = 1 / 120
"""Part of a lease by which a renewal may come earlier, so that it travels together with others."""

LATE: Final = 1 / 3
"""Part of a lease: when no more is left, a warning says that it was not renewed."""

QUIET: Final = 10.0
"""Seconds between two warnings about one location."""

_MOST_DEAD: Final = 1000


class Scheduled(Generic[W]):
    """One later look at an attempt.  The reference is weak, so that a hold that nothing refers to is not renewed."""

    __slots__ = ("asked", "attempt", "runtime")

    def __init__(self, attempt: Callable[[], Attempt | None], runtime: W) -> None:
        self.attempt: Callable[[], Attempt | None] = attempt
        self.runtime: W = runtime
        self.asked: bool = False

    def cancel(self) -> None:
        """Cancel it."""
        self.attempt = _nobody


def _nobody() -> None:
    """Return None, as a weak reference to a dead attempt does."""


class Due(NamedTuple, Generic[W]):
    """What a look at the schedule has shown."""

    over: list[Attempt]
    """Their leases have ended."""
    renew: list[tuple[Attempt, W]]
    late: list[tuple[Attempt, W]]
    """Their renewal was asked for, and did not come in time."""

    def by_store(self) -> Iterable[list[tuple[Attempt, W]]]:
        """Return what is to be renewed, grouped by store."""
        found: dict[object, list[tuple[Attempt, W]]] = {}
        for attempt, runtime in self.renew:
            found.setdefault(runtime.shared, []).append((attempt, runtime))
        return found.values()


class Schedule(Generic[W]):
    """When to look at each attempt next.

    The renewer sleeps until `wakes`.  It sets `wakes` before it takes what was added, and `add` adds before it reads
    `wakes`, so nothing is missed, though adding takes no lock.
    """

    def __init__(self) -> None:
        self.wakes = NEVER
        self._added: dict[int, tuple[weakref.ref[Attempt], W]] = {}  # a short hold never reaches the heap
        self._heap: list[tuple[float, int, Scheduled[W]]] = []
        self._numbers = itertools.count()
        self._most = _MOST_DEAD

    def add(self, attempt: Attempt, runtime: W) -> bool:
        """Look at `attempt` when it is due; returns whether that is before `wakes`.  Any thread may call it."""
        self._added[id(attempt)] = (weakref.ref(attempt), runtime)
        return attempt.lease.due < self.wakes

    def drop(self, attempt: Attempt) -> None:
        """Stop looking at `attempt`.  Any thread may call it."""
        self._added.pop(id(attempt), None)
        if attempt.scheduled is not None:
            attempt.scheduled.cancel()

    def look(self, now: float) -> Due[W]:
        """Return what is due at the moment `now`, which the caller has just read from the clock."""
        self._take_added()
        due: Due[W] = Due([], [], [])
        heap = self._heap
        while heap and heap[0][0] <= now:
            scheduled = heapq.heappop(heap)[2]
            attempt = scheduled.attempt()
            if attempt is None or not _awaits(attempt, scheduled):
                continue
            if now >= attempt.lease.deadline:
                due.over.append(attempt)
            else:
                self._push(scheduled, self._look_at(attempt, scheduled, now, due))
        if len(heap) > self._most:
            self._forget_dead()
        return due

    @property
    def next(self) -> float:
        """When to look again."""
        return self._heap[0][0] if self._heap else NEVER

    def _take_added(self) -> None:
        added = self._added
        while added:
            try:
                _, (reference, runtime) = added.popitem()
            except KeyError:  # its hold was released at this moment
                break
            attempt = reference()
            if attempt is not None:
                attempt.scheduled = scheduled = Scheduled(reference, runtime)  # replaces the previous entry
                self._push(scheduled, moment(attempt))

    def _look_at(self, attempt: Attempt, scheduled: Scheduled[W], now: float, due: Due[W]) -> float:
        """Look at an attempt whose lease is not over, and return when to look again."""
        late = max(now, attempt.lease.deadline - LATE * attempt.lease.ttl)
        if not scheduled.asked:
            if moment(attempt) > now:  # it was renewed meanwhile
                return moment(attempt)
            if attempt.lease.due >= attempt.lease.deadline:  # it is no longer renewed
                return attempt.lease.deadline
            scheduled.asked = True
            due.renew.append((attempt, scheduled.runtime))
            return late
        if late > now:
            return late
        due.late.append((attempt, scheduled.runtime))
        return attempt.lease.deadline

    def _push(self, scheduled: Scheduled[W], when: float) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), scheduled))

    def _forget_dead(self) -> None:
        self._heap = [
            each for each in self._heap if (attempt := each[2].attempt()) is not None and _awaits(attempt, each[2])
        ]
        heapq.heapify(self._heap)
        self._most = max(_MOST_DEAD, 2 * len(self._heap))


def _awaits(attempt: Attempt, scheduled: Scheduled[W]) -> bool:
    return attempt.scheduled is scheduled and not attempt.ending and not attempt.lease.lost


def moment(attempt: Attempt) -> float:
    """When to renew the lease: leases of one length that are due shortly after each other get the same moment."""
    due = attempt.lease.due
    return due - due % (attempt.lease.ttl * TOGETHER) if due < attempt.lease.deadline else due


class Queue(Generic[W]):
    """The attempts on one store whose renewal is due; the nearest deadline comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Attempt], W, bool]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Count them."""
        return len(self._heap)

    def add(self, attempt: Attempt, runtime: W, *, alone: bool = False) -> None:
        """Add one; `alone`: the store can't renew it together with others."""
        heapq.heappush(self._heap, (attempt.lease.deadline, next(self._numbers), weakref.ref(attempt), runtime, alone))

    def take(self, now: float) -> list[tuple[Attempt, W]]:
        """Return the next one, or as many as can be renewed in one request."""
        taken: list[tuple[Attempt, W]] = []
        while self._heap and len(taken) < MOST_TOGETHER:
            alone = self._heap[0][4]
            if alone and taken:
                break
            _, _, reference, runtime, _ = heapq.heappop(self._heap)
            attempt = reference()
            if attempt is None or attempt.ending or attempt.lease.lost or (not alone and moment(attempt) > now):
                continue  # it is no longer held, or an extension has renewed it
            taken.append((attempt, runtime))
            if alone:
                break
        return taken


class Lateness:
    """Warns that renewals are late, at most once in `QUIET` seconds for each location."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def warnings(self, late: Sequence[tuple[str, Attempt]], now: float) -> list[str]:
        """Return a sentence for each location that was not warned about in the last `QUIET` seconds."""
        by_location: dict[str, list[Attempt]] = {}
        for location, attempt in late:
            by_location.setdefault(location, []).append(attempt)
        said: list[str] = []
        for location, attempts in by_location.items():
            if now < self._said.get(location, -NEVER) + QUIET:
                continue
            self._said[location] = now
            first = min(attempts, key=lambda attempt: attempt.lease.deadline)
            said.append(
                f"renewals at {location} are late: "
                f"the lease of lock {first.key!r} ends in {first.lease.deadline - now:.3g} s. "
                "The store is slow or does not answer, or this process is overloaded."
            )
        return said
