"""Decides when each lease is renewed, and renews those that are due: the same for threads and for event loops.

A schedule makes no requests, so no store delays its report of a loss.  References to attempts are weak, so that a hold
that nothing refers to is not renewed.
"""

from __future__ import annotations

import heapq
import weakref
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.local import linger
from caslock.local.reports import report_renewals
from caslock.protocol import renew
from caslock.protocol.lease import NEVER
from caslock.protocol.life import LINGERING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from caslock.protocol.attempt import Attempt

MOST_TOGETHER: Final = 128
"""Leases that are renewed by one request: Redis serves nothing else meanwhile, for a millisecond."""

MOST_BATCHES: Final = 4
"""Such requests to one store that are under way at one time."""

MOST_RENEWING: Final = 16
"""Requests that renew one lease each and are under way at one store at one time: as many threads, or tasks."""

TOGETHER: Final = 1 / 120
"""Part of a lease by which a renewal may come earlier, so that it travels together with others."""

LATE_SHARE: Final = 1 / 3
"""Part of a lease: when no more is left and its renewal has not succeeded, a warning says so."""

_MOST_DEAD: Final = 1000

_numbers = count()  # heaps compare them, and never attempts


class Due(NamedTuple):
    """What a look at the schedule has shown."""

    over: list[Attempt]
    """Their leases have ended, or they have lingered for long enough."""
    renew: list[Attempt]
    late: list[Attempt]
    """Their renewals were due long ago, and have not succeeded."""


def end(attempt: Attempt) -> None:
    """Report the end of its lease, or give it up if it lingers."""
    if attempt.state is LINGERING:
        linger.end(attempt)
    elif attempt.runtime.now() >= attempt.lease.deadline:  # else it was just held again
        attempt.lose(attempt.lease.end("renewed"))


def by_store(attempts: Iterable[Attempt]) -> Iterable[list[Attempt]]:
    """Group attempts by their stores."""
    found: dict[object, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.runtime.shared, []).append(attempt)
    return found.values()


class _Look(NamedTuple):
    when: float
    asked: bool  # whether the renewal has been asked for
    number: int  # of which there are no two: the heap compares no references
    attempt: weakref.ref[Attempt]


class Schedule:
    """When to look at each attempt next: when its renewal is due, when that is late, and at the end of its lease.

    Most holds are released long before that, so a new attempt is only noted; it is sorted in at the next look.
    """

    def __init__(self) -> None:
        # By id: an attempt that is gone leaves its place to the next one, so short holds do not pile up.
        self._new: dict[int, weakref.ref[Attempt]] = {}
        self._looks: list[_Look] = []  # a heap
        self._most = _MOST_DEAD

    def __len__(self) -> int:
        """Return how many attempts it refers to; a hold is forgotten some time after its end."""
        return len(self._new) + len(self._looks)

    @property
    def next(self) -> float:
        """When to look next."""
        self._sort_in()
        return self._looks[0].when if self._looks else NEVER

    def add(self, attempt: Attempt) -> float:
        """Look at `attempt` when it is due, and at no other time; returns when to look next at the latest.

        Any thread may call this at any time; all else is for one at a time.
        """
        self._new[id(attempt)] = weakref.ref(attempt)
        return attempt.lease.due

    def look(self, now: float) -> Due:
        """Return what is due at the moment `now`, which the caller has just read from the clock."""
        self._sort_in()
        due = Due([], [], [])
        while self._looks and self._looks[0].when <= now:
            look = heapq.heappop(self._looks)
            attempt = _awaited(look)
            if attempt is not None:
                self._look_at(attempt, now, due, asked=look.asked)
        return due

    def _sort_in(self) -> None:
        while self._new:
            attempt = self._new.popitem()[1]()  # one by one, because others may be added meanwhile
            if attempt is not None and _is_looked_after(attempt):
                self._at(_moment(attempt), attempt)
        if len(self._looks) > self._most:
            self._forget_dead()

    def _look_at(self, attempt: Attempt, now: float, due: Due, *, asked: bool) -> None:
        lease = attempt.lease
        late = _together(lease.deadline - LATE_SHARE * lease.ttl, lease.ttl)
        if now >= (attempt.lingers_until if attempt.state is LINGERING else lease.deadline):
            due.over.append(attempt)
        elif asked and now >= late:
            due.late.append(attempt)
            self._at(lease.deadline, attempt, asked=True)
        elif _moment(attempt) > now:  # it has been renewed meanwhile, or lingers for longer
            self._at(_moment(attempt), attempt)
        else:
            due.renew.append(attempt)
            self._at(late if now < late else lease.deadline, attempt, asked=True)
            if now >= late:
                due.late.append(attempt)

    def _at(self, when: float, attempt: Attempt, *, asked: bool = False) -> None:
        # In this order: after an interrupt between the two, the earlier look still counts.
        heapq.heappush(self._looks, _Look(when, asked, next(_numbers), weakref.ref(attempt)))
        attempt.scheduled = when

    def _forget_dead(self) -> None:
        self._looks = sorted(filter(_awaited, self._looks))  # a sorted list is a heap
        self._most = max(_MOST_DEAD, 2 * len(self._looks))


