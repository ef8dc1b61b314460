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
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

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
from tests.support.watching import AsyncWatchingMemory, WatchingMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import Server

AnyStore: TypeAlias = Store | AsyncStore

QUICK = 0.5
"""Seconds that a request to a server that fails may take."""

CONNECTING = 1.5
"""The same, for a server to which to connect takes a process and several requests."""


class NoServer:
    """A store that needs no server."""

    made: ClassVar[Callable[[], AnyStore]]

    @pytest.fixture
    def store(self) -> AnyStore:
        return type(self).made()

    @pytest.fixture
    def caslock_server(self) -> None:
        """Tell that there is none."""


class TestMemory(NoServer, LockContract, StoreContract):
    """A memory."""

    covers: ClassVar = MemoryStore
    made = MemoryStore


class TestAsyncMemory(NoServer, LockContract, StoreContract):
    """A memory of asyncio, and another client of it."""

    covers: ClassVar = AsyncMemoryStore
    made = AsyncMemoryStore
    apis = ("asyncio",)

    @pytest.fixture
    def another_store(self, store: AsyncMemoryStore) -> AsyncMemoryStore:
        return AsyncMemoryStore(store.memory)


class TestSQLite(NoServer, LockContract, StoreContract):
    """Two connections to one file."""

    covers: ClassVar = SQLiteStore
    proved = ("asyncio",)

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SQLiteStore]:
        store = SQLiteStore(tmp_path / "locks.db")
        yield store
        store.close()

    another_store = store


class OnServer:
    """A store from a URL, another that finds the server otherwise, and one that looks for it at another address."""

    covers: ClassVar[Callable[..., AnyStore]]
    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")
    kind: ClassVar[str]
    """The name of its server."""
    url: ClassVar[str]
    """That of any such server."""
    options: ClassVar[str] = ""
    """What the URL of the other store has besides."""
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
    """Give a store, and close it."""
    yield store
    if isinstance(store, AsyncStore) and is_async(store):
        on_loop(store.aclose())  # type: ignore[attr-defined] # every store here has it
    else:
        store.close()  # type: ignore[union-attr] # as above


class Redis(OnServer):
    """A client which would repeat a request ten times by itself, beside one from a URL."""

    client: ClassVar[Callable[..., object]] = redis.Redis

    def make(self, server: Server) -> AnyStore:
        return type(self).covers(type(self).client(host=server.host, port=server.port))

    def make_at(self, host: str, port: int, server: Server) -> AnyStore:
        del server
        client = type(self).client(host=host, port=port, socket_timeout=QUICK, socket_connect_timeout=QUICK)
        return type(self).covers(client)


class AsyncRedis(Redis):
    """An asyncio client with redis-py's defaults, beside a blocking one that serves asyncio from threads."""

    client = redis.asyncio.Redis
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)


class TestRedis(Redis, LockContract, StoreContract):
    """Redis."""

    covers, kind = RedisStore, "redis"
    proved = ("asyncio",)


class TestAsyncRedis(AsyncRedis, LockContract, StoreContract):
    """Redis, for asyncio."""

    covers, kind = AsyncRedisStore, "redis"


class Tair:
    """The fixture has parameters: it has to be asked for by its name."""

    @pytest.fixture
    def its_server(self, tair_server: Server) -> Server:
        return tair_server


class TestTair(Tair, Redis, LockContract, StoreContract):
    """TairString."""

    covers = TairStore
    proved = ("blocking", "asyncio")


class TestAsyncTair(Tair, AsyncRedis, LockContract, StoreContract):
    """TairString, for asyncio."""

    covers = AsyncTairStore
    proved = ("asyncio",)


class TestMemcached(OnServer, LockContract, StoreContract):
    """A client with pymemcache's defaults, whose `add` would get no reply, beside one from a URL."""

    covers, kind = MemcachedStore, "memcached"
    proved = ("asyncio",)

    def make(self, server: Server) -> MemcachedStore:
        return MemcachedStore(Client((server.host, server.port), timeout=20))  # it must have one

    def make_at(self, host: str, port: int, server: Server) -> MemcachedStore:
        del server
        return MemcachedStore(Client((host, port), timeout=QUICK, connect_timeout=QUICK))


class Database(OnServer):
    """A store from a URL, beside one from an engine with SQLAlchemy's defaults."""

    covers: ClassVar[Callable[..., AnyStore]] = SQLStore
    kind = "postgresql"
    timeout = 2.0
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


class AsyncDatabase(Database):
    """The same for asyncio, beside a blocking store that serves asyncio from threads."""

    covers = AsyncSQLStore
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)


class TestPostgreSQL(Database, StoreContract):
    """PostgreSQL."""


class TestAsyncPostgreSQL(AsyncDatabase, StoreContract):
    """PostgreSQL, for asyncio."""


@pytest.mark.long
class TestPostgreSQLLocks(Database, LockContract):
    """Locks in PostgreSQL; how asyncio reaches a blocking store is tried with all the others."""

    apis = ("blocking",)
    timeout = 20.0  # many cases at once wait for five connections


@pytest.mark.long
class TestAsyncPostgreSQLLocks(AsyncDatabase, LockContract):
    """Locks in PostgreSQL, for asyncio."""

    timeout = 20.0


class TestMySQL(Database, StoreContract):
    """MariaDB, or MySQL."""

    kind = "mysql"


