"""The guards of `caslock.fencing` refuse the late write of a holder whose lease has ended, on real resources."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from caslock import CaslockError, Lock, StaleFence
from caslock.fencing import (
    FenceGuard,
    fence_column,
    write_file,
    write_row,
    write_row_async,
    write_value,
    write_value_async,
)
from caslock.stores.memory import MemoryStore
from tests.support.command_line import python
from tests.support.locations import fresh, present, until
from tests.support.loops import in_a_loop
from tests.support.servers import Server


class Tenures(NamedTuple):
    """The fences of a holder that was paused beyond its lease, and of the two after it."""

    paused: int
    second: int
    third: int


@pytest.fixture
def tenures(memory: MemoryStore) -> Tenures:
    """Return the fences of a lock whose first holder has lost it."""
    lock = Lock(memory, "room:42")
    paused = present(lock.acquire(timeout=0))
    lock.force_release()
    with Lock(memory, "room:42", timeout=10) as second:
        pass
    with Lock(memory, "room:42", timeout=10) as third:
        return Tenures(paused.fence, second.fence, third.fence)


class Resource(NamedTuple):
    write: Callable[[str, int], None]
    """Writes by the guard."""
    read: Callable[[], str | None]
    """Reads as anybody does; None: nothing has been written."""


def table() -> sa.Table:
    name = fresh("rooms").replace(":", "_")
    columns = (sa.Column("id", sa.Integer, primary_key=True), sa.Column("guest", sa.String(40)), fence_column())
    return sa.Table(name, sa.MetaData(), *columns)


class Rows:
    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url)
        self.table = table()
        self.table.create(self.engine)

    def write(self, value: str, fence: int) -> None:
        with self.engine.begin() as connection:
            write_row(connection, self.table, {"id": 42}, {"guest": value}, fence=fence)

    @in_a_loop
    async def write_in_asyncio(self, value: str, fence: int) -> None:
        engine = create_async_engine(self.url.replace("pymysql", "asyncmy"), poolclass=NullPool)
        async with engine.begin() as connection:
            await write_row_async(connection, self.table, {"id": 42}, {"guest": value}, fence=fence)

    def read(self) -> str | None:
        with self.engine.begin() as connection:
            guest: str | None = connection.scalar(sa.select(self.table.c.guest).where(self.table.c.id == 42))
            return guest

    def fence(self) -> int | None:
        with self.engine.begin() as connection:
            fence: int | None = connection.scalar(sa.select(self.table.c.fence))
            return fence

    def close(self) -> None:
        self.table.drop(self.engine)
        self.engine.dispose()


def redis_value(url: str, *, decode: bool, in_asyncio: bool) -> Resource:
    name = fresh()

    def write(value: str, fence: int) -> None:
        with redis.Redis.from_url(url, decode_responses=decode) as client:
            write_value(client, name, value, fence=fence)

    @in_a_loop
    async def write_in_asyncio(value: str, fence: int) -> None:
        async with redis.asyncio.Redis.from_url(url, decode_responses=decode) as client:
            await write_value_async(client, name, value, fence=fence)

    def read() -> str | None:
        with redis.Redis.from_url(url, decode_responses=True) as client:
            value: str | None = client.hget(name, "value")
            return value

    return Resource(write_in_asyncio if in_asyncio else write, read)


def in_memory() -> Resource:
    guard, values = FenceGuard(), dict[str, str]()

    def write(value: str, fence: int) -> None:
        with guard.admit("a room", fence):
            values["a room"] = value

    return Resource(write, lambda: values.get("a room"))


def in_a_file(path: Path) -> Resource:
    return Resource(
        lambda value, fence: write_file(path, value.encode(), fence=fence),
        lambda: path.read_text() if path.exists() else None,
    )


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/hotel.db"
    server: Server = request.getfixturevalue(f"{kind}_server")
    return server.url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """Return a table in each database."""
    with closing(Rows(url_of(request.param, request))) as rows:
        yield rows


@pytest.fixture(params=["postgresql", "mysql"])
def served_rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """Return a table on each server, which has several writers at a time."""
    with closing(Rows(url_of(request.param, request))) as rows:
        yield rows


RESOURCES = (
    *("sqlite", "postgresql", "mysql", "postgresql in asyncio", "mysql in asyncio"),
    *("redis", "redis decoded", "redis in asyncio", "redis decoded in asyncio", "file", "in memory"),
)


@pytest.fixture(params=RESOURCES)
def resource(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Resource]:
    """Return each kind of resource, on which nothing has been written."""
    kind, _, rest = request.param.partition(" ")
    if kind == "redis":
        server: Server = request.getfixturevalue("redis_server")
        yield redis_value(server.url, decode="decoded" in rest, in_asyncio="asyncio" in rest)
    elif kind == "file":
        yield in_a_file(tmp_path / "room.txt")
    elif kind == "in":
        yield in_memory()
    else:
        with closing(Rows(url_of(kind, request))) as rows:
            yield Resource(rows.write_in_asyncio if rest else rows.write, rows.read)


def test_a_late_write_is_refused(resource: Resource, tenures: Tenures) -> None:
    """A holder writes as often as it likes until a later one has written: then its write is refused, and says so."""
    for value, fence in (("Ada", tenures.paused), ("Bob", tenures.paused), ("Cy", tenures.third)):
        resource.write(value, fence)
        assert resource.read() == value
    for late in (tenures.second, tenures.paused):
        with pytest.raises(CaslockError) as caught:
            resource.write("Dee", late)
        assert isinstance(caught.value, StaleFence)
        assert resource.read() == "Cy"
        assert (caught.value.fence, caught.value.seen) == (late, tenures.third)
        assert caught.value.resource in str(caught.value)
        assert f"with fence {late}" in str(caught.value)


@pytest.mark.parametrize(("small", "large"), [(9, 10), (99, 1000), (2**53, 2**53 + 1), (2**62, 2**63 - 1)])
def test_fences_are_compared_as_numbers(resource: Resource, small: int, large: int) -> None:
    """Neither as text, by which 9 would come after 10, nor as doubles, for which 2^53 and the next are the same."""
    resource.write("Ada", large)
    with pytest.raises(StaleFence) as caught:
        resource.write("Bob", small)
    assert (caught.value.seen, resource.read()) == (large, "Ada")


@pytest.mark.parametrize("fence", [0, -1, True, "5", 5.0, None])
def test_what_is_no_fence_is_refused(resource: Resource, fence: int) -> None:
    """A fence is a positive int; anything else is refused before anything is sent."""
    with pytest.raises((TypeError, ValueError), match="fence must be"):
        resource.write("Ada", fence)
    assert resource.read() is None


# Rows of a database.


def test_a_row_guards_a_whole_transaction(rows: Rows) -> None:
    """`write_row` without values claims a row: what else the transaction writes is refused with it."""
    bills = sa.Table("bills", sa.MetaData(), sa.Column("guest", sa.String(40)), prefixes=["TEMPORARY"])
    with rows.engine.connect() as connection:
        with connection.begin():
            bills.create(connection)
            write_row(connection, rows.table, {"id": 42}, fence=6)
            connection.execute(sa.insert(bills).values(guest="Ada"))
        connection.execute(sa.insert(bills).values(guest="Bob"))
        with pytest.raises(StaleFence):
            write_row(connection, rows.table, {"id": 42}, fence=5)
        connection.rollback()
        with connection.begin():
            assert connection.scalars(sa.select(bills.c.guest)).all() == ["Ada"]
            bills.drop(connection)
    assert (rows.read(), rows.fence()) == (None, 6)


def test_a_write_ends_with_its_transaction(rows: Rows) -> None:
    """A rollback takes a first write back, and its fence."""
    with rows.engine.connect() as connection:
        write_row(connection, rows.table, {"id": 42}, {"guest": "Ada"}, fence=6)
        connection.rollback()
    assert rows.fence() is None
    rows.write("Bob", 5)
    assert rows.read() == "Bob"


def test_values_may_be_expressions_and_other_columns_stay(rows: Rows) -> None:
    """An update computes with the row, and leaves out what it does not name."""
    rows.write("Ada", 5)
    with rows.engine.begin() as connection:
        write_row(connection, rows.table, {"id": 42}, {"guest": rows.table.c.guest + "!"}, fence=6)
        write_row(connection, rows.table, {"id": 42}, fence=7)
    assert (rows.read(), rows.fence()) == ("Ada!", 7)


def test_a_row_without_a_fence_has_seen_none(rows: Rows) -> None:
    """A column that was added to existing rows without a default is NULL there."""
    with rows.engine.begin() as connection:
        key = sa.Column("id", sa.Integer, primary_key=True)
        old = sa.Table(f"{rows.table.name}_old", sa.MetaData(), key, sa.Column("fence", sa.BigInteger))
        old.create(connection)
        connection.execute(sa.insert(old).values(id=1))
        write_row(connection, old, {"id": 1}, fence=5)
        with pytest.raises(StaleFence):
            write_row(connection, old, {"id": 1}, fence=4)
        old.drop(connection)


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :own",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE :own",
}


AT_ONCE = {"postgresql": "SET lock_timeout = '1s'", "mysql": "SET innodb_lock_wait_timeout = 1"}


def waits(rows: Rows) -> bool:
    """Return whether a transaction at this table waits for another one."""
    if rows.engine.dialect.name == "mysql":
        time.sleep(0.15)  # the answer is kept for as long as it is asked for within 0.1 s
    with rows.engine.connect() as connection:
        return bool(connection.scalar(sa.text(WAITING[rows.engine.dialect.name]), {"own": f"%{rows.table.name}%"}))


@pytest.mark.parametrize("first", [True, False], ids=["insert", "update"])
@pytest.mark.parametrize("fence", [5, 7])
def test_a_writer_waits_for_the_transaction_of_another(served_rows: Rows, fence: int, first: bool) -> None:  # noqa: FBT001 - of pytest
    """Of two transactions at one row, the second waits for the first, and then sees its fence: also of a new row."""
    rows = served_rows
    if not first:
        rows.write("nobody", 1)
    with ThreadPoolExecutor(1) as thread, rows.engine.connect() as connection:
        write_row(connection, rows.table, {"id": 42}, {"guest": "Ada"}, fence=6)
        other = thread.submit(rows.write, "Bob", fence)
        assert until(lambda: waits(rows))
        connection.commit()
        if fence == 5:
            with pytest.raises(StaleFence):
                other.result(200)
        else:
            other.result(200)
    assert (rows.read(), rows.fence()) == (("Ada", 6) if fence == 5 else ("Bob", 7))


def test_new_rows_do_not_wait_for_each_other(served_rows: Rows) -> None:
    """Two transactions insert different rows in READ COMMITTED; MySQL's REPEATABLE READ locks the gap: a deadlock."""
    engine = served_rows.engine.execution_options(isolation_level="READ COMMITTED")
    with engine.connect() as first, engine.connect() as second:
        second.execute(sa.text(AT_ONCE[engine.dialect.name]))
        write_row(first, served_rows.table, {"id": 42}, {"guest": "Ada"}, fence=5)
        write_row(second, served_rows.table, {"id": 43}, {"guest": "Bob"}, fence=6)
        second.commit()
        first.commit()
        assert len(first.execute(sa.select(served_rows.table)).all()) == 2


