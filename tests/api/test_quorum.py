"""A lock at several stores: a majority of leases is the lock, whatever the other stores do."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self, cast

import pytest

from caslock import (
    AsyncHold,
    AsyncQuorumLock,
    Hold,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    QuorumLock,
    Record,
    Store,
    StoreUnavailable,
    observe,
)
from caslock.protocol.quorum import Ballot, QuorumLease
from caslock.protocol.record import decode
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, Fault, FaultyStore, lose_reply, lose_request, unsent
from tests.support.locations import fresh, make_due, observed, patient, present, until
from tests.support.loops import in_a_loop
from tests.support.recorder import Recorder


def stores(number: int = 3) -> list[FaultyStore]:
    return [FaultyStore(patient(), plain=True) for _ in range(number)]


def holders(of: list[FaultyStore], key: str) -> list[bool]:
    """Tell of each store whether anybody holds the key there; this is no request of a test's plan."""
    return [observed(cast("Store", store.store), key) is not None for store in of]


def at(store: FaultyStore, key: str) -> Record:
    return present(observed(cast("Store", store.store), key))


def ballot_of(hold: Hold) -> Ballot:
    return present(cast("QuorumLease", hold._attempt.lease).ballot)


def all_count(hold: Hold) -> bool:
    """Whether the hold knows of a lease at each store: before that, it may not survive the loss of one."""
    return ballot_of(hold).held == ballot_of(hold).parts


def forget(store: FaultyStore, key: str) -> None:
    below = cast("Store", store.store)
    entry = present(below.get(key))
    below.invalidate(key, entry.version)


class Hanging:
    """A store one of whose next puts hangs until the block ends."""

    def __init__(self, store: FaultyStore, number: int = 1) -> None:
        self.arrived = threading.Event()
        self.goes_on = threading.Event()
        store.before("put_if_version", number, self._wait)

    def _wait(self) -> None:
        self.arrived.set()
        assert self.goes_on.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.goes_on.set()


# What a majority is


def test_all_stores_are_held_by_one_owner_and_free_afterwards() -> None:
    """Every store has the same owner and hold id; a re-entry asks none; after the last release all are free."""
    three, key = stores(), fresh()
    lock = QuorumLock(three, key, ttl=1000)

    with lock as hold:
        assert until(lambda: all(holders(three, key)))
        assert {at(store, key).owner for store in three} == {lock.owner} == {hold.owner}
        assert len({at(store, key).holds for store in three}) == 1
        assert hold.key == key
        assert not hold.lost
        assert 900 < hold.remaining() < 1000
        for store in three:
            store.down()
        with lock:  # at no request
            hold.ensure_held()
        for store in three:
            store.heal()
        assert QuorumLock(three[::-1], key).acquire(timeout=0) is None

    assert until(lambda: holders(three, key) == [False] * 3)
    with pytest.raises(NotHeld):
        hold.release()


@pytest.mark.parametrize(("number", "spare"), [(3, 1), (4, 1), (5, 2)])
def test_so_many_stores_may_be_lost(number: int, spare: int) -> None:
    """The lock works without a minority; without one more store it says which do not answer, and leaves nothing."""
    several, key = stores(number), fresh()
    lock = QuorumLock(several, key)
    for store in several[:spare]:
        store.down()

    with lock:
        assert until(lambda: holders(several, key) == [False] * spare + [True] * (number - spare))
    assert until(lambda: not any(holders(several, key)))

    several[spare].down()
    with pytest.raises(StoreUnavailable, match=f"{spare + 1} of {number} stores did not answer") as caught:
        lock.acquire(timeout=5)
    assert all(store.traits.location in str(caught.value) for store in several[: spare + 1])
    assert until(lambda: not any(holders(several, key)))


def test_a_minority_of_others_does_not_matter_and_a_majority_does() -> None:
    """One store where somebody else holds the key is left to them; two are a refusal, and the third is given back."""
    three, key = stores(), fresh()
    lock = QuorumLock(three, key)
    with Lock(three[0], key):
        with lock:
            assert until(lambda: all(holders(three, key)))
            assert at(three[0], key).owner != lock.owner
        assert until(lambda: holders(three, key) == [True, False, False])
        with Lock(three[1], key):
            assert lock.acquire(timeout=0) is None
            assert until(lambda: holders(three, key) == [True, True, False])
            with pytest.raises(NotAcquired, match=r"a quorum of .* is held by"):
                QuorumLock(three, key, timeout=0.05).__enter__()


# Hanging stores


