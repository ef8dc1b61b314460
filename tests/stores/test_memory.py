"""`MemoryStore` and `AsyncMemoryStore`, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caslock.store import ABSENT, AsyncStore, Entry, Store
from caslock.stores.memory import AsyncMemoryStore, MemoryStore

ROOT = Path(__file__).parent.parent.parent


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Give a scripted clock."""
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    """Give an empty memory on it."""
    return MemoryStore(clock=clock)


def put(store: MemoryStore, key: str = "k", value: bytes = b"v", version: int = ABSENT, ttl: float = 10.0) -> int:
    """Write, and give the version under which it stands."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    return entry.version


def test_a_stale_version_neither_removes_nor_overwrites(store: MemoryStore) -> None:
    """Who comes back with the version of an earlier tenure changes nothing, and is told who stands."""
    stale = put(store)
    store.invalidate("k", stale)
    standing = Entry(b"other", put(store, value=b"other"))
    assert store.invalidate("k", stale) == standing
    assert store.put_if_version("k", b"mine", stale, 10) == standing
    assert store.put_if_version("k", b"mine", ABSENT, 10) == standing
    assert store.get("k") == standing


def test_no_version_comes_twice(store: MemoryStore, clock: Clock) -> None:
    """Versions only grow across removal, expiry, renewal and re-creation."""
    seen = [put(store)]
    seen.append(put(store, version=seen[-1]))
    store.invalidate("k", seen[-1])
    seen.append(put(store))
    clock.now += 11
    seen.append(put(store))
    assert seen == sorted(set(seen))
    assert seen[0] > ABSENT


def test_an_expired_entry_does_not_stand(store: MemoryStore, clock: Clock) -> None:
    """At the end of its ttl an entry is gone: it can be neither renewed nor removed, only replaced."""
    version = put(store, ttl=10)
    clock.now += 9.999
    assert store.get("k") is not None
    clock.now += 0.001
    assert store.put_if_version("k", b"mine", version, 10) is None
    assert store.invalidate("k", version) is None
    assert store.get("k") is None
    assert put(store) > version


def test_exactly_one_of_50_threads_wins(store: MemoryStore) -> None:
    """Of 50 threads that put where nothing stands, one succeeds, and all see the same entry."""
    barrier = threading.Barrier(50)

    def contend(number: int) -> Entry | None:
        barrier.wait()
        return store.put_if_version("k", b"%d" % number, ABSENT, 10)

    with ThreadPoolExecutor(50) as threads:
        assert set(threads.map(contend, range(50))) == {store.get("k")}


def test_what_has_expired_does_not_pile_up(store: MemoryStore, clock: Clock) -> None:
    """A hundred thousand keys, locked once each and never released, leave no more than the live ones and as many."""
    for number in range(100_000):
        clock.now += 0.01
        put(store, str(number), ttl=10)  # So 1,000 of them are alive.
    assert len(store._leases) <= 2001


def test_what_is_released_is_gone(store: MemoryStore) -> None:
    """A removed entry leaves nothing behind, however long its lease was."""
    for number in range(1000):
        store.invalidate(str(number), put(store, str(number), ttl=1e9))
    assert not store._leases


def test_an_entry_that_lives_is_never_swept(store: MemoryStore, clock: Clock) -> None:
    """The sweep passes over what still stands."""
    lasting = {f"lasting {number}": put(store, f"lasting {number}", ttl=1e6) for number in range(10)}
    for number in range(1000):
        clock.now += 1
        put(store, str(number), ttl=1)
    assert {key: store.get(key) for key in lasting} == {key: (b"v", version) for key, version in lasting.items()}


def test_both_apis_share_one_memory(store: MemoryStore) -> None:
    """What blocking code writes stands for asyncio too, at one place; versions are of one counter."""

    async def main() -> None:
        shared = AsyncMemoryStore(store)
        assert shared.traits == store.traits
        version = put(store)
        assert await shared.get("k") == (b"v", version)
        assert await shared.put_if_version("k", b"mine", ABSENT, 10) == (b"v", version)
        assert await shared.put_if_version("k", b"mine", version, 10) == (b"mine", version + 1)
        assert await shared.invalidate("k", version + 1) is None
        assert store.get("k") is None

    asyncio.run(main())


def test_every_memory_is_a_place_of_its_own() -> None:
    """Two memories never share a place or an entry, and both kinds keep the contract's shape."""
    one, two, three = MemoryStore(), MemoryStore(), AsyncMemoryStore()
    assert len({one.traits.place, two.traits.place, three.traits.place}) == 3
    assert one.traits.place.startswith("memory://")
    assert one.traits.place in repr(one)
    assert three.traits.place in repr(three)
    put(one)
    assert two.get("k") is None
    assert isinstance(one, Store)
    assert isinstance(three, AsyncStore)


FORK = """
import os, threading
from caslock.stores.memory import MemoryStore
store = MemoryStore()
place = store.traits.place
stop = threading.Event()
def use():
    while not stop.is_set():
        entry = store.put_if_version("busy", b"", 0, 60)
        store.invalidate("busy", entry.version)
thread = threading.Thread(target=use)
thread.start()
store.put_if_version("k", b"before", 0, 60)
for _ in range(100):
    child = os.fork()
    if child == 0:
        assert store.get("k").value == b"before" and store.traits.place != place
        assert store.put_if_version("mine", b"", 0, 60).value == b""
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and store.get("mine") is None and store.traits.place == place
stop.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_has_a_copy_that_works() -> None:
    """A fork while another thread is inside a verb gives the child a memory of its own, never a stuck mutex."""
    subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, check=True, timeout=50)
