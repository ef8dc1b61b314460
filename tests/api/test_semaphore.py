"""Several hold one key at a time, and no more than the semaphore has permits."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from tenacity import wait_fixed

from caslock import AsyncSemaphore, Lock, LockLost, MultiLock, NotAcquired, NotHeld, Semaphore, StoreError, locked
from caslock.local import clock, shared_queue
from caslock.local.queue import next_look
from caslock.local.shared_queue import RUN_SECONDS
from caslock.local.threads import ThreadRuntime
from caslock.local.workers import run
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.protocol.record import Observed, Record, decode, encode
from caslock.protocol.shared_attempt import PAUSE_ALONE, QUIET, SharedAttempt
from caslock.protocol.shares import MAX_PERMITS, SHARED, Share
from caslock.store import MAX_VALUE, Entry, Put
from caslock.stores.memory import MemoryStore
from caslock.stores.sqlite import SQLiteStore
from caslock.testing.faults import Fault, FaultyStore, lose_reply, lose_request, unsent
from tests.support.command_line import ROOT
from tests.support.fenceless import Fenceless
from tests.support.life import force
from tests.support.locations import Place, Watched, fresh, make_due, observed, present, until, url_of
from tests.support.loops import in_a_loop

ENOUGH = 50.0
"""Seconds; longer than anything here takes."""


def test_as_many_hold_as_there_are_permits(location: Place) -> None:
    """Each with a slot of its own, and with a larger fence; one more has to wait, and nothing is left behind."""
    store, key = location.store(), fresh()
    one, other = Semaphore(store, key, 3), Semaphore(location.store(), key, 3)
    a, b, c = present(one.acquire()), present(other.acquire()), present(one.acquire())
    assert {a.slot, b.slot, c.slot} == {0, 1, 2}
    assert one.permits == 3
    assert a.fence < b.fence < c.fence
    assert other.acquire(timeout=0) is None
    assert one.acquire(timeout=0.05) is None
    assert [holder.fence for holder in other.holders()] == [a.fence, b.fence, c.fence]
    assert one.locked()
    b.release()
    assert not one.locked()
    with pytest.raises(NotHeld):
        b.release()
    with one as d:
        assert (d.slot, d.fence > c.fence) == (b.slot, True)
    c.extend(40)
    assert c.remaining() > 35
    one.release()  # the newest of this thread
    assert one.holders()[0].fence == a.fence
    a.release()
    assert observed(store, key) is None


@in_a_loop
async def test_as_many_tasks_hold_as_there_are_permits(location: Place) -> None:
    """Each with a slot of its own; the others wait, and nothing is left behind."""
    key, inside, most, full = fresh(), set[int](), 0, asyncio.Event()
    async with location.async_store() as store:
        semaphore = AsyncSemaphore(store, key, 2)

        async def use() -> None:
            nonlocal most
            async with semaphore as hold:
                assert hold.slot not in inside
                inside.add(hold.slot)
                most = max(most, len(inside))
                if most == 2:
                    full.set()
                await full.wait()
                inside.remove(hold.slot)

        async with asyncio.timeout(ENOUGH), asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(use())
        assert not await semaphore.locked()
        assert await semaphore.holders() == ()
    assert most == 2
    assert observed(location.store(), key) is None


@in_a_loop
async def test_a_cancelled_acquire_leaves_nothing_behind() -> None:
    """Neither at the store nor in the local queue."""
    store = MemoryStore()
    semaphore = AsyncSemaphore(store, "key", 1)
    async with semaphore:
        waiting = [asyncio.create_task(semaphore.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(await semaphore.holders()) == 1
    assert observed(store, "key") is None
    async with asyncio.timeout(ENOUGH), semaphore:
        pass


def test_who_names_another_number_is_told(memory: MemoryStore) -> None:
    """At once, and nothing changes for those who hold the key."""
    with Semaphore(memory, "key", 2) as hold:
        with pytest.raises(StoreError, match="not a semaphore of 3 permits: it is held by a semaphore with 1 of 2"):
            Semaphore(memory, "key", 3).acquire()
        hold.ensure_held()
    with Semaphore(memory, "key", 3):
        pass


def test_a_lock_and_a_semaphore_of_one_key_exclude_each_other(memory: MemoryStore) -> None:
    """The error tells of either who has the key."""
    lock, semaphore = Lock(memory, "key", timeout=0), Semaphore(memory, "key", 2, timeout=0)
    with semaphore, pytest.raises(NotAcquired, match=r"held by a semaphore with 1 of 2 permits taken: pid"):
        lock.__enter__()
    with lock as hold:
        with pytest.raises(NotAcquired, match=r"held by .* with a lease of 30 s"):
            semaphore.__enter__()
        assert semaphore.acquire(timeout=0.05) is None
        assert semaphore.locked()
        assert [holder.fence for holder in semaphore.holders()] == [hold.fence]


@pytest.mark.parametrize("fences", [True, False])
def test_a_holder_that_dies_loses_its_place_after_its_ttl(tmp_path: Path, *, fences: bool) -> None:
    """Also while others go on, and where each answer counts, as versions do not grow; its slot is given to the next."""
    with (
        Fenceless(SQLiteStore(str(tmp_path / "locks.db")))
        if not fences
        else contextlib.nullcontext(MemoryStore()) as store
    ):
        alive = present(Semaphore(store, "key", 2, ttl=30).acquire())
        dead = present(Semaphore(store, "key", 2, ttl=0.3, auto_renew=False).acquire())
        with present(Semaphore(store, "key", 2).acquire(timeout=ENOUGH)) as hold:
            assert dead.lost
            assert hold.slot == dead.slot
            assert not fences or hold.fence > dead.fence
            with pytest.raises(LockLost):
                dead.release()
            alive.ensure_held()
        alive.release()
        assert observed(store, "key") is None


def test_each_of_several_that_try_once_gets_a_free_permit(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """Also if they try at the same time: who asks holds nothing yet."""
    semaphore = Semaphore(memory, "key", 10)
    start = threading.Barrier(10)

    def once() -> bool:
        start.wait(ENOUGH)
        return semaphore.acquire(timeout=0) is not None

    assert all(future.result(ENOUGH) for future in [pool.submit(once) for _ in range(10)])


def test_a_hold_is_renewed_apart_from_locks() -> None:
    """Others may change its record all the time, and a batch is written only if none of its records has changed."""
    batches = list[set[str]]()

    class Noting(MemoryStore):
        def put_many(self, puts: Sequence[Put]) -> list[Entry | None]:
            batches.append({put.key for put in puts})
            return list(super().put_many(puts) or ())

    store = Noting()
    with MultiLock(store, ["a", "b"]) as holds, Semaphore(store, "c", 2) as hold:
        before = present(store.get("c")).version
        make_due(*(each._attempt for each in (*holds, hold)))
        assert until(lambda: len(batches) > 1 and present(store.get("c")).version > before)
        hold.ensure_held()
    assert all("c" not in batch for batch in batches)


@pytest.mark.parametrize("fault", [lose_reply, lose_request], ids=["reply", "request"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_an_unanswered_request_counts_once(memory: MemoryStore, fault: Fault, nth: int) -> None:
    """Whether it was applied or not: each acquire has one place, and no release or renewal loses one."""
    faulty = FaultyStore(memory)
    other, semaphore = Semaphore(memory, "key", 3), Semaphore(faulty, "key", 3)
    with other:
        faulty.on("any", nth, fault)
        with semaphore, semaphore:
            assert len(other.holders()) == 3
        assert len(other.holders()) == 1
    faulty.on("any", nth, fault)
    for _ in range(2):
        with semaphore:
            assert len(other.holders()) == 1
    with other as theirs, semaphore as ours:
        faulty.before("put_if_version", range(1, 11), theirs.extend)
        ours.extend()
    assert observed(memory, "key") is None


def test_each_step_is_one_request_where_the_process_knows_who_is_there(memory: MemoryStore) -> None:
    """Alone it takes two for an acquire and its release, as a Lock does; and no more beside others of the process."""
    watched = Watched(memory)
    semaphore = Semaphore(watched, "key", 2)
    with semaphore:
        pass
    assert watched.requests == [("put", "key"), ("invalidate", "key")]
    with semaphore:
        watched.requests.clear()
        with semaphore:
            pass
        assert watched.requests == [("put", "key"), ("put", "key")]


def asker(semaphore: Semaphore) -> SharedAttempt:
    (attempt,) = semaphore._state.begun()._queue.inside(clock.now())
    return cast("SharedAttempt", attempt)


def asks(semaphore: Semaphore) -> bool:
    inside = semaphore._state.begun()._queue.inside(clock.now())
    return any(cast("SharedAttempt", each).offer is not None for each in inside)


@pytest.fixture
def endless_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process goes on with its own waiters for ever."""
    monkeypatch.setattr(shared_queue, "RUN_SECONDS", float("inf"))


