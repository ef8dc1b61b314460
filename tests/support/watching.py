"""Memory stores whose waiters watch: they have `wait_while` and `list`, and neither `put_when_absent` nor batches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

from caslock.store import Entry
from caslock.stores.memory import MemoryStore


class WatchingMemory:
    def __init__(self) -> None:
        self._memory = MemoryStore()
        self._changed = threading.Condition()
        self._keys = dict[str, None]()
        self.traits = self._memory.traits

    def get(self, key: str) -> Entry | None:
        return self._memory.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        with self._changed:
            self._keys[key] = None
            self._changed.notify_all()
            return self._memory.put_if_version(key, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        with self._changed:
            self._changed.notify_all()
            return self._memory.invalidate(key, version)

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        end = time.monotonic() + timeout
        with self._changed:
            while self._has(key, version) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        for key in tuple(self._keys):
            if key.startswith(prefix) and (entry := self._memory.get(key)) is not None:
                yield key, entry

    def _has(self, key: str, version: int) -> bool:
        observed = self._memory.get(key)
        return observed is not None and observed.version == version


class AsyncWatchingMemory:
    """The same for asyncio, for the tasks of one loop."""

    def __init__(self) -> None:
        self._below = WatchingMemory()
        self._changed = asyncio.Condition()
        self.traits = self._below.traits

    async def get(self, key: str) -> Entry | None:
        return self._below.get(key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        async with self._changed:
            self._changed.notify_all()
            return self._below.put_if_version(key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        async with self._changed:
            self._changed.notify_all()
            return self._below.invalidate(key, version)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self._changed:
                while (entry := self._below.get(key)) and entry.version == version:
                    await self._changed.wait()
        except TimeoutError:
            return

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        for pair in self._below.list(prefix):
            yield pair
