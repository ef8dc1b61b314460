"""The runtimes of threads and of tasks: what they make of a store, and their events, mutexes and clean-ups."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from caslock import ABSENT, Lock, NotAcquired, Put, Removal, StoreUnavailable
from caslock.local import in_threads, tasks, threads
from caslock.local.hold import Holding
from caslock.local.in_threads import QUEUE_SHARE, InThreads
from caslock.local.shared import Shared
from caslock.local.tasks import MOST_ASKING, TaskEvent, TaskMutex, TaskRuntime
from caslock.local.threads import ThreadEvent, ThreadMutex, ThreadRuntime
from caslock.local.workers import run
from caslock.protocol.attempt import Attempt
from caslock.protocol.observation import ObservingStore
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import FaultyStore
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import until
from tests.support.loops import in_a_loop
from tests.support.scripted import Mutex, Scripted, an_attempt
from tests.support.watching import WatchingMemory

TIMEOUT = 8.0
"""Seconds of a request, by the traits of the stores here."""

ENOUGH = 200.0


class Everything(WatchingMemory):
    def __init__(self) -> None:
        super().__init__()
        self.traits = self.traits._replace(request_timeout=TIMEOUT)

    put_when_absent = put_many = invalidate_many = MemoryStore.put_many  # not called


class AsyncEverything(AsyncMemoryStore):
    def __init__(self) -> None:
        super().__init__(memory_store())

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """Not used."""


def memory_store(*, expires: bool = True) -> MemoryStore:
    """Return a store; it may say that it does not end leases by itself."""
    store = MemoryStore()
    store.traits = store.traits._replace(request_timeout=TIMEOUT, expires=expires)
    return store


def same(first: object, *others: object) -> bool:
    return all(each is first for each in others)


def plain() -> FaultyStore:
    return FaultyStore(MemoryStore(), plain=True)


def test_a_store_for_asyncio_is_asked_by_tasks() -> None:
    """With all that it can do."""
    store = AsyncEverything()
    runtime = TaskRuntime(Shared(store))
    verbs = (runtime.store, runtime.watching, runtime.queueing, runtime.batching, runtime.home)
    assert all(each is store for each in verbs)
    assert runtime.renewing is runtime
    assert runtime.patience == TIMEOUT
    assert TaskRuntime(Shared(AsyncMemoryStore())).watching is None
    less = SimpleNamespace(get=store.get, put_if_version=0, invalidate=0, traits=store.traits)
    runtime = TaskRuntime(Shared(less))
    assert (runtime.watching, runtime.queueing, runtime.batching) == (None, None, None)
    assert isinstance(TaskRuntime(Shared(AsyncMemoryStore(memory_store(expires=False)))).store, ObservingStore)


def test_a_blocking_store_is_asked_by_threads_of_its_own() -> None:
    """For requests, for waits and for renewals; it queues no tasks, and a request may have to wait for a thread."""
    store = Everything()
    runtime = TaskRuntime(Shared(store))
    assert (runtime.home, runtime.queueing) == (store, None)
    assert runtime.patience == TIMEOUT * (1 - QUEUE_SHARE)
    assert same(runtime.batching, runtime.store)
    assert runtime.renewing is not runtime
    assert same(runtime.renewing.batching, runtime.renewing.store)
    threaded = cast("list[InThreads]", [runtime.store, runtime.watching, runtime.renewing.store])
    assert [each._purpose for each in threaded] == ["requests", "waits", "task renewals"]
    runtime = TaskRuntime(Shared(plain()))
    assert (runtime.watching, runtime.batching, runtime.renewing.batching) == (None, None, None)
    runtime = TaskRuntime(Shared(memory_store(expires=False)))
    assert isinstance(runtime.store, ObservingStore)
    assert not isinstance(runtime.batching, ObservingStore)
    assert not isinstance(runtime.renewing.store, ObservingStore)


def test_a_blocking_store_is_asked_in_the_calling_thread() -> None:
    """With all that it can do; renewals need nothing else."""
    runtime = ThreadRuntime(Shared(Everything()))
    assert same(runtime.store, runtime.watching, runtime.queueing, runtime.batching)
    assert runtime.renewing is runtime
    assert runtime.patience == TIMEOUT
    runtime = ThreadRuntime(Shared(plain()))
    assert (runtime.watching, runtime.queueing, runtime.batching) == (None, None, None)
    assert isinstance(ThreadRuntime(Shared(memory_store(expires=False))).store, ObservingStore)


def test_what_is_no_store_is_refused() -> None:
    """By both; and an AsyncStore by that of threads."""
    with pytest.raises(TypeError, match=r"caslock\.connect\(url\)"):
        ThreadRuntime(Shared(object()))
    with pytest.raises(TypeError, match=r"caslock\.connect_async\(url\)"):
        TaskRuntime(Shared(object()))
    with pytest.raises(TypeError, match="AsyncMemoryStore is an AsyncStore"):
        ThreadRuntime(Shared(AsyncMemoryStore()))


class Answers:
    traits = MemoryStore().traits

    def __init__(self) -> None:
        self.asked: list[object] = []

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def answer(*asked: object) -> object:
            self.asked.append((verb, *asked))
            return self.asked[-1]

        return answer


CALLS: Sequence[tuple[str, tuple[object, ...]]] = (
    ("get", ("k",)),
    ("put_if_version", ("k", b"v", ABSENT, 5.0)),
    ("invalidate", ("k", 3)),
    ("wait_while", ("k", 3, 1.0)),
    ("put_many", ([Put("k", b"v", ABSENT, 5.0)],)),
    ("invalidate_many", ([Removal("k", 3)],)),
    ("identify", ()),
)


@in_a_loop
async def test_each_verb_is_passed_on() -> None:
    """With its arguments, and the answer comes back: in the calling thread, or in another one."""
    store = Answers()
    immediate = threads._Immediate(store)  # type: ignore[arg-type] # as a store
    assert immediate.traits is store.traits
    for verb, asked in (*CALLS, ("put_when_absent", ("k", b"v", 5.0, 1.0))):
        assert run(getattr(immediate, verb)(*asked)) == (verb, *asked)
    elsewhere = InThreads(Shared(store), "requests", 1)
    for verb, asked in CALLS:
        assert await getattr(elsewhere, verb)(*asked) == (verb, *asked)


class Jobs:
    def __init__(self) -> None:
        self.jobs: list[Callable[[], object]] = []

    def do(self, job: Callable[[], object], *, here: bool = False) -> None:
        assert not here, "nobody is held up by it"
        self.jobs.append(job)


class Unhurried:
    def __init__(self) -> None:
        self.traits = MemoryStore().traits._replace(request_timeout=0.2)
        self.asked = 0
        self.error: BaseException | None = None

    def get(self, key: str) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return key


@in_a_loop
async def test_a_request_that_finds_no_thread_is_dropped_unsent() -> None:
    """After its share of the request timeout; and one that nobody waits for any more is not sent."""
    store, workers = Unhurried(), Jobs()
    elsewhere = InThreads(Shared(store), "requests", MOST_ASKING)
    elsewhere._shared.part = lambda _name, _make: workers  # type: ignore[method-assign, assignment, return-value] # of this one
    with Stopwatch() as watch, pytest.raises(StoreUnavailable, match="too many requests are waiting for") as caught:
        await elsewhere.get("k")
    assert watch.elapsed > 0.04
    assert watch.seconds < 0.2 * 0.9
    assert caught.value.sent is False
    cancelled = asyncio.ensure_future(elsewhere.get("k"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    answered = asyncio.ensure_future(elsewhere.get("k"))
    await asyncio.sleep(0)
    for job in workers.jobs:
        job()
    assert store.asked == 1
    assert repr(await answered) == "'k'"
    store.error = SystemExit("of the store")
    failing = asyncio.ensure_future(elsewhere._ask(store.get, "k"))
    await asyncio.sleep(0)
    workers.jobs[-1]()
    await asyncio.wait([failing])
    assert failing.exception() is store.error


@in_a_loop
async def test_a_request_that_a_thread_has_taken_is_not_dropped() -> None:
    """Nor is one sent that was dropped before; and answers that come too late do no harm."""
    loop, store = asyncio.get_running_loop(), Unhurried()
    future: asyncio.Future[str] = loop.create_future()
    in_threads._drop(future, [], "memory://")
    assert not future.done()
    in_threads._answer(loop, future, [], lambda: store.get("k"))
    assert store.asked == 0
    future.cancel()
    in_threads._drop(future, [None], "memory://")
    in_threads._settle(future, partial(future.set_result, "late"))
    in_threads._settle(future, partial(future.set_exception, ValueError()))
    assert future.cancelled()
    other = asyncio.new_event_loop()
    late: asyncio.Future[str] = other.create_future()
    other.close()
    in_threads._answer(other, late, [None], lambda: store.get("k"))
    assert (store.asked, late.done()) == (1, False)


def a_hold() -> Holding:
    state = Lock(MemoryStore(), "k")._state
    return state.begin(Holding)


def test_what_was_cut_short_is_finished() -> None:
    """Its caller waits for that; a second cancellation ends only the wait, and the end of the loop nothing at all."""
    done, interrupt = list[str](), KeyboardInterrupt()

    async def work() -> None:
        done.append("begun")
        for _ in range(20):
            await asyncio.sleep(0)
        done.append("done")
        raise NotAcquired("as the test says")

    async def waits() -> None:
        await tasks.finish([], work, interrupt)  # nothing had begun
        assert done == []
        await tasks.finish([a_hold()], work, interrupt)
        assert done == ["begun", "done"]

    async def waits_no_longer() -> None:
        waiting = asyncio.ensure_future(tasks.finish([a_hold()], work, interrupt))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=ENOUGH)
        assert waiting.cancelled()
        assert done == ["begun"]

    asyncio.run(waits())
    done.clear()
    asyncio.run(waits_no_longer())
    assert done == ["begun", "begun", "done"]

    async def cancelled() -> None:
        done.append("cancelled")
        raise asyncio.CancelledError

    done.clear()
    asyncio.run(tasks.finish([a_hold()], cancelled, interrupt))  # by whoever cancels all tasks again and again
    assert done == ["cancelled"] * 2


def test_a_thread_waits_for_what_is_finished_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until that has ended, whatever becomes of it; first it gives back the mutex that it may have."""
    hold, waited, did, interrupt = a_hold(), list[float | None](), list[object](), KeyboardInterrupt()
    mutex = hold._attempt.mutex
    mutex.acquire(blocking=False)
    wait = threads.ThreadEvent.wait

    async def noted(event: threads.ThreadEvent, timeout: float | None) -> None:
        waited.append(timeout)
        await wait(event, ENOUGH)

    async def work() -> None:
        async with mutex:
            did.append(threading.current_thread())
        raise NotAcquired("as the test says")

    monkeypatch.setattr(threads.ThreadEvent, "wait", noted)
    threads.finish([], work, interrupt)  # nothing had begun
    assert did == []
    threads.finish([hold], work, interrupt)
    assert len(did) == 1
    assert did != [threading.current_thread()]
    assert interrupt.__notes__ == ["as the test says"]
    assert waited == [None]


