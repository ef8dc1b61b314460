"""Many read, or one writes; a writer that waits comes before those who come later to read."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tenacity.wait import wait_fixed

from caslock import (
    AsyncReadWriteLock,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    NotHeld,
    ReadWriteLock,
    Semaphore,
    StoreError,
    StoreUnavailable,
    WriteHold,
)
from caslock.protocol.shares import MAX_PERMITS
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import Fault, FaultyStore, lose_reply, lose_request
from tests.support.locations import Place, fresh, observed, present, until
from tests.support.loops import in_a_loop

ENOUGH = 50.0
"""Seconds; longer than anything here takes."""


def test_many_read_or_one_writes(location: Place, pool: ThreadPoolExecutor) -> None:
    """Fences grow from hold to hold, on both sides, and nothing is left behind."""
    store, key = location.store(), fresh()
    one, other = ReadWriteLock(store, key), ReadWriteLock(location.store(), key)
    with one.read as a, one.read as again:
        assert a.fence == again.fence
        b = present(other.read.acquire(timeout=0))
        assert b.fence > a.fence
        assert [holder.fence for holder in one.read.holders()] == [a.fence, b.fence]
        assert other.read.locked()
        assert not other.write.locked()
        assert pool.submit(other.write.acquire, timeout=0).result(ENOUGH) is None
        b.release()
    with other.write as c:
        assert c.fence > b.fence
        assert one.read.acquire(timeout=0) is None
        assert one.write.acquire(timeout=0.05) is None
        assert (one.write.locked(), one.read.locked()) == (True, False)
    with pytest.raises(NotHeld):
        c.release()
    assert observed(store, key) is None


def test_a_writer_that_waits_comes_before_later_readers(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """Who was inside goes on, also by entering once more; when the writer stops waiting, others may read again."""
    lock = ReadWriteLock(memory, "key")

    def waits() -> bool:
        return "waiting writer" in str(observed(memory, "key"))

    first = present(lock.read.acquire())
    writing = pool.submit(ReadWriteLock(memory, "key").write.acquire)
    assert until(waits)
    assert ReadWriteLock(memory, "key").read.acquire(timeout=0) is None
    with lock.read:
        pass
    reading = pool.submit(ReadWriteLock(memory, "key").read.acquire)
    first.release()
    with present(writing.result(ENOUGH)) as writer:
        assert not reading.done()
    with present(reading.result(ENOUGH)) as reader:
        assert reader.fence > writer.fence
        waited = pool.submit(ReadWriteLock(memory, "key", timeout=0.1).write.__enter__).exception(ENOUGH)
        assert isinstance(waited, NotAcquired)
        assert "a reader: pid" in str(waited)
        assert "writer" not in f"{waited} {waited.holder}"
        assert not waits()
        present(ReadWriteLock(memory, "key").read.acquire(timeout=0)).release()
    assert observed(memory, "key") is None


def test_a_writer_that_waits_and_dies_keeps_nobody_out_for_long(memory: MemoryStore) -> None:
    """Its place in the record is over after its ttl."""
    with ReadWriteLock(memory, "key").read:
        state = ReadWriteLock(memory, "key", ttl=2).write._state
        attempt = state.begun()._attempt()
        acquiring = state._ask(attempt, 0.001, None)
        with pytest.raises(StopIteration):
            acquiring.send(None)  # it says that it waits, and nobody withdraws that
        assert "waiting writer" in str(observed(memory, "key"))
        assert ReadWriteLock(memory, "key").read.acquire(timeout=0) is None
        present(ReadWriteLock(memory, "key").read.acquire(timeout=ENOUGH)).release()
    assert observed(memory, "key") is None


def test_a_reader_cannot_wait_to_write(memory: MemoryStore) -> None:
    """Two that do so would wait for each other; who writes is told what to do in place of reading."""
    lock = ReadWriteLock(memory, "key")
    with lock.read, pytest.raises(RuntimeError, match="reads 'key', and would wait for itself: release it to write"):
        lock.write.acquire()
    with lock.write, pytest.raises(RuntimeError, match="writes 'key', and would wait for itself: just read"):
        lock.read.acquire()
    with lock.write:
        pass


def test_a_writer_that_downgrades_reads_beside_others(location: Place, pool: ThreadPoolExecutor) -> None:
    """Under its fence, with no writer in between; it enters to read once more, and the end of its block releases it."""
    store, key = location.store(), fresh()
    lock, other = ReadWriteLock(store, key), ReadWriteLock(location.store(), key)
    with lock.write as hold:
        fence = hold.fence
        assert other.read.acquire(timeout=0) is None
        hold.downgrade()
        assert (hold.fence, hold.lost) == (fence, False)
        with present(other.read.acquire(timeout=0)) as reader:
            assert reader.fence > fence
            assert [record.fence for record in lock.read.holders()] == [fence, reader.fence]
        assert pool.submit(other.write.acquire, timeout=0).result(ENOUGH) is None
        with lock.read as again:
            assert again.fence == fence
            with pytest.raises(RuntimeError, match="entered more than once"):
                hold.downgrade()
        with pytest.raises(RuntimeError, match=r"reads .*, and would wait for itself: release it to write"):
            lock.write.acquire()
        hold.extend()
        assert not lock.write.locked()
        hold.downgrade()  # as after an error
    assert observed(store, key) is None
    with pytest.raises(NotHeld):
        hold.downgrade()
    with lock.write:
        assert (lock.write.locked(), lock.read.locked()) == (True, False)


def test_one_of_several_holds_is_downgraded(memory: MemoryStore) -> None:
    """The others go on as they are, and all are released together."""
    lock = ReadWriteLock(memory, "b")
    with MultiLock([Lock(memory, "a"), lock.write, Lock(memory, "c")]) as holds:
        hold = holds["b"]
        assert isinstance(hold, WriteHold)
        hold.downgrade()
        present(ReadWriteLock(memory, "b").read.acquire(timeout=0)).release()
        holds.extend()
        with lock.read:
            pass
    assert [observed(memory, key) for key in "abc"] == [None, None, None]


def test_a_downgrade_wakes_readers_of_its_process(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """They do not wait for their next look."""
    lock = ReadWriteLock(memory, "key", poll=wait_fixed(1000))
    writer = present(lock.write.acquire())
    reading = [pool.submit(lock.read.acquire) for _ in range(2)]
    assert until(lambda: len(lock.read._state._queue.waiting) == 1)
    writer.downgrade()
    for each in reading:
        present(each.result(ENOUGH)).release()
    writer.release()
    assert observed(memory, "key") is None


@pytest.mark.parametrize("fault", [lose_reply, lose_request], ids=["reply", "request"])
def test_a_downgrade_without_an_answer_is_made_once_more(memory: MemoryStore, fault: Fault) -> None:
    """The reply was lost, or the request."""
    faulty = FaultyStore(memory)
    with ReadWriteLock(faulty, "key").write as hold:
        faulty.on("put_if_version", 1, fault)
        hold.downgrade()
        with present(ReadWriteLock(memory, "key").read.acquire(timeout=0)) as reader:
            assert reader.fence > hold.fence
    assert observed(memory, "key") is None


def test_a_downgrade_that_has_failed_is_made_by_the_next_renewal(memory: MemoryStore) -> None:
    """Until then the hold keeps others out, and is held."""
    faulty = FaultyStore(memory)
    with ReadWriteLock(faulty, "key", retry=(0, 0)).write as hold:
        faulty.on("put_if_version", 1, lose_request)
        with pytest.raises(StoreUnavailable):
            hold.downgrade()
        assert ReadWriteLock(memory, "key").read.acquire(timeout=0) is None
        hold.extend()  # as a renewal does
        present(ReadWriteLock(memory, "key").read.acquire(timeout=0)).release()
    assert observed(memory, "key") is None


def test_a_lost_hold_is_not_downgraded(memory: MemoryStore) -> None:
    """It is a loss, as for an extension."""
    lock = ReadWriteLock(memory, "key")
    hold = present(lock.write.acquire())
    lock.force_release()
    with pytest.raises(LockLost):
        hold.downgrade()
    with pytest.raises(LockLost):
        hold.release()


@in_a_loop
async def test_a_task_downgrades() -> None:
    """And another one of the same loop, that waits to read, gets in."""
    store = AsyncMemoryStore()
    lock = AsyncReadWriteLock(store, "key", timeout=ENOUGH)

    inside = asyncio.Barrier(3)

    async def read() -> None:
        async with lock.read:
            await inside.wait()

    async with asyncio.TaskGroup() as tasks, lock.write as hold:
        for _ in range(2):
            tasks.create_task(read())
        while not lock.read._state._queue.waiting:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        await hold.downgrade()
        await inside.wait()
    assert not await lock.read.locked()


@in_a_loop
async def test_tasks_read_together_and_write_alone() -> None:
    """A writer waits for those that read."""
    store = MemoryStore()
    lock = AsyncReadWriteLock(store, "key", timeout=ENOUGH)
    reading = asyncio.Barrier(3)
    order = list[str]()

    async def read() -> None:
        async with lock.read:
            await reading.wait()
            order.append("read")

    async def write() -> None:
        async with lock.write:
            order.append("write")
            assert await lock.write.locked()
            assert not await lock.read.locked()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(read())
        while len(await lock.read.holders()) < 2:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        tasks.create_task(write())
        while "waiting" not in str(observed(store, "key")):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        await reading.wait()
    assert order == ["read", "read", "write"]
    assert observed(store, "key") is None


@pytest.mark.parametrize("fault", [lose_reply, lose_request], ids=["reply", "request"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_an_unanswered_request_does_no_harm(
    memory: MemoryStore, pool: ThreadPoolExecutor, fault: Fault, nth: int
) -> None:
    """Of an announcement, an acquire or a release."""
    faulty = FaultyStore(memory)
    lock = ReadWriteLock(faulty, "key")
    with ReadWriteLock(memory, "key").read:
        faulty.on("any", nth, fault)
        writing = pool.submit(lock.write.acquire)
        assert until(lambda: "waiting" in str(observed(memory, "key")))
    with present(writing.result(ENOUGH)) as writer:
        assert [holder.fence for holder in lock.write.holders()] == [writer.fence]
        faulty.on("any", nth, fault)
    assert observed(memory, "key") is None


def test_other_locks_of_the_key_are_told_apart(memory: MemoryStore) -> None:
    """A Lock is waited for, a semaphore is a mistake, and force_release ends all."""
    lock = ReadWriteLock(memory, "key", timeout=0)
    with Lock(memory, "key"):
        assert lock.read.acquire() is None
        assert lock.write.acquire() is None
    with Semaphore(memory, "key", 2), pytest.raises(StoreError, match="is a semaphore of 2 permits, not a read-write"):
        lock.read.acquire()
    a, b = present(lock.read.acquire()), present(ReadWriteLock(memory, "key").read.acquire())
    with pytest.raises(StoreError, match=r"is a read-write lock, not a semaphore of 3 permits: .* a reader: pid"):
        Semaphore(memory, "key", 3).acquire()
    assert [record.fence for record in lock.force_release()] == [a.fence, b.fence]
    for hold in (a, b):
        with pytest.raises(LockLost):
            hold.release()


def test_no_more_are_in_the_record_than_it_has_room_for(memory: MemoryStore) -> None:
    """One more reader waits, and all that are in it can be renewed."""
    locks = [ReadWriteLock(memory, "key") for _ in range(MAX_PERMITS)]
    holds = [present(lock.read.acquire()) for lock in locks]
    assert ReadWriteLock(memory, "key").read.acquire(timeout=0) is None
    assert ReadWriteLock(memory, "key").write.acquire(timeout=0.1) is None
    for hold in holds:
        hold.extend()
        hold.release()
    assert observed(memory, "key") is None


def test_a_writer_does_not_come_before_readers_while_another_writes(
    memory: MemoryStore, pool: ThreadPoolExecutor
) -> None:
    """Else writers that follow each other would keep out readers for ever."""
    with ReadWriteLock(memory, "key").write:
        writing = pool.submit(ReadWriteLock(memory, "key").write.acquire, timeout=0.2)
        assert writing.result(ENOUGH) is None
        assert "waiting" not in str(observed(memory, "key"))
