"""The law of this file: a lease is renewed at a third of its length, and nobody pays for it who lets go before.

Blocking stores have one background thread each, so that a store that hangs starves no other's renewals.  It starts with
the first hold and ends when it comes by and finds none.  It sleeps until the earliest hold is due, so an acquire wakes
it only to tell of one that is due before that.  Claims are known weakly: a hold that everybody has forgotten is not
renewed for ever.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Final

from caslock import clock, core

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.claim import Claim
    from caslock.request import World

SLACK: Final = 1 / 30
"""Claims that come due within this part of a lease are visited together."""


class Keeper:
    """The thread that renews the holds on one blocking store."""

    _of_store: dict[int, Keeper] = {}  # noqa: RUF012 - shared on purpose; `_guard` guards it
    _guard = threading.Lock()

    def __init__(self, store: object, run: Callable[[Coroutine[object, object, float | None]], float | None]) -> None:
        """Keep the holds on `store`, running the core by `run`."""
        self._store = store  # so that its id is not used again while we stand in the dictionary
        self._run = run
        self._claims: dict[int, tuple[weakref.ref[Claim], World, float]] = {}
        self._wakes = 0.0
        self._alarm = threading.Condition(self._guard)

    @classmethod
    def watch(
        cls, claim: Claim, world: World, store: object, run: Callable[[Coroutine[object, object, float | None]], float | None]
    ) -> None:
        """Visit `claim` when it is due."""
        due = _due(claim)
        with cls._guard:
            keeper = cls._of_store.get(id(store))
            if keeper is None:
                keeper = cls(store, run)
                threading.Thread(target=keeper._keep, name="caslock-keeper", daemon=True).start()
                cls._of_store[id(store)] = keeper
            keeper._claims[id(claim)] = (weakref.ref(claim), world, due)
            if due < keeper._wakes:
                keeper._alarm.notify()

    @classmethod
    def unwatch(cls, claim: Claim, store: object) -> None:
        """Forget a claim that was released."""
        with cls._guard:
            keeper = cls._of_store.get(id(store))
            if keeper is not None:
                keeper._claims.pop(id(claim), None)

    def _keep(self) -> None:
        while True:
            with self._guard:
                self._claims = {key: kept for key, kept in self._claims.items() if kept[0]() is not None}
                if not self._claims:
                    del self._of_store[id(self._store)]
                    return
                now = clock.now()
                self._wakes = min(due for _, _, due in self._claims.values())
                if self._wakes > now:
                    self._alarm.wait(min(self._wakes - now, threading.TIMEOUT_MAX))
                    continue
                ready = []
                for reference, world, due in self._claims.values():
                    claim = reference()
                    if claim is not None and due <= now + claim.ttl * SLACK:
                        ready.append((claim, world))
            for claim, world in ready:
                self._visit(claim, world)
            del ready, claim  # weakly known again

    def _visit(self, claim: Claim, world: World) -> None:
        try:
            again = self._run(core.keep(world, claim))
        except Exception:  # noqa: BLE001 - a callback or store with a bug must not end the renewals of all the others
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            again = None if claim.lost else clock.now() + claim.ttl / 12
        with self._guard:
            if again is None:
                self._claims.pop(id(claim), None)
            elif id(claim) in self._claims:
                self._claims[id(claim)] = (*self._claims[id(claim)][:2], again)


def _due(claim: Claim) -> float:
    return min(claim.due, claim.deadline) if claim.auto_renew else claim.deadline


def _forget_parent() -> None:
    """A forked child has none of its parent's threads, and keeps none of its holds."""
    Keeper._guard = threading.Lock()
    Keeper._of_store = {}


os.register_at_fork(after_in_child=_forget_parent)
