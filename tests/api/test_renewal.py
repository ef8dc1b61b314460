"""Leases are renewed in time, and a loss is reported once, at once, whatever stores and callbacks do."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from caslock import (
    ABSENT,
    AsyncHold,
    AsyncLock,
    Lock,
    LockLost,
    StoreError,
    StoreUnavailable,
    connect,
    connect_async,
)
from caslock.local import clock, reports
from caslock.local.schedule import MOST_RENEWING, MOST_TOGETHER, Renewals
from caslock.local.shared import shared_of
from caslock.local.workers import Workers, run
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing import FaultyStore, duplicate, late, lose_reply, lose_request, unsent
from tests.support.locations import fresh
from tests.support.locations import until as eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from caslock import Entry, Hold, Traits
    from caslock.local.hold import Holding
    from caslock.store import Put
    from caslock.testing import Fault
    from tests.support.servers import Server


def held(lock: Lock) -> Hold:
    """Acquire what is free."""
    hold = lock.acquire(timeout=0)
    assert hold is not None
    return hold


LEASE, EXTENDED = 1.2, 2.4
"""Seconds of a lease, and of its extension."""

BUSY = 3.0
"""Seconds of a lease that a busy machine renews in time."""


def test_an_extension_under_way_is_not_undone_by_a_renewal_that_comes_due() -> None:
    """A renewal that comes due while extend() has no answer yet is left out, and the next one keeps the new ttl."""
    memory, sent, answer = MemoryStore(), threading.Event(), threading.Event()
    ttls: list[float] = []

    class Slow:
        traits = memory.traits
        get = staticmethod(memory.get)
        invalidate = staticmethod(memory.invalidate)

        @staticmethod
        def put_if_version(key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            ttls.append(ttl)
            if ttl == EXTENDED:
                sent.set()
                answer.wait(10)
            return memory.put_if_version(key, value, version, ttl)

    hold = held(Lock(Slow(), "key", ttl=LEASE))
    due = hold._attempt.lease.due
    extending = threading.Thread(target=hold.extend, args=(EXTENDED,))
    extending.start()
    assert sent.wait(5)
    assert eventually(lambda: hold._attempt.lease.due != due), "no renewal has come due"
    answer.set()
    extending.join()
    assert eventually(lambda: ttls.count(EXTENDED) > 1), "nothing was renewed after the extension"
    assert set(ttls[ttls.index(EXTENDED) :]) == {EXTENDED}
    hold.release()


def test_an_async_extension_under_way_is_not_undone_by_a_renewal_that_comes_due() -> None:
    """The same for asyncio."""
    ttls: list[float] = []

    async def main() -> None:
        sent, answer = asyncio.Event(), asyncio.Event()

        class Slow(AsyncMemoryStore):
            async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
                ttls.append(ttl)
                if ttl == EXTENDED:
                    sent.set()
                    await answer.wait()
                return await super().put_if_version(key, value, version, ttl)

        async with AsyncLock(Slow(), "key", ttl=LEASE) as hold, asyncio.timeout(10):
            due = hold._attempt.lease.due
            extending = asyncio.ensure_future(hold.extend(EXTENDED))
            await sent.wait()
            while hold._attempt.lease.due == due:  # noqa: ASYNC110 - nobody tells that a renewal has come due
                await asyncio.sleep(0.01)
            answer.set()
            await extending
            while ttls.count(EXTENDED) == 1:  # noqa: ASYNC110 - nor that it was renewed
                await asyncio.sleep(0.01)
            assert set(ttls[ttls.index(EXTENDED) :]) == {EXTENDED}

    asyncio.run(main())


class Distant:
    """A store whose requests take a while, or hang while the gate is shut; it counts them."""

    def __init__(self, seconds: float = 0.0, memory: MemoryStore | None = None) -> None:
        self.memory = memory or MemoryStore()
        self.traits: Traits = self.memory.traits
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[list[str]] = []

    def get(self, key: str) -> Entry | None:
        self._travel(key)
        return self.memory.get(key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        self._travel(key)
        return self.memory.put_if_version(key, value, version, ttl)

    def invalidate(self, key: str, version: int) -> Entry | None:
        self._travel(key)
        return self.memory.invalidate(key, version)

    def _travel(self, *keys: str) -> None:
        self.requests.append(list(keys))
        time.sleep(self.seconds)
        self.gate.wait(20)


class DistantBatches(Distant):
    """The same, and it can put several at once."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        self._travel(*[put.key for put in puts])
        return self.memory.put_many(puts)


