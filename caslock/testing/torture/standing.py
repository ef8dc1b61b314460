"""The law of this file: a record that nobody has ends with its lease; what stands longer is a ghost.

Three things may have an owner stand who has gone: its last lease, a put of its own that the network delivers late (the
fault says how late), and a server that was stopped and had it in its buffers.  Whatever stands for longer than its
lease without a renewal is a ghost as well, whoever has it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.testing.torture.history import Event
    from caslock.testing.torture.tenures import Judgement

SLACK: Final = 3.0
"""Seconds that a busy machine may be late."""


AWAKE: Final = 0.6
"""Seconds that a process must be awake to forget a hold that was dropped: see `worker`."""


class Seen(NamedTuple):
    """What stands under a key, unchanged."""

    version: int
    since: float


class Moment(NamedTuple):
    """When something of a worker was over, as long as the worker was not stopped."""

    at: float = -math.inf
    worker: str = ""


def ghosts(events: Iterable[Event], found: Judgement) -> None:
    """Find them, in events in the order of time."""
    sweep = _Sweep(found)
    for event in events:
        sweep.read(event)


class _Sweep:
    """Who is there, as the events go by."""

    def __init__(self, found: Judgement) -> None:
        self._found = found
        self._there = defaultdict[str, set[str]](set)  # by owner: who acquires or holds in its name
        self._owners = defaultdict[str, set[str]](set)  # the same by who
        self._gone = dict[str, Moment]()  # when the last of an owner went
        self._arrives = dict[str, Moment]()  # when the last late request of a hold is delivered
        self._stops = defaultdict[str, list[list[float]]](list)  # from when to when a worker was, or ("") the server
        self._standing = dict[str, Seen]()
        self._told = set[tuple[str, str]]()

    def read(self, event: Event) -> None:
        """Go on."""
        if event.what == "try":
            self._there[event.owner].add(event.who)
            self._owners[event.who].add(event.owner)
        elif event.what in ("none", "failed", "left", "dropped"):
            self._goes(event.owner, event.who, event.at)
        elif event.what in ("alarm", "kill"):
            for who in [who for who in self._owners if who == event.who or who.startswith(f"{event.who}/")]:
                for owner in list(self._owners[who]):
                    self._goes(owner, who, event.at)
        elif event.what == "seen":
            self._look(event)
        else:
            self._delay(event)

    def _delay(self, event: Event) -> None:
        """Take note of what makes a request late."""
        if event.what == "fault":
            for hold in event.hold.split():
                arrives = Moment(event.at + event.until, event.who)
                self._arrives[hold] = max(arrives, self._arrives.get(hold, arrives))
        elif event.what in ("stop", "freeze"):
            self._stops[event.who].append([event.at, math.inf])
        elif event.what in ("go", "thaw"):
            self._stops[event.who][-1][1] = event.at

    def _goes(self, owner: str, who: str, at: float) -> None:
        self._owners[who].discard(owner)
        if not self._owners[who]:
            del self._owners[who]
        self._there[owner].discard(who)
        if not self._there[owner]:
            del self._there[owner]
            self._gone[owner] = Moment(at, who.partition("/")[0])

    def _look(self, event: Event) -> None:
        before = self._standing.get(event.key)
        if before is None or before.version != event.fence:
            self._standing[event.key] = before = Seen(event.fence, event.at)
        if event.at > before.since + event.until + SLACK:
            self._ghost(event, f"without a renewal, {event.at - before.since:.3g} s long at least")
        elif event.hold and event.owner not in self._there and event.owner in self._gone:
            gone = self._gone[event.owner]
            late = [self._arrives.get(hold, gone) for hold in event.hold.split()]
            if event.at > max(map(self._over, [gone, *late])) + event.until + SLACK:
                self._ghost(event, f"{event.at - gone.at:.3g} s after its owner has gone")

    def _over(self, moment: Moment) -> float:
        """When it was over, given that nothing happens in a process that is stopped."""
        at = moment.at
        for stopped, went_on in sorted(self._stops[""] + self._stops[moment.worker] * bool(moment.worker)):
            if stopped - AWAKE < at < went_on:
                at = went_on
        return at

    def _ghost(self, event: Event, why: str) -> None:
        if (event.key, event.owner) not in self._told:
            self._told.add((event.key, event.owner))
            self._found.break_("ghost", event.at, event.key, f"{event.hold} stands {why}: {event.note}")
