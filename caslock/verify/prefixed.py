"""A blocking store that puts a prefix before every key, so that the contract touches no key but its own."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from caslock.verify import locations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.store import Entry, Put, Removal, Store, Traits

    Subject: TypeAlias = str | Sequence[Put | Removal]
    """A key, or several requests as one."""

    Lister: TypeAlias = Callable[[str], Iterator[tuple[str, Entry]]]

_LONGEST: Final = 1024

_OPTIONAL: Final = ("wait_while", "put_when_absent", "put_many", "invalidate_many")


class PrefixedStore:
    """The store; it has those optional verbs that the store below has."""

    def __init__(self, store: Store, prefix: str, touched: set[str]) -> None:
        """Put `prefix` before every key, and note in `touched` what was asked for."""
        self._store, self._prefix, self._touched = store, prefix, touched
        has: Any = store  # it may have what `Store` does not name
        for verb in _OPTIONAL:
            if hasattr(store, verb):
                setattr(self, verb, partial(self._ask, verb))
        if hasattr(store, "list"):
            self.list: Lister = partial(self._list, has.list)
        if hasattr(store, "stored_name"):
            self.stored_name: Callable[[str], str] = lambda key: has.stored_name(self._name(key))
        for name in ("close", "identify"):
            if hasattr(store, name):
                setattr(self, name, getattr(store, name))

    def __enter__(self) -> Self:
        """Give the store."""
        return self

    def __exit__(self, *error: object) -> None:
        locations.close(self)

    @property
    def traits(self) -> Traits:
        """Those of the store."""
        return self._store.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._store.get(self._name(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return self._store.put_if_version(self._name(key), value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._store.invalidate(self._name(key), version)

    def _ask(self, verb: str, subject: Subject, *rest: object) -> Any:  # noqa: ANN401 - of each verb its own
        if isinstance(subject, str):
            return getattr(self._store, verb)(self._name(subject), *rest)
        return getattr(self._store, verb)([each._replace(key=self._name(each.key)) for each in subject])

    def _list(self, listed: Lister, prefix: str) -> Iterator[tuple[str, Entry]]:
        return ((key.removeprefix(self._prefix), entry) for key, entry in listed(self._prefix + prefix))

    def _name(self, key: str) -> str:
        """Name it so that no two keys are one; a key of a length that is allowed keeps such a length."""
        name = self._prefix + key
        if len(name) > _LONGEST >= len(key):
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
            name = f"{name[: _LONGEST - len(digest)]}{digest}"
        self._touched.add(name)
        return name
