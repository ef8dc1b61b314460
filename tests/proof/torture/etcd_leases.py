"""Tells which records a restarted etcd or ZooKeeper may keep for longer.

When etcd starts, it begins each lease anew, and so does the store on ZooKeeper.  So a record that was there before a
restart lasts for its lease after it, whoever has gone meanwhile.  What lasts for longer than that is an orphan all the
same.
"""

from __future__ import annotations

import math
from typing import Final

from caslock.verify.delays import SLACK, Delays
from caslock.verify.history import Event
from caslock.verify.tenures import Judgement

RESTARTED: Final = "restarted"
"""What the stop of a server is noted as that is killed and started again, and forgets nothing."""


class LeasesBegunAnew:
    """Takes back each orphan that is explained by a restart, and reports those that outlast their new lease."""

    def __init__(self, judgement: Judgement, delays: Delays) -> None:
        self._judgement, self._delays = judgement, delays
        self._restarting = False
        self._up = -math.inf
        self._versions = dict[str, int]()  # by key
        self._before = dict[str, int]()  # what was there at the last restart
        self._excused = set[tuple[str, float]]()  # by key and time

    def read(self, event: Event) -> None:
        """Take note of restarts, and of what is seen."""
        if event.what == "freeze":
            self._restarting = event.note == RESTARTED
        elif event.what == "thaw" and self._restarting:
            self._restarting, self._up, self._before = False, event.at, dict(self._versions)
        elif event.what == "clear":
            self._versions.pop(event.key, None)
        elif event.what == "seen":
            self._versions[event.key] = event.fence
            if self._before.get(event.key) == event.fence:
                self._judge(event)
            elif self._is_new_lease(event):  # what nobody has seen before the restart may have been there
                self._excused.add((event.key, event.at))

    def end(self) -> None:
        violations = self._judgement.violations
        violations[:] = [
            each for each in violations if each.law != "orphaned record" or (each.key, each.at) not in self._excused
        ]

    def _is_new_lease(self, event: Event) -> bool:
        """Tell whether a lease that the restart has begun may last until then."""
        return event.at <= self._up + event.until + SLACK + self._delays.lag(self._up)

    def _judge(self, event: Event) -> None:
        """Tell whether a record of before the restart may still be there."""
        if self._is_new_lease(event):
            self._excused.add((event.key, event.at))
        else:
            del self._before[event.key]  # it is reported once
            text = f"{event.hold} has outlasted the lease that a restart has begun: {event.note}"
            self._judgement.violate("orphaned record", event.at, event.key, text)
