"""The statements.  Each is a transaction of its own, and leases are measured by the server's clock."""

# ruff: noqa: S608 - what is put into statements is ours, but for the name in `look_at`, which is escaped

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Executable, text
from sqlalchemy.schema import CreateTable

from caslock.stores.sql.table import TABLE

CHANNEL: Final = "caslock"
"""What the name of a channel of PostgreSQL begins with; the place of the key follows."""


class Statements(NamedTuple):
    """The statements of the verbs, for one kind of server."""

    get: Executable
    create: Executable
    """Writes if there is no entry.  It notifies nobody: waiters need not learn of the end of a lease."""
    replace: Executable
    remove: Executable
    list: Executable


def _statements(create: str, now: str, wake: str) -> Statements:
    """Make those that are the same for all servers but for the time, and for `wake`: 0, and what else a change does."""
    key = "coalesce(long_key, name)"
    return Statements(
        get=text(f"SELECT value, version FROM caslock WHERE name = :name AND expires > {now}"),
        create=text(create),
        replace=text(
            f"UPDATE caslock SET value = :value, version = version + 1, expires = {now} + :ttl + {wake}"
            f" WHERE name = :name AND version = :version AND expires > {now}"
        ),
        remove=text(f"UPDATE caslock SET value = '', expires = {wake} WHERE name = :name AND version = :version"),
        list=text(
            f"SELECT {key}, value, version FROM caslock WHERE substr({key}, 1, :length) = :prefix AND expires > {now}"
        ),
    )


MAKE_TABLE: Final = CreateTable(TABLE, if_not_exists=True)

# In PostgreSQL, now() is when the transaction began, and this is when the row is looked at.
_NOW_IN_POSTGRESQL: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# This is 0, and notifies those who wait for the key, if there are any: they share an advisory lock, which we then can't
# have.  All transactions that notify commit one after the other, each with a write to the disk of its own; so those of
# keys that nobody waits for must not.  A RETURNING for it took 5 % of the time of an acquire and a release.
_WAKE: Final = (
    f"CASE WHEN pg_try_advisory_xact_lock(:place) THEN 0"
    f" WHEN pg_notify('{CHANNEL}' || :place, '') IS NULL THEN 0 ELSE 0 END"
)

POSTGRESQL: Final = _statements(
    f"""
    INSERT INTO caslock (name, long_key, value, version, expires)
    VALUES (:name, :long_key, :value, {_NOW_IN_POSTGRESQL}, {_NOW_IN_POSTGRESQL} + :ttl)
    ON CONFLICT (name) DO UPDATE
    SET value = excluded.value, version = caslock.version + 1, expires = {_NOW_IN_POSTGRESQL} + :ttl
    WHERE caslock.expires <= {_NOW_IN_POSTGRESQL} -- else nothing is written, and no row comes back
    RETURNING version
    """,
    _NOW_IN_POSTGRESQL,
    _WAKE,
)

IDENTIFY: Final = text("""
    SELECT
        (SELECT system_identifier FROM pg_control_system()),
        (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
        to_regclass('caslock')::oid::bigint
""")
"""Asks PostgreSQL for the cluster, the database and the table."""

# In MySQL, it is when the statement began.  If that waits for a row, what it writes ends early by that: after the time
# for which its holder believes in it, because that counts from before the request was sent.
_NOW_IN_MYSQL: Final = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))"

# Its answer has what last_insert_id() has noted: the version, or 0 if nothing was written.  Each assignment sees what
# those before it have set.
MYSQL: Final = _statements(
    f"""
    INSERT INTO caslock (name, long_key, value, version, expires)
    VALUES (:name, :long_key, :value, last_insert_id({_NOW_IN_MYSQL}), {_NOW_IN_MYSQL} + :ttl)
    ON DUPLICATE KEY UPDATE
        value = if(expires <= {_NOW_IN_MYSQL}, :value, value),
        version = if(expires <= {_NOW_IN_MYSQL}, last_insert_id(version + 1), version + last_insert_id(0)),
        expires = if(expires <= {_NOW_IN_MYSQL}, {_NOW_IN_MYSQL} + :ttl, expires)
    """,
    _NOW_IN_MYSQL,
    "0",
)

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_./ ")


def look_at(name: bytes, version: int) -> str:
    """Return a statement for PostgreSQL whose one row is true as long as the entry has this version."""
    escaped = "".join(chr(byte) if byte in _PLAIN else rf"\\{byte:03o}" for byte in name)
    return (
        f"SELECT true FROM caslock WHERE name = decode(E'{escaped}', 'escape') AND version = {version:d}"
        f" AND expires > {_NOW_IN_POSTGRESQL}"
    )
