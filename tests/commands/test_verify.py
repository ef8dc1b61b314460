"""``caslock verify`` tests a store with keys of its own, reports what fails, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import redis

from caslock import Lock, connect
from caslock.store import ABSENT, ListingStore
from caslock.testing.stopwatch import Stopwatch
from caslock.verify import PREFIX
from caslock.verify.monitor import Monitor
from caslock.verify.processes import last_words
from caslock.verify.worker import awaited
from tests.conftest import fill, old_enough
from tests.support.command_line import ROOT, finished, start
from tests.support.locations import opened, until
from tests.support.servers import Server, free_port

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="it stops processes"), pytest.mark.timeout(1800)]


LATE = "give more --seconds"  # if its clients came too late, or acquired nothing, on a busy machine


def verify(*arguments: str, cwd: Path, longest: float = 800.0) -> tuple[int, str, str]:
    """Run ``caslock verify`` to its end: exit code, output and errors."""
    return finished(start("verify", *arguments, cwd=cwd), longest)


def verify_for(seconds: int, *arguments: str, cwd: Path, ends: int = 0, seen: str = "") -> tuple[str, str]:
    """Run it longer each time until its clients come in time and its output matches `seen`; `ends`: its exit code."""
    while True:
        code, output, errors = verify(*arguments, "--seconds", str(seconds), cwd=cwd, longest=800.0 + seconds)
        assert f"torture: {seconds} s" in errors
        if LATE not in output + errors:
            assert code == ends, output + errors
            if re.search(seen, output):
                return output, errors
        seconds *= 2


@pytest.mark.parametrize("kind", ["sqlite", *(pytest.param(k, marks=pytest.mark.long) for k in ("redis", "memcached"))])
def test_a_sound_store_passes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Contract and torture pass, the report is sound JSON, the picture is one, and no key is left or touched."""
    with opened(kind, request) as location:
        url = location.url.partition("?")[0]  # without the timeout of these tests: verify has its own
        store = location.store()
        with Lock(store, "somebody else's", ttl=100) as hold:
            seconds = 4
            while True:
                output, errors = verify_for(
                    seconds, url, "--seed", "3", "--json", "--timeline", "picture.svg", cwd=tmp_path
                )
                report = json.loads(output)
                picture = ET.parse(tmp_path / "picture.svg").getroot()  # noqa: S314 - our own
                done = report["requests"] / 100, sum(report["faults"].values()) / 20, report["sections"] / 10
                if min(done) > 1 and picture.findall("{*}line[@class='fault']"):
                    break
                seconds *= 4  # a machine that is busy does less in that time
            hold.ensure_held()
            assert report["contract"]["broken"] == []
            assert (report["passed"], report["reason"]) == (True, ""), errors
        assert report["contract"]["passed"] > 30
        assert report["seed"] == 3
        assert report["overlaps"] == report["fence_inversions"] == report["orphans"] == 0
        assert 0 <= report["hand_over_p50"] <= report["hand_over_p99"]
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(picture.findall("{*}rect")) > 10


@pytest.mark.long
def test_a_short_run_ends_when_it_has_said_and_leaves_no_key(new_redis: Callable[..., Server], tmp_path: Path) -> None:
    """It takes no longer than it has announced; the server holds what it held before; the report is for people too."""
    server = new_redis()
    with closing(redis.Redis.from_url(server.url)) as client:
        client.set("foreign", "value")
        seconds, code, output, errors, took = 3, 2, "", LATE, 0.0
        while LATE in output + errors:
            with Stopwatch() as watch:
                code, output, errors = verify(server.url, "--seconds", str(seconds), cwd=tmp_path)
            took = watch.seconds
            seconds *= 2
        assert (code, output.splitlines()[-1]) == (0, "PASS"), output
        assert "doctor             warning: nothing is written to disk" in output
        words = "operations", "faults", "sections", "overlaps", "fence inversions", "orphaned records", "p99"
        for word in (*words, "longest wait"):
            assert word in output
        assert client.keys() == [b"foreign"]
    contract = re.search(r"contract: up to (\d+) s \.\.\.", errors)
    torture = re.search(r"torture: (\d+) s, and up to (\d+) s for its clients to end, or \d+ s if one hangs", errors)
    assert contract
    assert torture
    announced = int(contract[1]) + int(torture[1]) + int(torture[2])
    assert took < announced
    assert announced < 64 + seconds


