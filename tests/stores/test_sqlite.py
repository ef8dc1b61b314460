"""`SQLiteStore` on real files, with real threads and processes."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from caslock import Lock
from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry, Put, Removal
from caslock.stores.sqlite import SQLiteStore, table
from caslock.testing.steps import in_a_thread, pause
from caslock.testing.stopwatch import Stopwatch
from tests.support.command_line import ROOT, python
from tests.support.locations import present, until

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that is not there yet."""
    return tmp_path / "locks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    """Return a store on it."""
    with contextlib.closing(SQLiteStore(path, timeout=20)) as store:
        yield store


@contextlib.contextmanager
def sql(path: Path) -> Iterator[Callable[..., list[tuple[object, ...]]]]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
        yield lambda *args: connection.execute(*args).fetchall()


def entries(path: Path) -> list[object]:
    """Return the keys of all entries in the file, whether they are live or not."""
    with sql(path) as execute:
        return [key for (key,) in execute("SELECT key FROM caslock WHERE typeof(key) = 'text'")]


def put(store: SQLiteStore, key: str = "k", value: bytes = b"v", version: int = ABSENT, ttl: float = 60.0) -> int:
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    return entry.version


def started(script: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", script, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


KILLED = """
import os, signal, sys
from caslock.stores.sqlite import SQLiteStore
print(SQLiteStore(sys.argv[1]).put_if_version("k", b"of the dead", 0, float(sys.argv[2])).version, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_versions_grow_though_processes_are_killed(path: Path, store: SQLiteStore) -> None:
    """What was written last is there, and its version does not come again, also after an expiry and a `close`."""
    seen = [put(store)]
    store.invalidate("k", seen[-1])
    for ttl in (60, 0.01):
        process = started(KILLED, path, ttl)
        seen.append(int(process.communicate(timeout=250)[0]))
        assert process.returncode == -signal.SIGKILL
        if ttl == 60:
            assert store.get("k") == (b"of the dead", seen[-1])
            store.invalidate("k", seen[-1])
            store.close()
        else:
            assert until(lambda: store.get("k") is None)
    seen.append(put(store))
    assert seen == sorted(set(seen))


def test_versions_grow_even_when_the_file_is_deleted(path: Path, store: SQLiteStore) -> None:
    """A new file begins above the versions of one that was removed."""
    before = put(store)
    store.close()
    path.unlink()
    assert store.get("k") is None
    assert put(store) > before


@pytest.mark.parametrize("how", ["with its log", "alone"])
def test_whoever_holds_a_key_in_a_file_that_was_removed_learns_of_it(path: Path, store: SQLiteStore, how: str) -> None:
    """Even if others have locked it in a new file since then, in which it changes nothing."""
    with contextlib.closing(SQLiteStore(path)) as other:
        hold = present(Lock(store, "k").acquire())
        assert not Lock(other, "k").acquire(timeout=0)
        for file in path.parent.glob("locks.db*") if how == "with its log" else [path]:
            file.unlink()
        taken = present(Lock(other, "k").acquire(timeout=0))
        with pytest.raises(LockLost, match="it is held by"):
            hold.extend()
        store.close()
        taken.extend()
        assert [key for key, _ in SQLiteStore(path).list("")] == ["k"]


@pytest.mark.parametrize("change", ["value = 'another'", "expires = expires + 1e6"])
def test_what_was_there_before_a_reboot_is_gone(path: Path, store: SQLiteStore, change: str) -> None:
    """Entries of another boot, known by its name or by a clock that ran backwards, are gone; versions leap ahead."""
    before = put(store, ttl=1e9)
    store.close()
    with sql(path) as execute:
        execute(f"UPDATE caslock SET {change} WHERE key = 0")  # noqa: S608 - the test's own text
    assert store.get("k") is None
    assert put(store) > before + 2**32 - 1
    assert entries(path) == ["k"]


@pytest.mark.parametrize("first_named", [True, False])
def test_without_a_name_for_the_boot_leases_go_on(
    path: Path,
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
    first_named: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """A process that can't name its boot shares the file with one that can, and neither ends the other's leases."""
    for named, opener in (first_named, store), (not first_named, SQLiteStore(path)):
        with monkeypatch.context() as patch, contextlib.closing(opener):
            if not named:
                patch.setattr(table, "_BOOT", path / "nothing")
            put(opener, f"named: {named}")
            assert store.get(f"named: {first_named}") is not None
            assert opener.get(f"named: {first_named}") is not None


@pytest.mark.parametrize("act", [SQLiteStore.get, put, SQLiteStore.list])
def test_a_file_taken_over_while_it_is_open_is_an_error(
    path: Path, store: SQLiteStore, act: Callable[[SQLiteStore, str], object]
) -> None:
    """Two machines on one file is an error that says so, not a wrong answer."""
    put(store)
    with sql(path) as execute:
        execute("UPDATE caslock SET value = 'another' WHERE key = 0")
    with pytest.raises(StoreError, match=f"{path} .* another machine"):
        act(store, "other")


def test_a_lease_begins_when_the_write_lock_is_ours(path: Path, store: SQLiteStore) -> None:
    """The wait for another process's transaction is not taken off the lease."""
    store.get("k")
    with sql(path) as execute:
        execute("BEGIN IMMEDIATE")
        waiting = in_a_thread(partial(put, store, ttl=60))
        pause()  # Were it too short, the test would prove less but never fail.
        released = table.now()
        execute("COMMIT")
        waiting.result(50)
        ((expires,),) = execute("SELECT expires FROM caslock WHERE key = 'k'")
    assert isinstance(expires, float)
    assert expires >= released + 60


CONTEND = """
import os, sys
from caslock.stores.sqlite import SQLiteStore
print("ready", flush=True)
for line in sys.stdin:
    store = SQLiteStore(line.strip(), timeout=20)
    mine = b"%d" % os.getpid()
    standing = store.put_if_version("k", mine, 0, 60)
    print(int(standing.value == mine), standing.version, flush=True)
    store.close()
"""


def test_exactly_one_of_8_processes_wins_in_a_brand_new_file(tmp_path: Path) -> None:
    """Processes that open the same new file at once all succeed, one wins the key, and all see the same version."""
    processes = [started(CONTEND) for _ in range(8)]
    answers = []
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for number in range(60):
        for process in processes:
            assert process.stdin
            process.stdin.write(f"{tmp_path / str(number)}\n")
            process.stdin.flush()
        answers.append([process.stdout.readline().split() for process in processes if process.stdout])
    for process in processes:
        assert not process.communicate(timeout=250)[0]
        assert process.returncode == 0
    assert [sum(won == "1" for won, _ in answer) for answer in answers] == [1] * 60
    assert [len({version for _, version in answer}) for answer in answers] == [1] * 60


@pytest.mark.parametrize("opened", [True, False])
def test_a_file_that_stays_locked_is_unavailable(path: Path, opened: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A verb gives up within the timeout, says that nothing was sent, has applied nothing, and works again after."""
    store = SQLiteStore(path, timeout=0.3)
    assert store.traits.request_timeout == 0.3
    version = put(store)
    if not opened:
        store.close()
    with sql(path) as execute:
        execute("BEGIN IMMEDIATE")
        verbs: list[Callable[[], object]] = [
            lambda: store.put_if_version("other", b"", ABSENT, 60),
            lambda: store.invalidate("k", version),
        ]
        for verb in verbs:
            with Stopwatch() as watch, pytest.raises(StoreUnavailable, match=f"{path} stayed locked for") as caught:
                verb()
            assert watch.elapsed > 0.2
            assert watch.seconds <= 0.3
            assert not caught.value.sent
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        execute("ROLLBACK")
    assert store.get("other") is None
    assert store.get("k") == (b"v", version)
    put(store, "other")
    store.close()


def test_reading_needs_no_write_lock(path: Path, store: SQLiteStore) -> None:
    """`get` answers while another process is inside a write."""
    version = put(store)
    with sql(path) as execute:
        execute("BEGIN IMMEDIATE")
        assert store.get("k") == (b"v", version)


def test_a_verb_leaves_no_transaction_open(path: Path, store: SQLiteStore) -> None:
    """After each verb, won or lost, another process finds no reader and no writer in its way."""
    version = put(store)
    verbs: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.get("nothing"),
        lambda: store.put_if_version("k", b"", ABSENT, 60),
        lambda: store.invalidate("k", ABSENT),
        lambda: store.invalidate("k", version),
    ]
    with sql(path) as execute:
        for verb in verbs:
            verb()
            assert execute("PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]


INTERRUPT = """
import random, signal, sys, time
from caslock.errors import StoreUnavailable
from caslock.stores.sqlite import SQLiteStore
store, witness = SQLiteStore(sys.argv[1]), SQLiteStore(sys.argv[1], timeout=0)
armed = False
def interrupt(number, frame):
    global armed
    if armed:  # an alarm that rang just before it was switched off comes when all is over
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
highest = interrupted = 0
for number in range(6000):
    value, before = b"%d" % number, witness.get("k")
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 12e-5 if number % 10 else 1e-3))
        if number % 10 == 0:
            store.close()
        entry = store.put_if_version("k", value, before.version if before else 0, 60)
        if number % 3:
            store.invalidate("k", entry.version)
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:
        interrupted += 1
        # While the error and its frames are alive: no lock stays behind, neither in the file nor in the store.
        version = witness.put_if_version("other", value, 0, 60).version
        assert witness.invalidate("other", version) is None
        version = store.put_if_version("other", value, 0, 60).version
        assert store.invalidate("other", version) is None
        assert version > highest
        highest = version
    standing = witness.get("k")
    assert standing is None or standing == before or standing.value == value
    assert store.get("k") == standing
assert interrupted > 500, interrupted
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_an_interrupt_leaves_the_store_usable(path: Path) -> None:
    """KeyboardInterrupt at any moment of a verb or an opening leaves no lock, and each put is applied whole or not."""
    status, _, errors = python(
        "-W", "error", "-c", INTERRUPT, str(path)
    )  # an interrupted opening leaves its file to the garbage collector
    assert status == 0, errors


NESTED = """
import signal, sys, threading
from caslock.errors import StoreUnavailable
from caslock.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
seen = set()
def nested(number, frame):
    try:
        store.get("k")
        seen.add("worked")
    except StoreUnavailable as error:
        assert not error.sent
        seen.add("refused")
signal.signal(signal.SIGALRM, nested)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1.7e-4)
while len(seen) < 2:
    entry = store.put_if_version("k", b"", 0, 60)
    assert entry.value == b"" and store.invalidate("k", entry.version) is None
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_a_signal_handler_inside_a_verb_is_refused(path: Path) -> None:
    """A handler that uses the store in the middle of a verb gets an error: no deadlock, and the verb is not harmed."""
    assert python("-W", "error", "-c", NESTED, str(path)) == (0, "", "")


STRUCK = """
import os, sys, threading
from caslock.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1], timeout=20)
store.get("k")
sys.unraisablehook = lambda _: None  # Python prints what a hook raises, and forks
left = 0
def trace(frame, event, _):
    global left
    if "caslock" not in frame.f_code.co_filename:
        return None
    left -= 1
    if left == 0:
        raise KeyboardInterrupt
    return trace
