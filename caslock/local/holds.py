"""The holds of several keys as one: lost together, and released in reverse, all even when one release raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from caslock.errors import LockLost, StoreError, StoreUnavailable, with_notes
from caslock.local.hold import Held, Holding
from caslock.protocol import batch
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import last_start_of_three

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Observed

H_co = TypeVar("H_co", bound=Holding, covariant=True)


class Holds(Held, Generic[H_co]):
    """The holds of several keys, which are taken, lost and released together."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Sequence[H_co]) -> None:
        """Take them in the order in which they were acquired."""
        self._holds = tuple(holds)

    def __repr__(self) -> str:
        """Say which keys, and for how long."""
        keys = ", ".join(repr(hold.key) for hold in self)
        return f"<{type(self).__name__} of {keys}: {self.remaining():.3f} s remaining>"

    def __iter__(self) -> Iterator[H_co]:
        """Iterate over the holds in the order in which they were acquired."""
        return iter(self._holds)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._holds)

    def __contains__(self, key: object) -> bool:
        """Whether `key` is one of the keys, as for ``holds[key]``, or one of the holds, which iteration yields."""
        return any(key == hold.key or key is hold for hold in self._holds)

    def __getitem__(self, key: str) -> H_co:
        """Return the hold of `key`; raises KeyError if there is none, or one at each of several stores."""
        found = [hold for hold in self._holds if hold.key == key]
        if len(found) != 1:
            raise KeyError(f"{key!r} is held at {len(found)} stores: iterate over the holds" if found else key)
        return found[0]

    @property
    def _each(self) -> Sequence[H_co]:
        return self._holds

    @property
    def fences(self) -> dict[str, int]:
        """The fencing number of each key; raises KeyError if one key is held at several stores."""
        return {hold.key: self[hold.key].fence for hold in self._holds}

    @property
    def lost(self) -> bool:
        """Whether any lease is over: the loss of one counts as the loss of all."""
        return any(hold.lost for hold in self._holds)

    def remaining(self) -> float:
        """Seconds for which all leases are certain, if nothing renews them."""
        return min(hold.remaining() for hold in self._holds)

    def ensure_held(self) -> None:
        """Raise `LockLost` if any lease has ended, `NotHeld` after the release; sends no request."""
        for hold in self._holds:
            hold.ensure_held()

    async def _renewed(self, ttl: float | None) -> None:
        """Extend every hold."""
        for hold in self._holds:
            await hold._renewed(ttl)

    async def _released(self, limit: float = NEVER) -> None:
        """Release every hold in reverse, all of them even when one release raises; then raise the first error.

        Where the store can, the releases that are removals are sent as one request.  After a failure, no request begins
        at or after `limit`, nor after two request timeouts, which is one bound for all.
        """
        for runtime in {hold._state.runtime for hold in self._holds}:
            limit = min(limit, last_start_of_three(runtime, runtime.now()))
        removed: dict[Attempt, Observed] = {}
        await self._remove_together(removed)
        failure: Exception | None = None
        hangs = False
        for hold in reversed(self._holds):
            if not hold._is_open:
                continue
            try:
                if hangs and hold._attempt.levels == [hold] and hold._state.runtime.now() >= limit:
                    hold._state.release_later(hold)  # it is no longer renewed, so it expires
                    raise being_released(hold)  # noqa: TRY301 - as its own release would
                await hold._released(limit, removed.get(hold._attempt))
            except Exception as error:  # noqa: BLE001 - the others are released first
                hangs = hangs or any(isinstance(each, StoreUnavailable) for each in (error, error.__cause__))
                failure = _worse(failure, error)
        if failure is not None:
            raise failure

    async def _remove_together(self, removed: dict[Attempt, Observed]) -> None:
        """Release as one request what can be, and add the answers to `removed`."""
        leaving = [hold for hold in reversed(self._holds) if hold._state.leaves_key(hold)]
        if len(leaving) > 1 and all(hold._state.runtime is leaving[0]._state.runtime for hold in leaving):
            removed |= await batch.remove_together(leaving[0]._state.runtime, [hold._attempt for hold in leaving])


def _worse(failure: Exception | None, error: Exception) -> Exception:
    """Return the one to raise, with the other as its note.

    A loss is worse than no answer, after which release can be called again.
    """
    if failure is None:
        return error
    if isinstance(error, LockLost) and isinstance(failure, StoreError):
        failure, error = error, failure
    failure.add_note(with_notes(error))
    return failure


def being_released(hold: Holding) -> StoreUnavailable:
    """Return the error of a release that is left to the background."""
    return StoreUnavailable(
        f"{hold._state.runtime.store.traits.location} stopped answering: lock {hold.key!r} is released in the "
        f"background, and expires within {hold._attempt.lease.ttl:g} s",
        sent=False,
    )
