"""Engines of our own, whose connections nobody else uses, and which wait no longer than they are told.

An engine belongs to one process, and for asyncio to one event loop.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future
from functools import cache
from importlib import import_module
from inspect import signature
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from caslock.connections import LEAST
from caslock.guards import on_failure
from caslock.options import TIMEOUT, check_timeout, no_other_options, timeout_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

_CONNECTIONS: Final = 5  # of a process; where more requests run at once, they wait for each other
_OLD: Final = 1800  # seconds after which an idle connection is replaced
_DRIVERS: Final = {
    "postgresql": {False: "psycopg", True: "psycopg"},
    "mysql": {False: "pymysql", True: "asyncmy"},
}
_WHOSE: Final = {"psycopg": "libpq", "pymysql": "PyMySQL"}
_OF_SQLALCHEMY: Final = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname", "ssl_cipher", "ssl_key")
_PORTS: Final = {"postgresql": 5432, "mysql": 3306}
_MOMENT: Final = threading.local()  # when the verb of this thread ends

_OF_PGBOUNCER: Final = "unsupported startup parameter: options"
# A session that has got our own setting is nobody else's, so it may keep prepared statements: without them, acquire and
# release took twice as long, or longer, because PostgreSQL plans each statement anew.
_IS_DIRECT: Final = "SELECT current_setting('caslock.direct', true) = 'yes'"
_PREPARED: Final = 2  # how often a statement is sent before it is prepared

# What limits a statement of MariaDB, and in MySQL its waits for locks; the names differ by the kind of server.
_SETTINGS: Final = (
    "SET SESSION innodb_lock_wait_timeout = {whole}, lock_wait_timeout = {whole}"
    " /*M!100103 , max_statement_time = {seconds}, tx_isolation = 'READ-COMMITTED' */"
    " /*!80000 , transaction_isolation = 'READ-COMMITTED' */"
)


class Target(NamedTuple):
    """Where the database is, and how to make an engine for it."""

    url: URL
    backend: str
    timeout: float
    given: Engine | AsyncEngine | None

    @property
    def location(self) -> str:
        """The place, without user and password."""
        query, host = self.url.query, self.url.host or ""
        if not host:
            where = query.get("unix_socket") or query.get("host") or "localhost"
            host = where if isinstance(where, str) else ",".join(where)
        host = f"[{host}]" if ":" in host and not host.startswith("/") else host
        port = self.url.port or query.get("port") or _PORTS[self.backend]
        return f"{self.backend}://{host}:{port}/{self.url.database or ''}"

    @property
    def secrets(self) -> list[str | None]:
        """What no error may show."""
        options = [value for name, value in self.url.query.items() if "pass" in name and isinstance(value, str)]
        return [str(self.url.password or ""), *options]


def target_of(target: str | URL | Engine | AsyncEngine, timeout: float | None, *, awaits: bool) -> Target:
    """Check what a store is made of; raises ValueError or TypeError, which show nothing of a URL."""
    given = None
    if isinstance(target, Engine | AsyncEngine):
        if isinstance(target, AsyncEngine) is not awaits:
            kind, other = ("AsyncEngine", "SQLStore") if awaits else ("Engine", "AsyncSQLStore")
            raise TypeError(f"this store needs an {kind} of SQLAlchemy; {other} takes the other kind")
        given, url, driver = target, target.url, target.dialect.driver
    elif isinstance(target, str | URL):
        url = _read(target)
        driver = url.drivername.partition("+")[2]
    else:
        raise TypeError(f"give a URL, or an engine of SQLAlchemy, not {type(target).__name__}")
    backend = {"mariadb": "mysql"}.get(url.get_backend_name(), url.get_backend_name())
    if backend not in _DRIVERS:
        instead = "; for a file of SQLite, give its URL: sqlite:///path" if backend == "sqlite" else ""
        raise ValueError(f"the database must be PostgreSQL, MySQL or MariaDB, not {backend}{instead}")
    known = _DRIVERS[backend][awaits]
    if driver not in ("", known):
        raise ValueError(f"this store needs the driver {known}: {backend}+{known}://")
    if given is None:
        options = {name: str(value) for name, value in url.query.items()}  # one that is given twice is a tuple
        timeout = timeout_of(options, timeout, "a database")
        url = url.difference_update_query(["timeout"])
        url = url.set(drivername=f"{backend}+{known}")
        usage = f"the options of a {backend}:// URL are ?timeout= and those of {_WHOSE.get(known, known)}"
        no_other_options(url.query, _options_of(known), usage)
    return Target(url, backend, check_timeout("timeout", TIMEOUT if timeout is None else timeout), given)


def _read(target: str | URL) -> URL:
    try:
        return make_url(target)
    except (ArgumentError, ValueError):
        raise ValueError(
            "this URL of a database can't be read: percent-encode what is reserved in a password, and check the port"
        ) from None


def _options_of(driver: str) -> list[str]:
    """Name what a URL may have for this driver, beside the timeout."""
    if driver == "psycopg":
        from psycopg import pq  # noqa: PLC0415 - an optional package

        return ["timeout", *(option.keyword.decode() for option in pq.Conninfo.get_defaults())]
    connection = import_module(f"{driver}.connection{'s' if driver == 'pymysql' else ''}").Connection
    return ["timeout", *signature(connection.__init__).parameters, *_OF_SQLALCHEMY]


def engine_of(target: Target) -> Engine:
    """Make an engine for this process, which has no connection yet."""
    settings = _settings(target)
    connect = _connect_by(target, awaits=False)

    def connected() -> Any:  # noqa: ANN401 - a connection of some driver
        return _bounded(connect, target)

    return create_engine(target.url, creator=connected, **settings)


def async_engine_of(target: Target) -> AsyncEngine:
    """Make an engine for this event loop, which has no connection yet."""
    settings = _settings(target)
    connect = _connect_by(target, awaits=True)

    async def connected() -> Any:  # noqa: ANN401 - a connection of some driver
        connection = await _opened_later(connect)
        if target.backend == "postgresql":
            _never_cancel_first(connection)
        else:
            async with connection.cursor() as cursor:
                await cursor.execute(_settings_of_a_session(target))
        return connection

    return create_async_engine(target.url, async_creator=connected, **settings)


def connection_of(target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    """Open a connection that no engine has, by the moment at which the verb of this thread ends."""
    return _bounded(_connect_by(target, awaits=False), target)


async def async_connection_of(target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    """The same for asyncio; it has no limit of its own."""
    return await _opened_later(_connect_by(target, awaits=True))


def begin(target: Target) -> None:
    """Note when a verb of this thread has to end."""
    begin_until(time.monotonic() + target.timeout)


def begin_until(ends: float) -> None:
    """Note that a verb of this thread has to end by a moment of `time.monotonic`."""
    _MOMENT.ends = ends


def limit(driver: Any) -> None:  # noqa: ANN401 - a connection of some driver
    """Tell a connection how long its next request may take."""
    if hasattr(driver, "_read_timeout"):  # PyMySQL has no other way to change it
        driver._read_timeout = driver._write_timeout = _left()  # noqa: SLF001 - see above


def _left() -> float:
    return max(getattr(_MOMENT, "ends", float("inf")) - time.monotonic(), LEAST)


def _settings(target: Target) -> dict[str, Any]:
    own: dict[str, Any] = {"use_native_hstore": False} if target.backend == "postgresql" else {}
    return own | {
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,  # which would be a request of its own
        "pool_reset_on_return": None,
        "pool_size": _CONNECTIONS,
        "max_overflow": 0,
        "pool_timeout": target.timeout * 0.75,
        "pool_use_lifo": True,
        "pool_recycle": _OLD,
        "hide_parameters": True,
    }


def _connect_by(target: Target, *, awaits: bool) -> Callable[[], Any]:
    """Return a function that opens a connection of the driver, which nobody else will use."""
    given = target.given
    if isinstance(given, AsyncEngine):
        return lambda: _detached_later(given)
    if given is not None:
        return lambda: _detached(given.raw_connection())
    arguments, options = target.url.get_dialect()().create_connect_args(target.url)
    options = {**_defaults(target, awaits=awaits), **options}
    if target.backend == "mysql":
        connect = _open_asyncmy if awaits else _connection_of_pymysql()
        return lambda: connect(*arguments, **options)
    import psycopg  # noqa: PLC0415 - an optional package

    if awaits:
        return lambda: _open_later(psycopg.AsyncConnection.connect, options)
    return lambda: _open(psycopg.Connection.connect, options)


def _open(connect: Callable[..., Any], options: dict[str, Any]) -> Any:  # noqa: ANN401 - a connection of psycopg
    try:
        connection = connect(**options)
    except Exception as error:
        if _OF_PGBOUNCER not in str(error):
            raise
        options.pop("options", None)
        connection = connect(**options)
    if connection.execute(_IS_DIRECT).fetchone()[0]:
        connection.prepare_threshold = _PREPARED
    return connection


async def _open_later(connect: Callable[..., Any], options: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
    try:
        connection = await connect(**options)
    except Exception as error:
        if _OF_PGBOUNCER not in str(error):
            raise
        options.pop("options", None)
        connection = await connect(**options)
    if (await (await connection.execute(_IS_DIRECT)).fetchone())[0]:
        connection.prepare_threshold = _PREPARED
    return connection


async def _open_asyncmy(*arguments: object, **options: object) -> Any:  # noqa: ANN401 - a connection of asyncmy
    connection = import_module("asyncmy.connection").Connection(*arguments, **options)
    # asyncmy has this timeout by asyncio.wait_for, in which Python 3.11 can lose a cancellation: the verb would go on
    # without a limit.  The limit of the verb holds for connecting, too.
    connection._connect_timeout = None  # noqa: SLF001 - its constructor takes a number only
    await connection.connect()
    return connection


@cache
def _connection_of_pymysql() -> Any:  # noqa: ANN401 - a class without types
    from pymysql.connections import Connection  # noqa: PLC0415 - an optional package

    class CaslockConnection(Connection):  # type: ignore[misc, unused-ignore] # PyMySQL has no types
        """Makes the context of TLS once.  PyMySQL makes one for each connection, in 30 ms of a processor."""

        _plain: Any = None

        def _create_ssl_ctx(self, options: Any) -> Any:  # noqa: ANN401 - as PyMySQL has it
            if options:
                return super()._create_ssl_ctx(options)
            if CaslockConnection._plain is None:
                CaslockConnection._plain = super()._create_ssl_ctx({})
            return CaslockConnection._plain

    return CaslockConnection


def _defaults(target: Target, *, awaits: bool) -> dict[str, Any]:
    if target.backend == "postgresql":
        # Without prepared statements at first: PgBouncer gives a session, and its state, to others.
        return {
            "autocommit": True,
            "prepare_threshold": None,
            "connect_timeout": max(2, round(target.timeout)),
            "options": f"-c statement_timeout={max(1, round(target.timeout * 1000))} -c caslock.direct=yes",
        }
    options: dict[str, Any] = {"autocommit": True, "charset": "utf8mb4", "connect_timeout": target.timeout}
    return options if awaits else options | {"read_timeout": target.timeout, "write_timeout": target.timeout}


def _settings_of_a_session(target: Target) -> str:
    return _SETTINGS.format(whole=max(1, int(target.timeout)), seconds=target.timeout)


def _detached(connection: Any) -> Any:  # noqa: ANN401 - a connection of some driver, out of one of SQLAlchemy's
    driver = connection.driver_connection
    connection.detach()  # the user's pool forgets it
    return driver


async def _detached_later(engine: AsyncEngine) -> Any:  # noqa: ANN401 - as above
    return _detached(await engine.raw_connection())


def _bounded(connect: Callable[[], Any], target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    """Connect in a thread of its own, because no driver bounds all that it does until it is connected."""
    outcome = Future[Any]()

    def open_it() -> None:
        try:
            connection = connect()
            if target.backend == "mysql":
                with connection.cursor() as cursor:
                    cursor.execute(_settings_of_a_session(target))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            _let_go(error)
            outcome.set_exception(error)
        else:
            outcome.set_result(connection)

    threading.Thread(target=open_it, name="caslock-connect", daemon=True).start()
    with on_failure(lambda: outcome.add_done_callback(_close_late)):
        connection = outcome.result(_left())
    if target.backend == "postgresql":
        _wait_until_the_end(connection)
    return connection


async def _opened_later(connect: Callable[[], Any]) -> Any:  # noqa: ANN401 - a connection of some driver
    users = sys.exception()
    try:
        return await connect()
    except BaseException as error:
        _let_go(error, users)
        raise


def _let_go(error: BaseException | None, users: BaseException | None = None) -> None:
    """Close what could not be opened: psycopg leaves a socket to its frames, which the error keeps, in a cycle.

    The frames of an exception that a user of the store is handling stay as they are.
    """
    while error is not None and error is not users:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _close_late(outcome: Future[Any]) -> None:
    if outcome.exception() is None:
        outcome.result().close()


def _wait_until_the_end(connection: Any) -> None:  # noqa: ANN401 - psycopg's generic class
    """Have a connection wait for the server until the verb of its thread ends; psycopg itself would wait for ever."""
    from psycopg import waiting  # noqa: PLC0415 - an optional package

    def wait(steps: Generator[Any, Any, Any], interval: float = 0.1) -> Any:  # noqa: ANN401 - whatever it waits for
        return waiting.wait(_bounded_steps(steps), connection.pgconn.socket, interval=min(interval, _left()))

    connection.wait = wait


def _bounded_steps(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    ready = None
    try:
        while True:
            ready = yield (next(steps) if ready is None else steps.send(ready))
            if not ready and _left() <= LEAST:
                raise TimeoutError
    except StopIteration as done:
        return done.value


def _never_cancel_first(connection: Any) -> None:  # noqa: ANN401 - psycopg's generic class
    """Have a cancelled task end at once; psycopg itself would first ask the server to cancel, for up to ten seconds."""
    from psycopg import waiting  # noqa: PLC0415 - an optional package

    def wait(steps: Generator[Any, Any, Any], interval: float = 0.1) -> Awaitable[Any]:
        return waiting.wait_async(steps, connection.pgconn.socket, interval=interval)

    connection.wait = wait
