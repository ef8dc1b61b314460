"""`examples/webapp` sells rooms twice without the lock, and never with it; its page shows who holds and who waits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa

import caslock
from tests.conftest import NewServer
from tests.support.browser import chromium
from tests.support.recipes import LIMIT, ROOT, Folder, until
from tests.support.servers import Server

WEBAPP = ROOT / "examples" / "webapp"


class Service(NamedTuple):
    folder: Folder
    port: int
    database: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def load(self, *options: str) -> str:
        command = (sys.executable, str(WEBAPP / "load.py"), f"--url={self.url}", "--clients=16", *options)
        with self.folder.started(*command) as program:
            status = program.process.wait(LIMIT)
            assert status == (1 if "--without-lock" in options else 0), program.output
            return program.output

    def book(self, **booking: object) -> int:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
            connection.request("POST", "/book", json.dumps(booking), {"Content-Type": "application/json"})
            return connection.getresponse().status

    def rows(self, query: str) -> list[tuple[object, ...]]:
        engine = sa.create_engine(self.database)
        with engine.connect() as connection:
            rows = [tuple(row) for row in connection.execute(sa.text(query))]
        engine.dispose()
        return rows


@contextmanager
def service(path: Path, database: str, store: str) -> Iterator[Service]:
    folder = Folder(path)
    folder.environment |= {"DATABASE_URL": database, "CASLOCK_STORE": store}
    (folder.path / "patient.py").write_text("import app\n\napp.TIMEOUT = 100.0\napp = app.app\n")
    uvicorn = (sys.executable, "-m", "uvicorn", "--app-dir", str(WEBAPP), "--workers", "2", "--port", "0")
    with folder.started(*uvicorn, "--no-access-log", "patient:app") as program:
        program.waits_for("Application startup complete", 2)
        (port,) = program.waits_for(r"running on http://127\.0\.0\.1:(\d+)")
        yield Service(folder, int(port), database)
        assert "Traceback" not in program.output, program.output


@pytest.fixture
def postgresql(postgresql_server: Server) -> Iterator[str]:
    """Return the URL of a schema of our own."""
    url = postgresql_server.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE SCHEMA webapp"))
    yield f"{url}?options=-csearch_path%3Dwebapp"
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA webapp CASCADE"))
    engine.dispose()


ROOM_TWICE = "SELECT night, room FROM bookings GROUP BY night, room HAVING count(*) > 1"
GUEST_TWICE = "SELECT night, guest FROM bookings GROUP BY night, guest HAVING count(*) > 1"


def check(running: Service) -> None:
    output = running.load("--requests=240")
    (booked,) = re.findall(r"(\d+) answers 201", output)
    assert running.rows(ROOM_TWICE) == running.rows(GUEST_TWICE) == []
    assert running.rows("SELECT count(*) FROM bookings") == [(int(booked),)]
    assert running.rows("SELECT count(*) FROM bookings WHERE fence IS NULL") == [(0,)]

    output = running.load("--requests=24", "--rooms=1")
    assert "      1 answers 201" in output
    assert "     23 answers 409" in output

    # The first payment takes so long that the others have found the room free meanwhile.
    running.load("--requests=24", "--rooms=1", "--payment=1", "--without-lock")
    assert len(running.rows(ROOM_TWICE)) == 1


@pytest.mark.long
def test_sqlite(tmp_path: Path) -> None:
    """Without any server: with the lock one row for a room and night, without it several."""
    with service(tmp_path, f"sqlite:///{tmp_path}/hotel.db", f"sqlite:///{tmp_path}/locks.db") as running:
        check(running)


@pytest.mark.long
def test_postgresql(tmp_path: Path, postgresql: str, new_redis: NewServer) -> None:
    """The same with the locks in Redis, and the bookings in PostgreSQL."""
    with service(tmp_path, postgresql, new_redis().url) as running:
        check(running)


@pytest.mark.long
def test_page(tmp_path: Path) -> None:
    """Chromium shows who holds a room and who waits for it, of whatever process, and the booking that follows."""
    database, store = f"sqlite:///{tmp_path}/hotel.db", f"sqlite:///{tmp_path}/locks.db"
    with service(tmp_path, database, store) as running, chromium(running.folder) as browser:
        browser.open(running.url)
        until(lambda: browser.text("#room-3") == "Room 3\nfree")
        with (
            ThreadPoolExecutor() as threads,
            caslock.connect(store) as locks,
            caslock.Lock(locks, caslock.key("room", 3), note="Ada"),
        ):
            until(lambda: "Ada holds it" in browser.text("#room-3"))
            assert "waits" not in browser.text("#rooms")
            browser.type("[name=guest]", "<b>Bob</b>")
            browser.type("[name=payment]", "0")
            browser.click("button")
            until(lambda: "<b>Bob</b> waits" in browser.text("#room-3"), lambda: browser.text("body"))
            cleo = threads.submit(running.book, room=3, night=2, guest="Cleo")
            until(lambda: "Cleo waits" in browser.text("#room-3"), lambda: browser.text("body"))
            browser.screenshot(tmp_path / "page.png")
            assert browser.text("#latest") == ""
        assert cleo.result() == 201
        until(lambda: "room 3 is booked for <b>Bob</b>" in browser.text("#answers"), lambda: browser.text("body"))
        until(lambda: browser.text("#room-3") == "Room 3\nfree", lambda: browser.text("body"))
        assert {"1\t3\t<b>Bob</b>", "2\t3\tCleo"} == set(browser.text("#latest").splitlines())
        assert "2 bookings, no double booking" in browser.text("#totals")
        assert browser.text("#trouble") == ""
