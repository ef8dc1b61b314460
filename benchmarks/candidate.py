"""What a measure knows about a candidate: how to open it, and how to make a lock."""

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
    FLOOR = "floor"  # a minimal lock, written by hand: no renewal, no fence, no safe retry


class Handle(NamedTuple):
    """One lock object, for one thread."""

    acquire: Callable[[], object]  # blocks until the lock is held; raises otherwise
    release: Callable[[], object]


class AsyncHandle(NamedTuple):
    """One lock object, for one task."""

    acquire: Callable[[], Awaitable[object]]
    release: Callable[[], Awaitable[object]]


Make: TypeAlias = "Callable[[str], Handle]"
AsyncMake: TypeAlias = "Callable[[str], AsyncHandle]"


@dataclass(frozen=True)
class Candidate:
    """A lock library, or a lock written by hand, at one place."""

    name: str
    place: str
    kind: Kind
    open: Callable[[Places], Make]
    """Called once in each process that uses it: opens what its threads share, gives what makes a lock on a key."""
    threads_only: bool = False


@dataclass(frozen=True)
class AsyncCandidate:
    """The same for asyncio; `open` is called in the running loop."""

    name: str
    place: str
    kind: Kind
    open: Callable[[Places], AsyncMake]


LEASE = 30
"""Seconds: longer than any measurement, so that no lease ends meanwhile, and none is renewed before 10 s."""
