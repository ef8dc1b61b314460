"""caslock, used as its README shows."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import caslock
from benchmarks.faults.subject import AsyncGrip, AsyncMake, AsyncSubject, Grip, Make, Subject, Way
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, REDIS_PLACE

if TYPE_CHECKING:
    from caslock.aio import AsyncHold
    from caslock.blocking import Hold

_NOT_YOURS: Final = ("LockLost", "NotHeld")
_URLS: Final = {
    REDIS_PLACE: "redis://{host}:{port}/0",
    MEMCACHED_PLACE: "memcached://{host}:{port}",
    FILE_PLACE: "sqlite:///{folder}/caslock.db",
}


def ours(place: str, options: str = "") -> Subject:
    """Give caslock at a place, with options in its URL (none: its defaults)."""
    return Subject(
        "caslock SQLite" if place == FILE_PLACE else "caslock",
        place,
        partial(_open, _URLS[place] + options),
        _NOT_YOURS,
    )


def ours_async(options: str = "") -> AsyncSubject:
    """Give caslock's asyncio lock on Redis."""
    return AsyncSubject("caslock", REDIS_PLACE, partial(_open_async, _URLS[REDIS_PLACE] + options), _NOT_YOURS)


def _open(url: str, way: Way, lease: float) -> Make:
    store = caslock.connect(url.format(**way._asdict()))

    def make(key: str) -> Grip:
        lost, holds = threading.Event(), list["Hold"]()
        lock = caslock.Lock(store, key, ttl=lease, on_lost=lambda _: lost.set())

        def acquire(wait: float) -> Hold | None:
            hold = lock.acquire(timeout=wait)
            if hold:
                holds.append(hold)
            return hold

        def release() -> None:
            holds[-1].release()

        return Grip(
            acquire=acquire,
            release=release,
            body=lock,
            mine=lambda: not holds[-1].lost,
            told=lost.is_set,
            fence=lambda: holds[-1].fence,
        )

    return make


def _open_async(url: str, way: Way, lease: float) -> AsyncMake:
    store = caslock.connect_async(url.format(**way._asdict()))

    def make(key: str) -> AsyncGrip:
        lost, holds = threading.Event(), list["AsyncHold"]()
        lock = caslock.AsyncLock(store, key, ttl=lease, on_lost=lambda _: lost.set())

        async def acquire(wait: float) -> AsyncHold | None:
            hold = await lock.acquire(timeout=wait)
            if hold:
                holds.append(hold)
            return hold

        async def release() -> None:
            await holds[-1].release()

        async def mine() -> bool:
            return not holds[-1].lost

        return AsyncGrip(acquire, release, mine, lost.is_set, lambda: holds[-1].fence)

    return make


OURS: Final = (ours(REDIS_PLACE), ours_async(), ours(MEMCACHED_PLACE), ours(FILE_PLACE))