def _awaited(look: _Look) -> Attempt | None:
    """Return the attempt to look at; None: it is held no longer, or another look has replaced this one."""
    attempt = look.attempt()
    looks = attempt is not None and attempt.scheduled == look.when and _is_looked_after(attempt)
    return attempt if looks else None


def _is_held(attempt: Attempt) -> bool:
    return not (attempt.ending or attempt.lease.lost)


def _is_looked_after(attempt: Attempt) -> bool:
    return attempt.state is LINGERING or _is_held(attempt)


def _moment(attempt: Attempt) -> float:
    """When to renew it, or to give it up."""
    lease = attempt.lease
    if attempt.state is LINGERING:
        return attempt.lingers_until
    return _together(lease.due, lease.ttl) if lease.due < lease.deadline else lease.due


def _together(when: float, ttl: float) -> float:
    """Return the same moment for leases of one length that are due shortly after each other."""
    return when - when % (ttl * TOGETHER)


class Renewals:
    """Renews the leases on one store that are due; the nearest deadline comes first."""

    def __init__(
        self,
        start: Callable[[Coroutine[object, object, None], Callable[[], object]], object],
        watch: Callable[[Attempt], object],
        *,
        batches: bool,
    ) -> None:
        """Renew nothing yet.

        `start` runs a coroutine in a thread or task, and calls a function when it has ended.  `watch` schedules the
        next renewal.  `batches` says whether the store can renew several leases in one request.
        """
        self._start, self._watch = start, watch
        self._together, self._most = (MOST_TOGETHER, MOST_BATCHES) if batches else (1, MOST_RENEWING)
        self._singly = Renewals(start, watch, batches=False) if batches else self
        self._guard = RLock()
        self._due: list[tuple[float, int, weakref.ref[Attempt]]] = []
        self._requests = 0

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Renew these leases soon."""
        with self._guard:
            for attempt in attempts:
                heapq.heappush(self._due, (attempt.lease.deadline, next(_numbers), weakref.ref(attempt)))
        self._send()

    def _send(self) -> None:
        with self._guard:
            more = min(-(-len(self._due) // self._together), self._most - self._requests)
            self._requests += more
        for _ in range(more):
            self._start(self._renew_due(), self._done)

    def _done(self) -> None:
        with self._guard:
            self._requests -= 1
        self._send()  # something may have become due meanwhile, or the task was cancelled

    async def _renew_due(self) -> None:
        """Send one request after the other until nothing is due."""
        while batch := self._take():
            await self._renew(batch)

    def _take(self) -> list[Attempt]:
        """Return what the next request renews."""
        taken: list[Attempt] = []
        with self._guard:
            while self._due and len(taken) < self._together:
                attempt = heapq.heappop(self._due)[2]()
                if attempt is not None and _is_held(attempt):
                    taken.append(attempt)
        return taken

    async def _renew(self, batch: Sequence[Attempt]) -> None:
        singly: list[Attempt] = []
        before = [(attempt, attempt.lease.deadline, attempt.writes.count) for attempt in batch]
        try:
            singly = await renew.renew_due(batch[0].runtime.renewing, batch)
        finally:  # after a failure they are due again soon
            for attempt in batch:
                if _is_held(attempt):
                    self._watch(attempt)
        report_renewals(before)
        self._singly.add(singly)  # last: else what is sent for these meanwhile would look like a failure
