"""What the elections of both APIs have in common: how they are made, and what they refuse."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeVar, Unpack, cast

from caslock.local.changes import Changes, Looks
from caslock.local.hold import Holding
from caslock.local.lock import CommonSettings, Shown, SingleLock
from caslock.local.settings import not_copied
from caslock.process.fork import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from caslock.local.shared import Shared
    from caslock.protocol.record import Record

S = TypeVar("S")
H = TypeVar("H", bound=Holding)
L = TypeVar("L", bound=SingleLock[Any, Any])

REFUSED: Final = {
    "owner": "locks that share an owner hold the key together, so several would lead. Write note= to say who leads",
    "identifier": "write note=",
    "min_hold": "a leader that resigns hands over at once",
    "linger": "a leader that resigns hands over at once",
}
"""CommonSettings of `Lock` that an election does not have (`identifier` is kazoo's), and why."""


class Candidates(Generic[S, H, L]):
    """The candidates of one object: its threads or tasks."""

    _lock_type: type[L]
    __signature__: ClassVar[Shown] = Shown()

    def __init__(
        self,
        store: S,
        key: str,
        *,
        timeout: float | None = None,
        **settings: Unpack[CommonSettings[H]],
    ) -> None:
        """Create the election; no request is sent.

        Args:
            store: where the key lives.
            key: 1 to 1,024 characters.  A `Lock` of the same key is a candidate, too.
            timeout: seconds for which `lead` waits.
            settings: as for `Semaphore`.  If a leader dies, nobody leads for one ``ttl``; with ``auto_renew=False`` it
                calls `extend` of its term.  ``note`` is what a leader publishes, such as its address.

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        for name in REFUSED.keys() & settings.keys():
            message = f"an election has no {name}: {REFUSED[name]}"
            raise TypeError(message)
        make = cast("Callable[..., L]", self._lock_type)
        self._lock: L = make(store, key, timeout=timeout, **settings)
        shared = cast("Shared", self._lock._state.runtime.shared)
        self._looks = PerProcess(partial(shared.of_key, key, Looks))

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, as a lock does."""
        raise not_copied(self)

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


def refuse_nested(key: str, me: object, blocks: Iterable[tuple[Holding, object]]) -> None:
    """Raise RuntimeError if one of the open `blocks` is of `me`, and not one that a forked child has inherited."""
    if any(by is me and not hold._inherited for hold, by in blocks):
        message = f"this thread or task leads {key!r} already: leave that block before lead() is entered again"
        raise RuntimeError(message)
