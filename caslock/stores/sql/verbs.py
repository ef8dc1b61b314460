"""The verbs: each yields its statements, is sent the answers, and is run on a connection of SQLAlchemy."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import exc

from caslock.process.guards import on_failure
from caslock.store import ABSENT, Entry, check_key, check_put
from caslock.stores.shared.connections import run
from caslock.stores.shared.verbs import Page, follow
from caslock.stores.sql.failures import is_forbidden, is_missing, is_there
from caslock.stores.sql.statements import IDENTIFY, MAKE_TABLE, MYSQL, POSTGRESQL
from caslock.stores.sql.table import name_of, place_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sqlalchemy import Connection, Executable, Pool

T = TypeVar("T")

_LONGEST_TTL: Final = 100 * 366 * 24 * 3600


class Reply(NamedTuple):
    """What is used of an answer."""

    rows: Sequence[Any] = ()
    changed: int = 0
    """How many rows the statement has found to change."""
    noted: int = 0
    """What MySQL's last_insert_id() has noted."""


Request: TypeAlias = "tuple[Executable, dict[str, Any]]"
Verb: TypeAlias = "Generator[Request, Reply, T]"


class Verbs:
    """The verbs at one kind of server."""

    def __init__(self, backend: str) -> None:
        """`backend` is "postgresql" or "mysql"."""
        self._is_mysql = backend == "mysql"
        self._statements = MYSQL if self._is_mysql else POSTGRESQL

    def get(self, key: str) -> Verb[Entry | None]:
        """See `Store.get`."""
        return self._look(name_of(key)[0])

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """See `Store.put_if_version`."""
        name, long_key = name_of(key)
        check_put(value, ttl, _LONGEST_TTL)
        new = {"name": name, "value": value, "ttl": math.ceil(ttl * 1_000_000)}
        if version == ABSENT:
            answer = yield self._statements.create, {**new, "long_key": long_key}
            written = answer.rows[0][0] if answer.rows else answer.noted
        else:
            answer = yield self._statements.replace, {**new, "version": version, "place": place_of(name)}
            written = version + 1 if answer.changed else ABSENT
        return Entry(value, written) if written else (yield from self._look(name))

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """See `Store.invalidate`."""
        name = name_of(key)[0]
        answer = yield self._statements.remove, {"name": name, "version": version, "place": place_of(name)}
        return None if answer.changed else (yield from self._look(name))

    def page(self, prefix: str, after: None) -> Verb[Page]:
        """See `ListingStore.list`: all of them in one statement, which looks at every row."""
        del after
        begin = check_key(prefix) if prefix else b""
        answer = yield self._statements.list, {"length": len(begin), "prefix": begin}
        return Page([(bytes(key).decode(), Entry(bytes(value), version)) for key, value, version in answer.rows], None)

    def identify(self) -> Verb[str | None]:
        """See `IdentifiedStore.identify`."""
        if self._is_mysql:
            return None  # what MySQL calls its name is copied with its files, and MariaDB has none
        try:
            answer = yield IDENTIFY, {}
            if None in answer.rows[0]:
                yield MAKE_TABLE, {}
                answer = yield IDENTIFY, {}
        except exc.DBAPIError as error:
            if is_forbidden(error):
                return None
            raise
        system, database, table = answer.rows[0]
        return f"postgresql:{system}:{database}:{table}"

    def _look(self, name: bytes) -> Verb[Entry | None]:
        # The loser of a put asks in a statement of its own: the snapshot of the first may be older than the winner.
        answer = yield self._statements.get, {"name": name}
        return next((Entry(bytes(value), version) for value, version in answer.rows), None)

    def run(self, connection: Connection, verb: Verb[T], first: Request | None, pool: Pool) -> T:
        """Run a verb to its end on a connection of a pool, and give it back; after a failure, it is closed."""
        with connection:
            with on_failure(connection.invalidate):
                result = run(follow(verb, partial(self._ask, connection), first))
            if connection.engine.pool is not pool:  # the store was closed meanwhile: nobody takes it from there
                connection.invalidate()
            return result

    async def _ask(self, connection: Connection, request: Request) -> Reply:
        """Execute a statement.  Where there is no table, one that creates an entry makes it; others find nothing."""
        statement, values = request
        try:
            return self._executed(connection, statement, values)
        except exc.DBAPIError as error:
            if not is_missing(error):
                raise
        if statement is not self._statements.create:
            return Reply()
        try:
            connection.execute(MAKE_TABLE)
        except exc.DBAPIError as error:
            if not is_there(error):
                raise
        return self._executed(connection, statement, values)

    def _executed(self, connection: Connection, statement: Executable, values: dict[str, Any]) -> Reply:
        result = connection.execute(statement, values)
        if result.returns_rows:
            return Reply(result.all())
        return Reply((), result.rowcount, result.lastrowid or 0 if self._is_mysql else 0)
