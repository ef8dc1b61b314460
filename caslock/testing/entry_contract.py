"""Keys, values, leases and traits: a part of `StoreContract`."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import re
import time
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from caslock.errors import StoreError
from caslock.store import ABSENT, MAX_VALUE, AsyncStore, IdentifiedStore, Store
from caslock.testing.extremes import KEYS, VALUES, salted
from caslock.testing.steps import LONG, SHORT, Clients, Lease, at_once, put, remove, skip_unless_leases_end

if TYPE_CHECKING:
    from caslock.store import Entry

COARSE: Final = 0.5
"""Seconds of expiry_lag from which on a store's clock is taken to count whole seconds."""


class EntryContract:
    """Tests of what a store keeps, and for how long."""

    def test_a_lease_lasts_for_its_ttl_and_ends(self, caslock_clients: Clients) -> None:
        """A lease lasts for its ttl, and for the expiry_lag at most beyond that.

        A renewal replaces a longer or a shorter lease, and never adds to it; a refused put makes no lease longer.
        """
        mine, theirs, key = caslock_clients
        skip_unless_leases_end(mine)
        coarse = mine.traits.expiry_lag > COARSE
        ttls = (0.05, SHORT, 0.5, 1.01) if coarse else (0.0505, SHORT)
        leases = [Lease(f"{key}:{number}", ttl) for number, ttl in enumerate(ttls)]
        for lease in leases:
            lease.begin(mine)
        for number, before in enumerate((LONG, SHORT / 2)):
            lease = Lease(f"{key}:again:{number}", 1.0 if coarse else 2 * SHORT)
            _renew(mine, lease, before)
            leases.append(lease)
        leases.append(_refuse(mine, theirs, f"{key}:refusing"))

        at_once(lambda number: leases[number].watch(theirs), len(leases))

    def test_an_entry_outlasts_its_ttl_if_the_store_ends_no_lease(self, caslock_clients: Clients) -> None:
        """If traits.expires is False, an entry stays until it is written over or removed.

        A lock takes the version that it has seen for a whole ttl for one that is still there.
        """
        mine, theirs, key = caslock_clients
        if mine.traits.expires:
            pytest.skip("traits.expires is True: entries expire")
        created = put(mine, f"{key}:created", b"lease", ttl=SHORT / 4)
        shortened = put(mine, f"{key}:shortened", b"lease", put(mine, f"{key}:shortened", b"").version, SHORT / 4)
        time.sleep(2 * SHORT)

        for name, entry in ((f"{key}:created", created), (f"{key}:shortened", shortened)):
            assert mine.get(name) == theirs.get(name) == entry, "traits.expires is False, and an entry has expired"
            assert theirs.put_if_version(name, b"other", ABSENT, LONG) == entry
            renewed = put(mine, name, b"renewed", entry.version, SHORT / 4)
            time.sleep(SHORT / 2)
            remove(theirs, name, renewed.version)
            assert mine.get(name) is None

    def test_any_text_is_a_key(self, caslock_clients: Clients) -> None:
        """1 to 1,024 characters of any kind are a key, no two keys collide, and none is read as a command."""
        mine, theirs, key = caslock_clients
        names = [name for extreme in KEYS for name in salted(extreme, key[-8:])]
        assert len(set(names)) == len(names)

        entries = {name: put(mine, name, name.encode()[:MAX_VALUE]) for name in names}

        for name, entry in entries.items():
            assert theirs.get(name) == entry, repr(name)
        for name in names[::2]:
            remove(theirs, name, entries.pop(name).version)
        for name in names:
            assert mine.get(name) == entries.get(name), repr(name)

    def test_one_character_is_a_key(self, caslock_clients: Clients) -> None:
        """One character is enough, whichever it is."""
        mine, theirs, _ = caslock_clients
        for name in (name for name in KEYS if len(name) == 1):
            value = uuid4().bytes
            entry = mine.put_if_version(name, value, ABSENT, LONG)
            assert entry is not None, repr(name)
            if entry.value == value:  # else somebody else uses that key, and so it is one
                assert theirs.get(name) == entry, repr(name)
                remove(theirs, name, entry.version)

    def test_a_key_that_is_too_long_is_not_cut(self, caslock_clients: Clients) -> None:
        """No lock has a key of more than 1,024 characters.  A store refuses it or keeps all of it."""
        mine, _, key = caslock_clients
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

    def test_any_bytes_are_a_value(self, caslock_clients: Clients) -> None:
        """0 to 4,096 bytes of any kind are kept as they are, however they are written and read."""
        mine, theirs, key = caslock_clients
        version = ABSENT
        for number, value in enumerate(VALUES):
            entry = put(mine, key, value, version)
            assert theirs.get(key) == theirs.put_if_version(key, b"refused", ABSENT, LONG) == entry
            version = entry.version
            created = put(theirs, f"{key}:{number}", value)
            assert mine.get(f"{key}:{number}") == created

    def test_keys_are_independent(self, caslock_clients: Clients) -> None:
        """What is done under one key changes neither value nor version under another."""
        mine, theirs, key = caslock_clients
        entry = put(mine, key, b"mine")
        for name in (f"{key}:{number}" for number in range(10)):
            other = put(theirs, name, b"2", put(theirs, name, b"1").version)
            remove(theirs, name, other.version)
        assert mine.get(key) == entry
        assert put(mine, key, b"renewed", entry.version) == theirs.get(key)

    def test_the_traits_tell_the_same_to_every_client(
        self, caslock_clients: Clients, store: Store | AsyncStore
    ) -> None:
        """They give the location, without a secret, and what the store promises."""
        mine, theirs, _ = caslock_clients
        assert isinstance(store, (Store, AsyncStore))
        traits = mine.traits
        assert isinstance(traits.location, str)
        assert traits.location
        assert not re.search(r"//[^/]*:[^/]*@", traits.location), "the location must not tell a password"
        assert traits.location == theirs.traits.location, "a MultiLock takes locks in the order of their locations"
        assert mine.traits == traits
        assert theirs.traits._replace(request_timeout=0) == traits._replace(request_timeout=0)
        assert min(traits.request_timeout, theirs.traits.request_timeout) > 0
        assert traits.expiry_lag >= 0

    def test_two_clients_give_one_identity(self, caslock_clients: Clients) -> None:
        """Both clients have one name for their server, and no two keys have one stored name."""
        mine, theirs, key = caslock_clients
        if not isinstance(mine, IdentifiedStore) or not isinstance(theirs, IdentifiedStore):
            pytest.skip("the store has no identify")
        identities = {mine.identify(), theirs.identify()}
        assert len(identities) == 1
        assert identities <= {None} or all(identities), "an identity that is no text"
        names = [key, *(name for extreme in KEYS for name in salted(extreme, key[-8:]))]
        assert len({mine.stored_name(name) for name in names}) == len(names)


def _renew(store: Store, lease: Lease, before: float) -> None:
    """Begin a lease that replaces one of `before` seconds, which must not have ended yet."""
    while True:
        first = Lease(lease.key, before)
        version = first.begin(store).version
        lease.asked()
        entry = store.put_if_version(lease.key, b"renewed", version, lease.ttl)
        lease.answered()
        if entry is not None and entry.value == b"renewed":
            return
        assert first.may_be_over(), f"{entry} after a renewal within a lease of {before} s"


def _refuse(mine: Store, theirs: Store, key: str) -> Lease:
    """Begin a lease during which the other client's puts are refused."""
    for number in count():
        lease = Lease(f"{key}:{number}", SHORT)
        entry = lease.begin(mine)
        versions = (ABSENT, entry.version + 1)
        answers = [theirs.put_if_version(lease.key, b"other", version, LONG) for version in versions]
        if answers == [entry, entry]:
            return lease
        assert lease.may_be_over(), f"{answers} to puts that are refused, within a lease of {SHORT} s"
    raise AssertionError
