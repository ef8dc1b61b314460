"""A hold changes hands: one process hands it over, and another one, and only one, adopts it with the ticket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from caslock import (
    AsyncLock,
    AsyncSemaphore,
    AsyncStore,
    Hold,
    Lock,
    LockLost,
    MultiLock,
    NotHeld,
    QuorumLock,
    ReadWriteLock,
    Semaphore,
    Store,
    StoreError,
    StoreUnavailable,
    observe,
)
from caslock.protocol.record import decode
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, Fault, FaultyStore, late, lose_reply, lose_request, raising, unsent
from tests.api.test_fork_and_signals import every_moment, family
from tests.support.locations import Place, Watched, fresh, held, make_due, observed, patient, present, until
from tests.support.loops import in_a_loop
from tests.support.recorder import Recorder


class Pair(Semaphore):
    def __init__(self, store: Store, key: str, **settings: Any) -> None:  # noqa: ANN401 - those of a Lock
        super().__init__(store, key, 2, **settings)


class AsyncPair(AsyncSemaphore):
    def __init__(self, store: AsyncStore, key: str, **settings: Any) -> None:  # noqa: ANN401 - as above
        super().__init__(store, key, 2, **settings)


def test_one_thread_locks_and_another_process_would_finish(location: Place) -> None:
    """The same key, owner and fence; the first hold is over, and leaving its block does nothing."""
    store, key = location.store(), fresh()
    with Lock(store, key, ttl=1000, note="order 7") as first:
        ticket = first.hand_over()
        assert Lock(location.store(), key).acquire(timeout=0) is None
    record = present(observed(store, key))
    assert record.handed_over
    assert "has handed over a hold, which awaits adoption, with a lease of 1000 s" in str(record)
    with Lock.adopt(location.store(), ticket) as hold:
        assert (hold.key, hold.owner, hold.fence) == (key, first.owner, first.fence)
        assert 800 < hold.remaining() < 1000
        record = present(Lock(store, key).holder())
        assert (record.handed_over, record.note, record.pid, record.fence) == (
            False,
            "order 7",
            os.getpid(),
            hold.fence,
        )
        assert Lock(location.store(), key).acquire(timeout=0) is None
        hold.extend()
        hold.ensure_held()
    assert held(Lock(location.store(), key)).fence > hold.fence


@pytest.mark.parametrize("lock", [Lock, Pair])
def test_it_takes_one_request_and_two(lock: type[Lock | Pair], memory: MemoryStore) -> None:
    """The hand-over is a put; the adoption reads, and puts."""
    store, key = Watched(memory), fresh()
    hold = held(lock(store, key))
    ticket = hold.hand_over()
    assert store.requests == [("put", key), ("put", key)]
    other = Watched(memory)
    lock.adopt(other, ticket).release()
    assert other.requests == [("get", key), ("put", key), ("invalidate", key)]


def test_the_first_hold_is_over(memory: MemoryStore) -> None:
    """As after a release; its Lock object acquires the key again when the adopter has released it, and no sooner."""
    lock = Lock(memory, fresh())
    with lock:
        hold = held(lock)
        hold.release()
        hold = present(lock.acquire())
        hold.release()
    hold = held(lock)
    with hold:
        ticket = hold.hand_over()
        assert (hold.remaining(), repr(hold).endswith("released>")) == (0.0, True)
        for act in (hold.release, hold.hand_over, hold.ensure_held, hold.extend):
            with pytest.raises(NotHeld, match="was handed over"):
                act()
    with pytest.raises(NotHeld):
        lock.release()
    assert (lock.acquire(timeout=0), lock._state._held) == (None, {})
    adopted = Lock.adopt(memory, ticket)
    assert lock.acquire(timeout=0) is None
    adopted.release()
    with lock as again:
        assert again.fence > adopted.fence


def test_a_block_that_raises_after_a_hand_over_raises_that(memory: MemoryStore) -> None:
    """With nothing added to it."""

    def block() -> None:
        with Lock(memory, fresh()) as hold:
            hold.hand_over()
            raise KeyError("of the block")

    with pytest.raises(KeyError) as caught:
        block()
    assert not hasattr(caught.value, "__notes__")


@in_a_loop
async def test_an_async_block_is_left_in_silence_too() -> None:
    """Of a lock, and of a hold."""
    store, key = AsyncMemoryStore(), fresh()
    async with AsyncLock(store, key) as hold:
        ticket = await hold.hand_over()
    adopted = await AsyncLock.adopt(store, ticket)
    async with adopted:
        ticket = await adopted.hand_over()
        with pytest.raises(NotHeld, match="was handed over"):
            await adopted.release()
    await (await AsyncLock.adopt(store, ticket)).release()


@pytest.mark.parametrize("lock", [Lock, Pair])
def test_a_ticket_is_used_once(location: Place, lock: type[Lock | Pair]) -> None:
    """A second adoption fails, and only reads: the first hold goes on."""
    key = fresh()
    ticket = held(lock(location.store(), key, ttl=50)).hand_over()
    adopted = lock.adopt(location.store(), ticket)
    again = Watched(location.store())
    with pytest.raises(LockLost, match="the ticket was used before"):
        lock.adopt(again, ticket)
    assert again.requests == [("get", key)]
    adopted.extend()
    adopted.release()


@pytest.mark.parametrize("api", [Lock, AsyncLock])
@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"ttl": 0}, ValueError, "ttl must be"),
        ({"max_hold": -1}, ValueError, "max_hold must be"),
        ({"auto_renew": 1}, TypeError, "auto_renew must be"),
        ({"note": 7}, TypeError, "note must be"),
        ({"on_lost": 7}, TypeError, "on_lost must be"),
        ({"retry": 7}, TypeError, "retry must be"),
        ({"owner": "me"}, TypeError, "unexpected keyword argument 'owner'"),
        ({"blocking_timeout": 7}, TypeError, "unexpected keyword argument 'blocking_timeout'"),
        (None, ValueError, "is not a ticket of hand_over"),
    ],
)
def test_bad_arguments_are_refused_before_any_request(
    api: type[Lock | AsyncLock], settings: dict[str, Any] | None, error: type[Exception], told: str, memory: MemoryStore
) -> None:
    """A text that is no ticket, and settings that a lock would refuse, or that an adoption does not have."""
    store, ticket = Watched(memory), held(Lock(memory, fresh())).hand_over()

    async def adopt() -> None:
        adopted: Any = api.adopt(store, ticket[:-2] if settings is None else ticket, **(settings or {}))
        await adopted

    with pytest.raises(error, match=told):
        asyncio.run(adopt())
    assert store.requests == []


def test_nobody_renews_what_nobody_adopts(location: Place) -> None:
    """It ends with its lease, also if the hold is kept."""
    store, key = location.store(), fresh()
    hold = held(Lock(store, key, ttl=60))
    hold._attempt.lease.ttl = 2.0  # short only from here on: acquiring alone may take longer
    hold.hand_over()
    assert until(lambda: store.get(key) is None, 30)  # not if it is still renewed


def test_the_adopter_renews(memory: MemoryStore) -> None:
    """With the ttl of before, or one of its own; until it is released, or nothing refers to it any more."""
    key = fresh()
    hold = Lock.adopt(memory, held(Lock(memory, key, ttl=1000)).hand_over(), ttl=60)
    make_due(hold._attempt)
    versions = {present(memory.get(key)).version}
    assert until(lambda: len(versions | {present(memory.get(key)).version}) > 1)
    hold.ensure_held()
    kept = weakref.ref(hold._attempt)
    del hold
    assert until(lambda: gc.collect() >= 0 and kept() is None)


@pytest.mark.parametrize("auto_renew", [False, True])
def test_the_adopter_is_told_of_a_loss(memory: MemoryStore, *, auto_renew: bool) -> None:
    """By its own `on_lost`."""
    lost: list[Hold] = []
    key = fresh()
    hold = Lock.adopt(memory, held(Lock(memory, key)).hand_over(), ttl=0.2, auto_renew=auto_renew, on_lost=lost.append)
    if auto_renew:
        Lock(memory, key).force_release()
    assert until(lambda: lost)
    assert lost == [hold]
    with pytest.raises(LockLost):
        hold.release()


def test_max_hold_goes_on(memory: MemoryStore) -> None:
    """The adopter does not hold beyond it, unless it has one of its own."""
    lock = Lock(memory, fresh(), ttl=10, max_hold=100)
    adopted = Lock.adopt(memory, held(lock).hand_over())
    assert 80 < adopted._attempt.lease.max_hold < 90
    adopted = Lock.adopt(memory, adopted.hand_over(), max_hold=300)
    assert adopted._attempt.lease.max_hold == 300
    adopted = Lock.adopt(memory, adopted.hand_over(), max_hold=None)
    adopted.extend(1000)
    assert adopted.remaining() > 900
    adopted.release()
    short = held(Lock(memory, fresh(), ttl=1000, max_hold=1000))
    adopted = Lock.adopt(memory, short.hand_over())
    assert 400 < adopted.remaining() < 500
    with pytest.raises(LockLost, match="its max_hold has run out"):
        Lock.adopt(memory, str(ticket_of(adopted, max_hold=0.0)))


def ticket_of(hold: Hold, **changes: float) -> str:
    from caslock.protocol.transfer import read_ticket  # noqa: PLC0415 - for this alone

    return str(read_ticket(hold.hand_over())._replace(**changes))  # type: ignore[arg-type] # numbers


def test_a_hold_that_was_entered_twice_is_refused(memory: MemoryStore) -> None:
    """The inner one, and the outer one; after the inner release it is handed over."""
    lock = Lock(memory, fresh())
    with lock as outer:
        with lock as inner:
            for hold in (inner, outer):
                with pytest.raises(RuntimeError, match="is held 2 times by this thread or task") as caught:
                    hold.hand_over()
                assert not isinstance(caught.value, NotHeld)
        ticket = outer.hand_over()
    Lock.adopt(memory, ticket).release()


def test_an_entry_during_the_hand_over_undoes_it() -> None:
    """Another thread hands the hold over as its own thread enters it once more."""
    store, key = FaultyStore(MemoryStore()), fresh()
    lock = Lock(store, key)
    hold = held(lock)
    inner: list[Hold] = []
    store.after("put_if_version", 1, lambda: inner.append(held(lock)))
    with pytest.raises(RuntimeError, match="is held 2 times"):
        hold.hand_over()
    hold.extend()
    assert not present(observed(store, key)).handed_over
    inner[0].release()
    hold.release()
    assert observed(store, key) is None


def test_several_keys_and_several_stores_are_refused(memory: MemoryStore) -> None:
    """Members of a MultiLock, also of one of existing locks, and holds of a QuorumLock."""
    keys = [fresh(), fresh()]
    with MultiLock(memory, keys) as holds, pytest.raises(RuntimeError, match="of a MultiLock can't be handed over"):
        holds[keys[0]].hand_over()
    with MultiLock([Lock(memory, key) for key in keys]) as holds, pytest.raises(RuntimeError, match="of a MultiLock"):
        holds[keys[0]].hand_over()
    with (
        QuorumLock([patient() for _ in range(3)], fresh()) as hold,
        pytest.raises(RuntimeError, match="of a QuorumLock"),
    ):
        hold.hand_over()
    assert observed(memory, keys[0]) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_hands_nothing_over(memory: MemoryStore, *, busy: bool) -> None:
    """Not even as its parent extends the lease at the moment of the fork."""
    with family() as kin, Lock(memory, fresh()) as hold:
        if busy:
            hold._attempt.mutex.acquire(blocking=False)
        if kin.fork():
            if busy:
                threading.Thread(target=lambda: None).start()
            hold.hand_over()
        facts = kin.hear()
        assert (facts["left_by"], facts["why"]) == (
            "NotHeld",
            f"this hold of {hold.key!r} belongs to the parent process",
        )
        if busy:
            hold._attempt.mutex.release()
        hold.ensure_held()


def test_a_named_owner_keeps_its_other_holds(memory: MemoryStore) -> None:
    """One of two holds is handed over; both end by themselves, and the key is free after the last."""
    key = fresh()
    one, other = held(Lock(memory, key, owner="us")), held(Lock(memory, key, owner="us"))
    ticket = one.hand_over()
    other.extend()
    assert len(present(observed(memory, key)).holds) == 2
    adopted = Lock.adopt(memory, ticket)
    assert (adopted.owner, adopted.fence) == ("us", other.fence)
    with Lock(memory, key, owner="us", timeout=0) as third:
        assert third.fence == other.fence
    other.release()
    adopted.ensure_held()
    assert Lock(memory, key).acquire(timeout=0) is None
    adopted.release()
    assert observed(memory, key) is None


def test_waiters_of_the_first_process_wait_on(memory: MemoryStore) -> None:
    """They get the key when the adopter has released it."""
    key = fresh()
    lock = Lock(memory, key)
    hold = held(lock)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: held(lock, timeout=50))
        assert until(lambda: lock._state._queue.waiting)
        ticket = hold.hand_over()
        assert until(lambda: not lock._state._queue.waiting)
        adopted = Lock.adopt(memory, ticket)  # although somebody waits for the key before it
        assert not waiting.done()
        adopted.release()
        waiting.result().release()
    assert observed(memory, key) is None


@pytest.mark.parametrize("lock", [Lock, Pair])
def test_who_has_read_too_early_does_not_adopt(location: Place, lock: type[Lock | Pair]) -> None:
    """Two have seen the hold of the ticket: the put of the second one is refused."""
    plain, key = location.store(), fresh()
    store = FaultyStore(plain)
    ticket = held(lock(plain, key, ttl=50)).hand_over()
    winners: list[Hold] = []
    store.before("put_if_version", 1, lambda: winners.append(lock.adopt(plain, ticket)))
    with pytest.raises(LockLost, match="the ticket was used before"):
        lock.adopt(store, ticket)
    winners[0].extend()
    winners[0].release()
    assert observed(plain, key) is None


def test_a_permit_changes_hands_with_its_slot(location: Place) -> None:
    """The others keep theirs, nobody gets one more, and each kind of ticket is adopted by its own class."""
    store, key = location.store(), fresh()
    pool = Semaphore(store, key, 3, ttl=50, note="first")
    low, middle, high = (present(pool.acquire()) for _ in range(3))
    ticket = middle.hand_over()
    assert sum(record.handed_over for record in pool.holders()) == 1
    assert pool.acquire(timeout=0) is None
    with pytest.raises(ValueError, match=r"is from a Semaphore: use Semaphore\.adopt"):
        Lock.adopt(store, ticket)
    with Semaphore.adopt(location.store(), ticket, note="second") as adopted:
        assert (adopted.key, adopted.slot, adopted.fence) == (key, 1, middle.fence)
        assert 40 < adopted.remaining() <= 50
        assert [record.note for record in pool.holders()].count("second") == 1
        assert pool.acquire(timeout=0) is None
        again = Semaphore.adopt(store, high.hand_over())
        assert [record.note for record in pool.holders()].count("first") == 2
        for hold in (low, again, adopted):
            hold.extend()
            hold.ensure_held()
    with pytest.raises(NotHeld, match="was handed over"):
        middle.release()
    with pytest.raises(LockLost, match="the ticket has expired, was used before, or belongs to another store"):
        Semaphore.adopt(store, ticket)
    assert present(pool.acquire(timeout=0)).slot == 1
    with pytest.raises(ValueError, match=r"is from a Lock: use Lock\.adopt"):
        Semaphore.adopt(store, held(Lock(store, fresh())).hand_over())


def test_a_permit_that_nobody_adopts_is_free_after_its_ttl(memory: MemoryStore) -> None:
    """Whoever else holds goes on, and the place is taken by who waits."""
    pool = Semaphore(memory, key := fresh(), 2, ttl=50)
    with pool as kept:
        handed = present(Semaphore(memory, key, 2, ttl=60).acquire())
        handed._attempt.lease.ttl = 2.0  # short only from here on: acquiring alone may take longer
        ticket = handed.hand_over()
        with present(pool.acquire(timeout=50)) as hold:
            assert hold.slot == 1
        kept.ensure_held()
        with pytest.raises(LockLost):
            Semaphore.adopt(memory, ticket)


def test_a_side_of_a_read_write_lock_is_not_handed_over(memory: MemoryStore) -> None:
    """The hold goes on."""
    with ReadWriteLock(memory, "key").read as hold:
        with pytest.raises(RuntimeError, match="a hold of a ReadWriteLock can't be handed over"):
            hold.hand_over()
        hold.extend()


# Faults


@pytest.mark.parametrize("lock", [Lock, Pair])
@pytest.mark.parametrize("fault", [lose_request, lose_reply, late(after=1), unsent], ids=str)
@pytest.mark.parametrize("where", ["hand over", "adopt"])
def test_one_request_without_an_answer_is_made_up_for(lock: type[Lock | Pair], where: str, fault: Fault) -> None:
    """It is settled by reading, and both succeed."""
    store, key = FaultyStore(MemoryStore()), fresh()
    hold = held(lock(store, key))
    if where == "hand over":
        store.on("put_if_version", 1, fault)
    ticket = hold.hand_over()
    if where == "adopt":
        store.on("put_if_version", 1, fault)
    with lock.adopt(store, ticket) as adopted:
        assert adopted.fence == hold.fence
        adopted.extend()
    assert observed(store, key) is None


@pytest.mark.parametrize("lock", [Lock, Pair])
@pytest.mark.parametrize("applied", [False, True])
def test_a_hand_over_that_fails_leaves_the_hold(lock: type[Lock | Pair], *, applied: bool) -> None:
    """The store stops answering: the hold goes on, and its release frees the key, whatever was applied."""
    store, key = FaultyStore(MemoryStore()), fresh()
    with lock(store, key, retry=(0, 0)) as hold:
        store.on("put_if_version", 1, lose_reply if applied else lose_request)
        store.on("get", 1, lose_request)
        with pytest.raises(StoreUnavailable):
            hold.hand_over()
        hold.ensure_held()
    assert observed(store, key) is None


@pytest.mark.parametrize("lock", [Lock, Pair])
def test_a_hand_over_that_is_refused_leaves_the_hold(lock: type[Lock | Pair]) -> None:
    """And can be made again."""
    store, key = FaultyStore(MemoryStore()), fresh()
    with lock(store, key) as hold:
        store.on("put_if_version", 1, raising(lambda: StoreError("out of memory"), applied=False))
        with pytest.raises(StoreError, match="out of memory"):
            hold.hand_over()
        hold.extend()
        ticket = hold.hand_over()
    lock.adopt(store, ticket).release()


@pytest.mark.parametrize("lock", [Lock, Pair])
@pytest.mark.parametrize("applied", [False, True])
def test_an_adoption_that_fails_leaves_the_ticket_or_nothing(lock: type[Lock | Pair], *, applied: bool) -> None:
    """Another try has it, unless the request was applied: then the key is free."""
    store, key = FaultyStore(MemoryStore()), fresh()
    hold = held(lock(store, key))
    ticket = hold.hand_over()
    store.on("put_if_version", 1, lose_reply if applied else lose_request)
    store.on("get", 2, lose_request)
    with pytest.raises(StoreUnavailable, match=r"could not adopt lock .*; adopt again"):
        lock.adopt(store, ticket, retry=(0, 0))
    if applied:
        assert observed(store, key) is None
        with pytest.raises(LockLost):
            lock.adopt(store, ticket)
    else:
        assert present(observed(store, key)).handed_over
        assert lock.adopt(store, ticket).fence == hold.fence


@pytest.mark.parametrize(("fault", "left"), [(lose_reply, 0), (lose_request, 1), (late(after=1), 0)], ids=str)
def test_an_adoption_that_fails_beside_others_leaves_the_ticket_or_nothing(fault: Fault, left: int) -> None:
    """What it writes to keep its own late request out has the ticket's share, if that was not replaced."""
    store, key = FaultyStore(MemoryStore()), fresh()
    with Pair(store, key) as other:
        ticket = held(Pair(store, key)).hand_over()
        store.on("put_if_version", 1, fault)
        store.on("get", 2, lose_request)
        with pytest.raises(StoreUnavailable, match="could not adopt"):
            Pair.adopt(store, ticket, retry=(0, 0))
        other.extend()
        assert [record.handed_over for record in Pair(store, key).holders()].count(True) == left
        with Semaphore.adopt(store, ticket) if left else Pair(store, key) as adopted:
            assert adopted.slot == 1


