"""The recipes in `docs/recipes.md` work, with the frameworks themselves."""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
import yaml

import caslock
from tests.conftest import NewServer
from tests.support.recipes import FILES, LIMIT, Folder, until
from tests.support.servers import Server


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return where the files of a recipe are."""
    return Folder(tmp_path)


def test_every_file_is_used() -> None:
    """No block is left out below."""
    own = Path(__file__).read_text(encoding="utf-8")
    assert len(FILES) > 10
    assert [name for name in FILES if f'"{name}"' not in own] == []


MORE_OF_FASTAPI = """
import asyncio
import booking, caslock, pytest
from caslock.testing import AsyncStoreForTests
from fastapi.testclient import TestClient

done = []

@booking.app.get("/cancelled/{room}")
async def cancelled(room: int, hold: booking.RoomLock):
    booking.app.state.store.lose(hold)
    await asyncio.sleep(60)
    done.append("it was not cancelled")

@booking.app.get("/late/{room}")
async def late(room: int, hold: booking.RoomLock):
    booking.app.state.store.lose(hold)
    return "done without the lock"

@booking.app.get("/thread/{room}")
def thread(room: int, hold: booking.RoomLock):
    hold.ensure_held()
    return "done"

@pytest.fixture
def client():
    with TestClient(booking.app, raise_server_exceptions=False) as client:
        booking.app.state.store = store = AsyncStoreForTests()
        yield client
        store.end()

@pytest.mark.parametrize("path", ["cancelled", "late"])
def test_a_loss_is_an_error(client, path):
    assert client.get(f"/{path}/7").status_code == 500
    assert done == []

def test_a_thread_has_the_lock(client):
    assert client.get("/thread/7").json() == "done"

def test_no_answer(client):
    with booking.app.state.store.unavailable():
        response = client.put("/rooms/9/ada")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
"""


@pytest.mark.long
def test_fastapi(folder: Folder) -> None:
    """The test on the page passes; a loss is status 500 also at the end of the endpoint, no answer is 503."""
    folder.write("booking.py")
    folder.write("test_booking.py")
    folder.write("test_more.py", MORE_OF_FASTAPI)
    folder.run(
        sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_booking.py", "test_more.py"
    )


DJANGO = """
import io, os, sqlite3, sys
import django
from django.conf import settings

settings.configure(
    CASLOCK_URL=os.environ["CASLOCK_STORE"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "hotel.db", "ATOMIC_REQUESTS": True}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["hotel"],
    ROOT_URLCONF="__main__",
)
django.setup()

from django.core.management import call_command
from django.test import Client
from django.urls import path
import caslock
from hotel.locks import store
from hotel.models import Room
from hotel.views import book

urlpatterns = [path("<int:room>/<str:guest>", book)]
call_command("migrate", run_syncdb=True, verbosity=0)
Room.objects.bulk_create([Room(pk=7), Room(pk=8, fence=2**62), Room(pk=42)])
committed = []


class Committed(caslock.Observer):
    def released(self, event):
        rows = sqlite3.connect("hotel.db").execute("SELECT guest FROM hotel_room WHERE id = 42")
        committed.extend(guest for guest, in rows)


caslock.observe(Committed())
web = Client(headers={"host": "localhost"})
assert web.get("/42/ada").status_code == 200
assert committed == ["ada"], committed
assert web.get("/42/bob").status_code == 409
assert web.get("/8/bob").status_code == 409  # the fence of a later holder
with caslock.Lock(store, caslock.key("room", 7)) as hold:
    assert web.get("/7/bob").status_code == 423
assert web.get("/7/bob").status_code == 200
assert Room.objects.get(pk=7).fence > hold.fence

with caslock.Lock(store, "job:nightly"):
    busy = io.StringIO()
    call_command("nightly", stdout=busy)
