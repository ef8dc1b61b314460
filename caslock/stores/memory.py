"""A store in the memory of one process.

A forked child has a copy of the entries, at another location: from then on neither process sees the other's writes.
Those who wait are not in the copy.  To exclude other processes, use a file (`caslock.stores.sqlite`) or a server.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from uuid import uuid4

from caslock.errors import StoreUnavailable
from caslock.process.fork import at_fork
from caslock.process.guards import on_failure
from caslock.store import ABSENT, WOKEN, Entry, Traits
from caslock.stores.shared.closing import AsyncClosing, Closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from caslock.store import Put, Removal

_FEW: Final = 16


class _Lease(NamedTuple):
    entry: Entry
    ends: float


class MemoryStore(Closing):
    """Entries in a dict, for the threads of one process: for tests and for programs of a single process.

    `clock` gives the seconds that leases are measured by.  Verbs raise no errors, except
    ``StoreUnavailable(sent=False)`` when a signal handler or `__del__` calls one while the same thread is inside
    another.  A hold that such a `__del__` can't release ends with its lease; so release holds with ``with``, and not in
    `__del__`.
    """

    _instead = "its locks live in this object, in one process"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty store, at a location of its own."""
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._most = _FEW  # leases, before those that have ended are looked for
        self._last = time.time_ns() // 1000  # as large as on servers: a column too small for fences fails in tests
        self._begin()
        _stores.add(self)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Create an empty store: ``memory://``."""
        if url.partition("://")[2]:
            raise ValueError("memory:// creates a new store each time and takes no name or options")
        return cls()

    def get(self, key: str) -> Entry | None:
        """Read the entry under `key`."""
        self._refuse_nested()
        with self._mutex:
            return self._observed(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds if the entry has exactly `version` (`ABSENT`: if there is none)."""
        self._refuse_nested()
        with self._mutex:
            observed = self._observed(key)
            if version != (observed.version if observed else ABSENT):
                return observed
            return self._write(key, value, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove the entry under `key` if it has exactly `version`."""
        self._refuse_nested()
        with self._mutex:
            return self._remove(key, version)

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Put as soon as there is no entry; see `QueueingStore.put_when_absent`."""
        self._refuse_nested()
        gate = threading.Lock()
        gate.acquire()
        waiter = _Waiter(gate.release)
        with on_failure(partial(self._step_out, key, waiter, interrupted=True)):
            if self._line_up(key, waiter):
                gate.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))
            self._step_out(key, waiter)
            return self.put_if_version(key, value, ABSENT, ttl)

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write all of them if every one finds its version, otherwise none."""
        self._refuse_nested()
        with self._mutex:
            observed = [self._observed(put.key) for put in puts]
            expected = [put.version for put in puts]
            if expected != [entry.version if entry else ABSENT for entry in observed]:
                return observed
            return [self._write(put.key, put.value, put.ttl) for put in puts]

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove each entry that has the version named for it."""
        self._refuse_nested()
        with self._mutex:
            return [self._remove(*removal) for removal in removals]

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """Return each key that begins with `prefix`, and its entry, as of this moment."""
        self._refuse_nested()
        with self._mutex:
            entries = {key: self._observed(key) for key in self._leases if key.startswith(prefix)}
        return ((key, entry) for key, entry in entries.items() if entry is not None)

    def close(self) -> None:
        """Do nothing: there is no connection, and the entries are kept."""

    def _begin(self) -> None:
        self._mutex = RLock()
        self._lines: dict[str, OrderedDict[_Waiter, None]] = {}
        self.traits: Traits = Traits(location=f"memory://{uuid4().hex}")

    def _refuse_nested(self) -> None:
        # Not a part of taking the mutex: an interrupt in an `__enter__` written in Python would leave that taken.
        if self._mutex._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - `threading.Condition` asks this, too
            why = "called by a thread during its own request (from a signal handler or __del__)"
            raise StoreUnavailable(f"{self.traits.location}: {why}", sent=False)

    def _observed(self, key: str) -> Entry | None:
        lease = self._leases.get(key)
        return lease.entry if lease and lease.ends > self._clock() else None

    def _write(self, key: str, value: bytes, ttl: float) -> Entry:
        self._last += 1
        written, now = Entry(value, self._last), self._clock()
        self._leases[key] = _Lease(written, now + ttl)
        if len(self._leases) > self._most:
            self._leases = {name: lease for name, lease in self._leases.items() if lease.ends > now}
            self._most = max(2 * len(self._leases), _FEW)
        return written

    def _remove(self, key: str, version: int) -> Entry | None:
        observed = self._observed(key)
        if observed is None or observed.version != version:
            return observed
        del self._leases[key]
        return WOKEN if key in self._lines and self._wake(key) else None

    def _line_up(self, key: str, waiter: _Waiter) -> bool:
        # Looking and lining up are one step, and so are removing and waking: no removal falls between.
        with self._mutex:
            if self._observed(key) is None:
                return False
            self._lines.setdefault(key, OrderedDict())[waiter] = None
            return True

    def _step_out(self, key: str, waiter: _Waiter, *, interrupted: bool = False) -> None:
        # It may be called twice: an interrupt may strike in the first call.
        with self._mutex:
            line = self._lines.get(key)
            if line is not None:
                line.pop(waiter, None)
                if not line:
                    del self._lines[key]
            if interrupted and waiter.woken:
                waiter.woken = False
                self._wake(key)

    def _wake(self, key: str) -> bool:
        line = self._lines.get(key)
        while line:
            waiter, _ = line.popitem(last=False)
            if not line:
                del self._lines[key]
            if waiter.wake():
                return True
        return False


class _Waiter:
    """A thread or task that waits, and how to wake it."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self.woken = False
        self._tell = tell

    def wake(self) -> bool:
        try:
            self._tell()
        except RuntimeError:  # the loop was closed, and the task with it
            return False
        self.woken = True
        return True


class AsyncMemoryStore(AsyncClosing):
    """The same for asyncio, over a memory of its own, or over one that it shares with blocking code."""

    _instead = MemoryStore._instead  # noqa: SLF001 - the same file

    def __init__(self, memory: MemoryStore | None = None) -> None:
        """Serve `memory`; None makes a new one."""
        self.memory: MemoryStore = MemoryStore() if memory is None else memory
        """Where the entries are."""

    @classmethod
    def from_url(cls, url: str) -> Self:
        """See `MemoryStore.from_url`."""
        return cls(MemoryStore.from_url(url))

    @property
    def traits(self) -> Traits:  # type: ignore[override] # another one in a forked child
        """Those of the memory: locks of both APIs over one memory have the same location."""
        return self.memory.traits

    async def get(self, key: str) -> Entry | None:
        """See `MemoryStore.get`."""
        return self.memory.get(key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `MemoryStore.put_if_version`."""
        return self.memory.put_if_version(key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `MemoryStore.invalidate`."""
        return self.memory.invalidate(key, version)

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `MemoryStore.put_when_absent`; threads and tasks queue in one line."""
        import asyncio  # noqa: PLC0415 - whoever awaits this has imported it, nobody else need

        memory, gate = self.memory, asyncio.Event()
        memory._refuse_nested()  # noqa: SLF001 - the same file
        waiter = _Waiter(partial(asyncio.get_running_loop().call_soon_threadsafe, gate.set))
        with on_failure(partial(memory._step_out, key, waiter, interrupted=True)):  # noqa: SLF001 - the same file
            if memory._line_up(key, waiter):  # noqa: SLF001 - the same file
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await gate.wait()
            memory._step_out(key, waiter)  # noqa: SLF001 - the same file
            return memory.put_if_version(key, value, ABSENT, ttl)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """See `MemoryStore.put_many`."""
        return self.memory.put_many(puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """See `MemoryStore.invalidate_many`."""
        return self.memory.invalidate_many(removals)

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """See `MemoryStore.list`."""
        for found in self.memory.list(prefix):
            yield found

    async def aclose(self) -> None:
        """Do nothing: there is no connection, and the entries are kept."""


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread that the child does not have may have held the mutex; and the copy has a location of its own.
    for store in list(_stores):
        store._begin()  # noqa: SLF001 - the same file


at_fork(after_in_child=_after_fork)
