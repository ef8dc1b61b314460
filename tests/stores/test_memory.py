"""`MemoryStore` and `AsyncMemoryStore`, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caslock.store import (
    ABSENT,
    WOKEN,
    AsyncBatchingStore,
    AsyncListingStore,
    AsyncQueueingStore,
    AsyncStore,
    BatchingStore,
    Entry,
    ListingStore,
    Put,
    QueueingStore,
    Removal,
    Store,
)
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent.parent


class Clock:
    """A clock that stops until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return a scripted clock."""
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    """Return an empty memory on it."""
    return MemoryStore(clock=clock)


def put(store: MemoryStore, key: str = "k", value: bytes = b"v", version: int = ABSENT, ttl: float = 10.0) -> int:
    """Write, and return its version."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    return entry.version


def test_versions_are_as_large_as_those_of_servers() -> None:
    """They are microseconds since 1970, which is more than 32 bits: a column too small for fences fails in a test."""
    assert 2**50 < put(MemoryStore()) < 2**53


def test_a_stale_version_neither_removes_nor_overwrites(store: MemoryStore) -> None:
    """A client that returns with the version of an earlier tenure changes nothing, and is shown who holds the key."""
    stale = put(store)
    store.invalidate("k", stale)
    observed = Entry(b"other", put(store, value=b"other"))
    assert store.invalidate("k", stale) == observed
    assert store.put_if_version("k", b"mine", stale, 10) == observed
    assert store.put_if_version("k", b"mine", ABSENT, 10) == observed
    assert store.get("k") == observed


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


def test_an_expired_entry_is_gone(store: MemoryStore, clock: Clock) -> None:
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
    """Of 50 threads that put where nothing is there, one succeeds, and all see the same entry."""
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
    """The sweep leaves live entries."""
    lasting = {f"lasting {number}": put(store, f"lasting {number}", ttl=1e6) for number in range(10)}
    for number in range(1000):
        clock.now += 1
        put(store, str(number), ttl=1)
    assert {key: store.get(key) for key in lasting} == {key: (b"v", version) for key, version in lasting.items()}


def test_both_apis_share_one_memory(store: MemoryStore) -> None:
    """What blocking code writes is there for asyncio too, at one location; versions are of one counter."""

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
    """Two memory stores never share a location or an entry, and both kinds have the contract's shape."""
    one, two, three = MemoryStore(), MemoryStore(), AsyncMemoryStore()
    assert len({one.traits.location, two.traits.location, three.traits.location}) == 3
    assert one.traits.location.startswith("memory://")
    assert one.traits.location in repr(one)
    assert three.traits.location in repr(three)
    put(one)
    assert two.get("k") is None
    assert all(isinstance(one, kind) for kind in (Store, QueueingStore, BatchingStore, ListingStore))
    assert all(
        isinstance(three, kind) for kind in (AsyncStore, AsyncQueueingStore, AsyncBatchingStore, AsyncListingStore)
    )


FORK = """
import os, threading
from caslock.stores.memory import MemoryStore
store = MemoryStore()
place = store.traits.location
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
        assert store.get("k").value == b"before" and store.traits.location != place
        assert store.put_if_version("mine", b"", 0, 60).value == b""
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and store.get("mine") is None and store.traits.location == place
stop.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_has_a_copy_that_works() -> None:
    """A fork while another thread is inside a verb gives the child a memory of its own, never a stuck mutex."""
    subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, check=True, timeout=50)


def until(happened: Callable[[], object]) -> None:
    """Look again and again until something has happened."""
    give_up = time.monotonic() + 50
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.0005)


def value_stands(store: MemoryStore, value: bytes) -> int:
    """Return its version."""
    entry = store.get("k")
    assert entry is not None
    assert entry.value == value
    return entry.version


def waits(store: MemoryStore, *, native: bool) -> Callable[[str, float], Entry | None]:
    """Return what waits for a key, by either API, and then puts there."""

    def wait(key: str, timeout: float) -> Entry | None:
        if native:
            return asyncio.run(AsyncMemoryStore(store).put_when_absent(key, b"mine", 10, timeout))
        return store.put_when_absent(key, b"mine", 10, timeout)

    return wait


class Waiters:
    """Threads and tasks that wait for one key, in the order in which they were started."""

    def __init__(self, store: MemoryStore) -> None:
        """Begin with none."""
        self.store = store
        self.woken: list[str] = []
        self.threads: list[threading.Thread] = []

    def lined_up(self) -> int:
        """How many wait in line."""
        return sum(map(len, self.store._lines.values()))

    def start(self, name: str, kind: str) -> None:
        """Start one, and see it wait in line."""
        lined_up = self.lined_up()
        self.threads.append(threading.Thread(target=self._thread if kind == "thread" else self._task, args=[name]))
        self.threads[-1].start()
        until(lambda: self.lined_up() == lined_up + 1)

    def _thread(self, name: str) -> None:
        assert self.store.put_when_absent("k", name.encode(), 60, 50) is not None
        self.woken.append(name)

    def _task(self, name: str) -> None:
        waiting = AsyncMemoryStore(self.store).put_when_absent("k", name.encode(), 60, 50)
        assert asyncio.run(waiting) is not None
        self.woken.append(name)

    def join(self) -> None:
        """See the end of all."""
        for thread in self.threads:
            thread.join(50)
            assert not thread.is_alive()


def test_one_removal_wakes_one_waiter_in_order(store: MemoryStore) -> None:
    """Threads, and tasks of other loops, wait in one line: each removal lets the first of it put, and says so."""
    waiters = Waiters(store)
    version = put(store)
    for number in range(8):
        waiters.start(str(number), ("thread", "task")[number % 2])
    for number in range(8):
        assert store.invalidate("k", version) == WOKEN
        until(lambda: len(waiters.woken) > number)  # noqa: B023 - called at once
        assert waiters.woken == [str(earlier) for earlier in range(number + 1)]
        version = put(store, value=b"%d" % number, version=value_stands(store, b"%d" % number))
    waiters.join()
    assert store.invalidate("k", version) is None
    assert not store._lines


def test_only_a_removal_of_that_key_wakes(store: MemoryStore, clock: Clock) -> None:
    """A put, an expiry, a refused removal and another key's removal wake nobody."""
    waiters, version = Waiters(store), put(store)
    waiters.start("first", "thread")
    version = put(store, version=version)
    assert store.invalidate("k", version + 1) == (b"v", version)
    assert store.invalidate("other", put(store, "other")) is None
    clock.now += 11
    assert store.invalidate("k", version) is None
    assert waiters.lined_up() == 1
    assert store.invalidate("k", put(store)) == WOKEN
    waiters.join()


