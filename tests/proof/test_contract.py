"""Every store keeps the contract of a store, and the laws of locks hold on it, against its real server.

Each is tested with a client that has its library's defaults, and with one that is made from a URL.  `make test` tries
the contract on each, and the laws, which depend little on the store, on some; `make prove` tries them on the others.
"""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import boto3
import pytest
import redis
import redis.asyncio
from kazoo.client import KazooClient
from pymemcache.client.base import Client
from sqlalchemy import create_engine, make_url

from caslock import AsyncStore, Store, connect, stores
from caslock.stores.dynamodb import AsyncDynamoDBStore, DynamoDBStore
from caslock.stores.etcd import AsyncEtcdStore, EtcdStore
from caslock.stores.hazelcast import AsyncHazelcastStore, HazelcastStore
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.stores.nats import AsyncNatsStore, NatsStore
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.stores.sql import AsyncSQLStore, SQLStore
from caslock.stores.sqlite import SQLiteStore
from caslock.stores.tair import AsyncTairStore, TairStore
from caslock.stores.zookeeper import ZooKeeperStore
from caslock.testing import StoreContract, StoreServer, on_loop
from caslock.testing.drive import is_async
from tests.proof.laws.locks import LockContract
from tests.support.fenceless import Fenceless
from tests.support.lasting import Lasting
from tests.support.servers import Server
from tests.support.watching import AsyncWatchingMemory, WatchingMemory

AnyStore: TypeAlias = Store | AsyncStore

QUICK = 0.5  # seconds that a request to a server that fails may take
CONNECTING = 1.5  # the same, for a server to which to connect takes a process and several requests
BLOCKING, ASYNCIO, BOTH = ("blocking",), ("asyncio",), ("blocking", "asyncio")


def bind(place: type, covers: type | None, *suites: type, **settings: object) -> type:
    """Bind suites to a store that is found at a place; to asyncio alone, if its verbs are coroutines."""
    settings = {"covers": covers, "made": covers, **settings}
    native = inspect.iscoroutinefunction(getattr(settings["made"], "get", None))
    settings.setdefault("apis", ASYNCIO if native else BOTH)
    return type("Tested", (place, *(suites or (LockContract, StoreContract))), settings)


class NoServer:
    made: ClassVar[Callable[[], AnyStore]]

    @pytest.fixture
    def store(self) -> AnyStore:
        return type(self).made()

    @pytest.fixture
    def caslock_server(self) -> None:
        """Tell that there is none."""


class SharedMemory(NoServer):
    @pytest.fixture
    def another_store(self, store: AsyncMemoryStore) -> AsyncMemoryStore:
        return AsyncMemoryStore(store.memory)


class File(NoServer):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SQLiteStore]:
        store = SQLiteStore(tmp_path / "locks.db")
        yield store
        store.close()

    another_store = store


TestMemory = bind(NoServer, MemoryStore)
TestAsyncMemory = bind(SharedMemory, AsyncMemoryStore)
TestSQLite = bind(File, SQLiteStore, proved=ASYNCIO)
TestWatchingMemory = bind(NoServer, None, made=WatchingMemory, proved=ASYNCIO)
TestAsyncWatchingMemory = bind(NoServer, None, made=AsyncWatchingMemory)
TestFencelessMemory = bind(NoServer, None, made=lambda: Fenceless(MemoryStore()), proved=ASYNCIO)
TestLastingMemory = bind(NoServer, None, StoreContract, made=lambda: Lasting(MemoryStore()))


class OnServer:
    """A store from a URL, another that finds the server otherwise, and one that looks for it at another address."""

    covers: ClassVar[Callable[..., AnyStore]]
    kind: ClassVar[str]  # the name of its server
    url: ClassVar[str]  # that of any such server
    options: ClassVar[str] = ""  # what the URL of the other store has besides
    timeout: ClassVar[float] = 20.0
    quick: ClassVar[float] = QUICK

    def make(self, server: Server) -> AnyStore:
        return type(self).covers(server.url, timeout=self.timeout)

    def make_another(self, server: Server) -> AnyStore:
        return connect(f"{server.url}{self.options}")

    def make_at(self, host: str, port: int, server: Server) -> AnyStore:
        del server
        return type(self).covers(self.url.format(host=host, port=port), timeout=self.quick)

    @pytest.fixture
    def its_server(self, request: pytest.FixtureRequest) -> Server:
        found: Server = request.getfixturevalue(f"{self.kind}_server")
        return found

    @pytest.fixture
    def store(self, its_server: Server) -> Iterator[AnyStore]:
        yield from until_closed(self.make(its_server))

    @pytest.fixture
    def another_store(self, its_server: Server) -> Iterator[AnyStore]:
        yield from until_closed(self.make_another(its_server))

    @pytest.fixture
    def caslock_server(self, its_server: Server) -> StoreServer:
        return StoreServer(its_server.host, its_server.port, partial(self.make_at, server=its_server), self.quick)


