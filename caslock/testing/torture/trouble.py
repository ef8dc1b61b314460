"""The law of this file: where there is no wire to cut, a store's own verbs lose, delay and double its requests.

A store keeps its type: only the verbs of this one object are exchanged, those that it need not have among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import Put
from caslock.testing.drive import is_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from caslock.store import AsyncStore, Removal, Store
    from caslock.testing.proxy import Passage

    What = str | Sequence[Put | Removal]
    """A key, or several requests as one."""

T = TypeVar("T")

VERBS: Final = ("get", "put_if_version", "invalidate", "put_when_free", "put_many", "invalidate_many")

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
        for verb in VERBS:
            plain = getattr(store, verb, None)
            if plain is not None:
                with contextlib.suppress(AttributeError):
                    setattr(store, verb, self._awaited(plain) if is_async(store) else self._blocking(plain))

    def _blocking(self, verb: Callable[..., T]) -> Callable[..., T]:
        def ask(what: What, *rest: object) -> T:
            kind, seconds = self._fate(what, rest)
            try:
                if kind in ("drop request", "cut before"):
                    raise _no_answer()  # noqa: TRY301 - counted below, as the real ones are
                if kind == "hold request":
                    self._later(seconds, lambda: verb(what, *rest))
                    raise _no_answer()  # noqa: TRY301 - as above
                answer = verb(what, *rest)
                if kind == "duplicate":
                    self._later(seconds, lambda: verb(what, *rest))
                if kind == "hold reply":
                    time.sleep(seconds / 4)
                if kind in ("drop reply", "cut after"):
                    raise _no_answer()  # noqa: TRY301 - as above
            except BaseException as error:
                self._count(what, error)
                raise
            return answer

        return ask

    def _awaited(self, verb: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def ask(what: What, *rest: object) -> T:
            kind, seconds = self._fate(what, rest)
            try:
                if kind in ("drop request", "cut before"):
                    raise _no_answer()  # noqa: TRY301 - counted below, as the real ones are
                if kind == "hold request":
                    self._later_here(seconds, lambda: verb(what, *rest))
                    raise _no_answer()  # noqa: TRY301 - as above
                answer = await verb(what, *rest)
                if kind == "duplicate":
                    self._later_here(seconds, lambda: verb(what, *rest))
                if kind == "hold reply":
                    await asyncio.sleep(seconds / 4)
                if kind in ("drop reply", "cut after"):
                    raise _no_answer()  # noqa: TRY301 - as above
            except BaseException as error:
                self._count(what, error)
                raise
            return answer

        return ask

    def _fate(self, what: What, rest: tuple[object, ...]) -> Passage | tuple[str, float]:
        self.requests += 1
        passage = self._decide(_as_bytes(what, rest)) if self._decide else None
        if passage is None or passage.kind == "pass":
            return "pass", 0.0
        self.faults += 1
        self._told(_as_bytes(what, rest), passage)
        return passage

    def _count(self, what: What, error: BaseException) -> None:
        if not isinstance(error, StoreError) or isinstance(error, StoreUnavailable):
            for key in [what] if isinstance(what, str) else [each.key for each in what]:
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


def _as_bytes(what: What, rest: tuple[object, ...]) -> bytes:
    """Give the keys and values of a request, for who decides and for who tells."""
    if isinstance(what, str):
        return b"%b %b" % (what.encode(), rest[0] if rest and isinstance(rest[0], bytes) else b"")
    return b" ".join(b"%b %b" % (each.key.encode(), each.value if isinstance(each, Put) else b"") for each in what)


_under_way: set[asyncio.Future[None]] = set()


def _no_answer() -> StoreUnavailable:
    return StoreUnavailable("no answer, by torture")