def use():
    entry = store.put_if_version("k", b"", 0, 60)
    assert entry.value == b"" and store.invalidate("k", entry.version) is None
    done.append(True)
moment = 0
while left <= 0:
    moment += 1
    left, done = moment, []
    sys.settrace(trace)
    child = os.fork()
    sys.settrace(None)
    use()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, moment
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(done) == 2, moment
assert moment > 20, moment
"""


@needs_fork
def test_a_fork_that_is_interrupted_leaves_the_store_usable(path: Path) -> None:
    """KeyboardInterrupt at any moment of the hooks: parent and child go on, the parent in other threads, too."""
    assert python("-W", "error", "-c", STRUCK, str(path)) == (0, "", "")


ORPHAN = """
import os, sys
from caslock.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
store.put_if_version("parent", b"", 0, 60)
used, parent_uses = os.pipe()
gone, parent_goes = os.pipe()
if os.fork() == 0:
    os.close(parent_goes)
    store.get("parent")
    os.write(parent_uses, b"x")
    os.read(gone, 1)  # Until the parent has closed its connection, which was there before.
    print(store.put_if_version("child", b"", 0, 60).version, flush=True)
    sys.stdin.read()
    os._exit(0)
os.read(used, 1)
store.close()
os._exit(0)
"""


@needs_fork
def test_a_child_that_outlives_its_parent_shares_the_file(path: Path, store: SQLiteStore) -> None:
    """The child's file locks are its own: once the parent has closed, others still see what the child writes."""
    parent = started(ORPHAN, path)
    assert parent.stdout
    version = int(parent.stdout.readline())
    assert store.get("child") == (b"", version)
    parent.communicate(timeout=250)


