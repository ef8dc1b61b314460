"""Stores whose verbs are generators, for both APIs: a verb does no I/O, and each store runs it in its own way.

A verb yields a request, is sent the answer, and may yield another; it returns what the verb of the store returns.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from caslock.closing import AsyncClosing, Closing

if TYPE_CHECKING:
    from collections.abc import Generator

    from caslock.store import Entry

T = TypeVar("T")

Verb: TypeAlias = "Generator[Any, Any, T]"


class Verbs(Protocol):
    """The verbs of a store."""

    def get(self, key: str) -> Verb[Entry | None]:
        """See `Store.get`."""

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """See `Store.put_if_version`."""

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """See `Store.invalidate`."""


class BlockingVerbs(Closing):
    """The verbs for code that blocks."""

    _verbs: Verbs

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._run(self._verbs.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return self._run(self._verbs.put(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._run(self._verbs.remove(key, version))

    @abstractmethod
    def _run(self, verb: Verb[T], /) -> T:
        """Run a verb to its end, within the timeout; raises what the errors of the client mean."""


class AsyncVerbs(AsyncClosing):
    """The same for asyncio."""

    _verbs: Verbs

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._run(self._verbs.get(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return await self._run(self._verbs.put(key, value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._run(self._verbs.remove(key, version))

    @abstractmethod
    async def _run(self, verb: Verb[T], /) -> T:
        """See `BlockingVerbs`."""
