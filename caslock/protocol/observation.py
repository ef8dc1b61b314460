"""The end of a lease at a store that does not end leases by itself (``traits.expires`` is False).

Whoever sees one version of an entry unchanged for the whole ttl of its record, on its own clock, may write over it.
The holder counts its ttl from before the write that made this version, so it has stopped believing by then; if it has
renewed the lease, the version is another one, and the conditional write is refused.  No wall clock is ever compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from caslock.protocol.record import observed_in
from caslock.protocol.sightings import Sightings
from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.store import AsyncIdentifiedStore, AsyncStore, Entry, Traits

_SEEN: Final = Sightings()
"""The versions of leases, by the location of the store and the key."""


class ObservingStore:
    """A store without expiry, as the protocol sees it: a put that expects absence takes an ended lease as absent.

    Each verb is one request still, and its answer is the store's own.  So the protocol takes a put without an answer
    for one that may be applied whenever nothing is there, although it can replace only the version that was seen:
    this keeps out more than it has to.
    """

    def __init__(self, store: AsyncStore, now: Callable[[], float], seen: Sightings | None = None) -> None:
        """Continue with what this process has `seen` at the same place, also with Lock objects that are gone."""
        self._store = store
        self._now = now
        self._seen = _SEEN if seen is None else seen
        self.traits: Traits = store.traits
        self.get: Callable[[str], Awaitable[Entry | None]] = store.get
        self.invalidate: Callable[[str, int], Awaitable[Entry | None]] = store.invalidate

    async def identify(self) -> str | None:
        """See `IdentifiedStore`."""
        return await cast("AsyncIdentifiedStore", self._store).identify()

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write; in place of a lease that has been seen to end, if `version` is `ABSENT`."""
        if version != ABSENT:
            return await self._store.put_if_version(key, value, version, ttl)
        seen = self._seen.get((self.traits.location, key))
        if seen is not None and self._now() >= seen.over:
            version = cast("int", seen.mark)
        entry = await self._store.put_if_version(key, value, version, ttl)
        self._note(key, None if entry is not None and entry.value == value else entry)
        return entry

    def _note(self, key: str, entry: Entry | None) -> None:
        """Note what another owner has there now."""
        where, (version, record) = (self.traits.location, key), observed_in(entry)
        if record is None or record.free or record.foreign:  # anybody may write over a free record at once
            self._seen.forget(where)
            return
        now = self._now()
        self._seen.see(where, version, now + record.ttl, now)