def test_a_transaction_that_began_before_the_later_holder_sees_its_fence(served_rows: Rows) -> None:
    """In MySQL, it would read what was there as it began; the fence in the error is the one that it lost to."""
    served_rows.write("nobody", 1)
    with served_rows.engine.connect() as connection:
        assert connection.scalar(sa.select(served_rows.table.c.fence)) == 1
        served_rows.write("Ada", 6)
        with pytest.raises(StaleFence) as caught:
            write_row(connection, served_rows.table, {"id": 42}, {"guest": "Bob"}, fence=5)
    assert (caught.value.seen, served_rows.read()) == (6, "Ada")


def test_another_constraint_is_no_late_write(served_rows: Rows) -> None:
    """A row that the database refuses for another reason is an error of the database, and the transaction goes on."""
    key, seat = sa.Column("id", sa.Integer, primary_key=True), sa.Column("seat", sa.Integer, unique=True)
    seats = sa.Table(f"{served_rows.table.name}_seats", sa.MetaData(), key, seat, fence_column())
    with served_rows.engine.begin() as connection:
        seats.create(connection)
        write_row(connection, seats, {"id": 1}, {"seat": 9}, fence=5)
        with pytest.raises(sa.exc.IntegrityError):
            write_row(connection, seats, {"id": 2}, {"seat": 9}, fence=5)
        assert connection.scalar(sa.select(sa.func.count()).select_from(seats)) == 1
        seats.drop(connection)


