"""Retries clean-ups in the background that a hanging server has left undone, in one thread for each store.

While the server hangs, one job is tried, with growing pauses; once it has answered, all the others are run at once.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from caslock.fork import generation
from caslock.local import clock
from caslock.local.workers import Workers, closing
from caslock.protocol.withdraw import FIRST_PAUSE, LONGEST_WAIT

if TYPE_CHECKING:
    from collections.abc import Callable


class Job(NamedTuple):
    """Something to be settled."""

    settle: Callable[[], bool]
    ends: float
    generation: int


class Settler:
    """The jobs of one store in one process."""

    def __init__(self, store: object) -> None:
        self._store = store
        self._jobs = deque[Job]()
        self._workers = Workers("caslock-settle", 1)

    def add(self, settle: Callable[[], bool], seconds: float) -> None:
        """Call `settle` with growing pauses until it returns True, for `seconds` at most."""
        self._jobs.append(Job(settle, clock.now() + seconds, generation()))
        self._workers.do(self._run, here=False)

    def _run(self) -> None:
        if self._jobs:
            self._settle()
            # If the store was closed meanwhile, the jobs have opened a connection again.
            close = getattr(self._store, "close", None)
            if close is not None:
                close()

    def _settle(self) -> None:
        pause = FIRST_PAUSE
        while self._jobs and not closing():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_WAIT)
            while self._jobs and not closing():
                job = self._jobs.popleft()
                if clock.now() >= job.ends or job.generation != generation():  # inherited by a forked child
                    continue
                if not job.settle():
                    self._jobs.append(job)
                    break
                pause = FIRST_PAUSE
