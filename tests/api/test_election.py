"""Elections, with threads and with asyncio: who leads, what others are told of it, and what is refused.

When a watcher looks, and how often, is in `tests/rules/test_changes.py`, on virtual time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caslock import AsyncElection, Election, Lock, LockLost, NotAcquired, Record, Store, connect
from caslock.election import Watch
from caslock.local import changes
from caslock.local.shared import shared_of
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.locations import Watched, close_when_clean, fresh, present, until, url_of
from tests.support.loops import in_a_loop
from tests.support.watching import AsyncWatchingMemory, WatchingMemory

KINDS = ("memory", "sqlite", "redis", "etcd")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have watchers look more often."""
    monkeypatch.setattr(changes, "PAUSE", 0.02)


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Return what makes store objects for one place, as each process has one of its own."""
    memory = MemoryStore()
    made: list[Store] = []

    def make() -> Store:
        made.append(memory if request.param == "memory" else connect(url_of(request.param, request, tmp_path)))
        return made[-1]

    yield make
    for store in made:
        close_when_clean(store)


def leads(found: Record | None) -> tuple[str, int | None] | None:
    return None if found is None else (found.note, found.fence)


def test_one_leads_and_the_next_takes_over(stores: Callable[[], Store], pool: ThreadPoolExecutor) -> None:
    """At once when the first one resigns; all are told who leads, with its note and its fence."""
    key = fresh()
    ann, bob = Election(stores(), key, note="ann"), Election(stores(), key, note="bob")
    campaigns, stop = threading.Event(), threading.Event()

    def campaign() -> int:
        campaigns.set()
        with bob.lead(timeout=60) as term:
            assert stop.wait(60)
            return term.fence

    watch = Election(stores(), key).watch()
    assert next(watch) is None
    assert ann.leader() is None
    with ann.lead() as first:
        assert leads(ann.leader()) == leads(bob.leader()) == leads(next(watch)) == ("ann", first.fence)
        assert present(bob.leader()).owner == ann.owner
        next_one = pool.submit(campaign)
        assert campaigns.wait(60)
    assert until(lambda: (leader := ann.leader()) is not None and leader.note == "bob")
    told = next(watch)
    assert present(told or next(watch)).note == "bob"  # whether it has seen the moment in between or not
    stop.set()
    assert next_one.result() > first.fence
    assert until(lambda: ann.leader() is None)
    watch.close()


@in_a_loop
async def test_tasks_lead_one_after_the_other(memory: MemoryStore) -> None:
    """All clients of an AsyncElection, and those who watch it, see each leader; the next one has a larger fence."""
    one, two, key = AsyncMemoryStore(memory), AsyncMemoryStore(memory), fresh()
    ann, bob = AsyncElection(one, key, note="ann"), AsyncElection(two, key, note="bob")
    stop = asyncio.Event()

    async def campaign() -> int:
        async with bob.lead(timeout=60) as term:
            await stop.wait()
            return term.fence

    watch = AsyncElection(two, key).watch()
    assert await anext(watch) is None
    async with ann.lead() as first:
        assert leads(await ann.leader()) == leads(await bob.leader()) == ("ann", first.fence)
        assert leads(await anext(watch)) == ("ann", first.fence)
        next_one = asyncio.create_task(campaign())
        await asyncio.sleep(0)
    told = [await anext(watch)]
    if told == [None]:
        told.append(await anext(watch))
    assert present(told[-1]).note == "bob"
    stop.set()
    assert await next_one > first.fence
    assert await anext(watch) is None
    assert await bob.leader() is None


@in_a_loop
async def test_a_campaign_ends_at_its_timeout(memory: MemoryStore) -> None:
    """That of `lead`, or else that of the election; a bad one is refused before any request."""
    store, key = Watched(memory), fresh()
    election = Election(store, key, timeout=0)
    with pytest.raises(ValueError, match="timeout"):
        election.lead(timeout=-2)
    assert store.requests == []
    with Election(memory, key, note="ann").lead():
        with pytest.raises(NotAcquired, match="ann"), election.lead():
            pass
        with pytest.raises(NotAcquired), Election(memory, key).lead(timeout=0):
            pass
    with election.lead(timeout=60):
        pass
    waits = AsyncElection(memory, key)
    async with AsyncElection(memory, key).lead():
        with pytest.raises(NotAcquired):
            async with waits.lead(timeout=0):
                pass


def test_a_term_that_is_taken_away_is_lost(memory: MemoryStore) -> None:
    """Its block ends with LockLost, and `on_lost` is called; the lease is as long as the election says."""
    lost = list[object]()
    election = Election(memory, "key", ttl=7, on_lost=lost.append)
    with pytest.raises(LockLost), election.lead() as term:  # noqa: PT012 - its block is lost on the way
        assert present(election.leader()).ttl == 7
        Lock(memory, "key").force_release()
    assert until(lambda: lost == [term])


def test_a_leader_enters_its_term_again(memory: MemoryStore) -> None:
    """As a lock does: only the outer block resigns.  Afterwards it may campaign again, as often as it likes."""
    election = Election(memory, fresh())
    campaign = election.lead()
    for _ in range(2):
        with campaign as term:
            with election.lead(timeout=0) as inner:
                assert inner.fence == term.fence
            with campaign:
                pass
            term.ensure_held()
        assert election.leader() is None


def test_threads_of_one_election_exclude_each_other(memory: MemoryStore, pool: ThreadPoolExecutor) -> None:
    """Each is a candidate of its own."""
    election, inside, fences = Election(memory, fresh()), list[int](), list[int]()

    def campaign() -> None:
        with election.lead() as term:
            inside.append(term.fence)
            assert inside == [term.fence]
            fences.append(term.fence)
            inside.remove(term.fence)

    with election.lead():
        for future in [pool.submit(campaign) for _ in range(8)]:
            assert not future.done()
    assert until(lambda: len(fences) == 8)
    assert fences == sorted(set(fences))


@in_a_loop
async def test_tasks_of_one_election_exclude_each_other(memory: MemoryStore) -> None:
    """And a task that leads enters its term again."""
    election, inside = AsyncElection(memory, fresh()), list[object]()

    async def campaign() -> int:
        async with election.lead() as term:
            inside.append(term)
            assert inside == [term]
            async with election.lead() as again:
                assert again.fence == term.fence
            await asyncio.sleep(0)
            inside.remove(term)
            return term.fence

    assert len(set(await asyncio.gather(*(campaign() for _ in range(8))))) == 8


@pytest.mark.parametrize("api", [Election, AsyncElection])
@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"owner": "ann"}, TypeError, "unexpected keyword argument 'owner'"),
        ({"identifier": "ann"}, TypeError, "unexpected keyword argument .identifier."),
        ({"min_hold": 5}, TypeError, "unexpected keyword argument 'min_hold'"),
        ({"linger": 5}, TypeError, "unexpected keyword argument 'linger'"),
        ({"blocking_timeout": 5}, TypeError, "unexpected keyword argument .blocking_timeout."),
        ({"ttl": 0}, ValueError, "ttl"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"note": "x" * 2000}, ValueError, "note is too long"),
        ({"max_hold": -1}, ValueError, "max_hold"),
        ({"on_lost": "me"}, TypeError, "on_lost must be callable"),
        ({"poll": 0.1}, TypeError, "poll must be callable"),
        ({"retry": 3}, TypeError, "retry must be two numbers"),
        ({"auto_renew": "no"}, TypeError, "auto_renew must be True or False"),
    ],
)
def test_bad_settings_are_refused(
    api: Callable[..., object], settings: dict[str, object], error: type[Exception], text: str, memory: MemoryStore
) -> None:
    """Before any request."""
    store = Watched(memory)
    with pytest.raises(error, match=text):
        api(store, "key", **settings)
    with pytest.raises((ValueError, TypeError)):
        api(store, "")
    assert store.requests == []


def test_a_key_that_is_kept_after_its_release_is_led_by_nobody(memory: MemoryStore) -> None:
    """A `Lock` with ``min_hold`` may use the key, too."""
    election = Election(memory, "key")
    with Lock(memory, "key", min_hold=60, note="job"):
        assert present(election.leader()).note == "job"
    assert election.leader() is None
    assert next(election.watch()) is None


def test_an_election_is_neither_copied_nor_pickled(memory: MemoryStore) -> None:
    """As a lock is not; its repr names the key and the place."""
    election = Election(memory, "a key")
    for act in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="Election can't be copied or pickled"):
            act(election)
    assert repr(election) == f"<Election 'a key' at {memory.traits.location}>"
    assert election.key == "a key"


def note_of(leader: Record | None) -> str:
    return "" if leader is None else leader.note


def listening(watch: Watch, heard: list[str]) -> threading.Thread:
    def listen() -> None:
        heard.extend(note_of(leader) for leader in watch)

    thread = threading.Thread(target=listen)
    thread.start()
    return thread


@pytest.mark.parametrize("make", [MemoryStore, WatchingMemory])
def test_many_threads_and_tasks_watch(make: Callable[[], Store]) -> None:
    """All are told the same, whichever API they use; another thread ends the threads, and nothing is left behind."""
    store, key = make(), fresh()
    election = Election(store, key, note="ann")
    watches, heard = [election.watch() for _ in range(8)], [list[str]() for _ in range(12)]
    threads = [listening(watch, into) for watch, into in zip(watches, heard, strict=False)]

    async def watch(into: list[str]) -> None:
        async for leader in AsyncElection(store, key).watch():
            into += [note_of(leader)]

    async def tasks(stop: asyncio.Event) -> None:
        watching = [asyncio.create_task(watch(into)) for into in heard[8:]]
        await stop.wait()
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
        assert all(task.cancelled() for task in watching)

    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    other = threading.Thread(target=loop.run_until_complete, args=[tasks(stop)])
    other.start()
    assert until(lambda: all(each == [""] for each in heard))
    with election.lead() as term:
        assert until(lambda: all(each == ["", "ann"] for each in heard))
        term.extend()  # no change
    assert until(lambda: all(each == ["", "ann", ""] for each in heard))
    for each in watches:
        each.close()
    loop.call_soon_threadsafe(stop.set)
    for thread in (*threads, other):
        thread.join(60)
        assert not thread.is_alive()
    loop.close()
    assert list(watches[0]) == []
    assert [len(each) for each in heard] == [3] * 12
    assert store.get(key) is None
    del election, watches, each
    assert until(lambda: not any(kind is changes.Looks for kind, _ in list(shared_of(store)._of_keys)))


@in_a_loop
async def test_a_watcher_that_waits_in_an_asyncio_store_is_woken() -> None:
    """And one whose task is cancelled leaves the look to others."""
    store, key = AsyncWatchingMemory(), fresh()
    watch = AsyncElection(store, key).watch()
    async with AsyncElection(store, key, note="ann").lead():
        assert present(await anext(watch)).note == "ann"
        woken = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
    assert await woken is None
    waiting = list["asyncio.Future[Record | None]"]()
    looks = (election := AsyncElection(store, key))._looks.here()
    another = election.watch()
    assert await anext(another) is None
    for leaders, inside in ((watch, 0), (another, 1)):  # one looks, and the other one waits for what it sees
        waiting.append(asyncio.ensure_future(anext(leaders)))
        await asyncio.sleep(0)
        assert len(looks.waiting) == inside
    for each in reversed(waiting):
        each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await each
        assert not looks.waiting
    assert looks.looker is None


def test_an_interrupt_of_a_watcher_stops_no_other(memory: MemoryStore) -> None:
    """It may go on itself, too."""
    store, key = Watched(memory), fresh()
    interrupts = [KeyboardInterrupt()]

    def lose(_verb: str, _key: str) -> bool:
        if interrupts:
            raise interrupts.pop()
        return False

    store.lose = lose
    watch = Election(store, key).watch()
    with pytest.raises(KeyboardInterrupt):
        next(watch)
    assert next(Election(store, key).watch()) is None
    assert next(watch) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_another_process(tmp_path: Path) -> None:
    """It watches on, may campaign although its parent leads, and its copy of the block resigns nothing."""
    store, key = connect(f"sqlite:///{tmp_path / 'locks.db'}"), fresh()
    election = Election(store, key, note="parent")
    watch = election.watch()
    assert next(watch) is None
    read, write = os.pipe()
    with election.lead() as term:
        child = os.fork()
        if not child:
            facts: list[object] = ["failed"]
            try:
                facts = [present(next(watch)).note]
                for _ in range(2):
                    try:
                        with election.lead(timeout=0):
                            facts.append("leads")
                    except NotAcquired:
                        facts.append("not acquired")
            finally:
                os.write(write, json.dumps(facts).encode())
                os._exit(0)
        os.waitpid(child, 0)
        assert json.loads(os.read(read, 1000)) == ["parent", "not acquired", "not acquired"]
        assert leads(next(watch)) == ("parent", term.fence)
        term.ensure_held()
    os.close(read)
    os.close(write)
    store.close()
