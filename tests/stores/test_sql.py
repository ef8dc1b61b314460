"""`SQLStore` and `AsyncSQLStore` against real PostgreSQL and MariaDB servers: what the contract does not ask."""

# ruff: noqa: S608 - names in statements are those of the tests

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy
from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from caslock import Store, StoreUnavailable, connect, connect_async
from caslock.store import ABSENT
from caslock.stores.sql import AsyncSQLStore, SQLStore, metadata
from caslock.stores.sql.table import name_of
from caslock.testing.drive import on_loop
from caslock.testing.proxy import refused_port
from caslock.testing.steps import again, at_once, timed
from tests.stores.opening import SECRET, opening, put, refusal
from tests.support.locations import fresh, until
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, MYSQL, POSTGRESQL, Server, private


class Database(NamedTuple):
    """A server, a connection of its administrator, and how to make stores on it."""

    server: Server
    admin: Connection
    open: Callable[..., Store]
    blocking: bool

    @property
    def is_mysql(self) -> bool:
        return self.server.kind is MYSQL

    @contextlib.contextmanager
    def engine(self, **settings: Any) -> Iterator[Any]:  # noqa: ANN401 - as SQLAlchemy takes them
        make: Any = create_engine if self.blocking else create_async_engine
        engine = make(driver_url(self.server, awaits=not self.blocking), **settings)
        yield engine
        engine.dispose() if self.blocking else on_loop(engine.dispose())

    def run(self, statement: str) -> Any:  # noqa: ANN401 - one value of any kind
        result = self.admin.execute(text(statement))
        return result.scalar() if result.returns_rows else result.rowcount


def driver_url(server: Server, *, awaits: bool = False) -> str:
    mysql = "mysql+asyncmy:" if awaits else "mysql+pymysql:"
    return server.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", mysql)


