"""A forked process that says where it is, and is killed when it says nothing for too long."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress


class Child:
    """One process; `work` is given a file descriptor to write to, and is over when it returns."""

    def __init__(self, work: Callable[[int], None], limits: Sequence[float]) -> None:
        """Begin; `limits`: seconds until it has to write the first byte, then the second, and so on."""
        self._limits = limits
        self._said = b""
        self.heard, tell = os.pipe()
        self._process = os.fork()
        if not self._process:
            try:
                os.setsid()  # what it starts is killed with it
                os.close(self.heard)
                null = os.open(os.devnull, os.O_RDWR)
                for file in (0, 1, 2):
                    os.dup2(null, file)
                work(tell)
            finally:
                os._exit(0)
        os.close(tell)
        self.limit = time.monotonic() + limits[0]

    def listen(self) -> bool:
        """Read what it says; False at its end."""
        more = os.read(self.heard, 1 << 20)
        self._said += more
        self.limit = time.monotonic() + self._limits[min(len(self._said), len(self._limits) - 1)]
        return bool(more)

    def end(self) -> bytes:
        """Kill it, and return what it has said."""
        os.close(self.heard)
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        return self._said


def first_word(children: Iterable[Child]) -> Child | None:
    """Listen until one ends or is silent for too long, and return it; None: only words were heard."""
    limit = min(child.limit for child in children)
    ready = select.select([child.heard for child in children], [], [], max(0.0, limit - time.monotonic()))[0]
    for child in children:
        if child.heard in ready:
            if not child.listen():
                return child
        elif time.monotonic() >= child.limit:
            return child
    return None
