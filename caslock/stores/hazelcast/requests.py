"""How an entry is kept, and the verbs as requests to a map (see `caslock.stores.shared.verbs`): no I/O, for both APIs.

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

import re
import secrets
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry, check_key, check_put
from caslock.stores.shared.connections import remember
from caslock.stores.shared.verbs import Page

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")

Verb: TypeAlias = "Generator[tuple[object, ...], Any, T]"

_HEAD: Final = re.compile(r"caslock ([1-9][0-9]{0,18}) (ttl|lease)\n")
_TICK: Final = 1.001  # seconds; of a ttl, the client keeps milliseconds
_LONGEST: Final = 10**9  # seconds


class Found(NamedTuple):
    """What is in the map."""

    text: str
    entry: Entry
    leased: bool
    ends: float = 0.0
    """Until when it is certainly there if nobody has changed it, for one that this store has written."""


class Verbs:
    """The verbs of one store, as requests: the name of a method of the map, and its arguments."""

    def __init__(self, location: str) -> None:
        """Begin with nothing known."""
        self._location = location
        self._known: dict[str, Found] = {}

    def get(self, key: str) -> Verb[Entry | None]:
        """See `Store.get`; it removes an entry whose lease is over."""
        check_key(key)
        return self._get(key)

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """See `Store.put_if_version`: one request for a new entry, two to write over one."""
        check_key(key)
        new = _written(value, ttl, leased=version != ABSENT)
        return self._create(key, new, ttl) if version == ABSENT else self._replace(key, new, version, ttl)

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """See `Store.invalidate`: one request, if this store has written the entry."""
        check_key(key)
        return self._remove(key, version)

    def page(self, prefix: str, after: deque[str] | None) -> Verb[Page]:
        """See `ListingStore.list`: all keys in one request, and then one entry at a time."""
        if after is None:
            names = yield ("key_set",)
            found = deque(name for name in names if isinstance(name, str) and name.startswith(prefix))
            return Page((), found or None)
        key = after.popleft()
        entry = yield from self._get(key)
        return Page([(key, entry)] if entry else (), after or None)

    def _get(self, key: str) -> Verb[Entry | None]:
        found = yield from self._look(key)
        return found and found.entry

    def _create(self, key: str, new: Found, ttl: float) -> Verb[Entry | None]:
        while True:
            begun = monotonic()
            there = self._read(key, (yield "put_if_absent", key, new.text, ttl + _TICK))
            # It is our own where a member has done the request twice, because another one had failed.
            if there is None or there == new:
                return remember(self._known, key, new._replace(ends=begun + ttl)).entry
            if (yield from self._lasts(there)):
                return there.entry
            yield "remove_if_same", key, there.text

    def _replace(self, key: str, new: Found, version: int, ttl: float) -> Verb[Entry | None]:
        found = yield from self._at(key, version)
        if found is None or found.entry.version != version:
            return found and found.entry
        begun = monotonic()
        yield "set", new.entry.version, key, ttl + _TICK
        if (yield "replace_if_same", key, found.text, new.text):
            return remember(self._known, key, new._replace(ends=begun + ttl)).entry
        return (yield from self._afterwards(key))

    def _remove(self, key: str, version: int) -> Verb[Entry | None]:
        found = yield from self._at(key, version)
        if found is None or found.entry.version != version:
            return found and found.entry
        self._known.pop(key, None)
        if (yield "remove_if_same", key, found.text):
            return None
        return (yield from self._afterwards(key))

    def _at(self, key: str, version: int) -> Verb[Found | None]:
        """Return the entry: from memory, if it has the version and has not ended."""
        known = self._known.get(key)
        if known is not None and known.entry.version == version and monotonic() < known.ends:
            return known
        return (yield from self._look(key))

    def _look(self, key: str) -> Verb[Found | None]:
        """Read the entry; remove it if its lease is over."""
        while True:
            found = self._read(key, (yield "get", key))
            if found is None or (yield from self._lasts(found)):
                return found
            if (yield "remove_if_same", key, found.text):
                return None

    def _lasts(self, found: Found) -> Verb[bool]:
        return not found.leased or (yield "contains_key", found.entry.version)

    def _afterwards(self, key: str) -> Verb[Entry | None]:
        """Read what is there after a write that was refused, as far as it seems."""
        self._known.pop(key, None)
        try:
            return (yield from self._get(key))
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


def _written(value: bytes, ttl: float, *, leased: bool) -> Found:
    check_put(value, ttl, _LONGEST)
    version = secrets.randbelow((1 << 62) - 1) + 1
    kind = "lease" if leased else "ttl"
    # As latin-1, a text has the bytes of any value, and is compared by its characters however the map keeps it.
    return Found(f"caslock {version} {kind}\n{value.decode('latin-1')}", Entry(bytes(value), version), leased)