class DistantCluster(Distant):
    """The same, but the keys live on several nodes."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        assert len(puts) > 1
        return None


def wait(seconds: float) -> None:
    """Let a lease run."""
    threading.Event().wait(seconds)


Told = list[tuple[str, float]]


def noting(told: Told) -> Callable[[Holding], object]:
    """Make an `on_lost` that notes which hold was lost, and when."""
    return lambda hold: told.append((hold.key, clock.now()))


@pytest.mark.parametrize(
    "kind", [DistantBatches, *(pytest.param(k, marks=pytest.mark.long) for k in (DistantCluster, Distant))]
)
def test_many_leases_are_renewed_in_time(kind: type[Distant]) -> None:
    """1,000 leases of 3.6 s on a store 2 ms away: none is lost, none is renewed later than at half of it.

    One request after the other would take 2 s, and be late.
    """
    store, ttl, told = kind(), 3.6, Told()
    holds = [held(Lock(store, f"key {number}", ttl=ttl, on_lost=noting(told))) for number in range(1000)]
    store.seconds = 0.002
    store.requests.clear()
    least = ttl
    end = time.monotonic() + 1.1 * ttl
    while time.monotonic() < end:
        wait(0.02)
        least = min(least, *(hold.remaining() for hold in holds))
    assert not told
    assert least > 0.45 * ttl
    if kind is DistantBatches:
        assert len(store.requests) < 200  # about 3,000 renewals
    for hold in holds:
        hold.ensure_held()


@pytest.mark.parametrize("native", [True, pytest.param(False, marks=pytest.mark.long)])
def test_many_async_leases_are_renewed_in_time(*, native: bool) -> None:
    """The same for asyncio, with a native store and with one that blocks."""
    requests: list[int] = []

    class Native(AsyncMemoryStore):
        async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None]:
            requests.append(len(puts))
            await asyncio.sleep(0.002)
            return await super().put_many(puts)

    async def main() -> None:
        ttl, told = 3.6, Told()
        blocking = DistantBatches()
        store = Native() if native else blocking
        locks = [AsyncLock(store, f"key {number}", ttl=ttl, on_lost=noting(told)) for number in range(1000)]
        holds = [hold for lock in locks if (hold := await lock.acquire(timeout=0))]
        blocking.seconds = 0.002
        blocking.requests.clear()
        least = ttl
        end = time.monotonic() + 1.1 * ttl
        while time.monotonic() < end:
            await asyncio.sleep(0.02)
            least = min(least, *(hold.remaining() for hold in holds))
        assert len(holds) == len(locks)
        assert not told
        assert least > 0.45 * ttl
        assert len(requests if native else blocking.requests) < 200
        for hold in holds:
            hold.ensure_held()

    asyncio.run(main())


class Kept(NamedTuple):
    """What has become of three leases that were renewed together."""

    told: Told
    holds: list[Hold]
    store: FaultyStore


def keep_together(fault: Fault | None, lost: int | None = None) -> Kept:
    """Hold three keys for three renewals, the first as `fault` has it; one finds its key force-released."""
    memory, told = MemoryStore(), Told()
    store = FaultyStore(memory)
    if fault is not None:
        store.on("put_many", 1, fault)
    holds = [held(Lock(store, f"key {number}", ttl=BUSY, on_lost=noting(told))) for number in range(3)]
    if lost is not None:
        Lock(memory, holds[lost].key).force_release()
    wait(1.25 * BUSY)
    return Kept(told, holds, store)


@pytest.mark.long
def test_a_batch_without_an_answer_loses_nothing(pool: ThreadPoolExecutor) -> None:
    """Whatever becomes of the request and its reply, all leases are renewed, and can be released."""
    faults = (None, lose_request, lose_reply, unsent, duplicate, late(after=2))
    for fault, (told, holds, store) in zip(faults, pool.map(keep_together, faults), strict=True):
        assert store.calls["put_many"] >= 2, fault
        assert not told, fault
        for hold in holds:
            hold.ensure_held()
            hold.release()


@pytest.mark.long
def test_one_loss_in_a_batch_is_that_one_alone(pool: ThreadPoolExecutor) -> None:
    """The lease of a key that was force-released is reported lost, once; the others of its batch are renewed."""
    cases = [(fault, lost) for fault in (None, lose_request, lose_reply) for lost in range(3)]
    for (fault, lost), (told, holds, _) in zip(cases, pool.map(keep_together, *zip(*cases, strict=True)), strict=True):
        assert [key for key, _ in told] == [holds[lost].key], fault
        for number, hold in enumerate(holds):
            if number == lost:
                with pytest.raises(LockLost):
                    hold.release()
            else:
                hold.ensure_held()
                hold.release()
        assert len(told) == 1, fault


@pytest.mark.long
def test_a_refusal_in_a_batch_concerns_one_alone(pool: ThreadPoolExecutor) -> None:
    """Where the store refuses a batch for one of its keys, the others are renewed."""

    def keep(error: Exception) -> tuple[Told, list[Hold]]:
        memory, told = MemoryStore(), Told()

        class Refusing(FaultyStore):
            def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
                if any(put.key == "refused" for put in puts):
                    raise error
                return memory.put_many(puts)

        store = Refusing(memory)
        keys = ["refused", *(f"key {number}" for number in range(3))]
        holds = [held(Lock(store, key, ttl=BUSY, on_lost=noting(told))) for key in keys]
        wait(1.25 * BUSY)
        return told, holds

    for told, holds in pool.map(keep, [StoreError("wrong type under the key"), ValueError("too long")]):
        assert not told
        for hold in holds:  # the three verbs accept that key
            hold.ensure_held()


def test_two_holds_of_one_owner_on_one_key_are_renewed() -> None:
    """No request names a key twice, and both leases go on."""
    store = DistantBatches()
    holds = [held(Lock(store, "key", owner="we", ttl=0.9)) for _ in range(2)]
    wait(1.5)
    for hold in holds:
        hold.ensure_held()
        hold.release()


def test_a_loss_is_reported_at_the_deadline_while_the_store_hangs() -> None:
    """Within 0.1 s, though a request for its renewal has had no answer for long."""
    store, told = DistantBatches(), Told()
    holds = [held(Lock(store, f"key {number}", ttl=0.9, on_lost=noting(told))) for number in range(3)]
    store.gate.clear()
    deadlines = {hold.key: hold._attempt.lease.deadline for hold in holds}
    assert eventually(lambda: len(told) == 3)
    assert all(0 <= moment - deadlines[key] < 0.1 for key, moment in told)
    store.gate.set()
    assert all(hold.lost for hold in holds)


def test_an_async_loss_is_reported_at_the_deadline_while_the_store_hangs() -> None:
    """The same for asyncio."""

    async def main() -> None:
        store, told = DistantBatches(), Told()
        hold = await AsyncLock(store, "key", ttl=0.9, on_lost=noting(told)).acquire()
        assert hold is not None
        store.gate.clear()
        deadline = hold._attempt.lease.deadline
        await asyncio.sleep(1.2)
        assert [0 <= moment - deadline < 0.1 for _, moment in told] == [True]
        store.gate.set()

    asyncio.run(main())


def test_the_end_of_a_shorter_lease_is_reported_while_its_extension_hangs(pool: ThreadPoolExecutor) -> None:
    """Within 0.1 s of the new deadline, which counts from the request, and not from its answer."""
    store, told = Distant(), Told()
    hold = held(Lock(store, "key", ttl=30, on_lost=noting(told)))
    store.gate.clear()
    extending = pool.submit(hold.extend, 0.5)
    assert eventually(lambda: hold.remaining() < 1)
    deadline = hold._attempt.lease.deadline
    assert eventually(lambda: told, 3)
    assert 0 <= told[0][1] - deadline < 0.1
    store.gate.set()
    with pytest.raises(LockLost):
        extending.result()


def test_a_lease_is_renewed_after_a_shorter_extension_that_has_failed() -> None:
    """It ends earlier from now on, and is renewed until then, however often that fails, too."""
    store = FaultyStore(MemoryStore())
    hold = held(Lock(store, "key", ttl=30, retry=(0, 0)))
    store.on("put_if_version", range(1, 3), unsent)
    with pytest.raises(StoreUnavailable):
        hold.extend(0.9)
    assert hold.remaining() < 1
    assert eventually(lambda: hold.remaining() > 1, 1)
    hold.release()


def test_the_end_of_a_shorter_async_lease_is_reported_while_its_extension_hangs() -> None:
    """The same for asyncio."""

    async def main() -> None:
        store, told = Distant(), Told()
        hold = await AsyncLock(store, "key", ttl=30, on_lost=noting(told)).acquire()
        assert hold is not None
        store.gate.clear()
        extending = asyncio.create_task(hold.extend(0.5))
        await asyncio.sleep(0.8)
        assert [0 <= moment - hold._attempt.lease.deadline < 0.1 for _, moment in told] == [True]
        store.gate.set()
        with pytest.raises(LockLost):
            await extending

    asyncio.run(main())


@pytest.fixture(params=["redis", "memcached"])
def server(request: pytest.FixtureRequest) -> Server:
    """Return a server of each kind that may be paused."""
    server: Server = request.getfixturevalue(f"spare_{request.param}")
    return server


def close(store: object) -> None:
    """Close a blocking store once its threads have ended: what they had asked has been answered."""
    threads = [part for part in shared_of(store)._parts.values() if isinstance(part, Workers)]
    assert eventually(lambda: not any(workers._threads for workers in threads))
    getattr(store, "close", lambda: None)()


@pytest.mark.long
def test_a_loss_is_reported_at_the_deadline_while_the_server_is_stopped(server: Server) -> None:
    """The same for real servers that stop (SIGSTOP) while locks are held, with threads."""
    store, told = connect(server.url), Told()
    holds = [held(Lock(store, fresh(), ttl=3, on_lost=noting(told))) for number in range(3)]
    server.pause()
    deadlines = {hold.key: hold._attempt.lease.deadline for hold in holds}
    try:
        assert eventually(lambda: len(told) == 3)
        assert all(0 <= moment - deadlines[key] < 0.1 for key, moment in told)
    finally:
        server.resume()
        close(store)


@pytest.mark.long
def test_an_async_loss_is_reported_at_the_deadline_while_the_server_is_stopped(server: Server) -> None:
    """The same for asyncio: Redis has a store for that, memcached one that blocks."""
    store = connect_async(server.url)

    async def main() -> None:
        told = Told()
        locks = [AsyncLock(store, fresh(), ttl=3, on_lost=noting(told)) for number in range(3)]
        holds = [hold for lock in locks if (hold := await lock.acquire(timeout=0))]
        server.pause()
        deadlines = {hold.key: hold._attempt.lease.deadline for hold in holds}
        try:
            await asyncio.sleep(3.2)
            assert len(told) == 3
            assert all(0 <= moment - deadlines[key] < 0.1 for key, moment in told)
        finally:
            server.resume()

    asyncio.run(main())
    close(store)


def test_a_loss_is_reported_while_another_callback_blocks() -> None:
    """A callback that does not return delays no other loss, nor any renewal."""
    store, told, gate = MemoryStore(), Told(), threading.Event()
    blocked = held(Lock(store, "blocked", ttl=0.3, auto_renew=False, on_lost=lambda _: gate.wait(20)))
    other = held(Lock(store, "other", ttl=0.6, auto_renew=False, on_lost=noting(told)))
    renewed = held(Lock(store, "renewed", ttl=0.6))
    deadline = other._attempt.lease.deadline
    assert eventually(lambda: told)
    assert told[0][1] - deadline < 0.1
    renewed.ensure_held()
    gate.set()
    assert blocked.lost


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_excepthook_that_raises_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback raises, and the exception hook too: other leases are renewed, and other losses reported."""

    def hook(_arguments: object) -> None:
        message = "of the hook"
        raise RuntimeError(message)

    def fail(_hold: Holding) -> None:
        message = "of the callback"
        raise SystemExit(message)

    monkeypatch.setattr(threading, "excepthook", hook)
    store, told = MemoryStore(), Told()
    lost = [held(Lock(store, f"lost {number}", ttl=0.3, auto_renew=False, on_lost=fail)) for number in range(20)]
    kept = held(Lock(store, "kept", ttl=0.6))
    assert eventually(lambda: all(hold.lost for hold in lost))
    wait(1)
    kept.ensure_held()
    later = held(Lock(store, "later", ttl=0.3, auto_renew=False, on_lost=noting(told)))
    assert eventually(lambda: told)
    assert later.lost
    kept.release()


