"""Fixtures of several files: servers (shared, and private ones with options of their own), locations and threads."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol, cast

import pytest
import redis
from xdist.workermanage import WorkerController

from caslock import connect
from caslock.local import thread_renewer
from caslock.local.schedule import Schedule
from caslock.stores.dynamodb import DynamoDBStore
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract  # noqa: F401 - before any of its parts, or their asserts are not rewritten
from tests.support import servers
from tests.support.life import check_each_step
from tests.support.locations import KINDS, Place, fresh, opened, until
from tests.support.servers import HOST, Kind, Server, absent, free_port, private, shared

check_each_step()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Have three workers for each processor with ``-n auto``, but not with ``-n logical``: many tests wait."""
    if config.getoption("numprocesses") == "logical" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist decides
    return 3 * (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)


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
    lacking = {why: number for why, number in skipped.most_common() if why.startswith(servers.MISSING)}
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and then freeze what there is: more than most tests make."""
    gc.disable()
    done = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return done


@pytest.fixture(autouse=True)
def _holds_end_with_their_test() -> Iterator[None]:
    """Renew nothing that a test has left held: later tests replace what the renewals would use."""
    yield
    with thread_renewer._guard:
        if thread_renewer._renewer:
            thread_renewer._renewer._schedule = Schedule()


@pytest.fixture(scope="session", autouse=True)
def _stores_are_patient() -> Iterator[None]:
    """Let a request take 20 s, in place of 2, at a store that is opened without a timeout: the machine may be busy."""
    with pytest.MonkeyPatch.context() as patched:
        for module in ("shared.options", "sql.target", "dynamodb.target", "zookeeper.target"):
            patched.setattr(f"caslock.stores.{module}.TIMEOUT", 20.0)
        patched.setattr("caslock.stores.redis.server._TIMEOUT", 20.0)
        yield


@pytest.fixture(autouse=True)
def _garbage_ends_with_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what a test may leave whose warnings are filtered: later tests would be blamed for it."""
    yield
    if request.node.get_closest_marker("filterwarnings"):
        gc.collect()


class NewServer(Protocol):
    """Starts a private server with further command-line arguments, to be called in the main thread."""

    def __call__(self, *args: str) -> Server:
        """Start it; it ends with the test."""
        ...


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker of xdist where the servers are that all workers share."""
    node.workerinput["servers"] = servers.host().address


@pytest.fixture(scope="session")
def _host(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return the address of the `Host` of this run; none without workers."""
    given: dict[str, str] = getattr(request.config, "workerinput", {})
    return (given["servers"],) if given else ()


def _shared_server(kind: Kind, start: Callable[..., AbstractContextManager[Server]] = shared) -> object:
    @pytest.fixture(scope="session")
    def server(tmp_path_factory: pytest.TempPathFactory, _host: tuple[str, ...]) -> Iterator[Server]:
        """Return the server that all tests share: use keys of your own."""
        with start(kind, tmp_path_factory.mktemp(kind.name), *(_host if kind.name in servers.HOSTED else ())) as server:
            if kind is servers.MEMCACHED:
                old_enough(server)
            yield server

    return server


redis_server = _shared_server(servers.REDIS)
memcached_server = _shared_server(servers.MEMCACHED)
postgresql_server = _shared_server(servers.POSTGRESQL)
mysql_server = _shared_server(servers.MYSQL)
zookeeper_server = _shared_server(servers.ZOOKEEPER)
etcd_server = _shared_server(servers.ETCD)
hazelcast_server = _shared_server(servers.HAZELCAST)
nats_server = _shared_server(servers.NATS)
_spare_redis = _shared_server(servers.REDIS, private)
_spare_memcached = _shared_server(servers.MEMCACHED, private)


