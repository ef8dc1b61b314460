"""The law of this file: several keys are put together, all or none, and removed together, each for itself.

A store that says it can (`BatchingStore`) may still answer None: these can't travel together.  Then there is nothing to
try but that nothing was sent.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.store import ABSENT, BatchingStore, Put, Removal
from caslock.testing.faults import FaultyStore, lose_reply
from caslock.testing.steps import LONG, MANY, SHORT, Lease, at_once, nothing_stands, put, unanswered

if TYPE_CHECKING:
    from caslock.store import Store


class BatchContract:
    """Several keys: a part of `caslock.testing.StoreContract`."""

    def test_several_puts_are_all_written_or_none(self, mine: Store, theirs: Store, key: str) -> None:
        """Several puts are written if every version stands, else none; the answers tell what stands under each key."""
        if not isinstance(mine, BatchingStore):
            return
        names = [f"{key}:{number}" for number in range(3)]
        first = mine.put_many([Put(name, name.encode(), ABSENT, LONG) for name in names])
        assert [theirs.get(name) for name in names] == (first or [None] * 3)
        if first is None:  # they can't travel together: then nothing was sent
            return
        assert [entry and entry.value for entry in first] == [name.encode() for name in names]
        versions = [entry.version for entry in first if entry]
        second = mine.put_many([Put(name, b"2", version, LONG) for name, version in zip(names, versions, strict=True)])
        assert second is not None
        assert [entry and entry.value for entry in second] == [b"2"] * 3
        assert all(new and new.version > old for new, old in zip(second, versions, strict=True))

        free = f"{key}:free"
        for name, version in ((names[1], ABSENT), (names[1], versions[1]), (f"{key}:nothing", versions[1])):
            puts = [Put(free, b"3", ABSENT, LONG), Put(names[0], b"3", second[0].version if second[0] else 0, LONG)]
            puts.insert(1, Put(name, b"3", version, LONG))
            assert mine.put_many(puts) == [theirs.get(put.key) for put in puts]
            assert [theirs.get(name) for name in (*names, free, f"{key}:nothing")] == [*second, None, None]

    def test_each_of_several_puts_has_its_own_lease(self, mine: Store, theirs: Store, key: str) -> None:
        """Of several that were put together each ends when its own ttl is over."""
        if not isinstance(mine, BatchingStore):
            return
        short = Lease(key, SHORT)
        short.asked()
        if mine.put_many([Put(key, b"lease", ABSENT, SHORT), Put(f"{key}:long", b"long", ABSENT, LONG)]) is None:
            return
        short.answered()
        short.watch(theirs)
        standing = theirs.get(f"{key}:long")
        assert standing is not None
        assert standing.value == b"long"

    def test_several_puts_can_be_repeated_after_a_lost_reply(self, mine: Store, key: str) -> None:
        """The second of two same requests is refused, and its answers show that the first has succeeded."""
        if not isinstance(mine, BatchingStore):
            return
        puts = [Put(f"{key}:{number}", b"mine", ABSENT, LONG) for number in range(3)]
        faulty = FaultyStore(mine)
        faulty.on("put_many", 1, lose_reply)
        unanswered(lambda: faulty.put_many(puts))
        first = [mine.get(put.key) for put in puts]

        again = faulty.put_many(puts)

        assert again in (None, first)
        assert first == [mine.get(put.key) for put in puts], "a repeated put must not write twice"
        assert len({entry is None for entry in first}) == 1

    def test_one_of_fifty_wins_several(self, mine: Store, theirs: Store, key: str) -> None:
        """Of fifty that put the same keys together, in any order, one wins them all."""
        if not isinstance(mine, BatchingStore) or not isinstance(theirs, BatchingStore):
            return
        clients, names = (mine, theirs), [f"{key}:{number}" for number in range(4)]

        def contend(number: int) -> object:
            turned = names[number % 4 :] + names[: number % 4]
            puts = [Put(name, b"%d" % number, ABSENT, LONG) for name in turned]
            return clients[number % 2].put_many(puts)

        if None in at_once(contend):
            return
        winners = {entry and entry.value for entry in map(mine.get, names)}
        assert len(winners) == 1
        assert None not in winners

    def test_several_removals_touch_only_what_matches(self, mine: Store, theirs: Store, key: str) -> None:
        """Of several removals each removes what stands at its version; the answers tell what stands then."""
        if not isinstance(mine, BatchingStore):
            return
        entries = [put(theirs, f"{key}:{number}", b"%d" % number) for number in range(3)]
        stale = entries[1].version
        entries[1] = put(theirs, f"{key}:1", b"newer", stale)
        removals = [
            Removal(f"{key}:0", entries[0].version),
            Removal(f"{key}:1", stale),
            Removal(f"{key}:nothing", stale),
        ]

        answers = mine.invalidate_many(removals)

        standing = [theirs.get(f"{key}:{number}") for number in range(3)]
        if answers is None:
            assert standing == entries
            return
        assert standing == [None, *entries[1:]]
        assert [None if nothing_stands(answer) else answer for answer in answers] == [None, entries[1], None]

    def test_fifty_keys_can_travel_together(self, mine: Store, theirs: Store, key: str) -> None:
        """Fifty keys are put, and removed, as one is."""
        if not isinstance(mine, BatchingStore):
            return
        names = [f"{key}:{number}" for number in range(MANY)]
        written = mine.put_many([Put(name, name.encode() * 20, ABSENT, LONG) for name in names])
        if written is None:
            return
        assert [entry and entry.value for entry in written] == [name.encode() * 20 for name in names]
        assert [theirs.get(name) for name in names] == written
        versions = [entry.version for entry in written if entry]

        answers = mine.invalidate_many(list(map(Removal, names, versions)))

        assert answers is not None
        assert len(answers) == MANY
        assert all(map(nothing_stands, answers))
        assert not any(map(theirs.get, names))