@pytest.mark.long
def test_a_store_that_hangs_takes_no_other_stores_leases() -> None:
    """40 acquires hang on one blocking store: AsyncLocks on another, and on the same one, are renewed."""

    async def main() -> None:
        hanging, other, told = Distant(), Distant(), Told()
        held_there = await AsyncLock(hanging, "held", ttl=1.5, on_lost=noting(told)).acquire()
        held_here = await AsyncLock(other, "held", ttl=1.5, on_lost=noting(told)).acquire()
        acquires = hanging_acquires(hanging)
        await asyncio.sleep(2.5)
        assert not told
        assert held_there is not None
        assert held_here is not None
        held_there.ensure_held()
        await held_here.release()
        hanging.gate.set()
        ends = await asyncio.gather(*acquires, return_exceptions=True)  # those that found no thread got an error
        assert all(isinstance(end, (AsyncHold, StoreUnavailable)) for end in ends)

    def hanging_acquires(store: Distant) -> list[asyncio.Task[AsyncHold | None]]:
        """Have the puts of others hang, and those of the renewals pass."""
        put = store.put_if_version

        def put_if_version(key: str, value: bytes, version: int, ttl: float) -> Entry | None:
            if version == ABSENT:
                gate.wait(20)
            return put(key, value, version, ttl)

        gate = store.gate = threading.Event()
        store.put_if_version = put_if_version  # type: ignore[method-assign] # of this one object
        store._travel = lambda *_: None  # type: ignore[method-assign] # as above
        return [asyncio.create_task(AsyncLock(store, f"key {number}").acquire()) for number in range(40)]

    asyncio.run(main())


