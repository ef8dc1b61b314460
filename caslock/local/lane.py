"""The requests of one QuorumLock object to one store, in their order: a store that hangs is asked by one of them."""

from __future__ import annotations

import weakref
from collections import deque
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
        self._jobs = deque[Job]()
        self._under_way: Job | None = None

    def do(self, part: Attempt, work: Callable[[Attempt], Awaitable[object]]) -> None:
        """Do `work` after what was asked for earlier, if something else still refers to `part` then."""
        self._jobs.append(Job(weakref.ref(part), work, part.runtime.me()))
        self._go_on()

    def _go_on(self) -> None:
        """Start the next job, unless one is under way."""
        with self._guard:
            while self._jobs and not self._jobs[0].is_wanted:
                self._jobs.popleft()
            if self._is_busy or not self._jobs:
                return
            job = self._jobs[0]
            part = job.part()
        if part is not None:
            part.runtime.start(partial(self._run, job), job.caller)

    async def _run(self, job: Job) -> None:
        with self._guard:
            if not self._jobs or self._jobs[0] is not job:  # it was started twice, or replaced
                return
            self._under_way = self._jobs.popleft()
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