def test_what_does_not_fit_the_table_is_refused(tmp_path: Path) -> None:
    """Each mistake has an error of its own, before anything is sent."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/hotel.db")
    rooms, key, number = table(), {"id": 42}, sa.Column("id", sa.Integer, primary_key=True)
    small = sa.Table("small", sa.MetaData(), number, sa.Column("fence", sa.Integer))
    keyless = sa.Table("keyless", sa.MetaData(), fence_column())
    with engine.connect() as connection:
        with pytest.raises(TypeError, match=r"small\.fence must be BIGINT"):
            write_row(connection, small, key, fence=5)
        with pytest.raises(ValueError, match="has no column 'number'"):
            write_row(connection, rooms, key, fence=5, column="number")
        wrongs: tuple[dict[str, object], ...] = ({}, {"guest": "Ada"}, {"id": 42, "guest": "Ada"})
        for wrong in wrongs:
            with pytest.raises(ValueError, match="key must name the primary key"):
                write_row(connection, rooms, wrong, fence=5)
        with pytest.raises(ValueError, match="key must name the primary key"):
            write_row(connection, keyless, {}, fence=5)
        for name in ("id", "fence"):
            with pytest.raises(ValueError, match="values must not contain"):
                write_row(connection, rooms, key, {name: 9}, fence=5)
        pairs: tuple[Any, ...] = (42, "id", [("id", 42)], {rooms.c.id: 42})
        for wrong in pairs:
            with pytest.raises(TypeError, match="key must be a mapping of column names"):
                write_row(connection, rooms, wrong, fence=5)
            with pytest.raises(TypeError, match="values must be a mapping of column names"):
                write_row(connection, rooms, key, wrong, fence=5)
        with pytest.raises(TypeError, match="must be a Table"):
            write_row(connection, "rooms", key, fence=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be an AsyncConnection, not Connection"):
            asyncio.run(write_row_async(connection, rooms, key, fence=5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a Connection of SQLAlchemy, not Engine"):
        write_row(engine, rooms, key, fence=5)  # type: ignore[arg-type]
    engine.dispose()


def test_a_row_needs_a_transaction(served_rows: Rows) -> None:
    """Where each statement commits by itself, a claim would guard nothing."""
    automatic = served_rows.engine.execution_options(isolation_level="AUTOCOMMIT")
    with automatic.connect() as connection, pytest.raises(ValueError, match="not in AUTOCOMMIT mode"):
        write_row(connection, served_rows.table, {"id": 42}, fence=5)
    assert served_rows.fence() is None


WITHOUT = """
import sys
sys.modules["sqlalchemy"] = sys.modules["redis"] = None
import caslock.fencing
caslock.fencing.FenceGuard, caslock.fencing.write_file, caslock.fencing.write_value
try:
    caslock.fencing.write_row
