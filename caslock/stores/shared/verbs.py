"""Stores whose verbs are generators, for both APIs: a verb does no I/O, and `follow` runs it over the connections.

A verb yields a request, is sent the answer, and may yield another; it returns what the verb of the store returns.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from caslock.stores.shared.closing import AsyncClosing, Closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence

    from caslock.store import Entry

T = TypeVar("T")

Verb: TypeAlias = "Generator[Any, Any, T]"


async def follow(verb: Verb[T], ask: Callable[[Any], Awaitable[Any]], first: Any = None) -> T:  # noqa: ANN401 - a store's own kind of request
    """Run a verb to its end; `ask` answers a request, and what it raises is raised in the verb.

    `first` is the first request, if the verb has yielded it already.
    """
    try:
        request = next(verb) if first is None else first
        while True:
            try:
                answer = await ask(request)
            except Exception as error:  # noqa: BLE001 - the verb knows which it can do without
                request = verb.throw(error)
            else:
                request = verb.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


class Page(NamedTuple):
    """A part of a list."""

    pairs: Sequence[tuple[str, Entry]]
    after: Any
    """Where the next part begins, in the server's own way; None: this was the last."""


class Verbs(Protocol):
    """The verbs of a store."""

    def get(self, key: str) -> Verb[Entry | None]:
        """See `Store.get`."""

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """See `Store.put_if_version`."""

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """See `Store.invalidate`."""

    def page(self, prefix: str, after: Any) -> Verb[Page]:  # noqa: ANN401 - see `Page.after`
        """See `ListingStore.list`; give the part that begins there (None: the first)."""


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

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """See `ListingStore.list`: its requests are made as the iteration goes on."""
        seen, page = set[str](), self._run(self._verbs.page(prefix, None))
        while True:
            for key, entry in page.pairs:
                if key not in seen:  # one that was written over meanwhile may come again
                    seen.add(key)
                    yield key, entry
            if page.after is None:
                return
            page = self._run(self._verbs.page(prefix, page.after))

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

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """See `BlockingVerbs.list`."""
        seen, page = set[str](), await self._run(self._verbs.page(prefix, None))
        while True:
            for key, entry in page.pairs:
                if key not in seen:
                    seen.add(key)
                    yield key, entry
            if page.after is None:
                return
            page = await self._run(self._verbs.page(prefix, page.after))

    @abstractmethod
    async def _run(self, verb: Verb[T], /) -> T:
        """See `BlockingVerbs`."""
