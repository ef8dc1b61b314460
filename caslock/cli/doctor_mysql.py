"""What the settings of a MySQL or MariaDB mean for locks."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import exc, text

from caslock.cli.doctor_sql import connected
from caslock.cli.finding import clock, danger, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from caslock.cli.finding import Finding

_OLDEST: Final = {True: (10, 2), False: (5, 7)}  # of MariaDB, of MySQL

_FACTS: Final = text("""
    SELECT VERSION() AS version, UNIX_TIMESTAMP(SYSDATE(6)) AS time, @@read_only AS read_only,
        @@innodb_flush_log_at_trx_commit AS flushes, @@log_bin AS binlog, @@sync_binlog AS synced,
        (SELECT COUNT(*) FROM information_schema.tables
            WHERE table_schema = DATABASE() AND table_name = 'caslock') AS made,
        (SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%') AS replicas
""")
_WRITE: Final = text("""
    EXPLAIN INSERT INTO caslock (name, value, version, expires) VALUES ('', '', 0, 0)
        ON DUPLICATE KEY UPDATE version = 0
""")  # to explain it takes the rights that it takes, and writes nothing
_DENIED: Final = 1142
_WAITS: Final = text("SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Rpl_semi_sync_%_status' AND Value = 'ON'")
_PRIMARY: Final = text("SHOW REPLICA STATUS")
_GALERA: Final = text("SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_size' AND Value > 0")


def examine(url: str) -> Iterator[Finding]:
    """Ask the server; raises an error of PyMySQL or SQLAlchemy where it does not answer."""
    with connected(url) as connection:
        asked = time.time()
        facts = dict(connection.execute(_FACTS).mappings().one())
        answered = time.time()
        waits = bool(connection.execute(_WAITS).all())
        galera = connection.execute(_GALERA).all()
        is_replica = _is_replica(connection)
        may_write = not facts["made"] or _may_write(connection)
    yield from clock(float(facts["time"]), asked, answered)
    yield from _version(facts["version"])
    if facts["read_only"]:
        yield danger("it is read-only", "it refuses to write, except for administrators", "Name the primary")
    if is_replica:
        means = "what is written here is unknown to its primary, which gives the same locks to others"
        yield danger("it is a replica", means, "Name the primary")
    elif is_replica is None:
        yield note("whether it is a replica is not told to this user", "locks need the primary")
    if not facts["made"]:
        yield note("there is no table caslock yet", "the first acquire makes it, if the user may create tables")
    elif not may_write:
        what = "this user may not write to the table caslock"
        yield danger(what, "no lock can be acquired", "GRANT SELECT, INSERT, UPDATE on it to this user")
    yield from _losses(facts, waits=waits)
    if galera:
        means = "each node measures leases by its own clock, and where clocks differ, leases end early"
        yield warning("it is a node of a Galera cluster", means, "Name the same node in all processes")


def _is_replica(connection: Connection) -> bool | None:
    try:
        return bool(connection.execute(_PRIMARY).all())
    except exc.DBAPIError:  # older servers do not know it, and not every user may ask
        return None


def _may_write(connection: Connection) -> bool:
    try:
        connection.execute(_WRITE)
    except exc.DBAPIError as error:
        return error.orig is None or error.orig.args[0] != _DENIED
    return True


def _version(version: str) -> Iterator[Finding]:
    is_mariadb = "MariaDB" in version
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST[is_mariadb]:
        yield danger(f"version {version}", f"caslock needs {'.'.join(map(str, _OLDEST[is_mariadb]))} or newer")
    if not is_mariadb:
        means = "it has no limit for statements that write: one that was given up may take effect later"
        yield note("it is MySQL, on which caslock was not tested", means, "Run caslock verify")


def _losses(facts: dict[str, Any], *, waits: bool) -> Iterator[Finding]:
    if facts["flushes"] != 1:
        crash = "a crash of the server" if facts["flushes"] == 0 else "a power failure"
        means = f"{crash} loses the locks of the last second, and others get them"
        yield warning(f"innodb_flush_log_at_trx_commit is {facts['flushes']}", means, "Set it to 1")
    if facts["binlog"] and facts["synced"] != 1:
        means = "after a power failure, replicas and this server differ in the newest locks"
        yield warning(f"sync_binlog is {facts['synced']}", means, "Set it to 1")
    if facts["replicas"] and not waits:
        means = "a failover to a replica that lags behind forgets the newest locks, and others get them"
        yield warning(
            f"writes do not wait for the replicas ({facts['replicas']})", means, "Use semisynchronous replication"
        )
