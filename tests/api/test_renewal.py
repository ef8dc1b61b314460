"""Leases are renewed in time, and a loss is reported once, at once, whatever stores and callbacks do."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import pytest

from caslock import AsyncLock, Entry, Lock, LockLost, Semaphore
from caslock.local import clock
from caslock.local.hold import Holding
from caslock.local.schedule import MOST_RENEWING, MOST_TOGETHER, Renewals
from caslock.local.workers import run
from caslock.store import Put
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import Watched, held, make_due, present
from tests.support.locations import until as eventually
from tests.support.loops import in_a_loop


class Distant(Watched):
    """A store whose requests take a while, or hang while the gate is shut; it notes the keys of each."""

    def __init__(self, seconds: float = 0.0, memory: MemoryStore | None = None) -> None:
        self.memory = memory or MemoryStore()
        super().__init__(self.memory)
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()
        self.together: list[list[str]] = []

    def _pass(self, _verb: str, *keys: str) -> None:
        self.together.append(list(keys))
        time.sleep(self.seconds)
        self.gate.wait(20)


class DistantBatches(Distant):
    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        self._pass("put", *[put.key for put in puts])
        return self.memory.put_many(puts)


Told = list[tuple[str, float]]


def noting(told: Told) -> Callable[[Holding], object]:
    """Make an `on_lost` that notes which hold was lost, and how long after its deadline."""
    return lambda hold: told.append((hold.key, clock.now() - hold._attempt.lease.deadline))


@pytest.mark.long
def test_many_leases_are_renewed_in_time() -> None:
    """1,000 leases of 12 s, 7 ms from their store, are renewed in time: one after the other would take 7 s."""
    store, told = DistantBatches(), Told()
    least = ttl = 12.0
    with Stopwatch() as watch:
        holds = [held(Lock(store, f"key {number}", ttl=ttl, on_lost=noting(told))) for number in range(1000)]
        store.seconds = 0.007
        store.together.clear()
        while watch.elapsed < 1.1 * ttl:
            time.sleep(0.02)
            least = min(least, *(hold.remaining() for hold in holds))
    assert not told
    assert least > 0.45 * ttl - watch.late
    assert len(store.together) < 200  # about 3,000 renewals
    for hold in holds:
        hold.ensure_held()


def test_a_loss_is_reported_at_the_deadline_while_the_store_hangs() -> None:
    """Within 0.1 s, though a request for its renewal has had no answer for long."""
    store, told = DistantBatches(), Told()
    with Stopwatch() as watch:
        holds = [held(Lock(store, f"key {number}", ttl=0.9, on_lost=noting(told))) for number in range(3)]
        store.gate.clear()
        assert eventually(lambda: len(told) == 3)
    assert all(0 <= late < 0.1 + watch.late for _, late in told)
    store.gate.set()
    assert all(hold.lost for hold in holds)


def test_a_loss_is_reported_while_another_callback_blocks() -> None:
    """A callback that does not return delays no other loss, nor any renewal."""
    store, told, gate = MemoryStore(), Told(), threading.Event()
    renewed = held(Lock(store, "renewed", ttl=60))
    with Stopwatch() as watch:
        blocked = held(Lock(store, "blocked", ttl=0.3, auto_renew=False, on_lost=lambda _: gate.wait(200)))
        other = held(Lock(store, "other", ttl=0.6, auto_renew=False, on_lost=noting(told)))
        assert eventually(lambda: told)
    assert told[0][1] < 0.1 + watch.late
    first = renewed._attempt.lease.deadline
    make_due(renewed._attempt)
    assert eventually(lambda: renewed._attempt.lease.deadline > first)
    assert other.lost
    assert blocked.lost
    assert not gate.is_set()
    gate.set()


def break_elsewhere(memory: MemoryStore) -> None:
    """Release the key by force through a store object that shares nothing with the holder's, like another process."""
    Lock(Distant(memory=memory), "key").force_release()


