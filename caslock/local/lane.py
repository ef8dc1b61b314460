"""The requests of one QuorumLock object to one store, in their order: a store that hangs is asked by one of them."""

from __future__ import annotations

import weakref
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


class Lane:
    """What one QuorumLock object does at one store, one job after the other: it has one live attempt there."""

    __slots__ = ("_guard", "_jobs", "_serves")

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._guard = RLock()
        self._jobs: list[Job] = []
        self._serves: Attempt | None = None  # whose job is being done

    def do(self, part: Attempt, work: Callable[[Attempt], Awaitable[object]], *, asks: bool = False) -> None:
        """Do `work` after what is under way, if something else still refers to `part` then.

        One that `asks` for a lease takes the place of an earlier one that has not begun: that is of a ballot that is
        over.  So a store that hangs has one request of each lock, and one that waits.
        """
        with self._guard:
            self._jobs = [job for job in self._jobs if not (asks and job.asks)]
            self._jobs.append(Job(weakref.ref(part), work, asks))
            is_free = self._is_free
        if is_free:
            part.runtime.start(self._serve)

    async def _serve(self) -> None:
        done: Attempt | None = None
        try:
            while (job := self._next(done)) is not None:
                done, work = job
                await work(done)
                del job, work
        finally:
            if self._serves is done:  # after an error, as of a log handler: the next `do` goes on
                self._serves = None

    def _next(self, done: Attempt | None) -> tuple[Attempt, Callable[[Attempt], Awaitable[object]]] | None:
        """Return the next job for who has `done` the last one; None: there is none, or another one is under way."""
        with self._guard:
            if not (self._serves is done or self._is_free):
                return None
            self._serves = None
            while self._jobs:
                job = self._jobs.pop(0)
                self._serves = job.part()
                if self._serves is not None:
                    return self._serves, job.work
            return None

    @property
    def _is_free(self) -> bool:
        return self._serves is None or self._serves.runtime.ended(self._serves)
