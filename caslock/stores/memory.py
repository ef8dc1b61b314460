"""The law of this file: the store of one process, and the shortest whole reading of the contract.

After a fork the child has its own copy: it starts with what stood then, and neither side sees the other's writes any
more.  So it never excludes one process from another; for that take a file (`caslock.stores.sqlite`) or a server.
Who waited is not in the child, and so not in its copy.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import uuid4

from caslock.store import ABSENT, WOKEN, Entry, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import Put, Removal


class _Lease(NamedTuple):
    entry: Entry
    ends: float


class MemoryStore:
    """Entries in a dict, for the threads of one process: for tests and for programs of a single process.

    `clock` gives the seconds that leases are measured by.  No verb raises any error of its own.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an empty memory, unlike every other."""
        self._clock = clock
        self._leases: OrderedDict[str, _Lease] = OrderedDict()
        self._last = ABSENT
        self._begin()
        _stores.add(self)

    def get(self, key: str) -> Entry | None:
        """Read what stands under `key`."""
        with self._mutex:
            return self._standing(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds if exactly `version` stands (`ABSENT`: if nothing stands)."""
        with self._mutex:
            standing = self._standing(key)
            if version != (standing.version if standing else ABSENT):
                return standing
            return self._write(key, value, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove what stands under `key` if its version is exactly `version`."""
        with self._mutex:
            return self._remove(key, version)

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """Put when nothing stands, or tell after `timeout` seconds who does; see `WakingStore.put_when_free`."""
        waiter = _Thread()
        try:
            if self._line_up(key, waiter):
                waiter.block(timeout)
            self._step_out(key, waiter)
            return self.put_if_version(key, value, ABSENT, ttl)
        except BaseException:
            self._step_out(key, waiter, interrupted=True)
            raise

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """Write all of them if every one's version stands, else none."""
        with self._mutex:
            standing = [self._standing(put.key) for put in puts]
            expected = [put.version for put in puts]
            if expected != [entry.version if entry else ABSENT for entry in standing]:
                return standing
            return [self._write(put.key, put.value, put.ttl) for put in puts]

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """Remove each whose version stands."""
        with self._mutex:
            return [self._remove(*removal) for removal in removals]

    def __repr__(self) -> str:
        """Name the memory."""
        return f"<MemoryStore {self.traits.place}>"

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._lines: dict[str, OrderedDict[_Waiter, None]] = {}
        self.traits = Traits(place=f"memory://{uuid4().hex}")

    def _write(self, key: str, value: bytes, ttl: float) -> Entry:
        self._last += 1
        written = Entry(value, self._last)
        self._leases[key] = _Lease(written, self._clock() + ttl)
        self._sweep()
        return written

    def _remove(self, key: str, version: int) -> Entry | None:
        standing = self._standing(key)
        if standing is None or standing.version != version:
            return standing
        del self._leases[key]
        return WOKEN if key in self._lines and self._wake(key) else None

    def _standing(self, key: str) -> Entry | None:
        lease = self._leases.get(key)
        if lease is None:
            return None
        if lease.ends > self._clock():
            return lease.entry
        del self._leases[key]
        return None

    def _line_up(self, key: str, waiter: _Waiter) -> bool:
        # Looking and lining up are one step, and so are removing and waking: no removal falls between.
        with self._mutex:
            if self._standing(key) is None:
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

    def _sweep(self) -> None:
        # A clock hand goes round: each put adds one lease at most and looks at two, so that what has expired
        # is gone after one more round, without a pause for a full sweep.
        now = self._clock()
        for _ in range(2):
            key = next(iter(self._leases), None)
            if key is None:
                return
            if self._leases[key].ends > now:
                self._leases.move_to_end(key)
            else:
                del self._leases[key]


class _Thread:
    """A thread that waits."""

    def __init__(self) -> None:
        self.woken = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def block(self, timeout: float) -> None:
        self._gate.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    def wake(self) -> bool:
        self.woken = True
        self._gate.release()
        return True


class _Task:
    """A task that waits, in whatever loop."""

    def __init__(self) -> None:
        from asyncio import get_running_loop  # noqa: PLC0415 - whoever waits here has imported it, nobody else need

        self.woken = False
        self._loop = get_running_loop()
        self._gate = self._loop.create_future()

    async def block(self, timeout: float) -> None:
        timer = self._loop.call_later(timeout, self._open)
        try:
            await self._gate
        finally:
            timer.cancel()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:  # the loop was closed, and the task with it
            return False
        self.woken = True
        return True

    def _open(self) -> None:
        if not self._gate.done():
            self._gate.set_result(None)


_Waiter: TypeAlias = _Thread | _Task


class AsyncMemoryStore:
    """The same for asyncio, over a memory of its own, or over one that it shares with blocking code."""

    def __init__(self, memory: MemoryStore | None = None) -> None:
        """Serve `memory`; None makes a new one."""
        self.memory = MemoryStore() if memory is None else memory

    @property
    def traits(self) -> Traits:
        """Those of the memory: locks of both APIs over one memory are locks of one place."""
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

    async def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `MemoryStore.put_when_free`; threads and tasks stand in one line."""
        waiter, memory = _Task(), self.memory
        try:
            if memory._line_up(key, waiter):  # noqa: SLF001 - the same file
                await waiter.block(timeout)
            memory._step_out(key, waiter)  # noqa: SLF001 - the same file
            return memory.put_if_version(key, value, ABSENT, ttl)
        except BaseException:
            memory._step_out(key, waiter, interrupted=True)  # noqa: SLF001 - the same file
            raise

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
        """See `MemoryStore.put_many`."""
        return self.memory.put_many(puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None]:
        """See `MemoryStore.invalidate_many`."""
        return self.memory.invalidate_many(removals)

    def __repr__(self) -> str:
        """Name the memory."""
        return f"<AsyncMemoryStore {self.traits.place}>"


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread that the child does not have may have held the mutex; and the copy is another place from now on.
    for store in list(_stores):
        store._begin()  # noqa: SLF001 - the same file


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
