"""Every example works, on small numbers, from any directory."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.recipes import ROOT, Folder, until

EXAMPLES = ROOT / "examples"
SVG = "{http://www.w3.org/2000/svg}"

SMALL = ("--bookings=500", "--workers=3", "--rooms=4", "--users=12")


class Example(Folder):
    """Where an example runs, with a folder of its own for temporary files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.temporary = path / "tmp"
        self.temporary.mkdir()
        self.environment["TMPDIR"] = str(self.temporary)

    def ends(self, name: str, *args: str, status: int = 0) -> str:
        """Run an example, which leaves no temporary files; return what it printed."""
        told = self.run(*command(name, *args), status=status)
        assert list(self.temporary.iterdir()) == []
        return told


def command(name: str, *args: str) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *args]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    """Return where an example runs."""
    return Example(tmp_path)


def figures(output: str, row: str) -> list[str]:
    match = re.search(rf"^{re.escape(row)} +(\S+) +(\S+)$", output, re.MULTILINE)
    assert match, output
    return [*match.groups()]


@pytest.fixture(scope="module")
def booked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ET.Element]:
    """Return what a run of the booking example prints and draws."""
    example = Example(tmp_path_factory.mktemp("booking"))
    told = example.ends("booking.py", *SMALL, "--svg=picture.svg")
    assert "Who was in which room when: picture.svg" in told
    return told, ET.parse(example.path / "picture.svg").getroot()  # noqa: S314 - we have just drawn it


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
def test_booking_finds_out_a_lock_that_fails(example: Example) -> None:
    """A lock that lets everybody in sells rooms twice, and the exit status says so."""
    example.write("broken-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    example.write("broken-1.dist-info/entry_points.txt", "[caslock.stores]\nbroken = broken:from_url\n")
    example.write("broken.py", BROKEN)
    told = example.ends("booking.py", *SMALL, "--url=broken://", status=1)
    assert "THE LOCK HAS FAILED" in told
    assert "THE FENCES DO NOT GROW" in told


def test_booking_says_when_it_proves_nothing(example: Example) -> None:
    """A single server sells nothing twice without the lock either, so the exit status is no success."""
    assert "this proves nothing" in example.ends("booking.py", *SMALL, "--workers=1", "--bookings=50", status=1)


@pytest.mark.parametrize("url", ["memory://", "nonsense", "nonsense://"])
def test_booking_refuses_a_store_that_processes_cannot_share(example: Example, url: str) -> None:
    """Each process would have a memory of its own."""
    assert "argument --url" in example.ends("booking.py", f"--url={url}", status=2)


@pytest.mark.long
def test_booking_stops_at_ctrl_c(example: Example) -> None:
    """At Ctrl-C all processes end, no traceback is printed, and no temporary file stays."""
    with example.started(*command("booking.py", "--bookings=50000")) as booking:
        at_work = example.temporary.glob
        until(lambda: any(path.stat().st_size > 100_000 for path in at_work("*/*.db-wal")))
        os.killpg(booking.process.pid, signal.SIGINT)
        until(lambda: booking.process.poll() is not None)
        assert booking.output.splitlines()[1:] == ["", "Stopped."]  # below what it begins with
        assert booking.process.returncode == 130
        assert list(example.temporary.iterdir()) == []
        until(lambda: not group_lives(booking.process.pid))  # multiprocessing's resource tracker goes a moment later


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_insert_once_leaves_one_row(example: Example) -> None:
    """Check-then-insert from several processes leaves several rows without the lock, and exactly one with it."""
    told = example.ends("insert_once.py", "--requests=2000", "--workers=3")
    (bare,) = re.findall(r"Rows for 20 gift\(s\): (\d+) without the lock, 20 with it", told)
    assert int(bare) > 20


def test_retry_after_timeout_finds_its_own_identity(example: Example) -> None:
    """After a lost reply a naive lock locks itself out; caslock sees that it holds, and writes no second time."""
    naive, reply, request, late = example.ends("retry_after_timeout.py").split("\n\n")
    assert "acquired: False" in naive
    assert "acquired: True" in reply
    assert reply.count("put if") == 1
    assert "acquired: True" in request
    assert "locked: False" in late


@pytest.mark.long
def test_own_store_passes_the_contract(example: Example) -> None:
    """A store of 40 lines passes every test of the kit but those of what it does not have, which are skipped."""
    told = example.ends("own_store.py", f"--basetemp={example.path / 'contract'}")
    assert re.search(r"^\d+ passed, \d+ skipped in", told, re.MULTILINE)
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