def refused(*arguments: str, cwd: Path) -> str:
    """Run ``caslock verify`` for a store that it does not try: exit 2, and one line, which is returned."""
    code, output, errors = verify(*arguments, "--seconds", "1", cwd=cwd)
    assert (code, output, len(errors.splitlines())) == (2, "", 1), output + errors
    return errors


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"), "maxmemory-policy is volatile-lru"),
        (("--maxmemory", "1kb"), "memory"),
        (("--maxmemory", "1", "--maxmemory-policy", "noeviction"), "memory"),
    ],
)
def test_a_server_on_which_no_lock_is_safe_is_not_tried(
    options: tuple[str, ...], told: str, new_redis: Callable[..., Server], tmp_path: Path
) -> None:
    """A server that evicts locks, or is full, breaks no law of the store: exit 2, and what is wrong with it."""
    code, output, errors = verify(new_redis(*options).url, "--seconds", "1", cwd=tmp_path)
    assert (code, output) == (2, "")
    assert told in errors


REFUSED = {
    "--store redis://127.0.0.1:{port}/0": "redis://127.0.0.1:{port}/0 is unreachable",
    "memcached://127.0.0.1:{port}": "127.0.0.1:{port}",
    "sqlite:////no/such/folder/locks.db": "directory must exist",
    "nosuch://host": "unknown scheme",
    "memory://": "one process",
}


@pytest.mark.parametrize("url", REFUSED)
def test_what_cannot_be_reached_is_said_in_one_line(url: str, tmp_path: Path) -> None:
    """A dead port, a bad URL, a store of one process: exit 2, and one line that says why."""
    port = str(free_port())
    told = refused(*url.replace("{port}", port).split(), cwd=tmp_path)
    assert REFUSED[url].replace("{port}", port) in told


@pytest.mark.parametrize(
    ("missing", "extra", "url"),
    [("redis", "redis", "redis://localhost"), ("pytest", "cli", "sqlite:///locks.db")],
    ids=["its client", "pytest"],
)
def test_what_is_missing_is_said_in_one_line(missing: str, extra: str, url: str, tmp_path: Path) -> None:
    """The client library, or pytest, without which nothing passes: exit 2, and the command that installs it."""
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(name={missing!r})")
    process = start("verify", url, "--seconds", "1", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    code, output, errors = finished(process)
    assert (code, output, len(errors.splitlines())) == (2, "", 1)
    assert f"pip install 'caslock[{extra}]'" in errors


def test_the_command_line_extra_brings_all_that_verify_needs() -> None:
    """``caslock[cli]`` and ``caslock[all]`` have pytest in them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(name.startswith("pytest>") for name in extras["cli"])
    assert "cli" in extras["all"][0]


@pytest.mark.long
def test_a_full_memcached_is_not_tried(new_memcached: Callable[..., Server], tmp_path: Path) -> None:
    """It may have room for a small entry yet, but not for what locks are: exit 2, and one line."""
    server = new_memcached("-M", "-m", "2")
    old_enough(server)
    fill(server, 100_000, 2_000, 1_000, 500, 300, 200)
    with closing(connect(server.url)) as store:
        assert store.put_if_version("small", b"v", ABSENT, 1)
    assert "out of memory" in refused(server.url, cwd=tmp_path)


FOREIGN = """
from urllib.parse import urlsplit
from tests.proof.test_server_contract_bites import {name}

def from_url(url):
    return {name}(urlsplit(url).hostname, urlsplit(url).port, 1.0)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said"), [("Plain", ""), ("RetriesByItself", "does the client below retry by itself?")]
)
def test_the_proxy_is_put_before_any_server_that_a_url_names(
    name: str, said: str, redis_server: Server, tmp_path: Path
) -> None:
    """A store of another scheme, made known by an entry point, meets a failing server as caslock's own do."""
    package = tmp_path / "foreign-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[caslock.stores]\nforeign = foreign_store:from_url\n")
    (tmp_path / "foreign_store.py").write_text(FOREIGN.format(name=name))
    url = f"foreign://{redis_server.host}:{redis_server.port}"
    fault = "BROKEN contract|(drop|hold|duplicate) (request|reply)"
    output, _ = verify_for(3, url, "--seed", "1", cwd=tmp_path, ends=1 if said else 0, seen=fault)
    assert said in output
    assert ("BROKEN contract" in output) == bool(said)
    not_tried = [line for line in output.splitlines() if line.startswith("not tried")]
    assert not any("server" in line for line in not_tried), not_tried
    assert any("wakes one waiter;" in line and "(the store has no put_when_absent" in line for line in not_tried)
    assert any("wins several keys;" in line and "(the store has no put_many" in line for line in not_tried)


