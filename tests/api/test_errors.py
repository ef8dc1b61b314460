"""What errors know, as attributes: nobody has to read a text."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from caslock import (
    AsyncLock,
    CaslockError,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    OutcomeUnknown,
    ReadWriteLock,
    Semaphore,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from caslock.store import Traits
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import FaultyStore, lose_reply, lose_request, raising
from tests.support.locations import held, present
from tests.support.loops import in_a_loop


@pytest.fixture
def faulty(memory: MemoryStore) -> FaultyStore:
    """Make one that fails as it is told."""
    return FaultyStore(memory)


def of_key(error: CaslockError, traits: Traits) -> bool:
    return (error.key, error.location) == ("k", traits.location)


@pytest.mark.parametrize("error", [StoreUnavailable("no luck", sent=False), StoreError("no luck")])
def test_a_failed_call_names_the_lock_and_what_it_could_not_do(faulty: FaultyStore, error: StoreError) -> None:
    """In its text, and as attributes; the store's own error is the cause."""
    hold, writes = held(Lock(faulty, "k", ttl=100)), present(ReadWriteLock(faulty, "both").write.acquire())
    calls: dict[str, Callable[[], object]] = {
        "extend lock 'k': no luck; its deadline is no later than before": hold.extend,
        "hand over lock 'k': no luck; no ticket was made": hold.hand_over,
        "look up the holder of lock 'k': no luck": Lock(faulty, "k").locked,  # which asks for it
        "force-release lock 'k': no luck": Lock(faulty, "k").force_release,
        "downgrade lock 'both': no luck; the next renewal or extend() tries again": writes.downgrade,
        "acquire lock 'new': no luck; nothing was left behind": Lock(faulty, "new").acquire,
        "release lock 'k': no luck; call release() again, or its lease expires within 100 s": hold.release,
    }
    faulty.on("any", range(1, 99), raising(lambda: error, applied=False))
    for text, call in calls.items():
        with pytest.raises(StoreError) as caught:
            call()
        assert (str(caught.value), type(caught.value)) == (f"could not {text}", type(error))
        assert getattr(caught.value, "sent", None) == getattr(error, "sent", None)
        assert (caught.value.key, caught.value.location) == (text.split("'")[1], faulty.traits.location)
        assert caught.value.__cause__ is error
    faulty.heal()
    hold.release()
    writes.release()


def test_who_held_the_key_and_how_long_it_was_waited_for(memory: MemoryStore) -> None:
    """In another thread of this process, or at the store; of one key, or of several."""
    with Lock(memory, "k", note="a note") as hold, ThreadPoolExecutor(1) as thread:
        for make in (lambda: Lock(memory, "k", timeout=0), lambda: MultiLock(memory, ["j", "k"], timeout=0)):
            with pytest.raises(NotAcquired) as caught:
                thread.submit(make().__enter__).result()
            error = caught.value
            assert of_key(error, memory.traits)
            holder = present(error.holder)
            assert (holder.note, holder.fence) == ("a note", hold.fence)
            assert 0 <= present(error.waited) < 50
    full = Semaphore(memory, "k", 1, note="one", timeout=0)
    with full, pytest.raises(NotAcquired) as caught, full:
        pass
    assert of_key(caught.value, memory.traits)
    assert [share.note for share in present(caught.value.holder).shares] == ["one"]


def test_errors_keep_what_they_know_when_they_are_copied(memory: MemoryStore) -> None:
    """As between processes."""
    with Lock(memory, "k"), pytest.raises(NotAcquired) as caught, Lock(memory, "k", timeout=0):
        pass
    for error in (caught.value, StaleFence("a room", 5, 6)):
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own
            assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_why_a_hold_was_lost(memory: MemoryStore) -> None:
    """The reason is the part of the text that is not about the key."""
    removed = "its record is no longer at .*: it expired, was evicted or was removed"
    for lose, reason in (
        (lambda: Lock(memory, "k").force_release(), r"was force-released by pid|called force_release\(\)"),
        (lambda: memory.invalidate("k", present(memory.get("k")).version), removed),
    ):
        hold = held(Lock(memory, "k"))
        lose()
        for ask in (hold.extend, hold.ensure_held, hold.release):
            with pytest.raises(LockLost, match=reason) as caught:
                ask()
            assert of_key(caught.value, memory.traits)
            assert str(caught.value) == f"lock 'k' was lost: {caught.value.reason}"


@in_a_loop
async def test_why_a_block_was_cancelled() -> None:
    """The error of its end says the same, also if the hold was released as the cancellation passed."""
    store = AsyncMemoryStore()

    async def lose() -> None:
        async with AsyncLock(store, "k", ttl=1.5) as hold:
            await AsyncLock(store, "k").force_release()
            try:
                await asyncio.sleep(50)
            finally:
                with pytest.raises(LockLost):
                    await hold.release()

    with pytest.raises(LockLost, match="was lost during its async with block") as caught:
        await lose()
    assert of_key(caught.value, store.traits)
    assert caught.value.reason


def test_which_key_a_request_without_an_answer_was_about(memory: MemoryStore, faulty: FaultyStore) -> None:
    """Both when it had no effect and when it may still be applied."""
    lock = Lock(faulty, "k", retry=(0, 0), timeout=0)
    faulty.on("put_if_version", 1, lose_request)
    with pytest.raises(StoreUnavailable) as lost:
        lock.acquire()
    assert of_key(lost.value, memory.traits)
    faulty.on("put_if_version", 1, lose_reply)
    for number in range(1, 9):
        faulty.on("get", number, lose_request)
    with pytest.raises(OutcomeUnknown) as caught:
        lock.acquire()
    assert of_key(caught.value, memory.traits)


def test_an_error_of_a_store_alone_names_no_key(faulty: FaultyStore) -> None:
    """Whoever uses a store without a lock knows the key."""
    faulty.on("get", 1, lose_request)
    with pytest.raises(StoreUnavailable) as caught:
        faulty.get("k")
    assert (caught.value.key, caught.value.location) == (None, None)
