"""Other lock libraries, each used as its README shows, over one current client and without changes.

Few of them ship types, so they are imported with `import_module`; the functions here are typed.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from benchmarks.candidate import LEASE, AsyncCandidate, AsyncHandle, AsyncMake, Candidate, Handle, Kind, Make
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, REDIS_PLACE, Places

if TYPE_CHECKING:
    from collections.abc import Callable

REDIS_PY: Final = "redis-py Lock"
PYTHON_REDIS_LOCK: Final = "python-redis-lock"
FILELOCK: Final = "filelock"
REDIS_ASYNCIO: Final = "redis.asyncio Lock"

PATIENCE: Final = 60
"""Seconds, for libraries that cannot wait without limit."""


def _client(places: Places) -> Any:  # noqa: ANN401 - untyped, see above
    host, port = places.address(REDIS_PLACE)
    return import_module("redis").Redis(host, port)


def _redis_py(places: Places) -> Make:
    client = _client(places)

    def make(key: str) -> Handle:
        lock = client.lock(key, timeout=LEASE)
        return Handle(lock.acquire, lock.release)

    return make


def _python_redis_lock(places: Places) -> Make:
    client, library = _client(places), import_module("redis_lock")

    def make(key: str) -> Handle:
        lock = library.Lock(client, key, expire=LEASE)
        return Handle(lock.acquire, lock.release)

    return make


def _redlock_py(places: Places) -> Make:
    host, port = places.address(REDIS_PLACE)
    manager = import_module("redlock").Redlock([{"host": host, "port": port, "db": 0}])

    def make(key: str) -> Handle:
        held: list[object] = []

        def acquire() -> None:
            while not (lock := manager.lock(key, LEASE * 1000)):  # it gives up after three tries
                pass
            held.append(lock)

        return Handle(acquire, lambda: manager.unlock(held.pop()))

    return make


def _pottery(places: Places) -> Make:
    client, library = _client(places), import_module("pottery")

    def make(key: str) -> Handle:
        lock = library.Redlock(key=key, masters={client}, auto_release_time=LEASE)
        return Handle(lock.acquire, lock.release)

    return make


def _sherlock_redis(places: Places) -> Make:
    client, library = _client(places), import_module("sherlock")

    def make(key: str) -> Handle:
        lock = library.RedisLock(key, client=client, expire=LEASE, timeout=PATIENCE)
        return Handle(lock.acquire, lock.release)

    return make


def _sherlock_memcached(places: Places) -> Make:
    library, pylibmc = import_module("sherlock"), import_module("pylibmc")
    host, port = places.address(MEMCACHED_PLACE)

    def make(key: str) -> Handle:
        client = pylibmc.Client([f"{host}:{port}"], binary=True)  # it is not for several threads
        lock = library.MCLock(key, client=client, expire=LEASE, timeout=PATIENCE)
        return Handle(lock.acquire, lock.release)

    return make


def _filelock(places: Places) -> Make:
    library = import_module("filelock")

    def make(key: str) -> Handle:
        lock = library.FileLock(places.folder / f"{key}.filelock")
        return Handle(lock.acquire, lock.release)

    return make


def _portalocker(places: Places) -> Make:
    library = import_module("portalocker")

    def make(key: str) -> Handle:
        lock = library.Lock(places.folder / f"{key}.portalocker", timeout=PATIENCE)
        return Handle(lock.acquire, lock.release)

    return make


def _diskcache(name: str, places: Places) -> Make:
    library = import_module("diskcache")
    cache = library.Cache(places.folder / "diskcache")

    def make(key: str) -> Handle:
        lock = getattr(library, name)(cache, key, expire=LEASE)
        return Handle(lock.acquire, lock.release)

    return make


def _redis_asyncio(places: Places) -> AsyncMake:
    library = import_module("redis.asyncio")
    host, port = places.address(REDIS_PLACE)
    # The default pool refuses a thousand tasks at once; with this one they wait for a connection.
    pool = library.BlockingConnectionPool(max_connections=100, timeout=None, host=host, port=port)
    client = library.Redis(connection_pool=pool)

    def make(key: str) -> AsyncHandle:
        lock = client.lock(key, timeout=LEASE)
        return AsyncHandle(lock.acquire, lock.release)

    return make


def _pottery_asyncio(places: Places) -> AsyncMake:
    library, pottery = import_module("redis.asyncio"), import_module("pottery")
    host, port = places.address(REDIS_PLACE)
    pool = library.BlockingConnectionPool(max_connections=100, timeout=None, host=host, port=port)
    client = library.Redis(connection_pool=pool)

    def make(key: str) -> AsyncHandle:
        lock = pottery.AIORedlock(key=key, masters={client}, auto_release_time=LEASE)
        return AsyncHandle(lock.acquire, lock.release)

    return make


def _peer(name: str, place: str, opens: Callable[[Places], Make]) -> Candidate:
    return Candidate(name, place, Kind.PEER, opens)


PEERS: Final = (
    _peer(REDIS_PY, REDIS_PLACE, _redis_py),
    _peer(PYTHON_REDIS_LOCK, REDIS_PLACE, _python_redis_lock),
    _peer("redlock-py", REDIS_PLACE, _redlock_py),
    _peer("pottery Redlock", REDIS_PLACE, _pottery),
    _peer("sherlock", REDIS_PLACE, _sherlock_redis),
    _peer("sherlock", MEMCACHED_PLACE, _sherlock_memcached),
    _peer(FILELOCK, FILE_PLACE, _filelock),
    _peer("diskcache Lock", FILE_PLACE, partial(_diskcache, "Lock")),
    _peer("diskcache RLock", FILE_PLACE, partial(_diskcache, "RLock")),
    _peer("portalocker", FILE_PLACE, _portalocker),
)
PEERS_ASYNC: Final = (
    AsyncCandidate(REDIS_ASYNCIO, REDIS_PLACE, Kind.PEER, _redis_asyncio),
    AsyncCandidate("pottery AIORedlock", REDIS_PLACE, Kind.PEER, _pottery_asyncio),
)
MODULES: Final = ("redis", "redis_lock", "redlock", "pottery", "sherlock", "filelock", "diskcache", "portalocker")
"""The modules that are imported to use them; the first is redis-py itself."""
