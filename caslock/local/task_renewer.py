"""Renewals and clean-ups of asyncio locks: each event loop has one timer for all its leases, and a few tasks."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from caslock.local import clock
from caslock.local.reports import warn_of_late_renewals, warn_of_loss
from caslock.local.schedule import Renewals, Schedule, by_store
from caslock.process.loop_end import before_the_loop_ends
from caslock.protocol.clean_up import run_clean_ups
from caslock.protocol.lease import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.clean_up import CleanUp
    from caslock.protocol.runtime import Runtime


def renewer_of(loop: asyncio.AbstractEventLoop) -> LoopRenewer:
    """Return the one renewer of an event loop."""
    renewer = _renewers.get(loop)
    if renewer is None:
        renewer = _renewers[loop] = LoopRenewer(loop)
    return renewer


# Weakly: the loop keeps a renewer alive by its timer and tasks while there is something to do.
_renewers: weakref.WeakValueDictionary[asyncio.AbstractEventLoop, LoopRenewer] = weakref.WeakValueDictionary()


def report_loss(attempt: Attempt) -> None:
    """Report a loss, once, in the event loop of the attempt's task; if that is closed, in the log only."""
    task = attempt.caller
    try:
        if isinstance(task, asyncio.Task):
            task.get_loop().call_soon_threadsafe(tell, attempt)
    except RuntimeError:
        if attempt.lease.tell() is not None:
            warn_of_loss(attempt)


def tell(attempt: Attempt) -> None:
    """Report a loss, once."""
    calls = attempt.lease.tell()
    if calls is None:
        return
    warn_of_loss(attempt)
    for call in calls:
        call()


class LoopRenewer:
    """Knows when each lease of one event loop is due, and when it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._schedule = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._rings = NEVER  # when that rings
        self._renewals: weakref.WeakKeyDictionary[object, Renewals] = weakref.WeakKeyDictionary()  # by `shared`
        self._clean_ups: dict[object, deque[CleanUp]] = {}  # by `shared`; each has a task
        self._tasks = set[asyncio.Task[None]]()  # the loop itself refers to tasks only weakly
        self._finishing: dict[asyncio.Future[None], asyncio.Task[None]] = {}
        self._ended = False
        self._end = before_the_loop_ends(self.end, in_a_child=True)

    def watch(self, attempt: Attempt) -> None:
        """Renew the lease when it is due, and report its end."""
        if self._schedule.add(attempt) < self._rings:
            self._set_timer()

    def clean_up(self, runtime: Runtime, clean_up: CleanUp) -> None:
        """Run a clean-up until the store has answered it."""
        if runtime.shared in self._clean_ups:
            self._clean_ups[runtime.shared].append(clean_up)
        else:
            self._clean_ups[runtime.shared] = deque([clean_up])
            self._run_clean_ups(runtime)

    def _run_clean_ups(self, runtime: Runtime) -> None:
        """Run all clean-ups of a store, also those that come when its task has answered the last one and is ending."""
        clean_ups = self._clean_ups[runtime.shared]
        if clean_ups:
            self._start(run_clean_ups(runtime, clean_ups), partial(self._run_clean_ups, runtime))
        else:
            del self._clean_ups[runtime.shared]

    async def end(self) -> None:
        """Stop: a renewal or clean-up under way when the loop closes would be left half done."""
        self._ended = True
        self._set_timer()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._finishing, return_exceptions=True)

    def _start(self, coroutine: Coroutine[object, object, None], done: Callable[[], object]) -> None:
        if self._is_over:
            coroutine.close()
            return
        self.start(coroutine, done)

    def start(self, coroutine: Coroutine[object, object, None], done: Callable[[], object]) -> None:
        """Run a coroutine in a task that is cancelled when the loop ends, and call a function when it has ended."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:  # it refers to us: until then we stay the renewer of the loop
            self._tasks.discard(task)
            done()

        task.add_done_callback(ended)

    def finish(self, work: Callable[[], Coroutine[object, object, None]]) -> asyncio.Future[None]:
        """Run `work` to its end, once more if its task is cancelled: the end of the loop cancels all tasks."""
        done: asyncio.Future[None] = self._loop.create_future()

        def begin(ended: Callable[[asyncio.Task[None]], object]) -> None:
            self._finishing[done] = task = self._loop.create_task(work())
            task.add_done_callback(ended)

        def over(_task: asyncio.Task[None]) -> None:
            del self._finishing[done]
            done.set_result(None)

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                begin(over)
            else:
                over(task)

        begin(ended)
        return done

    @property
    def _is_over(self) -> bool:
        return self._ended or self._loop.is_closed()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when, self._rings = self._schedule.next, NEVER
        if when < NEVER and not self._is_over:
            self._timer = self._loop.call_later(max(0.0, when - clock.now()), self._ring)
            self._rings = when

    def _ring(self) -> None:
        due = self._schedule.look(clock.now())
        self._set_timer()  # first: what follows may raise
        for attempt in due.over:
            attempt.lose(attempt.lease.end("renewed"))
        for attempts in by_store(due.renew):
            runtime = attempts[0].runtime
            renewals = self._renewals.get(runtime.shared)
            if renewals is None:
                renewals = Renewals(self._start, self.watch, batches=runtime.batching is not None)
                self._renewals[runtime.shared] = renewals
            renewals.add(attempts)
        warn_of_late_renewals(due.late)