@pytest.mark.usefixtures("endless_run")
def test_the_next_of_the_process_gets_the_place_in_one_request(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """The release of one is the put of the next, and who follows knows who is there."""
    watched = Watched(memory)
    semaphore = Semaphore(watched, "key", 1, poll=wait_fixed(ENOUGH))
    holds = [present(semaphore.acquire())]
    first = pool.submit(semaphore.acquire)
    assert until(lambda: asks(semaphore))
    second = pool.submit(semaphore.acquire)
    assert until(lambda: len(semaphore._state._queue.waiting) == 1)
    watched.requests.clear()
    for future in (first, second):
        holds[-1].release()
        holds.append(present(future.result(ENOUGH)))
        assert future is second or until(lambda: asks(semaphore))
    assert watched.requests == [("put", "key"), ("put", "key")]
    assert [hold.slot for hold in holds] == [0, 0, 0]
    assert holds[0].fence < holds[1].fence < holds[2].fence
    holds[-1].release()
    assert observed(memory, "key") is None


@pytest.mark.usefixtures("endless_run")
@pytest.mark.parametrize("places", [0, 1])
def test_a_place_is_handed_over_in_the_record_that_is_there(
    memory: MemoryStore, pool: ThreadPoolExecutor, places: int
) -> None:
    """Others may have written it, or taken the place of a holder that was thought to be dead."""
    watched = Watched(memory)
    semaphore = Semaphore(watched, "key", 2, poll=wait_fixed(ENOUGH), ttl=ENOUGH)
    first, second = present(semaphore.acquire()), present(semaphore.acquire())
    future = pool.submit(semaphore.acquire)
    assert until(lambda: asks(semaphore))
    entry = present(memory.get("key"))
    record = decode(entry.value)
    renewed = record.shares[1]._replace(beat=record.shares[1].beat + 1)
    shares = (record.shares[0]._replace(hold="another.1"), renewed) if places == 0 else (record.shares[0], renewed)
    memory.put_if_version("key", encode(record._replace(shares=shares)), entry.version, ENOUGH)
    watched.requests.clear()
    if places:
        first.release()
        assert present(future.result(ENOUGH)).slot == first.slot
        assert watched.requests == [("put", "key"), ("put", "key")]
    else:
        with pytest.raises(LockLost):
            first.release()
        assert until(lambda: asks(semaphore))
        second.release()
        assert present(future.result(ENOUGH)).slot == second.slot


@pytest.mark.usefixtures("endless_run")
def test_a_place_is_not_handed_to_who_waits_for_another_kind_of_lock(
    memory: MemoryStore, pool: ThreadPoolExecutor
) -> None:
    """Who waits with another number of permits gets an error of its own."""
    with Lock(memory, "key"):
        future = pool.submit(Semaphore(memory, "key", 3, poll=wait_fixed(ENOUGH)).acquire)
        semaphore = Semaphore(memory, "key", 2)
        assert until(lambda: asks(semaphore))
    for hold in [present(semaphore.acquire(timeout=0)) for _ in range(2)]:
        hold.release()
    assert present(future.result(ENOUGH)).slot == 0


@pytest.mark.usefixtures("endless_run")
@pytest.mark.parametrize("fault", [lose_request, lose_reply, unsent], ids=["request", "reply", "unsent"])
def test_a_hand_over_without_an_answer_is_looked_into(
    memory: MemoryStore, pool: ThreadPoolExecutor, fault: Fault
) -> None:
    """Both go on from what has become of it."""
    faulty = FaultyStore(memory)
    semaphore = Semaphore(faulty, "key", 1, poll=wait_fixed(ENOUGH))
    hold = present(semaphore.acquire())
    future = pool.submit(semaphore.acquire)
    assert until(lambda: asks(semaphore))
    faulty.on("put_if_version", 1, fault)
    hold.release()
    with present(future.result(ENOUGH)) as other:
        other.ensure_held()
    assert observed(memory, "key") is None


def test_who_leaves_no_place_wakes_nobody(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks would only look in vain."""
    woken, wake = list[SharedAttempt](), SharedAttempt.wake

    def noted(attempt: SharedAttempt) -> None:
        woken.append(attempt)
        wake(attempt)

    monkeypatch.setattr(SharedAttempt, "wake", noted)
    semaphore = Semaphore(memory, "key", 1, poll=wait_fixed(ENOUGH))
    with semaphore:
        future = pool.submit(semaphore.acquire)
        assert until(lambda: asks(semaphore))
        assert semaphore.acquire(timeout=0) is None
        assert not woken
    assert woken
    present(future.result(ENOUGH)).release()


def test_who_waits_for_a_hand_over_goes_on_when_that_takes_too_long(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was to hand over finds out that nobody waits for it."""
    semaphore = Semaphore(memory, "key", 1, poll=wait_fixed(ENOUGH))
    monkeypatch.setattr(semaphore._state.runtime, "patience", 0.0)
    with semaphore:
        future = pool.submit(semaphore.acquire)
        assert until(lambda: asks(semaphore))
        asking = asker(semaphore)
        offer = present(asking.offer)
        assert offer.take()
        asking.wake()
        assert until(lambda: asking.offer not in {None, offer})
        assert not offer.pending
    present(future.result(ENOUGH)).release()


@pytest.mark.usefixtures("endless_run")
def test_one_release_hands_over_to_who_asks(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """Another one at the same time is a release, and one that sends nothing tells who asks."""
    semaphore = Semaphore(memory, "key", 2, poll=wait_fixed(ENOUGH))
    holds = [present(semaphore.acquire()) for _ in range(2)]
    future = pool.submit(semaphore.acquire)
    assert until(lambda: asks(semaphore))
    offer, queue = asker(semaphore).offer, semaphore._state._queue
    first, second = (hold._attempt for hold in holds)
    for attempt in (first, second, first):
        queue.name_successor(attempt, clock.now())
    assert (first.turn.outgoing, second.turn.outgoing) == (offer, None)
    queue.leave(first, clock.now())
    assert first.turn.outgoing is None
    assert not present(offer).pending
    assert until(lambda: asks(semaphore))
    for hold in holds:
        hold.release()
    present(future.result(ENOUGH)).release()


def test_a_place_that_is_freed_between_look_and_pause_is_taken(memory: MemoryStore) -> None:
    """Nobody waits for what has happened."""

    class Never:
        alive = True

        async def wait(self, timeout: float | None) -> None:
            pytest.fail(f"it pauses for {timeout} s")

        def set(self) -> None:
            pass

    faulty = FaultyStore(memory)
    semaphore = Semaphore(faulty, "key", 1, poll=wait_fixed(ENOUGH))
    hold = present(semaphore.acquire())
    semaphore._state.runtime.event = Never  # type: ignore[method-assign]
    faulty.after("any", 1, hold.release)
    present(semaphore.acquire()).release()


def test_a_failover_to_a_replica_that_lags_is_no_loss(memory: MemoryStore) -> None:
    """As with a Lock: a renewal that was not replicated had a larger version than what is there now."""
    hold = present(Semaphore(memory, "key", 2).acquire())
    behind = memory._leases["key"]
    hold.extend(40)
    memory._leases["key"] = behind
    hold.extend(50)
    hold.release()
    assert memory.get("key") is None


@pytest.mark.parametrize(("permits", "reads"), [(1, False), (2, True)])
def test_who_waits_reads_where_others_may_hold_beside_it(memory: MemoryStore, permits: int, *, reads: bool) -> None:
    """With one permit there is a place only where nothing is, and a put takes that at once."""
    watched = Watched(memory)
    semaphore = Semaphore(watched, "key", permits, poll=wait_fixed(0.001))
    holds = [present(semaphore.acquire()) for _ in range(permits)]
    watched.requests.clear()
    assert semaphore.acquire(timeout=0.5) is None
    assert ("get" in [verb for verb, _ in watched.requests]) is reads
    for hold in holds:
        hold.release()


def test_who_is_told_what_is_there_does_not_read(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has read the key as a wait ends may tell."""

    class Telling(Watched):
        def wait_while(self, key: str, version: int, _timeout: float) -> Entry | None:
            holds.pop().release()
            return memory.get(key) if present(memory.get(key)).version > version else None

    monkeypatch.setattr(SharedAttempt, "may_watch", True)
    store = Telling(memory)
    holds = [present(Semaphore(memory, "key", 2).acquire()) for _ in range(2)]
    present(Semaphore(store, "key", 2).acquire(timeout=ENOUGH)).release()
    assert [verb for verb, _ in store.requests] == ["put", "put", "put"]
    holds.pop().release()


@pytest.mark.parametrize(("host", "least"), [(None, PAUSE_ALONE), ("elsewhere", 0.0)])
def test_a_process_that_has_all_permits_asks_less_often(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, host: str | None, least: float
) -> None:
    """Its own release wakes it, and others have to ask."""
    pauses = list[float]()

    async def noted(_: SharedAttempt, seconds: float) -> None:
        pauses.append(seconds)
        raise StoreError

    monkeypatch.setattr(SharedAttempt, "pause", noted)
    monkeypatch.setattr("random.uniform", lambda least, _: least)
    semaphore = Semaphore(memory, "key", 2)
    holds = [present(semaphore.acquire()) for _ in range(2)]
    if host:
        entry = present(memory.get("key"))
        record = decode(entry.value)
        shares = (record.shares[0]._replace(host=host), record.shares[1])
        memory.put_if_version("key", encode(record._replace(shares=shares)), entry.version, ENOUGH)
    with pytest.raises(StoreError):
        semaphore.acquire()
    assert pauses == [least]
    for hold in holds:
        hold.release()


@pytest.mark.parametrize(
    ("host", "unchanged", "may"),
    [(None, 0.0, False), (None, QUIET, True), ("elsewhere", 0.0, True), ("ours", 0.0, True)],
)
def test_who_may_be_given_a_place_by_this_process_waits_at_the_store_only_after_a_while(
    memory: MemoryStore, host: str | None, unchanged: float, *, may: bool
) -> None:
    """A release here wakes at once a waiter that pauses; one that waits at the store hears of it from the store."""
    semaphore = Semaphore(memory, "key", 1)
    with semaphore:
        attempt = cast("SharedAttempt", semaphore._state._attempt())
        version, record = attempt.seen.newest
        share = present(record).shares[0]
        if host == "ours":  # the place of a writer that waits
            share = share._replace(hold=attempt.hold_id)
        elif host:
            share = share._replace(host=host)
        seen = present(record)._replace(shares=(share,))
        attempt.seen.newest = version, seen
        attempt.contend().meet(Observed(version, seen), clock.now() - unchanged)
        assert attempt.may_watch is may


def test_a_release_that_leaves_a_quarantine_wakes_who_asks(
    memory: MemoryStore, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free record has a place."""
    monkeypatch.setattr(shared_queue, "RUN_SECONDS", 0.0)  # nothing is handed over
    faulty = FaultyStore(memory)
    faulty.on("put_if_version", 1, lose_request)
    semaphore = Semaphore(faulty, "key", 1, ttl=20 * ENOUGH, poll=wait_fixed(20 * ENOUGH))
    with semaphore:
        future = pool.submit(semaphore.acquire)
        assert until(lambda: asks(semaphore))
    assert decode(present(memory.get("key")).value).quarantine
    present(future.result(ENOUGH)).release()


@pytest.mark.parametrize("got", [True, False])
def test_who_follows_one_that_gives_up_looks_anew(memory: MemoryStore, *, got: bool) -> None:
    """What that one has seen may be old."""
    state = Semaphore(memory, "key", 1)._state.begun()
    before, after = state._attempt(), state._attempt()
    assert state._queue.enter(before, clock.now()) is None
    inside = present(state._queue.enter(after, clock.now(), join=True))
    force(before, State.HELD if got else State.OVER)
    state._queue.leave(before, clock.now())
    run(state._queue.turn(after, next_look(inside, clock.now()), NEVER))
    assert cast("SharedAttempt", after).has_seen is got


def test_a_process_alone_yields_now_and_then(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets other processes be first once in a run, not at each acquire for a while."""
    yields, sleep = list[float](), ThreadRuntime.sleep

    async def counted(runtime: ThreadRuntime, seconds: float) -> None:
        if runtime.home is memory:  # the threads of other stores sleep as well
            yields.append(seconds)
        await sleep(runtime, seconds)

    monkeypatch.setattr(ThreadRuntime, "sleep", counted)
    semaphore, began = Semaphore(memory, "key", 2), clock.now()
    while clock.now() < began + 3 * RUN_SECONDS or not (yields or clock.now() > began + ENOUGH):
        with semaphore:
            pass
    assert 0 < len(yields) <= (clock.now() - began) / RUN_SECONDS


@pytest.mark.parametrize("host", ["elsewhere", None])
def test_who_has_waited_for_another_process_knows_that_it_wants_the_key(memory: MemoryStore, host: str | None) -> None:
    """With one permit, who holds the key sees no other holder beside itself."""
    semaphore = Semaphore(memory, "key", 1)
    state = semaphore._state.begun()
    with semaphore:
        record = decode(present(memory.get("key")).value)
    attempt, now = state._attempt(), clock.now()
    (share,) = record.shares
    attempt.contend().meet(Observed(1, record._replace(shares=(share._replace(host=host or share.host),))), now)
    assert state._queue.enter(attempt, now) is None
    attempt.state, attempt.lease.began = State.HELD, now
    state._queue.leave(attempt, now)
    assert state._queue.is_wanted(now) == (host is not None)


def test_force_release_ends_all_holds(memory: MemoryStore) -> None:
    """Each of them learns of it."""
    lost = threading.Event()
    semaphore = Semaphore(memory, "key", 2, on_lost=lambda _: lost.set())
    a, b = present(semaphore.acquire()), present(semaphore.acquire())
    assert [record.fence for record in Semaphore(memory, "key", 2).force_release()] == [a.fence, b.fence]
    assert semaphore.holders() == ()
    for hold in (a, b):
        with pytest.raises(LockLost):
            hold.release()
    assert lost.wait(ENOUGH)
    assert semaphore.force_release() == ()


@pytest.mark.parametrize("kind", [Semaphore, AsyncSemaphore])
@pytest.mark.parametrize("permits", [0, -1, MAX_PERMITS + 1, True, 2.0, "2", None])
def test_permits_are_a_whole_number_in_range(memory: MemoryStore, kind: Callable[..., object], permits: object) -> None:
    """Any other number is a ValueError, any other type a TypeError, before any request."""
    store = Watched(memory)
    whole = type(permits) is int
    told = f"permits must be from 1 to {MAX_PERMITS}, not {permits}" if whole else "permits must be an int"
    with pytest.raises(ValueError if whole else TypeError, match=told):
        kind(store, "key", permits)
    assert store.requests == []


@pytest.mark.parametrize("name", ["owner", "min_hold", "linger"])
def test_what_is_for_locks_only_is_refused(memory: MemoryStore, name: str) -> None:
    """As any other argument that there is not."""
    make: Callable[..., object] = Semaphore
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        make(memory, "key", 2, **{name: None})


def test_the_most_holds_fit_in_a_record(memory: MemoryStore) -> None:
    """Where there is no room for that, it does not say who they are."""
    semaphore = Semaphore(memory, "key", MAX_PERMITS, note="n" * 200)
    with contextlib.ExitStack() as stack:
        holds = [stack.enter_context(semaphore) for _ in range(MAX_PERMITS)]
        assert {hold.slot for hold in holds} == set(range(MAX_PERMITS))
        assert semaphore.acquire(timeout=0) is None
        assert len(present(memory.get("key")).value) <= MAX_VALUE
        assert {holder.note for holder in semaphore.holders()} == {""}
    assert observed(memory, "key") is None


@pytest.mark.parametrize("place", range(9))
def test_a_share_that_is_none_is_foreign(place: int) -> None:
    """A record that cannot be read is held by an unknown owner."""
    share = Share("a.1", 0, 1, 7, 3.0, 0.5, "now", "host", 5, "")
    record = Record("", ("a.1",), 3.0, "a.1.1", None, form=SHARED, permits=2, shares=(share,))
    assert decode(encode(record)) == record
    spoilt: list[object] = list(share)
    spoilt[place] = {}
    value = encode(record).replace(b'"shares":[[', b'"shares":[%s,[' % str(spoilt).replace("'", '"').encode())
    assert decode(value).foreign


PROGRAM = """
import sys, threading, time, caslock
url, key, permits, log = sys.argv[1:]
store = caslock.connect(url)
semaphore = caslock.Semaphore(store, key, int(permits), ttl=30)
lines = []
def use():
    for _ in range(25):
        with semaphore as hold:
            began = time.monotonic()
            time.sleep(0.002)
            lines.append(f"{began} {time.monotonic()} {hold.slot} {hold.fence}\\n")
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
open(log, "w").writelines(lines)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "redis", "memcached", "postgresql", "mysql", "etcd", "zookeeper", "nats"])
def test_processes_share_the_permits(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Never more at a time than there are permits, and never two with one slot; fences grow from hold to hold."""
    url, key = url_of(kind, request, tmp_path), fresh()
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, url, key, "3", log], cwd=ROOT, start_new_session=True)
        for log in logs
    ]
    assert [program.wait(300) for program in programs] == [0, 0, 0]
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    stays = [(float(began), float(end), int(slot)) for began, end, slot, _ in lines]
    assert len(stays) == 300
    moments = sorted([(began, 1, slot) for began, _, slot in stays] + [(end, 0, slot) for _, end, slot in stays])
    inside = list[int]()
    for _, begins, slot in moments:
        if begins:
            assert slot not in inside
            inside.append(slot)
            assert len(inside) <= 3
        else:
            inside.remove(slot)
    assert len({int(fence) for *_, fence in lines}) == 300


@in_a_loop
async def test_calls_of_a_function_share_permits() -> None:
    """As many run at a time as there are permits, for each key, and one that finds none does what `busy` says."""
    store, inside = MemoryStore(), list[int]()
    full = asyncio.Event()

    @locked(store, "call:{key}", permits=2, busy="skip")
    async def call(key: int) -> int:
        inside.append(key)
        if len(inside) == 3:
            full.set()
        await full.wait()
        return key

    calls = [asyncio.create_task(call(key)) for key in (1, 1, 1, 2)]
    assert await asyncio.gather(*calls) == [1, 1, None, 2]
    with pytest.raises(ValueError, match="permits must be from 1"):
        locked(store, "call", permits=0)(print)
    assert locked(store, "call", permits=1)(abs)(-1) == 1
