"""`MemoryStore` and `AsyncMemoryStore`, on a clock that the tests move."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from caslock.store import ABSENT, WOKEN, Entry
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.steps import in_a_thread
from caslock.testing.stopwatch import Stopwatch
from tests.support.command_line import python
from tests.support.locations import present, until
from tests.support.loops import in_a_loop


class Clock:
    now = 1000.0

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
    entry = present(store.put_if_version(key, value, version, ttl))
    assert entry.value == value
    return entry.version


def test_versions_are_as_large_as_those_of_servers() -> None:
    """They are microseconds since 1970, which is more than 32 bits: a column too small for fences fails in a test."""
    assert 2**50 < put(MemoryStore()) < 2**53


def test_what_has_expired_does_not_pile_up(store: MemoryStore, clock: Clock) -> None:
    """A hundred thousand keys, locked once each and never released, leave the live ones and no more than as many."""
    lasting = {f"lasting {number}": put(store, f"lasting {number}", ttl=1e6) for number in range(10)}
    for number in range(100_000):
        clock.now += 0.01
        put(store, str(number), ttl=10)  # So 1,000 of them are alive.
    assert len(store._leases) <= 2021
    assert {key: store.get(key) for key in lasting} == {key: (b"v", version) for key, version in lasting.items()}


def test_what_is_released_is_gone(store: MemoryStore) -> None:
    """A removed entry leaves nothing behind, however long its lease was."""
    for number in range(1000):
        store.invalidate(str(number), put(store, str(number), ttl=1e9))
    assert not store._leases


def value_stands(store: MemoryStore, value: bytes) -> int:
    entry = present(store.get("k"))
    assert entry.value == value
    return entry.version


def lined_up(store: MemoryStore) -> int:
    return sum(map(len, store._lines.values()))


def join_line(store: MemoryStore, name: str, woken: list[str], *, task: bool = False) -> Future[None]:
    """Have a thread, or a task of another loop, wait for the key; return once it is in line."""

    def wait() -> None:
        if task:
            assert asyncio.run(AsyncMemoryStore(store).put_when_absent("k", name.encode(), 60, 50))
        else:
            assert store.put_when_absent("k", name.encode(), 60, 50)
        woken.append(name)

    before = lined_up(store)
    waiting = in_a_thread(wait)
    assert until(lambda: lined_up(store) == before + 1)
    return waiting


def test_one_removal_wakes_one_waiter_in_order(store: MemoryStore) -> None:
    """Threads, and tasks of other loops, wait in one line: each removal lets the first of it put, and says so."""
    version, woken = put(store), list[str]()
    waits = [join_line(store, str(number), woken, task=number % 2 > 0) for number in range(8)]
    for number in range(8):
        assert store.invalidate("k", version) == WOKEN
        waits[number].result(50)
        assert woken == [str(earlier) for earlier in range(number + 1)]
        version = put(store, value=b"%d" % number, version=value_stands(store, b"%d" % number))
    assert store.invalidate("k", version) is None
    assert not store._lines


def test_only_a_removal_of_that_key_wakes(store: MemoryStore, clock: Clock) -> None:
    """A put, an expiry, a refused removal and another key's removal wake nobody."""
    version = put(store)
    wait = join_line(store, "first", [])
    version = put(store, version=version)
    assert store.invalidate("k", version + 1) == (b"v", version)
    assert store.invalidate("other", put(store, "other")) is None
    clock.now += 11
    assert store.invalidate("k", version) is None
    assert lined_up(store) == 1
    assert store.invalidate("k", put(store)) == WOKEN
    wait.result(50)


@pytest.mark.parametrize("native", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("timeout", [0.03, 0.0, -1.0])
def test_a_wait_ends_in_time_and_leaves_nothing(store: MemoryStore, timeout: float, *, native: bool) -> None:
    """At its timeout a waiter tries, and is gone: the next removal wakes nobody, and nothing has grown."""
    version = put(store)
    for _ in range(20):
        begun = time.monotonic()
        if native:
            answer = asyncio.run(AsyncMemoryStore(store).put_when_absent("k", b"mine", 10, timeout))
        else:
            answer = store.put_when_absent("k", b"mine", 10, timeout)
        assert answer == (b"v", version)
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
@pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="python/cpython#148874: see docs/failures.md")
def test_an_interrupted_wait_leaves_nothing() -> None:
    """KeyboardInterrupt at any moment of a wait leaves nobody in line."""
    assert python("-c", INTERRUPT) == (0, "", "")


@in_a_loop
async def test_a_cancelled_wait_leaves_nothing_and_passes_on_what_woke_it(store: MemoryStore) -> None:
    """A task that is cancelled has left the line; one that was woken and is cancelled at once wakes the next."""
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
    assert not store._lines


def test_a_loop_that_has_ended_takes_no_wake_up_with_it(store: MemoryStore) -> None:
    """A task of a closed loop is passed over: the removal wakes the next in line."""
    loop, version = asyncio.new_event_loop(), put(store)
    task = loop.create_task(AsyncMemoryStore(store).put_when_absent("k", b"lost", 10, 20))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    wait = join_line(store, "next", [])
    assert lined_up(store) == 2
    assert store.invalidate("k", version) == WOKEN
    wait.result(50)
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio would tell of what we did on purpose


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
place = store.traits.location
child = os.fork()
if child == 0:
    assert store.traits.location != place
    assert store.get("k").version == version and store.invalidate("k", version) is None
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for thread in threads:
    assert store.invalidate("k", version) == WOKEN
    thread.join()
    version = store.get("k").version
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_has_none_of_the_waiters() -> None:
    """It has a copy at a place of its own: its removals wake nobody, and the parent still has its waiters."""
    warns_of_threads = "ignore:This process:DeprecationWarning"  # since Python 3.12
    assert python("-W", warns_of_threads, "-c", FORK_WHILE_WAITING) == (0, "", "")
