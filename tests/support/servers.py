"""Starts the real servers of the tests on loopback ports, and ends them with the tests.

A server is looked for in this order: a URL in ``CASLOCK_TEST_<NAME>``; a binary on the PATH, started in a temporary
folder; a container if Docker answers.  If there is none, the test is skipped with a line that says how to get it, and
fails with ``CI=true``.  Another kind of server is one more `Kind`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn
from urllib.parse import parse_qsl, urlsplit

import pytest

if TYPE_CHECKING:
    from docker import DockerClient
    from testcontainers.core.container import DockerContainer

if sys.platform != "win32":
    import fcntl


HOST: Final = "127.0.0.1"

PORTS: Final = range(20_000, 32_000)
"""Below those that outgoing connections get: while a server is down, one could take its port, or connect to itself."""

TRIES: Final = 5
"""Ports on which a server is tried to be started, while other programs are faster."""

START: Final = 300.0
"""Seconds that a server may take until it answers."""


@dataclass(frozen=True)
class Kind:
    """What there is to know about one kind of server."""

    name: str
    url: str  # with {port}
    port: int  # the usual one, and the one inside a container
    binaries: tuple[str, ...]  # the first that is on the PATH is taken
    arguments: Callable[[int, Path], list[str]]  # for the binary: given a port and a folder, which it may fill
    hello: bytes  # what is sent to find out whether it is up
    ready: tuple[bytes, ...]  # how its answer begins once it is
    options: tuple[str, ...] = ()  # for the binary and for the container
    image: str = ""  # "": it is not run in a container, and only `make servers SERVERS=all` installs it
    folders: str = ""  # where a binary may be that is not on the PATH: a pattern, from / on
    needs: str = ""  # a file that the program can't do without

    @property
    def variable(self) -> str:
        """The environment variable that names a server that runs already."""
        return f"CASLOCK_TEST_{self.name.upper()}"

    def binary(self) -> str | None:
        if self.needs and not Path(self.needs).exists():
            return None
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_folders(self.folders)])
        return next(filter(None, (shutil.which(name, path=path) for name in self.binaries)), None)


def _folders(pattern: str) -> list[str]:
    return sorted(map(str, Path("/").glob(pattern)), reverse=True) if pattern else []


REDIS: Final = Kind(
    name="redis",
    url=f"redis://{HOST}:{{port}}/0",
    port=6379,
    binaries=("redis-server", "valkey-server"),
    arguments=lambda port, folder: ["--bind", HOST, "--port", str(port), "--dir", str(folder)],
    options=("--save", "", "--appendonly", "no"),
    image="redis:7",
    hello=b"PING\r\n",
    ready=(b"+PONG", b"-NOAUTH"),  # and not yet: -LOADING
)

MEMCACHED: Final = Kind(
    name="memcached",
    url=f"memcached://{HOST}:{{port}}",
    port=11211,
    binaries=("memcached",),
    # As root it wants to be told which user to be; others can't change theirs.
    arguments=lambda port, _: ["-l", HOST, "-p", str(port), "-U", "0", *(["-u", "root"] if os.geteuid() == 0 else [])],
    image="memcached:1.6",
    hello=b"version\r\n",
    ready=(b"VERSION", b"ERROR unauthenticated"),
)

TAIR_EMULATOR: Final = replace(
    REDIS,
    name="tair",
    url=f"tair://{HOST}:{{port}}/0",
    binaries=(sys.executable,),
    arguments=lambda port, _: [str(Path(__file__).parent / "tair" / "emulator.py"), str(port)],
    options=(),
)
"""Not TairString, but what tests/support/tair emulates of it on a real Redis."""


def tair_module() -> Kind | None:
    """Give a server with the TairString module, which is in no package registry; None: there is none.

    ``CASLOCK_TEST_TAIR`` is the URL of such a server, or the path of the module's file, which is then loaded into a
    Redis for each test that needs its own.
    """
    module = os.environ.get(TAIR_EMULATOR.variable)
    if not module:
        return None
    load = ("--loadmodule", module) if module.endswith(".so") else ()
    return replace(REDIS, name="tair", url=TAIR_EMULATOR.url, options=(*REDIS.options, *load))


def is_url(kind: Kind) -> bool:
    """Whether a server of this kind runs already, at the URL in the environment."""
    return "://" in os.environ.get(kind.variable, "")


_AS_NOBODY: Final = ["--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL", "--"]


def _postgresql(port: int, _: Path) -> list[str]:
    """Make a new cluster of databases, in a folder of the user nobody, because PostgreSQL does not run as root."""
    folder = tempfile.mkdtemp(prefix="caslock-postgresql-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    initdb = str(Path(os.path.realpath(POSTGRESQL.binary() or "")).with_name("initdb"))
    options = ["--username=caslock", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"]
    _prepare([*as_nobody(), initdb, "-D", folder, *options], Path(folder).parent)
    return ["-D", folder, "-h", HOST, "-p", str(port), "-k", folder]


def as_nobody() -> list[str]:
    """Give what to put before a command so that root runs it as the user nobody, and it still ends with the tests."""
    return [shutil.which("setpriv") or "setpriv", *_AS_NOBODY] if os.geteuid() == 0 else []


def _mysql(port: int, folder: Path) -> list[str]:
    """Make the system tables in a new folder, and the database of the URL at the start."""
    data, user = str(folder / "data"), "root" if os.geteuid() == 0 else getpass.getuser()
    # A server that starts removes what other servers keep in its folder for temporary files.
    options = ["--skip-test-db", "--auth-root-authentication-method=normal", f"--tmpdir={folder}"]
    _prepare(["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={user}", *options], folder)
    (folder / "init.sql").write_text("CREATE DATABASE IF NOT EXISTS caslock;\n")
    names = [
        f"--tmpdir={folder}",
        f"--socket={folder / 'socket'}",
        f"--pid-file={folder / 'pid'}",
        f"--init-file={folder / 'init.sql'}",
    ]
    return ["--no-defaults", f"--datadir={data}", f"--user={user}", f"--bind-address={HOST}", f"--port={port}", *names]


def _prepare(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[-1]}: {done.stdout[-1000:]}{done.stderr[-1000:]}")


POSTGRESQL: Final = Kind(
    name="postgresql",
    url=f"postgresql://caslock@{HOST}:{{port}}/postgres",
    port=5432,
    binaries=("postgres",),
    folders="usr/lib/postgresql/*/bin",
    arguments=_postgresql,
    options=("-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB", "-c", "lc_messages=C"),
    # The first packet of a client: who it is.  The answer is "R" if it may come in, and an error while it starts.
    hello=b"\0\0\0\x28\0\3\0\0user\0caslock\0database\0postgres\0\0",
    ready=(b"R",),
)

MYSQL: Final = Kind(
    name="mysql",
    url=f"mysql://root@{HOST}:{{port}}/caslock",
    port=3306,
    binaries=("mariadbd",),
    folders="usr/sbin",
    arguments=_mysql,
    options=("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--skip-name-resolve"),
    hello=b"",  # it speaks first, once it is up
    ready=tuple(bytes([length]) for length in range(40, 160)),  # of its greeting
)


_JAVA: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")
"""Options with which it starts soon and stays small."""


def _zookeeper(port: int, folder: Path, settings: Mapping[str, object] = MappingProxyType({})) -> list[str]:
    """Write a configuration for one server, or for one of several."""
    data = {"tickTime": 2000, "dataDir": folder / "data", "clientPort": port, "clientPortAddress": HOST}
    lines = [f"{name}={value}" for name, value in (data | {"maxClientCnxns": 0} | dict(settings)).items()]
    (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
    jars = ":".join(
        f"/usr/share/java/{name}.jar" for name in ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
    )
    names = {"admin.enableServer": "false", "forceSync": "no", "preAllocSize": 100}
    options = [f"-Dzookeeper.{name}={value}" for name, value in names.items()]
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [*_JAVA, *options, "-cp", jars, main, str(folder / "zoo.cfg")]


ZOOKEEPER: Final = Kind(
    name="zookeeper",
    url=f"zookeeper://{HOST}:{{port}}/locks",
    port=2181,
    binaries=("java",),
    needs="/usr/share/java/zookeeper.jar",
    arguments=_zookeeper,
    hello=b"srvr",
    ready=(b"Zookeeper version",),  # and not: This ZooKeeper instance is not currently serving requests
)


def zookeeper(settings: Mapping[str, object]) -> Kind:
    """Give a ZooKeeper with further settings in its file."""
    return replace(ZOOKEEPER, arguments=functools.partial(_zookeeper, settings=settings))


def _etcd(port: int, folder: Path) -> list[str]:
    """Make a cluster of one member."""
    here, peer = f"http://{HOST}:{port}", f"http://{HOST}:{free_port()}"
    return [
        f"--data-dir={folder / 'data'}",
        f"--listen-client-urls={here}",
        f"--advertise-client-urls={here}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


ETCD: Final = Kind(
    name="etcd",
    url=f"etcd://{HOST}:{{port}}",
    port=2379,
    binaries=("etcd",),
    arguments=_etcd,
    hello=b"GET /health HTTP/1.1\r\nHost: etcd\r\n\r\n",
    ready=(b"HTTP/1.1 200",),  # and not yet: 503, without a leader
)


NATS: Final = Kind(
    name="nats",
    url=f"nats://{HOST}:{{port}}",
    port=4222,
    binaries=("nats-server-2.12.15", "nats-server"),  # the one that `make servers SERVERS=all` builds is tried first
    folders=str((Path(__file__).parents[2] / ".servers").relative_to("/")),
    arguments=lambda port, folder: ["-a", HOST, "-p", str(port), "-js", "-sd", str(folder / "data")],
    hello=b"",  # it speaks first
    ready=(b"INFO {",),
)


_CONFIGURATION: Final = """<hazelcast xmlns="http://www.hazelcast.com/schema/config">
  <properties>
    <property name="hazelcast.phone.home.enabled">false</property>
    <property name="hazelcast.socket.bind.any">false</property>
    <property name="hazelcast.wait.seconds.before.join">0</property>
    <property name="hazelcast.health.monitoring.level">OFF</property>
    {properties}
  </properties>
  <network>
    <port auto-increment="false">{port}</port>
    <join>
      <auto-detection enabled="false"/>
      <multicast enabled="false"/>
      <tcp-ip enabled="true">{members}</tcp-ip>
    </join>
    {address}
    <interfaces enabled="true"><interface>{host}</interface></interfaces>
    <rest-api enabled="true"><endpoint-group name="HEALTH_CHECK" enabled="true"/></rest-api>
  </network>
  {elements}