except ModuleNotFoundError as error:
    print(error)
print(sorted({*caslock.fencing.__all__} - {*dir(caslock.fencing)}), hasattr(caslock.fencing, "write_rows"))
"""


def test_without_sqlalchemy_it_says_what_to_install() -> None:
    """Only the guard of rows needs SQLAlchemy, and no guard imports redis-py: its user has it."""
    said = "caslock.fencing.write_row needs the package SQLAlchemy: pip install 'SQLAlchemy>=2.0.43'\n[] False\n"
    assert python("-c", WITHOUT) == (0, said, "")


# Values in Redis.


def test_a_client_of_the_other_api_is_refused(redis_server: Server) -> None:
    """It would return without having written, or after."""
    name = fresh()
    with redis.Redis.from_url(redis_server.url) as client:
        with pytest.raises(TypeError, match="use write_value_async"):
            write_value(redis.asyncio.Redis.from_url(redis_server.url), name, "Ada", fence=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="use write_value"):
            asyncio.run(write_value_async(client, name, "Ada", fence=5))
        assert not client.exists(name)


def test_another_type_under_the_name_is_left_alone(redis_server: Server) -> None:
    """What redis-py raises is not hidden."""
    name = fresh()
    with redis.Redis.from_url(redis_server.url) as client:
        client.set(name, "not a hash")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            write_value(client, name, "Ada", fence=5)
        assert client.get(name) == b"not a hash"


def test_values_are_bytes_and_numbers_too(redis_server: Server) -> None:
    """They are stored as redis-py stores them, and each stays with its fence."""
    name = fresh()
    values: list[tuple[str | bytes | float, bytes]] = [(b"\xff\0", b"\xff\0"), (42, b"42"), (0.5, b"0.5"), ("", b"")]
    with redis.Redis.from_url(redis_server.url) as client:
        for fence, (value, stored) in enumerate(values, 1):
            write_value(client, name, value, fence=fence)
            assert client.hgetall(name) == {b"value": stored, b"fence": b"%d" % fence}


# Files.


WITHOUT_LOCKS = """
import os, sys
sys.modules["fcntl"] = None
from caslock.fencing import write_file
try:
    write_file("room.txt", b"Ada", fence=5)
