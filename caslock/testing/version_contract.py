"""Versions and races on one key: a part of `StoreContract`, with what breaks locks most often first."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT
from caslock.testing.faults import FaultyStore, duplicate, echo, late, lose_reply, lose_request
from caslock.testing.steps import (
    LONG,
    MANY,
    SHORT,
    Clients,
    again,
    at_once,
    put,
    remove,
    skip_unless_leases_end,
    unanswered,
    until_expired,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import Entry, Store


class VersionContract:
    """Tests of what the three verbs do at which version."""

    def test_a_stale_holder_cannot_remove_the_new_entry(self, caslock_clients: Clients) -> None:
        """A version that was removed removes nothing: not the lock of the next holder."""
        mine, theirs, key = caslock_clients
        stale = put(mine, key, b"mine")
        remove(theirs, key, stale.version)
        observed = put(theirs, key, b"theirs")

        assert mine.invalidate(key, stale.version) == observed
        assert mine.get(key) == theirs.get(key) == observed

    def test_a_stale_holder_cannot_overwrite_the_new_entry(self, caslock_clients: Clients) -> None:
        """A version that was removed overwrites nothing."""
        mine, theirs, key = caslock_clients
        stale = put(mine, key, b"mine")
        remove(theirs, key, stale.version)
        observed = put(theirs, key, b"theirs")

        assert mine.put_if_version(key, b"late", stale.version, LONG) == observed
        assert mine.get(key) == theirs.get(key) == observed

    def test_an_overwritten_version_is_stale(self, caslock_clients: Clients) -> None:
        """A version that was overwritten neither overwrites nor removes, even if the value is the same."""
        mine, theirs, key = caslock_clients
        stale = put(mine, key, b"same")
        observed = put(theirs, key, b"same", stale.version)

        assert observed.version != stale.version
        assert mine.put_if_version(key, b"late", stale.version, LONG) == observed
        assert mine.invalidate(key, stale.version) == observed
        assert theirs.get(key) == observed

    def test_an_expired_version_is_stale(self, caslock_clients: Clients) -> None:
        """A version that has expired revives nothing, and touches no newer entry."""
        mine, theirs, key = caslock_clients
        skip_unless_leases_end(mine)
        stale = put(mine, key, b"mine", ttl=SHORT)
        until_expired(mine, key, SHORT)

        assert mine.put_if_version(key, b"late", stale.version, LONG) is None
        assert mine.get(key) is None, "an expired entry was renewed"
        observed = put(theirs, key, b"theirs")
        assert observed.version != stale.version
        assert observed.version > stale.version or not mine.traits.fences
        assert mine.put_if_version(key, b"late", stale.version, LONG) == observed
        assert mine.invalidate(key, stale.version) == observed
        assert theirs.get(key) == observed

    def test_versions_never_repeat(self, caslock_clients: Clients) -> None:
        """No version of a key comes again, across overwriting, removal and re-creation."""
        versions = _versions(*caslock_clients)
        assert ABSENT not in versions
        assert len(set(versions)) == len(versions)

    def test_versions_only_grow(self, caslock_clients: Clients) -> None:
        """The versions of a key grow, across overwriting, removal and re-creation: only then can they be fences."""
        if not caslock_clients.mine.traits.fences:
            pytest.skip("traits.fences is False: versions need not grow")
        versions = _versions(*caslock_clients)
        assert versions == sorted(versions)

    def test_one_of_fifty_creates_the_entry(self, caslock_clients: Clients) -> None:
        """Of fifty that put where there is no entry one succeeds, and all are told which."""
        winner = _contend(caslock_clients, ABSENT)
        assert int(winner.value) in range(MANY)

    def test_one_of_fifty_overwrites_the_entry(self, caslock_clients: Clients) -> None:
        """Of fifty that put at the same version one succeeds, and all are told which."""
        start = put(caslock_clients.mine, caslock_clients.key, b"start")
        assert _contend(caslock_clients, start.version).version != start.version

    def test_one_of_fifty_replaces_the_entry(self, caslock_clients: Clients) -> None:
        """Of fifty that remove the same version and then put, one succeeds: late removals spare its entry."""
        mine, theirs, key = caslock_clients
        start = put(mine, key, b"start")

        def removing(client: Store) -> None:
            assert client.invalidate(key, start.version) != start

        _contend(Clients(mine, theirs, key), ABSENT, before=removing)

    def test_no_update_is_lost(self, caslock_clients: Clients) -> None:
        """Ten that count up together by compare-and-set lose no step."""
        mine, theirs, key = caslock_clients
        put(mine, key, b"0")
        unsure = list[bool]()  # for each put without an answer, whether it was sent: it may have counted all the same

        def put_once(client: Store, wanted: bytes, version: int) -> Entry | None:
            try:
                return client.put_if_version(key, wanted, version, LONG)
            except StoreUnavailable as error:
                unsure.append(error.sent)
                raise

        def count(number: int) -> None:
            client = (mine, theirs)[number % 2]
            observed = again(partial(client.get, key))
            for step in range(5):
                mark = b"%d.%d" % (number, step)
                while True:
                    assert observed is not None
                    wanted = b"%d %b" % (int(observed.value.split()[0]) + 1, mark)
                    observed = again(partial(put_once, client, wanted, observed.version))
                    assert observed is not None
                    if observed.value == wanted:
                        break

        at_once(count, 10)

        observed = mine.get(key)
        assert observed is not None
        assert 0 <= int(observed.value.split()[0]) - MANY <= sum(unsure)

    def test_a_success_returns_the_written_entry(self, caslock_clients: Clients) -> None:
        """Each verb that succeeds returns the entry as it is now, and both clients read the same."""
        mine, theirs, key = caslock_clients
        assert mine.get(key) is theirs.get(key) is None

        first = put(mine, key, b"first")
        assert isinstance(first.version, int)
        assert first.version > ABSENT
        assert theirs.get(key) == mine.get(key) == first

        second = put(theirs, key, b"2", first.version)
        assert second.version > ABSENT
        assert second.version > first.version or not mine.traits.fences
        assert mine.get(key) == theirs.get(key) == second

        remove(mine, key, second.version)
        assert mine.get(key) is theirs.get(key) is None

    def test_a_refusal_returns_the_current_entry(self, caslock_clients: Clients) -> None:
        """A verb at any other version changes nothing, and returns the entry that is there."""
        mine, theirs, key = caslock_clients
        observed = put(mine, key, b"value")
        for version in {ABSENT, observed.version - 1, observed.version + 1, 1, 2**31, 2**62} - {observed.version}:
            assert theirs.put_if_version(key, b"other", version, LONG) == observed, version
            assert theirs.invalidate(key, version) == observed, version
        assert mine.get(key) == theirs.get(key) == observed

    def test_no_version_matches_where_there_is_no_entry(self, caslock_clients: Clients) -> None:
        """Where there is no entry, nothing is overwritten or removed, and the answer is None."""
        mine, _, key = caslock_clients
        for version in (1, 2, 2**31, 2**62):
            assert mine.put_if_version(key, b"x", version, LONG) is None, version
            remove(mine, key, version)
        remove(mine, key, ABSENT)
        assert mine.get(key) is None

    def test_a_late_put_does_not_undo_a_removal(self, caslock_clients: Clients) -> None:
        """A renewal which arrives after the release does not bring the entry back."""
        mine, theirs, key = caslock_clients
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("put_if_version", 1, late())
        unanswered(lambda: faulty.put_if_version(key, b"renewed", entry.version, LONG))
        remove(theirs, key, entry.version)

        assert faulty.deliver() == 1

        assert mine.get(key) is theirs.get(key) is None

    def test_a_late_removal_spares_the_new_entry(self, caslock_clients: Clients) -> None:
        """A release which arrives after the next holder has come does not touch its entry."""
        mine, theirs, key = caslock_clients
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("invalidate", 1, late())
        unanswered(lambda: faulty.invalidate(key, entry.version))
        remove(mine, key, entry.version)
        observed = put(theirs, key, b"theirs")

        assert faulty.deliver() == 1

        assert mine.get(key) == theirs.get(key) == observed

    def test_a_put_can_be_retried_after_a_lost_reply(self, caslock_clients: Clients) -> None:
        """The second of two same puts is refused, and its answer shows that the first succeeded."""
        mine, _, key = caslock_clients
        for name, version in ((key, ABSENT), (f"{key}:2", put(mine, f"{key}:2", b"before").version)):
            faulty = FaultyStore(mine)
            faulty.on("put_if_version", 1, lose_reply)
            unanswered(lambda: faulty.put_if_version(name, b"mine", version, LONG))  # noqa: B023 - called at once
            first = mine.get(name)

            again = faulty.put_if_version(name, b"mine", version, LONG)

            assert again is not None
            assert again.value == b"mine"
            assert again == first == mine.get(name), "a retried put must not write twice"

    def test_a_removal_can_be_retried_after_a_lost_reply(self, caslock_clients: Clients) -> None:
        """The second of two same removals finds no entry, or that of the next holder, which it leaves alone."""
        mine, theirs, key = caslock_clients
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("invalidate", 1, lose_reply)
        unanswered(lambda: faulty.invalidate(key, entry.version))

        remove(faulty, key, entry.version)
        observed = put(theirs, key, b"theirs")
        assert faulty.invalidate(key, entry.version) == observed

    def test_a_read_changes_nothing(self, caslock_clients: Clients) -> None:
        """A read can be lost, retried and arrive late: the entry keeps its version."""
        mine, theirs, key = caslock_clients
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(theirs)
        for fault in (lose_request, lose_reply, late(before=1)):
            faulty.on("get", 1, fault)
            unanswered(lambda: faulty.get(key))

        assert faulty.get(key) == mine.get(key) == entry

    def test_a_duplicated_request_is_applied_once(self, caslock_clients: Clients) -> None:
        """A put or removal that arrives twice, in a row or later, does no more than the first of the two did."""
        mine, theirs, key = caslock_clients
        faulty = FaultyStore(mine)
        for verb in ("put_if_version", "invalidate"):
            faulty.on(verb, 1, duplicate)
            faulty.on(verb, 2, echo())
        first = put(faulty, key, b"first")
        second = put(faulty, key, b"second", first.version)
        assert mine.get(key) == second

        assert faulty.deliver() == 1
        assert mine.get(key) == second

        remove(faulty, key, second.version)
        remove(faulty, key, put(theirs, key, b"theirs").version)
        observed = put(theirs, key, b"theirs again")
        assert faulty.deliver() == 1
        assert mine.get(key) == theirs.get(key) == observed


def _versions(mine: Store, theirs: Store, key: str) -> list[int]:
    """Create, overwrite and remove again and again; give the versions in order."""
    versions: list[int] = []
    for _ in range(20):
        for client, other in ((mine, theirs), (theirs, mine)):
            created = put(client, key, b"1")
            changed = put(other, key, b"2", created.version)
            versions += [created.version, changed.version]
            remove(client, key, changed.version)
    return versions


def _contend(clients: Clients, version: int, before: Callable[[Store], None] = lambda _: None) -> Entry:
    """Let fifty put at `version` at the same moment; check that all are told who has won, and give the entry.

    The winner is told its version; others may have seen an earlier one, as a slow put may be made once more.
    """
    mine, theirs, key = clients

    def contend(number: int) -> Entry | None:
        client = (mine, theirs)[number % 2]
        again(lambda: before(client))
        return again(lambda: client.put_if_version(key, b"%d" % number, version, LONG))  # if applied before, it loses

    answers = at_once(contend)

    entry = mine.get(key)
    assert entry is not None
    assert {answer and answer.value for answer in answers} == {entry.value}
    assert answers[int(entry.value)] == entry
    return entry
