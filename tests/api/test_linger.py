"""A key that lingers: its process keeps it after a release, and has it again without a request."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from caslock import AsyncLock, Lock, LockLost, MultiLock, NotHeld, connect, observe
from caslock.local import linger
from caslock.local.lock_state import LockState
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import FaultyStore, lose_reply, lose_request
from tests.support.locations import Place, Watched, fresh, held, observed, until
from tests.support.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from caslock import Entry, Hold

LONG = 20.0
"""Seconds that no test waits for; a lease has three times as many, so that it could linger for so long."""


def lock_of(store: Watched, key: str = "k", seconds: float = LONG) -> Lock:
    """Make a lock that lingers."""
    return Lock(store, key, ttl=3 * LONG + 1, linger=seconds)


@pytest.fixture
def store(memory: MemoryStore) -> Watched:
    """Return a store that notes what it is asked."""
    return Watched(memory)


def test_the_next_acquire_takes_no_request(location: Place) -> None:
    """By whatever thread; its fence is that of before, and only another tenure has a larger one."""
    store = Watched(location.store())
    lock = lock_of(store, fresh())
    with lock as first:
        pass
    fences: list[int] = []

    def use() -> None:
        with lock as hold, lock:
            fences.append(hold.fence)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    with lock:
        pass
    assert store.requests == [("put", lock.key)]
    if store.traits.fences:
        assert fences == [first.fence]
    assert Lock(location.store(), lock.key).acquire(timeout=0) is None  # of another process


def test_it_is_released_when_its_time_is_over(location: Place) -> None:
    """Then the key is free, and the next tenure begins."""
    store = location.store()
    lock = Lock(store, fresh(), ttl=30, linger=0.1)
    with lock as first:
        pass
    assert observed(store, lock.key) is not None
    assert until(lambda: observed(store, lock.key) is None)
    with lock as second:
        assert second is not first
    if store.traits.fences:
        assert second.fence > first.fence


def test_nobody_resumes_it_for_ever(store: Watched) -> None:
    """Its time counts from the first release, so that others have to wait for so long, and not longer."""
    lock, fences = lock_of(store, seconds=0.05), set[int]()
    while len(fences) < 3:
        with lock as hold:
            fences.add(hold.fence)
    assert len(store.requests) < 10  # to take and to give back, three times, or to hand over


@pytest.mark.parametrize("timeout", [0, 5, None])
def test_another_lock_of_the_process_has_it_at_once(store: Watched, timeout: float | None) -> None:
    """Even by one try: nobody holds what lingers."""
    with lock_of(store):
        pass
    with Lock(store, "k", timeout=timeout):
        pass
    assert MultiLock(store, ["j", "k"]).acquire(timeout=0)


def test_who_waits_is_not_kept_waiting(store: Watched) -> None:
    """The release of a hold that somebody waits for in this process is a release."""
    lock, gate = lock_of(store), threading.Event()

    def wait() -> None:
        with Lock(store, "k"):
            gate.set()

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        assert until(lambda: lock._state._queue.waiting)
    assert gate.wait(LONG)
    thread.join()


def test_what_others_want_does_not_linger(memory: MemoryStore) -> None:
    """A process that has met another one at the key releases it, for the next minute."""
    mine, theirs = lock_of(Watched(memory)), Lock(Watched(memory), "k", timeout=5)
    hold = held(theirs)
    assert mine.acquire(timeout=0) is None
    hold.release()
    with mine:
        pass
    with theirs:
        pass


def test_a_hold_that_was_extended_does_not_linger(store: Watched) -> None:
    """Its lease is not that of the lock."""
    with lock_of(store) as hold:
        hold.extend(5)
    assert observed(store._store, "k") is None


def test_it_lingers_no_longer_than_a_third_of_a_lease(store: Watched) -> None:
    """So that whoever resumes it has most of one."""
    lock = Lock(store, "k", ttl=0.9, linger=60)
    with lock as hold:
        pass
    assert hold._attempt.lingers_until < hold._attempt.lease.deadline - 0.5
    assert until(lambda: observed(store._store, "k") is None)
    assert ("invalidate", "k") in store.requests


def test_it_is_renewed_only_while_it_is_held(store: Watched) -> None:
    """Also after it has lingered."""
    lock = Lock(store, "k", ttl=3, linger=0.05)
    with lock:
        pass
    with lock as hold:
        first = hold._attempt.lease.deadline
        assert until(lambda: hold._attempt.lease.deadline > first)


def test_a_loss_is_told_to_who_holds_it(store: Watched) -> None:
    """To nobody while it lingers, and to the new hold's callback after that."""
    lost: list[object] = []
    lock = Lock(store, "k", ttl=3 * LONG + 1, linger=LONG, on_lost=lost.append)
    with lock:
        pass
    assert Lock(Watched(store._store), "k").force_release() is not None  # by another process
    hold = held(lock)  # nobody can know
    with pytest.raises(LockLost):
        hold.extend()
    assert until(lambda: lost == [hold])
    with pytest.raises(LockLost):
        hold.release()
    with lock:
        pass
    Lock(store, "k").force_release()  # by this process, which ends it first
    with lock as again:
        again.extend()
    assert lost == [hold]