@pytest.fixture
def pgbouncer(postgresql_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of a PgBouncer in transaction mode, with one connection to the server."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        absent("no pgbouncer: `make servers SERVERS=all` installs one")
    folder, port = tmp_path_factory.mktemp("pgbouncer"), free_port()
    settings = (
        f"[databases]\n* = host={HOST} port={postgresql_server.port} user=caslock\n"
        f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 1\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".ini", delete=False) as file:
        file.write(settings)
    Path(file.name).chmod(0o644)
    body = servers.Process([*servers.as_nobody(), binary, file.name], folder)
    body.start()
    try:
        assert until(lambda: servers.listens(port)), body.log()
        yield f"postgresql://caslock@{HOST}:{port}/postgres"
    finally:
        body.remove()
        Path(file.name).unlink()


@pytest.fixture(scope="session")
def dynamodb_server(tmp_path_factory: pytest.TempPathFactory, _host: tuple[str, ...]) -> Iterator[Server]:
    """Return the DynamoDB Local that all tests share, with a table: use keys of your own."""
    with (
        shared(servers.DYNAMODB, tmp_path_factory.mktemp("dynamodb"), *_host) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            if name not in os.environ:
                patch.setenv(name, "caslock")
        with cast("DynamoDBStore", connect(f"{server.url}&timeout=300")) as store:
            store.create_table()
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
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n"
        "extendedKeyUsage=serverAuth,clientAuth\n"
    )
    for who in ("server", "client"):
        run("req", *new[:-2], "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names"]
        run("x509", "-req", "-in", f"{who}.csr", *signed, "-out", f"{who}.pem")
    return folder


@pytest.fixture(scope="session", params=["emulator", "module"] if servers.tair_module() else ["emulator"])
def tair(request: pytest.FixtureRequest) -> Kind:
    """Return a kind of server with TairString: the emulator, and the real module if there is one."""
    module = servers.tair_module()
    if request.param == "module" and module:
        return module
    assert servers.REDIS.binary() or servers.missing(servers.REDIS)
    return servers.TAIR_EMULATOR


@pytest.fixture(scope="session")
def tair_server(tair: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return the server with TairString that all tests share: use keys of your own."""
    give = shared if tair is not servers.TAIR_EMULATOR and servers.is_url(tair) else private
    with give(tair, tmp_path_factory.mktemp("tair")) as server:
        yield server


@pytest.fixture
def new_tair(tair: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Start private servers with TairString: ``new_tair("--requirepass", "secret")``."""
    if tair is not servers.TAIR_EMULATOR and servers.is_url(tair):
        pytest.skip(f"{servers.MISSING}a TairString that a test may start: {tair.variable} may name its file")
    with _factory(tair, tmp_path_factory) as new:
        yield new


def _new_servers(kind: Kind) -> object:
    @pytest.fixture
    def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
        """Start private servers with options of their own: ``new_redis("--requirepass", "secret")``."""
        with _factory(kind, tmp_path_factory) as new:
            yield new

    return new_server


new_redis = _new_servers(servers.REDIS)
new_memcached = _new_servers(servers.MEMCACHED)
new_etcd = _new_servers(servers.ETCD)
new_nats = _new_servers(servers.NATS)


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
def key() -> str:
    """Return a key that no other test uses."""
    return fresh()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Give threads, as many as a test may need."""
    with ThreadPoolExecutor(64) as pool:
        yield pool


def old_enough(memcached: Server) -> None:
    """Wait until a memcached that has only just started accepts writes, even if that outlasts most timeouts."""
    with contextlib.closing(MemcachedStore.from_url(f"{memcached.url}?timeout=300")) as store:
        store.get("a key")


def fill(memcached: Server, *sizes: int) -> None:
    """Put values of each size in turn, until there is no room for one more."""
    with socket.create_connection((memcached.host, memcached.port)) as connection, connection.makefile("rb") as replies:
        for size in sizes:
            for number in itertools.count():
                connection.sendall(b"add fill%d:%d 0 0 %d\r\n%b\r\n" % (size, number, size, b"f" * size))
                if replies.readline() != b"STORED\r\n":
                    break


@contextlib.contextmanager
def _factory(kind: Kind, folders: pytest.TempPathFactory) -> Iterator[NewServer]:
    with contextlib.ExitStack() as stack:

        def new(*args: str) -> Server:
            return stack.enter_context(private(kind, folders.mktemp(kind.name), *args))

        yield new
