"""The table, and the verbs as statements on it.

A row is never deleted: a removal leaves it as a tombstone, so its version goes on counting.  The first version is the
server's clock in microseconds, which a row that is written less than a million times a second does not overtake: also
where somebody has deleted tombstones, versions only grow.  Each statement is a transaction of its own.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    case,
    cast,
    exc,
    extract,
    func,
    literal_column,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.schema import CreateTable

from caslock.options import MAX_KEY, check_key, check_put
from caslock.store import ABSENT, MAX_VALUE, Entry
from caslock.stores.sql.failures import is_forbidden, is_missing, is_there
from caslock.verbs import Page

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sqlalchemy import ColumnElement, CursorResult, Executable
    from sqlalchemy.types import TypeEngine

_LONGEST_NAME: Final = 255  # bytes; every InnoDB row format can index as many
_HEAD: Final = 190  # bytes of a longer key that begin its name
_LONGEST_TTL: Final = 100 * 366 * 24 * 3600
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_./ ")
_ONE: Final[ColumnElement[int]] = literal_column("1", BigInteger)


def _bytes(longest: int) -> TypeEngine[bytes]:
    return LargeBinary().with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


metadata: MetaData = MetaData()
"""The table of the stores, for Alembic: ``target_metadata = [your_metadata, caslock.stores.sql.metadata]``."""

_table: Final = Table(
    "caslock",
    metadata,
    Column("name", _bytes(_LONGEST_NAME), primary_key=True, comment="the key in UTF-8, or its beginning and a digest"),
    Column("long_key", _bytes(4 * MAX_KEY), comment="the key, where it is too long for a name"),
    Column("value", _bytes(MAX_VALUE), nullable=False),
    Column("version", BigInteger, nullable=False, autoincrement=False, comment="counts the puts into this row"),
    Column("expires", BigInteger, nullable=False, comment="microseconds since 1970 by the server's clock; 0: removed"),
    # Half of each page is left free, so that PostgreSQL can write the new version of a row beside the old one.
    postgresql_with={"fillfactor": 50},
    mysql_engine="InnoDB",
)


_WHO: Final = text(
    "SELECT (SELECT system_identifier FROM pg_control_system()),"
    " (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), to_regclass('caslock')::oid::bigint"
)
_MAKE: Final = CreateTable(_table, if_not_exists=True)


class Reply(NamedTuple):
    """What is used of an answer."""

    rows: Sequence[Any]
    changed: int
    """How many rows the statement has found to change."""
    counted: int
    """What MySQL's LAST_INSERT_ID has noted."""


Request: TypeAlias = "tuple[Executable, dict[str, Any]]"
Verb: TypeAlias = "Generator[Request, Reply, Entry | None]"
"""A verb gives one statement after the other, and is sent the answer to each."""

_T = TypeVar("_T")


