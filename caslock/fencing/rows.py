"""Rows of a database, each with its fence in a column, by SQLAlchemy Core in a transaction of the user."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Integer, Table, and_, exc, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from caslock.errors import StaleFence
from caslock.fencing.fence import checked

_TRIES: Final = 3
_NO_SAVEPOINT: Final = ("mysql", "mariadb", "sqlite")
"""A statement that they refuse does not end the transaction; and after a deadlock, MySQL has no savepoint any more."""


def fence_column(name: str = "fence") -> Column[int]:
    """Return the column for the fences of a table: BIGINT, because INTEGER is too small; 0 in rows never guarded.

    In SQL: ``ALTER TABLE rooms ADD COLUMN fence BIGINT NOT NULL DEFAULT 0``.
    """
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def write_row(
    connection: Connection,
    table: Table,
    key: Mapping[str, object],
    values: Mapping[str, object] | None = None,
    *,
    fence: int,
    column: str = "fence",
) -> None:
    """Update the row of that primary key, or insert it, unless it was written with a larger fence.

    For a row that exists, it is one statement, ``UPDATE ... SET ..., fence = :fence WHERE ... AND fence <= :fence``.
    The row stays locked until the transaction ends, so further statements of that transaction are guarded as well:
    without `values`, this only claims the row for them.

    Do not delete a guarded row: its fence would be forgotten.  Empty it instead.

    Args:
        connection: a connection in a transaction; of a session, ``session.connection()``.
        table: has a column for the fence, see `fence_column`; of a mapped class, ``Room.__table__``.
        key: the columns of the primary key, by name.
        values: the other columns to write, by name.  They may be SQL expressions, such as ``table.c.count + 1``, if the
            row exists.
        fence: `Hold.fence` of the writer.
        column: the name of the column for the fence.

    Raises:
        StaleFence: the row has a larger fence; nothing was written.  Let it end the transaction.
        sqlalchemy.exc.SQLAlchemyError: as the database raises it.
        ValueError, TypeError: the arguments do not fit the table, or the column is not BIGINT; nothing was sent.

    """
    checked(fence)
    _check(connection, table, key, values or {}, column)
    row = and_(*(table.c[name] == value for name, value in key.items()))
    seen = func.coalesce(table.c[column], 0)  # NULL, where the column was added to rows without a default
    change = update(table).where(row, seen <= fence).values({**(values or {}), column: fence})
    for tries_left in reversed(range(_TRIES)):
        if connection.execute(change).rowcount == 1:
            return
        # For update, to read also what is newer than the snapshot of the transaction.
        there = connection.execute(select(seen).where(row).with_for_update()).scalar_one_or_none()
        if there is not None and there > fence:
            raise StaleFence(f"{table.fullname} {dict(key)}", fence, there)
        try:
            with nullcontext() if connection.dialect.name in _NO_SAVEPOINT else connection.begin_nested():
                connection.execute(insert(table).values({**key, **(values or {}), column: fence}))
        except exc.IntegrityError:
            if not tries_left:
                raise
            continue  # another writer may have inserted it meanwhile: look at its fence
        return


async def write_row_async(
    connection: AsyncConnection,
    table: Table,
    key: Mapping[str, object],
    values: Mapping[str, object] | None = None,
    *,
    fence: int,
    column: str = "fence",
) -> None:
    """Do the same in a transaction of an ``AsyncConnection``; see `write_row`."""
    if not isinstance(connection, AsyncConnection):
        raise TypeError(f"connection must be an AsyncConnection, not {type(connection).__name__}")
    await connection.run_sync(write_row, table, key, values, fence=fence, column=column)


def _check(
    connection: Connection, table: Table, key: Mapping[str, object], values: Mapping[str, object], column: str
) -> None:
    if not isinstance(connection, Connection):
        hint = "; for an AsyncConnection there is write_row_async" if isinstance(connection, AsyncConnection) else ""
        raise TypeError(f"connection must be a Connection of SQLAlchemy, not {type(connection).__name__}{hint}")
    if not isinstance(table, Table):
        raise TypeError(f"table must be a Table of SQLAlchemy, not {type(table).__name__}")
    if column not in table.c:
        raise ValueError(f"table {table.fullname} has no column {column!r}: add caslock.fencing.fence_column()")
    kind = table.c[column].type
    if isinstance(kind, Integer) and not isinstance(kind, BigInteger):
        raise TypeError(f"column {table.fullname}.{column} must be BIGINT, because fences need more than 32 bits")
    _check_columns("key", key, "{'id': 42}")
    _check_columns("values", values, "{'guest': 'Ada'}")
    primary = sorted(part.key for part in table.primary_key)
    if not primary or sorted(key) != primary:
        raise ValueError(f"key must name the primary key of {table.fullname}, {primary}, not {sorted(key)}")
    if not_values := sorted({*key, column} & {*values}):
        raise ValueError(
            f"values must not contain {', '.join(not_values)}: the key and the fence are given on their own"
        )
    if connection.dialect.name != "sqlite" and _commits_each_statement(connection):
        raise ValueError("connection must be in a transaction, and not in AUTOCOMMIT mode")


def _check_columns(name: str, columns: object, example: str) -> None:
    wrong = [type(columns).__name__]
    if isinstance(columns, Mapping):
        wrong = [f"one of {type(each).__name__}" for each in columns if not isinstance(each, str)]
    if wrong:
        raise TypeError(f"{name} must be a mapping of column names, such as {example}, not {wrong[0]}")


def _commits_each_statement(connection: Connection) -> bool:
    driver = connection.connection.dbapi_connection
    try:
        return driver is not None and connection.dialect.detect_autocommit_setting(driver)
    except NotImplementedError:  # of a dialect that cannot tell
        return False
