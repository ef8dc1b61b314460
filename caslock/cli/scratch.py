"""The law of this file: whatever key is asked for, the store is asked for one under a prefix of our own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from caslock.store import Entry, Store, Traits

_LONGEST: Final = 1024


class Scratch:
    """A blocking store that can touch no key but its own."""

    def __init__(self, store: Store, prefix: str, touched: set[str]) -> None:
        """Put `prefix` before every key, and note in `touched` what was put."""
        self._store, self._prefix, self._touched = store, prefix, touched

    @property
    def traits(self) -> Traits:
        """Those of the store."""
        return self._store.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._store.get(self._name(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        name = self._name(key)
        self._touched.add(name)
        return self._store.put_if_version(name, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._store.invalidate(self._name(key), version)

    def _name(self, key: str) -> str:
        """Name it so that no two keys are one; what was of a lawful length still is."""
        name = self._prefix + key
        if len(name) <= _LONGEST or len(key) > _LONGEST:
            return name
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{name[: _LONGEST - len(digest)]}{digest}"