def test_force_release_takes_a_hold_that_is_adopted_meanwhile() -> None:
    """It has another id then, and somebody else has come as well."""
    memory, key = MemoryStore(), fresh()
    store, holds = FaultyStore(memory), list[Hold]()
    ticket = held(Pair(memory, key)).hand_over()
    store.before("put_if_version", 1, lambda: holds.extend([Semaphore.adopt(memory, ticket), held(Pair(memory, key))]))
    Pair(store, key).force_release()
    for hold in holds:
        with pytest.raises(LockLost):
            hold.extend()


@pytest.mark.parametrize("lock", [AsyncLock, AsyncPair])
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("what", ["hand over", "get", "put"])
@in_a_loop
async def test_a_cancellation_leaves_it_to_one_of_them(
    what: str, lock: type[AsyncLock | AsyncPair], *, applied: bool
) -> None:
    """In a hand-over the hold goes on, in an adoption the ticket does, unless the put was applied: the key is free."""
    store, key = AsyncFaultyStore(AsyncMemoryStore()), fresh()
    fault = raising(asyncio.CancelledError, applied=applied)
    if what == "hand over":
        async with lock(store, key) as hold:
            store.on("put_if_version", 1, fault)
            with pytest.raises(asyncio.CancelledError):
                await hold.hand_over()
            hold.ensure_held()
        assert await store.get(key) is None
        return
    hold = present(await lock(store, key).acquire())
    ticket = await hold.hand_over()
    store.on(*(("get", 1) if what == "get" else ("put_if_version", 1)), fault)
    with pytest.raises(asyncio.CancelledError):
        await lock.adopt(store, ticket)
    if what == "put" and applied:
        assert await store.get(key) is None
        return
    assert decode(present(await store.get(key)).value).handed_over
    async with await lock.adopt(store, ticket) as adopted:
        assert adopted.fence == hold.fence


