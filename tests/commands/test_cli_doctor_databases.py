"""``caslock doctor`` finds what is wrong with databases."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from caslock import connect
from caslock.cli import doctor_mysql, doctor_postgresql
from caslock.cli.doctor import examined
from caslock.store import ABSENT
from tests.commands.test_cli_doctor import findings
from tests.support.locations import until
from tests.support.servers import HOST, MYSQL, POSTGRESQL, Process, Server, absent, free_port, private

FSYNC = {"fsync is off": "warning"}
"""How the servers of the tests are set up, so that they are quick."""
USUAL = {**FSYNC, "there is no table caslock yet": "note"}


def found(url: str) -> dict[str, str]:
    patient = f"{url}{'&' if '?' in url else '?'}timeout=20"
    with connect(patient) as store:
        told = {finding.what: finding.severity.name for finding in examined(store, patient)[1]}
    return found(url) if any(what.startswith("it answers in") for what in told) else told


class Role:
    """A user of a PostgreSQL, with a schema of its own."""

    def __init__(self, server: Server) -> None:
        self.name = f"doctor_{uuid.uuid4().hex}"
        self.url = server.url.replace("caslock@", f"{self.name}@")
        self._admin = psycopg.connect(server.url, autocommit=True)
        self.run(
            "CREATE SCHEMA %s; CREATE ROLE %s LOGIN; GRANT ALL ON SCHEMA %s TO %s; ALTER ROLE %s SET search_path = %s"
        )

    def run(self, statement: str) -> None:
        """Run a statement as the administrator, with the name of the role for each ``%s``."""
        self._admin.execute(statement.replace("%s", self.name).encode())

    def close(self) -> None:
        self.run("DROP SCHEMA %s CASCADE; DROP OWNED BY %s; DROP ROLE %s")
        self._admin.close()


@pytest.fixture
def role(postgresql_server: Server) -> Iterator[Role]:
    """Give a user of a PostgreSQL that may do everything in a schema of its own."""
    with contextlib.closing(Role(postgresql_server)) as role:
        yield role


BAD_ROLES = {
    "SET synchronous_commit = off": ("synchronous_commit is off", "warning"),
    "SET default_transaction_isolation = 'repeatable read'": ("transactions are repeatable read", "warning"),
    "SET default_transaction_read_only = on": ("transactions are read-only", "danger"),
}


@pytest.mark.parametrize("setting", BAD_ROLES)
def test_what_is_wrong_with_the_settings_of_postgresql_is_found(setting: str, role: Role) -> None:
    """Each bad setting has its finding."""
    role.run(f"ALTER ROLE %s {setting}")
    what, severity = BAD_ROLES[setting]
    assert found(role.url)[what] == severity


def test_options_of_the_url_leave_statements_their_limit(role: Role) -> None:
    """The server has both settings: that of the URL, and `statement_timeout`."""
    facts = found(f"{role.url}?options=-c%20synchronous_commit%3Doff")
    assert facts == {**USUAL, "synchronous_commit is off": "warning"}


def test_servers_that_are_too_old_are_found(role: Role, mysql_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a later version were needed."""
    monkeypatch.setattr(doctor_postgresql, "_OLDEST", 1000)
    monkeypatch.setattr(doctor_mysql, "_OLDEST", {True: (1000, 0), False: (1000, 0)})
    for url in (role.url, mysql_server.url):
        assert [severity for what, severity in found(url).items() if what.startswith("version ")] == ["danger"]


@pytest.mark.long
def test_doctor_does_not_make_the_table(role: Role) -> None:
    """It says whether there is one, and whether the user may make it and write to it; to look does not make it."""
    for _ in range(2):
        assert found(role.url) == USUAL
    role.run("REVOKE CREATE ON SCHEMA %s FROM %s")
    assert findings(role.url) == (3, {**FSYNC, "there is no table caslock, and this user may not make it": "danger"})
    role.run("GRANT CREATE ON SCHEMA %s TO %s")
    with connect(role.url) as store:
        store.put_if_version("k", b"v", ABSENT, 1)
    assert found(role.url) == FSYNC
    role.run("REVOKE INSERT ON %s.caslock FROM %s")
    assert found(role.url) == {**FSYNC, "this user may not write to the table caslock": "danger"}


def _standby(port: int, folder: Path) -> list[str]:
    """Make a cluster of databases that waits for what a primary sends."""
    arguments = POSTGRESQL.arguments(port, folder)
    (Path(arguments[1]) / "standby.signal").touch()
    return arguments


@pytest.mark.long
def test_standbys_of_postgresql_are_looked_at(tmp_path: Path) -> None:
    """A standby takes no locks; a primary with one should wait for it, and takes none if it waits in vain."""
    with private(replace(POSTGRESQL, arguments=_standby), tmp_path) as server:
        assert found(server.url) == {"it is a standby": "danger"}
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
            assert found(server.url) == USUAL
            place = ["-h", HOST, "-p", str(server.port), "-U", "caslock", "-D", str(tmp_path)]
            body = Process([_receiver(), "--synchronous", *place], tmp_path)
            body.start()
            try:
                warned = {**USUAL, "writes do not wait for the standbys (1)": "warning"}
                assert until(lambda: found(server.url) == warned), body.log()
                admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                admin.execute("SELECT pg_reload_conf()")
                assert until(lambda: found(server.url) == USUAL)
            finally:
                body.remove()
            alone = {**USUAL, "a standby has to acknowledge a write, and none is there": "danger"}
            assert until(lambda: found(server.url) == alone)