FOREIGN = """
import ctypes, os, sys
from caslock.errors import StoreError
from caslock.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
store.get("k")
child = ctypes.PyDLL(None).fork()
if child == 0:
    try:
        store.get("k")
    except StoreError as error:
        os._exit(0 if "create the store after the fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert store.put_if_version("k", b"", 0, 60).value == b""
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_fork_by_c_code_is_refused(path: Path) -> None:
    """Where Python's fork hooks did not run, the child's verbs refuse, and never touch the parent's connection."""
    assert python("-W", "error", "-c", FOREIGN, str(path)) == (0, "", "")


def test_what_has_expired_does_not_pile_up(path: Path, store: SQLiteStore) -> None:
    """Thousands of keys, locked once each and never released, leave the live ones, and as many and a few at most."""
    lasting = {f"{number}": put(store, f"{number}") for number in range(0, 2100, 7)}
    for number in range(4000):
        if f"{number}" not in lasting:
            put(store, str(number), ttl=1e-6)
    assert len(entries(path)) <= 2 * 300 + 64
    for _ in range(1000):
        put(store, "again", ttl=1e-6)
    assert set(entries(path)) - {"again"} == set(lasting)
    assert {key: store.get(key) for key in lasting} == {key: (b"v", version) for key, version in lasting.items()}