free = io.StringIO()
call_command("nightly", stdout=free)
assert (busy.getvalue(), free.getvalue()) == ("", "the nightly job runs\\n")
"""


@pytest.mark.long
def test_django(folder: Folder) -> None:
    """A view commits before it releases, also with ATOMIC_REQUESTS; the command runs on one machine at a time."""
    for name in ("hotel/locks.py", "hotel/models.py", "hotel/views.py", "hotel/management/commands/nightly.py"):
        folder.write(name)
    folder.write("project.py", DJANGO)
    folder.run(sys.executable, "project.py")


def test_sqlalchemy(folder: Folder) -> None:
    """A room is sold once; a holder that was paused is refused, and its transaction changes nothing."""
    rooms = SimpleNamespace(**runpy.run_path(str(folder.write("rooms.py"))))
    engine = sa.create_engine(f"sqlite:///{folder.path}/hotel.db")
    rooms.Base.metadata.create_all(engine)
    store = caslock.connect(folder.store)
    assert rooms.book_alone(engine, store, 42, "Ada")
    assert not rooms.book_alone(engine, store, 42, "Bob")
    paused = caslock.Lock(store, caslock.key("room", 7)).acquire()
    assert paused
    caslock.Lock(store, caslock.key("room", 7)).force_release()
    with caslock.Lock(store, caslock.key("room", 7)) as hold, sa.orm.Session(engine) as session, session.begin():
        rooms.write_row(session.connection(), rooms.Room.__table__, {"id": 7}, fence=hold.fence)
    with pytest.raises(caslock.StaleFence):
        rooms.book(engine, paused, 7, "Bob")
    with engine.begin() as connection:
        assert list(connection.execute(sa.text("SELECT id, guest FROM rooms ORDER BY id"))) == [(7, ""), (42, "Ada")]
    engine.dispose()


REPORTS = """
import os, pathlib, time

def note(what):
    with open("done.txt", "a") as file:
        print(what, os.getpid(), file=file, flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.02)

def make_report(day):
    note(day)
    return f"report of {day}"

def charge_account(account):
    note(f"charge-{account}")