class TestAsyncMySQL(AsyncDatabase, StoreContract):
    """MariaDB, or MySQL, for asyncio."""

    kind = "mysql"


class TestZooKeeper(OnServer, LockContract, StoreContract):
    """A store from a URL, beside one from a client with kazoo's defaults, which would send requests again."""

    covers, kind, url = ZooKeeperStore, "zookeeper", "zookeeper://{host}:{port}"
    proved = ("blocking", "asyncio")
    quick = CONNECTING

    def make(self, server: Server) -> ZooKeeperStore:
        return ZooKeeperStore(self.url.format(host=server.host, port=server.port))

    def make_another(self, server: Server) -> ZooKeeperStore:
        return ZooKeeperStore(KazooClient(f"{server.host}:{server.port}"))


class Etcd(OnServer):
    """A store from a URL, beside another that names it otherwise; a blocking one serves asyncio from threads."""

    kind, url, options = "etcd", "etcd://{host}:{port}", "/?timeout=20"


class TestEtcd(Etcd, LockContract, StoreContract):
    """etcd."""

    covers = EtcdStore
    proved = ("blocking", "asyncio")


class TestAsyncEtcd(Etcd, LockContract, StoreContract):
    """etcd, for asyncio."""

    covers = AsyncEtcdStore
    apis = proved = ("asyncio",)


class Hazelcast(OnServer):
    """The same for Hazelcast."""

    kind, url, options = "hazelcast", "hazelcast://{host}:{port}/locks", "?timeout=20"
    quick = CONNECTING


class TestHazelcast(Hazelcast, LockContract, StoreContract):
    """Hazelcast."""

    covers = HazelcastStore
    proved = ("blocking", "asyncio")


class TestAsyncHazelcast(Hazelcast, LockContract, StoreContract):
    """Hazelcast, for asyncio."""

    covers = AsyncHazelcastStore
    apis = proved = ("asyncio",)


class Nats(OnServer):
    """The same for NATS."""

    kind, url, options = "nats", "nats://{host}:{port}", "/caslock?timeout=20"


class TestNats(Nats, LockContract, StoreContract):
    """NATS."""

    covers = NatsStore
    proved = ("blocking", "asyncio")


class TestAsyncNats(Nats, LockContract, StoreContract):
    """NATS, for asyncio."""

    covers = AsyncNatsStore
    apis = proved = ("asyncio",)


class DynamoDB(OnServer):
    """A store from a URL, beside another from a client of boto3 with credentials of its own."""

    covers: ClassVar[Callable[..., AnyStore]] = DynamoDBStore
    kind, url = "dynamodb", "dynamodb://eu-central-1?endpoint=http://{host}:{port}"
    quick = CONNECTING

    def make_another(self, server: Server) -> DynamoDBStore:
        return DynamoDBStore(boto3_client(f"http://{server.host}:{server.port}"), timeout=20)


@cache
def boto3_client(endpoint: str) -> Any:  # noqa: ANN401 - boto3 ships no types
    """Make a client, once for all tests: it takes long."""
    return boto3.Session("another", "caslock", region_name="eu-central-1").client("dynamodb", endpoint_url=endpoint)


class TestDynamoDB(DynamoDB, StoreContract):
    """DynamoDB."""


class TestAsyncDynamoDB(DynamoDB, StoreContract):
    """DynamoDB, for asyncio."""

    covers = AsyncDynamoDBStore
    apis = ("asyncio",)


@pytest.mark.long
class TestDynamoDBLocks(DynamoDB, LockContract):
    """Locks in DynamoDB; how asyncio reaches a blocking store is tried with all the others."""

    apis = ("blocking",)


class TestWatchingMemory(NoServer, LockContract, StoreContract):
    """A store that is watched: it has `wait_while` and `list`."""

    covers: ClassVar = None
    made = WatchingMemory
    proved = ("asyncio",)


class TestAsyncWatchingMemory(NoServer, LockContract, StoreContract):
    """The same for asyncio."""

    covers: ClassVar = None
    made = AsyncWatchingMemory
    apis = ("asyncio",)


class TestFencelessMemory(NoServer, LockContract, StoreContract):
    """Versions that never repeat and do not grow; it waits and batches."""

    covers: ClassVar = None
    proved = ("asyncio",)

    @pytest.fixture
    def store(self) -> Fenceless:
        return Fenceless(MemoryStore())


class TestLastingMemory(NoServer, StoreContract):
    """A memory that ends no lease by itself."""

    covers: ClassVar = None

    @pytest.fixture
    def store(self) -> Lasting:
        return Lasting(MemoryStore())


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
    """Every store that caslock ships is bound to every suite above, with each API that it serves."""
    bound = {found for name, found in globals().items() if name.startswith("Test") and issubclass(found, suite)}
    bound = {found for found in bound if found.covers is not None}
    untried = {AsyncDynamoDBStore} if suite is LockContract else set()  # DynamoDB Local is slow; torture tries both
    assert {found.covers for found in bound} == shipped() - untried
    for found in bound:
        native = inspect.iscoroutinefunction(found.covers.get)
        apis = {"asyncio"} if native else {"blocking", "asyncio"}
        assert set(found.apis) == ({"blocking"} if found in (TestPostgreSQLLocks, TestDynamoDBLocks) else apis)


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