@pytest.fixture(params=list(itertools.product(["postgresql", "mysql"], ["blocking", "asyncio"])), ids="-".join)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Return each server with each API."""
    kind, api = request.param
    server: Server = request.getfixturevalue(f"{kind}_server")
    blocking = api == "blocking"
    with contextlib.ExitStack() as stack:
        engine = create_engine(driver_url(server), isolation_level="AUTOCOMMIT")
        stack.callback(engine.dispose)
        admin = stack.enter_context(engine.connect())

        stores = stack.enter_context(opening(SQLStore if blocking else AsyncSQLStore, blocking=blocking))

        def make(target: Any = server.url, **settings: Any) -> Store:  # noqa: ANN401 - as the stores take it
            return stores.open(target, **settings)

        yield Database(server, admin, make, blocking)


@pytest.fixture
def store(database: Database) -> Store:
    """A store on the shared server, however long that takes on a busy machine."""
    return database.open(timeout=20)


def test_a_removed_row_stays_and_its_version_counts_on(database: Database, store: Store) -> None:
    """A tombstone keeps the version; a row that somebody has deleted begins with a larger one."""
    key = fresh()
    first = put(store, key)
    assert abs(first.version / 1e6 - time.time()) < 60
    assert store.invalidate(key, first.version) is None
    second = put(store, key)
    assert second.version == first.version + 1
    assert store.invalidate(key, second.version) is None
    assert database.run(f"DELETE FROM caslock WHERE expires = 0 AND name = '{key}'") == 1
    assert put(store, key).version > second.version


def test_a_refused_put_writes_nothing(database: Database, store: Store) -> None:
    """A hundred refused puts, and as many removals, leave the row as it is: PostgreSQL counts no new version of it."""
    if database.is_mysql:
        pytest.skip("InnoDB does not keep count")
    key = fresh()
    entry = put(store, key)
    place = f"SELECT ctid::text || xmin::text FROM caslock WHERE name = '{key}'"
    where = database.run(place)
    for _ in range(100):
        assert store.put_if_version(key, b"other", ABSENT, 30) == entry
        assert store.put_if_version(key, b"other", entry.version - 1, 30) == entry
        assert store.invalidate(key, entry.version - 1) == entry
    assert database.run(place) == where


def test_no_two_keys_have_one_name() -> None:
    """A long key has a digest behind a byte that no UTF-8 has, and every name fits into an index."""
    keys = ["k" * 255, "k" * 256, "k" * 1024, "k" * 1023 + "l", "ü" * 127, "ü" * 128, "🔑" * 1024, "🔑" * 1023 + "x"]
    names = [name_of(key)[0] for key in keys]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 255
    assert [b"\xff" in name for name in names] == [len(key.encode()) > 255 for key in keys]


def test_the_table_is_made_once_whoever_comes_first(database: Database) -> None:
    """Twenty verbs of four stores that find no table all succeed; `metadata` makes the same table."""
    schema, kind = "first_use", "DATABASE" if database.is_mysql else "SCHEMA"
    drop = f"DROP {kind} IF EXISTS {schema}{'' if database.is_mysql else ' CASCADE'}"
    database.run(drop)
    database.run(f"CREATE {kind} {schema}")
    url = make_url(database.server.url)
    if database.is_mysql:
        url = url.set(database=schema)
    else:
        database.run("DROP ROLE IF EXISTS first")
        database.run(f"CREATE ROLE first LOGIN SUPERUSER; ALTER ROLE first SET search_path = {schema}")
        url = url.set(username="first")
    stores = [database.open(url) for _ in range(4)]
    entries = at_once(lambda number: put(stores[number % 4], f"k{number}"), 20)
    assert len(entries) == 20
    columns = f"SELECT count(*) FROM information_schema.columns WHERE table_schema = '{schema}'"
    assert database.run(columns) == len(metadata.tables["caslock"].columns)
    database.run(drop)


def test_a_user_who_may_not_make_the_table_is_told_so(database: Database) -> None:
    """Without a table, and the right to make one, a put says what to grant; with select only, it refuses to write."""
    url = _user(database, "poor")
    metadata.drop_all(database.admin)
    if not database.is_mysql:
        database.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    poor = database.open(url)
    refusal(lambda: poor.put_if_version("k", b"v", ABSENT, 1), "Grant the user")
    metadata.create_all(database.admin)  # as migrations may do
    put(database.open(), fresh())
    database.run(f"GRANT SELECT ON caslock TO {_name(database, 'poor')}")
    assert poor.get("k") is None
    refusal(lambda: poor.put_if_version("k", b"v", ABSENT, 1), "Grant the user")


def _name(database: Database, name: str) -> str:
    return f"'{name}'@'%'" if database.is_mysql else name


def _user(database: Database, name: str) -> Any:  # noqa: ANN401 - a URL of SQLAlchemy
    if database.is_mysql:
        database.run(f"DROP USER IF EXISTS '{name}'@'%'")
        database.run(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{SECRET}'")
        database.run("CREATE TABLE IF NOT EXISTS another (a INT)")
        database.run(f"GRANT SELECT ON caslock.another TO '{name}'@'%'")  # else the database is hidden from it
    else:
        if database.run(f"SELECT count(*) FROM pg_roles WHERE rolname = '{name}'"):
            database.run(f"DROP OWNED BY {name}")
        database.run(f"DROP ROLE IF EXISTS {name}")
        database.run(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    return make_url(database.server.url).set(username=name, password=SECRET)


def test_a_wrong_password_is_a_refusal_that_shows_none(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """So is a missing one: a `StoreError` that says so; no text of it, its causes or the store has the password."""
    if database.is_mysql:
        url = _user(database, "shy").set(password=f"{SECRET}no")
        where: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(url)
    else:
        where = _with_passwords(tmp_path_factory)
    with where as target:
        stores = [database.open(target), database.open(target.set(password=""))]
        for store in (*stores, *stores):
            refused = refusal(lambda: store.get("k"), "Check the user and the password")  # noqa: B023 - called at once
            told = "".join(traceback.format_exception(refused)) + repr(store.traits) + repr(store)
            assert SECRET not in told
            assert "p%40ss" not in told


@contextlib.contextmanager
def _with_passwords(folders: pytest.TempPathFactory) -> Iterator[Any]:
    with private(POSTGRESQL, folders.mktemp("passwords")) as server:
        engine = create_engine(driver_url(server), isolation_level="AUTOCOMMIT")
        with engine.connect() as admin:
            file = admin.execute(text("SHOW hba_file")).scalar()
            admin.execute(text(f"COPY (SELECT 'host all all all scram-sha-256') TO '{file}'"))
            admin.execute(text(f"ALTER ROLE caslock PASSWORD '{SECRET}'"))
            admin.execute(text("SELECT pg_reload_conf()"))
        engine.dispose()
        url = make_url(server.url).set(password=SECRET)
        with SQLStore(url, timeout=20) as right:
            assert right.get("k") is None
        yield url.set(password=f"{SECRET}no")


READ_ONLY = "-c default_transaction_read_only=on"


def test_a_read_only_server_is_a_refusal(database: Database) -> None:
    """A put that a replica would refuse is a `StoreError` that says to use the primary; reads work."""
    option = ("init_command", "SET tx_read_only = 1") if database.is_mysql else ("options", READ_ONLY)
    key = fresh()
    entry = put(database.open(), key)
    with database.engine(connect_args=dict([option])) as engine:
        store = database.open(engine)
        assert store.get(key) == entry
        refusal(lambda: store.put_if_version(key, b"v", ABSENT, 1), "Connect to the primary")
        refusal(lambda: store.invalidate(key, entry.version), "Connect to the primary")


MYSQL_WAITS = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'"
POSTGRESQL_WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.mark.long
def test_a_statement_that_was_given_up_does_not_land_late(database: Database, store: Store) -> None:
    """A put that waits for a locked table is given up by the server too, with a store of a URL or of an engine."""
    put(store, fresh())  # so that there is a table
    with (
        database.engine() as users,
        create_engine(driver_url(database.server), poolclass=NullPool).connect() as blocker,
    ):
        patient = {fresh(): each for each in (database.open(timeout=1.0), database.open(users, timeout=1.0))}
        for key, each in patient.items():
            again(partial(each.get, key))
        lock = "LOCK TABLES caslock WRITE" if database.is_mysql else "LOCK TABLE caslock IN ACCESS EXCLUSIVE MODE"
        blocker.execute(text(lock))
        puts = [timed(partial(each.put_if_version, key, b"late", ABSENT, 60)) for key, each in patient.items()]
        for late in puts:
            with pytest.raises(StoreUnavailable):
                late.result(50)
        assert until(lambda: not database.run(MYSQL_WAITS if database.is_mysql else POSTGRESQL_WAITS))
        if database.is_mysql:
            blocker.execute(text("UNLOCK TABLES"))
        blocker.close()
        assert [store.get(key) for key in patient] == [None, None]


def test_an_engine_of_the_user_is_not_disturbed(database: Database) -> None:
    """A store takes connections of an engine for itself; the engine's own pool and transactions go on."""
    more = {"pool_timeout": 50} if database.blocking else {}
    with database.engine(pool_size=1, max_overflow=0, **more) as engine:
        store, key = database.open(engine), fresh()
        entry = put(store, key)
        if database.blocking:
            with engine.begin() as mine:
                mine.execute(text("SELECT 1"))
                assert store.invalidate(key, entry.version) is None
                mine.rollback()
        else:

            async def use() -> None:
                async with engine.begin() as mine:
                    await mine.execute(text("SELECT 1"))

            on_loop(use())
            assert store.invalidate(key, entry.version) is None
        assert store.get(key) is None