def until_closed(store: AnyStore) -> Iterator[AnyStore]:
    yield store
    if isinstance(store, AsyncStore) and is_async(store):
        on_loop(store.aclose())  # type: ignore[attr-defined] # every store here has it
    else:
        store.close()  # type: ignore[union-attr] # as above


class Redis(OnServer):
    """A client which would repeat a request ten times by itself, beside one from a URL."""

    client: ClassVar[Callable[..., object]] = redis.Redis
    kind = "redis"

    def make(self, server: Server) -> AnyStore:
        return type(self).covers(type(self).client(host=server.host, port=server.port))

    def make_at(self, host: str, port: int, server: Server) -> AnyStore:
        del server
        client = type(self).client(host=host, port=port, socket_timeout=QUICK, socket_connect_timeout=QUICK)
        return type(self).covers(client)


class AsyncRedis(Redis):
    """An asyncio client with redis-py's defaults, beside a blocking one that serves asyncio from threads."""

    client = redis.asyncio.Redis


class Tair(Redis):
    """The fixture has parameters: it has to be asked for by its name."""

    @pytest.fixture
    def its_server(self, tair_server: Server) -> Server:
        return tair_server


class AsyncTair(Tair, AsyncRedis):
    """The same for asyncio."""


class Memcached(OnServer):
    """A client with pymemcache's defaults, whose `add` would get no reply, beside one from a URL."""

    kind = "memcached"

    def make(self, server: Server) -> MemcachedStore:
        return MemcachedStore(Client((server.host, server.port), timeout=20))  # it must have one

    def make_at(self, host: str, port: int, server: Server) -> MemcachedStore:
        del server
        return MemcachedStore(Client((host, port), timeout=QUICK, connect_timeout=QUICK))


class Database(OnServer):
    """A store from a URL, beside one, which may serve asyncio from threads, from an engine with its defaults."""

    kind = "postgresql"
    quick = CONNECTING

    def make_at(self, host: str, port: int, server: Server) -> AnyStore:
        return type(self).covers(make_url(server.url).set(host=host, port=port), timeout=CONNECTING)

    @pytest.fixture
    def another_store(self, its_server: Server) -> Iterator[SQLStore]:
        url = its_server.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
        engine = create_engine(url)
        store = SQLStore(engine)
        yield store
        store.close()
        engine.dispose()


class ZooKeeper(OnServer):
    """A store from a URL, beside one from a client with kazoo's defaults, which would send requests again."""

    kind, url = "zookeeper", "zookeeper://{host}:{port}"
    quick = CONNECTING

    def make(self, server: Server) -> ZooKeeperStore:
        return ZooKeeperStore(self.url.format(host=server.host, port=server.port))

    def make_another(self, server: Server) -> ZooKeeperStore:
        return ZooKeeperStore(KazooClient(f"{server.host}:{server.port}"))


class Etcd(OnServer):
    """A store from a URL, beside another that names it otherwise; a blocking one serves asyncio from threads."""

    kind, url, options = "etcd", "etcd://{host}:{port}", "/?timeout=20"


class Hazelcast(OnServer):
    kind, url, options = "hazelcast", "hazelcast://{host}:{port}/locks", "?timeout=20"
    quick = CONNECTING


class Nats(OnServer):
    kind, url, options = "nats", "nats://{host}:{port}", "/caslock?timeout=20"

    def make_at(self, host: str, port: int, server: Server) -> AnyStore:
        """Make one with a bucket of its own: a list is as many requests as the bucket has entries."""
        del server
        return type(self).covers(f"nats://{host}:{port}/quick", timeout=self.quick)


class DynamoDB(OnServer):
    """A store from a URL, beside another from a client of boto3 with credentials of its own."""

    kind, url = "dynamodb", "dynamodb://eu-central-1?endpoint=http://{host}:{port}"
    quick = CONNECTING

    def make_another(self, server: Server) -> DynamoDBStore:
        return DynamoDBStore(boto3_client(f"http://{server.host}:{server.port}"), timeout=20)


