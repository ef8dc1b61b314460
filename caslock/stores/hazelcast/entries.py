"""How an entry is kept, and the verbs.

An entry is a text under the key: a line with its version and how long it lasts, and then the value.  Of all that a
client can ask of a map, only ``put_if_absent`` both compares and takes a ttl.  ``replace_if_same`` takes none: what it
writes stays for good.  So there are two kinds of entries:

- One that was created has a ttl of its own, and Hazelcast removes it.
- One that was written over has a *lease*: another entry of the map, which has the ttl, and whose key is the version (a
  number, where the keys of locks are texts).  The lease is made before the entry refers to it, and never written again.
  So if it is not there, its time is over.  Whoever sees that may remove the entry by ``remove_if_same``, and so only
  one of them does.

No two texts are alike, because a version is a random number of 62 bits: to compare texts is to compare versions.

Hazelcast cuts the moment at which an entry ends to a second, so every ttl gets a second more than was asked for.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.errors import StoreError, StoreUnavailable
from caslock.options import check_key, check_put
from caslock.store import ABSENT, Entry

if TYPE_CHECKING:
    from caslock.stores.hazelcast.session import Session

_HEAD: Final = re.compile(r"caslock ([1-9][0-9]{0,18}) (ttl|lease)\n")
_TICK: Final = 1.001  # seconds; of a ttl, the client keeps milliseconds
_LONGEST: Final = 10**9  # seconds
_KNOWN: Final = 10_000  # entries that are remembered


class Found(NamedTuple):
    """What is in the map."""

    text: str
    entry: Entry
    leased: bool


class Known(NamedTuple):
    """What was written, and until when it is certainly there if nobody has changed it."""

    found: Found
    ends: float


class Entries:
    """The verbs, each by the moment `ends`."""

    def __init__(self, session: Session, location: str) -> None:
        """Begin with nothing known."""
        self._session, self._location = session, location
        self._known: dict[str, Known] = {}

    async def get(self, key: str, ends: float) -> Entry | None:
        """Read an entry."""
        check_key(key)
        found = await self._look(key, ends)
        return found and found.entry

    async def put(self, key: str, value: bytes, version: int, ttl: float, ends: float) -> Entry | None:
        """Write an entry, if the one with that version is there."""
        check_key(key)
        new = _written(value, ttl, leased=version != ABSENT)
        if version == ABSENT:
            return await self._create(key, new, ttl, ends)
        found = await self._at(key, version, ends)
        if found is None or found.entry.version != version:
            return found and found.entry
        begun = monotonic()
        await self._session.ask(ends, "set", new.entry.version, key, ttl + _TICK)
        if await self._session.ask(ends, "replace_if_same", key, found.text, new.text):
            return self._remember(key, new, begun + ttl)
        return await self._afterwards(key, ends)

    async def remove(self, key: str, version: int, ends: float) -> Entry | None:
        """Remove an entry, if it has that version."""
        check_key(key)
        found = await self._at(key, version, ends)
        if found is None or found.entry.version != version:
            return found and found.entry
        self._known.pop(key, None)
        if await self._session.ask(ends, "remove_if_same", key, found.text):
            return None
        return await self._afterwards(key, ends)

    async def wait_while(self, key: str, version: int, timeout: float, ends: float) -> None:
        """Wait for a change."""
        check_key(key)
        until = monotonic() + timeout
        async with self._session.listening(key, ends) as changed:
            entry = await self.get(key, ends)
            if entry is not None and entry.version == version:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(until - monotonic(), 0)):
                        await changed.wait()

    async def names(self, prefix: str, ends: float) -> list[str]:
        """List the keys."""
        names = await self._session.ask(ends, "key_set")
        return [name for name in names if isinstance(name, str) and name.startswith(prefix)]

    async def _create(self, key: str, new: Found, ttl: float, ends: float) -> Entry | None:
        while True:
            begun = monotonic()
            there = self._read(key, await self._session.ask(ends, "put_if_absent", key, new.text, ttl + _TICK))
            # It is our own where a member has done the request twice, because another one had failed.
            if there is None or there == new:
                return self._remember(key, new, begun + ttl)
            if await self._lasts(there, ends):
                return there.entry
            await self._session.ask(ends, "remove_if_same", key, there.text)

    async def _at(self, key: str, version: int, ends: float) -> Found | None:
        """Return the entry: from memory, if it has the version and has not ended."""
        known = self._known.get(key)
        if known is not None and known.found.entry.version == version and monotonic() < known.ends:
            return known.found
        return await self._look(key, ends)

    async def _look(self, key: str, ends: float) -> Found | None:
        """Read the entry; remove it if its lease is over."""
        while True:
            found = self._read(key, await self._session.ask(ends, "get", key))
            if found is None or await self._lasts(found, ends):
                return found
            if await self._session.ask(ends, "remove_if_same", key, found.text):
                return None

    async def _lasts(self, found: Found, ends: float) -> bool:
        return not found.leased or await self._session.ask(ends, "contains_key", found.entry.version)

    async def _afterwards(self, key: str, ends: float) -> Entry | None:
        """Read what is there after a write that was refused, as far as it seems."""
        self._known.pop(key, None)
        try:
            return await self.get(key, ends)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error)) from error

    def _read(self, key: str, text: object) -> Found | None:
        if text is None:
            return None
        head = _HEAD.match(text) if isinstance(text, str) else None
        if not isinstance(text, str) or head is None:
            raise StoreError(f"{self._location} has something under {key!r} that caslock has not written")
        value = text[head.end() :].encode("latin-1")
        return Found(text, Entry(value, int(head[1])), head[2] == "lease")

    def _remember(self, key: str, new: Found, ends: float) -> Entry:
        if len(self._known) >= _KNOWN and key not in self._known:
            self._known.pop(next(iter(self._known)))
        self._known[key] = Known(new, ends)
        return new.entry


def _written(value: bytes, ttl: float, *, leased: bool) -> Found:
    check_put(value, ttl, _LONGEST)
    version = secrets.randbelow((1 << 62) - 1) + 1
    kind = "lease" if leased else "ttl"
    # As latin-1, a text has the bytes of any value, and is compared by its characters however the map keeps it.
    return Found(f"caslock {version} {kind}\n{value.decode('latin-1')}", Entry(bytes(value), version), leased)
