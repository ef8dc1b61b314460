"""caslock, used as its README shows."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Final

import caslock
from benchmarks.candidate import LEASE, AsyncCandidate, AsyncHandle, AsyncMake, Candidate, Handle, Kind, Make
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, MEMORY_PLACE, REDIS_PLACE, Places

if TYPE_CHECKING:
    from collections.abc import Callable

NAME: Final = "caslock"
SHARED: Final = "caslock, one Lock object"


def _open(place: str, places: Places) -> Make:
    store = caslock.connect(places.url(place))

    def make(key: str) -> Handle:
        lock = caslock.Lock(store, key, ttl=LEASE)
        return Handle(lock.acquire, lock.release)

    return make


def _open_shared(place: str, places: Places) -> Make:
    return cache(_open(place, places))


def _open_async(places: Places) -> AsyncMake:
    store = caslock.connect_async(places.url(REDIS_PLACE))

    def make(key: str) -> AsyncHandle:
        lock = caslock.AsyncLock(store, key, ttl=LEASE)
        return AsyncHandle(lock.acquire, lock.release)

    return make


def _at(place: str, *, threads_only: bool = False) -> Candidate:
    return Candidate(NAME, place, Kind.OURS, partial(_open, place), threads_only)


def _shared_at(place: str) -> Candidate:
    opens: Callable[[Places], Make] = partial(_open_shared, place)
    return Candidate(SHARED, place, Kind.OURS, opens, threads_only=True)


OURS: Final = (
    _at(REDIS_PLACE),
    _shared_at(REDIS_PLACE),
    _at(MEMCACHED_PLACE),
    _at(FILE_PLACE),
    _at(MEMORY_PLACE, threads_only=True),
)
OURS_ASYNC: Final = (AsyncCandidate(NAME, REDIS_PLACE, Kind.OURS, _open_async),)