@pytest.mark.long
def test_a_store_without_fences_passes_and_the_report_says_what_was_skipped(tmp_path: Path) -> None:
    """Where versions do not grow, the laws of fences are skipped, and named as not tried; all others are tried."""
    store = "--store", "tests.support.fenceless:fenceless_file"
    output, errors = verify_for(5, *store, cwd=tmp_path, seen=r"sections +[1-9]\d")
    assert output.splitlines()[-1] == "PASS", output + errors
    assert "not tried          the laws of fences" in output
    assert re.search(r"not tried +versions only grow", output)
    assert re.search(r"\ntorture: \d+ s\n", errors)
    assert re.search(r"overlaps +0\n", output)


MY_STORES = """
import os, signal, sys
from caslock.stores.memory import MemoryStore
from caslock.stores.sqlite import SQLiteStore

def sound():
    return SQLiteStore("locks.db")

def nothing():
    return 7

class Hasty(SQLiteStore):
    def put_if_version(self, key, value, version, ttl):
        return super().put_if_version(key, value, version, 0.5 * ttl)

def hasty():
    return Hasty("locks.db")

ONE = MemoryStore()

def one_each():
    return MemoryStore()

def one_in_each_process():
    return ONE

def one_in_this_process():
    if sys.argv[0] == "-c":
        raise OSError("no such place\\nfrom here")
    return SQLiteStore("locks.db")

class Dies(SQLiteStore):
    def put_if_version(self, key, value, version, ttl):
        if sys.argv[0] == "-c":
            raise RuntimeError("no luck\\nwith this key")
        return super().put_if_version(key, value, version, ttl)

def dies():
    return Dies("locks.db")

class Interrupted(SQLiteStore):
    def put_if_version(self, key, value, version, ttl):
        entry = super().put_if_version(key, value, version, ttl)
        if key.endswith(os.environ["INTERRUPTED"]):
            os.kill(os.getpid(), signal.SIGINT)
        return entry

def interrupted():
    return Interrupted("locks.db")
"""


@pytest.fixture
def my_stores(tmp_path: Path) -> Path:
    """Return a folder with a module of a user's stores."""
    (tmp_path / "my_store.py").write_text(MY_STORES)
    return tmp_path


@pytest.mark.long
def test_a_broken_store_of_your_own_fails_with_the_reason(my_stores: Path) -> None:
    """``--store module:factory`` tries the user's own store; one that ends leases early gets exit 1, and why."""
    seen = r"BROKEN contract    a lease lasts for its ttl and ends(.*\n)+BROKEN law +overlap"
    output, _ = verify_for(6, "--store", "my_store:hasty", "--seed", "1", cwd=my_stores, ends=1, seen=seen)
    assert output.splitlines()[-1].startswith("FAIL: the contract is broken: a lease lasts for its ttl")


