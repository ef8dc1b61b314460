"""The store in one local SQLite file, for the processes of one machine.

No connection lives through a fork.  The child's SQLite would believe that it has the parent's file locks, and parent
and child would write at the same time (https://sqlite.org/howtocorrupt.html, 2.6).
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
import weakref
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import unquote

from caslock.errors import StoreError, StoreUnavailable
from caslock.process.fork import at_fork, generation
from caslock.process.guards import on_failure
from caslock.store import Entry, Traits, check_key
from caslock.stores.shared.closing import Closing
from caslock.stores.shared.options import check_timeout, no_other_options, options_of, seconds_of
from caslock.stores.sqlite.table import Table, is_locked, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.store import Put, Removal

T = TypeVar("T")

_BRIEF: Final = 0.1  # seconds to wait for the verbs of other threads where the timeout is 0
_PROMPT: Final = 0.98  # of the timeout: with as much left, the connection's own wait is not shortened

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
    default).  While the file is in use, do not open it with anything but SQLite, and do not delete or replace it: that
    ends all leases, of which their holders learn by their next renewal.

    `path` is the file, created if there is none; its directory must exist.  `timeout` is how many seconds a verb waits
    for another process's transaction and for the verbs of other threads, together; 0: up to 0.1 s for other threads,
    and not at all for other processes.

    Every verb raises `StoreUnavailable` when the file stays locked (nothing was applied) or can't be read or written
    for the moment (a put may have been applied), `StoreError` when SQLite refuses, and ValueError for a key with a lone
    surrogate.  A signal's handler runs when the wait for another process is over, not before.
    The file is opened by the first verb, and again by the first one after `close`, a fork, or its removal.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        """Name the file; no I/O yet.  Raises ValueError for a path that names no file, or a timeout out of range."""
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ValueError(f"{name!r} would be private to this store: use MemoryStore, or memory://")
        self._path = Path(name).resolve()
        self._timeout = check_timeout("timeout", timeout, or_zero=True)
        self._patience = timeout or _BRIEF  # with other threads of this process
        self._table: Table | None = None
        # Reentrant, so that a signal handler that interrupts a verb gets an error from `_request`, and no deadlock.
        self._mutex = RLock()
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
        return self._request(lambda table: table.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds, counted from when the write lock is taken, if the entry has `version`."""
        check_key(key)
        return self._request(lambda table: table.put(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove the entry under `key` if it has exactly `version`, otherwise read it."""
        check_key(key)
        return self._request(lambda table: table.remove(key, version))

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write all of them if every one finds its version, otherwise none, in one transaction."""
        for put in puts:
            check_key(put.key)
        return self._request(lambda table: table.put_many(puts)) if puts else []

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove each entry that has the version named for it, in one transaction."""
        for removal in removals:
            check_key(removal.key)
        return self._request(lambda table: table.remove_many(removals))

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """Return each key that begins with `prefix`, and its entry, as of this moment."""
        if prefix:
            check_key(prefix)
        return iter(self._request(lambda table: table.list(prefix)))

    def identify(self) -> str:
        """See `IdentifiedStore.identify`: the device and the number of the file, whatever its names."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._request(lambda _table: None)  # to open it makes it
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

    def _request(self, verb: Callable[[Table], T]) -> T:
        # One connection serves all threads.  SQLite has one writer at a time, and connections of their own would only
        # add its polling to their wait.
        mutex, ends = self._mutex, time.monotonic() + self._timeout
        if _is_owned(mutex):  # by a signal handler, or a `__del__`, that has interrupted a verb
            why = "called by a thread during its own request (from a signal handler or __del__)"
            raise StoreUnavailable(f"{self._path}: {why}", sent=False)
        try:
            try:
                if not mutex.acquire(timeout=self._patience):
                    why = f"waited {self._patience:g} s for requests of other threads"
                    raise StoreUnavailable(f"{self._path}: {why}", sent=False)
                return self._run(verb, ends)
            finally:
                if _is_owned(mutex):  # no interrupt can come between taking it and knowing it
                    mutex.release()
        finally:
            if _is_owned(mutex):  # an interrupt has come before the release
                mutex.release()

    def _run(self, verb: Callable[[Table], T], ends: float) -> T:
        if self._generation != generation():
            raise StoreError(f"{self._path}: the process was forked by C code; create the store after the fork")
        try:
            with on_failure(self._drop):  # it rolls back: whatever was interrupted, the next verb starts afresh
                return verb(self._ready(ends))
        except (sqlite3.Error, OverflowError) as error:
            raise self._outcome(error) from error

    def _ready(self, ends: float) -> Table:
        """Return the table, which waits for other processes no longer than until the moment `ends`."""
        if self._table is not None and self._table.is_gone():
            self._drop()  # others lock in a new file: whoever holds a key in the old one has to learn of it
        if self._table is None:
            self._table = opened(self._path, ends)
        left = ends - time.monotonic()
        self._table.wait_for(self._timeout if left > self._timeout * _PROMPT else max(left, 0.0))
        return self._table

    def _drop(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            table.close()

    def _outcome(self, error: Exception) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if is_locked(error):
            return StoreUnavailable(f"{self._path} stayed locked for {self._timeout:g} s: {error}", sent=False)
        is_other = os.path.exists(self._path) and not os.path.isfile(self._path)  # noqa: PTH110, PTH113 - these never raise
        if code == sqlite3.SQLITE_IOERR and not is_other:
            return StoreUnavailable(f"{self._path} can't be read or written: {error}")
        why = _REASONS.get(code)
        if is_other:
            kind = "a directory" if self._path.is_dir() else "not a regular file"
            why = f"it is {kind}; give the path of a file"
        return StoreError(f"{self._path}: {error}" + (f" ({why})" if why else ""))


def _is_owned(mutex: RLock) -> bool:
    return bool(mutex._is_owned())  # type: ignore[attr-defined] # noqa: SLF001 - `threading.Condition` asks this, too


_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_forking = RLock()  # guards these two; one thread forks at a time
_paused: dict[SQLiteStore, bool] = {}  # whether the thread that forks had the mutex before: it has interrupted a verb


def _before_fork() -> None:
    _forking.acquire()
    for store in list(_stores):
        mutex = store._mutex  # noqa: SLF001 - the same file
        if not _paused.setdefault(store, _is_owned(mutex)) and not _is_owned(mutex):
            mutex.acquire()  # waits for the verb that another thread is in
        store._drop()  # noqa: SLF001 - the store's own hook


def _after_fork() -> None:
    if not _is_owned(_forking):  # The fork came from C code, or this is the second time.
        return
    # A store that is not paused, because the fork came from C code, keeps its generation: the child's verbs refuse.
    for store, before in _paused.items():
        if _is_owned(store._mutex):  # noqa: SLF001 - the same file
            store._generation = generation()  # noqa: SLF001 - the store's own hook
            if not before:
                store._mutex.release()  # noqa: SLF001 - the same file
    _paused.clear()
    while _is_owned(_forking):
        _forking.release()


# A signal handler may raise an exception anywhere in a hook, even as it begins, and the fork goes on.  So each hook
# runs twice: the second time does what the first one has left.
at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
