"""What the elections of both APIs have in common: how they are made, and what they refuse."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Never, NoReturn, TypeVar, cast

from caslock.local.changes import Changes, Looks
from caslock.local.lock import SingleLock
from caslock.local.settings import no_such_setting, not_copied
from caslock.process.fork import PerProcess
from caslock.protocol.attempt import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenacity.wait import WaitBaseT

    from caslock.local.hold import Holding
    from caslock.local.shared import Shared
    from caslock.protocol.record import Record

S = TypeVar("S")
H = TypeVar("H")
L = TypeVar("L", bound=SingleLock[Any, Any])

REFUSED: Final = {
    "owner": "locks that share an owner hold the key together, so several would lead. Write note= to say who leads",
    "identifier": "write note=",
    "min_hold": "a leader that resigns hands over at once",
    "linger": "a leader that resigns hands over at once",
}
"""Settings of `Lock` that an election does not have (`identifier` is kazoo's), and why."""


class Candidates(Generic[S, H, L]):
    """The candidates of one object: its threads or tasks."""

    _lock_type: type[L]

    def __init__(
        self,
        store: S,
        key: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = None,
        auto_renew: bool = True,
        max_hold: float | None = None,
        on_lost: Callable[[H], object] | None = None,
        note: str = "",
        retry: Retry | tuple[int, int] = Retry(),
        poll: WaitBaseT | None = None,
        **refused: Never,
    ) -> None:
        """Create the election; no request is sent.  The settings are those of `Lock`, and mean the same.

        Args:
            store: where the key lives.
            key: 1 to 1,024 characters.  A `Lock` of the same key is a candidate, too.
            ttl: seconds the lease of a leader lasts unless it is renewed: if a leader dies, nobody leads until then.
            timeout: seconds for which `lead` waits.
            auto_renew: renew the lease in the background.  If False, the leader calls `extend` of its term.
            max_hold: seconds after which a term ends, renewed or not.
            on_lost: called once with a term that is lost.
            note: what a leader publishes, such as its address.
            retry: how many times an unanswered get and an unanswered put are repeated.
            poll: pauses between attempts to lead.
            refused: nothing else: neither `owner`, `min_hold` nor `linger`.  The error says why.

        Raises:
            ValueError, TypeError: an argument is invalid.

        """
        for name in refused:
            if name in REFUSED:
                message = f"an election has no {name}: {REFUSED[name]}"
                raise TypeError(message)
            raise no_such_setting(refused)
        given = {"ttl": ttl, "timeout": timeout, "auto_renew": auto_renew, "max_hold": max_hold, "on_lost": on_lost}
        make = cast("Callable[..., L]", self._lock_type)
        self._lock: L = make(store, key, **given, note=note, retry=retry, poll=poll)
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
