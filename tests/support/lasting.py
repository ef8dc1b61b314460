"""A store that does not end leases by itself, over any other: `traits.expires` is False."""

from __future__ import annotations

import inspect

from caslock.store import AsyncStore, Entry, Store

YEAR = 365 * 86_400.0


class Lasting:
    """The store below with entries that stay until they are written over or removed."""

    def __init__(self, below: Store) -> None:
        self.traits = below.traits._replace(expires=False)
        self._below = below

    def get(self, key: str) -> Entry | None:
        return self._below.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        del ttl
        return self._below.put_if_version(key, value, version, YEAR)

    def invalidate(self, key: str, version: int) -> Entry | None:
        return self._below.invalidate(key, version)


class AsyncLasting:
    def __init__(self, below: AsyncStore) -> None:
        assert inspect.iscoroutinefunction(below.get)
        self.traits = below.traits._replace(expires=False)
        self._below = below

    async def get(self, key: str) -> Entry | None:
        return await self._below.get(key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        del ttl
        return await self._below.put_if_version(key, value, version, YEAR)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await self._below.invalidate(key, version)