@pytest.mark.long
def test_what_has_expired_goes_also_with_those_who_come_once(path: Path) -> None:
    """The position of the sweep is in the file: it goes on where another process's put has left it."""
    for number in range(600):
        with contextlib.closing(SQLiteStore(path)) as once:
            put(once, str(number), ttl=1e-6)
    assert len(entries(path)) <= 64


def test_a_lone_surrogate_is_refused_before_any_io(path: Path, store: SQLiteStore) -> None:
    """A key that is no Unicode text is a ValueError, and the file is not even made."""
    verbs: list[Callable[[str], object]] = [
        store.get,
        store.list,
        lambda key: put(store, key),
        lambda key: store.invalidate(key, 1),
        lambda key: store.put_many([Put("k", b"", ABSENT, 60), Put(key, b"", ABSENT, 60)]),
        lambda key: store.invalidate_many([Removal(key, 1)]),
    ]
    for verb in verbs:
        with pytest.raises(ValueError, match="lone surrogate"):
            verb("k\ud800")
    assert not path.exists()


def test_a_value_written_by_hand_is_an_entry_like_any_other(path: Path, store: SQLiteStore) -> None:
    """Text that somebody wrote in the file reads as bytes, and is not overwritten."""
    version = put(store)
    with sql(path) as execute:
        execute("UPDATE caslock SET value = 'by hand' WHERE key = 'k'")
    assert store.put_if_version("k", b"mine", ABSENT, 60) == (b"by hand", version)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such.db", "directory must exist"),
        ("directory", "it is a directory; give the path of a file"),
        ("text", "not an SQLite database"),
        ("x" * 300, "unable to open database file"),
        ("pipe", "regular file"),
        (os.devnull, "regular file"),
    ],
)
def test_a_file_that_cannot_be_opened_says_why(tmp_path: Path, name: str, reason: str) -> None:
    """A `StoreError` at the first use names the file and the reason: it is not one that may answer later."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "text").write_text("something else, and long enough that SQLite would look at its header " * 20)
    os.mkfifo(tmp_path / "pipe")
    with SQLiteStore(tmp_path / name) as store:
        for act in (partial(store.get, "k"), partial(store.put_if_version, "k", b"", ABSENT, 30)):
            with pytest.raises(StoreError, match=reason) as caught:
                act()
            assert str(tmp_path / name) in str(caught.value)
            assert not isinstance(caught.value, StoreUnavailable)


def test_a_full_disk_is_refused_and_nothing_is_applied(path: Path, store: SQLiteStore) -> None:
    """When the file can't grow, the put is undone whole, versions stay as they were, and reading goes on."""
    version = put(store)
    assert store._table is not None
    store._table._cursor.execute("PRAGMA max_page_count = 1")  # SQLite's own way to a full disk
    with pytest.raises(StoreError, match=f"{path}.*the disk is full") as caught:
        put(store, "big", b"x" * 4096)
    assert not isinstance(caught.value, StoreUnavailable)
    assert store.get("big") is None
    assert put(store, "big", b"x" * 4096) > version