@pytest.mark.parametrize("lock", [Lock, Pair])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_hand_over_leaves_nothing_that_is_renewed(lock: type[Lock | Pair]) -> None:
    """At each moment: after a release the key is free, or it awaits an adoption, and ends with its lease."""
    store, holds = patient(), list[Hold]()

    def prepare() -> Callable[[], object]:
        holds.append(held(lock(store, fresh(), ttl=1000)))
        return holds[-1].hand_over

    for moment in every_moment(prepare):
        hold = holds.pop()
        with contextlib.suppress(NotHeld):
            hold.release()
        record = observed(store, hold.key)
        assert record is None or record.handed_over, moment
        assert hold._attempt.ending, moment
        assert not hold._state.committed, moment


@pytest.mark.parametrize("lock", [Lock, Pair])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_an_adoption_leaves_the_ticket_or_frees_the_key(lock: type[Lock | Pair]) -> None:
    """At each moment: the ticket is as good as before, until it was used; then the key is free."""
    store, tickets, outcomes = patient(), list[tuple[str, str]](), set[bool]()

    def prepare() -> Callable[[], object]:
        key = fresh()
        tickets.append((key, held(lock(store, key, ttl=1000)).hand_over()))
        return lambda: lock.adopt(store, tickets[-1][1])

    for moment in every_moment(prepare):
        key, ticket = tickets.pop()
        used = observed(store, key) is None
        outcomes.add(used)
        if used:
            continue
        adopted = lock.adopt(store, ticket)
        adopted.ensure_held()
        adopted.release()
        assert observed(store, key) is None, moment
    assert outcomes == {False, True}


