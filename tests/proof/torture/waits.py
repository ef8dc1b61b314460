"""Finds clients that wait although nobody holds the keys that they wait for: a law of MultiLocks.

The monitor looks twice a second at what is at the store.  A client that waits is stuck if each of its keys is free, or
recorded in its own name, or in that of another client that waits in the same way: none of them is inside, so they
could go on at once.  That may be so for a moment, but not for longer than a waiter sleeps and a busy machine needs.

Only the keys of clients whose requests have no faults are judged.  What a client that was killed leaves behind, and
what the server does while it is stopped, excuses everybody who waits for it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from caslock.protocol.limits import LONGEST_WAIT
from caslock.verify.delays import SLACK, Delays
from caslock.verify.history import Event
from caslock.verify.plan import SEVERAL
from caslock.verify.tenures import Judgement

MISSED: Final = 2.0
"""Seconds between two looks after which nobody knows what was there in the meantime."""


@dataclass(eq=False)
class Waiter:
    who: str
    bound: float = 0.0
    """Seconds within which it notices for certain that a key is free."""
    owners: dict[str, str] = field(default_factory=dict)
    """In whose name it waits, by key."""
    since: float = math.inf
    """When it was first seen to be stuck as it is now."""
    state: object = None
    """Who is stuck with it, and what has happened to their keys so far."""


class Waits:
    """Who waits, and what is at the store, as the events go by."""

    def __init__(self, judgement: Judgement, delays: Delays) -> None:
        self._judgement, self._delays = judgement, delays
        self._waiters = dict[str, Waiter]()  # by client
        self._waiting = dict[tuple[str, str], Waiter]()  # by key and owner
        self._records = dict[str, tuple[float, str]]()  # by key: when it was seen, and the owner, "" for nobody
        self._turns = Counter[str]()  # how often somebody has got a key, or may have
        self._server_events = 0

    def read(self, event: Event) -> None:
        if event.what in ("freeze", "thaw", "down", "up", "squeeze"):
            self._server_events += 1
        elif event.what in ("kill", "alarm"):
            for who in [who for who in self._waiters if event.concerns(who)]:
                self._ends(who)
        elif event.key.rpartition(":")[2].startswith(SEVERAL):
            self._follow(event)

    def end(self) -> None:
        """See `Law.end`."""

    def _follow(self, event: Event) -> None:
        key = event.key
        if event.what == "try":
            waiter = self._waiters.setdefault(event.who, Waiter(event.who))
            waiter.owners[key] = event.owner
            waiter.bound = max(waiter.bound, min(LONGEST_WAIT, event.until / 3) + SLACK)
            self._waiting[key, event.owner] = waiter
        elif event.what in ("got", "none", "failed"):
            self._turns[key] += event.what == "got"
            self._ends(event.who)
        elif event.what in ("seen", "clear"):
            if event.at > self._records.get(key, (event.at, ""))[0] + MISSED:
                self._turns[key] += 1  # somebody may have had it
            self._records[key] = event.at, event.owner if event.hold else ""
            for waiter in [waiter for waiter in self._waiters.values() if key in waiter.owners]:
                self._look(waiter, event)

    def _ends(self, who: str) -> None:
        waiter = self._waiters.pop(who, Waiter(who))
        for name in waiter.owners.items():
            self._waiting.pop(name, None)

    def _look(self, waiter: Waiter, event: Event) -> None:
        """See whether a client is stuck, and for how long."""
        stuck = self._stuck_with(waiter, event.at)
        keys = sorted({key for other in stuck for key in other.owners})
        records = [(key, self._records[key][1], self._turns[key]) for key in keys]
        state = frozenset(stuck), records, self._server_events
        if not stuck or waiter.state != state:
            waiter.state, waiter.since = state, event.at if stuck else math.inf
            return
        slept = self._delays.stopped((other.who.partition("/")[0] for other in stuck), waiter.since)
        bound = max(other.bound for other in stuck) + slept + self._delays.lag(waiter.since)
        if event.at > waiter.since + bound:
            self._judgement.violate("stuck wait", event.at, event.key, _told(waiter, stuck, event.at))
            waiter.since = math.inf  # once is enough

    def _stuck_with(self, waiter: Waiter, now: float) -> list[Waiter]:
        """Give the clients that keep a client's keys from each other, itself first; nobody, if a key is held."""
        stuck = [waiter]
        for other in stuck:
            for key, own in other.owners.items():
                seen, owner = self._records.get(key, (-math.inf, ""))
                if seen < now - MISSED:
                    return []
                holder = self._waiting.get((key, owner))
                if owner not in ("", own) and holder is None:
                    return []
                if holder is not None and holder not in stuck:
                    stuck.append(holder)
        return stuck


def _told(waiter: Waiter, stuck: list[Waiter], now: float) -> str:
    names = ", ".join(sorted(other.who for other in stuck[1:]))
    why = f"only clients that wait as well held any of them ({names})" if names else "nobody held any of them"
    keys = ", ".join(key.rpartition(":")[2] for key in sorted(waiter.owners))
    return f"{waiter.who} has waited for {keys} for {now - waiter.since:.3g} s, though {why}"
