"""Injects faults into the verbs of a store object, where no proxy can stand before its server, and counts requests.

A store keeps its type: only the verbs of this one object are replaced, the optional ones among them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import Put
from caslock.testing.drive import done, is_async
from caslock.testing.proxy import PASS
from caslock.verify.apis import Asyncio, Blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import AsyncStore, Removal, Store
    from caslock.testing.proxy import Passage
    from caslock.verify.apis import Api

    Subject: TypeAlias = str | Sequence[Put | Removal]
    """A key, or several requests as one."""

    Decide: TypeAlias = Callable[[bytes], Passage]

VERBS: Final = ("get", "put_if_version", "invalidate", "put_when_absent", "wait_while", "put_many", "invalidate_many")


class FaultInjector:
    """What has been asked of the stores of one process, by key, and what becomes of it."""

    def __init__(self, decide: Decide | None, told: Callable[[bytes, Passage], object]) -> None:
        """Decide on each request by `decide` (None: all pass), and tell of each fault."""
        self.requests: int = 0
        self.faults: int = 0
        self.unanswered: Counter[str] = Counter()
        """Requests without an answer, by key."""
        self._decide, self._told = decide, told

    def inject(self, store: Store | AsyncStore, *, calm: bool = False) -> None:
        """Replace the verbs of a store; where they can't be, requests are neither counted nor disturbed.

        The requests of a `calm` store are counted only.
        """
        api: Api = Asyncio() if is_async(store) else Blocking()  # a blocking store serves asyncio from worker threads
        for verb in VERBS:
            plain = getattr(store, verb, None)
            if plain is not None:
                with contextlib.suppress(AttributeError):
                    setattr(store, verb, self._replaced(plain, None if calm else self._decide, api))

    def _replaced(self, verb: Callable[..., object], decide: Decide | None, api: Api) -> Callable[..., object]:
        async def ask(subject: Subject, *rest: object) -> object:
            try:
                return await _carry(api, lambda: verb(subject, *rest), self._fate(decide, subject, rest))
            except BaseException as error:
                if not isinstance(error, StoreError) or isinstance(error, StoreUnavailable):
                    self.unanswered.update([subject] if isinstance(subject, str) else [each.key for each in subject])
                raise

        return (lambda *arguments: Blocking.run(ask(*arguments))) if api.threads else ask

    def _fate(self, decide: Decide | None, subject: Subject, rest: tuple[object, ...]) -> Passage:
        self.requests += 1
        passage = decide(_as_bytes(subject, rest)) if decide else PASS
        if passage.kind != "pass":
            self.faults += 1
            self._told(_as_bytes(subject, rest), passage)
        return passage


async def _carry(api: Api, request: Callable[[], object], fate: Passage) -> object:
    """Make a request, which loses its way as `fate` says."""
    kind, seconds = fate
    if kind == "hold request":
        api.later(seconds, lambda: _unheard(request))
    if kind in ("drop request", "cut before", "hold request"):
        raise StoreUnavailable("no answer: an injected fault")
    answer = await done(request())
    if kind == "duplicate":
        api.later(seconds, lambda: _unheard(request))
    if kind == "hold reply":
        await api.sleep(seconds / 4)
    if kind in ("drop reply", "cut after"):
        raise StoreUnavailable("no answer: an injected fault")
    return answer


async def _unheard(request: Callable[[], object]) -> None:
    """Make a request whose answer nobody waits for."""
    with contextlib.suppress(StoreError):
        await done(request())


def _as_bytes(subject: Subject, rest: tuple[object, ...]) -> bytes:
    """Give the keys and values of a request."""
    if isinstance(subject, str):
        return b"%b %b" % (subject.encode(), rest[0] if rest and isinstance(rest[0], bytes) else b"")
    return b" ".join(b"%b %b" % (each.key.encode(), each.value if isinstance(each, Put) else b"") for each in subject)