@pytest.mark.parametrize("native", [False, True])
def test_where_nothing_is_there_it_puts_at_once(store: MemoryStore, clock: Clock, native: bool) -> None:  # noqa: FBT001 - a parameter
    """Where nothing ever stood, or it was removed or has expired, nobody waits."""
    wait, before = waits(store, native=native), put(store, "another")
    with Stopwatch() as watch:
        assert wait("k", 20) == (b"mine", before + 1)
        assert store.invalidate("k", before + 1) is None
        assert wait("k", 20) == (b"mine", before + 2)
        clock.now += 11
        assert wait("k", 20) == (b"mine", before + 3)
    assert watch.seconds < 20
    assert not store._lines


@pytest.mark.parametrize("native", [False, True])
def test_after_its_timeout_it_puts_where_nothing_is_there(store: MemoryStore, clock: Clock, native: bool) -> None:  # noqa: FBT001 - a parameter
    """The end of a lease wakes nobody, but a waiter that has waited through it puts."""
    first = put(store)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waits(store, native=native), "k", 0.1)
        until(lambda: store._lines)
        clock.now += 11
        assert waiting.result(50) == (b"mine", first + 1)
    assert not store._lines


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("timeout", [0.03, 0.0, -1.0])
def test_a_wait_ends_in_time_and_leaves_nothing(store: MemoryStore, timeout: float, native: bool) -> None:  # noqa: FBT001 - a parameter
    """At its timeout a waiter tries, and is gone: the next removal wakes nobody, and nothing has grown."""
    wait, version = waits(store, native=native), put(store)
    for _ in range(20):
        begun = time.monotonic()
        assert wait("k", timeout) == (b"v", version)
        assert time.monotonic() - begun >= timeout
    assert not store._lines
    assert store.invalidate("k", version) is None


def test_no_removal_is_missed(store: MemoryStore) -> None:
    """Two that hand a key to and fro thousands of times never wait for a timeout: no wake-up is lost."""
    rounds = 3000

    def take_and_leave(name: bytes) -> None:
        for _ in range(rounds):
            observed = store.put_if_version("k", name, ABSENT, 1e6)
            while observed is None or observed.value != name:
                observed = store.put_when_absent("k", name, 1e6, 30)
            assert store.invalidate("k", observed.version) in (None, WOKEN)

    with Stopwatch() as watch, ThreadPoolExecutor(3) as threads:
        list(threads.map(take_and_leave, (b"a", b"b", b"c")))
    assert watch.seconds < 30
    assert not store._lines


