"""A store whose versions never repeat and do not grow, over any blocking store: `traits.fences` is False.

Its versions are those of the store below, multiplied by an odd number modulo 2**63: a permutation that keeps no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Self, cast

from caslock.store import BatchingStore, Entry, Put, QueueingStore, Removal, Store
from caslock.stores.sqlite import SQLiteStore

FACTOR: Final = 0x5851F42D4C957F2D
MODULUS: Final = 2**63
BACK: Final = pow(FACTOR, -1, MODULUS)


def outside(entry: Entry | None) -> Entry | None:
    """Return an entry of the store below with the version that is shown."""
    return entry and Entry(entry.value, entry.version * FACTOR % MODULUS)


def inside(version: int) -> int:
    """Return the version in the store below."""
    return version * BACK % MODULUS


class Fenceless:
    """A store without fences; it can wait and batch if the store below can."""

    put_when_absent: Callable[[str, bytes, float, float], Entry | None]
    put_many: Callable[[Sequence[Put]], Sequence[Entry | None] | None]
    invalidate_many: Callable[[Sequence[Removal]], Sequence[Entry | None] | None]

    def __init__(self, below: Store) -> None:
        self.traits = below.traits._replace(fences=False)
        self._below = below
        if hasattr(below, "put_when_absent"):
            queueing = cast("QueueingStore", below)
            self.put_when_absent = lambda *arguments: outside(queueing.put_when_absent(*arguments))
        if hasattr(below, "put_many"):
            batching = cast("BatchingStore", below)
            self.put_many = lambda puts: shown(
                batching.put_many([put._replace(version=inside(put.version)) for put in puts])
            )
            self.invalidate_many = lambda removals: shown(
                batching.invalidate_many([removal._replace(version=inside(removal.version)) for removal in removals])
            )

    def get(self, key: str) -> Entry | None:
        return outside(self._below.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return outside(self._below.put_if_version(key, value, inside(version), ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        return outside(self._below.invalidate(key, inside(version)))

    def close(self) -> None:
        getattr(self._below, "close", lambda: None)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def shown(answers: Sequence[Entry | None] | None) -> Sequence[Entry | None] | None:
    """Return the answers of the store below with the versions that are shown."""
    return None if answers is None else [outside(entry) for entry in answers]


def fenceless_file() -> Fenceless:
    """Make one over a file in the current folder; for ``caslock verify --store``."""
    return Fenceless(SQLiteStore("locks.db"))
