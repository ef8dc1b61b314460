"""The law of this file: whatever passes `StoreContract` can carry a lock; what breaks locks in the field comes first.

Subclass it with one fixture, and pytest runs the contract on your store::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)  # a Store or an AsyncStore
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

import pytest

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, MAX_VALUE, AsyncStore, Entry, Store
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
        assert theirs.invalidate(key, stale.version) is None
        standing = put(theirs, key, b"theirs")

        assert mine.invalidate(key, stale.version) == standing
        assert mine.get(key) == theirs.get(key) == standing

    def test_a_stale_holder_can_not_overwrite_what_another_has_put(self, mine: Store, theirs: Store, key: str) -> None:
        """A version that was removed overwrites nothing that stands now."""
        stale = put(mine, key, b"mine")
        assert theirs.invalidate(key, stale.version) is None
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
                assert client.invalidate(key, changed.version) is None

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

        assert mine.invalidate(key, second.version) is None
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
            assert mine.invalidate(key, version) is None, version
        assert mine.invalidate(key, ABSENT) is None
        assert mine.get(key) is None

    def test_a_put_that_comes_after_the_removal_does_nothing(self, mine: Store, theirs: Store, key: str) -> None:
        """A renewal which arrives after the release does not bring the entry back."""
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("put_if_version", 1, late())
        unanswered(lambda: faulty.put_if_version(key, b"renewed", entry.version, LONG))
        assert theirs.invalidate(key, entry.version) is None

        assert faulty.deliver() == 1

        assert mine.get(key) is theirs.get(key) is None

    def test_a_removal_that_comes_late_does_nothing(self, mine: Store, theirs: Store, key: str) -> None:
        """A release which arrives after the next holder has come does not touch its entry."""
        entry = put(mine, key, b"mine")
        faulty = FaultyStore(mine)
        faulty.on("invalidate", 1, late())
        unanswered(lambda: faulty.invalidate(key, entry.version))
        assert mine.invalidate(key, entry.version) is None
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

        assert faulty.invalidate(key, entry.version) is None
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

        assert faulty.invalidate(key, second.version) is None
        standing = put(theirs, key, b"theirs")
        assert faulty.invalidate(key, standing.version) is None
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
                assert theirs.invalidate(name, entry.version) is None, repr(name)
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
                assert theirs.invalidate(name, entry.version) is None, repr(name)

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
            assert theirs.invalidate(f"{key}:{number}", other.version) is None
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


class Lease:
    """One lease, and the bounds of what it may last: each seen from outside, so that a slow machine proves nothing."""

    def __init__(self, key: str, ttl: float) -> None:
        """Plan a lease."""
        self.key = key
        self.ttl = ttl

    def begin(self, store: Store, version: int = ABSENT) -> Entry:
        """Put it."""
        self._asked = time.monotonic()
        entry = put(store, self.key, b"lease", version, self.ttl)
        self._answered = time.monotonic()
        return entry

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