INTERRUPT = """
import random, signal, threading, time
from caslock.stores.memory import MemoryStore
from caslock.store import WOKEN
def interrupt(signum, frame):
    if armed:
        raise KeyboardInterrupt
armed = False
signal.signal(signal.SIGALRM, interrupt)
store, interrupted = MemoryStore(), 0
for number in range(3000):
    version = store.put_if_version("k", b"", 0, 60).version
    remover = None
    if number % 3 == 0:
        remover = threading.Timer(random.uniform(0, 1e-4), store.invalidate, ("k", version))
        remover.start()
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 2e-4))
        while True:
            store.put_when_absent("k", b"mine", 60, random.uniform(0, 1e-4))
    except KeyboardInterrupt:
        armed = False
        interrupted += 1
    if remover:
        remover.join()
    assert not store._lines, number
    standing = store.get("k")
    assert standing is None or store.invalidate("k", standing.version) is None
assert interrupted == 3000
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_an_interrupted_wait_leaves_nothing() -> None:
    """KeyboardInterrupt at any moment of a wait leaves nobody in line."""
    subprocess.run([sys.executable, "-c", INTERRUPT], cwd=ROOT, check=True, timeout=50)


def test_a_cancelled_wait_leaves_nothing_and_passes_on_what_woke_it(store: MemoryStore) -> None:
    """A task that is cancelled has left the line; one that was woken and is cancelled at once wakes the next."""

    async def main() -> None:
        shared = AsyncMemoryStore(store)

        def wait(value: bytes) -> asyncio.Task[Entry | None]:
            return asyncio.create_task(shared.put_when_absent("k", value, 10, 20))

        version = put(store)
        first, second = wait(b"1"), wait(b"2")
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(store._lines["k"]) == 1
        third = wait(b"3")
        await asyncio.sleep(0)
        assert await shared.invalidate("k", version) == WOKEN
        second.cancel()
        assert await third == (b"3", value_stands(store, b"3"))
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(main())
    assert not store._lines


def test_a_loop_that_has_ended_takes_no_wake_up_with_it(store: MemoryStore) -> None:
    """A task of a closed loop is passed over: the removal wakes the next in line."""
    loop, version = asyncio.new_event_loop(), put(store)
    task = loop.create_task(AsyncMemoryStore(store).put_when_absent("k", b"lost", 10, 20))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    waiters = Waiters(store)
    waiters.start("next", "thread")
    assert waiters.lined_up() == 2
    assert store.invalidate("k", version) == WOKEN
    waiters.join()
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio would tell of what we did on purpose


def test_several_puts_are_one(store: MemoryStore) -> None:
    """All are written or none, and the answers tell what is under each key."""
    first = store.put_many([Put(key, key.encode(), ABSENT, 10) for key in "abc"])
    assert first == [store.get(key) for key in "abc"]
    mixed = [Put("a", b"x", first[0].version if first[0] else 0, 10), Put("b", b"y", ABSENT, 10), Put("d", b"", 0, 10)]
    assert store.put_many(mixed) == [first[0], first[1], None]
    assert [store.get(key) for key in "abcd"] == [*first, None]


def test_several_removals_are_one_and_wake(store: MemoryStore) -> None:
    """Each that matches is removed and wakes its first waiter; the answers tell what is under each key."""
    waiters, versions = Waiters(store), [put(store, key) for key in "kab"]
    waiters.start("waiter", "thread")
    removals = [Removal(key, version) for key, version in zip("kab", [*versions[:2], 1], strict=True)]
    assert store.invalidate_many(removals) == [WOKEN, None, (b"v", versions[2])]
    waiters.join()


def test_a_list_has_what_there_is_under_a_prefix(store: MemoryStore, clock: Clock) -> None:
    """Keys that begin with the prefix, character by character, with entries that exist at this moment; by both APIs."""
    expired, removed = put(store, "a:expired", ttl=1), put(store, "a:removed")
    keys = ["a:1", "a:", "a:%", "a_", "A:1", "b:1", "a:\U0001f512"]
    entries = {key: Entry(b"v", put(store, key)) for key in keys}
    clock.now += 2
    store.invalidate("a:removed", removed)

    async def listed(prefix: str) -> dict[str, Entry]:
        return {key: entry async for key, entry in AsyncMemoryStore(store).list(prefix)}

    for prefix in ("", "a", "a:", "a:%", "a_", "A", "%", "nothing"):
        expected = {key: entry for key, entry in entries.items() if key.startswith(prefix)}
        assert dict(store.list(prefix)) == asyncio.run(listed(prefix)) == expected, prefix
    assert expired not in [entry.version for _, entry in store.list("")]


FORK_WHILE_WAITING = """
import asyncio, os, threading, time
from caslock.store import WOKEN
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
store = MemoryStore()
version = store.put_if_version("k", b"", 0, 60).version
threads = [
    threading.Thread(target=store.put_when_absent, args=("k", b"1", 30, 30)),
    threading.Thread(target=lambda: asyncio.run(AsyncMemoryStore(store).put_when_absent("k", b"2", 30, 30))),
]
for thread in threads:
    thread.start()
while sum(map(len, store._lines.values())) < 2:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    assert store.invalidate("k", version) is None
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for thread in threads:
    assert store.invalidate("k", version) == WOKEN
    thread.join()
    version = store.get("k").version
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_has_none_of_the_waiters() -> None:
    """The child's removals wake nobody, and the parent's waiters are still there to be woken."""
    subprocess.run([sys.executable, "-c", FORK_WHILE_WAITING], cwd=ROOT, check=True, timeout=50)
