"""Fixtures of several files: servers (shared, and private ones with options of their own), locations and threads."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

import pytest
import redis

from caslock import connect
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import MemoryStore
from tests.support import turns
from tests.support.locations import KINDS, Place, opened, until
from tests.support.servers import (
    DYNAMODB,
    ETCD,
    HAZELCAST,
    HOST,
    MEMCACHED,
    MISSING,
    MYSQL,
    NATS,
    POSTGRESQL,
    REDIS,
    TAIR_EMULATOR,
    ZOOKEEPER,
    Kind,
    Process,
    Server,
    absent,
    as_nobody,
    free_port,
    is_url,
    missing,
    private,
    shared,
    tair_module,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

    from caslock.stores.dynamodb import DynamoDBStore


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Have workers for tests that wait with ``-n auto``, but not with ``-n logical``."""
    if config.getoption("numprocesses") == "logical" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist decides
    return turns.PROCESSORS + turns.LANES


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Send each test to the next worker that is free, but those that wait to workers of their own."""
    return turns.scheduling()(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout's: no test is late because it waits here
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run no more tests at one time than there are processors, beside those that wait."""
    session: str | None = getattr(item.config, "workerinput", {}).get("testrunuid")
    with contextlib.nullcontext() if session is None or turns.waits(item.nodeid) else turns.turn(session):
        return (yield)


_passed = itertools.count(1)


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """With ``-q`` and several workers, write a dot for a hundred tests that have passed: a run is one line."""
    if config.get_verbosity() >= 0 or not config.getoption("numprocesses", None):
        return None
    if report.when == "call" and report.passed:
        return "passed", "" if next(_passed) % 100 else ".", ""
    return ("skipped", "", "") if report.skipped and not hasattr(report, "wasxfail") else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped: a line for each thing that is missing here, and one for all that does not apply."""
    if terminalreporter.hasopt("s"):  # ``-rs`` lists them all
        return
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    skipped = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    lacking = {why: number for why, number in skipped.most_common() if why.startswith(MISSING)}
    for why, number in lacking.items():
        terminalreporter.write_line(f"{number} skipped, {why}")
    others = skipped.total() - sum(lacking.values())
    if others:
        terminalreporter.write_line(f"{others} skipped: the store lacks a verb, or the like (-rs lists them)")


LONGEST: Final = ("test_torture.py", "test_verify.py")
"""Files of tests that take ten seconds and more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that no worker is left with one while the others have nothing to do."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