</hazelcast>
"""


class Member(NamedTuple):
    """The settings of a member of Hazelcast."""

    ports: Sequence[int] = ()
    """Of all members, itself included."""
    public: int = 0
    """The port at which the others find it, if that is another one."""
    properties: Mapping[str, object] = MappingProxyType({})
    elements: str = ""
    """Whatever else is to be in its file."""


_ALONE: Final = Member()


def _hazelcast(port: int, folder: Path, member: Member = _ALONE) -> list[str]:
    """Write a configuration for one member."""
    properties = (f'<property name="hazelcast.{name}">{each}</property>' for name, each in member.properties.items())
    configuration = _CONFIGURATION.format(
        host=HOST,
        address=f"<public-address>{HOST}:{member.public}</public-address>" if member.public else "",
        port=port,
        members="".join(f"<member>{HOST}:{each}</member>" for each in member.ports),
        properties="".join(properties),
        elements=member.elements,
    )
    (folder / "hazelcast.xml").write_text(configuration)
    main = "com.hazelcast.core.server.HazelcastMemberStarter"
    return [*_JAVA, f"-Dhazelcast.config={folder / 'hazelcast.xml'}", "-cp", HAZELCAST.needs, main]


HAZELCAST: Final = Kind(
    name="hazelcast",
    url=f"hazelcast://{HOST}:{{port}}/locks",
    port=5701,
    binaries=("java",),
    needs=str(Path(__file__).parents[2] / ".servers" / "hazelcast-5.7.0.jar"),
    arguments=_hazelcast,
    hello=b"GET /hazelcast/health/ready HTTP/1.1\r\nHost: hazelcast\r\n\r\n",
    ready=(b"HTTP/1.1 200",),
)


def _dynamodb(port: int, _: Path) -> list[str]:
    """Have DynamoDB Local keep all in memory, in one place for all regions and access keys."""
    main = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
    jars, options = DYNAMODB.needs, ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
    return [*_JAVA, f"-Djava.library.path={jars}", "-cp", f"{jars}/*", main, *options]


DYNAMODB: Final = Kind(
    name="dynamodb",
    url=f"dynamodb://eu-central-1/caslock?endpoint=http://{HOST}:{{port}}",
    port=8000,
    binaries=("java",),
    needs=str(Path(__file__).parents[2] / ".servers" / "dynamodb-2.6.1"),
    arguments=_dynamodb,
    hello=b"GET / HTTP/1.1\r\nHost: dynamodb\r\n\r\n",
    ready=(b"HTTP/1.1 400",),  # it wants a signature
)


def hazelcast(member: Member) -> Kind:
    """Give a Hazelcast with these settings in its file."""
    return replace(HAZELCAST, arguments=functools.partial(_hazelcast, member=member))


HOSTED: Final = {kind.name: kind for kind in (ZOOKEEPER, ETCD, NATS, HAZELCAST, DYNAMODB)}
"""Those that take long to start, and whose tests change nothing that others could notice."""


@dataclass(frozen=True)
class Server:
    kind: Kind
    url: str
    host: str
    port: int
    body: Process | Container | None = None  # in which it runs; None: it is not ours

    def start(self) -> None:
        """Start it for the first time, and wait until it answers."""
        self._ours().start()
        self.wait()

    def restart(self) -> None:
        """Kill -9 and start again on the same port; what it remembers is its own affair."""
        body = self._ours()
        body.kill()
        body.start()
        self.wait()

    def pause(self) -> None:
        """Stop it as SIGSTOP does: connections stay open, nothing is answered."""
        self._ours().pause()

    def resume(self) -> None:
        self._ours().resume()

    def wait(self) -> None:
        end = time.monotonic() + START
        while not self._answers():
            if time.monotonic() > end or self._ended():
                self._give_up()
            time.sleep(0.01)
        if self._ended():  # another program has answered
            self._give_up()

    def _ended(self) -> bool:
        return self.body is not None and not self.body.alive()

    def _give_up(self) -> NoReturn:
        said = self.body.log() if self.body else ""
        raise RuntimeError(f"{self.kind.name} does not answer at {self.host}:{self.port}\n{said[-2000:]}")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=2) as connection:
            connection.sendall(self.kind.hello)
            return connection.recv(100).startswith(self.kind.ready)
        return False

    def _ours(self) -> Process | Container:
        if self.body is None:
            pytest.skip(f"{MISSING}a server that a test may stop: the one that {self.kind.variable} names is not ours")
        return self.body


@contextlib.contextmanager
def shared(kind: Kind, folder: Path, at: str = "") -> Iterator[Server]:
    """Give the server named in the environment, else that of the `Host` at that address, else a started one."""
    url = os.environ.get(kind.variable) or (at and kind.binary() and _hosted(kind, folder, at))
    if not url:
        with private(kind, folder) as server:
            yield server
        return
    location = urlsplit(dict(parse_qsl(urlsplit(url).query)).get("endpoint", url))
    server = Server(kind, url, location.hostname or HOST, location.port or kind.port)
    server.wait()
    yield server


class Host:
    """Has servers for all workers of one run, each from when the first worker asks for it until the run ends."""

    def __init__(self) -> None:
        self._listener = Listener(backlog=64)
        self._servers = dict[str, Server]()
        self.address = str(self._listener.address)
        threading.Thread(target=self._serve, daemon=True).start()  # its end would be that of the servers

    def _serve(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError), self._listener.accept() as worker:
                name, folder = worker.recv()
                try:
                    server = self._servers.get(name) or _started(HOSTED[name], folder, ())
                    self._servers[name] = server
                    worker.send((server.url, ""))
                except BaseException as error:  # noqa: BLE001 - the worker reports it: not all can be pickled
                    worker.send(("", repr(error)))


@functools.cache
def host() -> Host:
    """Give the one of this process."""
    return Host()


def _hosted(kind: Kind, folder: Path, at: str) -> str:
    """Ask a `Host` for the URL of its server, which it may have to start in `folder`."""
    with Client(at) as connection:
        connection.send((kind.name, folder))
        url, problem = connection.recv()
    if problem:
        message = f"{kind.name} could not be started: {problem}"
        raise RuntimeError(message)
    return str(url)


@contextlib.contextmanager
def private(kind: Kind, folder: Path, *options: str) -> Iterator[Server]:
    """Start a server with further `options` in `folder`; stop it at the end."""
    server = _started(kind, folder, options)
    try:
        yield server
    finally:
        _remove(server)


def _started(kind: Kind, folder: Path, options: tuple[str, ...]) -> Server:
    """Start a server, on another port if some other program was faster."""
    for tries_left in reversed(range(TRIES)):
        server = _prepared(kind, folder, free_port(), options)
        try:
            server.start()
        except BaseException as error:
            _remove(server)
            if not tries_left or "Address already in use" not in str(error):
                raise
        else:
            return server
    raise AssertionError


def _prepared(kind: Kind, folder: Path, port: int, options: tuple[str, ...]) -> Server:
    binary = kind.binary()
    body: Process | Container
    if binary:
        before = as_nobody() if kind.name == POSTGRESQL.name else []
        body = Process([*before, binary, *kind.arguments(port, folder), *kind.options, *options], folder)
    elif kind.image and docker_answers() and docker_has(kind.image):
        body = Container(kind, port, folder, [*kind.options, *options])
    else:
        missing(kind)
    atexit.register(body.remove)
    return Server(kind, kind.url.format(port=port), HOST, port, body)


def _remove(server: Server) -> None:
    if server.body is not None:
        server.body.remove()
        atexit.unregister(server.body.remove)


def missing(kind: Kind) -> NoReturn:
    """Skip the test, or fail it in CI."""
    image = f"; Docker can not get {kind.image}" if kind.image and docker_answers() else ""
    servers = "make servers" if kind.image else "make servers SERVERS=all"
    named = "" if kind.variable in os.environ else f", {kind.variable}=URL names one"  # which is not stopped
    absent(f"no {kind.name} server: `{servers}` installs one{named}{image}")


MISSING: Final = "missing: "
"""How the reason of a skip begins that the machine is the cause of."""


def absent(line: str) -> NoReturn:
    """Skip the test, or fail it in CI; `line` names what is missing and says how to get it."""
    if os.environ.get("CI") == "true":
        pytest.fail(line, pytrace=False)
    pytest.skip(f"{MISSING}{line}")


def free_port() -> int:
    """Find a free loopback port; until this process ends, no other process of these tests is given the same."""
    for port in random.sample(PORTS, len(PORTS)):
        if port not in _ours and _lock(port):
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind((HOST, port))
                _ours.add(port)
                return port
    raise RuntimeError("no free port")


def listens(port: int) -> bool:
    """Whether anybody listens on the loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


