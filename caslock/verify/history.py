"""The history of a run: what happened, one line of JSON for each event, in one file for each process.

A line is a single `write` to a file opened for appending: it survives the kill -9 of its writer, and two never mingle.
Times are of `caslock.local.clock`, which all processes of one host share.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from caslock.local import clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

What = Literal[
    "try",  # an acquire is called; `until`: the seconds of its lease
    "got",  # it returned a hold; `until`: its deadline, `note`: the seconds of its `max_hold`
    "none",  # it returned None
    "failed",  # it raised; `note`: sure (not held), unknown, or refused
    "at",  # the holder looked: it believes until `until`; 0: it knows that it is lost
    "extend",  # an extension is called; `until`: the earliest deadline that it may bring
    "reported",  # `on_lost` was called
    "unreported",  # the holder waited for the report of its loss in vain
    "leave",  # a release is called
    "left",  # the release is over; `note`: ok, blind (ok, after no answer), lost, unanswered or unknown
    "alarm",  # an acquire, a holder or a release was interrupted or cancelled
    "dropped",  # the interrupt has lost the hold: nobody believes any more
    "stands",  # an acquire has failed for certain, and yet the record holds its hold id
    "break",  # `force_release` is called
    "broke",  # it returned; `until`: when it began, `note`: the holds that were broken, or unknown
    "seen",  # a record at the store; `hold`: all its holds, `fence`: its version, `until`: seconds it may last
    "clear",  # there is no record at the store
    "lag",  # a process that slept was woken late, by `until` seconds: the machine is busy
    "child",  # what a forked child saw; `note`: inert, held or hung
    "adding",  # the guarded counter is about to grow
    "added",  # it has
    "late",  # the resource refused a fence
    "forever",  # a record without a ttl was seen
    "orphan",  # a key is held in the end
    "clock",  # the wall clock of a process was set; `note`: by how much it is wrong now
    "counter",  # what the guarded counter says in the end; `fence`: the number
    "fault",  # a fault of a request; `hold`: all holds in it, `note`: which, `until`: seconds by which it is late
    "arrives",  # a request that was held, or a copy of one, was sent to the server; as for a fault
    "tally",  # requests of a process so far; `fence`: the number
    "stop",  # a process was stopped
    "go",  # it continues
    "spawn",
    "kill",
    "hung",  # a client, or a worker, has not come to its end; `note`: which
    "cut",  # this process had more events than it writes
    "down",  # the server is about to be killed: what it forgets is announced
    "up",  # it answers again
    "freeze",  # the server is stopped; `note`: its kind
    "squeeze",  # it has no memory left for a while
    "thaw",  # it continues
]


class Event(NamedTuple):
    """Something that happened."""

    at: float
    """When, in seconds."""
    what: What
    """Its kind."""
    who: str = ""
    """The client, as ``worker/thread``; or a worker."""
    key: str = ""
    """The key, if it is about one."""
    owner: str = ""
    """The owner."""
    hold: str = ""
    """The id of the hold."""
    fence: int = 0
    """The fence; 0: none."""
    until: float = 0.0
    """When the lease ends."""
    note: str = ""
    """What else there is to say."""

    def concerns(self, who: str) -> bool:
        """Whether it happened to client `who`, or to its worker."""
        return f"{who}/".startswith(f"{self.who}/")


MOST: Final = 1_000_000
"""Events that one process writes at the most."""


class History:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._left = MOST

    def note(
        self,
        what: What,
        who: str = "",
        key: str = "",
        owner: str = "",
        hold: str = "",
        *,
        fence: int = 0,
        until: float = 0.0,
        note: str = "",
        at: float = 0.0,
    ) -> None:
        """Write an event, as of now unless `at` says when."""
        event = Event(at or clock.now(), what, who, key, owner, hold, fence, until, note)
        left = self._left = self._left - 1
        if left == 0:
            event = Event(event.at, "cut", who, note=f"{who} had more than {MOST} events")
        if left >= 0:
            os.write(self._file, json.dumps(event).encode() + b"\n")

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


def read(folder: Path) -> Iterator[Event]:
    """Give all events in the files of a folder, in no order.

    A text that comes again and again is kept once: 200,000 requests are about 200,000 events, and 50 MB.
    """
    for path in sorted(folder.glob("*.history")):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # else its writer was killed on a full disk
                    yield Event(*map(_once, json.loads(line)))


def _once(field: Any) -> Any:  # noqa: ANN401 - of an event, as JSON has it
    return sys.intern(field) if type(field) is str else field
