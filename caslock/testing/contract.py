"""The law of this file: whatever passes `StoreContract` can carry a lock; what breaks locks in the field comes first.

Subclass it with one fixture, and pytest runs the contract on your store::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)  # a Store or an AsyncStore

What a store can do beyond the three verbs is tried where it says that it can: the tests of `WakingStore` and of
`BatchingStore` return at once on a store that is none.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

import pytest

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import (
    ABSENT,
    MAX_VALUE,
    WOKEN,
    AsyncStore,
    BatchingStore,
    Entry,
    Put,
    Removal,
    Store,
    WakingStore,
)
from caslock.testing.drive import driven
from caslock.testing.extremes import KEYS, VALUES, salted
from caslock.testing.faults import FaultyStore, duplicate, echo, late, lose_reply, lose_request

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LONG: Final = 60.0
"""Seconds of a lease that no test outlives."""

COARSE: Final = 0.5
"""Seconds of overstay from which on a store's clock is taken to count whole seconds."""

SHORT: Final = 0.2
"""Seconds of a lease that a test waits for."""

WAITED: Final = b"waited"
"""What is put by one that waits."""

PATIENT: Final = 4.0
"""Seconds of a wait that is to end long before: by half of them."""

PAUSE: Final = 0.1
"""Seconds in which what was begun is most likely under way, and what was set off has most likely happened."""

MANY: Final = 50


