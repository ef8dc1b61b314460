"""Connections to the database that nobody else uses, and that wait for the server no longer than their verb may take.

One belongs to one process, and for asyncio to one event loop.
"""

from __future__ import annotations

import ssl
import sys
import threading
import time
from concurrent.futures import Future
from functools import cache, partial
from importlib import import_module
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from caslock.process.guards import on_failure
from caslock.stores.shared.connections import LEAST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Sequence

    from caslock.stores.sql.target import Target

_MOMENT: Final = threading.local()  # when the verb of this thread ends

# Only a session of our own is changed.  A pooler lends its sessions to others, and names another process to libpq than
# that of the session.
_OF_POSTGRESQL: Final = (
    "SELECT CASE WHEN pg_backend_pid() = {process} THEN set_config('statement_timeout', '{milliseconds}', false) END"
)
# How often a statement is sent before such a session prepares it.  Without that, acquire and release took twice as long
# or longer, because PostgreSQL plans each statement anew.
_PREPARED: Final = 2

# What limits a statement of MariaDB, and in MySQL its waits for locks; the names differ by the kind of server.
_OF_MYSQL: Final = (
    "SET SESSION innodb_lock_wait_timeout = {whole}, lock_wait_timeout = {whole}"
    " /*M!100103 , max_statement_time = {seconds}, tx_isolation = 'READ-COMMITTED' */"
    " /*!80000 , transaction_isolation = 'READ-COMMITTED' */"
)


def end_by(moment: float) -> None:
    """Note that a verb of this thread has to end by a moment of `time.monotonic`."""
    _MOMENT.ends = moment


def _left() -> float:
    return max(getattr(_MOMENT, "ends", float("inf")) - time.monotonic(), LEAST)


def is_direct(connection: Any) -> bool:  # noqa: ANN401 - psycopg's generic class
    """Tell whether the session is the connection's own, and not one that a pooler lends."""
    return connection.prepare_threshold is not None