def test_a_store_that_hangs_delays_nobody_and_its_late_lease_joins() -> None:
    """An acquire returns with a majority; the lease that is granted later counts, and is released with the others."""
    three, key = stores(), fresh()
    with Hanging(three[0]) as hanging:
        hold = present(QuorumLock(three, key, ttl=1000).acquire(timeout=0))
        assert hanging.arrived.wait(200)
        assert until(lambda: holders(three, key) == [False, True, True])
    assert until(lambda: all_count(hold))
    Lock(three[1], key).force_release()
    hold.extend()
    assert not hold.lost  # with the late one, it has two

    hold.release()
    assert until(lambda: not any(holders(three, key)))


@pytest.mark.parametrize(
    ("faults", "error", "rest"),
    [
        ((unsent, unsent), StoreUnavailable, "Nothing was left behind"),
        ((lose_request, unsent), StoreUnavailable, "A request that may still be applied expires within 30 s"),
        ((lose_request, lose_request), OutcomeUnknown, "A request that may still be applied expires within 30 s"),
    ],
)
def test_an_outage_says_what_may_be_left(faults: tuple[Fault, Fault], error: type[StoreUnavailable], rest: str) -> None:
    """The outcome is unknown if so many requests may still be applied that nobody else could have a majority."""
    three, key = stores(), fresh()
    for store, fault in zip(three, faults, strict=False):
        store.on("any", range(1, 1000), fault)
    with pytest.raises(StoreUnavailable, match=rest) as caught:
        QuorumLock(three, key).acquire()
    assert type(caught.value) is error


# Loss


def test_a_store_that_was_down_is_won_later() -> None:
    """A hold that was acquired without a store gets its lease when it answers again."""
    three, key = stores(), fresh()
    three[2].down()
    with QuorumLock(three, key, ttl=60) as hold:
        assert until(lambda: ballot_of(hold).vacant == [2])
        assert holders(three, key) == [True, True, False]
        three[2].heal()
        make_due(*ballot_of(hold).parts[:2])
        assert until(lambda: all(holders(three, key)))
    assert until(lambda: not any(holders(three, key)))


def test_a_minority_that_is_down_does_not_hide_who_holds_the_key() -> None:
    """The lock is busy: the store that fails is one that could be done without."""
    three, key = stores(), fresh()
    three[2].down()
    with Lock(three[0], key), pytest.raises(NotAcquired, match="held by"), QuorumLock(three, key, timeout=0):
        pass


def test_a_store_that_gives_no_lease_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A lock that goes on without a store from the beginning says so, and does not repeat it for each acquire."""
    three, key = stores(), fresh()
    three[2].down()
    lock, said = QuorumLock(three, key, ttl=1000), f"has given no lease of lock {key!r}"

    def told() -> list[str]:
        return [text for text in caplog.messages if said in text]

    for _ in range(3):
        with lock:
            assert until(told)
    assert len(told()) == 1
    assert told()[0].count(three[2].traits.location) == 1


def test_the_loss_of_a_majority_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With one lease of three left, the lock is lost: callback, warning, error, and the last lease ends."""
    three, key, lost, told_of = stores(), fresh(), list[Hold](), Recorder()
    lock = QuorumLock(three, key, ttl=0.6, on_lost=lost.append)
    stop = observe(told_of)
    hold = present(lock.acquire())
    assert until(lambda: all(store.calls["put_if_version"] for store in three))
    for store in three[:2]:
        store.on("put_if_version", range(1, 1000), lose_reply)  # it is not won back
        store.down()

    assert until(lambda: lost)
    assert until(lambda: "lost" in [name for name, event in told_of.events if event.key == key])
    stop()
    assert [name for name, event in told_of.events if event.key == key][-2:] == ["acquired", "lost"]
    assert hold.lost
    assert hold.remaining() == 0
    assert until(lambda: not holders(three, key)[2])  # it was not renewed any more
    with pytest.raises(LockLost, match="was lost"):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert lost == [hold]
    assert sum(f"lock {key!r} at a quorum of" in text for text in caplog.messages) == 1
    for store in three:
        store.heal()
    assert lock.acquire()  # anew


def test_a_lost_lock_says_why() -> None:
    """The error says how many leases are left, and why the others are not."""
    three, key = stores(), fresh()
    hold = present(QuorumLock(three, key, ttl=1000).acquire())
    assert until(lambda: all_count(hold))
    other = [Lock(store, key) for store in three[1:]]
    for lock in other:
        lock.force_release()
        assert lock.acquire(timeout=0)
    with pytest.raises(LockLost, match=r"1 of its 3 leases stood, and it needs 2: .*it is held by"):
        hold.extend()
    with pytest.raises(LockLost):
        hold.release()
    assert until(lambda: holders(three, key) == [False, True, True])


# Extend and release


