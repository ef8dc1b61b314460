"""The table of entries in an SQLite file; one transaction for each verb.

- Versions come from a counter: a single row, which is never deleted.
- The time of a verb is that of the pages it writes.  So there is one table without an index, and as long as few keys
  are locked at once, the counter and all entries are in a single page.
- Leases are measured by the machine's clock since boot, which nobody can set.  A reboot ends every holder, so whoever
  opens the file first removes the leases of another boot.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caslock.errors import StoreError
from caslock.process.guards import on_failure
from caslock.store import ABSENT, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import Put, Removal

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""The clock that leases are measured by."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
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


class Table:
    """The table, over a connection of its own; its methods raise what sqlite3 does."""

    def __init__(self, path: Path, ends: float) -> None:
        """Open the file, and wait for other processes until the moment `ends`."""
        self._path, self._name = path, str(path)
        self._waits = max(0.0, ends - time.monotonic())
        connection = sqlite3.connect(path, timeout=self._waits, isolation_level=None, check_same_thread=False)
        self._file = _identity(self._name)
        self._cursor = connection.cursor()
        with on_failure(self.close):
            self._boot = self._prepare()

    def wait_for(self, seconds: float) -> None:
        """Have the verbs wait so long for other processes."""
        if seconds != self._waits:
            self._cursor.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
            self._waits = seconds

    def is_gone(self) -> bool:
        """Whether the path leads to another file by now, or to none: SQLite goes on with the one that it has opened."""
        there = _identity(self._name)
        return there is None or there != self._file

    def get(self, key: str) -> Entry | None:
        """See `Store.get`; takes no write lock."""
        return self._look(key, now())[1]

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; the ttl counts from when the write lock is taken."""
        # As `put_many` does for one: acquire and release took 9 % longer through that.
        cursor = self._cursor
        cursor.execute("BEGIN IMMEDIATE")
        at = now()  # the lease begins here: the wait for the write lock is over
        last, observed = self._look(key, at)
        if version != (observed.version if observed else ABSENT):
            cursor.execute("ROLLBACK")
            return observed
        written = Entry(value, last + 1)
        cursor.execute(_COUNT_AND_WRITE, (self._boot, last + 1, at, key, value, last + 1, at + ttl))
        if not written.version % _SWEEP_EVERY:
            self._sweep(at)
        cursor.execute("COMMIT")
        return written

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """See `BatchingStore.put_many`."""
        cursor = self._cursor
        cursor.execute("BEGIN IMMEDIATE")
        at = now()
        last, observed = ABSENT, []
        for put in puts:
            last, entry = self._look(put.key, at)
            observed.append(entry)
        if [put.version for put in puts] != [entry.version if entry else ABSENT for entry in observed]:
            cursor.execute("ROLLBACK")
            return observed
        rows = [(put.key, put.value, last + number, at + put.ttl) for number, put in enumerate(puts, 1)]
        counted = last + len(puts)
        cursor.executemany(_WRITE, [(0, self._boot, counted, at), *rows])
        for _ in range(counted // _SWEEP_EVERY - last // _SWEEP_EVERY):
            self._sweep(at)
        cursor.execute("COMMIT")
        return [Entry(value, version) for _, value, version, _ in rows]

    def remove(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        # A single statement is a transaction.  It needs no look at clock or boot, because a version is of one write.
        if self._cursor.execute(_REMOVE, (key, version)).rowcount == 1:
            return None
        return self.get(key)

    def remove_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """See `BatchingStore.invalidate_many`."""
        self._cursor.execute("BEGIN IMMEDIATE")
        observed = [self.remove(*removal) for removal in removals]
        self._cursor.execute("COMMIT")
        return observed

    def list(self, prefix: str) -> Sequence[tuple[str, Entry]]:
        """Return each key that begins with `prefix`, and its entry."""
        rows = self._cursor.execute(_LIST, (prefix, len(prefix.encode()), prefix, now())).fetchall()
        self._check(rows and rows[0][0])
        return [(key, Entry(value, version)) for _, key, value, version in rows if key is not None]

    def close(self) -> None:
        """Roll back, and close the file."""
        with suppress(sqlite3.Error):
            self._cursor.close()
            self._cursor.connection.rollback()
            self._cursor.connection.close()

    if sys.version_info >= (3, 13):

        def __del__(self) -> None:
            """Close the file of a store that nobody has closed, of which sqlite3 would warn."""
            with suppress(AttributeError):  # it could not be opened
                self.close()

    def _look(self, key: str, at: float) -> tuple[int, Entry | None]:
        """Return the last version that was counted, and the entry under `key`."""
        row = self._cursor.execute(_LOOK, (key, at)).fetchone()
        self._check(row and row[0])
        _, last, value, version = row
        return last, None if version is None else Entry(value, version)

    def _check(self, boot: object) -> None:
        if boot != self._boot:
            raise StoreError(f"{self._path} was emptied, or used by another machine, while it was open")

    def _sweep(self, at: float) -> None:
        cursor = self._cursor
        (reached,) = cursor.execute(_REACHED).fetchone() or ("",)
        (reach,) = cursor.execute(_REACH, (reached,)).fetchone()
        if reach is not None:
            cursor.execute(_SWEEP, (reached, reach, at))
        cursor.execute(_WRITE, (1, reach or "", 0, 0))

    def _prepare(self) -> str:
        """Make the table where there is none, and return the name of the boot."""
        cursor = self._cursor
        if cursor.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreError(f"{self._path}: this file system does not support SQLite's WAL mode; use a local disk")
        # With NORMAL, a power failure may lose the last commits but never harms the file.  It ends every lease anyway,
        # and `_SKIP` keeps versions from coming twice.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(_TABLE)
        mine, at = _boot(), now()
        row = cursor.execute(_COUNTER).fetchone()
        boot, clock, version = row or (mine, at, ABSENT)
        # A process that can't name its boot (no Linux, no /proc) tells a new one by a clock that has run backwards.
        # A reboot that even this misses does no harm: then no lease is longer than when it was written.
        if clock > at or (mine and boot and mine != boot):
            boot = mine
            cursor.execute(_REMOVE_ALL)
            version += _SKIP
        # At least the wall clock's microseconds, so that versions also grow when somebody has deleted the file.
        version = max(version, time.time_ns() // 1000)
        cursor.execute(_WRITE, (0, boot, version, at))
        self._sweep(at)  # the version may have leapt over the one at which a put would have done it
        cursor.execute("COMMIT")
        return boot


def opened(path: Path, ends: float) -> Table:
    """Open the file, and wait for other processes until the moment `ends`."""
    while True:
        try:
            return Table(path, ends)
        except sqlite3.OperationalError as error:
            # Of two that turn a new file to WAL at once, SQLite refuses one without waiting.
            if not is_locked(error) or time.monotonic() >= ends:
                raise
        time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - not a secret


def is_locked(error: Exception) -> bool:
    """Tell whether another process has locked the file."""
    codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def _identity(name: str) -> tuple[int, int] | None:
    try:
        there = os.stat(name)  # noqa: PTH116 - `Path.stat` takes longer
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
