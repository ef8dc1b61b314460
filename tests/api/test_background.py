"""Clean-ups in the background ask a store that gives no answer rarely, close no store, and outlive no event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING, cast

import pytest

from caslock import AsyncHold, AsyncLock, Hold, Lock, StoreUnavailable
from caslock.local import thread_renewer
from caslock.local.task_renewer import renewer_of
from caslock.local.tasks import task_runtime
from caslock.protocol import record
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.locations import fresh, until
from tests.support.scripted import Scripted, held

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from caslock import Entry


class Silent(MemoryStore):
    """Applies each request and gives no answer, while it hangs; once closed, it is closed for good."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = True
        self.closed = False
        self.reads: list[str] = []

    def get(self, key: str) -> Entry | None:
        self.reads.append(key)
        entry = super().get(key)
        self._answer()
        return entry

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        entry = super().put_if_version(key, value, version, ttl)
        self._answer()
        return entry

    def invalidate(self, key: str, version: int) -> Entry | None:
        entry = super().invalidate(key, version)
        self._answer()
        return entry

    def close(self) -> None:
        self.closed = True

    def _answer(self) -> None:
        assert not self.closed
        if self.hangs:
            raise StoreUnavailable("no answer")


def is_held(store: Silent, key: str) -> bool:
    """Look at the record without asking the store for an answer."""
    entry = MemoryStore.get(store, key)
    return entry is not None and not record.decode(entry.value).free


def test_a_clean_up_closes_no_store() -> None:
    """Given an acquire without an answer, its record is removed in the background, and the store stays open."""
    store, key = Silent(), fresh()
    with pytest.raises(StoreUnavailable):
        Lock(store, key).acquire(timeout=0)
    assert is_held(store, key)
    store.hangs = False
    assert until(lambda: not is_held(store, key))
    with Lock(store, fresh()):
        assert not store.closed


def test_many_tasks_that_get_no_answer_ask_as_often_as_one() -> None:
    """Given 100 acquires of one loop without an answer, one task cleans up for all, and the store stays open."""
    store, keys = Silent(), [fresh() for _ in range(100)]

    async def main() -> None:
        acquires = (AsyncLock(store, key).acquire(timeout=0) for key in keys)
        ends = await asyncio.gather(*acquires, return_exceptions=True)
        assert all(isinstance(end, StoreUnavailable) for end in ends)
        store.reads.clear()
        assert len(asyncio.all_tasks()) == 2
        while len(store.reads) < 2:  # noqa: ASYNC110 - the store does not tell
            await asyncio.sleep(0.01)
        assert len(store.reads) < 5
        store.hangs = False
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=10)
        assert not any(is_held(store, key) for key in keys)
        async with AsyncLock(store, fresh()):
            assert not store.closed

    asyncio.run(main())


def test_a_clean_up_that_comes_as_the_last_one_ends_is_run() -> None:
    """It comes after the task has answered its last one, and before the loop knows that the task has ended."""
    runtime, ran = task_runtime(AsyncMemoryStore()), list[str]()

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        async def second(_limit: float) -> None:
            ran.append("second")
            done.set()

        async def first(_limit: float) -> None:
            ran.append("first")
            loop.call_soon(runtime.in_background, second, 60.0)

        runtime.in_background(first, 60.0)
        async with asyncio.timeout(5):
            await done.wait()

    asyncio.run(main())
    assert ran == ["first", "second"]


def test_short_holds_leave_nothing_behind() -> None:
    """Given thousands of holds that were released at once, their renewals are forgotten long before they are due."""

    async def main() -> None:
        store = AsyncMemoryStore()
        for _ in range(2500):
            async with AsyncLock(store, "key"):
                await asyncio.sleep(0)
        assert len(renewer_of(asyncio.get_running_loop())._schedule) < 1100

    asyncio.run(main())
    with Lock(MemoryStore(), "kept"):
        for _ in range(2500):
            with Lock(MemoryStore(), "key"):
                pass
        renewer = thread_renewer._renewer
        assert renewer is not None
        assert until(lambda: len(renewer._schedule) < 1100, 2)


