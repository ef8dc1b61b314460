"""What a run of torture does: the store, the clients, the faults and their bounds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final, Self
from uuid import uuid4

from caslock.protocol.shares import READS, WRITES

PREFIX: Final = "caslock-verify:"
"""What every key of a run begins with: no other is ever read or written."""

SEVERAL: Final = "several"
"""Prefix of the keys used by MultiLocks."""

POOL: Final = "pool"
"""Prefix of the keys of semaphores."""

PAGE: Final = "page"
"""Prefix of the keys of read-write locks."""

PERMITS: Final = 2
"""The permits of each semaphore."""


@dataclass(frozen=True)
class Plan:
    """What a run does; it travels to the workers as JSON."""

    url: str = ""
    """The store, as `caslock.connect` takes it."""
    factory: str = ""
    """In place of a URL: ``module:callable``, which makes a store."""
    seconds: float = 20.0
    """How long the clients work."""
    seed: int = 0
    """Of all that is left to chance."""
    ttls: tuple[float, float] = (0.25, 3.0)
    """The shortest and the longest lease, in seconds."""
    keys: int = 6
    """How many keys the clients lock."""
    pools: int = 2
    """How many semaphores they use as well."""
    pages: int = 2
    """How many read-write locks they use as well."""
    workers: int = 6
    """Processes with threads; one more has an event loop."""
    threads: int = 4
    """Clients of each process with threads."""
    tasks: int = 8
    """Clients of the process with an event loop."""
    several: int = 3
    """Further clients of each process, which take up to three keys at once, and wait: their requests have no faults,
    which would end their waits."""
    several_keys: int = 6
    """How many keys those clients choose from."""
    several_ttl: float = 8.0
    """Seconds of their leases: a wait that only the end of a lease can end is to be told from a busy machine."""
    pauses: float = 2.0
    """Workers stopped per second, each for 20 ms to twice the longest lease."""
    kill_every: float = 5.0
    """Seconds between two workers that are killed; 0: never."""
    answer_timeout: float = 0.0
    """Seconds that clients behind the fault proxy wait for an answer; 0: a moment, for many answers are lost."""
    faults: float = 1.0
    """How many times as likely as usual the faults of requests are; 0: none."""
    patience: float = 40.0
    """Seconds that a client has to come to an end, beside its stay: 12 to acquire, 6 to be told of a loss, a few to
    release again and again, and as many once more on a busy machine.  A client that takes longer hangs."""
    proxy: bool = True
    """Whether requests may go through the fault proxy where the store's URL names a host and a port."""
    quiet: bool = False
    """Without forks, signals, cancellations and wrong wall clocks inside the workers."""
    prefix: str = field(default_factory=lambda: f"{PREFIX}{uuid4().hex}:")
    """What its keys begin with."""

    def names(self) -> list[str]:
        """Name the keys."""
        return [f"{self.prefix}{number}" for number in range(self.keys)]

    def shared_names(self) -> list[str]:
        """Name the keys that several may hold."""
        numbers = *((POOL, number) for number in range(self.pools)), *((PAGE, number) for number in range(self.pages))
        return [f"{self.prefix}{kind}{number}" for kind, number in numbers]

    def several_names(self) -> list[str]:
        """Name the keys of MultiLocks."""
        return [f"{self.prefix}{SEVERAL}{number}" for number in range(self.several_keys)] if self.several else []

    def all_names(self) -> list[str]:
        """Name them all."""
        return self.names() + self.shared_names() + self.several_names()

    @staticmethod
    def parts(key: str) -> list[str]:
        """Name what is judged for a key: the key itself, a semaphore's slots, or a read-write lock's sides."""
        kind = key.rpartition(":")[2]
        if kind.startswith(POOL):
            return [f"{key}#{slot}" for slot in range(PERMITS)]
        return [f"{key}#{READS}", f"{key}#{WRITES}"] if kind.startswith(PAGE) else [key]

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
    def longest_delay(self) -> float:
        """Seconds that a message is held back at the most."""
        return 2.0 * self.ttls[1]

    @property
    def grace(self) -> float:
        """Seconds that a worker may outlive its time: the longest stay is two of the longest leases."""
        return self.patience + 2.0 * self.ttls[1]