def test_a_loss_that_the_release_finds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken away at two stores, and not noticed until the release, which all stores answer: LockLost."""
    monkeypatch.setattr("caslock.local.quorum.GRACE", 100.0)
    three, key = stores(), fresh()
    hold = present(QuorumLock(three, key, auto_renew=False).acquire())
    assert until(lambda: all_count(hold))
    Lock(three[0], key).force_release()
    hold.extend()
    Lock(three[1], key).force_release()
    Lock(three[2], key).force_release()
    with pytest.raises(LockLost, match="it was force-released"):
        hold.release()


def test_what_is_won_back_has_the_length_of_the_last_extension() -> None:
    """After an extension, a store that has forgotten its lease gets one of that length."""
    three, key = stores(), fresh()
    with QuorumLock(three, key, ttl=20) as hold:
        assert until(lambda: all_count(hold))
        forget(three[1], key)
        hold.extend(60)
        assert until(lambda: all(holders(three, key)))
        assert [at(store, key).ttl for store in three] == [60.0] * 3


# Interrupts


class Gate(AsyncFaultyStore):
    """A store for asyncio whose puts wait until it is open."""

    def __init__(self) -> None:
        super().__init__(AsyncMemoryStore(patient()), plain=True)
        self.open = asyncio.Event()
        self.open.set()
        self.arrived = asyncio.Event()
        self.before("put_if_version", range(1, 1000), self._wait)

    async def _wait(self) -> None:
        self.arrived.set()
        await self.open.wait()


async def free(gates: list[Gate], key: str) -> list[bool]:
    entries = [await cast("AsyncMemoryStore", gate.store).get(key) for gate in gates]
    return [entry is None or decode(entry.value).free for entry in entries]


async def become_free(gates: list[Gate], key: str, wanted: list[bool]) -> None:
    """Return when the stores where the key is free are these."""
    while await free(gates, key) != wanted:  # noqa: ASYNC110 - a store has no event for that
        await asyncio.sleep(0)


@in_a_loop
async def test_a_cancelled_acquire_leaves_nothing() -> None:
    """Cancelled while it waits for the second vote: every lease is given back, also those that come later."""
    async with asyncio.timeout(200):
        gates, key = [Gate() for _ in range(3)], fresh()
        for gate in gates[:2]:
            gate.open.clear()
        lock = AsyncQuorumLock(gates, key)
        task = asyncio.create_task(lock.acquire())
        for gate in gates:
            await gate.arrived.wait()
        await become_free(gates, key, [True, True, False])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await free(gates, key) == [True] * 3
        for gate in gates:
            gate.open.set()
        async with lock:
            await become_free(gates, key, [False] * 3)
        await become_free(gates, key, [True] * 3)


@in_a_loop
async def test_blocking_stores_serve_asyncio() -> None:
    """Blocking stores are asked in threads, and a lock of threads excludes one of tasks."""
    three, key = stores(), fresh()
    async with AsyncQuorumLock(three, key) as hold:
        assert QuorumLock(three, key).acquire(timeout=0) is None
        await hold.extend(40)
        assert hold.remaining() > 35
    assert until(lambda: not any(holders(three, key)))


@pytest.mark.parametrize("extended", [False, True])
def test_a_hold_that_was_dropped_is_not_renewed_though_a_store_hangs(*, extended: bool) -> None:
    """The request to that store, of an acquire or of an extension, keeps nothing alive but its own lease."""
    three, key, given_back = stores(), fresh(), threading.Event()
    lock = QuorumLock(three, key)
    three[0].before("invalidate", 1, given_back.set)
    with Hanging(three[0], number=2 if extended else 1) as hanging:
        hold = present(lock.acquire())
        if extended:
            assert until(partial(all_count, hold))
            hold.extend()
        assert hanging.arrived.wait(200)
        parts = [weakref.ref(part) for part in ballot_of(hold).parts]
        del lock, hold
        gc.collect()
        assert [part() is None for part in parts] == [False, True, True]
    if not extended:  # what comes too late is given back
        assert given_back.wait(200)
        assert until(lambda: holders(three, key) == [False, True, True])


@in_a_loop
async def test_a_hold_that_a_task_has_dropped_is_not_renewed_though_a_store_hangs() -> None:
    """Also if that task has done no more than to acquire it, so that the hold is its result."""
    async with asyncio.timeout(200):
        gates, key = [Gate() for _ in range(3)], fresh()
        gates[0].open.clear()
        lock = AsyncQuorumLock(gates, key)
        attempts = [weakref.ref(present(await asyncio.create_task(lock.acquire()))._attempt)]
        await gates[0].arrived.wait()
        await asyncio.sleep(0)  # until its next turn, the loop refers to the task that has ended
        del lock
        gc.collect()
        assert attempts[0]() is None
        gates[0].open.set()


def test_an_event_loop_that_stands_still_keeps_no_other_from_the_key() -> None:
    """Each makes its own requests: one that has no answer there is no matter to the others."""
    three, key = stores(), fresh()
    lock = AsyncQuorumLock(three, key)

    async def use() -> None:
        async with lock:
            pass

    with Hanging(three[0]) as hanging, asyncio.Runner() as still, ThreadPoolExecutor(1) as pool:
        still.run(use())
        assert hanging.arrived.wait(200)
        three[1].down()
        pool.submit(asyncio.run, use()).result(200)
        three[1].heal()
    assert until(lambda: not any(holders(three, key)))


def test_an_extension_in_another_event_loop_asks_for_no_lease_there() -> None:
    """It would end with that loop; the loop that has acquired asks for it."""
    three, key = stores(), fresh()
    three[2].down()

    async def begin() -> tuple[AsyncHold, Ballot]:
        hold = present(await AsyncQuorumLock(three, key).acquire())
        ballot = present(cast("QuorumLease", hold._attempt.lease).ballot)
        while ballot.vacant != [2]:  # noqa: ASYNC110 - as below
            await asyncio.sleep(0)
        return hold, ballot

    async def extend() -> list[int]:
        await hold.extend()
        return ballot.vacant

    async def fill() -> None:
        await hold.extend()
        while not all(holders(three, key)):  # noqa: ASYNC110 - a store has no event for that
            await asyncio.sleep(0)
        await hold.release()

    with asyncio.Runner() as one:
        hold, ballot = one.run(begin())
        three[2].heal()
        assert asyncio.run(extend()) == [2]
        one.run(fill())


# Settings and surroundings


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (lambda: "memory://", TypeError, "stores must be a list of at least 3 stores, not 'memory://'"),
        (MemoryStore, TypeError, "stores must be a list of at least 3 stores"),
        (lambda: stores(2), ValueError, "at least 3 stores, not 2: use Lock for one"),
        (list, ValueError, "at least 3 stores, not 0"),
        (lambda: [*stores(2), "redis://localhost"], TypeError, "str is not a store"),
        (lambda: [*stores(2), AsyncMemoryStore(MemoryStore())], TypeError, "use it with AsyncLock"),
    ],
)
def test_bad_stores_are_refused(given: object, error: type[Exception], text: str) -> None:
    """At least three stores, each at a place of its own."""
    with pytest.raises(error, match=text):
        QuorumLock(given(), "key")  # type: ignore[operator]


@pytest.mark.parametrize(
    "settings", [{"ttl": 0}, {"timeout": -2}, {"max_hold": 0}, {"owner": "me"}, {"min_hold": 3}, {"note": 3}]
)
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    """The settings are checked as those of a Lock are; a shared owner and min_hold are not for it."""
    with pytest.raises((TypeError, ValueError), match=next(iter(settings))):
        QuorumLock(stores(), "key", **settings)  # type: ignore[arg-type]


def test_a_multilock_does_not_take_it() -> None:
    """A MultiLock over a QuorumLock is refused with an error that says so."""
    with pytest.raises(TypeError, match="MultiLock can't lock a QuorumLock"):
        MultiLock([QuorumLock(stores(), "key")])  # type: ignore[list-item]


def test_a_forked_child_frees_nothing_and_can_lock() -> None:
    """A child that leaves its parent's block frees nothing, and its own lock has threads of its own."""
    three, key, own = stores(), fresh(), fresh()
    with QuorumLock(three, key) as hold:
        assert until(lambda: all_count(hold))
        child = os.fork()
        if not child:
            ok = False
            try:
                hold.release()
                with QuorumLock(stores(), own, timeout=5):
                    ok = all(holders(three, key)) and hold.lost
            finally:
                os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert all(holders(three, key))


def test_observers_are_told_of_the_lock_and_not_of_its_leases() -> None:
    """One event for all stores, whose location names them."""
    three, key, told = stores(), fresh(), Recorder()
    stop = observe(told)
    try:
        with QuorumLock(three, key, ttl=60) as hold:
            assert until(lambda: all_count(hold))
            first = hold._attempt.lease.deadline
            assert QuorumLock(three, key).acquire(timeout=0) is None
            make_due(*ballot_of(hold).parts)
            assert until(lambda: hold._attempt.lease.deadline > first)
    finally:
        stop()
    events = [(name, event.location) for name, event in told.events if event.key == key]
    where = f"a quorum of {', '.join(store.traits.location for store in three)}"
    assert events == [("acquired", where), ("busy", where), ("released", where)]