def test_an_attempt_ends_with_its_loop() -> None:
    """One of a task: the loop of any other has nothing to do with it."""
    runtime = TaskRuntime(Shared(AsyncMemoryStore()))
    attempt = an_attempt(Scripted())

    async def main() -> None:
        assert not runtime.ended(attempt)
        attempt.caller = asyncio.current_task()
        assert not runtime.ended(attempt)

    asyncio.run(main())
    assert runtime.ended(attempt)
    assert not ThreadRuntime(Shared(MemoryStore())).ended(attempt)


def test_a_lease_is_watched_in_the_loop_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another one extends it, unless its own is closed; one of no task in the loop that runs."""
    watched: list[tuple[object, Attempt]] = []
    monkeypatch.setattr(
        tasks, "renewer_of", lambda loop: SimpleNamespace(watch=lambda attempt: watched.append((loop, attempt)))
    )
    runtime = TaskRuntime(Shared(AsyncMemoryStore()))
    attempt, other = an_attempt(Scripted()), an_attempt(Scripted())
    loops: list[object] = []

    async def acquire() -> None:
        loops.append(asyncio.get_running_loop())
        attempt.caller = asyncio.current_task()
        runtime.watch(attempt)
        runtime.watch(other)

    async def extend() -> None:
        runtime.watch(attempt)

    with asyncio.Runner() as runner:
        runner.run(acquire())
        assert watched == [(loops[0], attempt), (loops[0], other)]
        thread = threading.Thread(target=asyncio.run, args=[extend()])
        thread.start()
        thread.join(ENOUGH)
        assert len(watched) == 2
        runner.run(asyncio.sleep(0))
        assert watched[2:] == [(loops[0], attempt)]
    asyncio.run(extend())
    assert len(watched) == 3


@in_a_loop
async def test_a_mutex_of_tasks_lets_one_in() -> None:
    """Whoever is cancelled while it waits is forgotten; one that nobody has may be given back."""
    mutex, order = TaskMutex(), list[str]()

    async def take(name: str) -> None:
        async with mutex:
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    assert mutex.acquire(blocking=False)
    assert not mutex.acquire(blocking=False)
    waiting = [asyncio.ensure_future(take(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert len(mutex._waiting) == 3
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    assert len(mutex._waiting) == 2
    assert order == []
    mutex.release()
    await asyncio.wait_for(asyncio.gather(*waiting[1:]), ENOUGH)
    assert order == [*"bb", *"cc"]
    assert not mutex._waiting
    mutex.release()
    assert mutex.acquire(blocking=False)


def test_an_event_wakes_its_task_from_anywhere() -> None:
    """Once for all that has set it; after the end of its loop, setting it does nothing."""
    events: list[TaskEvent] = []

    async def main() -> None:
        event = TaskEvent()
        events.append(event)
        event.set()
        event.set()
        await asyncio.wait_for(event.wait(None), ENOUGH)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await event.wait(0.02)  # it was taken
        assert loop.time() - began >= 0.01
        thread = threading.Thread(target=event.set)
        thread.start()
        await asyncio.wait_for(event.wait(None), ENOUGH)
        thread.join()

    asyncio.run(main())
    events[0].set()


def test_an_event_of_threads_is_taken_by_its_waiter() -> None:
    """Set twice, it wakes once; and no wait is longer than a lock can wait."""
    event = ThreadEvent()
    assert event._lock.locked()
    run(event.wait(-1.0))  # not set, and no time left
    event.set()
    event.set()
    run(event.wait(None))
    waits: list[float] = []

    def acquire(*, timeout: float) -> None:
        waits.append(timeout)

    event._lock = SimpleNamespace(acquire=acquire)  # type: ignore[assignment] # notes it
    for seconds in (None, -1.0, 2.0, 1e30):
        run(event.wait(seconds))
    assert waits == [-1, 0.0, 2.0, threading.TIMEOUT_MAX]

    def refuse() -> None:
        raise RuntimeError("release unlocked lock")

    event._lock = SimpleNamespace(locked=lambda: True, release=refuse)  # type: ignore[assignment] # another was faster
    event.set()


def test_a_mutex_that_an_interrupt_has_left_locked_is_given_back() -> None:
    """As often as this thread has taken it; that of another thread stays."""
    mutex = ThreadMutex()

    async def taken() -> None:
        async with mutex as it:
            assert it is mutex
            assert mutex._is_owned()  # type: ignore[attr-defined] # of the class in C

    run(taken())
    assert not mutex._is_owned()  # type: ignore[attr-defined] # as above
    for _ in range(3):
        mutex.acquire()
    attempt = an_attempt(Scripted())
    threads.mend(attempt)  # its mutex is of another kind
    assert isinstance(attempt.mutex, Mutex)
    attempt.mutex = mutex
    threads.mend(attempt)
    assert not mutex._is_owned()  # type: ignore[attr-defined] # as above
    other = threading.Thread(target=mutex.acquire)
    other.start()
    other.join()
    threads.mend(attempt)
    assert not mutex.acquire(blocking=False)


def test_clean_ups_of_a_store_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """They last for so many seconds; at the end of the interpreter none begins."""
    jobs, made, settled = Jobs(), list[tuple[str, int]](), list[list[float]]()

    def workers(name: str, most: int) -> object:
        made.append((name, most))
        return jobs

    async def run_clean_ups(_runtime: object, unsettled: list[SimpleNamespace]) -> None:
        settled.append([each.ends for each in unsettled])

    async def work(_limit: float) -> None:
        """Never called here."""

    monkeypatch.setattr(threads, "Workers", workers)
    monkeypatch.setattr(threads, "run_clean_ups", run_clean_ups)
    monkeypatch.setattr(ThreadRuntime, "now", staticmethod(lambda: 100.0))
    runtime = ThreadRuntime(Shared(MemoryStore()))
    runtime.in_background(work, 7.0)
    runtime.in_background(work, 9.0)
    jobs.jobs[0]()
    assert (made, settled) == ([("caslock-clean-up", 1)], [[107.0, 109.0]])
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    runtime.in_background(work, 7.0)
    assert len(jobs.jobs) == 2


def test_a_thread_sleeps_by_itself_and_starts_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs beside it has a thread of its own."""
    slept, did = list[float](), list[object]()
    monkeypatch.setattr(threads, "time", SimpleNamespace(sleep=slept.append))
    runtime = ThreadRuntime(Shared(MemoryStore()))

    async def work() -> None:
        did.append(threading.current_thread())

    run(runtime.sleep(3.0))
    assert 3.0 in slept  # a clean-up of an earlier test may sleep as well
    runtime.start(work)
    assert until(lambda: did)
    assert did != [threading.current_thread()]


def test_a_thread_with_the_number_of_one_that_has_ended_is_another() -> None:
    """It neither re-enters nor releases what that one has left; the system gives numbers again soon."""
    runtime, known, told = ThreadRuntime(Shared(MemoryStore())), dict[int, object](), list[bool]()

    def tell() -> None:
        number, me = threading.get_ident(), runtime.me()
        if number in known:
            told.append(me == known[number])
        known[number] = me

    for _ in range(5000):
        thread = threading.Thread(target=tell, name="worker-1")
        thread.start()
        thread.join()
        if told:
            break
    assert told == [False]


def test_a_lock_for_tasks_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of any there is none, and in none of them is none, either."""
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "asyncio")
        assert threads.running_task() is None
    assert tasks.calling_task() is None
    assert threads.running_task() is None
    told: list[object] = []

    def call() -> None:
        told.append(tasks.calling_task())
        try:
            tasks.this_task()
        except RuntimeError as error:
            told.append(str(error))

    async def main() -> None:
        assert tasks.this_task() is tasks.calling_task() is threads.running_task() is asyncio.current_task()
        asyncio.get_running_loop().call_soon(call)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert told == [None, "AsyncLock must be used inside an asyncio task"]
