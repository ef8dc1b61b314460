"""Seconds that a call took, less what this machine was late by meanwhile.

A thread does nothing but look at the clock every two milliseconds, and adds up how late it is each time: because other
programs have the processors, or because other threads of this process have the interpreter.  A bound is compared with
the time that remains, so it needs no allowance for a busy machine.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

TICK: Final = 0.002
"""Seconds between two looks at the clock."""


class Stopwatch:
    """``with Stopwatch() as watch: ...`` measures its block; `seconds` may be asked within it and after it."""

    def __init__(self) -> None:
        self._late = 0.0
        self._stop = threading.Event()
        self._looking = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="stopwatch")
        self._began = 0.0
        self._ended: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        self._looking.wait()
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""
        self._ended = (time.monotonic(), self._late)
        self._stop.set()
        self._thread.join()

    @property
    def elapsed(self) -> float:
        """Seconds since the block began, by the clock: what is compared with a lower bound."""
        return (self._ended[0] if self._ended else time.monotonic()) - self._began

    @property
    def late(self) -> float:
        """Seconds by which the machine was late since the block began."""
        return self._ended[1] if self._ended else self._late

    @property
    def seconds(self) -> float:
        """Seconds since the block began, without those that the machine was late by: what is compared with a bound."""
        return self.elapsed - self.late

    def _look(self) -> None:
        due = time.monotonic()
        self._looking.set()
        while not self._stop.is_set():
            due += TICK
            time.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            self._late += now - due
            due = now
