"""The law of this file: a measure knows of a candidate how to open it, how to make a lock, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.places import Places


class Kind(StrEnum):
    """What a candidate is."""

    OURS = "caslock"
    PEER = "peer"
    FLOOR = "floor"  # written by hand, as little as there can be: no renewal, no fence, no safe retry


class Handle(NamedTuple):
    """One lock object, for one thread."""

    acquire: Callable[[], object]  # blocks until the lock is had; raises otherwise
    release: Callable[[], object]


class AsyncHandle(NamedTuple):
    """One lock object, for one task."""

    acquire: Callable[[], Awaitable[object]]
    release: Callable[[], Awaitable[object]]


Make: TypeAlias = "Callable[[str], Handle]"
AsyncMake: TypeAlias = "Callable[[str], AsyncHandle]"


@dataclass(frozen=True)
class Candidate:
    """A lock library, or a floor, at one place."""

    name: str
    place: str
    kind: Kind
    open: Callable[[Places], Make]
    """Called once in each process that uses it: opens what its threads share, and gives what makes a lock on a key."""
    threads_only: bool = False


@dataclass(frozen=True)
class AsyncCandidate:
    """The same for asyncio; `open` is called in the running loop."""

    name: str
    place: str
    kind: Kind
    open: Callable[[Places], AsyncMake]


LEASE = 30
"""Seconds: no cell lasts as long, so no lease ends in one, and none is renewed before 10 s."""