_ours: Final = set[int]()
"""The ports that this process has been given."""


def _lock(port: int) -> bool:
    """Lock the byte of that port in a file that all processes of these tests share; False if another has it."""
    if sys.platform != "win32":
        try:
            fcntl.lockf(_shared_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
    return True


@functools.cache
def _shared_file() -> int:
    return os.open(Path(tempfile.gettempdir(), f"caslock-test-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


# Has the kernel kill the server when the thread that started it ends, even by kill -9; then becomes the server.
TIED: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Process:
    """A server that runs as our child.  Start it in the main thread: on Linux it ends with the thread it came from."""

    def __init__(self, command: list[str], folder: Path) -> None:
        """Prepare `command`, to run in `folder`."""
        tied = [sys.executable, "-I", "-S", "-c", TIED, str(os.getpid())] if sys.platform == "linux" else []
        self.command = [*tied, *command]
        self.folder = folder
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again on the same port."""
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.child:
            _signal(family(self.child.pid), signal.SIGSTOP)  # so that it starts nobody else
            members = family(self.child.pid)
            _signal(members, signal.SIGKILL)
            self.child.wait()
            while any(map(goes_on, members)):  # a PostgreSQL does not start while another one's process has its memory
                time.sleep(0.002)

    remove = kill

    def pause(self) -> None:
        """Freeze it: it keeps its connections and answers nothing; it is frozen when this returns."""
        if self.child:
            self.child.send_signal(signal.SIGSTOP)
            os.waitpid(self.child.pid, os.WUNTRACED)
            _signal(family(self.child.pid)[1:], signal.SIGSTOP)

    def resume(self) -> None:
        if self.child:
            _signal(family(self.child.pid), signal.SIGCONT)

    def alive(self) -> bool:
        """Tell whether there is still something to wait for."""
        return self.child is not None and self.child.poll() is None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def family(pid: int) -> list[int]:
    """Name a process and its descendants: PostgreSQL has one for each connection, our emulator of Tair has a Redis."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it is gone, or this is not Linux
        children = ""
    return [pid, *(member for child in children.split() for member in family(int(child)))]


def goes_on(pid: int) -> bool:
    """Whether a process has not ended, on Linux."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


LABEL: Final = "caslock.tests"
"""Marks our containers with the process that started them."""


class Container:
    """A server that runs in Docker, reachable on the loopback address only."""

    def __init__(self, kind: Kind, port: int, folder: Path, options: list[str]) -> None:
        self.container = _container(kind.image)
        shared: dict[str, object] = {"labels": {LABEL: str(os.getpid())}}
        if _has_our_network():
            # The tests name sockets, certificates and other servers to it as they know them themselves.  The images'
            # own entry points would change to a user who may not read our folders.
            everything = str(folder.parent)
            self.container.with_volume_mapping(everything, everything, "rw")
            self.container.with_command([*kind.arguments(port, folder), *options])
            user = f"{os.getuid()}:{os.getgid()}"
            self.container.with_kwargs(network_mode="host", entrypoint=[kind.binaries[0]], user=user, **shared)
        else:
            self.container.with_command(options)
            self.container.ports[str(kind.port)] = (HOST, port)  # type: ignore[assignment]  # as docker-py takes it
            self.container.with_kwargs(**shared)
        self.started = False

    def start(self) -> None:
        if self.started:
            self.container.get_wrapped_container().start()
        else:
            docker_reaps()
            self.container.start()
            self.started = True

    def kill(self) -> None:
        self.container.get_wrapped_container().kill()

    def pause(self) -> None:
        self.container.get_wrapped_container().pause()

    def resume(self) -> None:
        self.container.get_wrapped_container().unpause()

    def alive(self) -> bool:
        container = self.container.get_wrapped_container()
        container.reload()
        return bool(container.status != "exited")

    def remove(self) -> None:
        if self.started:
            self.container.stop()
            self.started = False

    def log(self) -> str:
        return b"".join(self.container.get_logs()).decode(errors="replace") if self.started else ""


@functools.cache
def docker_answers() -> bool:
    """Ask Docker once for a sign of life; remove what an earlier run left there."""
    try:
        client = _docker()
        client.ping()
        for container in client.containers.list(all=True, filters={"label": LABEL}):
            if not _runs(int(container.labels[LABEL])):
                container.remove(force=True, v=True)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is no help
        return False
    return True


@functools.cache
def docker_has(image: str) -> bool:
    """Whether Docker has an image, or can get it."""
    from docker.errors import DockerException, ImageNotFound  # noqa: PLC0415 - as in `_container`

    images = _docker().images
    try:
        try:
            images.get(image)
        except ImageNotFound:
            images.pull(image)
    except (DockerException, OSError):  # no such image, no network
        return False
    return True


@functools.cache
def docker_reaps() -> bool:
    """Whether testcontainers' reaper removes the containers of a killed run; else the next run does."""
    from testcontainers.core.config import testcontainers_config  # noqa: PLC0415 - as in `_container`

    if not testcontainers_config.ryuk_disabled and not docker_has(testcontainers_config.ryuk_image):
        testcontainers_config.ryuk_disabled = True
    return not testcontainers_config.ryuk_disabled


@functools.cache
def _has_our_network() -> bool:
    """Whether a container can have the network of the tests; a virtual machine's or a rootless Docker's can't."""
    return sys.platform == "linux" and "name=rootless" not in (_docker().info().get("SecurityOptions") or ())


def _docker() -> DockerClient:
    return _container("none").get_docker_client().client


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _container(image: str) -> DockerContainer:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - slow to import, and seldom needed

    return DockerContainer(image, docker_client_kw={"timeout": 60})


@contextlib.contextmanager
def ringing() -> Iterator[None]:
    """Have a signal come again and again, more often than any timeout."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