# What is told


def test_observers_are_told_of_both(memory: MemoryStore) -> None:
    """The hold was handed over, not released; and adopted, not acquired."""
    told = Recorder()
    stop = observe(told)
    try:
        with Lock(memory, fresh()) as hold:
            ticket = hold.hand_over()
        with Lock.adopt(memory, ticket):
            pass
    finally:
        stop()
    assert told.names == ["acquired", "handed_over", "adopted", "released"]
    assert len({(event.key, event.owner, event.fence, event.reason) for _, event in told.events}) == 1


# Across processes

WORKER = """
import sys
from caslock import connect, Lock
from tests.support.locations import make_due, until

with connect(sys.argv[1]) as store:
    with Lock.adopt(store, sys.argv[2], ttl=60) as hold:
        adopted = hold._attempt.lease.deadline
        make_due(hold._attempt)
        assert until(lambda: hold._attempt.lease.deadline > adopted)
        print(hold.key, hold.fence, flush=True)
        sys.stdin.read()
"""

WEB = """
import sys
from caslock import connect, Lock

with connect(sys.argv[1]) as store:
    with Lock(store, sys.argv[2], ttl=60) as hold:
        print(hold.hand_over(), hold.fence, flush=True)
        sys.stdin.read()
"""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate("")
    return process.returncode


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("then", ["ends", "is killed", "is stopped"])
def test_a_process_locks_and_another_one_finishes(
    kind: str, then: str, request: pytest.FixtureRequest, tmp_path: object
) -> None:
    """Whatever becomes of the first one: it may end, be killed, or be stopped as soon as it has sent the ticket."""
    from tests.support.locations import url_of  # noqa: PLC0415 - for these kinds

    url, key = url_of(kind, request, tmp_path), fresh()  # type: ignore[arg-type] # a path
    web = started(WEB, url, key)
    ticket, fence = line_of(web)
    if then == "is stopped":
        web.send_signal(signal.SIGSTOP)
    elif then == "is killed":
        web.kill()
        web.communicate()
    else:
        assert ended(web) == 0
    worker = started(WORKER, url, ticket)
    assert line_of(worker) == [key, fence]
    if then == "is stopped":
        web.send_signal(signal.SIGCONT)
        assert ended(web) == 0
    from caslock import connect  # noqa: PLC0415 - for this alone

    with connect(url) as store:
        assert present(Lock(store, key).holder()).pid == worker.pid
        assert ended(worker) == 0
        assert Lock(store, key).holder() is None