def test_tls_loads_only_the_named_ca(tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that offers TLS gets it without those of the system; it is verified against one that the URL names."""
    options = (f"--ssl-{name}={certificates / f'server.{end}'}" for name, end in (("cert", "pem"), ("key", "key")))
    with private(MYSQL, tmp_path, *options) as server:
        with create_engine(driver_url(server), poolclass=NullPool).begin() as admin:
            admin.execute(text("GRANT ALL ON caslock.* TO tls IDENTIFIED BY '' REQUIRE SSL"))
        url = server.url.replace("root@", "tls@")
        with monkeypatch.context() as patched, SQLStore(url) as store:
            patched.setattr(ssl.SSLContext, "load_default_certs", None)
            put(store, fresh())
        with SQLStore(f"{url}?ssl_ca={certificates / 'ca.pem'}") as store:
            put(store, fresh())
        with SQLStore(f"{url}?ssl_ca={certificates / 'client.pem'}") as store, pytest.raises(StoreUnavailable):
            store.get("k")


def test_what_the_store_has_no_driver_for_is_refused() -> None:
    """Another database, another driver, or an engine of the other API: before any I/O."""
    for url, sentence in {
        "sqlite:///x.db": "the database must be PostgreSQL",
        "postgresql+psycopg2://localhost": "needs the driver psycopg",
        "mysql+asyncmy://localhost": "needs the driver pymysql",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            SQLStore(url)
    with pytest.raises(TypeError, match="AsyncSQLStore takes"):
        SQLStore(create_async_engine("postgresql+psycopg://localhost"))  # type: ignore[arg-type] # which is the test


def test_connect_takes_engines() -> None:
    """`connect` makes the store of an engine, and `connect_async` that of either kind."""
    engine: Engine = create_engine("postgresql+psycopg://db/app")
    assert type(connect(engine)) is type(connect_async(engine)) is SQLStore
    assert type(connect_async(create_async_engine("postgresql+psycopg://db/app"))) is AsyncSQLStore


def test_two_names_of_one_database_have_one_identity(database: Database, store: Store) -> None:
    """PostgreSQL tells who it is, whatever name leads to it; another table is another place."""
    one: Any = store
    two: Any = database.open(make_url(database.server.url).set(host="localhost"))
    assert one.traits.location != two.traits.location
    assert one.identify() == two.identify()
    assert (one.identify() is None) is database.is_mysql


@pytest.mark.skipif(
    sqlalchemy.__version__.startswith("2.0."),
    reason="SQLAlchemy 2.0 may leave a connection to the garbage collector if it is cancelled as it connects",
)
def test_a_cancellation_while_it_connects_leaves_no_connection_open(postgresql_server: Server) -> None:
    """At whatever moment: psycopg would warn of a connection that nobody has closed, which is an error here."""

    async def cancel(after: float) -> bool:
        async with AsyncSQLStore.from_url(f"{postgresql_server.url}?timeout=50") as store:
            task = asyncio.create_task(store.get("k"))
            await asyncio.sleep(after)
            task.cancel()
            return isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)

    with pytest.MonkeyPatch.context() as patch:
        left = list[object]()
        patch.setattr(sys, "unraisablehook", left.append)
        cancelled = [asyncio.run(cancel(number * 0.001)) for number in range(50)]
        gc.collect()
    assert True in cancelled
    assert left == []


@in_a_loop
async def test_a_cancellation_while_it_connects_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes just as a connection to MySQL is made, to a server that says nothing then."""
    loop = asyncio.get_running_loop()
    usual = loop.create_connection

    async def connect_and_cancel(*args: Any, **settings: Any) -> object:  # noqa: ANN401 - as the loop takes them
        made = await usual(*args, **settings)
        task.cancel()
        return made

    monkeypatch.setattr(loop, "create_connection", connect_and_cancel)
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        store = AsyncSQLStore(f"mysql://root@{HOST}:{silent.getsockname()[1]}/caslock?timeout=30")
        task = asyncio.create_task(store.get("k"))
        done, _ = await asyncio.wait({task}, timeout=20)
        assert done
        assert task.cancelled()


@pytest.mark.parametrize("blocking", [True, False])
def test_it_works_behind_pgbouncer_in_transaction_mode(pgbouncer: str, blocking: bool) -> None:  # noqa: FBT001 - a parameter
    """Many threads share one session of the server, whose state none of them touches."""
    with opening(SQLStore if blocking else AsyncSQLStore, blocking=blocking) as api, ThreadPoolExecutor(8) as threads:
        shared, keys = api.open(pgbouncer), [fresh() for _ in range(40)]
        entries = list(threads.map(lambda key: put(shared, key), keys))
        assert list(threads.map(shared.get, keys)) == entries
        removed = threads.map(lambda key, entry: shared.invalidate(key, entry.version), keys, entries)
        assert set(removed) == {None}
        entries = [put(shared, keys[0]) for _ in range(9) if shared.get(keys[0]) is None]
        assert len(entries) == 1


@in_a_loop
async def test_what_an_exception_of_the_user_has_noted_outlives_a_refused_connection() -> None:
    """Its frames keep their variables, for a debugger and for a report of the error."""

    def fail() -> None:
        noted = "the user's"
        raise ValueError(noted)

    with refused_port() as port:
        try:
            fail()
        except ValueError as error:
            with pytest.raises(StoreUnavailable):
                await AsyncSQLStore(f"postgresql://u@127.0.0.1:{port}/d").get("key")
            frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
            assert frames[-1]["noted"] == "the user's"
