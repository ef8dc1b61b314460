"""Tells which leases a stopped memcached server may have shortened.

The clock of memcached is a number that a timer sets once a second.  While the process is stopped the number does not
change, and what is written after it continues, but before the timer has run, gets its end by the old time.  Such a
lease ends earlier by the length of the stop, at the most.  It is the only one: what was written before the stop ends in
time, and so does what is written after the timer has run.
"""

from __future__ import annotations

from typing import Final

from caslock.verify.delays import Delays
from caslock.verify.history import Event
from caslock.verify.tenures import Judgement

CLOCK_STOPS: Final = frozenset({"memcached"})
"""The servers whose clock does not run while they are stopped, by the scheme of their URL."""

TIMER: Final = 0.25
"""Seconds until the timer has certainly run, on a busy machine."""

NOTED: Final = 0.05
"""Seconds by which the end of a stop is noted too late, at the most."""


class ShortenedLeases:
    """Notes in each tenure by how much its lease may have been shortened."""

    def __init__(self, judgement: Judgement, _delays: Delays) -> None:
        self._judgement = judgement
        self._began: float | None = None
        self._stops: list[tuple[float, float]] = []  # from when to when

    def read(self, event: Event) -> None:
        if event.what == "freeze" and event.note in CLOCK_STOPS:
            self._began = event.at
        elif event.what == "thaw" and self._began is not None:
            self._stops.append((self._began, event.at))
            self._began = None

    def end(self) -> None:
        for tenure in self._judgement.tenures:
            for began, ended in self._stops:
                if tenure.written <= ended + TIMER and tenure.answered >= ended - NOTED:
                    tenure.shortened = max(tenure.shortened, ended - began)
