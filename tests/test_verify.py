"""``caslock verify`` proves a store with keys of its own, says why not, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
import redis

from caslock import Lock
from caslock.cli.scratch import Scratch
from caslock.stores.memory import MemoryStore
from caslock.testing.torture import PREFIX, Plan, sweep
from tests.places import opened
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import Server

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="it stops processes"),
    pytest.mark.timeout(120),
]

ROOT = Path(__file__).parent.parent


def start(*arguments: str, cwd: Path, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start ``caslock verify``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::ResourceWarning"}
    command = [sys.executable, "-m", "caslock.cli", "verify", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=stderr
    )


def verify(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Run it to its end: exit code, output and errors."""
    with start(*arguments, cwd=cwd) as process:
        output, errors = process.communicate(timeout=110)
    assert "Traceback" not in errors
    return process.returncode, output, errors


@pytest.mark.parametrize("kind", ["sqlite", "redis", "memcached"])
def test_a_sound_store_passes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Contract and torture pass, the report is sound JSON, the picture is one, and no key is left or touched."""
    with opened(kind, request) as place:
        url = f"sqlite:///{place.address.url}" if kind == "sqlite" else place.address.url
        store = place.store()
        with Lock(store, "somebody else's", ttl=100) as hold:
            code, output, errors = verify(
                url, "--seconds", "4", "--seed", "3", "--json", "--timeline", "picture.svg", cwd=tmp_path
            )
            hold.ensure_held()
            report = json.loads(output)
            assert (code, report["passed"], report["reason"]) == (0, True, ""), (report["reason"], errors)
        assert report["contract"]["passed"] > 30
        assert report["contract"]["broken"] == []
        assert report["seed"] == 3
        assert report["requests"] > 100
        assert sum(report["faults"].values()) > 20
        assert report["sections"] > 10
        assert report["overlaps"] == report["fence_inversions"] == report["ghosts"] == 0
        assert 0 <= report["hand_over_p50"] <= report["hand_over_p99"]
    picture = ET.parse(tmp_path / "picture.svg").getroot()  # noqa: S314 - our own
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(picture.findall("{*}rect")) > 10
    assert picture.findall("{*}line[@class='fault']")
    assert "torture, 4 s" in errors


def test_no_key_is_left_in_redis(new_redis: Callable[..., Server], tmp_path: Path) -> None:
    """After it, the server holds what it held before, to the last key; and the report is for people too."""
    server = new_redis()
    with closing(redis.Redis.from_url(server.url)) as client:
        client.set("foreign", "value")
        code, output, _ = verify(server.url, "--seconds", "2", cwd=tmp_path)
        assert (code, output.splitlines()[-1]) == (0, "PASS"), output
        for word in (
            "operations",
            "faults",
            "sections",
            "overlaps",
            "fence inversions",
            "ghosts",
            "p99",
            "longest wait",
        ):
            assert word in output
        assert client.keys() == [b"foreign"]


REFUSED = {
    "redis://127.0.0.1:{port}/0": "127.0.0.1:{port}",
    "memcached://127.0.0.1:{port}": "127.0.0.1:{port}",
    "sqlite:////no/such/folder/locks.db": "directory must exist",
    "nonsense": "begins with its scheme",
    "nosuch://host": "no store is known",
    "memory://": "one process",
}


@pytest.mark.parametrize("url", REFUSED)
def test_what_can_not_be_reached_is_said_in_one_line(url: str, tmp_path: Path) -> None:
    """A dead port, a bad URL, a store of one process: exit 2, and one line that says why."""
    port = str(free_port())
    code, output, errors = verify(url.replace("{port}", port), "--seconds", "1", cwd=tmp_path)
    assert (code, output) == (2, "")
    assert REFUSED[url].replace("{port}", port) in errors
    assert len(errors.splitlines()) == 1


def test_a_missing_client_is_said_in_one_line(tmp_path: Path) -> None:
    """Where the client library is missing, so is the command that installs it told."""
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "__init__.py").write_text("raise ModuleNotFoundError(name='redis')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "caslock.cli", "verify", "redis://localhost"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'caslock[redis]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_pytest_is_said_kindly(tmp_path: Path) -> None:
    """Without pytest the contract can't run: what to install is told."""
    (tmp_path / "pytest.py").write_text("raise ModuleNotFoundError(\"No module named 'pytest'\", name='pytest')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "caslock.cli", "verify", f"sqlite:///{tmp_path}/locks.db", "--seconds", "1"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2)
    assert "pip install pytest" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = """
from caslock.stores.sqlite import SQLiteStore

class Hasty(SQLiteStore):
    def put_if_version(self, key, value, version, ttl):
        return super().put_if_version(key, value, version, 0.5 * ttl)

def make():
    return Hasty("locks.db")

def sound():
    return SQLiteStore("locks.db")

def nothing():
    return 7
"""


def test_a_broken_store_of_your_own_fails_with_the_reason(tmp_path: Path) -> None:
    """``--store module:factory`` tries the user's own store; one that ends leases early gets exit 1, and why."""
    (tmp_path / "my_store.py").write_text(BROKEN)
    code, output, _ = verify("--store", "my_store:make", "--seconds", "6", "--seed", "1", cwd=tmp_path)
    assert code == 1, output
    assert "BROKEN contract    a lease is never shorter than asked and ends" in output
    assert "BROKEN law         overlap" in output
    assert output.splitlines()[-1].startswith("FAIL: the contract is broken: a lease is never shorter")


def test_a_sound_store_of_your_own_passes(tmp_path: Path) -> None:
    """The same with a sound one: its requests are counted and troubled where it is used."""
    (tmp_path / "my_store.py").write_text(BROKEN)
    code, output, errors = verify("--store", "my_store:sound", "--seconds", "2", "--json", cwd=tmp_path)
    assert code == 0, (output, errors)
    assert json.loads(output)["faults"]["drop reply"] > 0


@pytest.mark.parametrize("name", ["my_store", "no_such_module:make", "my_store:no_such", "my_store:nothing"])
def test_a_store_that_can_not_be_made_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    """A factory that is not there, or gives no store: exit 2."""
    (tmp_path / "my_store.py").write_text(BROKEN)
    code, output, errors = verify("--store", name, "--seconds", "1", cwd=tmp_path)
    assert (code, output, len(errors.splitlines())) == (2, "", 1), errors


@pytest.mark.parametrize("arguments", [[], ["redis://h", "--store", "a:b"], ["redis://h", "--seconds", "0"]])
def test_wrong_arguments_are_refused(arguments: list[str], tmp_path: Path) -> None:
    """Neither a URL nor a store, or both, or no time: exit 2, as argparse has it."""
    code, _, errors = verify(*arguments, cwd=tmp_path)
    assert code == 2
    assert "usage: caslock verify" in errors or "usage: caslock" in errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("phase", ["contract", "torture"])
def test_an_interrupt_leaves_nothing_behind(
    number: signal.Signals, code: int, phase: str, new_redis: Callable[..., Server], tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM, in either phase: no key, no process and no file is left."""
    server = new_redis()
    (tmp_path / "tmp").mkdir()
    os.environ["TMPDIR"] = str(tmp_path / "tmp")
    try:
        process = start(server.url, "--seconds", "60", cwd=tmp_path)
    finally:
        del os.environ["TMPDIR"]
    with process, closing(redis.Redis.from_url(server.url)) as client:
        until(lambda: bool(client.keys(PREFIX + "*")))
        if phase == "torture":
            until(lambda: len(members(process.pid)) >= 6)
            until(lambda: any(b":contract:" not in key for key in client.keys(PREFIX + "*")))
            time.sleep(0.5)
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, output) == (code, ""), errors
        assert "nothing is left behind" in errors
        until(lambda: not members(process.pid))
        assert client.keys() == []
    assert list((tmp_path / "tmp").iterdir()) == []


def members(session: int) -> list[int]:
    """Name the processes of a session."""
    done = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def until(condition: Callable[[], bool]) -> None:
    """Wait, within bounds, until a condition is true."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_terminal_sees_it_live(tmp_path: Path) -> None:
    """On a terminal there is a bar, and the report goes to where standard output goes."""
    ours, theirs = os.openpty()
    process = start(f"sqlite:///{tmp_path}/locks.db", "--seconds", "1", "--json", cwd=tmp_path, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(ours, 10_000):
            shown += piece
    os.close(ours)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\x1b[" in shown
    assert b"torture" in shown
    assert json.loads(output)["passed"]


def test_a_scratch_store_touches_no_key_but_its_own() -> None:
    """Whatever key is asked for lies under the prefix, none is two, and all can be removed."""
    store, touched = MemoryStore(), set[str]()
    scratch = Scratch(store, "scratch:", touched)
    keys = [
        "k",
        "",
        "k" * 1016,
        "k" * 1017,
        "k" * 1016 + "j",
        "k" * 1024,
        "k" * 1023 + "j",
        "../x",
        "\r\n",
        "钥匙" * 512,
    ]
    for number, key in enumerate(keys):
        entry = scratch.put_if_version(key, b"%d" % number, 0, 60)
        assert entry is not None
        assert entry.value == b"%d" % number
    assert len(touched) == len(keys)
    assert all(name.startswith("scratch:") and len(name) <= 1024 for name in touched)
    foreign = store.put_if_version("k", b"foreign", 0, 60)
    assert sweep(store, Plan(), touched)
    assert [scratch.get(key) for key in keys] == [None] * len(keys)
    assert store.get("k") == foreign


def test_the_library_does_not_import_it() -> None:
    """`import caslock` brings neither the command line nor the proof kit."""
    script = "import sys, caslock; print([n for n in sys.modules if n.startswith(('caslock.cli', 'caslock.testing'))])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