def break_elsewhere(memory: MemoryStore) -> None:
    """Release the key by force through a store object that shares nothing with the holder's, like another process."""
    Lock(Distant(memory=memory), "key").force_release()


@pytest.mark.parametrize("how", ["exit", "extend", "ensure_held", "force_release", "deadline"])
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
    if how == "ensure_held":
        hold._attempt.lease.deadline = clock.now()
        with pytest.raises(LockLost):
            hold.ensure_held()
    if how != "exit":
        assert eventually(lambda: told, 1)
    with pytest.raises(LockLost):
        hold.release()
    assert eventually(lambda: told, 1)
    wait(0.2)
    assert len(told) == 1
    warnings = [
        record.getMessage()
        for record in caplog.records
        if " 'key' " in record.getMessage() and "was lost" in record.getMessage()
    ]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"lock 'key' at {store.traits.location} was lost: ")


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
                await asyncio.sleep(5)

    async def main() -> None:
        lock = AsyncLock(store, "key", ttl=0.3 if how == "deadline" else 30, auto_renew=False, on_lost=noting(told))
        with pytest.raises(LockLost):
            await body(lock)
        await asyncio.sleep(0.05)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 3
    assert len(told) == 1
    warnings = [
        record.getMessage()
        for record in caplog.records
        if " 'key' " in record.getMessage() and "was lost" in record.getMessage()
    ]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"lock 'key' at {store.traits.location} was lost: ")


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


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was warned about lately."""
    monkeypatch.setattr(reports, "_warned", {})


@pytest.mark.usefixtures("quiet")
def test_a_warning_precedes_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """While the store does not answer, a WARNING says that renewals are late, once, before the leases end."""
    store = DistantBatches()
    holds = [held(Lock(store, f"key {number}", ttl=0.9)) for number in range(3)]
    store.gate.clear()
    assert eventually(lambda: "are late" in caplog.text or holds[0].lost)
    assert not any(hold.lost for hold in holds)
    assert eventually(lambda: caplog.text.count("was lost") >= 3)
    assert caplog.text.count("are late") == 1
    store.gate.set()


@pytest.mark.usefixtures("quiet")
def test_a_warning_counts_nothing_that_it_has_not_seen(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the location, the lock whose lease ends first, when that is, and what may be the cause."""
    store = MemoryStore()
    holds = [held(Lock(store, f"key {number}", auto_renew=False)) for number in range(2)]
    for hold, left in zip(holds, (9.004, 4.004), strict=True):
        hold._attempt.lease.deadline = clock.now() + left
    for _ in range(2):
        reports.warn_of_late_renewals([hold._attempt for hold in holds])
    (message,) = (each for each in caplog.messages if store.traits.location in each)
    assert message == (
        f"renewals at {store.traits.location} are late: the lease of lock 'key 1' ends in 4 s. "
        "The store is slow or does not answer, or this process is overloaded."
    )


