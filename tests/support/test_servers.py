"""The servers that the tests run against are found, started and stopped, and a missing one is reported."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import NewServer
from tests.support import servers
from tests.support.locations import until
from tests.support.servers import MEMCACHED, REDIS, Container, Host, docker_reaps, listens, shared

ROOT = Path(__file__).parents[2]

CLOSED = "tcp://127.0.0.1:1"
"""Where certainly no Docker answers."""


def start_pytest(tmp_path: Path, test: str, **environment: str) -> subprocess.Popen[str]:
    """Start another pytest, with our fixtures, for a file that holds `test`."""
    file = tmp_path / "test_inner.py"
    file.write_text(test)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, file],
        cwd=ROOT,
        env={**clean(os.environ), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_pytest(tmp_path: Path, test: str, **environment: str) -> tuple[int, str]:
    """Run another pytest to its end: its exit code and its output."""
    with start_pytest(tmp_path, test, **environment) as process:
        output, _ = process.communicate(timeout=250)
    return process.returncode, output


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k != "CI" and not k.startswith("CASLOCK_TEST_")}


NEED_BOTH = """
def test_redis(redis_server): print("redis at", redis_server.port)
def test_memcached(memcached_server): pass
"""


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_has_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist knows the group by the name that it has given to the test, which not every pytest has allowed."""
    assert request.node.nodeid.endswith("@together") == getattr(request.config.option, "loadgroup", False)


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


def test_a_host_has_one_server_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that asks has it started, in a folder of its own; if it can't start, each is told why."""
    monkeypatch.setattr(servers, "HOSTED", {"redis": REDIS, "memcached": replace(MEMCACHED, options=("-?",))})
    for kind in (REDIS, MEMCACHED):
        monkeypatch.delenv(kind.variable, raising=False)
        if not kind.binary():
            servers.missing(kind)
    at = Host().address
    ports = set[int]()
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        with shared(REDIS, folder, at) as server:
            ports.add(server.port)
        with pytest.raises(RuntimeError, match="memcached does not answer"), shared(MEMCACHED, folder, at):
            pass
    (port,) = ports
    assert listens(port)
    assert (tmp_path / "one" / "log").exists()


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
    assert "a server that a test may stop" in output
    assert listens(ours.port)


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
            assert until(lambda: told.exists() and told.read_text().endswith("."))
            port = int(told.read_text()[:-1])
            assert listens(port)
        finally:
            process.send_signal(signal.SIGKILL)
    assert until(lambda: not listens(port))


@pytest.mark.long
@pytest.mark.parametrize(("ci", "ends"), [("false", (0, "2 skipped")), ("true", (1, "2 errors"))])
def test_missing_servers_skip_on_a_desk_and_fail_in_ci(ci: str, ends: tuple[int, str], tmp_path: Path) -> None:
    """Without binaries, Docker and URLs: one line says how to get the server, and nobody takes a skip for a pass."""
    code, output = run_pytest(tmp_path, NEED_BOTH, PATH="", DOCKER_HOST=CLOSED, CI=ci)
    assert (code, ends[1] in output) == (ends[0], True), output
    assert "no redis server: `make servers` installs one, CASLOCK_TEST_REDIS=URL names one" in output
    assert "no memcached server: `make servers` installs one, CASLOCK_TEST_MEMCACHED=URL names one" in output
