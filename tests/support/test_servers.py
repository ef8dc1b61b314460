"""The servers that the tests run against are found, started and stopped, and a missing one is reported."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import servers
from tests.support.docker_engine import engine
from tests.support.servers import LABEL, MEMCACHED, REDIS, Container, docker_reaps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.conftest import NewServer
    from tests.support.docker_engine import Engine
    from tests.support.servers import Server

ROOT = Path(__file__).parents[2]

CLOSED = "tcp://127.0.0.1:1"
"""Where certainly no Docker answers."""


def talk(server: Server, request: bytes) -> bytes:
    """Send one request on a connection of its own, and return the first bytes of the reply."""
    with socket.create_connection((server.host, server.port), timeout=50) as connection:
        connection.sendall(request)
        return connection.recv(4096)


def listens(port: int) -> bool:
    """Whether anybody listens on the loopback port."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def start_pytest(tmp_path: Path, test: str, **environment: str) -> subprocess.Popen[str]:
    """Start another pytest, with our fixtures, for a file that holds `test`."""
    file = tmp_path / "test_inner.py"
    file.write_text(test)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            "-c",
            "pyproject.toml",
            file,
        ],
        cwd=ROOT,
        env={**clean(os.environ), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_pytest(tmp_path: Path, test: str, **environment: str) -> tuple[int, str]:
    """Run another pytest to its end: its exit code and its output."""
    with start_pytest(tmp_path, test, **environment) as process:
        output, _ = process.communicate(timeout=45)
    return process.returncode, output


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop what would decide where servers come from."""
    return {k: v for k, v in environment.items() if k != "CI" and not k.startswith("CASLOCK_TEST_")}


NEED_BOTH = """
def test_redis(redis_server): print("redis at", redis_server.port)
def test_memcached(memcached_server): pass
"""


def test_shared_redis_answers(redis_server: Server) -> None:
    """A test that asks for Redis talks to one on the loopback address."""
    assert redis_server.url.startswith("redis://")
    assert talk(redis_server, b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))


def test_shared_memcached_answers(memcached_server: Server) -> None:
    """A test that asks for memcached talks to one on the loopback address."""
    assert memcached_server.url.startswith("memcached://")
    assert talk(memcached_server, b"version\r\n").startswith(b"VERSION")


def test_private_redis_takes_arguments(new_redis: NewServer) -> None:
    """Each private server has its own command line, and its own port."""
    locked, open_ = new_redis("--requirepass", "secret"), new_redis()
    assert locked.port != open_.port
    assert talk(locked, b"GET x\r\n").startswith(b"-NOAUTH")
    assert talk(open_, b"GET x\r\n") == b"$-1\r\n"


def test_private_memcached_takes_arguments(new_memcached: NewServer) -> None:
    """memcached can be started small, or without cas."""
    settings = talk(new_memcached("-C", "-m", "8", "-M"), b"stats settings\r\n")
    for line in (b"STAT cas_enabled no", b"STAT maxbytes 8388608", b"STAT evictions off"):
        assert line in settings


def test_restart_keeps_the_port_and_forgets_the_rest(new_redis: NewServer) -> None:
    """A restart is a crash: the address stays, what was not persisted is gone."""
    server = new_redis()
    assert talk(server, b"SET k v\r\n") == b"+OK\r\n"
    server.restart()
    assert talk(server, b"GET k\r\n") == b"$-1\r\n"


def test_pause_freezes_and_resume_thaws(new_memcached: NewServer) -> None:
    """A paused server takes connections and answers nothing until it is resumed."""
    server = new_memcached()
    with socket.create_connection((server.host, server.port), timeout=50) as connection:
        server.pause()
        connection.settimeout(0.2)
        connection.sendall(b"version\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        server.resume()
        connection.settimeout(50)
        assert connection.recv(100).startswith(b"VERSION")


def test_wrong_arguments_show_what_the_server_said(new_redis: NewServer) -> None:
    """A server that does not come up gives its own words as the reason."""
    with pytest.raises(RuntimeError, match="no-such-option"):
        new_redis("--no-such-option", "1")


@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_a_port_that_another_program_takes_meanwhile_is_left_to_it(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that can't have the port that was free a moment ago is started on another one."""
    new: NewServer = request.getfixturevalue(f"new_{kind}")
    with socket.create_server(("127.0.0.1", 0)) as faster:
        ports = [faster.getsockname()[1], servers.free_port()]
        monkeypatch.setattr(servers, "free_port", iter(ports).__next__)
        assert new().port == ports[1]


def test_no_other_process_is_given_the_same_port() -> None:
    """A port is kept for the process that was given it, also while nothing listens there."""
    port = servers.free_port()
    script = f"from tests.support import servers; servers.PORTS = range({port}, {port} + 1); servers.free_port()"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "RuntimeError: no free port" in done.stderr


@pytest.mark.long
def test_environment_wins(new_redis: NewServer, tmp_path: Path) -> None:
    """A URL in CASLOCK_TEST_REDIS is taken before any binary, and that server is not ours to stop."""
    ours = new_redis()
    test = f"""
def test_url(redis_server): assert redis_server.url == {ours.url!r}
def test_stop(redis_server): redis_server.restart()
"""
    code, output = run_pytest(tmp_path, test, CASLOCK_TEST_REDIS=ours.url, PYTEST_ADDOPTS="-rs")
    assert (code, "1 passed, 1 skipped" in output) == (0, True), output
    assert "not ours to stop" in output
    assert listens(ours.port)


@pytest.mark.long
def test_started_servers_end_with_the_session(tmp_path: Path, new_redis: NewServer) -> None:
    """When pytest has ended, so have the servers that it started."""
    new_redis()  # skips where there is none
    code, output = run_pytest(tmp_path, NEED_BOTH + "def test_fails(new_redis): assert not new_redis().port", CI="")
    assert (code, "1 failed, 2 passed" in output) == (1, True), output
    port = int(output.partition("where ")[2].partition("port=")[2].partition(",")[0])
    assert not listens(port)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ties a child to its parent")
def test_started_servers_end_with_a_killed_pytest(tmp_path: Path, new_redis: NewServer) -> None:
    """Even kill -9 of pytest leaves no server behind."""
    if isinstance(new_redis().body, Container) and not docker_reaps():  # it skips where there is none
        pytest.skip("without testcontainers' reaper, a killed run's containers are removed by the next run")
    told = tmp_path / "port"
    test = f"""
import pathlib, time
def test_hangs(redis_server):
    pathlib.Path({str(told)!r}).write_text(f"{{redis_server.port}}.")
    time.sleep(50)
"""
    with start_pytest(tmp_path, test) as process:
        try:
            until(lambda: told.exists() and told.read_text().endswith("."))
            port = int(told.read_text()[:-1])
            assert listens(port)
        finally:
            process.send_signal(signal.SIGKILL)
    until(lambda: not listens(port))


def until(condition: object) -> None:
    """Wait, within bounds, until `condition()` is true."""
    assert callable(condition)
    end = time.monotonic() + 50
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.long
def test_missing_servers_skip_on_a_desk(tmp_path: Path) -> None:
    """Without binaries, Docker and URLs, the tests are skipped, with one line that says how to get the server."""
    code, output = run_pytest(tmp_path, NEED_BOTH, PATH="", DOCKER_HOST=CLOSED)
    assert (code, "2 skipped" in output) == (0, True), output
    assert "no redis server: `make servers` installs one, CASLOCK_TEST_REDIS=URL names one" in output
    assert "no memcached server: `make servers` installs one, CASLOCK_TEST_MEMCACHED=URL names one" in output


@pytest.mark.long
def test_missing_servers_fail_in_ci(tmp_path: Path) -> None:
    """With CI=true the same run fails: nobody takes a skipped test for a passed one."""
    code, output = run_pytest(tmp_path, NEED_BOTH, PATH="", DOCKER_HOST=CLOSED, CI="true")
    assert (code, "2 errors" in output) == (1, True), output
    assert "`make servers` installs one" in output


@pytest.fixture
def docker(tmp_path: Path, new_redis: NewServer, new_memcached: NewServer) -> Iterator[Engine]:
    """Run a stand-in for Docker that has the servers' images, and not testcontainers' reaper."""
    new_redis(), new_memcached()  # skips where they are not: the stand-in runs the same binaries
    with engine(tmp_path, REDIS.image, MEMCACHED.image) as running:
        yield running


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere containers have neither our network nor our folders")
@pytest.mark.long
def test_a_container_serves_what_a_binary_does(docker: Engine, tmp_path: Path) -> None:
    """In containers, Redis has its sockets, certificates and replicas, restarts and freezes; all are removed."""
    test = """
from tests.support import test_servers
from tests.stores import test_redis
from tests.stores.test_redis import api

test_memcached = test_servers.test_shared_memcached_answers
test_pause = test_servers.test_pause_freezes_and_resume_thaws
test_restart = test_servers.test_restart_keeps_the_port_and_forgets_the_rest
test_socket = test_redis.test_a_unix_socket_serves_too
test_tls = test_redis.test_tls_serves_too
test_replica = test_redis.test_a_replica_refuses_and_is_left
"""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    if openssl := shutil.which("openssl"):
        (binaries / "openssl").symlink_to(openssl)
    code, output = run_pytest(tmp_path, test, PATH=str(binaries), DOCKER_HOST=docker.url)
    assert code == 0, output
    assert docker.created
    assert not docker.containers


@pytest.mark.long
def test_an_image_that_can_not_be_had_skips(docker: Engine, tmp_path: Path) -> None:
    """Where Docker answers and can't get the image, that is said, and it is no error."""
    docker.images = [REDIS.image]
    code, output = run_pytest(tmp_path, NEED_BOTH, PATH="", DOCKER_HOST=docker.url)
    assert (code, "1 passed, 1 skipped" in output) == (0, True), output
    assert "no memcached server: " in output
    assert f"Docker can not get {MEMCACHED.image}" in output


@pytest.mark.long
def test_containers_of_a_killed_run_are_removed_by_the_next(docker: Engine, tmp_path: Path) -> None:
    """Without the reaper, a run removes the containers of those that are no more, and no others."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    kept = [docker.create({"Image": REDIS.image, "Labels": labels}) for labels in ({LABEL: f"{os.getpid()}"}, {})]
    left = docker.create({"Image": REDIS.image, "Labels": {LABEL: f"{gone.pid}"}})
    code, output = run_pytest(tmp_path, NEED_BOTH, PATH="", DOCKER_HOST=docker.url)
    assert (code, "2 passed" in output) == (0, True), output
    assert [*docker.containers.values()] == kept
    assert left not in kept