@cache
def boto3_client(endpoint: str) -> Any:  # noqa: ANN401 - boto3 ships no types
    return boto3.Session("another", "caslock", region_name="eu-central-1").client("dynamodb", endpoint_url=endpoint)


TestRedis = bind(Redis, RedisStore, proved=ASYNCIO)
TestAsyncRedis = bind(AsyncRedis, AsyncRedisStore)
TestTair = bind(Tair, TairStore, proved=BOTH)
TestAsyncTair = bind(AsyncTair, AsyncTairStore, proved=ASYNCIO)
TestMemcached = bind(Memcached, MemcachedStore, proved=ASYNCIO)
TestZooKeeper = bind(ZooKeeper, ZooKeeperStore, proved=BOTH)
TestEtcd = bind(Etcd, EtcdStore, proved=BOTH)
TestAsyncEtcd = bind(Etcd, AsyncEtcdStore, proved=ASYNCIO)
TestHazelcast = bind(Hazelcast, HazelcastStore, proved=BOTH)
TestAsyncHazelcast = bind(Hazelcast, AsyncHazelcastStore, proved=ASYNCIO)
TestNats = bind(Nats, NatsStore, proved=BOTH)
TestAsyncNats = bind(Nats, AsyncNatsStore, proved=ASYNCIO)
TestPostgreSQL = bind(Database, SQLStore, StoreContract)
TestAsyncPostgreSQL = bind(Database, AsyncSQLStore, StoreContract)
TestMySQL = bind(Database, SQLStore, StoreContract, kind="mysql")
TestAsyncMySQL = bind(Database, AsyncSQLStore, StoreContract, kind="mysql")
TestDynamoDB = bind(DynamoDB, DynamoDBStore, StoreContract)
TestAsyncDynamoDB = bind(DynamoDB, AsyncDynamoDBStore, StoreContract)

# Locks in databases and in DynamoDB take long.  How asyncio reaches a blocking store is tried with all the others.
TestPostgreSQLLocks = bind(Database, SQLStore, LockContract, apis=BLOCKING, proved=BLOCKING)
TestAsyncPostgreSQLLocks = bind(Database, AsyncSQLStore, LockContract, proved=ASYNCIO)
TestDynamoDBLocks = bind(DynamoDB, DynamoDBStore, LockContract, apis=BLOCKING, proved=BLOCKING)


def shipped() -> set[type]:
    """Find every class that has the three verbs, in every file of caslock.stores."""
    folder = Path(inspect.getfile(stores)).parent
    files = [path.relative_to(folder).with_suffix("") for path in folder.rglob("[!_]*.py")]
    modules = [importlib.import_module(".".join(("caslock.stores", *file.parts))) for file in files]
    verbs = ("get", "put_if_version", "invalidate")
    shipped = {
        found
        for module in modules
        for name, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__ and not name.startswith("_") and all(hasattr(found, v) for v in verbs)
    }
    return {each for each in shipped if not any(issubclass(other, each) for other in shipped - {each})}  # no bases


@pytest.mark.parametrize("suite", [StoreContract, LockContract])
def test_no_store_is_left_out(suite: type) -> None:
    """Every store that caslock ships is bound to every suite above."""
    bound = {found for name, found in globals().items() if name.startswith("Test") and issubclass(found, suite)}
    untried = {AsyncDynamoDBStore} if suite is LockContract else set()  # DynamoDB Local is slow; torture tries both
    assert {found.covers for found in bound} - {None} == shipped() - untried


NAMES = "clients key kind mine server theirs"

TAKEN = f"""
import pytest
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract

def fixture(name):
    @pytest.fixture(name=name, params=["of the user"])
    def give(request):
        return request.param
    return give

globals().update({{f"fixture_{{name}}": fixture(name) for name in "{NAMES}".split()}})

class TestMine(StoreContract):
    @pytest.fixture
    def store(self, {NAMES.replace(" ", ", ")}):
        assert {{{NAMES.replace(" ", ", ")}}} == {{"of the user"}}
        return MemoryStore()
"""


def test_no_name_of_the_contract_takes_one_of_the_users(tmp_path: Path) -> None:
    """A user's fixtures may have any name that does not begin with ``caslock_``, and parameters too."""
    (tmp_path / "test_mine.py").write_text(TAKEN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    done = subprocess.run(
        [*command, "-k", "stale", "test_mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