class Verbs:
    """The verbs in the words of one kind of server."""

    def __init__(self, backend: str) -> None:
        """`backend` is "postgresql" or "mysql"."""
        self._counts = backend == "mysql"
        self._create = _create_in_mysql() if self._counts else _create_in_postgresql()
        now = _NOW[backend]
        name, version = _table.c.name == bindparam("key_name"), _table.c.version == bindparam("at")
        alive = _table.c.expires > now
        self._get = select(_table.c.value, _table.c.version).where(name, alive)
        ends: ColumnElement[int] = now + bindparam("ttl")
        removed: ColumnElement[int] = literal_column("0", BigInteger)
        if not self._counts:
            ends, removed = ends + _wake(), _wake()
        self._replace = (
            update(_table)
            .where(name, version, alive)
            .values(value=bindparam("new"), version=_table.c.version + _ONE, expires=ends)
        )
        self._remove = update(_table).where(name, version).values(value=literal_column("''"), expires=removed)
        key = func.coalesce(_table.c.long_key, _table.c.name)
        begins = func.substr(key, _ONE, bindparam("length", type_=Integer)) == bindparam("prefix", type_=LargeBinary)
        self._list = select(key, _table.c.value, _table.c.version).where(begins, alive)

    def reply(self, result: CursorResult[Any]) -> Reply:
        """Read an answer, all of which has come."""
        if result.returns_rows:
            return Reply(result.all(), 0, 0)
        return Reply((), result.rowcount, result.lastrowid or 0 if self._counts else 0)

    def get(self, key: str) -> Verb:
        """See `Store.get`."""
        return self._look(name_of(key)[0])

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb:
        """See `Store.put_if_version`."""
        name, long_key = name_of(key)
        check_put(value, ttl, _LONGEST_TTL)
        new = {"key_name": name, "new": value, "ttl": math.ceil(ttl * 1_000_000)}
        return self._put(name, version, new, long_key)

    def _put(self, name: bytes, version: int, new: dict[str, Any], long_key: bytes | None) -> Verb:
        if version == ABSENT:
            answer = yield self._create, {**new, "long_key": long_key}
            written = answer.rows[0][0] if answer.rows else answer.counted
        else:
            answer = yield self._replace, {**self._place(name), **new, "at": version}
            written = version + answer.changed if answer.changed else 0
        if written:
            return Entry(new["new"], written)
        return (yield from self._look(name))

    def remove(self, key: str, version: int) -> Verb:
        """See `Store.invalidate`."""
        return self._removed(name_of(key)[0], version)

    def _removed(self, name: bytes, version: int) -> Verb:
        answer = yield self._remove, {**self._place(name), "key_name": name, "at": version}
        return None if answer.changed else (yield from self._look(name))

    def _place(self, name: bytes) -> dict[str, Any]:
        return {} if self._counts else {"place": place_of(name)}

    def _look(self, name: bytes) -> Verb:
        # The loser of a put asks in a statement of its own: the snapshot of the first may be older than the winner.
        answer = yield self._get, {"key_name": name}
        return next((Entry(bytes(value), version) for value, version in answer.rows), None)

    def page(self, prefix: str, after: None) -> Generator[Request, Reply, Page]:
        """See `ListingStore.list`: all of them in one statement, which looks at every row."""
        del after
        begins = check_key(prefix) if prefix else b""
        answer = yield self._list, {"length": len(begins), "prefix": begins}
        entries = [(bytes(key), Entry(bytes(value), version)) for key, value, version in answer.rows]
        return Page([(key.decode(), entry) for key, entry in entries], None)

    def identify(self) -> Generator[Request, Reply, str | None]:
        """See `IdentifiedStore.identify`."""
        if self._counts:
            return None  # what MySQL calls its name is copied with its files, and MariaDB has none
        try:
            answer = yield _WHO, {}
            if None in answer.rows[0]:
                yield _MAKE, {}
                answer = yield _WHO, {}
        except exc.DBAPIError as error:
            if is_forbidden(error):
                return None
            raise
        system, database, table = answer.rows[0]
        return f"postgresql:{system}:{database}:{table}"


def with_table(verb: Generator[Request, Reply, _T]) -> Generator[Request, Reply, _T]:
    """Make the table where an insert does not find it, and repeat that; any other statement finds no row there."""
    step = partial(next, verb)
    while True:
        try:
            request = step()
        except StopIteration as done:
            result: _T = done.value
            return result
        try:
            step = partial(verb.send, (yield request))
        except exc.DBAPIError as error:
            if not is_missing(error):
                step = partial(verb.throw, error)
                continue
            if not isinstance(request[0], Insert):
                step = partial(verb.send, Reply((), 0, 0))
                continue
            try:
                yield _MAKE, {}
            except exc.DBAPIError as problem:
                if not is_there(problem):
                    raise
            step = partial(verb.send, (yield request))


def name_of(key: str) -> tuple[bytes, bytes | None]:
    """Return the name of a key's row, and the key in bytes if it is too long to be the name."""
    name = check_key(key)
    if len(name) <= _LONGEST_NAME:
        return name, None
    # No UTF-8 has the byte 0xff, so no key is the name of another.
    return name[:_HEAD] + b"\xff" + hashlib.sha256(name).digest(), name


