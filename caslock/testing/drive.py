"""The law of this file: what a test does is written once, as a coroutine, for code that blocks and for asyncio."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from caslock.store import AsyncBatchingStore, AsyncStore, AsyncWakingStore, Entry, Put, Removal, Store, Traits

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds after which a coroutine on the loop is taken to hang."""


async def done(result: Awaitable[T] | T) -> T:
    """Give the result of a call of either API: awaited where it has to be, and without ever suspending where not."""
    return await result if inspect.isawaitable(result) else result


def is_async(store: Store | AsyncStore) -> bool:
    """Whether the verbs of `store` have to be awaited."""
    return inspect.iscoroutinefunction(store.get)


def on_loop(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end on the one event loop of these tests, which lives in a background thread.

    An asyncio store meets no other loop in them: close it by ``on_loop(store.aclose())``.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result(PATIENCE)


class Driven:
    """An `AsyncStore` as a `Store`: each verb runs on the loop, those of several threads at the same time."""

    put_when_free: Callable[[str, bytes, float, float], Entry | None]
    """See `WakingStore.put_when_free`; it is there if the store has it."""
    put_many: Callable[[Sequence[Put]], Sequence[Entry | None] | None]
    """See `BatchingStore.put_many`; it is there if the store has it."""
    invalidate_many: Callable[[Sequence[Removal]], Sequence[Entry | None] | None]
    """See `BatchingStore.invalidate_many`; it is there if the store has it."""

    def __init__(self, store: AsyncStore) -> None:
        """Drive `store`."""
        self._store = store
        if hasattr(store, "put_when_free"):
            waking = cast("AsyncWakingStore", store)
            self.put_when_free = lambda *arguments: on_loop(_awaited(waking.put_when_free(*arguments)))
        if hasattr(store, "put_many"):
            batching = cast("AsyncBatchingStore", store)
            self.put_many = lambda puts: on_loop(_awaited(batching.put_many(puts)))
            self.invalidate_many = lambda removals: on_loop(_awaited(batching.invalidate_many(removals)))

    @property
    def traits(self) -> Traits:
        """Those of the store."""
        return self._store.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return on_loop(_awaited(self._store.get(key)))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return on_loop(_awaited(self._store.put_if_version(key, value, version, ttl)))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return on_loop(_awaited(self._store.invalidate(key, version)))


def driven(store: Store | AsyncStore) -> Store:
    """Give a store whose verbs can simply be called."""
    return Driven(cast("AsyncStore", store)) if is_async(store) else cast("Store", store)


async def _awaited(result: Awaitable[T]) -> T:
    return await result


_loops: list[asyncio.AbstractEventLoop] = []
_guard = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _guard:
        if not _loops:
            ready, stop = threading.Event(), asyncio.Event()

            async def serve() -> None:
                _loops.append(asyncio.get_running_loop())
                ready.set()
                await stop.wait()

            thread = threading.Thread(target=asyncio.run, args=(serve(),), name="caslock-testing-loop", daemon=True)
            thread.start()
            ready.wait()

            def end() -> None:
                _loops[0].call_soon_threadsafe(stop.set)
                thread.join(5.0)

            atexit.register(end)
        return _loops[0]
