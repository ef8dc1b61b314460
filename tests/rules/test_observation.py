"""A lease ends at a store that does not end leases by itself, and only once its holder has stopped believing."""

from __future__ import annotations

import time

import pytest

from caslock import Lock, LockLost
from caslock.local import clock
from caslock.local.workers import run
from caslock.protocol import sightings
from caslock.protocol.observation import ObservingStore
from caslock.protocol.record import Record, encode
from caslock.protocol.sightings import Sightings
from caslock.store import ABSENT
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.lasting import Lasting

TTL = 0.6


class Observer:
    """A store without expiry, observed by a clock that the test moves."""

    def __init__(self) -> None:
        self.below = AsyncMemoryStore()
        self.now = 100.0
        self.store = ObservingStore(Lasting(self.below), lambda: self.now, Sightings())

    def put(self, value: bytes, version: int = ABSENT) -> bytes | None:
        entry = run(self.store.put_if_version("key", value, version, 30))
        return entry and entry.value

    def holds(self, value: bytes) -> int:
        """Let another process hold the key by that value, and return its version."""
        before = run(self.below.get("key"))
        entry = run(self.below.put_if_version("key", value, before.version if before else ABSENT, 10**6))
        assert entry is not None
        assert entry.value == value
        return entry.version


def record(ttl: float = 30.0, holds: tuple[str, ...] = ("theirs.1",), number: int = 1) -> bytes:
    return encode(Record("theirs", holds, ttl, f"theirs.1.{number}"))


@pytest.mark.parametrize("holds", [("theirs.1",), ("kept",)])
def test_a_version_that_was_there_for_a_whole_lease_is_written_over(holds: tuple[str, ...]) -> None:
    """Not before, however often it was looked at."""
    observer, theirs = Observer(), record(holds=holds)
    observer.holds(theirs)
    for _ in range(30):
        assert observer.put(b"mine") == theirs
        observer.now += 1.0
    assert observer.put(b"mine") == b"mine"


def test_a_renewed_lease_is_never_written_over() -> None:
    """Each version has its own time, and the write itself is refused after a renewal that was not seen."""
    observer = Observer()
    for number in range(5):
        theirs = record(number=number)
        observer.holds(theirs)
        assert observer.put(b"mine") == theirs
        observer.now += 29.9
    theirs = record(number=9)
    observer.now += 0.2  # the last one that was seen is over now
    observer.holds(theirs)
    assert observer.put(b"mine") == theirs
    observer.now += 29.9
    assert observer.put(b"mine") == theirs


def test_what_was_released_meanwhile_is_put_as_absent() -> None:
    """A version that was seen to be over, and was then removed, is forgotten."""
    observer = Observer()
    version = observer.holds(record())
    observer.put(b"mine")
    observer.now += 31.0
    assert run(observer.below.invalidate("key", version)) is None
    assert observer.put(b"mine") is None
    assert observer.put(b"mine") == b"mine"


def test_a_free_record_and_what_caslock_did_not_write_are_not_observed() -> None:
    """Anybody may write over the first at once, and nobody ever over the second."""
    for value in (record(holds=()), b"theirs", record().replace(b'"caslock":1', b'"caslock":2')):
        observer = Observer()
        observer.holds(value)
        observer.put(b"mine")
        observer.now += 1_000.0
        assert observer.put(b"mine") == value


def test_only_a_put_that_expects_absence_takes_over() -> None:
    """Any other one expects the version that it says."""
    observer, theirs = Observer(), record()
    version = observer.holds(theirs)
    observer.put(b"mine")
    observer.now += 31.0
    assert observer.put(b"mine", version + 1) == theirs
    assert observer.put(b"mine", version) == b"mine"


def test_a_process_observes_a_bounded_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it observes go on, however many others it meets, and make room when they are over for a minute."""
    monkeypatch.setattr(sightings, "MOST", 10)
    observer, theirs = Observer(), record()
    observer.holds(theirs)
    observer.put(b"mine")

    def meet_others() -> list[bytes]:
        names = [f"{number}" for number in range(20)]
        for name in names:
            run(observer.below.put_if_version(name, theirs, ABSENT, 10**6))
        entries = [run(observer.store.put_if_version(name, b"mine", ABSENT, 30)) for name in names]
        assert len(observer.store._seen._seen) <= sightings.MOST
        return [entry.value for entry in entries if entry]

    assert meet_others() == [theirs] * 20
    observer.now += 31.0
    assert observer.put(b"mine") == b"mine"
    assert meet_others() == [b"mine"] * 9 + [theirs] * 11
    observer.now += 31.0
    assert meet_others() == [b"mine"] * 19 + [theirs]


def test_a_store_that_is_watched_says_which_server_it_is() -> None:
    """As the store below says."""

    class Named(Lasting):
        async def identify(self) -> str | None:
            return "server 7"

    store = ObservingStore(Named(AsyncMemoryStore()), clock.now, Sightings())
    assert run(store.identify()) == "server 7"


def test_what_nobody_looks_at_any_more_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was given up is forgotten a while after the end of the lease that was seen."""
    monkeypatch.setattr(sightings, "MOST", 1)
    observer, theirs = Observer(), record()
    run(observer.below.put_if_version("another", theirs, ABSENT, 10**6))
    run(observer.store.put_if_version("another", b"mine", ABSENT, 30))
    observer.holds(theirs)
    for seconds in (31.0, sightings.REMEMBERED, 31.0):
        assert observer.put(b"mine") == theirs
        observer.now += seconds
    assert observer.put(b"mine") == b"mine"


def test_a_lock_takes_over_from_a_holder_that_is_gone() -> None:
    """A waiter has the key one ttl after it has seen the lease first, with a larger fence; the holder is told."""
    memory = MemoryStore()
    gone = Lock(Lasting(memory), "key", ttl=TTL, auto_renew=False).acquire()
    assert gone
    time.sleep(0.2)  # it had been there for a while
    began = clock.now()
    with Lock(Lasting(memory), "key", ttl=1000, timeout=200) as hold:
        assert clock.now() - began >= TTL
        assert hold.fence > gone.fence
        with pytest.raises(LockLost):
            gone.release()
        hold.ensure_held()
    assert memory.get("key") is None


def test_tries_that_do_not_wait_take_over_too() -> None:
    """What a process has seen counts for its next Lock at the same place, also of another store object."""
    memory = MemoryStore()
    assert Lock(Lasting(memory), "key", ttl=TTL, auto_renew=False).acquire()
    assert Lock(Lasting(memory), "key").acquire(timeout=0) is None
    time.sleep(TTL)
    hold = Lock(Lasting(memory), "key").acquire(timeout=0)
    assert hold
    hold.release()
