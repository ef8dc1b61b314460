"""Renewals of asyncio locks: each event loop has one timer for all its leases, and a few tasks for each store."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from caslock.local import clock
from caslock.local.log import warn
from caslock.local.loss import warn_of_loss
from caslock.local.schedule import MOST_BATCHES, MOST_RENEWING, Lateness, Queue, Schedule
from caslock.loop_end import before_the_loop_ends
from caslock.protocol import renew
from caslock.protocol.lease import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime


def renewer_of(loop: asyncio.AbstractEventLoop) -> LoopRenewer:
    """Return the one renewer of an event loop."""
    renewer = _renewers.get(loop)
    if renewer is None:
        renewer = _renewers[loop] = LoopRenewer(loop)
    return renewer


# Weakly: the loop keeps a renewer alive by its timer while there is a lease to renew.
_renewers: weakref.WeakValueDictionary[asyncio.AbstractEventLoop, LoopRenewer] = weakref.WeakValueDictionary()


def notice(attempt: Attempt, location: str) -> None:
    """Report a loss, once, in the event loop of the attempt's task; if that is closed, in the log only."""
    task = attempt.by
    try:
        if isinstance(task, asyncio.Task):
            task.get_loop().call_soon_threadsafe(tell, attempt, location)
    except RuntimeError:
        if attempt.lease.tell() is not None:
            warn_of_loss(attempt, location)


def tell(attempt: Attempt, location: str) -> None:
    """Report a loss, once."""
    calls = attempt.lease.tell()
    if calls is None:
        return
    warn_of_loss(attempt, location)
    for call in calls:
        try:
            call()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - a user's callback must not end the renewals
            message = f"the on_lost callback of lock {attempt.key!r} raised an exception"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class LoopRenewer:
    """Knows when each lease of one event loop is due, and when it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.schedule: Schedule[Runtime] = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._lateness = Lateness()
        self._renewals: dict[object, Renewals] = {}  # by what their runtimes share
        self._end = before_the_loop_ends(self.end)

    def watch(self, attempt: Attempt, runtime: Runtime) -> None:
        """Renew the lease when it is due, and report its end."""
        if self.schedule.add(attempt, runtime):
            self._ring_at(attempt.lease.due)

    async def end(self) -> None:
        """Stop renewing: a renewal under way when the loop closes would be left half done."""
        self._ring_at(NEVER)
        self.schedule = Schedule()
        renewals, self._renewals = self._renewals, {}
        await asyncio.gather(*(each.end() for each in renewals.values()))

    def forget(self, shared: object) -> None:
        """Drop the renewals of a store, as none is due."""
        self._renewals.pop(shared, None)

    def _ring_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.schedule.wakes = when
        if when < NEVER:
            self._timer = self.loop.call_later(max(0.0, when - clock.now()), self._ring)

    def _ring(self) -> None:
        now = clock.now()
        due = self.schedule.look(now)
        self._ring_at(self.schedule.next)  # first: what follows may raise
        for attempt in due.over:
            attempt.lose(attempt.lease.end("renewed"))
        for ready in due.by_store():
            shared = ready[0][1].shared
            if shared not in self._renewals:
                self._renewals[shared] = Renewals(self, shared)
            self._renewals[shared].add(ready)
        for text in self._lateness.warnings(
            [(runtime.store.traits.location, attempt) for attempt, runtime in due.late], now
        ):
            warn(text)


class Renewals:
    """The tasks of one event loop that renew the leases on one store."""

    def __init__(self, renewer: LoopRenewer, shared: object) -> None:
        self._renewer, self._shared = renewer, shared
        self._queue: Queue[Runtime] = Queue()
        self._tasks = set[asyncio.Task["list[Attempt]"]]()  # the loop itself refers to tasks only weakly
        self._ended = False

    def add(self, ready: Sequence[tuple[Attempt, Runtime]], *, alone: bool = False) -> None:
        """Renew these leases; `alone`: each in a request of its own."""
        alone = alone or ready[0][1].batching is None
        for attempt, runtime in ready:
            self._queue.add(attempt, runtime, alone=alone)
        self._go_on(MOST_RENEWING if alone else MOST_BATCHES)

    async def end(self) -> None:
        """Cancel what is under way."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _go_on(self, most: int) -> None:
        while len(self._tasks) < most and (batch := self._queue.take(clock.now())):
            self._renew(batch, most)
        if not self._tasks:
            self._renewer.forget(self._shared)

    def _renew(self, batch: Sequence[tuple[Attempt, Runtime]], most: int) -> None:
        runtime = batch[0][1]
        task = self._renewer.loop.create_task(renew.keep(runtime, [attempt for attempt, _ in batch]))
        self._tasks.add(task)

        def done(task: asyncio.Task[list[Attempt]]) -> None:
            self._tasks.discard(task)
            if self._ended:
                return
            for attempt, own in batch:
                if not (attempt.ending or attempt.lease.lost):
                    self._renewer.watch(attempt, own)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                message = f"a renewal at {runtime.store.traits.location} raised an exception"
                self._renewer.loop.call_exception_handler({"message": message, "exception": error})
            elif not task.cancelled() and task.result():
                self.add([(attempt, runtime) for attempt in task.result()], alone=True)
            self._go_on(most)

        task.add_done_callback(done)