"""


@pytest.mark.long
def test_celery(folder: Folder, new_redis: NewServer) -> None:
    """Of two workers, one makes the report and the other skips it; an account is charged as often as it was asked."""
    folder.write("tasks.py", redis=new_redis().url)
    folder.write("reports.py", REPORTS)
    done = folder.path / "done.txt"
    worker = ["celery", "-A", "tasks", "worker", "--concurrency", "1", "--loglevel", "INFO", "--without-mingle", "-n"]
    send = "import tasks, sys; [getattr(tasks, sys.argv[1]).apply_async(sys.argv[2:], queue=q) for q in ('one', 'two')]"
    with folder.started(*worker, "one@h", "-Q", "one") as one, folder.started(*worker, "two@h", "-Q", "two") as two:
        for each in (one, two):
            each.waits_for("ready")

        def logged(pattern: str) -> int:
            return len(re.findall(pattern, one.output + two.output))

        folder.run(sys.executable, "-c", send, "report", "monday")
        until(lambda: logged(r"tasks\.report\[.*succeeded in .*: None") == 1, lambda: one.output + two.output)
        (folder.path / "go").touch()
        until(lambda: logged(r"tasks\.report\[.*succeeded in .*: 'report of monday'") == 1)
        assert len(done.read_text().splitlines()) == 1

        (folder.path / "go").unlink()
        folder.run(sys.executable, "-c", send, "charge", "7")
        until(lambda: logged(r"tasks\.charge\[.*retry: Retry in 1s: NotAcquired") >= 1, lambda: one.output + two.output)
        until(lambda: done.read_text().count("charge-7") == 1)
        (folder.path / "go").touch()
        until(lambda: logged(r"tasks\.charge\[.*succeeded") == 2, lambda: one.output + two.output)
        assert done.read_text().count("charge-7") == 2


def test_a_request_and_a_worker(folder: Folder) -> None:
    """One request is accepted and the next one is not; the job is done once, and then the key is free."""
    folder.write("accept.py")
    folder.write("finish.py")
    message = folder.run(sys.executable, "accept.py", "42")
    assert folder.run(sys.executable, "accept.py", "42") == "None\n"
    finish = ["sh", "-c", f"echo {shlex.quote(message)} | {shlex.quote(sys.executable)} finish.py"]
    assert folder.run(*finish).startswith("finished 42 with fence ")
    assert folder.run(*finish) == "42 was finished before\n"
    assert "ticket" in folder.run(sys.executable, "accept.py", "42")


def test_cron(folder: Folder) -> None:
    """Two machines run the line at nearly the same time: one does the job, and both end with status 0."""
    program = folder.write("job.sh", "#!/bin/sh\necho done >> done.txt\n")
    program.chmod(0o755)
    line = folder.write("crontab", locks=folder.store, caslock="caslock", program=str(program)).read_text()
    *_, entry = line.splitlines()
    command = entry.split(maxsplit=5)[5]
    assert "%" not in command  # cron would take it for the end of the line
    for _ in range(2):
        folder.run("sh", "-c", command)
    assert (folder.path / "done.txt").read_text() == "done\n"


@pytest.mark.long
def test_apscheduler(folder: Folder, redis_server: Server) -> None:
    """Two schedulers start the job several times within a minute: it runs once."""
    folder.write("schedule.py", often='second="*"', locks=redis_server.url)
    command = sys.executable, "schedule.py"
    with folder.started(*command) as one, folder.started(*command) as two:
        for each in (one, two):
            each.waits_for("executed successfully", 2)
        assert (one.output + two.output).count("report by") == 1


@pytest.mark.long
@pytest.mark.parametrize(("name", "stop"), [("leader.py", signal.SIGTERM), ("async_leader.py", signal.SIGINT)])
def test_leader(folder: Folder, name: str, stop: signal.Signals) -> None:
    """A leader that was paused for longer than its lease stops and queues; one that is told to end hands over."""
    file = folder.write(name, ttl="ttl=6")
    with folder.started(sys.executable, str(file)) as one:
        first = int(one.waits_for(r"\d+ (\d+)\n")[0])
        with folder.started(sys.executable, str(file)) as two:
            one.process.send_signal(signal.SIGSTOP)
            second = int(two.waits_for(r"\d+ (\d+)\n")[0])
            one.process.send_signal(signal.SIGCONT)
            one.waits_for("was lost")
            assert two.ends_by(stop) == (128 + stop if stop is signal.SIGTERM else -stop)  # it has left its block
            until(lambda: int(re.findall(r"\d+ (\d+)\n", one.output)[-1]) > second > first)
            assert set(re.findall(r"^\d+ (\d+)$", two.output, re.MULTILINE)) == {str(second)}


def container(folder: Folder, name: str, program: str, **changes: str) -> list[str]:
    """Read the one container of a manifest; return its command, and write its program."""
    manifest = yaml.safe_load(folder.write(name, locks=folder.store, **changes).read_text())
    spec = manifest["spec"]
    pod = spec["jobTemplate"]["spec"]["template"] if manifest["kind"] == "CronJob" else spec["template"]
    (found,) = pod["spec"]["containers"]
    assert found["env"] == [{"name": "CASLOCK_STORE", "value": folder.store}]
    folder.write(f"{manifest['metadata']['name']}.py", program)
    assert all(isinstance(word, str) for word in found["command"])
    return [*found["command"]]


def test_kubernetes_deployment(folder: Folder) -> None:
    """One of two pods works; the other begins when it is told to end; after a loss the status is 123."""
    program = "import time\nprint('begins', flush=True)\ntime.sleep(60)\n"
    command = container(folder, "importer.yaml", program, seconds='"9"')
    with folder.started(*command) as one:
        one.waits_for("begins")
        with folder.started(*command) as two:
            assert "pid" in folder.run("caslock", "show", "importer")
            assert one.ends_by(signal.SIGTERM) == 128 + signal.SIGTERM
            two.waits_for("begins")
            folder.run("caslock", "break", "importer", "--yes")
            assert two.process.wait(LIMIT) == 123


def test_kubernetes_cron_job(folder: Folder) -> None:
    """The second pod finds the key taken, although the first has ended, and ends with status 0."""
    command = container(folder, "nightly.yaml", "print('done')\n")
    assert [folder.run(*command), folder.run(*command)] == ["done\n", ""]


def test_manifests_are_what_kubernetes_takes() -> None:
    """The selector of the deployment matches the labels of its pods, and a job does not restart what has ended."""
    deployment, job = (yaml.safe_load(FILES[name]) for name in ("importer.yaml", "nightly.yaml"))
    spec = deployment["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert spec["replicas"] == 2
    assert job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert shlex.split(job["spec"]["schedule"])[1] == "2"