LIMITED = """
import resource, signal, sys
from caslock.errors import StoreUnavailable
from caslock.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
version = store.put_if_version("k", b"", 0, 60).version
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))
try:
    for number in range(100):
        store.put_if_version(f"big {number}", b"x" * 4096, 0, 60)
except StoreUnavailable as error:
    assert error.sent and sys.argv[1] in str(error) and error.__cause__ is not None
else:
    raise AssertionError("written past the limit")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert store.get("k") == (b"", version) and store.get(f"big {number}") is None
assert store.put_if_version("after", b"", 0, 60).version > version
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs file size limits")
def test_a_write_that_fails_midway_has_an_unknown_outcome(path: Path) -> None:
    """An I/O error is `StoreUnavailable`, perhaps applied; the transaction is not left open, and verbs work after."""
    assert python("-W", "error", "-c", LIMITED, str(path)) == (0, "", "")


def test_nothing_of_sqlite3_escapes(path: Path, store: SQLiteStore) -> None:
    """Whatever SQLite or its module raises comes out as a `StoreError` with the cause kept, and a later verb works."""
    version = put(store)
    with pytest.raises(StoreError) as caught:
        store.invalidate("k", 2**63)
    assert isinstance(caught.value.__cause__, OverflowError)
    with pytest.raises(StoreError, match="NOT NULL"):
        put(store, "other", ttl=float("nan"))
    store.get("k")
    assert store._table is not None
    store._table._cursor.connection.close()
    with pytest.raises(StoreError, match="closed"):
        store.get("k")
    assert store.get("k") == (b"v", version)
    with sql(path) as execute:
        execute("DROP TABLE caslock")
    with pytest.raises(StoreError, match="no such table"):
        store.get("k")
    assert put(store) > version
    with sql(path) as execute:
        execute("DELETE FROM caslock")
    with pytest.raises(StoreError, match="emptied"):
        store.put_many([Put("k", b"", ABSENT, 60)])
    assert put(store) > version


def test_without_a_timeout_no_verb_waits_for_ever(path: Path) -> None:
    """With a timeout of 0, a verb waits for another thread's verb for as long as the request timeout says."""
    with contextlib.closing(SQLiteStore(path, timeout=0)) as store:
        assert store.get("k") is None
        with store._mutex, Stopwatch() as watch:
            asking = in_a_thread(partial(store.get, "k"))
            with pytest.raises(StoreUnavailable, match=r"waited 0\.1 s for requests of other threads"):
                asking.result(50)
        assert watch.elapsed >= store.traits.request_timeout * 0.9


