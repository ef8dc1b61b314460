"""Checks the keys, locks and stores that a lock of several is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.protocol.runtime import Runtime

L = TypeVar("L")


class Keys(Protocol):
    """Several keys.  A `str`, though it is an iterable of them, is not: its ``in`` takes a str only."""

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, key: object, /) -> bool: ...


FEWEST: Final = 3
"""Stores.  Two need both of them, which is less available than one."""


def check_keys(keys: Iterable[str]) -> list[str]:
    """Check that several keys were given, and not one string of characters."""
    if isinstance(keys, str):
        message = f"keys must be a list such as [{keys!r}], not the string {keys!r}"
        raise TypeError(message)
    if not isinstance(keys, Iterable):
        raise _no_keys(keys)
    return list(keys)


def _no_keys(keys: object) -> TypeError:
    return TypeError(f"keys must be a list such as ['room:42'], not {keys!r}")


def check_locks(locks: object, kinds: tuple[type[L], ...]) -> list[L]:
    """Check that locks were given, and not a store without keys."""
    if hasattr(locks, "put_if_version"):
        raise _no_keys(None)
    given: list[object] = list(locks) if isinstance(locks, Iterable) else []
    found = [lock for lock in given if isinstance(lock, kinds)]
    if not isinstance(locks, Iterable) or len(found) != len(given):
        kind = kinds[0]
        message = f"expected a store and keys, or {kind.__name__} objects, not {locks!r}"
        others = {type(lock).__name__ for lock in given if not isinstance(lock, kinds)}
        if others <= {"Lock", "AsyncLock"} and len(others) == 1:
            (other,) = others
            several = other.replace("Lock", "MultiLock")
            message = f"expected {kind.__name__} objects; use {several} for {other} objects"
        if any(other.endswith("QuorumLock") for other in others):
            message = f"{kind.__name__.replace('Lock', 'MultiLock')} can't lock a QuorumLock together with other locks"
        if any(other.endswith("ReadWriteLock") for other in others):
            message = "a ReadWriteLock has two sides: give its .read or its .write to the MultiLock"
        raise TypeError(message)
    return found


def check_stores(stores: object, runtime: Callable[[object], Runtime]) -> list[Runtime]:
    """Check that several independent stores were given."""
    if isinstance(stores, (str, bytes)) or not isinstance(stores, Iterable):
        message = f"stores must be a list of at least {FEWEST} stores, not {stores!r}"
        raise TypeError(message)
    nodes = [runtime(store) for store in stores]
    if len(nodes) < FEWEST:
        message = f"a QuorumLock needs at least {FEWEST} stores, not {len(nodes)}: use Lock for one"
        raise ValueError(message)
    locations = [node.store.traits.location for node in nodes]
    for location in locations:
        if locations.count(location) > 1:
            message = f"the stores of a QuorumLock must be independent, but two of them are {location}"
            raise ValueError(message)
    return nodes
