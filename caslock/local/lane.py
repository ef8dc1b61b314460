"""The requests of one QuorumLock object to one store, one at a time: a store that hangs has one of them."""

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
    """Weak: a queued job must not keep alive, and so renewed, what an interrupt has abandoned."""
    work: Callable[[Attempt], Awaitable[object]]


class Lane:
    """What one QuorumLock object does at one store, in one event loop or in threads: one job at a time.

    `Attempt.others` takes all other hold ids of the same object for dead, so two attempts that ask at one time would
    overwrite each other's leases.
    """

    __slots__ = ("_guard", "_is_served", "_jobs")

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._guard = RLock()
        self._jobs: list[Job] = []
        self._is_served = False

    def do(self, part: Attempt, work: Callable[[Attempt], Awaitable[object]]) -> None:
        """Do `work` after what was asked for earlier, if something else still refers to `part` then."""
        with self._guard:
            # While a store hangs, each acquire leaves one behind.
            self._jobs = [job for job in self._jobs if job.part() is not None]
            self._jobs.append(Job(weakref.ref(part), work))
            if self._is_served:
                return
        part.runtime.start(self._serve)

    async def _serve(self) -> None:
        with self._guard:
            if self._is_served:  # it was started twice
                return
            self._is_served = True
        while (job := self._next()) is not None:
            part, work = job
            try:
                await work(part)
            except BaseException as error:
                self._is_served = False
                if isinstance(error, Exception):  # as of a handler of the log: the others go on at once
                    part.runtime.start(self._serve)
                raise
            del part, work, job

    def _next(self) -> tuple[Attempt, Callable[[Attempt], Awaitable[object]]] | None:
        """Return the next job, with its part; None: there is none."""
        with self._guard:
            while self._jobs:
                job = self._jobs.pop(0)
                part = job.part()
                if part is not None:
                    return part, job.work
            self._is_served = False
            return None
