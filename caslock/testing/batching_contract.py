"""Several keys in one request, by `put_many` and `invalidate_many`: a part of `StoreContract`.

A store may answer None, because it can't change these keys together.  The rest of the test is then skipped.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

import pytest

from caslock.store import ABSENT, BatchingStore, Put, Removal, Store
from caslock.testing.faults import FaultyStore, lose_reply
from caslock.testing.steps import (
    LONG,
    MANY,
    SHORT,
    Clients,
    Lease,
    absent,
    at_once,
    put,
    skip_unless_leases_end,
    unanswered,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.store import Entry

UNBATCHED: Final = "the store has no put_many and invalidate_many"


class BatchingContract:
    """Tests of `put_many` and `invalidate_many`."""

    def test_several_puts_are_all_written_or_none(self, caslock_clients: Clients) -> None:
        """Several puts are written if every one finds its version, else none; each answer is the entry now."""
        mine, theirs, key = _batching(caslock_clients)
        names = [f"{key}:{number}" for number in range(3)]
        answers = mine.put_many([Put(name, name.encode(), ABSENT, LONG) for name in names])
        assert [theirs.get(name) for name in names] == (answers or [None] * 3)
        first = _together(answers)
        assert [entry.value for entry in first] == [name.encode() for name in names]
        second = _together(mine.put_many([Put(name, b"2", first[i].version, LONG) for i, name in enumerate(names)]))
        assert [entry.value for entry in second] == [b"2"] * 3
        pairs = zip(second, first, strict=True)
        assert all(new.version > old.version or not mine.traits.fences for new, old in pairs)

        free, stale = f"{key}:free", first[1].version
        for name, version in ((names[1], ABSENT), (names[1], stale), (f"{key}:nothing", stale)):
            puts = [Put(free, b"3", ABSENT, LONG), Put(name, b"3", version, LONG)]
            puts.append(Put(names[0], b"3", second[0].version, LONG))
            assert mine.put_many(puts) == [theirs.get(put.key) for put in puts]
            assert [theirs.get(name) for name in (*names, free, f"{key}:nothing")] == [*second, None, None]

    def test_each_of_several_puts_has_its_own_lease(self, caslock_clients: Clients) -> None:
        """Entries that were put together expire each after its own ttl."""
        mine, theirs, key = _batching(caslock_clients)
        skip_unless_leases_end(mine)
        short = Lease(key, SHORT)
        short.asked()
        answers = mine.put_many([Put(key, b"lease", ABSENT, SHORT), Put(f"{key}:long", b"long", ABSENT, LONG)])
        _together(answers)
        short.answered()
        short.watch(theirs)
        observed = theirs.get(f"{key}:long")
        assert observed is not None
        assert observed.value == b"long"

    def test_several_puts_can_be_retried_after_a_lost_reply(self, caslock_clients: Clients) -> None:
        """The second of two same requests is refused, and its answers show that the first succeeded."""
        mine, _, key = _batching(caslock_clients)
        puts = [Put(f"{key}:{number}", b"mine", ABSENT, LONG) for number in range(3)]
        faulty = FaultyStore(mine)
        faulty.on("put_many", 1, lose_reply)
        unanswered(lambda: faulty.put_many(puts))
        first = [mine.get(put.key) for put in puts]

        again = faulty.put_many(puts)

        assert again in (None, first)
        assert first == [mine.get(put.key) for put in puts], "a retried put must not write twice"
        assert len({entry is None for entry in first}) == 1
        _together(again)

    def test_one_of_fifty_wins_several_keys(self, caslock_clients: Clients) -> None:
        """Of fifty that put the same keys together, in any order, one wins them all."""
        mine, theirs, key = _batching(caslock_clients)
        names = [f"{key}:{number}" for number in range(4)]

        def contend(number: int) -> Sequence[Entry | None] | None:
            turned = names[number % 4 :] + names[: number % 4]
            puts = [Put(name, b"%d" % number, ABSENT, LONG) for name in turned]
            return (mine, theirs)[number % 2].put_many(puts)

        for answers in at_once(contend):
            _together(answers)
        winners = {entry and entry.value for entry in map(mine.get, names)}
        assert len(winners) == 1
        assert None not in winners

    def test_several_removals_each_need_their_version(self, caslock_clients: Clients) -> None:
        """Of several removals each removes the entry that has its version; each answer is the entry now."""
        mine, theirs, key = _batching(caslock_clients)
        entries = [put(theirs, f"{key}:{number}", b"%d" % number) for number in range(3)]
        stale = entries[1].version
        entries[1] = put(theirs, f"{key}:1", b"newer", stale)
        removals = [Removal(f"{key}:0", entries[0].version), Removal(f"{key}:1", stale), Removal(f"{key}:none", stale)]

        answers = mine.invalidate_many(removals)

        observed = [theirs.get(f"{key}:{number}") for number in range(3)]
        assert observed == (entries if answers is None else [None, *entries[1:]])
        if answers is None:
            pytest.skip("the store answered None: it can't change these keys together")
        assert [None if absent(answer) else answer for answer in answers] == [None, entries[1], None]

    def test_fifty_keys_can_be_changed_together(self, caslock_clients: Clients) -> None:
        """Fifty keys are put, and removed, as one is."""
        mine, theirs, key = _batching(caslock_clients)
        names = [f"{key}:{number}" for number in range(MANY)]
        written = _together(mine.put_many([Put(name, name.encode() * 20, ABSENT, LONG) for name in names]))
        assert [entry.value for entry in written] == [name.encode() * 20 for name in names]
        assert [theirs.get(name) for name in names] == written

        answers = mine.invalidate_many(
            [Removal(name, entry.version) for name, entry in zip(names, written, strict=True)]
        )

        assert answers is not None
        assert len(answers) == MANY
        assert all(map(absent, answers))
        assert not any(map(theirs.get, names))


class _Batching(Store, BatchingStore, Protocol):
    """A store with `put_many` and `invalidate_many`."""


def _batching(clients: Clients) -> tuple[_Batching, _Batching, str]:
    if not isinstance(clients.mine, BatchingStore) or not isinstance(clients.theirs, BatchingStore):
        pytest.skip(UNBATCHED)
    return cast("tuple[_Batching, _Batching, str]", clients)


def _together(answers: Sequence[Entry | None] | None) -> list[Entry]:
    """Give the entries that were put together; skip the rest of the test if the store can't do that."""
    if answers is None:
        pytest.skip("the store answered None: it can't change these keys together")
    assert None not in answers
    return [entry for entry in answers if entry is not None]
