"""A store in one local SQLite file, for the processes of one machine; one transaction for each verb.

- Versions come from a counter: a single row, which is never deleted.
- The time of a verb is that of the pages it writes.  So there is one table without an index, and as long as few keys
  are locked at once, the counter and all entries are in a single page.
- Leases are measured by the machine's clock since boot, which nobody can set.  A reboot ends every holder, so whoever
  opens the file first removes the leases of another boot.
- No connection lives through a fork.  The child's SQLite would believe that it has the parent's file locks, and parent
  and child would write at the same time (https://sqlite.org/howtocorrupt.html, 2.6).
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import unquote

from caslock.closing import Closing
from caslock.errors import StoreError, StoreUnavailable
from caslock.fork import at_fork, generation
from caslock.guards import on_failure
from caslock.options import check_key, check_timeout, no_other_options, options_of, seconds_of
from caslock.store import ABSENT, Entry, Put, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.store import Removal

T = TypeVar("T")

_now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_BRIEF: Final = 0.1  # seconds to wait for the verbs of other threads where the timeout is 0
_PROMPT: Final = 0.98  # of the timeout: with as much left, the connection's own wait is not shortened
_SKIP: Final = 2**32  # more versions than a power failure can take back: those not yet synced from the log to the disk

# The keys of entries are text.  Two rows have a number for a key.  0 is the counter: the name of the boot, the last
# version, and the clock when that was given.  1 is the place that the sweep has come to, as its value.
_TABLE: Final = """CREATE TABLE IF NOT EXISTS caslock (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID"""
_COUNTER: Final = "SELECT value, expires, version FROM caslock WHERE key = 0"
_LOOK: Final = """SELECT c.value, c.version, CAST(e.value AS BLOB), e.version
    FROM caslock c LEFT JOIN caslock e ON e.key = ? AND e.expires > ? WHERE c.key = 0"""
_LIST: Final = """SELECT c.value, e.key, CAST(e.value AS BLOB), e.version
    FROM caslock c LEFT JOIN caslock e
    ON e.key >= ? AND substr(CAST(e.key AS BLOB), 1, ?) = CAST(? AS BLOB) AND e.expires > ? WHERE c.key = 0"""
_WRITE: Final = "REPLACE INTO caslock VALUES (?, ?, ?, ?)"
_COUNT_AND_WRITE: Final = "REPLACE INTO caslock VALUES (0, ?, ?, ?), (?, ?, ?, ?)"
_REMOVE: Final = "DELETE FROM caslock WHERE key = ? AND version = ?"
_REMOVE_ALL: Final = "DELETE FROM caslock WHERE key >= ''"

# Every 16th put, and whoever opens the file, looks at the next 32 keys in turn, so an expired entry is gone after one
# more round.  An index by time would be another page for each verb to write.
_SWEEP_EVERY: Final = 16
_REACHED: Final = "SELECT value FROM caslock WHERE key = 1"
_REACH: Final = "SELECT max(key) FROM (SELECT key FROM caslock WHERE key > ? ORDER BY key LIMIT 32)"
_SWEEP: Final = "DELETE FROM caslock WHERE key > ? AND key <= ? AND expires <= ?"

_REASONS: Final = {
    sqlite3.SQLITE_CANTOPEN: "the directory must exist, and it and the file must be writable",
    sqlite3.SQLITE_READONLY: "the file, its directory or its file system is read-only",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; remove it once no process uses it",
}


class SQLiteStore(Closing):
    """Entries in an SQLite file, for any number of processes and threads of one machine.

    Give it a file of its own, on a local disk.  Not on a network file system: its locks don't hold, and two machines
    don't share a clock.  Containers may share the file if they share the kernel and its time namespace (they do by
    default).  Do not delete, replace, or open the file with anything but SQLite while it is in use.

    `path` is the file, created if there is none; its directory must exist.  `timeout` is how many seconds a verb waits
    for another process's transaction and for the verbs of other threads, together; 0: up to 0.1 s for other threads,
    and not at all for other processes.

    Every verb raises `StoreUnavailable` when the file stays locked (nothing was applied) or can't be read or written
    for the moment (a put may have been applied), `StoreError` when SQLite refuses, and ValueError for a key with a lone
    surrogate.  A signal's handler runs when the wait for another process is over, not before.
    The file is opened by the first verb, and again by the first one after `close` or a fork.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        """Name the file; no I/O yet.  Raises ValueError for a path that names no file, or a timeout out of range."""
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ValueError(f"{name!r} would be private to this store: use MemoryStore, or memory://")
        self._path = Path(name).resolve()
        self._timeout = check_timeout("timeout", timeout, or_zero=True)
        self._patience = timeout or _BRIEF  # with other threads of this process
        self._boot = ""
        self._cursor: sqlite3.Cursor | None = None
        # Reentrant, so that a signal handler that interrupts a verb gets an error from `_request`, and no deadlock.
        self._mutex = threading.RLock()
        self._waits = -1.0  # how long the connection waits for another process
        self._generation = generation()
        location = "sqlite:///" + re.sub(r"[%?\x00-\x1f\x7f]", lambda sign: f"%{ord(sign[0]):02X}", str(self._path))
        self.traits: Traits = Traits(location, request_timeout=self._patience)
        with _forking:
            _stores.add(self)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Name the file by ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``; ``?timeout=5``.

        ``%`` and ``?`` in the path are written as ``%25`` and ``%3F``.  Raises ValueError for anything else.
        """
        path, _, query = url.partition("://")[2].partition("?")
        if not path.startswith("/"):
            raise ValueError("the URL of a file is sqlite:///relative/path.db or sqlite:////absolute/path.db")
        options = options_of(query)
        no_other_options(options, ("timeout",), "a sqlite:// URL takes ?timeout= only")
        timeout = seconds_of(options.pop("timeout", "5"), "a sqlite://")
        return cls(unquote(path[1:], errors="surrogateescape"), timeout=timeout)

    def get(self, key: str) -> Entry | None:
        """Read the entry under `key`; takes no write lock."""
        check_key(key)
        return self._request(partial(self._get, key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds, counted from when the write lock is taken, if the entry has `version`."""
        check_key(key)
        return self._request(partial(self._put, key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove the entry under `key` if it has exactly `version`, otherwise read it."""
        check_key(key)
        return self._request(partial(self._remove, key, version))

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write all of them if every one finds its version, otherwise none, in one transaction."""
        for put in puts:
            check_key(put.key)
        return self._request(partial(self._put_many, puts)) if puts else []

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove each entry that has the version named for it, in one transaction."""
        for removal in removals:
            check_key(removal.key)
        return self._request(partial(self._remove_many, removals))

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """Return each key that begins with `prefix`, and its entry, as of this moment."""
        if prefix:
            check_key(prefix)
        return iter(self._request(partial(self._list, prefix)))

    def identify(self) -> str:
        """See `IdentifiedStore.identify`: the device and the number of the file, whatever its names."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._request(lambda _cursor: None)  # to open it makes it
            found = self._path.stat()
        return f"sqlite:{found.st_dev}:{found.st_ino}"

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return key

    def close(self) -> None:
        """Close the file handles.  What is in the file stays."""
        with self._mutex:
            if self._generation == generation():
                self._drop()

    def _request(self, verb: Callable[[sqlite3.Cursor], T]) -> T:
        # One connection serves all threads.  SQLite has one writer at a time, and connections of their own would only
        # add its polling to their wait.
        mutex, ends = self._mutex, time.monotonic() + self._timeout
        if _is_owned(mutex):  # by a signal handler, or a `__del__`, that has interrupted a verb
            told = "called by a thread during its own request (from a signal handler or __del__)"
            raise StoreUnavailable(f"{self._path}: {told}", sent=False)
        try:
            try:
                if not mutex.acquire(timeout=self._patience):
                    told = f"waited {self._patience:g} s for requests of other threads"
                    raise StoreUnavailable(f"{self._path}: {told}", sent=False)
                return self._run(verb, ends)
            finally:
                if _is_owned(mutex):  # no interrupt can come between taking it and knowing it
                    mutex.release()
        finally:
            if _is_owned(mutex):  # an interrupt has come before the release
                mutex.release()

    def _run(self, verb: Callable[[sqlite3.Cursor], T], ends: float) -> T:
        if self._generation != generation():
            raise StoreError(f"{self._path}: the process was forked by C code; create the store after the fork")
        try:
            with on_failure(self._drop):  # it rolls back: whatever was interrupted, the next verb starts afresh
                return verb(self._ready(ends))
        except (sqlite3.Error, OverflowError) as error:
            raise self._outcome(error) from error

    def _ready(self, ends: float) -> sqlite3.Cursor:
        """Return the cursor, which waits for other processes no longer than until the moment `ends`."""
        cursor = self._cursor or self._open(ends)
        left = ends - time.monotonic()
        waits = self._timeout if left > self._timeout * _PROMPT else max(left, 0.0)
        if waits != self._waits:
            cursor.execute(f"PRAGMA busy_timeout = {int(waits * 1000)}")
            self._waits = waits
        return cursor

    def _get(self, key: str, cursor: sqlite3.Cursor) -> Entry | None:
        return self._look(cursor, key, _now())[1]

    def _look(self, cursor: sqlite3.Cursor, key: str, now: float) -> tuple[int, Entry | None]:
        """Return the last version that was counted, and the entry under `key`."""
        row = cursor.execute(_LOOK, (key, now)).fetchone()
        self._check(row and row[0])
        _, last, value, version = row
        return last, None if version is None else Entry(value, version)

    def _list(self, prefix: str, cursor: sqlite3.Cursor) -> Sequence[tuple[str, Entry]]:
        rows = cursor.execute(_LIST, (prefix, len(prefix.encode()), prefix, _now())).fetchall()
        self._check(rows and rows[0][0])
        return [(key, Entry(value, version)) for _, key, value, version in rows if key is not None]

    def _check(self, boot: object) -> None:
        if boot != self._boot:
            raise StoreError(f"{self._path} was emptied, or used by another machine, while it was open")

    def _put(self, key: str, value: bytes, version: int, ttl: float, cursor: sqlite3.Cursor) -> Entry | None:
        # As `_put_many` does for one: acquire and release took 9 % longer through that.
        cursor.execute("BEGIN IMMEDIATE")
        now = _now()  # the lease begins here: the wait for the write lock is over
        last, observed = self._look(cursor, key, now)
        if version != (observed.version if observed else ABSENT):
            cursor.execute("ROLLBACK")
            return observed
        written = Entry(value, last + 1)
        cursor.execute(_COUNT_AND_WRITE, (self._boot, last + 1, now, key, value, last + 1, now + ttl))
        if not written.version % _SWEEP_EVERY:
            self._sweep(cursor, now)
        cursor.execute("COMMIT")
        return written

    def _put_many(self, puts: Sequence[Put], cursor: sqlite3.Cursor) -> Sequence[Entry | None]:
        cursor.execute("BEGIN IMMEDIATE")
        now = _now()
        last, observed = ABSENT, []
        for put in puts:
            last, entry = self._look(cursor, put.key, now)
            observed.append(entry)
        if [put.version for put in puts] != [entry.version if entry else ABSENT for entry in observed]:
            cursor.execute("ROLLBACK")
            return observed
        rows = [(put.key, put.value, last + number, now + put.ttl) for number, put in enumerate(puts, 1)]
        counted = last + len(puts)
        cursor.executemany(_WRITE, [(0, self._boot, counted, now), *rows])
        for _ in range(counted // _SWEEP_EVERY - last // _SWEEP_EVERY):
            self._sweep(cursor, now)
        cursor.execute("COMMIT")
        return [Entry(value, version) for _, value, version, _ in rows]

    def _sweep(self, cursor: sqlite3.Cursor, now: float) -> None:
        (reached,) = cursor.execute(_REACHED).fetchone() or ("",)
        (reach,) = cursor.execute(_REACH, (reached,)).fetchone()
        if reach is not None:
            cursor.execute(_SWEEP, (reached, reach, now))
        cursor.execute(_WRITE, (1, reach or "", 0, 0))

    def _remove(self, key: str, version: int, cursor: sqlite3.Cursor) -> Entry | None:
        # A single statement is a transaction.  It needs no look at clock or boot, because a version is of one write.
        if cursor.execute(_REMOVE, (key, version)).rowcount == 1:
            return None
        return self._get(key, cursor)

    def _remove_many(self, removals: Sequence[Removal], cursor: sqlite3.Cursor) -> Sequence[Entry | None]:
        cursor.execute("BEGIN IMMEDIATE")
        observed = [self._remove(*removal, cursor) for removal in removals]
        cursor.execute("COMMIT")
        return observed

    def _open(self, ends: float) -> sqlite3.Cursor:
        self._waits = -1.0
        while True:
            left = max(0.0, ends - time.monotonic())
            connection = sqlite3.connect(self._path, timeout=left, isolation_level=None, check_same_thread=False)
            self._cursor = connection.cursor()
            try:
                return self._prepare(self._cursor)
            except sqlite3.OperationalError as error:
                # Of two that turn a new file to WAL at once, SQLite refuses one without waiting.
                if not _locked(error) or time.monotonic() >= ends:
                    raise
                self._drop()
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - not a secret

    def _prepare(self, cursor: sqlite3.Cursor) -> sqlite3.Cursor:
        if cursor.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{self._path}: this file system does not support SQLite's WAL mode; use a local disk")
        # With NORMAL, a power failure may lose the last commits but never harms the file.  It ends every lease anyway,
        # and `_SKIP` keeps versions from coming twice.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(_TABLE)
        mine, now = _boot(), _now()
        row = cursor.execute(_COUNTER).fetchone()
        boot, clock, version = row or (mine, now, ABSENT)
        # A process that can't name its boot (no Linux, no /proc) tells a new one by a clock that has run backwards.
        # A reboot that even this misses does no harm: then no lease is longer than when it was written.
        if clock > now or (mine and boot and mine != boot):
            boot = mine
            cursor.execute(_REMOVE_ALL)
            version += _SKIP
        self._boot = boot
        # At least the wall clock's microseconds, so that versions also grow when somebody has deleted the file.
        version = max(version, time.time_ns() // 1000)
        cursor.execute(_WRITE, (0, boot, version, now))
        self._sweep(cursor, now)  # the version may have leapt over the one at which a put would have done it
        cursor.execute("COMMIT")
        return cursor

    def _drop(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            with suppress(sqlite3.Error):
                cursor.close()
                cursor.connection.rollback()
                cursor.connection.close()

    def _outcome(self, error: Exception) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if _locked(error):
            return StoreUnavailable(f"{self._path} stayed locked for {self._timeout:g} s: {error}", sent=False)
        if code == sqlite3.SQLITE_IOERR:
            return StoreUnavailable(f"{self._path} can't be read or written: {error}")
        reason = "it is a directory; name a file" if self._path.is_dir() else _REASONS.get(code)
        return StoreError(f"{self._path}: {error}" + (f" ({reason})" if reason else ""))


def _is_owned(mutex: threading.RLock) -> bool:
    return bool(mutex._is_owned())  # type: ignore[attr-defined] # noqa: SLF001 - `threading.Condition` asks this, too


def _locked(error: Exception) -> bool:
    codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_forking = threading.RLock()
_paused: list[SQLiteStore] = []


def _before_fork() -> None:
    _forking.acquire()
    for store in list(_stores):
        store._mutex.acquire()  # noqa: SLF001 - the same file; waits for the verb that another thread is in
        store._drop()  # noqa: SLF001 - the store's own hook
        _paused.append(store)


def _after_fork() -> None:
    # A store that is not paused, because the fork came from C code, keeps its generation: the child's verbs refuse.
    for store in _paused:
        store._generation = generation()  # noqa: SLF001 - the store's own hook
        store._mutex.release()  # noqa: SLF001 - the store's own hook
    _paused.clear()
    with suppress(RuntimeError):  # From C code, nobody has taken it.
        _forking.release()


at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