def test_a_released_hold_is_not_held(store: Watched) -> None:
    """Whoever resumes the key has another one."""
    lock = lock_of(store)
    hold = held(lock)
    hold.release()
    with pytest.raises(NotHeld):
        hold.release()
    with pytest.raises(NotHeld):
        lock.release()
    with lock, pytest.raises(NotHeld):
        hold.ensure_held()


def test_observers_see_holds_and_no_requests(store: Watched) -> None:
    """Each hold is acquired and released."""
    told = Recorder()
    stop = observe(told)
    lock = lock_of(store)
    for _ in range(2):
        with lock:
            pass
    stop()
    assert told.names == ["acquired", "released"] * 2


def test_a_lock_object_that_is_gone_leaves_nothing(store: Watched) -> None:
    """What lingers is released all the same."""
    with lock_of(store, seconds=0.1):
        pass
    gc.collect()
    assert until(lambda: observed(store._store, "k") is None)


@pytest.mark.parametrize("fault", [lose_reply, lose_request])
def test_a_release_without_an_answer_is_made_again(memory: MemoryStore, fault: object) -> None:
    """In the background: nobody waits for it."""
    store = FaultyStore(memory)
    store.on("invalidate", 1, fault)  # type: ignore[arg-type] # either one
    store.on("get", 1, lose_request)
    lock = Lock(store, "k", linger=0.05)
    with lock:
        pass
    assert until(lambda: observed(memory, "k") is None)
    with Lock(store, "k", timeout=LONG):
        pass


AT_EXIT = """
import asyncio, sys, caslock

async def main():
    async with caslock.AsyncLock(caslock.connect_async("sqlite:///locks.db"), "b", linger=10): pass

with caslock.Lock(caslock.connect("sqlite:///locks.db"), "a", linger=10): pass
asyncio.run(main())
"""


def test_it_ends_with_its_process(tmp_path: Path) -> None:
    """And with its event loop."""
    subprocess.run([sys.executable, "-c", AT_EXIT], cwd=tmp_path, check=True)
    store = connect(f"sqlite:///{tmp_path}/locks.db")
    assert [observed(store, key) for key in "ab"] == [None, None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_neither_resumes_nor_releases_it(tmp_path: Path) -> None:
    """It is the parent's."""
    store = connect(f"sqlite:///{tmp_path}/locks.db")
    lock = Lock(store, "k", linger=10)
    with lock as first:
        pass
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=0) is None and not linger.kept() else 1)
    assert os.waitpid(child, 0)[1] == 0
    with lock as hold:
        assert hold.fence == first.fence
        hold.extend()


def test_tasks_resume_it(memory: MemoryStore) -> None:
    """Any task of the loop; a loss then cancels its block."""
    store = Watched(memory)

    async def main() -> None:
        lock = AsyncLock(store, "k", ttl=3 * LONG + 1, linger=LONG)
        async with lock as first:
            pass

        async def use() -> int:
            async with lock as hold:
                return hold.fence

        assert await asyncio.create_task(use()) == first.fence
        hold = await asyncio.wait_for(lock.acquire(), LONG)
        assert hold is not None
        await hold.release()
        assert store.requests == [("put", "k")]

        async def lose() -> None:
            async with lock:
                await AsyncLock(store, "k").force_release()
                await asyncio.sleep(LONG)

        with pytest.raises(LockLost):
            await lose()
        async with AsyncLock(store, "k", timeout=0):
            pass
        async with lock:
            pass
        async with AsyncLock(store, "k", timeout=0):
            pass

    asyncio.run(main())
    assert observed(memory, "k") is None


