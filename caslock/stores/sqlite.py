"""The law of this file: one transaction per verb, in one local file that all processes of one machine share.

- Versions come from a single row that is never deleted, counted up in the transaction that uses them.
- A verb costs by the pages it writes.  So there is one table and no index, and as long as few keys are locked at
  once, the counter and all of them are in a single page.
- Leases are measured by the machine's own clock since boot, which nobody can set.  It starts again with the machine,
  and by then every holder is dead: leases of another boot are removed by whoever opens the file first.
- A connection never lives through a fork.  The child's SQLite would believe that it has the parent's file locks, and
  parent and child would then write at the same time (https://sqlite.org/howtocorrupt.html, 2.6).
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple, Unpack

from caslock.errors import StoreError, StoreUnavailable
from caslock.process import generation
from caslock.store import ABSENT, Entry, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import Put, Removal

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")

_now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_LONGEST: Final = 86_400
_SKIP: Final = 2**32
"""More versions than a power failure can take back: it loses what the write-ahead log had not yet synced."""

# Keys of entries are text.  Two rows are not entries: the counter, under the number 0, with the name of the boot for a
# value, the last version, and the clock at that moment; and the sweeper's hand, under 1, with a key for a value.
_TABLE: Final = """CREATE TABLE IF NOT EXISTS caslock (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID"""
_COUNTER: Final = "SELECT value, expires, version FROM caslock WHERE key = 0"
_LOOK: Final = """SELECT c.value, c.version, CAST(e.value AS BLOB), e.version
    FROM caslock c LEFT JOIN caslock e ON e.key = ? AND e.expires > ? WHERE c.key = 0"""
_COUNT: Final = "REPLACE INTO caslock VALUES (0, ?, ?, ?)"
_WRITE: Final = "REPLACE INTO caslock VALUES (?, ?, ?, ?)"
_COUNT_AND_WRITE: Final = "REPLACE INTO caslock VALUES (0, ?, ?, ?), (?, ?, ?, ?)"
_REMOVE: Final = "DELETE FROM caslock WHERE key = ? AND version = ?"
_REMOVE_ALL: Final = "DELETE FROM caslock WHERE key >= ''"

# A hand goes round the keys: 16 puts add 16 entries at most and look at 32, as does whoever opens the file.  So what
# has expired is gone after one more round, without an index that every verb would have to write.
_SWEEP_EVERY: Final = 16
_HAND: Final = "SELECT value FROM caslock WHERE key = 1"
_REACH: Final = "SELECT max(key) FROM (SELECT key FROM caslock WHERE key > ? ORDER BY key LIMIT 32)"
_SWEEP: Final = "DELETE FROM caslock WHERE key > ? AND key <= ? AND expires <= ?"
_TURN: Final = "REPLACE INTO caslock VALUES (1, ?, 0, 0)"

_REASONS: Final = {
    sqlite3.SQLITE_CANTOPEN: "its directory must exist, and must be writable as the file must",
    sqlite3.SQLITE_READONLY: "the file, its directory or its file system is read-only",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_NOTADB: "the file is something else than an SQLite database",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; remove it once no process uses it",
}


class SQLiteStore:
    """Entries in an SQLite file, for any number of processes and threads of one machine.

    Give it a file of its own, on a local disk.  Not on a network file system: its locks don't hold, and two machines
    don't share a clock.  Containers may share the file if they share the kernel and its time namespace (they do unless
    somebody asked for another).  Nobody may delete or replace the file, or open and close it by other means than
    SQLite, while it is in use.

    `path` is the file, made where there is none; its directory must exist.  `timeout` is how many seconds a verb waits
    for another process's transaction; behind a verb of another thread, up to twice as long.

    Every verb raises `StoreUnavailable` when the file stays locked (nothing was applied) or can't be read or written
    for the moment (a put may have been applied), `StoreError` when SQLite refuses, and ValueError for a key with a lone
    surrogate.  A signal's handler runs when the wait for another process is over, not before.
    The file is opened by the first verb, and again by the first one after `close` or a fork.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        """Name the file; no I/O yet.  Raises ValueError for a path or a timeout that can't be meant."""
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ValueError(f"{name!r} would be a database of this process alone: use MemoryStore, or memory://")
        if not 0 <= timeout <= _LONGEST:
            raise ValueError(f"timeout must be from 0 to {_LONGEST} seconds, not {timeout!r}")
        self._path = Path(name).resolve()
        self._timeout = timeout
        self._boot = ""
        self._cursor: sqlite3.Cursor | None = None
        # Reentrant, so that a signal handler in the middle of a verb gets an error from `_request` and no deadlock.
        self._mutex = threading.RLock()
        self._busy = False
        self._generation = generation()
        self.traits = Traits(place="sqlite:///" + str(self._path).replace("%", "%25").replace("?", "%3F"))
        with _forking:
            _stores.add(self)

    def get(self, key: str) -> Entry | None:
        """Read what stands under `key`; takes no write lock."""
        return self._request(self._get, _checked(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds, from when the write lock is ours, if exactly `version` stands."""
        return self._request(self._put, _checked(key), value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove what stands under `key` if its version is exactly `version`; who fails reads once more."""
        return self._request(self._remove, _checked(key), version)

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write all of them if every one's version stands, else none, in one transaction."""
        for put in puts:
            _checked(put.key)
        return self._request(self._put_many, puts)

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove each whose version stands, in one transaction."""
        for removal in removals:
            _checked(removal.key)
        return self._request(self._remove_many, removals)

    def close(self) -> None:
        """Give back the file handles.  What is in the file stays."""
        with self._mutex:
            if self._generation == generation():
                self._drop()

    def __repr__(self) -> str:
        """Name the file."""
        return f"<SQLiteStore {self.traits.place}>"

    def _request(self, verb: Callable[[sqlite3.Cursor, Unpack[_Arguments]], _T], *arguments: *_Arguments) -> _T:
        asked = time.monotonic()
        # One connection for all threads: SQLite has one writer at a time, and threads of one process would only
        # add its polling to their wait.  `with` and not `acquire`: no signal can come between taking it and the block.
        with self._mutex:
            if self._generation != generation():
                raise StoreError(f"{self._path}: forked past Python's hooks; make the store after the fork")
            if self._busy:
                raise StoreUnavailable(f"{self._path}: this thread is inside another request of the store", sent=False)
            if 0 < self._timeout < time.monotonic() - asked:
                raise StoreUnavailable(f"{self._path}: other threads waited for all of {self._timeout:g} s", sent=False)
            self._busy = True
            try:
                return verb(self._cursor or self._open(), *arguments)
            except (sqlite3.Error, OverflowError) as error:
                self._drop()
                raise self._outcome(error) from error
            except BaseException:
                self._drop()  # It rolls back: whatever was interrupted, the next verb starts afresh.
                raise
            finally:
                self._busy = False

    def _get(self, cursor: sqlite3.Cursor, key: str) -> Entry | None:
        return self._look(cursor, key, _now())[1]

    def _put(self, cursor: sqlite3.Cursor, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        cursor.execute("BEGIN IMMEDIATE")
        now = _now()  # The lease starts here: the wait for the write lock is behind us.
        last, standing = self._look(cursor, key, now)
        if version != (standing.version if standing else ABSENT):
            cursor.execute("ROLLBACK")
            return standing
        written = Entry(value, last + 1)
        cursor.execute(_COUNT_AND_WRITE, (self._boot, last + 1, now, key, value, last + 1, now + ttl))
        if not written.version % _SWEEP_EVERY:
            self._sweep(cursor, now)
        cursor.execute("COMMIT")
        return written

    def _put_many(self, cursor: sqlite3.Cursor, puts: Sequence[Put]) -> Sequence[Entry | None]:
        cursor.execute("BEGIN IMMEDIATE")
        now, last, standing = _now(), ABSENT, list[Entry | None]()
        for put in puts:
            last, entry = self._look(cursor, put.key, now)
            standing.append(entry)
        if [put.version for put in puts] != [entry.version if entry else ABSENT for entry in standing]:
            cursor.execute("ROLLBACK")
            return standing
        written = [Entry(put.value, last + number) for number, put in enumerate(puts, 1)]
        rows = zip(puts, written, strict=True)
        cursor.executemany(_WRITE, [(put.key, *entry, now + put.ttl) for put, entry in rows])
        if written:
            cursor.execute(_COUNT, (self._boot, last + len(puts), now))
            for _ in range((last + len(puts)) // _SWEEP_EVERY - last // _SWEEP_EVERY):
                self._sweep(cursor, now)
        cursor.execute("COMMIT")
        return written

    def _sweep(self, cursor: sqlite3.Cursor, now: float) -> None:
        (hand,) = cursor.execute(_HAND).fetchone() or ("",)
        (reach,) = cursor.execute(_REACH, (hand,)).fetchone()
        if reach is not None:
            cursor.execute(_SWEEP, (hand, reach, now))
        cursor.execute(_TURN, (reach or "",))

    def _remove(self, cursor: sqlite3.Cursor, key: str, version: int) -> Entry | None:
        # A single statement is a transaction of its own.  It asks for no time and no boot: a version is of one write.
        if cursor.execute(_REMOVE, (key, version)).rowcount == 1:
            return None
        return self._get(cursor, key)

    def _remove_many(self, cursor: sqlite3.Cursor, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        cursor.execute("BEGIN IMMEDIATE")
        standing = [self._remove(cursor, *removal) for removal in removals]
        cursor.execute("COMMIT")
        return standing

    def _look(self, cursor: sqlite3.Cursor, key: str, now: float) -> tuple[int, Entry | None]:
        row = cursor.execute(_LOOK, (key, now)).fetchone()
        if row is None or row[0] != self._boot:
            raise StoreError(f"{self._path} was emptied, or taken over by another machine, while it was open here")
        _, last, value, version = row
        return last, None if version is None else Entry(value, version)

    def _open(self) -> sqlite3.Cursor:
        give_up = time.monotonic() + self._timeout
        while True:
            left = max(0.0, give_up - time.monotonic())
            connection = sqlite3.connect(self._path, timeout=left, isolation_level=None, check_same_thread=False)
            self._cursor = connection.cursor()
            try:
                return self._prepare(self._cursor)
            except sqlite3.OperationalError as error:
                # Of two that turn a new file to WAL at once, SQLite refuses one without waiting.
                if not _locked(error) or time.monotonic() >= give_up:
                    raise
                self._drop()
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - not a secret

    def _prepare(self, cursor: sqlite3.Cursor) -> sqlite3.Cursor:
        if cursor.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{self._path}: the file system can't do SQLite's WAL; use a file on a local disk")
        # NORMAL: a power failure may lose the last commits but never harms the file.  It ends every lease anyway, and
        # `_SKIP` sees to it that no version comes twice.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(_TABLE)
        mine, now = _boot(), _now()
        row = cursor.execute(_COUNTER).fetchone()
        boot, clock, version = row or (mine, now, ABSENT)
        # Where a process can't name its boot (no Linux, no /proc), a clock that has run backwards tells of a new one.
        # A reboot that even this misses does no harm: then no lease there is longer than when it was written.
        if clock > now or (mine and boot and mine != boot):
            boot = mine
            cursor.execute(_REMOVE_ALL)
            version += _SKIP
        self._boot = boot
        # At least the wall clock's microseconds, so that versions also grow when somebody has deleted the file.
        version = max(version, time.time_ns() // 1000)
        cursor.execute(_COUNT, (boot, version, now))
        self._sweep(cursor, now)  # Versions may have leapt over the one at which a put would have done it.
        cursor.execute("COMMIT")
        cursor.execute(f"PRAGMA busy_timeout = {int(self._timeout * 1000)}")
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
        reason = _REASONS.get(code)
        return StoreError(f"{self._path}: {error}" + (f" ({reason})" if reason else ""))


def _checked(key: str) -> str:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the key {key!r} holds a lone surrogate, which is no character") from None
    return key


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
