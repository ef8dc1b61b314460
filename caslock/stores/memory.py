"""The law of this file: the store of one process, and the shortest whole reading of the contract.

After a fork the child has its own copy: it starts with what stood then, and neither side sees the other's writes any
more.  So it never excludes one process from another; for that take a file (`caslock.stores.sqlite`) or a server.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from caslock.store import ABSENT, Entry, Traits

if TYPE_CHECKING:
    from collections.abc import Callable


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
            self._last += 1
            written = Entry(value, self._last)
            self._leases[key] = _Lease(written, self._clock() + ttl)
            self._sweep()
            return written

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove what stands under `key` if its version is exactly `version`."""
        with self._mutex:
            standing = self._standing(key)
            if standing is None or standing.version != version:
                return standing
            del self._leases[key]
            return None

    def __repr__(self) -> str:
        """Name the memory."""
        return f"<MemoryStore {self.traits.place}>"

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self.traits = Traits(place=f"memory://{uuid4().hex}")

    def _standing(self, key: str) -> Entry | None:
        lease = self._leases.get(key)
        if lease is None:
            return None
        if lease.ends > self._clock():
            return lease.entry
        del self._leases[key]
        return None

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
