"""Finds records that nobody has, and that last for longer than their lease.

Three things may keep the record of an owner that has gone: its last lease, a put of its own that the network delivers
late (the fault says how late), and a server that was stopped and had it in its buffers.  A record that lasts for longer
than its lease without a renewal is an orphan as well, whoever has it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from caslock.verify.delays import SLACK
from caslock.verify.monitor import SLOW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.verify.delays import Delays
    from caslock.verify.history import Event
    from caslock.verify.tenures import Judgement


class Seen(NamedTuple):
    """A version of a record."""

    version: int
    since: float
    after: float
    """When another version was seen, or none: it was written later than that."""


class Moment(NamedTuple):
    """When something of a worker was over, as long as the worker was not stopped."""

    at: float
    worker: str = ""


class Orphans:
    """Who is there, as the events go by."""

    def __init__(self, judgement: Judgement, delays: Delays, events: Iterable[Event]) -> None:
        """Know when each owner will try, from all of the sorted events."""
        self._judgement, self._delays = judgement, delays
        self._tries = defaultdict[str, list[float]](list)
        for event in events:
            if event.what == "try":
                self._tries[event.owner].append(event.at)
        self._clients = defaultdict[str, set[str]](set)  # by owner: who acquires or holds in its name
        self._gone = dict[str, Moment]()  # when the last client of an owner went
        self._arrives = dict[str, Moment]()  # when the last late request of a hold is delivered
        self._records = dict[str, Seen]()  # by key
        self._looked = dict[str, float]()  # when, by key
        self._reported = set[tuple[str, str]]()

    def read(self, event: Event) -> None:
        """Take note of an event."""
        match event.what:
            case "try":
                self._clients[event.owner].add(event.who)
            case "none" | "failed" | "left" | "dropped":
                self._goes(event.owner, event.who, event.at)
            case "alarm" | "kill":
                for owner, clients in list(self._clients.items()):
                    for who in [who for who in clients if event.concerns(who)]:
                        self._goes(owner, who, event.at)
            case "seen":
                self._look(event)
                self._looked[event.key] = event.at
            case "clear":
                self._records.pop(event.key, None)
                self._looked[event.key] = event.at
            case "fault" | "arrives":
                for hold in event.hold.split():
                    arrives = Moment(event.at + event.until, event.who)
                    self._arrives[hold] = max(arrives, self._arrives.get(hold, arrives))

    def _tries_soon(self, event: Event) -> bool:
        """Whether a look may have found the record of a later try: it has the time when it began."""
        tries = self._tries[event.owner]
        later = bisect_right(tries, event.at)
        return later < len(tries) and tries[later] <= event.at + SLOW

    def _goes(self, owner: str, who: str, at: float) -> None:
        self._clients[owner].discard(who)
        if not self._clients[owner]:
            del self._clients[owner]
            self._gone[owner] = Moment(at, who.partition("/")[0])

    def _look(self, event: Event) -> None:
        record = self._records.get(event.key)
        if record is None or record.version != event.fence:
            after = self._looked.get(event.key, -math.inf)
            self._records[event.key] = record = Seen(event.fence, event.at, after)
        lag = self._delays.lag(record.since)
        if event.at > record.since + event.until + SLACK + lag:
            self._report(event, f"without a renewal, {event.at - record.since:.3g} s long at least", lag)
        elif event.hold and event.owner not in self._clients and event.owner in self._gone:
            gone = self._gone[event.owner]
            late = [self._arrives.get(hold, gone) for hold in event.hold.split()]
            over = max(self._delays.took_effect(*moment) for moment in (gone, *late))
            lag = self._delays.lag(over)
            if event.at > over + event.until + SLACK + lag and not self._tries_soon(event):
                why = "when it was written was not seen"
                if record.after > over:
                    why = (
                        f"it was written more than {record.after - over:.3g} s after the last request of its owner "
                        "that the network has delivered: the store, or its client, applies late what was given up"
                    )
                self._report(event, f"{event.at - gone.at:.3g} s after its owner has gone; {why}", lag)

    def _report(self, event: Event, why: str, lag: float) -> None:
        if (event.key, event.owner) not in self._reported:
            self._reported.add((event.key, event.owner))
            busy = f"; the machine was late by {lag:.3g} s meanwhile" if lag else ""
            text = f"{event.hold} is recorded {why}{busy}: {event.note}"
            self._judgement.violate("orphaned record", event.at, event.key, text)
