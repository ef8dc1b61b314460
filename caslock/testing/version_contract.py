"""The law of this file: of all that act on one key one wins, and what is stale or comes late changes nothing."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.store import ABSENT
from caslock.testing.faults import FaultyStore, duplicate, echo, late, lose_reply, lose_request
from caslock.testing.steps import LONG, MANY, SHORT, at_once, nothing_stands, put, unanswered, until_gone

if TYPE_CHECKING:
    from caslock.store import Entry, Store


class VersionContract:
    """Versions: a part of `caslock.testing.StoreContract`."""

    def test_a_stale_holder_can_not_remove_what_another_has_put(self, mine: Store, theirs: Store, key: str) -> None:
        """A version that was removed removes nothing that stands now: not the lock of the next holder."""
        stale = put(mine, key, b"mine")
        assert nothing_stands(theirs.invalidate(key, stale.version))
        standing = put(theirs, key, b"theirs")

        assert mine.invalidate(key, stale.version) == standing
        assert mine.get(key) == theirs.get(key) == standing

    def test_a_stale_holder_can_not_overwrite_what_another_has_put(self, mine: Store, theirs: Store, key: str) -> None:
        """A version that was removed overwrites nothing that stands now."""
        stale = put(mine, key, b"mine")
        assert nothing_stands(theirs.invalidate(key, stale.version))
        standing = put(theirs, key, b"theirs")

        assert mine.put_if_version(key, b"late", stale.version, LONG) == standing
        assert mine.get(key) == theirs.get(key) == standing

    def test_a_version_that_was_overwritten_is_stale(self, mine: Store, theirs: Store, key: str) -> None:
        """Neither does a version that was overwritten, even with the very same value."""
        stale = put(mine, key, b"same")
        standing = put(theirs, key, b"same", stale.version)

        assert standing.version != stale.version
        assert mine.put_if_version(key, b"late", stale.version, LONG) == standing
        assert mine.invalidate(key, stale.version) == standing
        assert theirs.get(key) == standing

    def test_no_version_comes_back_when_a_lease_has_ended(self, mine: Store, theirs: Store, key: str) -> None:
        """After expiry a version is stale: it neither puts where nothing stands, nor touches anything newer."""
        stale = put(mine, key, b"mine", ttl=SHORT)
        until_gone(mine, key, SHORT)

        assert mine.put_if_version(key, b"late", stale.version, LONG) is None
        assert mine.get(key) is None, "a lease that was over was renewed"
        standing = put(theirs, key, b"theirs")
        assert standing.version != stale.version
        assert standing.version > stale.version or not mine.traits.fences
        assert mine.put_if_version(key, b"late", stale.version, LONG) == standing
        assert mine.invalidate(key, stale.version) == standing
        assert theirs.get(key) == standing

    def test_versions_never_repeat_and_only_grow(self, mine: Store, theirs: Store, key: str) -> None:
        """Versions never repeat, over overwriting, removal and re-creation; and grow, where they are fences."""
        versions: list[int] = []
        for _ in range(20):
            for client, other in ((mine, theirs), (theirs, mine)):
                created = put(client, key, b"1")
                changed = put(other, key, b"2", created.version)
                versions += [created.version, changed.version]
                assert nothing_stands(client.invalidate(key, changed.version))

        assert ABSENT not in versions
        assert len(set(versions)) == len(versions)
        assert versions == sorted(versions) or not mine.traits.fences
        pairs = zip(versions[::2], versions[1::2], strict=True)
        assert all(created < changed for created, changed in pairs), "an overwriting must always make a version grow"

    def test_one_of_fifty_wins_what_nobody_holds(self, mine: Store, theirs: Store, key: str) -> None:
        """Of fifty that put where nothing stands one wins, and all are told who."""

        def contend(number: int) -> Entry | None:
            client = (mine, theirs)[number % 2]
            return client.put_if_version(key, b"%d" % number, ABSENT, LONG)

        answers = at_once(contend)

        assert answers[0] is not None
        assert set(answers) == {mine.get(key)}
        assert int(answers[0].value) in range(MANY)

    def test_one_of_fifty_wins_a_version(self, mine: Store, theirs: Store, key: str) -> None:
        """Of fifty that overwrite the same version one wins, and all are told who."""
        start = put(mine, key, b"start")

        def contend(number: int) -> Entry | None:
            client = (mine, theirs)[number % 2]
            return client.put_if_version(key, b"%d" % number, start.version, LONG)

        answers = at_once(contend)

        assert answers[0] is not None
        assert set(answers) == {mine.get(key)}
        assert answers[0].version != start.version

    def test_no_update_is_lost(self, mine: Store, theirs: Store, key: str) -> None:
        """Ten that count up together by compare-and-set lose no step."""
        put(mine, key, b"0")

        def count(number: int) -> None:
            client = (mine, theirs)[number % 2]
            standing = client.get(key)
            for step in range(5):
                mark = b"%d.%d" % (number, step)
                while True:
                    assert standing is not None
                    wanted = b"%d %b" % (int(standing.value.split()[0]) + 1, mark)
                    standing = client.put_if_version(key, wanted, standing.version, LONG)
                    assert standing is not None
                    if standing.value == wanted:
                        break

        at_once(count, 10)

        standing = mine.get(key)
        assert standing is not None
        assert standing.value.split()[0] == b"50"

    def test_one_of_fifty_takes_over_from_one_of_fifty(self, mine: Store, theirs: Store, key: str) -> None:
        """Of fifty that remove the same version and then put, one stands: the late removals don't touch it."""
        start = put(mine, key, b"start")

        def replace(number: int) -> Entry | None:
            client = (mine, theirs)[number % 2]
            standing = client.invalidate(key, start.version)
            assert standing != start
            return client.put_if_version(key, b"%d" % number, ABSENT, LONG)

        answers = at_once(replace)

        assert answers[0] is not None
        assert set(answers) == {mine.get(key)}

    def test_success_is_answered_with_what_was_written(self, mine: Store, theirs: Store, key: str) -> None:
        """Each verb that succeeds answers with what stands, and both clients read the same."""
        assert mine.get(key) is theirs.get(key) is None

        first = mine.put_if_version(key, b"first", ABSENT, LONG)
        assert first is not None
        assert first.value == b"first"
        assert isinstance(first.version, int)
        assert first.version > ABSENT
        assert theirs.get(key) == mine.get(key) == first

        second = theirs.put_if_version(key, b"2", first.version, LONG)
        assert second is not None
        assert second.value == b"2"
        assert second.version > first.version
        assert mine.get(key) == theirs.get(key) == second

        assert nothing_stands(mine.invalidate(key, second.version))
        assert mine.get(key) is theirs.get(key) is None

    def test_a_refusal_is_answered_with_what_stands(self, mine: Store, theirs: Store, key: str) -> None:
        """A verb that is refused changes nothing, and tells who stands there."""
        standing = put(mine, key, b"stands")
        for version in (ABSENT, standing.version - 1, standing.version + 1, 1, 2**31, 2**62):
            if version != standing.version:
                assert theirs.put_if_version(key, b"other", version, LONG) == standing, version
                assert theirs.invalidate(key, version) == standing, version
        assert mine.get(key) == theirs.get(key) == standing

    def test_nothing_is_done_to_nothing(self, mine: Store, key: str) -> None:
        """Where nothing stands no version matches, and the answer is None."""
        for version in (1, 2, 2**31, 2**62):
            assert mine.put_if_version(key, b"x", version, LONG) is None, version
            assert nothing_stands(mine.invalidate(key, version)), version
        assert nothing_stands(mine.invalidate(key, ABSENT))
        assert mine.get(key) is None

    def test_a_put_that_comes_after_the_removal_does_nothing(self, mine: Store, theirs: Store, key: str) -> None:
        """A renewal which arrives after the release does not bring the entry back."""
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("put_if_version", 1, late())
        unanswered(lambda: faulty.put_if_version(key, b"renewed", entry.version, LONG))
        assert nothing_stands(theirs.invalidate(key, entry.version))

        assert faulty.deliver() == 1

        assert mine.get(key) is theirs.get(key) is None

    def test_a_removal_that_comes_late_does_nothing(self, mine: Store, theirs: Store, key: str) -> None:
        """A release which arrives after the next holder has come does not touch its entry."""
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("invalidate", 1, late())
        unanswered(lambda: faulty.invalidate(key, entry.version))
        assert nothing_stands(mine.invalidate(key, entry.version))
        standing = put(theirs, key, b"theirs")

        assert faulty.deliver() == 1

        assert mine.get(key) == theirs.get(key) == standing

    def test_a_put_can_be_repeated_after_a_lost_reply(self, mine: Store, key: str) -> None:
        """The second of two same puts is refused, and its answer shows that the first has succeeded."""
        for version in (ABSENT, put(mine, other := key + ":standing", b"stands").version):
            where = key if version == ABSENT else other
            faulty = FaultyStore(mine)
            faulty.on("put_if_version", 1, lose_reply)
            unanswered(lambda: faulty.put_if_version(where, b"mine", version, LONG))  # noqa: B023 - called at once
            first = mine.get(where)

            again = faulty.put_if_version(where, b"mine", version, LONG)

            assert again is not None
            assert again.value == b"mine"
            assert again == first == mine.get(where), "a repeated put must not write twice"

    def test_a_removal_can_be_repeated_after_a_lost_reply(self, mine: Store, theirs: Store, key: str) -> None:
        """The second of two same removals finds nothing, or the next holder, which it leaves alone."""
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("invalidate", 1, lose_reply)
        unanswered(lambda: faulty.invalidate(key, entry.version))

        assert nothing_stands(faulty.invalidate(key, entry.version))
        standing = put(theirs, key, b"theirs")
        assert faulty.invalidate(key, entry.version) == standing

    def test_a_read_changes_nothing(self, mine: Store, theirs: Store, key: str) -> None:
        """A read can be lost, repeated and come late: what stands keeps its version."""
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(theirs)
        for fault in (lose_request, lose_reply, late(before=1)):
            faulty.on("get", 1, fault)
            unanswered(lambda: faulty.get(key))

        assert faulty.get(key) == mine.get(key) == entry

    def test_what_arrives_twice_is_applied_once(self, mine: Store, theirs: Store, key: str) -> None:
        """A put or removal that arrives twice, in a row or later, does no more than the first of the two did."""
        faulty = FaultyStore(mine)
        for verb in ("put_if_version", "invalidate"):
            faulty.on(verb, 1, duplicate)
            faulty.on(verb, 2, echo())
        first = put(faulty, key, b"first")
        second = put(faulty, key, b"second", first.version)
        assert mine.get(key) == second

        assert faulty.deliver() == 1
        assert mine.get(key) == second

        assert nothing_stands(faulty.invalidate(key, second.version))
        standing = put(theirs, key, b"theirs")
        assert nothing_stands(faulty.invalidate(key, standing.version))
        standing = put(theirs, key, b"theirs again")
        assert faulty.deliver() == 1
        assert mine.get(key) == theirs.get(key) == standing
