"""Every store keeps the contract of a store, and the laws of locks hold on it, against its real server.

Each is tested with a client that has its library's defaults, and with one that is made from a URL.  `make test` tries
the contract on each, and the laws, which depend little on the store, on some; `make prove` tries them on the others.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
import pytest
import redis
import redis.asyncio
from kazoo.client import KazooClient
from pymemcache.client.base import Client
from sqlalchemy import create_engine, make_url

from caslock import stores
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
from tests.proof.laws.locks import LockContract
from tests.support.fenceless import Fenceless
from tests.support.lasting import Lasting
from tests.support.watching import AsyncWatchingMemory, WatchingMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server


QUICK = 0.5
"""Seconds that a request to a server that fails may take."""

CONNECTING = 1.5
"""The same, for a server to which to connect takes a process and several requests."""


class NoServer:
    """A store that needs no server."""

    @pytest.fixture
    def caslock_server(self) -> None:
        """Tell that there is none."""


class TestMemory(NoServer, LockContract, StoreContract):
    """A memory."""

    covers: ClassVar = MemoryStore

    @pytest.fixture
    def store(self) -> MemoryStore:
        """Make a memory."""
        return MemoryStore()


class TestAsyncMemory(NoServer, LockContract, StoreContract):
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


class TestSQLite(NoServer, LockContract, StoreContract):
    """Two connections to one file."""

    covers: ClassVar = SQLiteStore
    proved = ("asyncio",)

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
    proved = ("asyncio",)

    @pytest.fixture
    def store(self, redis_server: Server) -> Iterator[RedisStore]:
        """Take a client with redis-py's defaults."""
        store = RedisStore(redis.Redis(redis_server.host, redis_server.port))
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, redis_server: Server) -> StoreServer:
        """Return the way to a server that fails, with a client which would repeat a request ten times by itself."""

        def make(host: str, port: int) -> RedisStore:
            return RedisStore(redis.Redis(host, port, socket_timeout=QUICK, socket_connect_timeout=QUICK))

        return StoreServer(redis_server.host, redis_server.port, make, QUICK)

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

    @pytest.fixture
    def caslock_server(self, redis_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncRedisStore:
            client = redis.asyncio.Redis(host=host, port=port, socket_timeout=QUICK, socket_connect_timeout=QUICK)
            return AsyncRedisStore(client)

        return StoreServer(redis_server.host, redis_server.port, make, QUICK)

    another_store = TestRedis.another_store


class TestTair(LockContract, StoreContract):
    """A client which would repeat a request ten times by itself, beside one from a URL."""

    covers: ClassVar = TairStore
    proved = ("blocking", "asyncio")

    @pytest.fixture
    def store(self, tair_server: Server) -> Iterator[TairStore]:
        """Take a client with redis-py's defaults."""
        store = TairStore(redis.Redis(tair_server.host, tair_server.port))
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, tair_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> TairStore:
            return TairStore(redis.Redis(host, port, socket_timeout=QUICK, socket_connect_timeout=QUICK))

        return StoreServer(tair_server.host, tair_server.port, make, QUICK)

    @pytest.fixture
    def another_store(self, tair_server: Server) -> Iterator[TairStore]:
        """Take a URL."""
        store = TairStore.from_url(tair_server.url)
        yield store
        store.close()


class TestAsyncTair(LockContract, StoreContract):
    """An asyncio client with redis-py's defaults, beside a blocking one that serves asyncio from threads."""

    covers: ClassVar = AsyncTairStore
    apis = ("asyncio",)
    proved = ("asyncio",)

    @pytest.fixture
    def store(self, tair_server: Server) -> Iterator[AsyncTairStore]:
        """Take a client with redis-py's defaults."""
        store = AsyncTairStore(redis.asyncio.Redis(host=tair_server.host, port=tair_server.port))
        yield store
        on_loop(store.aclose())

    @pytest.fixture
    def caslock_server(self, tair_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncTairStore:
            client = redis.asyncio.Redis(host=host, port=port, socket_timeout=QUICK, socket_connect_timeout=QUICK)
            return AsyncTairStore(client)

        return StoreServer(tair_server.host, tair_server.port, make, QUICK)

    another_store = TestTair.another_store


class TestMemcached(LockContract, StoreContract):
    """A client whose `add` would get no reply by default, beside one from a URL."""

    covers: ClassVar = MemcachedStore
    proved = ("asyncio",)

    @pytest.fixture
    def store(self, memcached_server: Server) -> Iterator[MemcachedStore]:
        """Take a client with pymemcache's defaults, but for the timeout that it must have."""
        store = MemcachedStore(Client((memcached_server.host, memcached_server.port), timeout=20))
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, memcached_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> MemcachedStore:
            return MemcachedStore(Client((host, port), timeout=QUICK, connect_timeout=QUICK))

        return StoreServer(memcached_server.host, memcached_server.port, make, QUICK)

    @pytest.fixture
    def another_store(self, memcached_server: Server) -> Iterator[MemcachedStore]:
        """Take a URL."""
        store = MemcachedStore.from_url(memcached_server.url)
        yield store
        store.close()


class Database:
    """A store from a URL, beside one from an engine with SQLAlchemy's defaults."""

    covers: ClassVar[type] = SQLStore
    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")
    timeout: ClassVar[float] = 2.0

    @pytest.fixture
    def sql_server(self, postgresql_server: Server) -> Server:
        """Name the server of the suite."""
        return postgresql_server

    @pytest.fixture
    def store(self, sql_server: Server) -> Iterator[SQLStore]:
        """Take a URL."""
        store = SQLStore(sql_server.url, timeout=self.timeout)
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, sql_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> SQLStore:
            return SQLStore(make_url(sql_server.url).set(host=host, port=port), timeout=CONNECTING)

        return StoreServer(sql_server.host, sql_server.port, make, CONNECTING)

    @pytest.fixture
    def another_store(self, sql_server: Server) -> Iterator[SQLStore]:
        """Take an engine."""
        engine = create_engine(
            sql_server.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
        )
        store = SQLStore(engine)
        yield store
        store.close()
        engine.dispose()


class AsyncDatabase(Database):
    """The same for asyncio, beside a blocking store that serves asyncio from threads."""

    covers: ClassVar[type] = AsyncSQLStore
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)

    @pytest.fixture
    def store(self, sql_server: Server) -> Iterator[AsyncSQLStore]:
        """Take a URL."""
        store = AsyncSQLStore(sql_server.url, timeout=self.timeout)
        yield store
        on_loop(store.aclose())

    @pytest.fixture
    def caslock_server(self, sql_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncSQLStore:
            return AsyncSQLStore(make_url(sql_server.url).set(host=host, port=port), timeout=CONNECTING)

        return StoreServer(sql_server.host, sql_server.port, make, CONNECTING)


class TestPostgreSQL(Database, StoreContract):
    """PostgreSQL."""


class TestAsyncPostgreSQL(AsyncDatabase, StoreContract):
    """PostgreSQL, for asyncio."""

    apis = ("asyncio",)


@pytest.mark.long
class TestPostgreSQLLocks(Database, LockContract):
    """Locks in PostgreSQL; how asyncio reaches a blocking store is tried with all the others."""

    apis = ("blocking",)
    timeout = 20.0  # many cases at once wait for five connections


@pytest.mark.long
class TestAsyncPostgreSQLLocks(AsyncDatabase, LockContract):
    """Locks in PostgreSQL, for asyncio."""

    apis = ("asyncio",)
    timeout = 20.0


class TestMySQL(Database, StoreContract):
    """MariaDB, or MySQL."""

    @pytest.fixture
    def sql_server(self, mysql_server: Server) -> Server:
        """Name the server of the suite."""
        return mysql_server


class TestAsyncMySQL(AsyncDatabase, StoreContract):
    """MariaDB, or MySQL, for asyncio."""

    sql_server = TestMySQL.sql_server


class TestZooKeeper(LockContract, StoreContract):
    """A store from a URL, beside one from a client with kazoo's defaults, which would send requests again."""

    covers: ClassVar = ZooKeeperStore
    proved = ("blocking", "asyncio")

    @pytest.fixture
    def store(self, zookeeper_server: Server) -> Iterator[ZooKeeperStore]:
        """Take a URL."""
        store = ZooKeeperStore(f"zookeeper://{zookeeper_server.host}:{zookeeper_server.port}")
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, zookeeper_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> ZooKeeperStore:
            return ZooKeeperStore(f"zookeeper://{host}:{port}", timeout=CONNECTING)

        return StoreServer(zookeeper_server.host, zookeeper_server.port, make, CONNECTING)

    @pytest.fixture
    def another_store(self, zookeeper_server: Server) -> Iterator[ZooKeeperStore]:
        """Take a client."""
        store = ZooKeeperStore(KazooClient(f"{zookeeper_server.host}:{zookeeper_server.port}"))
        yield store
        store.close()


class Etcd:
    """A store from a URL, beside another that names the server otherwise."""

    covers: ClassVar[type] = EtcdStore
    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")

    @pytest.fixture
    def store(self, etcd_server: Server) -> Iterator[EtcdStore]:
        """Take a URL."""
        store = EtcdStore(etcd_server.url, timeout=20)
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, etcd_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> EtcdStore:
            return EtcdStore(f"etcd://{host}:{port}", timeout=QUICK)

        return StoreServer(etcd_server.host, etcd_server.port, make, QUICK)

    @pytest.fixture
    def another_store(self, etcd_server: Server) -> Iterator[EtcdStore]:
        """Take a URL."""
        store = EtcdStore.from_url(f"{etcd_server.url}/?timeout=20")
        yield store
        store.close()


class AsyncEtcd(Etcd):
    """The same for asyncio, beside a blocking store that serves asyncio from threads."""

    covers: ClassVar[type] = AsyncEtcdStore
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)

    @pytest.fixture
    def store(self, etcd_server: Server) -> Iterator[AsyncEtcdStore]:
        """Take a URL."""
        store = AsyncEtcdStore(etcd_server.url, timeout=20)
        yield store
        on_loop(store.aclose())

    @pytest.fixture
    def caslock_server(self, etcd_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncEtcdStore:
            return AsyncEtcdStore(f"etcd://{host}:{port}", timeout=QUICK)

        return StoreServer(etcd_server.host, etcd_server.port, make, QUICK)


class TestEtcd(Etcd, LockContract, StoreContract):
    """etcd."""

    proved = ("blocking", "asyncio")


class TestAsyncEtcd(AsyncEtcd, LockContract, StoreContract):
    """etcd, for asyncio."""

    proved = ("asyncio",)


class Hazelcast:
    """A store from a URL, beside another that names the server otherwise."""

    covers: ClassVar[type] = HazelcastStore
    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")

    @pytest.fixture
    def store(self, hazelcast_server: Server) -> Iterator[HazelcastStore]:
        """Take a URL."""
        store = HazelcastStore(hazelcast_server.url, timeout=20)
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, hazelcast_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> HazelcastStore:
            return HazelcastStore(f"hazelcast://{host}:{port}/locks", timeout=CONNECTING)

        return StoreServer(hazelcast_server.host, hazelcast_server.port, make, CONNECTING)

    @pytest.fixture
    def another_store(self, hazelcast_server: Server) -> Iterator[HazelcastStore]:
        """Take a URL."""
        store = HazelcastStore.from_url(f"{hazelcast_server.url}?timeout=20")
        yield store
        store.close()


class AsyncHazelcast(Hazelcast):
    """The same for asyncio, beside a blocking store that serves asyncio from threads."""

    covers: ClassVar[type] = AsyncHazelcastStore
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)

    @pytest.fixture
    def store(self, hazelcast_server: Server) -> Iterator[AsyncHazelcastStore]:
        """Take a URL."""
        store = AsyncHazelcastStore(hazelcast_server.url, timeout=20)
        yield store
        on_loop(store.aclose())

    @pytest.fixture
    def caslock_server(self, hazelcast_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncHazelcastStore:
            return AsyncHazelcastStore(f"hazelcast://{host}:{port}/locks", timeout=CONNECTING)

        return StoreServer(hazelcast_server.host, hazelcast_server.port, make, CONNECTING)


class TestHazelcast(Hazelcast, LockContract, StoreContract):
    """Hazelcast."""

    proved = ("blocking", "asyncio")


class TestAsyncHazelcast(AsyncHazelcast, LockContract, StoreContract):
    """Hazelcast, for asyncio."""

    proved = ("asyncio",)


class Nats:
    """A store from a URL, beside another that names the server otherwise."""

    covers: ClassVar[type] = NatsStore
    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")

    @pytest.fixture
    def store(self, nats_server: Server) -> Iterator[NatsStore]:
        """Take a URL."""
        store = NatsStore(nats_server.url, timeout=20)
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, nats_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> NatsStore:
            return NatsStore(f"nats://{host}:{port}", timeout=QUICK)

        return StoreServer(nats_server.host, nats_server.port, make, QUICK)

    @pytest.fixture
    def another_store(self, nats_server: Server) -> Iterator[NatsStore]:
        """Take a URL."""
        store = NatsStore.from_url(f"{nats_server.url}/caslock?timeout=20")
        yield store
        store.close()


class AsyncNats(Nats):
    """The same for asyncio, beside a blocking store that serves asyncio from threads."""

    covers: ClassVar[type] = AsyncNatsStore
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)

    @pytest.fixture
    def store(self, nats_server: Server) -> Iterator[AsyncNatsStore]:
        """Take a URL."""
        store = AsyncNatsStore(nats_server.url, timeout=20)
        yield store
        on_loop(store.aclose())

    @pytest.fixture
    def caslock_server(self, nats_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncNatsStore:
            return AsyncNatsStore(f"nats://{host}:{port}", timeout=QUICK)

        return StoreServer(nats_server.host, nats_server.port, make, QUICK)


class TestNats(Nats, LockContract, StoreContract):
    """NATS."""

    proved = ("blocking", "asyncio")


class TestAsyncNats(AsyncNats, LockContract, StoreContract):
    """NATS, for asyncio."""

    proved = ("asyncio",)


@pytest.fixture(scope="session")
def boto3_client(dynamodb_server: Server) -> Any:  # noqa: ANN401 - boto3 ships no types
    """Make a client with credentials of its own."""
    session = boto3.Session("another", "caslock", region_name="eu-central-1")
    return session.client("dynamodb", endpoint_url=f"http://{dynamodb_server.host}:{dynamodb_server.port}")


class DynamoDB:
    """A store from a URL, beside another from a client of boto3."""

    covers: ClassVar[type] = DynamoDBStore
    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")

    @pytest.fixture
    def store(self, dynamodb_server: Server) -> Iterator[DynamoDBStore]:
        """Take a URL."""
        store = DynamoDBStore(dynamodb_server.url, timeout=20)
        yield store
        store.close()

    @pytest.fixture
    def caslock_server(self, dynamodb_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> DynamoDBStore:
            return DynamoDBStore(f"dynamodb://eu-central-1?endpoint=http://{host}:{port}", timeout=CONNECTING)

        return StoreServer(dynamodb_server.host, dynamodb_server.port, make, CONNECTING)

    @pytest.fixture
    def another_store(self, boto3_client: Any) -> Iterator[DynamoDBStore]:  # noqa: ANN401 - as above
        """Take a client."""
        store = DynamoDBStore(boto3_client, timeout=20)
        yield store
        store.close()


class AsyncDynamoDB(DynamoDB):
    """The same for asyncio, beside a blocking store that serves asyncio from threads."""

    covers: ClassVar[type] = AsyncDynamoDBStore
    apis: ClassVar[tuple[str, ...]] = ("asyncio",)

    @pytest.fixture
    def store(self, dynamodb_server: Server) -> Iterator[AsyncDynamoDBStore]:
        """Take a URL."""
        store = AsyncDynamoDBStore(dynamodb_server.url, timeout=20)
        yield store
        on_loop(store.aclose())

    @pytest.fixture
    def caslock_server(self, dynamodb_server: Server) -> StoreServer:
        """Return the way to a server that fails."""

        def make(host: str, port: int) -> AsyncDynamoDBStore:
            return AsyncDynamoDBStore(f"dynamodb://eu-central-1?endpoint=http://{host}:{port}", timeout=CONNECTING)

        return StoreServer(dynamodb_server.host, dynamodb_server.port, make, CONNECTING)


class TestDynamoDB(DynamoDB, StoreContract):
    """DynamoDB."""


class TestAsyncDynamoDB(AsyncDynamoDB, StoreContract):
    """DynamoDB, for asyncio."""


@pytest.mark.long
class TestDynamoDBLocks(DynamoDB, LockContract):
    """Locks in DynamoDB; how asyncio reaches a blocking store is tried with all the others."""

    apis = ("blocking",)


class TestWatchingMemory(NoServer, LockContract, StoreContract):
    """A store that is watched: it has `wait_while` and `list`."""

    covers: ClassVar = None
    proved = ("asyncio",)

    @pytest.fixture
    def store(self) -> WatchingMemory:
        """Make a memory."""
        return WatchingMemory()


class TestAsyncWatchingMemory(NoServer, LockContract, StoreContract):
    """The same for asyncio."""

    covers: ClassVar = None
    apis = ("asyncio",)

    @pytest.fixture
    def store(self) -> AsyncWatchingMemory:
        """Make a memory."""
        return AsyncWatchingMemory()


class TestFencelessMemory(NoServer, LockContract, StoreContract):
    """Versions that never repeat and do not grow; it waits and batches."""

    covers: ClassVar = None
    proved = ("asyncio",)

    @pytest.fixture
    def store(self) -> Fenceless:
        """Wrap a memory."""
        return Fenceless(MemoryStore())


class TestLastingMemory(NoServer, StoreContract):
    """A memory that ends no lease by itself."""

    covers: ClassVar = None

    @pytest.fixture
    def store(self) -> Lasting:
        """Make a memory."""
        return Lasting(MemoryStore())


@pytest.mark.long
class TestFencelessSQLite(NoServer, LockContract, StoreContract):
    """The same over two connections to one file: it is polled."""

    covers: ClassVar = None

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Fenceless]:
        """Wrap a file."""
        store = Fenceless(SQLiteStore(tmp_path / "locks.db"))
        yield store
        store.close()

    another_store = store


class TestFencelessRedis(NoServer, StoreContract):
    """The same over Redis."""

    covers: ClassVar = None

    @pytest.fixture
    def store(self, redis_server: Server) -> Iterator[Fenceless]:
        """Wrap a client."""
        store = Fenceless(RedisStore.from_url(redis_server.url))
        yield store
        store.close()

    another_store = store


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


def test_every_test_says_what_it_proves() -> None:
    """The suites are made of sentences: each test has one."""
    for suite in (StoreContract, LockContract):
        tests = {name: test for name, test in inspect.getmembers(suite) if name.startswith("test_")}
        assert len(tests) > 20
        for name, test in tests.items():
            assert re.fullmatch(r"[A-Z0-9].*[.](\n.*)?", inspect.getdoc(test) or "", re.DOTALL), name


NAMES = "answer applied clean clients key kind loss mine order play scene server store_is then theirs"

TAKEN = f"""
import pytest
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract
from tests.proof.laws.locks import LockContract

def fixture(name):
    @pytest.fixture(name=name, params=["of the user"])
    def give(request):
        return request.param
    return give

globals().update({{f"fixture_{{name}}": fixture(name) for name in "{NAMES}".split()}})

class TestMine(LockContract, StoreContract):
    @pytest.fixture
    def store(self, {NAMES.replace(" ", ", ")}):
        assert {{{NAMES.replace(" ", ", ")}}} == {{"of the user"}}
        return MemoryStore()
"""


def test_no_name_of_the_suites_takes_one_of_the_users(tmp_path: Path) -> None:
    """A user's fixtures may have any name that does not begin with ``caslock_``, and parameters too."""
    (tmp_path / "test_mine.py").write_text(TAKEN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    done = subprocess.run(
        [*command, "-k", "stale or acquire", "test_mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