def place_of(name: bytes) -> int:
    """Return the number by which a key is waited for: that of an advisory lock, and of a channel."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"caslock").digest(), "big", signed=True)


def look_at(name: bytes, version: int) -> str:
    """Return a statement for PostgreSQL whose one row is true as long as the entry has this version."""
    escaped = "".join(chr(byte) if byte in _PLAIN else rf"\\{byte:03o}" for byte in name)
    return (
        f"SELECT true FROM caslock WHERE name = decode(E'{escaped}', 'escape') AND version = {version:d}"  # noqa: S608 - all but `_PLAIN` is escaped
        " AND expires > extract(epoch FROM clock_timestamp()) * 1000000"
    )


CHANNEL: Final = "caslock"
"""What the name of a channel begins with; the place of the key follows."""


def _wake() -> ColumnElement[int]:
    """Return 0, and notify those who wait for the key, if there are any.

    They share an advisory lock, which we then can't have.  All transactions that notify commit one after the other,
    each with a write to the disk of its own; so those of keys that nobody waits for must not.

    It is part of a value that is set, because a RETURNING took 5 % of the time of an acquire and a release.  A put that
    expects absence does not notify: waiters have learned of the removal, and need not of the end of a lease.
    """
    nothing, place = literal_column("0", BigInteger), bindparam("place", type_=BigInteger())
    channel = literal_column(f"'{CHANNEL}'", String).concat(cast(place, String))
    notified = func.pg_notify(channel, literal_column("''")).is_not(null())
    return case((func.pg_try_advisory_xact_lock(place), nothing), (notified, nothing), else_=nothing)


_NOW: Final[dict[str, ColumnElement[int]]] = {
    # In PostgreSQL, now() is when the transaction began, and this is when the row is looked at.
    "postgresql": cast(extract("epoch", func.clock_timestamp()) * literal_column("1000000"), BigInteger),
    # In MySQL, it is when the statement began.  If that waits for a row, what it writes ends early by that: after the
    # time for which its holder believes in it, because that counts from before the request was sent.
    "mysql": func.timestampdiff(
        literal_column("MICROSECOND"),
        literal_column("'1970-01-01'"),
        func.utc_timestamp(literal_column("6")),
        type_=BigInteger(),
    ),
}


def _row(now: ColumnElement[int], version: ColumnElement[int]) -> dict[str, Any]:
    return {
        "name": bindparam("key_name"),
        "long_key": bindparam("long_key"),
        "value": bindparam("new"),
        "version": version,
        "expires": now + bindparam("ttl"),
    }


def _create_in_postgresql() -> Executable:
    now = _NOW["postgresql"]
    statement = postgresql.insert(_table).values(_row(now, now))
    return statement.on_conflict_do_update(
        index_elements=[_table.c.name],
        set_={
            "value": statement.excluded.value,
            "version": _table.c.version + _ONE,
            "expires": now + bindparam("ttl"),
        },
        where=_table.c.expires <= now,  # else nothing is written and no row comes back
    ).returning(_table.c.version)


def _create_in_mysql() -> Executable:
    now = _NOW["mysql"]
    expired = _table.c.expires <= now

    def counted(number: Any) -> ColumnElement[int]:  # noqa: ANN401 - whatever SQLAlchemy takes
        return func.last_insert_id(number, type_=BigInteger())

    statement = mysql.insert(_table).values(_row(now, counted(now)))
    return statement.on_duplicate_key_update(  # in this order: each sees what those before it have set
        [
            ("value", case((expired, statement.inserted.value), else_=_table.c.value)),
            (
                "version",
                case(
                    (expired, counted(_table.c.version + _ONE)), else_=_table.c.version + counted(literal_column("0"))
                ),
            ),
            ("expires", case((expired, statement.inserted.expires), else_=_table.c.expires)),
        ]
    )
