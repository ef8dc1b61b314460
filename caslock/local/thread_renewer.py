"""Renewals of blocking locks: one thread of the process knows all deadlines, and threads of each store send renewals.

The thread that knows the deadlines sends no request, writes no log and calls no callback, so that nothing delays its
report of a loss.  It starts with the first hold and ends when there is none.  Each store has threads of its own, so
that a store that hangs delays no other's renewals.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from caslock.fork import at_fork
from caslock.local import clock
from caslock.local.log import warn
from caslock.local.loss import warn_of_loss
from caslock.local.schedule import MOST_BATCHES, MOST_RENEWING, MOST_TOGETHER, Due, Lateness, Queue, Schedule
from caslock.local.workers import LINGER, Workers, closing, report, run_safely, start
from caslock.protocol import renew
from caslock.protocol.lease import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.local.threads import ThreadRuntime
    from caslock.protocol.attempt import Attempt


MOST_TELLING: Final = 8
"""User callbacks that run at one time."""

_guard = threading.RLock()  # a signal handler may use a lock while its thread is in here
_renewer: ThreadRenewer | None = None
_tellers = Workers("caslock-on-lost", MOST_TELLING)


def watch(runtime: ThreadRuntime, attempt: Attempt) -> None:
    """Renew the lease when it is due, and report its end."""
    renewer = _renewer
    if renewer is not None and not renewer.schedule.add(attempt, runtime):
        return  # the uncontended path takes no lock
    _watch_earlier(runtime, attempt)


def _watch_earlier(runtime: ThreadRuntime, attempt: Attempt) -> None:
    global _renewer  # noqa: PLW0603 - there is one for the process
    with _guard:
        if _renewer is None:
            renewer = ThreadRenewer()
            if start(renewer.keep, "caslock-renewer", renewer.wake) is None:
                return  # at interpreter exit nothing is renewed
            _renewer = renewer
        if _renewer.schedule.add(attempt, runtime):
            _renewer.wake()


def unwatch(runtime: ThreadRuntime, attempt: Attempt) -> None:
    """Stop renewing the lease: it is being released."""
    del runtime
    renewer = _renewer
    if renewer is not None:
        renewer.schedule.drop(attempt)


def notice(runtime: ThreadRuntime, attempt: Attempt) -> None:
    """Report a loss, once, in threads that do nothing else."""
    with _guard:
        calls = attempt.lease.tell()
    if calls is not None:
        _tellers.do(partial(_tell, attempt, runtime.store.traits.location, calls))


def _tell(attempt: Attempt, location: str, calls: Sequence[Callable[[], object]]) -> None:
    run_safely(partial(warn_of_loss, attempt, location))
    for call in calls:
        run_safely(call)


class ThreadRenewer:
    """The thread that knows when each lease is due, and when it ends; `_guard` guards its sleep and its end."""

    def __init__(self) -> None:
        """Begin with no lease."""
        self.schedule: Schedule[ThreadRuntime] = Schedule()
        self._alarm = threading.Condition(_guard)
        self._lateness = Lateness()

    def wake(self) -> None:
        """Make it look at once."""
        with self._alarm:
            self._alarm.notify()

    def keep(self) -> None:
        """Run until there is no lease."""
        while True:
            try:
                due = self._next()
                if due is None:
                    return
                self._act(due)
                del due  # or an abandoned hold stays alive until the next look, and is renewed again
            except BaseException:  # noqa: BLE001 - whatever is wrong with one lease, the others are still renewed
                report()
                time.sleep(0.1)

    def _next(self) -> Due[ThreadRuntime] | None:
        """Sleep until something is due; None: there is no lease, and there was none a while ago."""
        global _renewer  # noqa: PLW0603 - it ends
        schedule, idle = self.schedule, False
        with _guard:
            while True:
                schedule.wakes = NEVER  # a thread that adds an attempt from here on waits for the guard
                now = clock.now()
                due = schedule.look(now)
                if any(due):
                    schedule.wakes = schedule.next
                    return due
                empty = schedule.next == NEVER
                if closing() or (empty and idle):
                    if _renewer is self:  # an interrupt may have kept it from being set
                        _renewer = None
                    return None
                idle = empty
                schedule.wakes = now + LINGER if empty else schedule.next
                self._alarm.wait(min(schedule.wakes - now, threading.TIMEOUT_MAX))

    def _act(self, due: Due[ThreadRuntime]) -> None:
        for attempt in due.over:
            attempt.lose(attempt.lease.end("renewed"))
        for ready in due.by_store():
            ready[0][1].shared.part("renewals", Renewals).add(ready)
        if due.late:
            late = [(runtime.store.traits.location, attempt) for attempt, runtime in due.late]
            for text in self._lateness.warnings(late, clock.now()):
                _tellers.do(partial(warn, text))


class Renewals(Workers):
    """The threads that renew the leases on one blocking store."""

    def __init__(self) -> None:
        """Start nothing yet."""
        super().__init__("caslock-renewals", MOST_RENEWING)
        self._queue: Queue[ThreadRuntime] = Queue()
        self._renewing = 0

    def add(self, ready: Sequence[tuple[Attempt, ThreadRuntime]], *, alone: bool = False) -> None:
        """Renew these leases; `alone`: each in a request of its own."""
        alone = alone or ready[0][1].batching is None
        jobs, most = (len(ready), MOST_RENEWING) if alone else (-(-len(ready) // MOST_TOGETHER), MOST_BATCHES)
        with self._guard:
            for attempt, runtime in ready:
                self._queue.add(attempt, runtime, alone=alone)
            jobs = max(0, min(jobs, most - self._renewing))
            self._renewing += jobs
        for _ in range(jobs):
            self.do(self._renew_all)

    def _renew_all(self) -> None:
        while True:
            with self._guard:
                batch = self._queue.take(clock.now())
                if not batch:
                    self._renewing -= 1
                    return
            self._renew(batch)

    def _renew(self, batch: Sequence[tuple[Attempt, ThreadRuntime]]) -> None:
        runtime = batch[0][1]
        alone: list[Attempt] = []
        try:
            alone = runtime.run(renew.keep(runtime, [attempt for attempt, _ in batch]))
        except BaseException:  # noqa: BLE001 - a store may raise anything; the lease is due again soon
            report()
        for attempt, own in batch:
            if not (attempt.ending or attempt.lease.lost):
                watch(own, attempt)
        if alone:
            self.add([(attempt, runtime) for attempt in alone], alone=True)


def _forget_parent() -> None:
    """A forked child has none of its parent's threads, and keeps none of its holds."""
    global _guard, _renewer  # noqa: PLW0603 - the guard may be locked in the parent at this moment
    _guard = threading.RLock()
    _renewer = None


at_fork(after_in_child=_forget_parent)
