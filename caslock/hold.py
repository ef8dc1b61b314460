"""The law of this file: a hold tells what it may believe without asking, and is of no use to a forked child."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from caslock import core
from caslock.checks import seconds
from caslock.errors import NotHeld, StoreError
from caslock.process import generation

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from caslock.claim import Claim
    from caslock.request import World


class Holder(Protocol):
    """What a hold needs of the state of its Lock."""

    @property
    def world(self) -> World:
        """Where it asks for the time."""
        ...

    @property
    def generation(self) -> int:
        """Of the process whose Lock it is now: a forked child takes it over when it first uses it."""
        ...

    async def release(self, hold: Holding) -> None:
        """Release one hold."""
        ...

    async def renew(self, claim: Claim, ttl: float) -> None:
        """Replace the lease."""
        ...

    def leaves_key(self, hold: Holding) -> bool:
        """Whether the release of `hold` removes the record, and nobody in this process waits for it."""
        ...


class Holding:
    """One successful acquire: what the blocking and the asyncio hold have in common."""

    __slots__ = ("_state", "claim", "generation")

    def __init__(self, state: Holder, claim: Claim) -> None:
        """Begin as held."""
        self._state = state
        self.claim = claim
        self.generation = state.generation

    def __repr__(self) -> str:
        """Say which key, and for how long."""
        state = "released" if not self.is_open else "lost" if self.lost else f"{self.remaining():.3g} s remaining"
        return f"<{type(self).__name__} of {self.key!r}: {state}>"

    @property
    def is_open(self) -> bool:
        """Whether it is still to be released."""
        return self in self.claim.levels

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy: this process never held it, and its release frees nothing."""
        return self.generation != generation()

    @property
    def key(self) -> str:
        """The key that is held."""
        return self.claim.key

    @property
    def owner(self) -> str:
        """The owner, ``host:uuid`` unless it was given."""
        return self.claim.owner

    @property
    def fence(self) -> int:
        """The fencing number: larger than that of every earlier tenure of the key (Chubby calls it sequencer).

        Hand it to the protected resource, which must refuse any smaller one than it has seen.  Raises `StoreError`
        where the store can't promise that (``traits.fences`` is False).
        """
        traits = self._state.world.store.traits
        if not traits.fences:
            message = f"{traits.place} can't promise growing versions, so it has no fence to give"
            raise StoreError(message)
        return self.claim.fence

    @property
    def lost(self) -> bool:
        """Whether the lease is over, or was found to be taken away; after a release it tells nothing new."""
        return bool(self.claim.lost) or self.inherited or self._state.world.now() >= self.claim.deadline

    def remaining(self) -> float:
        """Seconds for which the lease is certain, if nothing renews it; 0 when it is over, or a release has begun."""
        if self.lost or self.claim.ending or not self.is_open:
            return 0.0
        return max(0.0, self.claim.deadline - self._state.world.now())

    def ensure_held(self) -> None:
        """Raise `LockLost` if the lease is over, `NotHeld` after the release; no request is made."""
        self._mine()
        core.check(self._state.world, self.claim)

    async def renewed(self, ttl: float | None) -> None:
        """See `extend`."""
        self._mine()
        ttl = self.claim.ttl if ttl is None else seconds("ttl", ttl)
        await self._state.renew(self.claim, ttl)

    def released(self) -> Coroutine[object, object, None]:
        """See `release`."""
        return self._state.release(self)

    @property
    def world(self) -> World:
        """Where it is held."""
        return self._state.world

    @property
    def leaves_key(self) -> bool:
        """Whether its release removes the record, and nobody in this process waits for it."""
        return self._state.leaves_key(self)

    def _mine(self) -> None:
        if not self.is_open or self.inherited or self.claim.ending:
            what = "was released" if not self.is_open else "is a parent's" if self.inherited else "is being released"
            message = f"this hold of {self.key!r} {what}"
            raise NotHeld(message)