@pytest.mark.parametrize("how", ["exit", "extend", "ensure_held", "acquire", "force_release", "deadline"])
def test_a_loss_is_reported_once_by_every_means(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """on_lost is called once, at once, one WARNING is logged, and LockLost is raised, whoever sees the loss first."""
    store, told = MemoryStore(), Told()
    lock = Lock(store, "key", ttl=0.3 if how == "deadline" else 30, auto_renew=False, on_lost=noting(told))
    hold = held(lock)
    if how in ("exit", "extend"):
        break_elsewhere(store)
    if how == "force_release":
        Lock(store, "key").force_release()
    if how == "extend":
        with pytest.raises(LockLost):
            hold.extend()
    if how in ("ensure_held", "acquire"):
        hold._attempt.lease.deadline = clock.now()
        with pytest.raises(LockLost):
            hold.ensure_held() if how == "ensure_held" else lock.acquire(timeout=0)
    if how != "exit":
        assert eventually(lambda: told)
    with pytest.raises(LockLost):
        hold.release()
    assert eventually(lambda: told)
    time.sleep(0.2)
    assert len(told) == 1
    (warning,) = (text for text in caplog.messages if " 'key' " in text and "was lost" in text)
    assert warning.startswith(f"lock 'key' at {store.traits.location} was lost: ")


@pytest.mark.parametrize("how", ["exit", "extend", "force_release", "force_release by a thread", "deadline"])
def test_an_async_loss_is_reported_once_by_every_means(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same for asyncio; a `force_release` in a thread, by a blocking Lock on the same store, too."""
    store, told = MemoryStore(), Told()

    async def body(lock: AsyncLock) -> None:
        async with lock as hold:
            if how in ("exit", "extend"):
                break_elsewhere(store)
            if how == "extend":
                await hold.extend()
            if how == "force_release":
                await AsyncLock(store, "key").force_release()
            if how == "force_release by a thread":
                await asyncio.to_thread(Lock(store, "key").force_release)
            if how not in ("exit", "extend"):
                await asyncio.sleep(60)
                pytest.fail("the body ran on")

    async def main() -> None:
        lock = AsyncLock(store, "key", ttl=0.3 if how == "deadline" else 30, auto_renew=False, on_lost=noting(told))
        with pytest.raises(LockLost):
            await body(lock)
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert len(told) == 1
    (warning,) = (text for text in caplog.messages if " 'key' " in text and "was lost" in text)
    assert warning.startswith(f"lock 'key' at {store.traits.location} was lost: ")


def test_an_on_lost_that_would_have_to_be_awaited_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """An `async def` in a `functools.partial` returns a coroutine: it is closed, and an ERROR says so."""
    store = MemoryStore()

    async def too_late(_name: str, _hold: object) -> None:
        """Be never awaited."""

    async def main() -> None:
        hold = await AsyncLock(store, "async", on_lost=partial(too_late, "name")).acquire()
        await AsyncLock(store, "async").force_release()
        assert hold is not None
        with pytest.raises(LockLost):
            await hold.release()
        await asyncio.sleep(0)

    asyncio.run(main())
    hold = held(Lock(store, "blocking", on_lost=partial(too_late, "name")))
    Lock(store, "blocking").force_release()
    with pytest.raises(LockLost):
        hold.release()

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    assert eventually(lambda: len(errors()) == 2)
    gc.collect()  # a coroutine that was not closed would warn here
    for key, error in zip(("async", "blocking"), errors(), strict=True):
        assert error.startswith(f"on_lost of lock {key!r} returned a coroutine")


@pytest.mark.parametrize("batches", [True, False])
def test_the_nearest_deadline_comes_first(*, batches: bool) -> None:
    """Of the leases that are due, those that end first are renewed first, together where the store can do that."""
    memory, started = MemoryStore(), list["Coroutine[object, object, None]"]()
    store = DistantBatches(memory=memory) if batches else Distant(memory=memory)
    keys = [f"key {number}" for number in range(MOST_TOGETHER + 2)]
    holds = [held(Lock(store, key, auto_renew=False)) for key in keys]
    ends = random.Random(1).sample(range(1, len(keys) + 1), len(keys))
    now = clock.now()
    for hold, end in zip(holds, ends, strict=True):
        hold._attempt.lease.deadline = now + end
    renewals = Renewals(lambda coroutine, _: started.append(coroutine), lambda _: None, batches=batches)
    renewals.add([hold._attempt for hold in holds])
    store.together.clear()
    run(started.pop(0))
    in_order = [key for _, key in sorted(zip(ends, keys, strict=True))]
    cut = MOST_TOGETHER if batches else 1
    assert store.together == [in_order[first : first + cut] for first in range(0, len(keys), cut)]
    for each in started:
        run(each)
    assert len(started) == 1 if batches else len(started) == MOST_RENEWING - 1


def test_what_is_to_be_renewed_alone_is_begun_when_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a request that is under way would be told as a failure."""
    steps = list[str]()
    monkeypatch.setattr("caslock.local.schedule.report_renewals", lambda _: steps.append("told"))
    semaphore = Semaphore(DistantBatches(memory=MemoryStore()), "key", 2, auto_renew=False)
    holds = [semaphore.acquire() for _ in range(2)]

    def start(coroutine: Coroutine[object, object, None], done: Callable[[], object]) -> None:
        steps.append("begun")
        run(coroutine)
        done()

    Renewals(start, lambda _: None, batches=True).add([present(hold)._attempt for hold in holds])
    assert steps[:2] == ["begun", "told"]
    assert steps.count("begun") > 1


@in_a_loop
async def test_a_forgotten_hold_is_not_renewed() -> None:
    """A hold that nobody has any more is not renewed for ever, with threads and with asyncio."""
    memory = MemoryStore()
    held(Lock(memory, "blocking", ttl=0.6, on_lost=lambda _: None))
    await AsyncLock(AsyncMemoryStore(memory), "asyncio", ttl=0.6, on_lost=lambda _: None).acquire()
    while any(map(memory.get, ("blocking", "asyncio"))):  # a renewal under way may have kept one of them
        gc.collect()
        await asyncio.sleep(0.1)
