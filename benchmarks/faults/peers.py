"""Other lock libraries, each used as its README shows, over the client that it shows and without changes.

A client of redis-py 8.1 retries a command by itself if made by ``Redis(host, port)``, and does not if made by
``Redis.from_url(url)``.  That decides some of the scenes, so its Lock is here with both.

Few of the libraries ship types, so they are imported with `import_module`; the functions here are typed.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Final

from benchmarks.faults.subject import AsyncGrip, AsyncMake, AsyncSubject, Grip, Make, Subject, Way
from benchmarks.places import MEMCACHED_PLACE, REDIS_PLACE


def _redis_py(way: Way, lease: float) -> Make:
    return _lock(import_module("redis").Redis(way.host, way.port), lease)


def _redis_py_by_url(way: Way, lease: float) -> Make:
    return _lock(import_module("redis").Redis.from_url(f"redis://{way.host}:{way.port}/0"), lease)


def _lock(client: Any, lease: float) -> Make:  # noqa: ANN401 - untyped, see above
    def make(key: str) -> Grip:
        lock = client.lock(key, timeout=lease)
        return Grip(
            lambda wait: lock.acquire(blocking=wait > 0, blocking_timeout=wait or None), lock.release, lock, lock.owned
        )

    return make


def _redis_asyncio(way: Way, lease: float) -> AsyncMake:
    client = import_module("redis.asyncio").Redis(host=way.host, port=way.port)

    def make(key: str) -> AsyncGrip:
        lock = client.lock(key, timeout=lease)
        return AsyncGrip(
            lambda wait: lock.acquire(blocking=wait > 0, blocking_timeout=wait or None), lock.release, lock.owned
        )

    return make


def _python_redis_lock(way: Way, lease: float) -> Make:
    client, library = import_module("redis").StrictRedis(way.host, way.port), import_module("redis_lock")

    def make(key: str) -> Grip:
        lock = library.Lock(client, key, expire=math.ceil(lease))

        def acquire(wait: float) -> object:
            return lock.acquire(timeout=math.ceil(wait)) if wait else lock.acquire(blocking=False)

        return Grip(acquire, lock.release, lock, lambda: bool(lock.get_owner_id() == lock.id))

    return make


def _pottery(way: Way, lease: float) -> Make:
    client = import_module("redis").Redis.from_url(f"redis://{way.host}:{way.port}/0")
    library = import_module("pottery")

    def make(key: str) -> Grip:
        lock = library.Redlock(key=key, masters={client}, auto_release_time=lease)

        def acquire(wait: float) -> object:
            return lock.acquire(timeout=wait) if wait else lock.acquire(blocking=False)

        return Grip(acquire, lock.release, lock, lambda: bool(lock.locked()))

    return make


def _pottery_asyncio(way: Way, lease: float) -> AsyncMake:
    client = import_module("redis.asyncio").Redis.from_url(f"redis://{way.host}:{way.port}/0")
    library = import_module("pottery")

    def make(key: str) -> AsyncGrip:
        lock = library.AIORedlock(key=key, masters={client}, auto_release_time=lease)

        async def acquire(wait: float) -> object:
            return await (lock.acquire(timeout=wait) if wait else lock.acquire(blocking=False))

        async def mine() -> bool:
            return bool(await lock.locked())

        return AsyncGrip(acquire, lock.release, mine)

    return make


def _sherlock_redis(way: Way, lease: float) -> Make:
    client = import_module("redis").StrictRedis(host=way.host, port=way.port)
    return _sherlock("RedisLock", client, lease)


def _sherlock_memcached(way: Way, lease: float) -> Make:
    client = import_module("pylibmc").Client([f"{way.host}:{way.port}"], binary=True)
    return _sherlock("MCLock", client, lease)


def _sherlock(name: str, client: Any, lease: float) -> Make:  # noqa: ANN401 - untyped, see above
    library = import_module("sherlock")

    def make(key: str) -> Grip:
        lock = getattr(library, name)(key, client=client, expire=math.ceil(lease), timeout=1)

        def acquire(wait: float) -> object:
            if not wait:
                return lock.acquire(blocking=False)
            lock.timeout = wait
            return lock.acquire()

        return Grip(acquire, lock.release, lock, lock.renew)  # `locked` tells of anybody, `renew` of oneself

    return make


PEERS: Final = (
    Subject("redis-py Lock", REDIS_PLACE, _redis_py, ("LockError", "LockNotOwnedError")),
    Subject("redis-py Lock, from_url", REDIS_PLACE, _redis_py_by_url, ("LockError", "LockNotOwnedError")),
    AsyncSubject("redis-py Lock", REDIS_PLACE, _redis_asyncio, ("LockError", "LockNotOwnedError")),
    Subject("python-redis-lock", REDIS_PLACE, _python_redis_lock, ("NotAcquired",)),
    Subject("pottery Redlock", REDIS_PLACE, _pottery, ("ReleaseUnlockedLock",)),
    AsyncSubject("pottery AIORedlock", REDIS_PLACE, _pottery_asyncio, ("ReleaseUnlockedLock",)),
    Subject("sherlock RedisLock", REDIS_PLACE, _sherlock_redis, ("LockException",)),
    Subject(
        "sherlock MCLock",
        MEMCACHED_PLACE,
        _sherlock_memcached,
        ("LockException",),
        unshared="pylibmc's manual: a client is not to be used by several threads",
    ),
)
