"""The requests of one QuorumLock object to one store, in their order: a store that hangs is asked by one of them."""

from __future__ import annotations

import weakref
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.protocol.attempt import Attempt


class Job(NamedTuple):
    """What is to be done at one store."""

    part: weakref.ref[Attempt]
    """Weakly, for what an interrupt leaves behind must not be renewed."""
    work: Callable[[Attempt], Awaitable[object]]
    asks: bool
    caller: object
    """The thread or task that wants it; the event loop of a task does it."""

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still refers to its part, and its event loop has not been closed."""
        part = self.part()
        return part is not None and not part.runtime.ended(self.caller)


class Lane:
    """What one QuorumLock object does at one store, one job after the other: it has one live attempt there."""

    __slots__ = ("_guard", "_jobs", "_under_way")

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._guard = RLock()
        self._jobs: list[Job] = []
        self._under_way: Job | None = None

    def do(self, part: Attempt, work: Callable[[Attempt], Awaitable[object]], *, asks: bool = False) -> None:
        """Do `work` after what is under way, if something else still refers to `part` then.

        One that `asks` for a lease takes the place of an earlier one that has not begun: that is of a ballot that is
        over.  So a store that hangs has one request of each lock, and one that waits.
        """
        job = Job(weakref.ref(part), work, asks, part.runtime.me())
        with self._guard:
            self._jobs = [*(other for other in self._jobs if not (asks and other.asks)), job]
        self._go_on()

    def _go_on(self) -> None:
        """Start the next job, unless one is under way."""
        with self._guard:
            self._jobs = [job for job in self._jobs if job.is_wanted]
            first = None if self._is_busy or not self._jobs else self._jobs[0]
            part = None if first is None else first.part()
        if first is not None and part is not None:
            part.runtime.start(partial(self._run, first), first.caller)

    async def _run(self, job: Job) -> None:
        with self._guard:
            if self._is_busy or not self._jobs or self._jobs[0] is not job:  # it was started twice, or replaced
                return
            self._under_way = self._jobs.pop(0)
        part = job.part()
        try:
            if part is not None:
                await job.work(part)
        finally:
            if self._under_way is job:
                self._under_way = None
            self._go_on()

    @property
    def _is_busy(self) -> bool:
        return self._under_way is not None and self._under_way.is_wanted