def test_a_hold_that_another_loop_extends_is_still_renewed() -> None:
    """Its own event loop renews it, and reports its loss."""
    store, key, told = AsyncMemoryStore(), fresh(), list[AsyncHold]()

    async def main() -> None:
        hold = await AsyncLock(store, key, ttl=0.6, on_lost=told.append).acquire()
        assert hold is not None
        await asyncio.sleep(0.13)  # when this renewal is due differs from when the first was
        await asyncio.to_thread(asyncio.run, hold.extend())
        await asyncio.sleep(1.2)
        assert not hold.lost
        await AsyncLock(store, key).force_release()
        async with asyncio.timeout(5):
            while not told:  # noqa: ASYNC110 - the callback is a plain function
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_hold_without_a_thread_is_renewed_once_there_can_be_one(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An acquire when no thread can be started says so; the next one that can start it has both leases renewed."""
    key = fresh()
    thread_renewer._renewer = None  # of earlier tests: its thread ends by itself
    with monkeypatch.context() as without:
        without.setattr(thread_renewer, "start", lambda _target, _name: None)
        hold = Lock(memory, key, ttl=0.6).acquire()
    assert hold is not None
    assert [
        key in record.getMessage() for record in caplog.records if "could not be started" in record.getMessage()
    ] == [True]
    with Lock(memory, fresh()):
        deadline = hold._attempt.lease.deadline
        assert until(lambda: hold._attempt.lease.deadline > deadline + 0.6, 3)
    hold.release()


def test_an_interrupt_as_the_renewer_is_woken_lets_no_later_lease_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next hold wakes it, though its lease is due later than the one that the interrupt has struck."""

    class Alarm:
        rung = 0

        def notify(self) -> None:
            self.rung += 1
            if self.rung == 1:
                raise KeyboardInterrupt

    renewer, alarm = thread_renewer.ThreadRenewer(), Alarm()
    renewer._alarm = cast("threading.Condition", alarm)
    first, second = held(Scripted()), held(Scripted())
    second.lease.due += 5
    renewer._wakes, renewer.is_running = second.lease.due + 60, True
    monkeypatch.setattr(thread_renewer, "_renewer", renewer)
    with pytest.raises(KeyboardInterrupt):
        thread_renewer.watch(first)
    thread_renewer.watch(second)
    assert alarm.rung == 2


def test_callbacks_that_hang_delay_no_reports_of_other_stores(pool: ThreadPoolExecutor) -> None:
    """Each store has threads of its own for them."""
    gate, told = threading.Event(), list[Hold]()
    hanging, other, holds = MemoryStore(), MemoryStore(), list[Hold | None]()
    for _ in range(thread_renewer.MOST_TELLING + 2):
        key = fresh()
        holds.append(Lock(hanging, key, on_lost=lambda _hold: gate.wait(20)).acquire())
        Lock(hanging, key).force_release()
    key = fresh()
    holds.append(Lock(other, key, on_lost=told.append).acquire())
    pool.submit(Lock(other, key).force_release).result()
    assert until(lambda: told, 2)
    assert told == holds[-1:]
    gate.set()


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("renews", [False, True])
def test_a_closed_loop_is_not_kept_alive(*, renews: bool) -> None:
    """Given a loop that is closed while a lease is held or renewed in it, nothing of caslock refers to it any more."""

    class Slow(AsyncMemoryStore):
        async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if version:
                renewing.append(True)
                await asyncio.sleep(60)
            return await super().put_if_version(key, value, version, ttl)

    def run_a_loop() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # of a task that is still pending
        loop.run_until_complete(main())
        loop.close()
        return weakref.ref(loop)

    async def main() -> None:
        assert await AsyncLock(store, fresh(), ttl=0.6).acquire()
        async with asyncio.timeout(5):
            while renews and not renewing:  # noqa: ASYNC110 - the store notes it
                await asyncio.sleep(0.01)

    store, renewing = Slow(), list[bool]()
    lock = AsyncLock(store, fresh())
    closed = run_a_loop()
    gc.collect()
    assert closed() is None
    assert lock.key
    assert bool(renewing) == renews
