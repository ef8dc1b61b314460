"""What records say for people: since when, on which host, in which process, and the note of the lock."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from caslock.process.fork import generation
from caslock.protocol.attempt import FirstRecord, Terms
from caslock.protocol.record import Stamp, opening
from caslock.protocol.shares import shared_opening


class Stamps:
    """What the records of one Lock object say for people in this second of the wall clock."""

    __slots__ = ("_host", "_last", "_terms")

    def __init__(self, terms: Terms, host: str) -> None:
        self._terms, self._host = terms, host
        self._last: tuple[int, FirstRecord] | None = None

    def __call__(self) -> FirstRecord:
        """Return that of this moment."""
        second, last = int(time.time()), self._last
        if last is not None and last[0] == second:
            return last[1]
        _, _, owner, settings, sharing = self._terms
        stamp, ttl = _stamp(second, self._host, settings.note, generation()), settings.ttl
        text = shared_opening(sharing.permits, ttl, stamp) if sharing else opening(owner, ttl, stamp)
        first = FirstRecord(stamp, text)
        self._last = second, first
        return first


@lru_cache(maxsize=1)
def hostname() -> str:
    """Return the name of this machine, as records have it."""
    import socket  # noqa: PLC0415 - most stores need it anyway, `import caslock` does not

    return socket.gethostname().encode(errors="replace").decode()


@lru_cache(maxsize=16)
def _stamp(second: int, host: str, note: str, _generation: int) -> Stamp:
    """Return what all locks of a process with one note say; the time is for people, and never compared."""
    return Stamp(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second)), host, os.getpid(), note)
