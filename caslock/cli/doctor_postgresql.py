"""What the settings of a PostgreSQL mean for locks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from caslock.cli.doctor_sql import connected
from caslock.cli.finding import clock, danger, note, warning
from caslock.stores.sql.connections import is_direct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding

_OLDEST: Final = 10  # of those that psycopg 3 speaks to

# What only some users may see of the standbys is NULL for all others.
_FACTS: Final = text("""
    SELECT current_user AS user, current_setting('server_version') AS version,
        current_setting('server_version_num')::int / 10000 AS release,
        extract(epoch FROM clock_timestamp())::float8 AS time,
        pg_is_in_recovery() AS standby, current_setting('transaction_read_only') = 'on' AS read_only,
        current_setting('transaction_isolation') AS isolation,
        current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commits,
        current_setting('synchronous_standby_names') AS names,
        current_setting('statement_timeout') AS timeout,
        to_regclass('caslock') IS NOT NULL AS made,
        has_schema_privilege(current_schema(), 'CREATE') AS may_make,
        has_table_privilege(to_regclass('caslock'), 'INSERT')
            AND has_table_privilege(to_regclass('caslock'), 'UPDATE') AS may_write
""")
_STANDBYS: Final = text("""
    SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum') OR sync_state IS NULL)
        FROM pg_stat_replication WHERE state = 'streaming' OR state IS NULL
""")


def examine(url: str) -> Iterator[Finding]:
    """Ask the server; raises an error of psycopg or SQLAlchemy where it does not answer."""
    with connected(url) as connection:
        asked = time.time()
        facts = dict(connection.execute(_FACTS).mappings().one())
        answered = time.time()
        direct = is_direct(connection.connection.driver_connection)
        standbys = connection.execute(_STANDBYS).one()
    yield from clock(facts["time"], asked, answered)
    if facts["release"] < _OLDEST:
        yield danger(f"version {facts['version']}", f"caslock needs {_OLDEST} or newer")
    if facts["standby"]:
        cure = "Name the primary, or all servers with ?target_session_attrs=read-write"
        yield danger("it is a standby", "it refuses to write", cure)
    elif facts["read_only"]:
        cure = f"Set default_transaction_read_only off for {facts['user']}"
        yield danger("transactions are read-only", "no lock can be acquired", cure)
    else:
        yield from _table(facts)
        yield from _losses(facts, *standbys)
    yield from _session(facts, direct=direct)


def _table(facts: dict[str, Any]) -> Iterator[Finding]:
    if not facts["made"] and facts["may_make"]:
        yield note("there is no table caslock yet", "the first acquire makes it")
    elif not facts["made"]:
        cure = "Make it by a migration, or grant CREATE on the schema"
        yield danger("there is no table caslock, and this user may not make it", "no lock can be acquired", cure)
    elif not facts["may_write"]:
        cure = f"GRANT SELECT, INSERT, UPDATE ON caslock TO {facts['user']}"
        yield danger("this user may not write to the table caslock", "no lock can be acquired", cure)


def _losses(facts: dict[str, Any], there: int, waited_for: int) -> Iterator[Finding]:
    if facts["fsync"] == "off":
        yield warning("fsync is off", "a power failure loses locks, or the whole database", "Set fsync on")
    commits = facts["commits"]
    if commits == "off":
        means = "a crash of the server loses the newest locks, and others get them"
        yield warning("synchronous_commit is off", means, f"Set it on for {facts['user']}")
    waits = facts["names"] and commits not in ("off", "local")
    if waits and not waited_for:
        what = "a standby has to acknowledge a write, and none is there"
        cure = "Start the standby, or change synchronous_standby_names"
        yield danger(what, "no lock can be acquired", cure)
    elif there and not waits:
        means = "a failover to a standby that lags behind forgets the newest locks, and others get them"
        cure = "Set synchronous_standby_names, and synchronous_commit on, or check fences"
        yield warning(f"writes do not wait for the standbys ({there})", means, cure)


def _session(facts: dict[str, Any], *, direct: bool) -> Iterator[Finding]:
    if facts["isolation"] != "read committed":
        means = "an acquire can fail because another process acquires at the same moment"
        cure = f"Set default_transaction_isolation to 'read committed' for {facts['user']}"
        yield warning(f"transactions are {facts['isolation']}", means, cure)
    if not direct:
        means = "caslock changes no setting of such a session, and prepares no statement; waiters poll"
        yield note("the session is not caslock's own: a pooler such as PgBouncer is between", means)
    if facts["timeout"] == "0":
        means = "a request that was given up may take effect later, and keep a key until its lease ends"
        yield warning("statement_timeout is 0", means, f"ALTER ROLE {facts['user']} SET statement_timeout = '2s'")