except NotImplementedError as error:
    print(error, os.listdir())
"""


def test_without_file_locks_nothing_is_written(tmp_path: Path) -> None:
    """On Windows, the error says what is missing."""
    said = "write_file needs flock, which this system does not have []\n"
    assert python("-c", WITHOUT_LOCKS, cwd=tmp_path) == (0, said, "")


def test_content_is_bytes(tmp_path: Path) -> None:
    """Text is refused before anything is written, also the fence."""
    with pytest.raises(TypeError, match="content must be bytes, not str"):
        write_file(tmp_path / "room.txt", "Ada", fence=5)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Nothing is left next to a directory."""
    (tmp_path / "room").mkdir()
    with pytest.raises(ValueError, match="room is not a regular file"):
        write_file(tmp_path / "room", b"Ada", fence=5)
    assert [path.name for path in tmp_path.iterdir()] == ["room"]


def test_a_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    """The new content has the permissions of the old, and goes to where a symbolic link leads."""
    path, link = tmp_path / "room.txt", tmp_path / "link.txt"
    path.write_bytes(b"Ada")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, b"Bob", fence=5)
    assert link.is_symlink()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"Bob", 0o640)
    with pytest.raises(StaleFence, match=str(path)):
        write_file(path, b"Cy", fence=4)


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    """Others may read it, as the umask has it."""
    (tmp_path / "other").touch()
    write_file(tmp_path / "room.txt", b"Ada", fence=5)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("other", "room.txt", "room.txt.fence")}
    assert len(modes) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other",
        *(f"room.txt{s}" for s in ("", ".fence", ".lock")),
    ]