def test_it_ends_with_its_loop() -> None:
    """So that its connections need not outlive it."""
    memory = MemoryStore()

    async def main() -> None:
        async with AsyncLock(AsyncMemoryStore(memory), "k", linger=10):
            pass

    asyncio.run(main())
    assert observed(memory, "k") is None


def test_threads_that_resume_it_exclude_each_other(store: Watched) -> None:
    """Of several threads that use one lock and others, one at a time is inside."""
    lock, number, ends = lock_of(store, seconds=0.01), [0], time.monotonic() + 0.5
    others = [Lock(store, "k") for _ in range(2)]

    def add(own: Lock) -> int:
        added = 0
        while time.monotonic() < ends:
            with own:
                seen = number[0]
                time.sleep(0)  # invites another thread
                number[0] = seen + 1
            added += 1
        return added

    counts: list[int] = []
    threads = [threading.Thread(target=lambda own=own: counts.append(add(own))) for own in (lock, lock, *others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == number[0]


def test_who_has_met_another_process_lets_it_go(memory: MemoryStore) -> None:
    """Also whoever has just waited for it."""
    key = fresh()
    theirs, lock = Lock(Watched(memory), key), lock_of(Watched(memory), key)
    hold = held(theirs)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire)
        assert until(lambda: any(each.contention for each in lock._state._queue.inside(0.0)))
        hold.release()
        mine = waiting.result()
    assert mine is not None
    mine.release()
    assert observed(memory, key) is None


def test_a_blocking_lock_has_what_an_async_one_lets_linger(memory: MemoryStore) -> None:
    """Its release is sent from its event loop."""

    async def main() -> None:
        async with AsyncLock(memory, "k", linger=LONG, ttl=3 * LONG + 1):
            pass
        await asyncio.to_thread(lambda: held(Lock(memory, "k")).release())

    asyncio.run(main())


def test_an_early_release_in_a_block_is_one(memory: MemoryStore) -> None:
    """The end of the block says that it was released, and masks no error."""

    async def main() -> None:
        async with AsyncLock(AsyncMemoryStore(memory), "k", linger=LONG) as hold:
            await hold.release()
            raise KeyError

    with pytest.raises(KeyError) as caught:
        asyncio.run(main())
    assert any("already been released" in note for note in caught.value.__notes__)


def test_what_is_being_given_up_is_nobodys(memory: MemoryStore) -> None:
    """One try waits for that release, by whatever lock."""
    begun, answer = threading.Event(), threading.Event()

    class Slow(Watched):
        def invalidate(self, key: str, version: int) -> Entry | None:
            begun.set()
            answer.wait(LONG)
            return super().invalidate(key, version)

    store = Slow(memory)
    lock = lock_of(store, seconds=0.05)
    with lock:
        pass
    assert begun.wait(LONG)
    with ThreadPoolExecutor(1) as pool:
        trying = pool.submit(lambda: held(lock).release())
        assert until(lambda: lock._state._queue.waiting)
        answer.set()
        trying.result()


def test_a_hold_that_another_thread_releases_is_not_re_entered(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a thread that is about to re-enter, and another that releases its hold and has the key: one holds it."""
    lock = lock_of(store)
    hold, begin, got = held(lock), LockState.begin, list[object]()

    def release_and_acquire() -> None:
        hold.release()
        got.append(lock.acquire(timeout=0))

    def interrupted(state: LockState, make: type[Hold], caller: object = None) -> Hold:
        begun = begin(state, make, caller)
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=release_and_acquire)
            thread.start()
            thread.join()
        return begun

    monkeypatch.setattr(LockState, "begin", interrupted)
    assert lock.acquire(timeout=0) is None
    assert got != [None]


def test_a_multilock_resumes_nothing(memory: MemoryStore) -> None:
    """Or it would keep a key while it waits for an earlier one, and who has that could wait for it for ever."""
    mine, theirs = Watched(memory), Watched(memory)
    first, second = Lock(mine, "a"), lock_of(mine, "b", seconds=0.2)
    with second:
        pass
    hold = held(Lock(theirs, "a"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(MultiLock([first, second]).acquire)
        assert until(lambda: first._state._queue.inside(0.0))
        held(Lock(theirs, "b"), LONG).release()
        hold.release()
        assert waiting.result() is not None
