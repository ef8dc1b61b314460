"""Renewals of blocking locks: one thread of the process knows all deadlines, and threads of each store send renewals.

The thread that knows the deadlines sends no request, writes no log and calls no callback, so that nothing delays its
report of a loss.  It starts with the first hold and ends when there is none.  Each store has threads of its own, so
that a store that hangs delays no other's renewals.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final, cast

from caslock.local import clock
from caslock.local.reports import warn_of_late_renewals, warn_of_loss
from caslock.local.schedule import MOST_BATCHES, MOST_RENEWING, Due, Renewals, Schedule, by_store, end
from caslock.local.workers import LINGER, Workers, run, run_safely, start
from caslock.observer import warn
from caslock.process.fork import at_fork
from caslock.protocol.lease import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.local.shared import Shared
    from caslock.protocol.attempt import Attempt


MOST_TELLING: Final = 8
"""User callbacks that run at one time for one store."""

_guard = RLock()  # a signal handler may use a lock while its thread is in here
_renewer: ThreadRenewer | None = None


def watch(attempt: Attempt) -> None:
    """Renew the lease when it is due, and report its end."""
    global _renewer  # noqa: PLW0603 - there is one for the process
    renewer = _renewer
    if renewer is not None and renewer.add(attempt):
        return
    with _guard:
        renewer = _renewer = _renewer or ThreadRenewer()
        is_seen = renewer.add(attempt)
        is_running = renewer.is_running or renewer.start()
        if is_running and not is_seen:
            renewer.wake_by(attempt.lease.due)
    if not is_running and threading.main_thread().is_alive():  # at interpreter exit nothing is renewed
        warn(
            f"the thread that renews leases could not be started: lock {attempt.key!r} will be lost in "
            f"{attempt.lease.deadline - clock.now():.4g} s, unless it starts when another lock is acquired by then"
        )


def report_loss(attempt: Attempt) -> None:
    """Report a loss, once, in threads that do nothing else; after an interrupt it can be called again."""
    if not attempt.lease.reporting:
        _tellers(attempt).do(partial(_tell, attempt))
        attempt.lease.reporting = True


def _tellers(attempt: Attempt) -> Workers:
    """Return the threads that report losses at one store: callbacks that hang delay no reports of other stores."""
    shared = cast("Shared", attempt.runtime.shared)
    return shared.part("on_lost", partial(Workers, "caslock-on-lost", MOST_TELLING))


def _tell(attempt: Attempt) -> None:
    with _guard:
        calls = attempt.lease.tell()
    if calls is None:
        return
    run_safely(partial(warn_of_loss, attempt))
    for call in calls:
        run_safely(call)


class ThreadRenewer:
    """The thread that knows when each lease is due, and when it ends."""

    def __init__(self) -> None:
        self._schedule = Schedule()
        self._alarm = threading.Condition(_guard)
        self.is_running: bool = False
        self._wakes = NEVER  # when the thread looks next, if it is not woken before; while it looks, it says NEVER

    def add(self, attempt: Attempt) -> bool:
        """Note `attempt`; whether the thread is certain to look at it when it is due.

        That takes no guard: the thread sets `_wakes` to NEVER before it looks at what was added, and we add before we
        read `_wakes`.  So either it sees the attempt, or we see that it may not.
        """
        return self._schedule.add(attempt) >= self._wakes

    def wake_by(self, moment: float) -> None:
        """Have the thread look at that moment at the latest; `_guard` has to be taken."""
        self._alarm.notify()
        self._wakes = moment  # only now: after an interrupt, nobody must rely on it

    def start(self) -> bool:
        """Start the thread; whether it is running then."""
        self.is_running = start(self.run, "caslock-renewer") is not None
        return self.is_running

    def run(self) -> None:
        """Run until there is no lease; whatever is wrong with one, the others are still renewed."""
        while not run_safely(self._run):
            time.sleep(0.1)

    def _run(self) -> None:
        while (due := self._next()) is not None:
            _act(due)
            del due  # or an abandoned hold stays alive until the next look, and is renewed again

    def _next(self) -> Due | None:
        """Sleep until something is due; None: there is no lease, and there was none a while ago."""
        global _renewer  # noqa: PLW0603 - it ends
        unused = False
        with _guard:
            while True:
                # What was to be looked at then may be over, but not what is added again and again.
                asked, self._wakes = self._wakes, NEVER
                was_unused, unused = unused, not len(self._schedule)
                now = clock.now()
                due = self._schedule.look(now)
                if any(due):
                    return due
                if unused and was_unused:
                    if _renewer is self:  # an interrupt may have kept it from being set
                        _renewer = None
                    return None
                wakes = min(self._schedule.next, asked if asked > now else NEVER)
                self._wakes = now + LINGER if wakes == NEVER else wakes
                self._alarm.wait(min(self._wakes - now, threading.TIMEOUT_MAX))


def _act(due: Due) -> None:
    for attempt in due.over:
        end(attempt)
    for attempts in by_store(due.renew):
        runtime = attempts[0].runtime
        begin = partial(_renewals, batches=runtime.batching is not None)
        cast("Shared", runtime.shared).part("renewals", begin).add(attempts)
    for attempts in by_store(due.late):
        _tellers(attempts[0]).do(partial(warn_of_late_renewals, attempts))


def _renewals(*, batches: bool) -> Renewals:
    threads = Workers("caslock-renewals", MOST_RENEWING + MOST_BATCHES)

    def start(coroutine: Coroutine[object, object, None], done: Callable[[], object]) -> None:
        def job() -> None:
            try:
                run(coroutine)
            finally:
                done()

        threads.do(job)

    return Renewals(start, watch, batches=batches)


def _forget_parent() -> None:
    """A forked child has none of its parent's threads, and keeps none of its holds."""
    global _guard, _renewer  # noqa: PLW0603 - the guard may be locked in the parent at this moment
    _guard = RLock()
    _renewer = None


at_fork(after_in_child=_forget_parent)