@pytest.mark.long
def test_a_sound_store_of_your_own_passes_and_a_terminal_sees_it_live(my_stores: Path) -> None:
    """The same with a sound store; faults are injected where it is used; a terminal shows a bar, no report."""
    seconds, shown, report = 6, b"", dict[str, Any]()
    while not report.get("faults", {}).get("drop reply"):  # a busy machine does less in so many seconds
        ours, theirs = os.openpty()
        run = "verify", "--store", "my_store:sound", "--seconds", str(seconds), "--json"
        process = start(*run, cwd=my_stores, stderr=theirs)
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 10_000):
                shown += piece
        os.close(ours)
        output, _ = process.communicate(timeout=250)
        if LATE.encode() not in shown and LATE not in output:
            assert process.returncode == 0, (output, shown)
            report = json.loads(output)
        seconds *= 2
    assert b"Traceback" not in shown
    assert b"\x1b[" in shown
    assert b"torture" in shown
    assert report["passed"]


@pytest.mark.long
def test_a_run_in_which_nobody_acquires_proves_nothing(tmp_path: Path) -> None:
    """With no time at all, or on a machine that is too busy: exit 2, and neither PASS nor FAIL."""
    code, output, errors = verify(f"sqlite:///{tmp_path}/locks.db", "--seconds", "0.001", cwd=tmp_path)
    assert (code, output) == (2, "")
    assert "no client has come to its first acquire" in errors


@pytest.mark.parametrize("name", ["my_store", "no_such_module:make", "my_store:no_such", "my_store:nothing"])
def test_a_store_that_cannot_be_made_is_said_in_one_line(name: str, my_stores: Path) -> None:
    """A factory that is not there, or gives no store: exit 2."""
    refused("--store", name, cwd=my_stores)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("one_each", "two stores of my_store:one_each do not see each other's entries: "),
        ("one_in_each_process", "a store of my_store:one_in_each_process in another process does not see the entries"),
        (
            "one_in_this_process",
            "my_store:one_in_this_process gave no store in another process: OSError: no such place",
        ),
    ],
)
def test_a_factory_whose_stores_do_not_share_their_entries_is_not_tried(name: str, told: str, my_stores: Path) -> None:
    """They would exclude nobody: exit 2, and one line that says so, before anything runs."""
    assert refused("--store", f"my_store:{name}", cwd=my_stores).startswith(f"caslock verify: {told}")


@pytest.mark.long
def test_a_worker_that_dies_is_reported_with_its_last_words(my_stores: Path) -> None:
    """The report has the last line of the worker's traceback, and no key, for a worker has none."""
    output, _ = verify_for(1, "--store", "my_store:dies", cwd=my_stores, ends=1)
    deaths = re.findall(r"^BROKEN law +worker died, at [0-9.]+: (.*)$", output, re.MULTILINE)
    assert deaths, output
    assert any(re.match(r"worker\d+ ended with status 1: RuntimeError: no luck", death) for death in deaths), deaths
    assert re.search(r"^FAIL: .*; the first: worker died, at [0-9.]+: worker\d+ ended", output, re.MULTILINE)


