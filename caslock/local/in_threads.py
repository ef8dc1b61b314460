"""A blocking store as asyncio sees it: each verb in a thread, with a bound for the time in which none is free."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

from caslock.errors import StoreUnavailable
from caslock.local.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.local.shared import Shared
    from caslock.store import BatchingStore, Entry, IdentifiedStore, Put, Removal, Store, Traits, WatchingStore

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_SHARE: Final = 0.25
"""Share of a request timeout for which a request to a blocking store waits for a thread; then it is dropped unsent."""


class InThreads:
    """A blocking store as asyncio sees it: each verb in a thread of the store's own, as the loop's may all be busy."""

    __slots__ = ("_new_workers", "_purpose", "_shared", "_store", "traits")

    def __init__(self, shared: Shared, purpose: str, most: int) -> None:
        self._store = cast("Store", shared.store)
        self.traits: Traits = self._store.traits
        self._shared, self._purpose = shared, purpose
        self._new_workers = partial(Workers, f"caslock-{purpose.replace(' ', '-')}", most)

    # Each verb: see `Store`, and the Protocols of what a store may have besides.

    async def identify(self) -> str | None:
        return await self._ask(cast("IdentifiedStore", self._store).identify)

    async def get(self, key: str) -> Entry | None:
        return await self._ask(self._store.get, key)

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await self._ask(self._store.put_if_version, key, value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await self._ask(self._store.invalidate, key, version)

    async def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        return await self._ask(cast("WatchingStore", self._store).wait_while, key, version, timeout)

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        return await self._ask(cast("BatchingStore", self._store).put_many, puts)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        return await self._ask(cast("BatchingStore", self._store).invalidate_many, removals)

    def _ask(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        unsent: list[None] = [None]  # list.pop is atomic: either a thread takes it, or the time is over
        patience = QUEUE_SHARE * self.traits.request_timeout
        busy = loop.call_later(patience, _drop, future, unsent, self.traits.location)
        future.add_done_callback(lambda _: busy.cancel())
        workers = self._shared.part(self._purpose, self._new_workers)  # a forked child has others
        workers.do(partial(_answer, loop, future, unsent, partial(verb, *args, **kwargs)))
        return future


def _drop(future: asyncio.Future[T], unsent: list[None], location: str) -> None:
    """Give up on a request that no thread has taken."""
    with contextlib.suppress(IndexError):  # one has taken it
        unsent.pop()
        error = StoreUnavailable(f"too many requests are waiting for {location}", sent=False)
        _settle(future, partial(future.set_exception, error))


def _answer(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], unsent: list[None], verb: Callable[[], T]
) -> None:
    """Call a verb in a worker thread, and pass its result to the loop."""
    if future.done():  # nothing waits for it any more, and nothing was sent
        return
    try:
        unsent.pop()
    except IndexError:
        return
    try:
        settle = partial(future.set_result, verb())
    except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
        settle = partial(future.set_exception, error)
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(_settle, future, settle)


def _settle(future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    if not future.done():
        settle()