class NewServer(Protocol):
    """Starts a private server with further command-line arguments, to be called in the main thread."""

    def __call__(self, *args: str) -> Server:
        """Start it; it ends with the test."""
        ...


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the Redis that all tests share: use keys of your own."""
    with shared(REDIS, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the memcached that all tests share: use keys of your own."""
    with shared(MEMCACHED, tmp_path_factory.mktemp("memcached")) as server:
        old_enough(server)
        yield server


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the PostgreSQL that all tests share: use keys of your own."""
    with shared(POSTGRESQL, tmp_path_factory.mktemp("postgresql")) as server:
        yield server


@pytest.fixture
def pgbouncer(postgresql_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of a PgBouncer in transaction mode, with one connection to the server."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        absent("no pgbouncer: `make servers SERVERS=all` installs one")
    folder, port = tmp_path_factory.mktemp("pgbouncer"), free_port()
    settings = {
        "listen_addr": HOST,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": 1,
    }
    lines = [f"* = host={HOST} port={postgresql_server.port} user=caslock", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".ini", delete=False) as file:
        file.write("[databases]\n" + "\n".join(lines) + "\n")
    Path(file.name).chmod(0o644)
    body = Process([*as_nobody(), binary, file.name], folder)
    body.start()
    try:
        assert until(lambda: _listens(port)), body.log()
        yield f"postgresql://caslock@{HOST}:{port}/postgres"
    finally:
        body.remove()
        Path(file.name).unlink()


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the MySQL or MariaDB that all tests share: use keys of your own."""
    with shared(MYSQL, tmp_path_factory.mktemp("mysql")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the ZooKeeper that all tests share: use keys of your own."""
    with shared(ZOOKEEPER, tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the etcd that all tests share: use keys of your own."""
    with shared(ETCD, tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def hazelcast_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the Hazelcast that all tests share: use keys of your own."""
    with shared(HAZELCAST, tmp_path_factory.mktemp("hazelcast")) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the DynamoDB Local that all tests share, with a table: use keys of your own."""
    with shared(DYNAMODB, tmp_path_factory.mktemp("dynamodb")) as server, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            if name not in os.environ:
                patch.setenv(name, "caslock")
        with cast("DynamoDBStore", connect(f"{server.url}&timeout=20")) as store:
            store.create_table()
        yield server


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the NATS that all tests share: use keys of your own."""
    with shared(NATS, tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, and certificates of the server and of a client."""
    openssl = shutil.which("openssl")
    if not openssl:
        absent("no openssl on the PATH to make a certificate: `make servers` installs it")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*args: str) -> None:
        subprocess.run([openssl, *args], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "rsa:2048", "-nodes", "-days", "1"]
    use = ["-addext", "keyUsage=critical,keyCertSign"]  # without which Python trusts no authority since 3.13
    run("req", "-x509", *new, *use, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    (folder / "names").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\n"
    )
    for who in ("server", "client"):
        run("req", *new[:-2], "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names"]
        run("x509", "-req", "-in", f"{who}.csr", *signed, "-out", f"{who}.pem")
    return folder


@pytest.fixture(scope="session", params=["emulator", "module"] if tair_module() else ["emulator"])
def tair(request: pytest.FixtureRequest) -> Kind:
    """Return a kind of server with TairString: the emulator, and the real module if there is one."""
    module = tair_module()
    if request.param == "module" and module:
        return module
    if not any(map(shutil.which, REDIS.binaries)):
        missing(REDIS)
    return TAIR_EMULATOR


@pytest.fixture(scope="session")
def tair_server(tair: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the server with TairString that all tests share: use keys of your own."""
    give = shared if tair is not TAIR_EMULATOR and is_url(tair) else private
    with give(tair, tmp_path_factory.mktemp("tair")) as server:
        yield server


@pytest.fixture
def new_tair(tair: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private servers with TairString: ``new_tair("--requirepass", "secret")``."""
    if tair is not TAIR_EMULATOR and is_url(tair):
        pytest.skip(f"the server in {tair.variable} is not ours to start: name the module's file instead")
    with _factory(tair, tmp_path_factory) as new:
        yield new


@pytest.fixture
def new_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private Redis servers: ``new_redis("--requirepass", "secret")``."""
    with _factory(REDIS, tmp_path_factory) as new:
        yield new


@pytest.fixture
def new_memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private memcached servers: ``new_memcached("-m", "8", "-M")``."""
    with _factory(MEMCACHED, tmp_path_factory) as new:
        yield new


@pytest.fixture
def new_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private etcds: ``new_etcd("--quota-backend-bytes=150000")``."""
    with _factory(ETCD, tmp_path_factory) as new:
        yield new


@pytest.fixture
def new_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private NATS servers: ``new_nats("--user", "me", "--pass", "secret")``."""
    with _factory(NATS, tmp_path_factory) as new:
        yield new


@pytest.fixture
def new_hazelcast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private Hazelcasts."""
    with _factory(HAZELCAST, tmp_path_factory) as new:
        yield new


@pytest.fixture
def new_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private ZooKeepers."""
    with _factory(ZOOKEEPER, tmp_path_factory) as new:
        yield new


@pytest.fixture(scope="session")
def _spare_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with private(REDIS, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def _spare_memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with private(MEMCACHED, tmp_path_factory.mktemp("memcached")) as server:
        old_enough(server)
        yield server


@pytest.fixture
def spare_redis(_spare_redis: Server) -> Iterator[Server]:
    """Return a Redis that a test may pause, and that knows no script: use keys of your own."""
    with contextlib.closing(redis.Redis(_spare_redis.host, _spare_redis.port)) as client:
        client.client_kill_filter(_type="normal", skipme=True)  # requests of a test before may wait in its connections
        client.script_flush()
    yield _spare_redis
    _spare_redis.resume()


@pytest.fixture
def spare_memcached(_spare_memcached: Server) -> Iterator[Server]:
    """Return a memcached that a test may pause: use keys of your own."""
    yield _spare_memcached
    _spare_memcached.resume()


@pytest.fixture(params=KINDS)
def location(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return each location in turn."""
    with opened(request.param, request) as location:
        yield location


@pytest.fixture
def memory() -> MemoryStore:
    """Return a store for what does not depend on the store."""
    return MemoryStore()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Give threads, as many as a test may need."""
    with ThreadPoolExecutor(64) as pool:
        yield pool


def old_enough(memcached: Server) -> None:
    """Wait for a memcached that has only just started, for longer than most timeouts."""
    with contextlib.closing(MemcachedStore.from_url(f"{memcached.url}?timeout=20")) as store:
        store.get("a key")


@contextlib.contextmanager
def _factory(kind: Kind, folders: pytest.TempPathFactory) -> Iterator[NewServer]:
    with contextlib.ExitStack() as stack:

        def new(*args: str) -> Server:
            return stack.enter_context(private(kind, folders.mktemp(kind.name), *args))

        yield new


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
