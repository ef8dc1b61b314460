"""What the elections of both APIs have in common."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from caslock.local.changes import Changes, Looks
from caslock.local.hold import Holding
from caslock.local.lock import CommonSettings, LockObject, SingleLock, with_defaults
from caslock.process.fork import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.local.shared import Shared
    from caslock.protocol.record import Record

S = TypeVar("S")
H = TypeVar("H", bound=Holding)
L = TypeVar("L", bound=SingleLock[Any, Any])


class Candidates(LockObject, Generic[S, H, L]):
    """The candidates of one object: its threads or tasks."""

    _lock_type: type[L]

    def __init__(
        self, store: S, key: str, *, timeout: float | None = None, **settings: Unpack[CommonSettings[H]]
    ) -> None:
        """Create the election; no request is sent.

        Args:
            store: where the key lives.
            key: 1 to 1,024 characters.  A `Lock` of the same key is a candidate, too.
            timeout: seconds for which `lead` waits.
            settings: ``ttl``, ``auto_renew``, ``max_hold``, ``on_lost``, ``note``, ``retry`` and ``poll``, as for
                `Lock`.  If a leader dies, nobody leads for one ``ttl``.  With ``auto_renew=False``, the leader has to
                call ``term.extend()``.  ``note`` is what a leader publishes, such as its address.  There is no
                ``owner`` (with a shared one, several would lead), ``min_hold`` or ``linger``.

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        make = cast("Callable[..., L]", self._lock_type)
        self._lock: L = make(store, key, timeout=timeout, **with_defaults(settings))
        shared = cast("Shared", self._lock._state.runtime.shared)
        self._looks = PerProcess(partial(shared.of_key, key, Looks))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} at {self._lock._state.runtime.store.traits.location}>"

    @property
    def key(self) -> str:
        """The key."""
        return self._lock.key

    @property
    def owner(self) -> str:
        """The owner in the record of a leader, if it is one of this object."""
        return self._lock.owner

    async def _leader(self) -> Record | None:
        holder = await self._lock._state.holder()
        return None if holder is None or holder.kept else holder

    def _changes(self) -> Changes:
        return Changes(self._lock._state, self._looks.here)