def _receiver() -> str:
    return str(Path(os.path.realpath(POSTGRESQL.binary() or "")).with_name("pg_receivewal"))


def test_a_pooler_before_postgresql_is_noticed(pgbouncer: str) -> None:
    """PgBouncer passes on no settings, so the user of the database needs a limit of its own."""
    facts = found(pgbouncer)
    assert facts["the session is not caslock's own: a pooler such as PgBouncer is between"] == "note"
    assert facts["statement_timeout is 0"] == "warning"


@contextlib.contextmanager
def administered(server: Server) -> Iterator[Connection]:
    engine = create_engine(make_url(server.url).set(drivername="mysql+pymysql"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as admin:
            yield admin
    finally:
        engine.dispose()


@pytest.mark.long
def test_what_is_wrong_with_a_mariadb_is_found(mysql_server: Server) -> None:
    """How it writes to its disk, whether it only reads, and whether it is a replica."""
    url = str(make_url(mysql_server.url).set(database="doctor"))
    if mysql_server.body is None:
        pytest.skip("missing: a mysql server of ours: CASLOCK_TEST_MYSQL names another one")
    usual = {"there is no table caslock yet": "note", "innodb_flush_log_at_trx_commit is 0": "warning"}
    with administered(mysql_server) as mysql:
        mysql.execute(text("CREATE DATABASE doctor"))
        try:
            for _ in range(2):  # to look makes no table
                assert findings(url) == (1, usual)
            with connect(url) as store:
                store.put_if_version("k", b"v", ABSENT, 1)
            mysql.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))
            assert found(url) == {}
            mysql.execute(text("GRANT SELECT, UPDATE ON doctor.* TO doctor IDENTIFIED BY ''"))
            facts = found(url.replace("root@", "doctor@"))
            assert facts["this user may not write to the table caslock"] == "danger"
            mysql.execute(text("SET GLOBAL read_only = 1"))
            mysql.execute(text(f"CHANGE MASTER TO MASTER_HOST = '{HOST}', MASTER_USER = 'nobody'"))
            assert found(url) == {"it is read-only": "danger", "it is a replica": "danger"}
            mysql.execute(text("GRANT ALL ON doctor.* TO doctor IDENTIFIED BY ''"))
            facts = found(url.replace("root@", "doctor@"))
            assert facts == {"it is read-only": "danger", "whether it is a replica is not told to this user": "note"}
        finally:
            restore = ["RESET SLAVE ALL", "SET GLOBAL read_only = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0"]
            for statement in [*restore, "DROP DATABASE doctor", "DROP USER IF EXISTS doctor"]:
                mysql.execute(text(statement))


@pytest.mark.long
def test_replicas_of_a_mariadb_are_looked_at(tmp_path: Path) -> None:
    """Writes should wait for them, and the log that they read should be on the disk."""
    options = ("--log-bin=log", "--server-id=1", "--sync-binlog=0", "--version=5.7.10")
    reader = shutil.which("mariadb-binlog") or absent("no mariadb-binlog: `make servers SERVERS=all` installs one")
    with private(MYSQL, tmp_path, *options) as server:
        usual = {
            "it is MySQL, on which caslock was not tested": "note",
            "there is no table caslock yet": "note",
            "innodb_flush_log_at_trx_commit is 0": "warning",
            "sync_binlog is 0": "warning",
        }
        assert found(server.url) == usual
        command = [reader, "--no-defaults", "-h", HOST, "-P", str(server.port), "-u", "root"]
        command += ["--read-from-remote-server", "--stop-never", "--raw", f"--result-file={tmp_path}/", "log.000001"]
        body = Process(command, tmp_path)
        body.start()
        try:
            assert until(lambda: "writes do not wait for the replicas (1)" in found(server.url)), body.log()
            with administered(server) as admin:
                admin.execute(text("SET GLOBAL rpl_semi_sync_master_enabled = 1"))
            assert found(server.url) == usual
        finally:
            body.remove()


@pytest.mark.long
def test_a_galera_cluster_is_noticed(tmp_path: Path) -> None:
    """Its nodes have clocks of their own."""
    library = Path("/usr/lib/galera/libgalera_smm.so")
    if not library.exists():
        absent("no Galera: apt-get install galera-4")
    port = free_port()
    options = (
        "--wsrep-on=ON",
        f"--wsrep-provider={library}",
        "--wsrep-cluster-address=gcomm://",
        f"--wsrep-provider-options=base_port={port};gmcast.listen_addr=tcp://{HOST}:{port}",
        "--binlog-format=ROW",
    )
    with private(MYSQL, tmp_path, *options) as server:
        assert found(server.url)["it is a node of a Galera cluster"] == "warning"
