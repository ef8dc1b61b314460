"""The law of this file: where there is no wire to cut, a store's own verbs lose, delay and double its requests.

A store keeps its type and its optional verbs: only the three verbs of this one object are exchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from caslock.errors import StoreError, StoreUnavailable
from caslock.testing.drive import is_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.store import AsyncStore, Entry, Store
    from caslock.testing.proxy import Passage

MOST_LATE: Final = 64
"""Requests of one process that may be under way beside those that somebody waits for."""


class Troubled:
    """What has been asked of the stores of one process, by key, and what becomes of it."""

    def __init__(self, decide: Callable[[bytes], Passage] | None, told: Callable[[bytes, Passage], object]) -> None:
        """Decide on each request by `decide` (None: all pass), and tell of each fault."""
        self.requests = 0
        self.faults = 0
        self.unanswered = Counter[str]()
        """Requests without an answer, by key."""
        self._decide, self._told = decide, told
        self._late = threading.BoundedSemaphore(MOST_LATE)

    def trouble(self, store: Store | AsyncStore) -> None:
        """Exchange the verbs of a store; where they can't be, requests are neither counted nor troubled."""
        for verb in ("get", "put_if_version", "invalidate"):
            plain = getattr(store, verb)
            with contextlib.suppress(AttributeError):
                setattr(store, verb, self._awaited(plain) if is_async(store) else self._blocking(plain))

    def _blocking(self, verb: Callable[..., Entry | None]) -> Callable[..., Entry | None]:
        def ask(key: str, *rest: object) -> Entry | None:
            kind, seconds = self._fate(key, rest)
            try:
                if kind in ("drop request", "cut before"):
                    raise _no_answer()  # noqa: TRY301 - counted below, as the real ones are
                if kind == "hold request":
                    self._later(seconds, lambda: verb(key, *rest))
                    raise _no_answer()  # noqa: TRY301 - as above
                answer = verb(key, *rest)
                if kind == "duplicate":
                    self._later(seconds, lambda: verb(key, *rest))
                if kind == "hold reply":
                    time.sleep(seconds / 4)
                if kind in ("drop reply", "cut after"):
                    raise _no_answer()  # noqa: TRY301 - as above
            except BaseException as error:
                self._count(key, error)
                raise
            return answer

        return ask

    def _awaited(self, verb: Callable[..., Awaitable[Entry | None]]) -> Callable[..., Awaitable[Entry | None]]:
        async def ask(key: str, *rest: object) -> Entry | None:
            kind, seconds = self._fate(key, rest)
            try:
                if kind in ("drop request", "cut before"):
                    raise _no_answer()  # noqa: TRY301 - counted below, as the real ones are
                if kind == "hold request":
                    self._later_here(seconds, lambda: verb(key, *rest))
                    raise _no_answer()  # noqa: TRY301 - as above
                answer = await verb(key, *rest)
                if kind == "duplicate":
                    self._later_here(seconds, lambda: verb(key, *rest))
                if kind == "hold reply":
                    await asyncio.sleep(seconds / 4)
                if kind in ("drop reply", "cut after"):
                    raise _no_answer()  # noqa: TRY301 - as above
            except BaseException as error:
                self._count(key, error)
                raise
            return answer

        return ask

    def _fate(self, key: str, rest: tuple[object, ...]) -> Passage | tuple[str, float]:
        self.requests += 1
        request = b"%b %b" % (key.encode(), rest[0] if rest and isinstance(rest[0], bytes) else b"")
        passage = self._decide(request) if self._decide else None
        if passage is None or passage.kind == "pass":
            return "pass", 0.0
        self.faults += 1
        self._told(request, passage)
        return passage

    def _count(self, key: str, error: BaseException) -> None:
        if not isinstance(error, StoreError) or isinstance(error, StoreUnavailable):
            self.unanswered[key] += 1

    def _later(self, seconds: float, request: Callable[[], object]) -> None:
        if not self._late.acquire(blocking=False):
            return

        def arrive() -> None:
            try:
                with contextlib.suppress(StoreError):  # nobody waits for its answer
                    request()
            finally:
                self._late.release()

        timer = threading.Timer(seconds, arrive)
        timer.daemon = True
        timer.start()

    def _later_here(self, seconds: float, request: Callable[[], Awaitable[object]]) -> None:
        async def arrive() -> None:
            await asyncio.sleep(seconds)
            with contextlib.suppress(StoreError, asyncio.CancelledError):
                await request()

        task = asyncio.ensure_future(arrive())
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)


_under_way: set[asyncio.Future[None]] = set()


def _no_answer() -> StoreUnavailable:
    return StoreUnavailable("no answer, by torture")
