"""The stores that a test runs on: a test of every store asks for a `location`, and runs once on each.

To leave a store out of a test, remove its name from the list of kinds of that test.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar, cast

import pytest

from caslock import AsyncStore, Entry, Hold, Lock, Record, Semaphore, Store, StoreUnavailable, connect, connect_async
from caslock.local import clock, thread_renewer
from caslock.local.shared import shared_of
from caslock.local.workers import Workers
from caslock.protocol import record
from caslock.protocol.attempt import Attempt
from caslock.stores.memory import AsyncMemoryStore, MemoryStore

T = TypeVar("T")

KINDS: Final = ("memory", "sqlite", "redis", "memcached")
"""The stores on which a test with the fixture `location` runs."""

EVERY: Final = (*KINDS, "postgresql", "mysql", "zookeeper", "etcd", "nats", "hazelcast", "dynamodb")
"""The stores of a test that needs no more than a URL: see `url_of`."""


class Place:
    """Where the locks of one test live."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self._memory = MemoryStore()
        self._opened: list[Store] = []

    def store(self) -> Store:
        """Make a further store object for this location (of a memory there is only one); it is closed with the test."""
        store = self._memory if self.kind == "memory" else connect(self.url)
        self._opened.append(store)
        return store

    @contextlib.asynccontextmanager
    async def async_store(self) -> AsyncIterator[AsyncStore | Store]:
        """Open the native asyncio store where there is one, else a plain one, which serves from worker threads."""
        if self.kind == "memory":
            yield AsyncMemoryStore(self._memory)
        elif self.kind == "redis":
            async with connect_async(self.url) as native:
                yield native
        else:
            yield self.store()

    def close(self) -> None:
        for store in self._opened:
            close_when_clean(store)


@contextlib.contextmanager
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return the location of that kind for one test."""
    location = Place(kind, url_of(kind, request, request.getfixturevalue("tmp_path")))
    try:
        yield location
    finally:
        location.close()


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Give the URL of a store for one test; skips a test whose server is not installed."""
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{folder / 'locks.db'}"}
    return urls.get(kind) or patiently(request.getfixturevalue(f"{kind}_server").url)


def patiently(url: str) -> str:
    """Give requests of another process the 20 s that ours have in these tests, unless its URL names a timeout."""
    option = f"{'&' if '?' in url else '?'}{'socket_' * url.startswith(('redis', 'tair'))}timeout=20"
    return url if "timeout=" in url else url + option


def fresh(name: str = "key") -> str:
    """Make a key that no other test uses."""
    return f"{name}:{uuid.uuid4().hex}"


def three_keys() -> list[str]:
    """Make three keys, in the order in which they are taken."""
    name = fresh()
    return [f"{name}:{letter}" for letter in "abc"]


def observed(store: Store, key: str) -> Record | None:
    """Read the record under the key; None when nobody holds it."""
    entry = store.get(key)
    found = None if entry is None else record.decode(entry.value)
    return None if found is None or found.free else found


def present(found: T | None) -> T:
    """Return what is there for certain."""
    assert found is not None
    return found


def held(lock: Lock | Semaphore, timeout: float | None = 0) -> Hold:
    """Acquire a lock that must be free, or become so."""
    return present(lock.acquire(timeout=timeout))


def make_due(*attempts: Attempt) -> None:
    """Let their leases be renewed now; those of one store are renewed together."""
    with thread_renewer._guard:
        for attempt in attempts:
            attempt.lease.due = clock.now()
            attempt.runtime.watch(attempt)


def patient() -> MemoryStore:
    """Return a store whose request timeout no stop of the machine outlasts: a QuorumLock waits so long for threads."""
    store = MemoryStore()
    store.traits = store.traits._replace(request_timeout=60.0)
    return store


def until(happened: Callable[[], object], seconds: float = 200.0) -> bool:
    """Poll, less and less often, until something has happened or the time is up; tell which."""
    began = time.monotonic()
    while not happened():
        if (waited := time.monotonic() - began) > seconds:
            return False
        time.sleep(min(0.002 + waited / 50, 0.1))
    return True


def close_when_clean(store: object) -> None:
    """Close a blocking store once nothing is left to clean up in the background: that would open a connection again."""
    workers = cast("Workers | None", shared_of(store)._parts.get("clean-ups"))
    assert workers is None or until(lambda: not workers._jobs and workers._idle == len(workers._threads))
    getattr(store, "close", lambda: None)()


class Watched:
    """A store that notes every request before it passes it on, and loses those that `lose` says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.traits = store.traits
        self.requests: list[tuple[str, str]] = []
        self.lose: Callable[[str, str], bool] = lambda _verb, _key: False

    def get(self, key: str) -> Entry | None:
        self._pass("get", key)
        return self._store.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        self._pass("put", key)
        return self._store.put_if_version(key, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        self._pass("invalidate", key)
        return self._store.invalidate(key, version)

    def _pass(self, verb: str, key: str) -> None:
        self.requests.append((verb, key))
        if self.lose(verb, key):
            message = "the network is down"
            raise StoreUnavailable(message, sent=False)