class StoreContract:
    """The contract of a store: subclass it with a fixture `store`.

    `another_store` should be a second client of the same place, where there can be one.
    """

    @pytest.fixture
    def another_store(self, store: Store | AsyncStore) -> Store | AsyncStore:
        """Give another client of the same place; override it where there can be one."""
        return store

    @pytest.fixture
    def mine(self, store: Store | AsyncStore) -> Store:
        """One client, whose verbs can simply be called."""
        return driven(store)

    @pytest.fixture
    def theirs(self, another_store: Store | AsyncStore) -> Store:
        """Another client."""
        return driven(another_store)

    @pytest.fixture
    def key(self) -> str:
        """A key that no other test uses."""
        return f"contract:{uuid4().hex}"

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

    def test_who_waits_for_what_has_passed_waits_no_longer(self, mine: Store, theirs: Store, key: str) -> None:
        """Who waits for what was removed or overwritten, has expired or never stood puts at once, or is told."""
        if not isinstance(mine, WakingStore):
            return
        passed = {f"{key}:never": 1}
        for name in ("removed", "overwritten", "expired"):
            passed[f"{key}:{name}"] = put(
                theirs, f"{key}:{name}", b"1", ttl=SHORT if name == "expired" else LONG
            ).version
        newer = put(theirs, f"{key}:overwritten", b"2", passed[f"{key}:overwritten"])
        assert nothing_stands(theirs.invalidate(f"{key}:removed", passed[f"{key}:removed"]))
        until_gone(mine, f"{key}:expired", SHORT)

        for name, version in passed.items():
            took, answer = Waiter(mine, name, version).result()
            assert took < PATIENT / 2, f"{name} was waited for {took:.3f} s"
            assert answer is not None
            assert answer == theirs.get(name)
            assert answer == newer if name.endswith("overwritten") else answer.value == WAITED

    def test_a_removal_ends_a_wait(self, mine: Store, theirs: Store, key: str) -> None:
        """Who waits for a version puts when it is removed, by another client or by its own, alone or with others."""
        if not isinstance(mine, WakingStore):
            return
        for number, remover in enumerate((theirs, mine) * 2):
            name = f"{key}:{number}"
            entry = put(mine, name, b"stands")
            waiter = Waiter(mine, name, entry.version)
            time.sleep(PAUSE)  # were it too short, the version would have passed, and the test prove less
            answers = None
            if isinstance(remover, BatchingStore) and number >= len((theirs, mine)):
                answers = remover.invalidate_many([Removal(name, entry.version)])
            if answers is None:
                assert nothing_stands(remover.invalidate(name, entry.version))
            took, answer = waiter.result()
            assert took < PATIENT / 2, f"who waited for {name} was not woken for {took:.3f} s"
            assert answer is not None
            assert answer.value == WAITED
            assert answer == theirs.get(name)

    def test_each_removal_wakes_one(self, mine: Store, theirs: Store, key: str) -> None:
        """Of two that wait for the next removal, the first wakes no more than one, and the second the other."""
        if not isinstance(mine, WakingStore) or not isinstance(theirs, WakingStore):
            return
        waiters = [Waiter(client, key, ABSENT) for client in (mine, theirs)]
        time.sleep(PAUSE)  # were it too short, who comes late would wait for the next removal, and the test prove less
        for removals in range(1, int(PATIENT / PAUSE / 2)):
            standing = mine.get(key) or theirs.put_if_version(key, b"stands", ABSENT, LONG)
            assert standing is not None
            assert nothing_stands(mine.invalidate(key, standing.version))
            time.sleep(PAUSE)  # were it too short, the test would prove less
            over = sum(waiter.over for waiter in waiters)
            assert over <= removals, "one removal has woken two"
            if over == len(waiters):
                break

        tooks = [took for took, _ in (waiter.result() for waiter in waiters)]
        assert max(tooks) < PATIENT / 2 + PAUSE * 5, f"two that waited were woken after {tooks} s"

    def test_who_wait_take_turns(self, mine: Store, theirs: Store, key: str) -> None:
        """Ten that wait for one key, and put when it is removed, stand there one at a time, and all come to it."""
        clients, inside = (mine, theirs), threading.Lock()

        def take_a_turn(number: int) -> float:
            client, value, began = clients[number % 2], b"%d" % number, time.monotonic()
            assert isinstance(client, WakingStore)
            standing = client.put_if_version(key, value, ABSENT, LONG)
            while standing is None or standing.value != value:
                try:
                    version = standing.version if standing else ABSENT
                    standing = client.put_when_free(key, value, version, LONG, PATIENT)
                except StoreUnavailable as unavailable:
                    assert not unavailable.sent  # noqa: PT017 - too many wait already
                    time.sleep(PAUSE / 10)
            assert inside.acquire(blocking=False), "two stand there at once"
            time.sleep(PAUSE / 20)  # so that the others come to wait
            assert client.get(key) == standing
            inside.release()
            client.invalidate(key, standing.version)
            return time.monotonic() - began

        if all(isinstance(client, WakingStore) for client in clients):
            tooks = at_once(take_a_turn, 10)
            assert max(tooks) < PATIENT, f"ten turns took up to {max(tooks):.3f} s"
            assert mine.get(key) is None

    def test_a_wait_ends_in_time(self, mine: Store, theirs: Store, key: str) -> None:
        """While nothing is removed a wait lasts for its timeout and no longer; nothing of it lands afterwards."""
        if not isinstance(mine, WakingStore):
            return
        entry = put(theirs, key, b"stands")
        for version in (entry.version, ABSENT):
            outcomes = (Waiter(mine, key, version, SHORT).result() for _ in range(3))  # one may end early for no reason
            assert any(lasts(took) and answer == entry for took, answer in outcomes), f"no wait lasts for {SHORT} s"
        free = (Waiter(mine, f"{key}:{number}", ABSENT, SHORT).result() for number in range(3))
        assert any(lasts(took) and answer and answer.value == WAITED for took, answer in free)

        assert mine.get(key) == entry
        assert nothing_stands(theirs.invalidate(key, entry.version))
        time.sleep(PAUSE)  # were it too short, the test would prove less
        assert mine.get(key) is None, "a wait that was over has put"

    def test_the_lease_of_who_has_waited_begins_when_it_is_written(self, mine: Store, theirs: Store, key: str) -> None:
        """The ttl counts from the moment at which the wait ends, not from that at which it began."""
        if not isinstance(mine, WakingStore):
            return
        entry = put(theirs, key, b"stands")
        waiter, lease = Waiter(mine, key, entry.version, ttl=SHORT), Lease(key, SHORT)
        time.sleep(1.5 * SHORT)
        lease.asked()
        assert nothing_stands(theirs.invalidate(key, entry.version))
        _, answer = waiter.result()
        lease.answered()
        assert answer is not None
        assert answer.value == WAITED
        lease.watch(theirs)

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


