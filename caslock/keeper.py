"""The law of this file: a lease is renewed at a third of its length, and nobody pays for it who lets go before.

Blocking stores have one background thread each, so that a store that hangs starves no other's renewals.  It starts with
the first hold and ends when it comes by twice and finds none.  It sleeps until the earliest hold is due, so an acquire
wakes it only to tell of one that is due before that.  Claims are known weakly: a hold that everybody has forgotten is
not renewed for ever.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Final, Protocol

from caslock import clock, core
from caslock.claim import NEVER

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from caslock.claim import Claim
    from caslock.request import World

    class Runner(World, Protocol):
        """A world whose coroutines anybody may run to their end."""

        keeper: Keeper | None

        def run(self, coroutine: Coroutine[object, object, float | None], /) -> float | None:
            """Run one."""


LINGER: Final = 1.0
"""Seconds after which a keeper that has found no hold looks again: who locks again and again starts one thread."""

_guard = threading.RLock()  # a signal handler may use a lock while its thread is in here
_keepers: dict[int, Keeper] = {}  # by the id of their store


def watch(world: Runner, claim: Claim) -> None:
    """Have the keeper of the world's store visit `claim` when it is due."""
    keeper = world.keeper
    if keeper is not None:
        # The sunny path takes no guard: the keeper writes `wakes` before it reads `claims`, and we the other way round.
        keeper.claims[id(claim)] = (weakref.ref(claim), world)
        if claim.due >= keeper.wakes:
            return
    with _guard:
        store = world.home
        keeper = _keepers.get(id(store))
        if keeper is None:
            keeper = Keeper(store)
            threading.Thread(target=keeper.keep, name="caslock-keeper", daemon=True).start()
            _keepers[id(store)] = keeper
        world.keeper = keeper
        keeper.claims[id(claim)] = (weakref.ref(claim), world)
        if claim.due < keeper.wakes:
            keeper.alarm.notify()


def unwatch(world: Runner, claim: Claim) -> None:
    """Spare the keeper a claim that was released."""
    keeper = world.keeper
    if keeper is not None:
        keeper.claims.pop(id(claim), None)


class Keeper:
    """What the thread of one blocking store does; `_guard` guards its beginning, its sleep and its end."""

    def __init__(self, store: object) -> None:
        """Keep the holds on `store`."""
        self.claims: dict[int, tuple[weakref.ref[Claim], Runner]] = {}
        self.wakes = NEVER  # whoever is due before that has to wake it
        self.alarm = threading.Condition(_guard)
        self._store = store  # so that its id is not used again while we stand in the dictionary

    def keep(self) -> None:
        """Visit claims as they come due, until there are none."""
        idle = False
        while True:
            with _guard:
                self.wakes = NEVER
                empty = not self._forget_dead()
                if empty and idle:
                    if _keepers.get(id(self._store)) is self:  # an interrupt may have struck before it stood there
                        del _keepers[id(self._store)]
                    return
                idle = empty
                now = clock.now()
                ready, wakes = self._ready(now)
                if not ready:
                    self.wakes = min(wakes, now + LINGER) if empty else wakes
                    self.alarm.wait(min(self.wakes - now, threading.TIMEOUT_MAX))
                    continue
                self.wakes = wakes
            while ready:
                self._visit(*ready.pop())  # weakly known again, once it is visited

    def _forget_dead(self) -> bool:
        """Forget what everybody has forgotten; whether there is anything left."""
        for key, (claim, _) in list(self.claims.items()):
            if claim() is None:
                self.claims.pop(key, None)
        return bool(self.claims)

    def _ready(self, now: float) -> tuple[list[tuple[Claim, Runner]], float]:
        """Give what is due, and when the next one is."""
        ready: list[tuple[Claim, Runner]] = []
        wakes = NEVER
        for reference, world in list(self.claims.values()):
            claim = reference()
            due = NEVER if claim is None else claim.due
            if claim is not None and due <= now:
                ready.append((claim, world))
            wakes = min(wakes, due)
        return ready, wakes

    def _visit(self, claim: Claim, world: Runner) -> None:
        try:
            once_more = world.run(core.keep(world, claim)) is not None
        except BaseException:  # noqa: BLE001 - a callback that raises, even SystemExit, ends nobody else's renewals
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            once_more = not claim.told
        if not once_more:
            self.claims.pop(id(claim), None)


def _forget_parent() -> None:
    """A forked child has none of its parent's threads, and keeps none of its holds."""
    global _guard, _keepers  # noqa: PLW0603 - the guard may be locked in the parent at this moment
    for keeper in _keepers.values():
        keeper.wakes = NEVER  # so nobody relies on it
    _guard = threading.RLock()
    _keepers = {}


os.register_at_fork(after_in_child=_forget_parent)
