"""Every store keeps the contract of a store, and carries every lock, against its real server.

Each meets it with a client made with nothing but its library's defaults, beside one that is made from a URL.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
import redis
import redis.asyncio
from pymemcache.client.base import Client

from caslock import stores
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.stores.sqlite import SQLiteStore
from caslock.testing import LockContract, StoreContract, on_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


class TestMemory(LockContract, StoreContract):
    """A memory."""

    covers: ClassVar = MemoryStore

    @pytest.fixture
    def store(self) -> MemoryStore:
        """Make a memory."""
        return MemoryStore()


class TestAsyncMemory(LockContract, StoreContract):
    """A memory of asyncio, and another client of it."""

    covers: ClassVar = AsyncMemoryStore
    apis = ("asyncio",)

    @pytest.fixture
    def store(self) -> AsyncMemoryStore:
        """Make a memory."""
        return AsyncMemoryStore()

    @pytest.fixture
    def another_store(self, store: AsyncMemoryStore) -> AsyncMemoryStore:
        """Make another client of that memory."""
        return AsyncMemoryStore(store.memory)


class TestSQLite(LockContract, StoreContract):
    """Two connections to one file."""

    covers: ClassVar = SQLiteStore

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SQLiteStore]:
        """Open the file."""
        store = SQLiteStore(tmp_path / "locks.db")
        yield store
        store.close()

    another_store = store


class TestRedis(LockContract, StoreContract):
    """A client which would repeat a request ten times by itself, beside one from a URL."""

    covers: ClassVar = RedisStore

    @pytest.fixture
    def store(self, redis_server: Server) -> Iterator[RedisStore]:
        """Take a client with redis-py's defaults."""
        store = RedisStore(redis.Redis(redis_server.host, redis_server.port))
        yield store
        store.close()

    @pytest.fixture
    def another_store(self, redis_server: Server) -> Iterator[RedisStore]:
        """Take a URL."""
        store = RedisStore.from_url(redis_server.url)
        yield store
        store.close()


class TestAsyncRedis(LockContract, StoreContract):
    """An asyncio client with redis-py's defaults, beside a blocking one that serves asyncio from threads."""

    covers: ClassVar = AsyncRedisStore
    apis = ("asyncio",)

    @pytest.fixture
    def store(self, redis_server: Server) -> Iterator[AsyncRedisStore]:
        """Take a client with redis-py's defaults."""
        store = AsyncRedisStore(redis.asyncio.Redis(host=redis_server.host, port=redis_server.port))
        yield store
        on_loop(store.aclose())

    another_store = TestRedis.another_store


class TestMemcached(LockContract, StoreContract):
    """A client whose `add` would get no reply by default, beside one from a URL."""

    covers: ClassVar = MemcachedStore

    @pytest.fixture
    def store(self, memcached_server: Server) -> Iterator[MemcachedStore]:
        """Take a client with pymemcache's defaults, but for the timeout that it must have."""
        store = MemcachedStore(Client((memcached_server.host, memcached_server.port), timeout=2))
        yield store
        store.close()

    @pytest.fixture
    def another_store(self, memcached_server: Server) -> Iterator[MemcachedStore]:
        """Take a URL."""
        store = MemcachedStore.from_url(memcached_server.url)
        yield store
        store.close()


def shipped() -> set[type]:
    """Find every class that has the three verbs, in every file of caslock.stores."""
    folder = Path(inspect.getfile(stores)).parent
    modules = [importlib.import_module(f"caslock.stores.{path.stem}") for path in folder.glob("[!_]*.py")]
    verbs = ("get", "put_if_version", "invalidate")
    return {
        found
        for module in modules
        for name, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__ and not name.startswith("_") and all(hasattr(found, v) for v in verbs)
    }


@pytest.mark.parametrize("suite", [StoreContract, LockContract])
def test_no_store_is_left_out(suite: type) -> None:
    """Every store that caslock ships is bound to every suite above, with each API that it serves."""
    bound = {found for name, found in globals().items() if name.startswith("Test") and issubclass(found, suite)}
    assert {found.covers for found in bound} == shipped()
    for found in bound:
        native = inspect.iscoroutinefunction(found.covers.get)
        assert set(found.apis) == ({"asyncio"} if native else {"blocking", "asyncio"})


def test_every_test_says_what_it_proves() -> None:
    """The suites are made of sentences: each test has one."""
    for suite in (StoreContract, LockContract):
        tests = {name: test for name, test in inspect.getmembers(suite) if name.startswith("test_")}
        assert len(tests) > 20
        for name, test in tests.items():
            assert re.fullmatch(r"[A-Z0-9].*[.](\n.*)?", inspect.getdoc(test) or "", re.DOTALL), name
