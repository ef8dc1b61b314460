"""Waiting for a change of an entry by `wait_while`: a part of `StoreContract`."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import time
from functools import partial
from typing import Final, Protocol, cast

import pytest

from caslock.store import Entry, Store, WatchingStore
from caslock.testing import steps
from caslock.testing.steps import (
    LONG,
    SHORT,
    Clients,
    Lease,
    in_a_thread,
    pause,
    put,
    remove,
    skip_unless_leases_end,
    timed,
    until_expired,
)
from caslock.testing.stopwatch import Stopwatch

UNWATCHED: Final = "the store has no wait_while"


class WatchingContract:
    """Tests of `wait_while`."""

    def test_a_removal_as_the_wait_begins_is_not_missed(self, caslock_clients: Clients) -> None:
        """A wait ends soon even if the entry is removed between its first look and the moment it begins to listen."""
        mine, theirs, key = _watching(caslock_clients)
        for number in range(10):
            name = f"{key}:{number}"
            entry = put(theirs, name, b"value")
            wait = timed(partial(mine.wait_while, name, entry.version, steps.IN_VAIN))
            time.sleep(number / 2000)
            remove(theirs, name, entry.version)
            took, _ = wait.result(60)
            assert took < steps.PATIENT / 2, f"a removal was missed: the wait took {took:.3f} s"

    def test_a_wait_for_a_version_that_is_gone_ends_at_once(self, caslock_clients: Clients) -> None:
        """A wait ends at once if its version was removed, overwritten or has expired before it began.

        It returns what is there, or says nothing of it.
        """
        mine, theirs, key = _watching(caslock_clients)
        names = removed, overwritten, expired = [f"{key}:{change}" for change in ("removed", "overwritten", "expired")]
        versions = [put(theirs, name, b"1", ttl=SHORT if name == expired else LONG).version for name in names]
        remove(theirs, removed, versions[0])
        put(theirs, overwritten, b"1", versions[1])
        if theirs.traits.expires:
            until_expired(theirs, expired, SHORT)
        else:
            names.remove(expired)
        for name, version in zip(names, versions, strict=False):
            took, told = timed(partial(mine.wait_while, name, version, steps.IN_VAIN)).result(60)
            assert took < steps.PATIENT / 2, f"a wait for {name} took {took:.3f} s"
            _check(told, theirs.get(name))

    def test_a_change_ends_every_wait(self, caslock_clients: Clients) -> None:
        """A removal and another write both end all waits for the version soon, also those of the same client.

        What a wait returns is what is there.
        """
        mine, theirs, key = _watching(caslock_clients)
        for change in ("removal", "write"):
            name = f"{key}:{change}"
            version = put(theirs, name, b"1").version
            clients = (mine, theirs, mine, theirs, mine)
            waits = [timed(partial(client.wait_while, name, version, steps.IN_VAIN)) for client in clients]
            pause()
            early = [wait for wait in waits if wait.done()]  # without a reason
            if change == "removal":
                in_a_thread(partial(mine.invalidate, name, version))
            else:
                in_a_thread(partial(theirs.put_if_version, name, b"1", version, LONG))
            tooks = [wait.result(60)[0] for wait in waits]
            assert max(tooks) < steps.PATIENT / 2, f"waits took {tooks} s in spite of a {change}"
            for wait in waits:
                if wait not in early:
                    _check(wait.result()[1], theirs.get(name))

    def test_a_wait_lasts_for_its_timeout_and_writes_nothing(self, caslock_clients: Clients) -> None:
        """While nothing changes, a wait ends at its timeout, not much later, and leaves the entry as it was."""
        mine, theirs, key = _watching(caslock_clients)
        entry = put(theirs, key, b"value")
        with Stopwatch() as watch:
            waits = [timed(partial(mine.wait_while, key, entry.version, SHORT)) for _ in range(3)]
            tooks = [wait.result(60)[0] for wait in waits]
        assert max(tooks) < SHORT + steps.PATIENT / 2, f"waits of {SHORT} s took {tooks} s"
        assert watch.elapsed >= 0.9 * SHORT, f"waits of {SHORT} s took {tooks} s: not all may end early for no reason"

        assert mine.get(key) == theirs.get(key) == entry
        remove(theirs, key, entry.version)
        pause()
        assert mine.get(key) is None, "a wait that was over has written"

    def test_a_wait_does_not_prolong_the_lease(self, caslock_clients: Clients) -> None:
        """An entry expires in time although it is waited for, and the wait ends at its timeout at the latest."""
        mine, theirs, key = _watching(caslock_clients)
        skip_unless_leases_end(mine)
        lease, timeout = Lease(key, SHORT), SHORT + mine.traits.expiry_lag
        version = lease.begin(theirs).version
        wait = timed(partial(mine.wait_while, key, version, timeout))

        lease.watch(theirs)

        took, _ = wait.result(60)
        assert took < timeout + steps.PATIENT / 2, f"a wait of {timeout} s took {took:.3f} s"


def _check(told: Entry | None, there: Entry | None) -> None:
    """Check what a wait has returned after a change."""
    assert told is None or (type(told), told) == (type(there), there), f"a wait told of {told} where {there} is"


class _Watching(Store, WatchingStore, Protocol):
    """A store with `wait_while`."""


def _watching(clients: Clients) -> tuple[_Watching, _Watching, str]:
    if not isinstance(clients.mine, WatchingStore) or not isinstance(clients.theirs, WatchingStore):
        pytest.skip(UNWATCHED)
    return cast("tuple[_Watching, _Watching, str]", clients)