def test_the_last_words_of_a_worker_name_each_error() -> None:
    """Of tracebacks, the lines that name the errors, each once; of a crash, where it was; else the last line."""

    def said(error: str) -> str:
        call = """  File "store.py", line 8, in put\n    answer()\n    ^^^^^^^^\n"""
        return f"Exception in thread 1:\nTraceback (most recent call last):\n{call}{error}\na note\n"

    every = "".join(map(said, ("RuntimeError: no luck\nwith this key", "RuntimeError: no luck", "a.LockLost: over")))
    assert last_words(f"ready\n{every}") == "RuntimeError: no luck; a.LockLost: over"
    assert last_words(said(said("ValueError: one"))) == "ValueError: one"
    crash = "import faulthandler\ndef crashes(): faulthandler._sigsegv()\ncrashes()"
    arguments = [sys.executable, "-X", "faulthandler", "-c", crash]
    crashed = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, check=False).stderr
    expected = r'Fatal Python error: Seg.*; File "<string>", line 2 in crashes; File "<string>", line 3 in <module>'
    assert re.fullmatch(expected, last_words(crashed))
    assert (last_words("ready\nOut of memory\n\n"), last_words("")) == ("Out of memory", "")


def test_where_a_task_hangs_is_told_by_what_it_awaits() -> None:
    """The thread of a task only shows the event loop."""

    async def inner() -> None:
        await asyncio.get_running_loop().create_future()

    async def outer() -> None:
        await inner()

    async def scene() -> list[str]:
        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        try:
            return awaited(task)
        finally:
            task.cancel()

    assert [place.partition(" ")[2] for place in asyncio.run(scene())] == ["outer", "inner"]


@pytest.mark.parametrize("phase", ["contract", pytest.param("torture", marks=pytest.mark.long)])
def test_an_interrupt_leaves_nothing_behind(
    phase: str, new_redis: Callable[..., Server], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """Ctrl-C and SIGTERM, in either phase: no key, no process and no file is left."""
    server = new_redis()

    def interrupt(number: signal.Signals, code: int, database: int) -> None:
        url, folder = server.url.replace("/0", f"/{database}"), tmp_path / str(database)
        folder.mkdir()
        process = start("verify", url, "--seconds", "60", cwd=tmp_path, TMPDIR=str(folder))
        with process, closing(redis.Redis.from_url(url)) as client:
            assert until(lambda: any(b":contract:" in key for key in client.keys(PREFIX + "*")))  # it has begun
            if phase == "torture":
                assert until(lambda: len(members(process.pid)) >= 6, 600)
                assert until(lambda: any(b":contract:" not in key for key in client.keys(PREFIX + "*")), 600)
                time.sleep(0.5)
            process.send_signal(number)
            output, errors = process.communicate(timeout=250)
            assert (process.returncode, output) == (code, ""), errors
            assert "nothing is left behind" in errors
            assert until(lambda: not members(process.pid))
            assert client.keys() == []
        assert list(folder.iterdir()) == []

    interrupts = [pool.submit(interrupt, signal.SIGINT, 130, 0), pool.submit(interrupt, signal.SIGTERM, 143, 1)]
    for each in interrupts:
        each.result()


@pytest.mark.parametrize("key", ["reached", "shared"])
def test_an_interrupt_of_its_first_requests_leaves_nothing_behind(key: str, my_stores: Path) -> None:
    """Ctrl-C between a put and its answer, while it looks whether it can begin at all."""
    process = start("verify", "--store", "my_store:interrupted", "--seconds", "1", cwd=my_stores, INTERRUPTED=key)
    code, output, errors = finished(process)
    assert (code, output) == (130, "")
    assert "nothing is left behind" in errors
    with closing(connect(f"sqlite:///{my_stores}/locks.db")) as store:
        assert isinstance(store, ListingStore)
        assert list(store.list("")) == []


def members(session: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def test_the_monitor_ends_after_the_look_that_it_is_at() -> None:
    """Each look may take as long as a request: what it sees of the other keys would have no file any more."""
    monitor: Any = Monitor.__new__(Monitor)
    monitor._over, looks = threading.Event(), list[str]()
    monitor._plan = SimpleNamespace(all_names=lambda: ["a", "b"])
    monitor._history = SimpleNamespace(note=lambda *_, **__: None)

    def look(key: str) -> None:
        looks.append(key)
        monitor._over.set()

    monitor._look = look
    monitor._run()
    assert looks == ["a"]
