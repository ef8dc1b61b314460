"""What the holds of both APIs have in common.  Reading a hold makes no request."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn, Self, cast

from caslock.errors import NotHeld, StoreError
from caslock.local.settings import check_lease
from caslock.process.fork import generation
from caslock.protocol import renew
from caslock.protocol.lease import NEVER

if sys.flags.dev_mode:
    # `Holding.__del__` imports this to show its warning.  Before Python 3.12, an import in a `__del__` that the garbage
    # collector calls during another import makes the other one fail.
    import tracemalloc  # noqa: F401 - see above

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from caslock.local.lock_state import LockState
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.exchange import Sent
    from caslock.protocol.record import Observed
    from caslock.protocol.shared_attempt import SharedAttempt


def slot_of(hold: Holding) -> int:
    """Return the slot of a hold of a semaphore."""
    return cast("SharedAttempt", hold._attempt).slot  # noqa: SLF001 - of a hold


class Held(ABC):
    """What the holds of both APIs have in common, of one key and of several."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: each hold is released once."""
        message = f"{type(self).__name__} can't be copied or pickled: pass its fence instead"
        raise TypeError(message)

    @property
    @abstractmethod
    def _each(self) -> Sequence[Holding]:
        """The hold of each key."""

    @property
    def _handed_over(self) -> bool:
        """Whether it was handed over: there is nothing to release then."""
        return any(hold._attempt.handed_over for hold in self._each)  # noqa: SLF001 - of a hold

    @abstractmethod
    def ensure_held(self) -> None:
        """See `Holding.ensure_held`."""

    @abstractmethod
    def _renewed(self, ttl: float | None) -> Coroutine[object, object, None]:
        """Extend the leases."""

    @abstractmethod
    def _released(self, limit: float = NEVER) -> Coroutine[object, object, None]:
        """Release; after a failure, no request begins at or after `limit`."""


class Holding(Held):
    """One successful acquire: what the blocking and the asyncio hold have in common."""

    __slots__ = ("__weakref__", "_attempt", "_generation", "_state")

    def __init__(self, state: LockState, attempt: Attempt) -> None:
        self._state = state
        self._attempt = attempt
        self._generation = state.generation

    if sys.flags.dev_mode:  # or else each hold would pay for it

        def __del__(self) -> None:
            """Warn of a hold that nobody can release any more, as Python does of an open file."""
            if self._is_open and not self.lost:
                message = f"unreleased {self!r}: its key stays taken until its lease ends"
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        """Say which key, and for how long."""
        state = "released" if not self._is_open else "lost" if self.lost else f"{self.remaining():.3f} s remaining"
        return f"<{type(self).__name__} of {self.key!r}: {state}>"

    @property
    def _each(self) -> tuple[Self]:
        return (self,)

    @property
    def _is_open(self) -> bool:
        """Whether it is still to be released."""
        return self in self._attempt.levels

    @property
    def _inherited(self) -> bool:
        """Whether this is a forked child's copy: this process never held it, and its release frees nothing."""
        return self._generation != generation()

    @property
    def key(self) -> str:
        """The key that is held."""
        return self._attempt.key

    @property
    def owner(self) -> str:
        """The owner, ``host:uuid`` unless it was given."""
        return self._attempt.owner

    @property
    def fence(self) -> int:
        """The fencing number: larger than that of every earlier tenure of the key (a "sequencer" in Chubby).

        Pass it to the protected resource, which must reject numbers smaller than the largest it has seen.  Raises
        `StoreError` if the store has no fencing numbers (``traits.fences`` is False).
        """
        traits = self._state.runtime.store.traits
        if not traits.fences:
            message = f"{traits.location} has no fencing numbers (traits.fences is False)"
            raise StoreError(message)
        return self._attempt.lease.fence

    @property
    def lost(self) -> bool:
        """Whether the lease has ended or is known to be taken away.  After a release it says nothing."""
        lease = self._attempt.lease
        return bool(lease.lost) or self._inherited or self._state.runtime.now() >= lease.deadline

    def remaining(self) -> float:
        """Seconds for which the lease is certain, if nothing renews it; 0 if it has ended, or a release has begun."""
        if self.lost or self._attempt.ending or not self._is_open:
            return 0.0
        return max(0.0, self._attempt.lease.deadline - self._state.runtime.now())

    def ensure_held(self) -> None:
        """Raise `LockLost` if the lease has ended, `NotHeld` after the release; sends no request."""
        self._mine()
        renew.check(self._attempt, self._state.runtime.now())

    async def _renewed(self, ttl: float | None) -> None:
        """See `extend`."""
        self._mine()
        await self._state.renew(self._attempt, None if ttl is None else check_lease("ttl", ttl))

    def _released(
        self, limit: float = NEVER, removed: Observed | Sent | None = None
    ) -> Coroutine[object, object, None]:
        """See `LockState.release`."""
        return self._state.release(self, limit, removed)

    def _keep_nothing(self) -> None:
        """Let its release free the key whatever ``min_hold`` is, as its acquire has failed after all."""
        if self._attempt.levels == [self]:
            self._attempt.min_hold = 0.0

    def _mine(self) -> None:
        if not self._is_open or self._inherited or self._attempt.ending:
            why = (
                "belongs to the parent process"
                if self._inherited
                else "is being released, or its release got no answer"
            )
            raise self._attempt.concerns(NotHeld(f"this hold of {self.key!r} {why if self._is_open else self._ended}"))

    @property
    def _ended(self) -> str:
        """Say how it has ended."""
        return "was handed over" if self._attempt.handed_over else "has already been released"