class Lease:
    """One lease, and the bounds of what it may last: each seen from outside, so that a slow machine proves nothing."""

    def __init__(self, key: str, ttl: float) -> None:
        """Plan a lease."""
        self.key = key
        self.ttl = ttl

    def begin(self, store: Store, version: int = ABSENT) -> Entry:
        """Put it."""
        self.asked()
        entry = put(store, self.key, b"lease", version, self.ttl)
        self.answered()
        return entry

    def asked(self) -> None:
        """Note that it can't have begun before now."""
        self._asked = time.monotonic()

    def answered(self) -> None:
        """Note that it has begun by now."""
        self._answered = time.monotonic()

    def watch(self, store: Store) -> None:
        """Watch it until it is over."""
        overstay = store.traits.overstay
        while True:
            looked = time.monotonic()
            if store.get(self.key) is None:
                lived = time.monotonic() - self._asked
                assert lived >= self.ttl, f"a lease of {self.ttl} s was over after {lived:.4f} s"
                return
            lived = looked - self._answered
            bound = self.ttl + overstay
            assert lived <= bound, f"a lease of {self.ttl} s still stood after {lived:.3f} s, more than {bound:.3f} s"
            time.sleep(0.005)


class Waiter:
    """One that waits to put `WAITED`, in a thread of its own."""

    def __init__(
        self, store: WakingStore, key: str, version: int, timeout: float | None = None, *, ttl: float = LONG
    ) -> None:
        """Begin to wait, for `PATIENT` seconds if nothing else is said."""
        self._outcome: Future[tuple[float, Entry | None]] = Future()

        def wait() -> None:
            begun = time.monotonic()
            try:
                answer = store.put_when_free(key, WAITED, version, ttl, PATIENT if timeout is None else timeout)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                self._outcome.set_exception(error)
            else:
                self._outcome.set_result((time.monotonic() - begun, answer))

        threading.Thread(target=wait, daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether it waits no more."""
        return self._outcome.done()

    def result(self) -> tuple[float, Entry | None]:
        """Wait for its end, and tell how many seconds it has waited, and what its answer was."""
        return self._outcome.result(60)


def lasts(took: float) -> bool:
    """Whether that is how long a wait of `SHORT` seconds may take."""
    return 0.9 * SHORT <= took < SHORT + PATIENT / 2


def nothing_stands(answer: Entry | None) -> bool:
    """Whether a removal is answered so: by None, or by `WOKEN`."""
    return answer is None or answer == WOKEN


def put(store: Store, key: str, value: bytes, version: int = ABSENT, ttl: float = LONG) -> Entry:
    """Put, and be sure that it has succeeded."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None, f"nothing stands under {key[:80]!r} after a put at {version}"
    assert entry.value == value, f"{entry} stands under {key[:80]!r} after a put at {version}"
    return entry


def until_gone(store: Store, key: str, ttl: float) -> None:
    """Wait for the end of a lease of `ttl` seconds, as the store sees it."""
    give_up = time.monotonic() + ttl + store.traits.overstay + 5.0
    while store.get(key) is not None:
        assert time.monotonic() < give_up, f"a lease of {ttl} s does not end"
        time.sleep(0.005)


def unanswered(verb: Callable[[], object]) -> None:
    """Call a verb that gets no answer."""
    with pytest.raises(StoreUnavailable):
        verb()


def at_once(act: Callable[[int], T], times: int = MANY) -> list[T]:
    """Call ``act(0)``, ``act(1)``, ... in as many threads, all at the same moment."""
    start = threading.Barrier(times)

    def one(number: int) -> T:
        start.wait(30)
        return act(number)

    with ThreadPoolExecutor(times) as threads:
        return list(threads.map(one, range(times)))
