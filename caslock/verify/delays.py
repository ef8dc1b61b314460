"""Tells what excuses a delay: processes and a server that were stopped, and a busy machine."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.verify.history import Event

SLACK: Final = 3.0
"""Seconds that a machine may be late which is not known to be; what the monitor has measured comes on top."""

LONG: Final = 1.0
"""Seconds; `SLACK` covers what a shorter stop of another worker delays."""

AWAKE: Final = 0.6
"""Seconds that a running process needs until a dropped hold is collected: see `worker`."""


class Delays:
    """All delays so far."""

    def __init__(self, *, embedded: bool = False) -> None:
        """Know of none; `embedded`: the store runs in the workers, and one that is stopped may keep its lock."""
        self._embedded = embedded
        self._stops = defaultdict[str, list[list[float]]](list)  # from when to when; by worker, "" for the server
        self._lags: list[Event] = []

    def read(self, event: Event) -> None:
        """Take note of an event."""
        if event.what in ("stop", "freeze"):
            self._stops[event.who].append([event.at, math.inf])
        elif event.what in ("go", "thaw"):
            self._stops[event.who][-1][1] = event.at
        elif event.what == "lag":
            self._lags.append(event)

    def lag(self, since: float) -> float:
        """By how many seconds the machine was late since then, as measured."""
        return sum(min(lag.until, lag.at - since) for lag in self._lags if lag.at > since)

    def stopped(self, workers: Iterable[str], since: float) -> float:
        """For how many seconds any of these workers was stopped since then, or had to wake up."""
        stops = [stop for worker in set(workers) for stop in self._stops[worker]]
        return sum(end - max(begin, since) + AWAKE for begin, end in stops if end > since)

    def took_effect(self, at: float, worker: str) -> float:
        """When what a worker did at a moment was over, given that nothing happens in a process that is stopped."""
        stops = self._stops[""] + (self._stops[worker] if worker else [])
        if self._embedded:
            stops += [stop for each in self._stops.values() for stop in each if stop[1] - stop[0] > LONG]
        for stopped, continued in sorted(stops):
            if stopped - AWAKE < at < continued:
                at = continued
        return at
