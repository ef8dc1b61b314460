"""Runs tests that are written once on stores for blocking code and on stores for asyncio."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from caslock.store import AsyncListingStore, AsyncStore, Entry, Store, Traits

T = TypeVar("T")

PATIENCE: Final = 120.0
"""Seconds after which a coroutine on the loop is taken to hang."""

_VERBS: Final = (
    *("get", "put_if_version", "invalidate"),
    *("wait_while", "put_when_absent", "put_many", "invalidate_many", "identify"),
)


async def done(result: Awaitable[T] | T) -> T:
    """Give the result of a call of either API, which is awaited if it has to be."""
    return await result if inspect.isawaitable(result) else result


def is_async(store: Store | AsyncStore) -> bool:
    """Whether the verbs of `store` have to be awaited."""
    return inspect.iscoroutinefunction(store.get)


def on_loop(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine on the one event loop of these tests, which lives in a background thread.

    An asyncio store is used on no other loop by them, so close it by ``on_loop(store.aclose())``.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result(PATIENCE)


def driven(store: Store | AsyncStore) -> Store:
    """Give a store whose verbs can simply be called; it has those that `store` has."""
    return cast("Store", _Driven(store)) if is_async(store) else cast("Store", store)


class _Driven:
    """An `AsyncStore` as a `Store`: each verb runs on the loop, and those of several threads run at the same time."""

    def __init__(self, store: Store | AsyncStore) -> None:
        self._store = store
        has: Any = store  # it may have what `AsyncStore` does not name
        for verb in _VERBS:
            if hasattr(store, verb):
                setattr(self, verb, partial(_call, getattr(store, verb)))
        if hasattr(store, "aclose"):
            self.close = partial(_call, has.aclose)
        if hasattr(store, "stored_name"):
            self.stored_name = has.stored_name
        if hasattr(store, "list"):
            self.list = partial(_steps, has)

    @property
    def traits(self) -> Traits:
        return self._store.traits


def _call(verb: Callable[..., Awaitable[object]], *arguments: object) -> object:
    async def call() -> object:
        return await verb(*arguments)

    return on_loop(call())


def _steps(store: AsyncListingStore, prefix: str) -> Iterator[tuple[str, Entry]]:
    async def step() -> tuple[str, Entry] | None:
        return await anext(entries, None)

    entries = store.list(prefix)
    while (pair := on_loop(step())) is not None:
        yield pair


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
