"""The law of this file: what was put stands as it was put, under its key alone, until its ttl is over."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from caslock.errors import StoreError
from caslock.store import ABSENT, MAX_VALUE, AsyncStore, Store
from caslock.testing.extremes import KEYS, VALUES, salted
from caslock.testing.steps import LONG, SHORT, Lease, at_once, nothing_stands, put

if TYPE_CHECKING:
    from caslock.store import Entry

COARSE: Final = 0.5
"""Seconds of overstay from which on a store's clock is taken to count whole seconds."""


class EntryContract:
    """Entries: a part of `caslock.testing.StoreContract`."""

    def test_a_lease_is_never_shorter_than_asked_and_ends(self, mine: Store, theirs: Store, key: str) -> None:
        """A lease stands for its ttl, rounded up by coarse clocks, and for no longer than the overstay on top.

        So it does when it replaces a longer or a shorter one, as a renewal does, to which it never adds; and a refused
        put makes no lease longer.
        """
        coarse = mine.traits.overstay > COARSE
        ttls = (0.05, SHORT, 0.5, 1.01) if coarse else (0.0505, SHORT)
        leases = [Lease(f"{key}:{number}", ttl) for number, ttl in enumerate(ttls)]
        for lease in leases:
            lease.begin(mine)
        for number, before in enumerate((LONG, SHORT / 2)):
            lease = Lease(f"{key}:again:{number}", 1.0 if coarse else 2 * SHORT)
            entry = put(mine, lease.key, b"", ttl=before)
            lease.begin(mine, entry.version)
            leases.append(lease)
        refusing = Lease(f"{key}:refusing", SHORT)
        entry = refusing.begin(mine)
        for version in (ABSENT, entry.version + 1):
            theirs.put_if_version(refusing.key, b"other", version, LONG)
        leases.append(refusing)

        at_once(lambda number: leases[number].watch(theirs), len(leases))

    def test_any_text_is_a_key(self, mine: Store, theirs: Store, key: str) -> None:
        """1 to 1,024 characters of any kind are a key, no two keys are one, and none is a command."""
        names = [name for extreme in KEYS for name in salted(extreme, key[-8:])]
        assert len(set(names)) == len(names)

        entries = {name: put(mine, name, name.encode()[:MAX_VALUE]) for name in names}

        for name, entry in entries.items():
            assert theirs.get(name) == entry, repr(name)
        for number, (name, entry) in enumerate(entries.items()):
            if number % 2:
                assert nothing_stands(theirs.invalidate(name, entry.version)), repr(name)
        for number, (name, entry) in enumerate(entries.items()):
            assert mine.get(name) == (None if number % 2 else entry), repr(name)

    def test_the_shortest_keys_are_keys(self, mine: Store, theirs: Store) -> None:
        """One character is enough, whichever it is."""
        for name in (name for name in KEYS if len(name) == 1):
            value = uuid4().bytes
            entry = mine.put_if_version(name, value, ABSENT, LONG)
            assert entry is not None, repr(name)
            if entry.value == value:  # else somebody else uses that key, and so it is one
                assert theirs.get(name) == entry, repr(name)
                assert nothing_stands(theirs.invalidate(name, entry.version)), repr(name)

    def test_a_key_that_is_too_long_is_refused_or_kept_whole(self, mine: Store, key: str) -> None:
        """A lock never asks for a key of more than 1,024 characters; a store refuses it, or never cuts it short."""
        names = [key.ljust(1024, "k") + end for end in ("", "a", "b", "a" * 100)]
        accepted: dict[str, Entry] = {}
        for name in names[1:]:
            try:
                accepted[name] = put(mine, name, name[-101:].encode())
            except (ValueError, StoreError):
                continue
        assert mine.get(names[0]) is None
        for name, entry in accepted.items():
            assert mine.get(name) == entry

    def test_any_bytes_are_a_value(self, mine: Store, theirs: Store, key: str) -> None:
        """0 to 4,096 bytes of any kind are kept as they are, by both ways of writing."""
        entry: Entry | None = None
        for value in VALUES:
            entry = put(mine, key, value, entry.version if entry else ABSENT)
            assert theirs.get(key) == entry
            assert theirs.put_if_version(key, b"refused", ABSENT, LONG) == entry
        for number, value in enumerate(VALUES):
            created = put(theirs, f"{key}:{number}", value)
            assert mine.get(f"{key}:{number}") == created

    def test_keys_do_not_touch_each_other(self, mine: Store, theirs: Store, key: str) -> None:
        """What is done under one key changes neither value nor version under another."""
        entry = put(mine, key, b"mine")
        for number in range(10):
            other = put(theirs, f"{key}:{number}", b"other")
            other = put(theirs, f"{key}:{number}", b"other still", other.version)
            assert nothing_stands(theirs.invalidate(f"{key}:{number}", other.version))
        assert mine.get(key) == entry
        assert put(mine, key, b"renewed", entry.version) == theirs.get(key)

    def test_a_store_says_what_it_promises(self, mine: Store, theirs: Store, store: Store | AsyncStore) -> None:
        """Traits tell the place, the same for every client of it and without a secret, and how long leases overstay."""
        assert isinstance(store, (Store, AsyncStore))
        traits = mine.traits
        assert isinstance(traits.place, str)
        assert traits.place
        assert not re.search(r"//[^/]*:[^/]*@", traits.place), "the place must not tell a password"
        assert traits.place == theirs.traits.place, "MultiLock takes locks in the order of their places"
        assert traits == mine.traits == theirs.traits
        assert traits.overstay >= 0
        assert traits.expires, "a store that does not end leases by itself needs more than this contract"