def test_one_file_is_one_place(tmp_path: Path, path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the path is spelt, the location is the same; it is fixed when the store is made."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.db").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    spellings: list[str | Path] = ["locks.db", Path("folder/../locks.db"), "link.db", str(path)]
    assert {SQLiteStore(name).traits.location for name in spellings} == {store.traits.location} == {f"sqlite:///{path}"}
    here = SQLiteStore("locks.db")
    monkeypatch.chdir(tmp_path / "folder")
    version = put(store)
    assert here.get("k") == (b"v", version)
    here.close()
    assert store.traits.location in repr(store)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_store_keeps_few_handles_and_gives_them_back(tmp_path: Path) -> None:
    """However many threads use it, a store has three files open; none after `close`; the next verb opens again."""
    store = SQLiteStore(tmp_path / "locks.db", timeout=20)  # so many threads may wait long for each other

    def handles() -> int:
        return sum(link.resolve().is_relative_to(tmp_path) for link in Path("/proc/self/fd").iterdir())

    with ThreadPoolExecutor(50) as threads:
        list(threads.map(lambda number: put(store, str(number)), range(500)))
        assert handles() == 3
    store.close()
    store.close()
    assert handles() == 0
    assert store.get("499") is not None
    assert handles() == 3
    store.close()


def test_several_puts_count_as_many_for_the_sweeper(path: Path, store: SQLiteStore) -> None:
    """What is put together and expires does not pile up either."""
    for number in range(200):
        store.put_many([Put(f"{number} {other}", b"", ABSENT, 1e-6) for other in range(50)])
    assert len(entries(path)) <= 150


def test_a_failure_in_the_middle_of_several_applies_none(store: SQLiteStore) -> None:
    """What SQLite refuses of one is refused of all."""
    with pytest.raises(StoreError, match="NOT NULL"):
        store.put_many([Put("a", b"", ABSENT, 60), Put("b", b"", ABSENT, float("nan"))])
    version = put(store, "c")
    with pytest.raises(StoreError):
        store.invalidate_many([Removal("c", version), Removal("d", 2**63)])
    assert [store.get(key) for key in "abc"] == [None, None, Entry(b"v", version)]
    assert store.put_many([]) == store.invalidate_many([]) == []


KILLED_IN_TURN = """
import sys
from caslock.store import Put
from caslock.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1], timeout=30)
print("ready", flush=True)
number = 0
while True:
    number += 1
    versions = [entry.version if entry else 0 for entry in map(store.get, "abcd")]
    store.put_many([Put(key, b"%d" % number, version, 60) for key, version in zip("abcd", versions)])
"""


def test_a_kill_leaves_all_of_several_or_none(path: Path, store: SQLiteStore) -> None:
    """Whenever a process is killed, what it put together is there together."""
    for _ in range(10):
        process = started(KILLED_IN_TURN, path)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.001, 0.02))
        process.kill()
        process.communicate(timeout=250)
        assert len({entry and entry.value for entry in map(store.get, "abcd")}) == 1


@pytest.mark.filterwarnings("error")
def test_a_store_that_nobody_closes_warns_of_nothing(tmp_path: Path) -> None:
    """Since Python 3.13, a connection that is collected as garbage is a ResourceWarning, which sqlite3 would show."""
    gc.collect()  # what others have left
    told: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, told.append
    try:
        assert SQLiteStore(tmp_path / "locks.db").put_if_version("k", b"a", ABSENT, 30) is not None
    finally:
        sys.unraisablehook = before
    assert told == []
