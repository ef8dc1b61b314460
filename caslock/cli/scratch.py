"""The law of this file: whatever key is asked for, the store is asked for one under a prefix of our own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import BatchingStore, Entry, Put, Removal, Store, Traits, WakingStore

_LONGEST: Final = 1024


class Scratch:
    """A blocking store that can touch no key but its own; what it can do beyond the three verbs is there if it can."""

    put_when_free: Callable[[str, bytes, float, float], Entry | None]
    """See `WakingStore.put_when_free`."""
    put_many: Callable[[Sequence[Put]], Sequence[Entry | None] | None]
    """See `BatchingStore.put_many`."""
    invalidate_many: Callable[[Sequence[Removal]], Sequence[Entry | None] | None]
    """See `BatchingStore.invalidate_many`."""

    def __init__(self, store: Store, prefix: str, touched: set[str]) -> None:
        """Put `prefix` before every key, and note in `touched` what was put."""
        self._store, self._prefix, self._touched = store, prefix, touched
        if hasattr(store, "put_when_free"):
            self.put_when_free = self._put_when_free
        if hasattr(store, "put_many"):
            self.put_many, self.invalidate_many = self._put_many, self._invalidate_many

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

    def _put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        name = self._name(key)
        self._touched.add(name)
        return cast("WakingStore", self._store).put_when_free(name, value, ttl, timeout)

    def _put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        named = [put._replace(key=self._name(put.key)) for put in puts]
        self._touched.update(put.key for put in named)
        return cast("BatchingStore", self._store).put_many(named)

    def _invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        named = [removal._replace(key=self._name(removal.key)) for removal in removals]
        return cast("BatchingStore", self._store).invalidate_many(named)

    def _name(self, key: str) -> str:
        """Name it so that no two keys are one; what was of a lawful length still is."""
        name = self._prefix + key
        if len(name) <= _LONGEST or len(key) > _LONGEST:
            return name
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{name[: _LONGEST - len(digest)]}{digest}"
