"""Listing entries by `list`: a part of `StoreContract`."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from typing import Final, Protocol, cast

import pytest

from caslock.store import ListingStore, Store
from caslock.testing.extremes import KEYS
from caslock.testing.steps import LONG, MANY, SHORT, Clients, put, remove, until_expired

UNLISTED: Final = "the store has no list"

PREFIXES: Final = ("", "a", "A", "a*", "*", "?", "[a", "{a}", "%", "%2", "_", "a_", "\\", "'", '"', "\0", " ", ".", "é")
"""Prefixes that a pattern language of some server takes for something else."""

_LONG: Final = 100


class ListingContract:
    """Tests of `list`."""

    def test_a_list_has_exactly_the_keys_with_the_prefix(self, caslock_clients: Clients) -> None:
        """Each character of a prefix means itself; every key is given as it was put, with its entry."""
        mine, theirs, key = _listing(caslock_clients)
        names = [f"{end}{key}{name}" for name in ("", "_", *KEYS) if len(name) < _LONG for end in ("", "z")]
        entries = {name: put(mine, name, name.encode()) for name in names}
        for prefix in PREFIXES:
            expected = {name: entry for name, entry in entries.items() if name.startswith(key + prefix)}
            assert dict(theirs.list(key + prefix)) == expected, repr(prefix)
        everything = dict(theirs.list(""))
        assert all(everything.get(name) == entry for name, entry in entries.items())

    def test_a_list_has_what_get_returns(self, caslock_clients: Clients) -> None:
        """Removed and expired entries are not listed, and of an overwritten one the last value and version are."""
        mine, theirs, key = _listing(caslock_clients)
        removed, expired, written, again = names = [f"{key}:{number}" for number in range(4)]
        entries = {name: put(mine, name, b"1", ttl=SHORT if name == expired else LONG) for name in names}
        remove(theirs, removed, entries[removed].version)
        remove(theirs, again, entries[again].version)
        current = {
            written: put(theirs, written, b"\0\xff2", entries[written].version),
            again: put(theirs, again, b""),
        }
        if theirs.traits.expires:
            until_expired(theirs, expired, SHORT)
        else:
            current[expired] = entries[expired]

        assert dict(mine.list(f"{key}:")) == dict(theirs.list(f"{key}:")) == current

    def test_a_long_list_is_complete(self, caslock_clients: Clients) -> None:
        """A list of two hundred entries has each of them once, on however many pages the server sends it."""
        mine, theirs, key = _listing(caslock_clients)
        names = sorted(f"{key}:{number:03}" for number in range(4 * MANY))
        for name in names:
            put(mine, name, b"value")
        assert sorted(name for name, _ in theirs.list(key)) == names

    def test_changes_while_a_list_is_read_do_no_harm(self, caslock_clients: Clients) -> None:
        """Entries that come and go between two steps may be listed or not; all others are, once."""
        mine, theirs, key = _listing(caslock_clients)
        going = {name: put(mine, name, b"goes").version for name in (f"{key}:{number}:goes" for number in range(MANY))}
        staying = {name: put(mine, name, b"stays") for name in (f"{key}:{number}:stays" for number in range(MANY))}
        entries = mine.list(key)
        listed = [next(entries)]
        for name, version in going.items():
            remove(theirs, name, version)
            put(theirs, name.replace("goes", "comes"), b"comes")
        listed += entries

        names = [name for name, _ in listed]
        assert len(names) == len(set(names)), "a key was listed twice"
        assert {name: entry for name, entry in listed if name in staying} == staying
        assert all(name.startswith(key) for name in names)

    def test_a_list_may_be_left_unfinished(self, caslock_clients: Clients) -> None:
        """After the first step of a list that nobody continues, the store answers rightly, and can be listed again."""
        mine, _, key = _listing(caslock_clients)
        entries = {name: put(mine, name, name.encode()) for name in (f"{key}:{number}" for number in range(MANY))}
        unfinished = mine.list(key)
        next(unfinished)
        assert {name: mine.get(name) for name in entries} == entries
        del unfinished
        assert dict(mine.list(key)) == entries


class _Listing(Store, ListingStore, Protocol):
    """A store with `list`."""


def _listing(clients: Clients) -> tuple[_Listing, _Listing, str]:
    if not isinstance(clients.mine, ListingStore) or not isinstance(clients.theirs, ListingStore):
        pytest.skip(UNLISTED)
    return cast("tuple[_Listing, _Listing, str]", clients)