def test_a_crash_leaves_earlier_holders_refused(tmp_path: Path) -> None:
    """The fence is written first: after a crash in between, the old content stays, and an earlier fence is late."""
    path = tmp_path / "room.txt"
    write_file(path, b"Ada", fence=5)
    (tmp_path / "room.txt.new").mkdir()  # the content can't be written
    (tmp_path / "room.txt.fence").write_bytes(b"6\n")  # as the holder before the crash has left it
    with pytest.raises(IsADirectoryError):
        write_file(path, b"Bob", fence=6)
    (tmp_path / "room.txt.new").rmdir()
    with pytest.raises(StaleFence):
        write_file(path, b"Cy", fence=5)
    assert path.read_bytes() == b"Ada"
    (tmp_path / "room.txt.new").write_bytes(b"half of a much longer con")
    write_file(path, b"Bob", fence=6)
    assert path.read_bytes() == b"Bob"


@pytest.mark.parametrize("content", [b"", b"five", b"-5", b"5 6"])
def test_a_damaged_fence_is_no_fence(tmp_path: Path, content: bytes) -> None:
    """It is an error, and not taken for none, which would let every late write pass."""
    path = tmp_path / "room.txt"
    (tmp_path / "room.txt.fence").write_bytes(content)
    with pytest.raises(ValueError, match="must contain a fence"):
        write_file(path, b"Ada", fence=5)
    assert not path.exists()


def test_a_writer_waits_for_another_no_longer_than_told(tmp_path: Path) -> None:
    """A process that was stopped in the middle of a write does not stop the others for ever."""
    path = tmp_path / "room.txt"
    code = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", code, f"{path}.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "\n"
        with pytest.raises(TimeoutError, match=r"another writer has had the file for 0\.05 s"):
            write_file(path, b"Ada", fence=5, timeout=0.05)
        assert not path.exists()
        with pytest.raises(ValueError, match="timeout must be at least 0"):
            write_file(path, b"Ada", fence=5, timeout=float("nan"))
        with ThreadPoolExecutor(1) as thread:
            written = thread.submit(write_file, path, b"Ada", fence=5, timeout=30)
            other.communicate("\n")
            written.result(30)
    assert path.read_bytes() == b"Ada"


FORKED = """
import os, pathlib, sys
from caslock.fencing import files
read, write = os.pipe()
with files._locked(pathlib.Path(sys.argv[1] + ".lock"), 1.0):
    if not os.fork():
        os.close(write)
        os.read(read, 1)
        os._exit(0)
files.write_file(sys.argv[1], b"Ada", fence=5, timeout=0)
"""


def test_a_forked_child_does_not_keep_a_file_locked(tmp_path: Path) -> None:
    """A child that was forked during a write has a copy of the lock's descriptor, and lives on."""
    path = tmp_path / "room.txt"
    assert python("-c", FORKED, str(path)) == (0, "", "")
    assert path.read_bytes() == b"Ada"


# In memory.


def test_a_block_of_a_guard_is_one_step(pool: ThreadPoolExecutor) -> None:
    """No later holder writes between the check of a block and its end; and a refused block does not run."""
    guard, written = FenceGuard(), list[int]()
    inside, go = threading.Event(), threading.Event()

    def write(fence: int) -> None:
        with guard.admit("room", fence):
            if fence == 5:
                inside.set()
                go.wait(200)
            written.append(fence)

    first = pool.submit(write, 5)
    assert inside.wait(200)
    second = pool.submit(write, 6)
    assert not until(second.done, 0.05)
    go.set()
    first.result(200)
    second.result(200)
    with pytest.raises(StaleFence):
        write(5)
    assert (written, guard.seen("room"), guard.seen("another room")) == ([5, 6], 6, 0)
    with guard.admit("another room", 1):
        pass


def test_a_failed_block_has_counted() -> None:
    """A later holder that has tried keeps an earlier one out, and its error is its own."""
    guard = FenceGuard()
    with pytest.raises(ZeroDivisionError), guard.admit("room", 6):
        raise ZeroDivisionError
    with pytest.raises(StaleFence), guard.admit("room", 5):
        raise AssertionError
