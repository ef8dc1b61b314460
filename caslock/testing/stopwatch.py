"""Measures a block, without the time in which it may have waited for a processor or the interpreter.

A thread does nothing but look at the clock every two milliseconds, and adds up how late it is each time: because other
programs have the processors, or because other threads of this process have the interpreter.  Schedulers prefer a thread
that sleeps, so on Linux it also adds what the other threads of this process waited for a processor, and for how long
the host of a virtual machine has stopped one of its processors; the kernel counts both.  A bound is compared with the
time that remains, so it needs no allowance for a busy machine.  Measure nothing that keeps all processors busy by
itself: it would count as late all the time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

TICK: Final = 0.002
"""Seconds between two looks at the clock."""

LOOKS: Final = 10
"""Looks at the clock between two looks at the threads: the last wait of a thread that ends in between is missed."""

STAT = Path("/proc/stat")
"""What the kernel says of each processor: proc_stat(5)."""


class Stopwatch:
    """``with Stopwatch() as watch: ...`` measures its block; `seconds` may be asked within it and after it.

    Any number of them may run at the same time: they share the thread.
    """

    def __init__(self) -> None:
        self._began = self._late_before = 0.0
        self._stopped_before: list[float] = []
        self._ended: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        """Begin."""
        _LOOKER.start()
        self._stopped_before = _stopped()
        self._began, self._late_before = _LOOKER.read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""
        self._ended = self._now()
        _LOOKER.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the block began, by the clock: what is compared with a lower bound."""
        return self._read()[0]

    @property
    def late(self) -> float:
        """Seconds by which the machine was late since the block began."""
        return self._read()[1]

    @property
    def seconds(self) -> float:
        """Seconds since the block began, without those that the machine was late by: what is compared with a bound."""
        elapsed, late = self._read()
        return elapsed - late

    def _read(self) -> tuple[float, float]:
        now, late = self._ended or self._now()
        elapsed = now - self._began
        return elapsed, min(late - self._late_before, elapsed)

    def _now(self) -> tuple[float, float]:
        now, late = _LOOKER.read()
        # Of one processor only: those of a large machine together can be stopped for longer than anybody has waited.
        stopped = (after - before for after, before in zip(_stopped(), self._stopped_before, strict=False))
        return now, late + max(stopped, default=0.0)


class _Looker:
    """The thread that looks at the clock while there is a stopwatch that runs."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._users = 0
        self._stop = threading.Event()
        self._thread = threading.Thread()
        self._seen = (0.0, 0.0)  # how late it was altogether, and when it is to look again
        self._waits = _Waits()
        self._reading = threading.Lock()
        self._told = 0.0

    def start(self) -> None:
        """Begin to look, unless it does so already."""
        with self._guard:
            self._users += 1
            if self._users > 1:
                return
            self._told = 0.0  # while nobody looked, all the time would have been told as lateness
            self._stop, looking = threading.Event(), threading.Event()
            self._thread = threading.Thread(
                target=self._look, args=(self._stop, looking), daemon=True, name="caslock-stopwatch"
            )
            self._thread.start()
            looking.wait()

    def stop(self) -> None:
        """End, unless another stopwatch runs."""
        with self._guard:
            self._users -= 1
            if not self._users:
                self._stop.set()
                self._thread.join()

    def read(self) -> tuple[float, float]:
        """Give the time, and how late it was altogether; a look that is overdue counts already.

        Never less than before, though a look may have ended a moment ago that still counts as overdue.
        """
        with self._reading:
            waited = self._waits.read(self._thread.native_id)
            late, due = self._seen
            now = time.monotonic()
            self._told = max(self._told, waited + late + max(0.0, now - due))
            return now, self._told

    def _look(self, stop: threading.Event, looking: threading.Event) -> None:
        late, now, looks = self._seen[0], time.monotonic(), 0
        while not stop.is_set():
            if looks % LOOKS == 0:
                self._waits.read(threading.get_native_id())
                now = time.monotonic()
            looks += 1
            due = now + TICK
            self._seen = late, due
            looking.set()
            time.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            late += max(0.0, now - due)
        self._seen = late, now


def _stopped() -> list[float]:
    """Return for how many seconds the host has stopped each processor: the eighth number of its line."""
    if sys.platform != "linux":
        return []
    processors = (line.split() for line in STAT.read_bytes().splitlines()[1:] if line.startswith(b"cpu"))
    return [int(numbers[8]) / os.sysconf("SC_CLK_TCK") for numbers in processors]


class _Waits:
    """How long the threads of this process waited for a processor: the second number of `schedstat` in proc(5).

    Threads may wait at the same time: no more is counted than the time that has passed.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._seen: dict[str, int] = {}  # by thread, in nanoseconds
        self._sum = self._at = 0.0

    def read(self, excluded: int | None) -> float:
        """Give the seconds, without those of the thread `excluded`."""
        if sys.platform != "linux":
            return 0.0
        with self._guard:
            seen, waited = {}, 0
            for thread in Path("/proc/self/task").iterdir():
                with contextlib.suppress(OSError):  # it may just have ended
                    seen[thread.name] = now = int((thread / "schedstat").read_bytes().split()[1])
                    before = self._seen.get(thread.name, 0)
                    if thread.name != str(excluded):
                        waited += now - before if now >= before else now  # less: another thread has that number now
            self._seen, before_that, self._at = seen, self._at, time.monotonic()
            self._sum += min(waited / 1e9, self._at - before_that)
            return self._sum


_LOOKER: Final = _Looker()
