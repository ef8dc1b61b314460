"""Every example works, on small numbers, from any directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

if TYPE_CHECKING:
    from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SVG = "{http://www.w3.org/2000/svg}"

SMALL = ("--bookings=500", "--workers=3", "--rooms=4", "--users=12")

TRACE = "Traceback"


def command(name: str, *args: str) -> list[str]:
    """How to run an example."""
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *args]


def surroundings(folder: Path, *paths: Path) -> dict[str, str]:
    """The environment of an example: caslock on the path, and a folder of its own for temporary files."""
    (folder / "tmp").mkdir()
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))), "TMPDIR": str(folder / "tmp")}


def run(folder: Path, name: str, *args: str, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run an example in `folder`; it leaves no temporary files."""
    done = subprocess.run(
        command(name, *args),
        cwd=folder,
        env=surroundings(folder, *paths),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert list((folder / "tmp").iterdir()) == []
    assert TRACE not in done.stderr
    return done


def group_lives(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def figures(output: str, row: str) -> list[str]:
    """Read a row of the summary."""
    match = re.search(rf"^{re.escape(row)} +(\S+) +(\S+)$", output, re.MULTILINE)
    assert match, output
    return [*match.groups()]


@pytest.fixture(scope="module")
def booked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ET.Element]:
    """Return what a run of the booking example prints and draws."""
    folder = tmp_path_factory.mktemp("booking")
    done = run(folder, "booking.py", *SMALL, "--svg=picture.svg")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Who was in which room when: picture.svg" in done.stdout
    return done.stdout, ET.parse(folder / "picture.svg").getroot()  # noqa: S314 - we have just drawn it


def test_booking_sells_twice_without_the_lock_and_never_with_it(booked: tuple[str, ET.Element]) -> None:
    """Servers that look and then write sell rooms twice; under the lock they don't, and the fences of a room grow."""
    output, _ = booked
    assert figures(output, "bookings asked") == ["500", "500"]
    for row in ("double bookings", "two servers in one room"):
        bare, locked = figures(output, row)
        assert int(bare) > 0
        assert locked == "0"
    assert "the fences only grow" in output


def test_booking_draws_a_picture(booked: tuple[str, ET.Element]) -> None:
    """The picture has a panel for each run: red where two servers were at a room at once, and never with the lock."""
    _, picture = booked
    assert picture.tag == f"{SVG}svg"
    bare, locked = (picture.find(f"{SVG}g[@id='{name}']") for name in ("without-lock", "with-lock"))
    assert bare is not None
    assert locked is not None
    assert "two servers in one room" in {title.text for title in bare.iter(f"{SVG}title")}
    assert "two servers in one room" not in {title.text for title in locked.iter(f"{SVG}title")}
    labels = {label.text for label in picture.iter(f"{SVG}text")}
    assert {"Data centre eu:", "Data centre us:", "eu-1", "us-1", "eu-2", "room 1", "room 4"} <= labels


@pytest.mark.long
def test_booking_takes_any_store(tmp_path: Path, redis_server: Server) -> None:
    """The locks may live on a server."""
    done = run(tmp_path, "booking.py", *SMALL, f"--url={redis_server.url}")
    assert done.returncode == 0, done.stdout + done.stderr


BROKEN = """
import itertools
from caslock import Entry, Traits

class BrokenStore:
    traits = Traits(location="broken://")
    versions = itertools.count(1)

    def get(self, key):
        return None

    def put_if_version(self, key, value, version, ttl):
        return Entry(value, next(self.versions))

    def invalidate(self, key, version):
        return None

def from_url(url):
    return BrokenStore()
"""


@pytest.mark.long
def test_booking_finds_out_a_lock_that_fails(tmp_path: Path) -> None:
    """A lock that lets everybody in sells rooms twice, and the exit status says so."""
    plugin = tmp_path / "plugin"
    (plugin / "broken-1.dist-info").mkdir(parents=True)
    (plugin / "broken-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (plugin / "broken-1.dist-info" / "entry_points.txt").write_text("[caslock.stores]\nbroken = broken:from_url\n")
    (plugin / "broken.py").write_text(BROKEN)
    done = run(tmp_path, "booking.py", *SMALL, "--url=broken://", paths=(plugin,))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "THE LOCK HAS FAILED" in done.stdout
    assert "THE FENCES DO NOT GROW" in done.stdout


def test_booking_says_when_it_proves_nothing(tmp_path: Path) -> None:
    """A single server sells nothing twice without the lock either, so the exit status is no success."""
    done = run(tmp_path, "booking.py", *SMALL, "--workers=1", "--bookings=50")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "this proves nothing" in done.stdout


@pytest.mark.parametrize("url", ["memory://", "nonsense", "nonsense://"])
def test_booking_refuses_a_store_that_processes_cannot_share(tmp_path: Path, url: str) -> None:
    """Each process would have a memory of its own."""
    done = run(tmp_path, "booking.py", f"--url={url}")
    assert done.returncode == 2
    assert "argument --url" in done.stderr


@pytest.mark.long
def test_booking_stops_at_ctrl_c(tmp_path: Path) -> None:
    """At Ctrl-C all processes end, no traceback is printed, and no temporary file stays."""
    # Tests in the background may have been told to ignore it, and what they start would ignore it too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command("booking.py", "--bookings=50000"),
        cwd=tmp_path,
        env=surroundings(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    signal.signal(signal.SIGINT, before)
    try:
        bookings = tmp_path / "tmp"
        deadline = time.monotonic() + 30
        while not any(path.stat().st_size > 100_000 for path in bookings.glob("*/*.db-wal")):  # until all are at work
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert errors.strip() == "Stopped."
        assert process.returncode == 130
        assert list(bookings.iterdir()) == []
        deadline = time.monotonic() + 30
        while group_lives(process.pid):  # multiprocessing's resource tracker goes a moment later
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()


def test_insert_once_leaves_one_row(tmp_path: Path) -> None:
    """Check-then-insert from several processes leaves several rows without the lock, and exactly one with it."""
    done = run(tmp_path, "insert_once.py", "--requests=500", "--workers=3")
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"Rows of one gift: (\d+) without the lock, 1 with it", done.stdout)
    assert match
    assert int(match[1]) > 1


def test_retry_after_timeout_finds_its_own_identity(tmp_path: Path) -> None:
    """After a lost reply a naive lock locks itself out; caslock sees that it holds, and writes no second time."""
    done = run(tmp_path, "retry_after_timeout.py")
    assert done.returncode == 0, done.stdout + done.stderr
    naive, reply, request, late = done.stdout.split("\n\n")
    assert "acquired: False" in naive
    assert "acquired: True" in reply
    assert reply.count("put if") == 1
    assert "acquired: True" in request
    assert "locked: False" in late


@pytest.mark.long
def test_own_store_passes_the_contract(tmp_path: Path) -> None:
    """A store of 40 lines passes every test of the kit but those of what it does not have, which are skipped."""
    done = run(tmp_path, "own_store.py", f"--basetemp={tmp_path / 'contract'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed, \d+ skipped in", done.stdout, re.MULTILINE)
    source = (EXAMPLES / "own_store.py").read_text()
    store = re.search(r"^class FileStore:\n.*?(?=^def )", source, re.MULTILINE | re.DOTALL)
    assert store
    body = re.sub(r'""".*?"""', "", store[0], flags=re.DOTALL)
    assert len([line for line in body.splitlines() if line.strip()]) <= 40


def test_every_example_is_run() -> None:
    """No example is left out above."""
    own = Path(__file__).read_text()
    helpers = {"booking_picture.py", "fleet.py"}
    names = {path.name for path in EXAMPLES.glob("*.py")} - helpers
    assert {name for name in names if f'"{name}"' not in own} == set()