@pytest.mark.usefixtures("quiet")
def test_an_async_warning_precedes_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The same for asyncio."""

    async def main() -> None:
        store = DistantBatches()
        hold = await AsyncLock(store, "key", ttl=0.9).acquire()
        assert hold is not None
        store.gate.clear()
        async with asyncio.timeout(3):
            while "are late" not in caplog.text:
                assert not hold.lost
                await asyncio.sleep(0.01)
        assert not hold.lost
        store.gate.set()

    asyncio.run(main())


@pytest.mark.parametrize("batches", [True, False])
def test_the_nearest_deadline_comes_first(*, batches: bool) -> None:
    """Of the leases that are due, those that end first are renewed first, together where the store can do that."""
    memory, started = MemoryStore(), list["Coroutine[object, object, None]"]()
    store = DistantBatches(memory=memory) if batches else Distant(memory=memory)
    keys = [f"key {number}" for number in range(MOST_TOGETHER + 2)]
    holds = [held(Lock(store, key, auto_renew=False)) for key in keys]
    ends = random.Random(1).sample(range(1, len(keys) + 1), len(keys))
    for hold, end in zip(holds, ends, strict=True):
        hold._attempt.lease.deadline = clock.now() + end
    renewals = Renewals(lambda coroutine, _: started.append(coroutine), lambda _: None, batches=batches)
    renewals.add([hold._attempt for hold in holds])
    store.requests.clear()
    run(started.pop(0))
    in_order = [key for _, key in sorted(zip(ends, keys, strict=True))]
    cut = MOST_TOGETHER if batches else 1
    assert store.requests == [in_order[first : first + cut] for first in range(0, len(keys), cut)]
    for each in started:
        run(each)
    assert len(started) == 1 if batches else len(started) == MOST_RENEWING - 1


def test_a_forgotten_hold_is_not_renewed() -> None:
    """A hold that nobody has any more is not renewed for ever, with threads and with asyncio."""
    memory = MemoryStore()
    held(Lock(memory, "blocking", ttl=0.6))

    async def main() -> None:
        await AsyncLock(AsyncMemoryStore(memory), "asyncio", ttl=0.6).acquire()
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(1.2)
        assert memory.get("blocking") is None
        assert memory.get("asyncio") is None

    asyncio.run(main())