def connection_of(target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    """Open a connection by the moment at which the verb of this thread ends.

    That is done in a thread of its own, because no driver bounds all that it does until it is connected.
    """
    outcome = Future[Any]()

    def open_it() -> None:
        try:
            connection = _open(target)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            _let_go()
            outcome.set_exception(error)
        else:
            outcome.set_result(connection)

    threading.Thread(target=open_it, name="caslock-connect", daemon=True).start()
    with on_failure(lambda: outcome.add_done_callback(_close_late)):
        connection = outcome.result(_left())
    bound = _bound_psycopg if target.backend == "postgresql" else _bound_pymysql
    bound(connection)
    return connection


async def async_connection_of(target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    """The same for asyncio; it has no limit of its own."""
    with on_failure(partial(_let_go, sys.exception())):
        return await _open_async(target)


def _open(target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    if isinstance(target.given, Engine):
        connection = _detached(target.given.raw_connection())
    elif target.backend == "postgresql":
        connection = import_module("psycopg").Connection.connect(**_options(target))
    else:
        timeouts = {"read_timeout": target.timeout, "write_timeout": target.timeout}
        connection = _pymysql_connection()(**timeouts | _options(target))
    if target.backend == "postgresql":
        with on_failure(connection.pgconn.finish):
            connection.autocommit = True
            _settle(connection, connection.execute(_settings(connection, target)).fetchone())
    else:
        with connection.cursor() as cursor:
            cursor.execute(_settings(connection, target))
    return connection


async def _open_async(target: Target) -> Any:  # noqa: ANN401 - a connection of some driver
    if isinstance(target.given, AsyncEngine):
        connection = _detached(await target.given.raw_connection())
    elif target.backend == "postgresql":
        connection = await import_module("psycopg").AsyncConnection.connect(**_options(target))
    else:
        connection = import_module("asyncmy.connection").Connection(**_options(target))
        # asyncmy has this timeout by asyncio.wait_for, in which Python 3.11 can lose a cancellation: the verb would go
        # on without a limit.  The limit of the verb holds for connecting, too.
        connection._connect_timeout = None  # noqa: SLF001 - its constructor takes a number only
        await connection.connect()
    if target.backend == "postgresql":
        with on_failure(connection.pgconn.finish):
            _never_cancel_first(connection)
            await connection.set_autocommit(True)
            cursor = await connection.execute(_settings(connection, target))
            _settle(connection, await cursor.fetchone())
    else:
        async with connection.cursor() as cursor:
            await cursor.execute(_settings(connection, target))
    return connection


def _detached(connection: Any) -> Any:  # noqa: ANN401 - a connection of some driver, out of one of SQLAlchemy's
    driver = connection.driver_connection
    connection.detach()  # the user's pool forgets it
    return driver


def _options(target: Target) -> dict[str, Any]:
    """Return the arguments of the driver for a URL."""
    _, options = target.url.get_dialect()().create_connect_args(target.url)
    own: dict[str, Any] = {"autocommit": True, "connect_timeout": target.timeout}
    if target.backend == "postgresql":
        own["connect_timeout"] = max(2, round(target.timeout))  # in whole seconds
    else:
        own["charset"] = "utf8mb4"
    return {**own, **options}


def _settings(connection: Any, target: Target) -> str:  # noqa: ANN401 - a connection of some driver
    """Return the statement that limits all those that follow it at the server."""
    if target.backend == "postgresql":
        milliseconds = max(1, round(target.timeout * 1000))
        return _OF_POSTGRESQL.format(process=connection.pgconn.backend_pid, milliseconds=milliseconds)
    return _OF_MYSQL.format(whole=max(1, int(target.timeout)), seconds=target.timeout)


def _settle(connection: Any, answer: Sequence[object]) -> None:  # noqa: ANN401 - psycopg's generic class
    """Have PostgreSQL prepare statements if it has made the settings."""
    connection.prepare_threshold = _PREPARED if answer[0] else None


def _let_go(users: BaseException | None = None) -> None:
    """Close what could not be opened: psycopg leaves a socket to its frames, which the error keeps, in a cycle.

    The frames of an exception that a user of the store was handling before stay as they are.
    """
    error = sys.exception()
    while error is not None and error is not users:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _close_late(outcome: Future[Any]) -> None:
    if outcome.exception() is None:
        outcome.result().close()


def _bound_psycopg(connection: Any) -> None:  # noqa: ANN401 - psycopg's generic class
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


@cache
def _pymysql_connection() -> Any:  # noqa: ANN401 - PyMySQL comes without types
    """Return PyMySQL's class, except that a connection that verifies nothing loads no certificates (50 ms each time).

    A context that is handed to PyMySQL would have it demand TLS, where by default it only prefers it.
    """

    class Connection(import_module("pymysql.connections").Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, options: Any) -> Any:  # noqa: ANN401 - as above
            if options:
                return super()._create_ssl_ctx(options)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context

    return Connection


def _bound_pymysql(connection: Any) -> None:  # noqa: ANN401 - PyMySQL comes without types
    """Have each request of a connection end with the verb of its thread."""
    query = connection.query

    def bounded_query(sql: str | bytes, unbuffered: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - as PyMySQL has it
        connection._read_timeout = connection._write_timeout = _left()  # noqa: SLF001 - there is no other way
        return query(sql, unbuffered)

    connection.query = bounded_query


def _never_cancel_first(connection: Any) -> None:  # noqa: ANN401 - psycopg's generic class
    """Have a cancelled task end at once; psycopg itself would first ask the server to cancel, for up to ten seconds."""
    from psycopg import waiting  # noqa: PLC0415 - an optional package

    def wait(steps: Generator[Any, Any, Any], interval: float = 0.1) -> Awaitable[Any]:
        return waiting.wait_async(steps, connection.pgconn.socket, interval=interval)

    connection.wait = wait
