"""The law of this file: a run is bounded in time and in number, and all that can come from its seed does."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol, Self
from uuid import uuid4

PREFIX: Final = "caslock-verify:"
"""What every key of a run begins with: no other is ever read or written."""


class OwnServer(Protocol):
    """A server that the run may stop: it is ours."""

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""

    def resume(self) -> None:
        """Let it run again."""

    def restart(self) -> None:
        """Kill it, and start it again at the same place, without what it knew."""


@dataclass(frozen=True)
class Plan:
    """What a run does; it travels to the workers as JSON."""

    url: str = ""
    """The store, as `caslock.connect` takes it."""
    factory: str = ""
    """In place of a URL: ``module:callable``, which makes a store."""
    seconds: float = 20.0
    seed: int = 0
    ttls: tuple[float, float] = (0.25, 3.0)
    """The shortest and the longest lease, in seconds."""
    keys: int = 6
    workers: int = 6
    """Processes with threads; one more has an event loop."""
    threads: int = 4
    tasks: int = 8
    pauses: float = 2.0
    """Workers stopped per second, each for 20 ms to twice the longest lease."""
    kill_every: float = 5.0
    server_pause_every: float = 10.0
    """Seconds between two phases in which our own server is stopped; 0: never."""
    restart_every: float = 30.0
    """Seconds between kill -9 of our own server; 0: never.  What it forgets is an announced loss."""
    squeeze_every: float = 20.0
    """Seconds between two phases in which our own server has no memory left; 0: never."""
    faults: float = 1.0
    """How many times as likely as usual the faults of requests are; 0: none."""
    patience: float = 40.0
    """Seconds that a client has to come to an end, beside its stay: 5 to acquire, 6 to be told of a loss, a few to
    release again and again, and as many once more on a busy machine.  Who takes longer hangs."""
    quiet: bool = False
    """Without forks, alarms and cancellations inside the workers."""
    scratch: str = field(default_factory=lambda: f"{PREFIX}{uuid4().hex}:")

    def names(self) -> list[str]:
        """Name the keys."""
        return [f"{self.scratch}{number}" for number in range(self.keys)]

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read it."""
        fields = json.loads(text)
        shortest, longest = fields.pop("ttls")
        return cls(ttls=(shortest, longest), **fields)

    @property
    def longest_hold_up(self) -> float:
        """Seconds that a message is held at the most."""
        return 2.0 * self.ttls[1]

    @property
    def grace(self) -> float:
        """Seconds that a worker may outlive its time: the longest stay is two of the longest leases."""
        return self.patience + 2.0 * self.ttls[1]
