"""An acquire returns within its timeout plus two request timeouts, and a release within three, while the server hangs.

The server is stopped by SIGSTOP: connections stay open, the kernel accepts new ones, and nothing is answered.  The
SQLite file "hangs" while another connection keeps its write lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from caslock import (
    AsyncHold,
    AsyncLock,
    AsyncMultiLock,
    AsyncStore,
    CaslockError,
    Hold,
    Lock,
    MultiLock,
    NotHeld,
    Store,
    StoreUnavailable,
)
from caslock.connect import connect, connect_async
from caslock.stores.memory import MemoryStore
from caslock.stores.redis import AsyncRedisStore
from caslock.testing.faults import FaultyStore
from caslock.testing.steps import again
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import close_when_clean, fresh, observed, present, until
from tests.support.loops import in_a_loop
from tests.support.servers import Server

pytestmark = pytest.mark.long

REQUEST: Final = 0.6
"""Seconds of one request timeout in these tests."""

TTL: Final = 120.0
"""Seconds: longer than any scene, so that no end of a lease helps."""


class Hanging(NamedTuple):
    store: Callable[[], Store]
    async_store: Callable[[], AsyncStore | Store]
    hang: Callable[[], object]
    go_on: Callable[[], object]


@pytest.fixture(params=["sqlite", "redis", "memcached"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hanging]:
    """Return each location in turn."""
    with contextlib.ExitStack() as stack:

        def opened() -> Store:
            store = connect(url)
            stack.callback(close_when_clean, store)
            return store

        native: Callable[[], AsyncStore | Store] = opened
        hang: Callable[[], object]
        if request.param == "sqlite":
            path = tmp_path / "locks.db"
            blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            stack.callback(blocker.close)
            url = f"sqlite:///{path}?timeout={REQUEST}"
            hang, go_on = partial(blocker.execute, "BEGIN IMMEDIATE"), blocker.rollback
        else:
            server: Server = request.getfixturevalue(f"spare_{request.param}")
            hang, go_on = server.pause, server.resume
            url = f"{server.url}?timeout={REQUEST}"
            if request.param == "redis":
                url = f"{server.url}?socket_timeout={REQUEST}"
                native = partial(connect_async, url)
        try:
            yield Hanging(opened, native, hang, go_on)
        finally:
            go_on()


class Ended(NamedTuple):
    """How a call has ended, and how long it took, without what the machine was late by."""

    seconds: float
    outcome: object


def timed(call: Callable[[], object]) -> Ended:
    with Stopwatch() as watch:
        try:
            outcome = call()
        except CaslockError as error:
            outcome = error
    return Ended(watch.seconds, outcome)


async def timed_await(call: Callable[[], Awaitable[object]]) -> Ended:
    with Stopwatch() as watch:
        try:
            outcome = await call()
        except CaslockError as error:
            outcome = error
    return Ended(watch.seconds, outcome)


@contextlib.asynccontextmanager
async def going_on(go_on: Callable[[], object], *stores: AsyncStore | Store) -> AsyncIterator[None]:
    """Let the server go on, wait for the clean-ups of this loop and close the stores: the test is over then."""
    try:
        yield
    finally:
        go_on()
        if background := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(background, timeout=50)
        for store in stores:
            if isinstance(store, AsyncRedisStore):
                await store.aclose()


def held(lock: Lock) -> Hold:
    return present(again(lock.acquire))


async def had(lock: AsyncLock) -> AsyncHold:
    while True:
        with contextlib.suppress(StoreUnavailable):
            return present(await lock.acquire())


def hung(
    hanging: Hanging, pool: ThreadPoolExecutor, waits: Callable[[], object], *acquires: Callable[[], object]
) -> list[Future[Ended]]:
    """Have the server hang while acquires wait; they begin again if the machine was so late that they were over."""
    acquiring = [pool.submit(timed, acquire) for acquire in acquires]
    assert until(lambda: waits() or any(map(Future.done, acquiring)))
    hanging.hang()
    if not any(map(Future.done, acquiring)):
        return acquiring
    hanging.go_on()
    wait(acquiring)
    return hung(hanging, pool, waits, *acquires)


def test_an_acquire_is_bounded_when_the_server_hangs(hanging: Hanging, pool: ThreadPoolExecutor) -> None:
    """Given a server that hangs, acquire raises within its timeout plus two request timeouts, connected or not."""
    cases = [(timeout, hanging.store(), connected) for timeout in (0.0, 0.3, 0.6) for connected in (False, True)]
    for _, store, connected in cases:
        if connected:
            again(held(Lock(store, fresh())).release)
    hanging.hang()
    acquiring = [
        (timeout, pool.submit(timed, partial(Lock(store, fresh(), ttl=TTL).acquire, timeout=timeout)))
        for timeout, store, _ in cases
    ]
    ends = [(timeout, acquired.result()) for timeout, acquired in acquiring]
    hanging.go_on()
    for timeout, ended in ends:
        assert isinstance(ended.outcome, StoreUnavailable)
        assert ended.seconds <= timeout + 2 * REQUEST


def test_questions_are_bounded_when_the_server_hangs(hanging: Hanging, pool: ThreadPoolExecutor) -> None:
    """Given a server that hangs, locked() and holder() raise within two request timeouts."""
    lock = Lock(hanging.store(), fresh(), ttl=TTL)
    again(held(lock).release)
    hanging.hang()
    ended = list(pool.map(timed, (lock.locked, lock.holder)))
    hanging.go_on()
    for each in ended:
        if isinstance(each.outcome, StoreUnavailable):
            assert each.seconds <= 2 * REQUEST
        else:  # a reader of SQLite waits for no writer
            assert not each.outcome
            assert each.seconds < REQUEST


def test_a_forced_release_is_bounded_when_the_server_hangs(hanging: Hanging) -> None:
    """Given a server that hangs before or after the first answer, force_release() ends within four request timeouts."""
    store, key = hanging.store(), fresh()
    hold = held(Lock(store, key, ttl=TTL))
    asked = FaultyStore(store)
    asked.after("get", 1, hanging.hang)
    ended = timed(Lock(asked, key, retry=(100, 100)).force_release)
    hanging.go_on()
    assert isinstance(ended.outcome, StoreUnavailable)
    assert ended.seconds <= 4 * REQUEST
    with contextlib.suppress(CaslockError):
        hold.release()


@in_a_loop
async def test_a_cancelled_acquire_is_bounded_when_the_server_hangs(hanging: Hanging) -> None:
    """Given a server that hangs, an acquire that is cancelled cleans up within two request timeouts."""
    store = hanging.async_store()
    hanging.hang()
    async with going_on(hanging.go_on, store):
        acquiring = asyncio.create_task(AsyncLock(store, fresh(), ttl=TTL, retry=(100, 100)).acquire())
        await asyncio.sleep(REQUEST / 4)
        acquiring.cancel()
        with Stopwatch() as watch, pytest.raises(asyncio.CancelledError):
            await acquiring
        assert watch.seconds <= 2 * REQUEST


def test_a_cancelled_multi_lock_is_bounded_when_the_server_hangs(hanging: Hanging) -> None:
    """Given ten keys, some of them held by then, a cancelled acquire cleans up in the time that one key may take."""

    async def scene(keys: list[str]) -> float:
        store = hanging.async_store()
        other = await had(AsyncLock(store, keys[5], ttl=TTL))
        acquiring = asyncio.create_task(AsyncMultiLock(store, keys, ttl=TTL).acquire())
        await _happens(lambda: again(partial(observed, hanging.store(), keys[4])) is not None)
        hanging.hang()
        async with going_on(hanging.go_on, store):
            acquiring.cancel()
            with Stopwatch() as watch, pytest.raises(asyncio.CancelledError):
                await acquiring
            hanging.go_on()
            await other.release()
            return watch.seconds

    prefix = fresh()
    keys = [f"{prefix}{number}" for number in range(10)]
    assert asyncio.run(scene(keys)) <= 2 * REQUEST
    assert until(lambda: all(_free(hanging.store(), key) for key in keys))


def test_an_async_acquire_is_bounded_when_the_server_hangs(hanging: Hanging) -> None:
    """Given a server that hangs, AsyncLock.acquire raises within its timeout plus two request timeouts."""
    cases = [(timeout, connected) for timeout in (0.0, 0.6) for connected in (False, True)]

    async def scene() -> list[Ended]:
        stores = [hanging.async_store() for _ in cases]
        for store, (_, connected) in zip(stores, cases, strict=True):
            if connected:
                hold = await had(AsyncLock(store, fresh()))
                await hold.release()
        hanging.hang()
        async with going_on(hanging.go_on, *stores):
            locks = [AsyncLock(store, fresh(), ttl=TTL) for store in stores]
            acquiring = zip(locks, cases, strict=True)
            return await asyncio.gather(
                *(timed_await(partial(lock.acquire, timeout=timeout)) for lock, (timeout, _) in acquiring)
            )

    for (timeout, _), ended in zip(cases, asyncio.run(scene()), strict=True):
        assert isinstance(ended.outcome, StoreUnavailable)
        assert ended.seconds <= timeout + 2 * REQUEST


def test_many_tasks_at_a_blocking_store_that_hangs_are_bounded() -> None:
    """Given so many that they wait for threads, each is as late as one alone."""
    memory, answers = MemoryStore(), threading.Event()
    memory.traits = memory.traits._replace(request_timeout=1.0)
    store = FaultyStore(memory, plain=True)
    store.down()
    store.before("any", range(1, 1_000_000), lambda: answers.wait(1.0))

    def go_on() -> None:
        store.heal()
        answers.set()

    async def acquired(delay: float) -> Ended:
        await asyncio.sleep(delay)
        return await timed_await(partial(AsyncLock(store, fresh(), ttl=TTL).acquire, timeout=0.5))

    async def scene() -> list[Ended]:
        async with going_on(go_on):
            return await asyncio.gather(*(acquired(number / 50) for number in range(100)))

    ends = asyncio.run(scene())
    assert all(isinstance(ended.outcome, StoreUnavailable) for ended in ends)
    assert max(ended.seconds for ended in ends) <= 2.5


def test_a_wait_at_the_store_is_bounded_when_the_server_hangs(hanging: Hanging, pool: ThreadPoolExecutor) -> None:
    """Given a contender that waits at the store for another process's key, the server's hang does not prolong it."""
    key, timeout = fresh(), 2.5 * REQUEST  # so that what hangs is over before
    theirs, ours = Lock(hanging.store(), key, ttl=TTL, auto_renew=False), Lock(hanging.store(), key, ttl=TTL)
    hold = held(theirs)
    assert again(partial(ours.acquire, timeout=0)) is None
    queue, now = ours._state._queue, ours._state.runtime.now
    waits = lambda: any(attempt.contention for attempt in queue.inside(now()))  # noqa: E731 - an argument
    (waiting,) = hung(hanging, pool, waits, partial(ours.acquire, timeout=timeout))
    ended = waiting.result()
    hanging.go_on()
    assert ended.seconds <= timeout + 2 * REQUEST
    assert ended.outcome is None or isinstance(ended.outcome, StoreUnavailable)
    again(hold.release)


def test_a_hand_over_is_bounded_when_the_server_hangs(hanging: Hanging, pool: ThreadPoolExecutor) -> None:
    """Given a waiter in the local queue whose first put is sent by the releaser, both return within their bounds."""
    key, timeout, store = fresh(), 2.5 * REQUEST, hanging.store()
    hold = held(Lock(store, key, ttl=TTL))
    acquire = partial(Lock(store, key, ttl=TTL).acquire, timeout=timeout)
    (waiting,) = hung(hanging, pool, lambda: hold._state._queue.waiting, acquire)
    releasing = pool.submit(timed, hold.release)
    acquired, released = waiting.result(), releasing.result()
    hanging.go_on()
    assert acquired.seconds <= timeout + 2 * REQUEST
    assert released.seconds <= 3 * REQUEST
    assert isinstance(acquired.outcome, StoreUnavailable)


@pytest.mark.parametrize("renewing", [False, True])
def test_a_release_is_bounded_when_the_server_hangs(hanging: Hanging, renewing: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Given a server that hangs, release raises within three request timeouts, during a renewal as well."""
    hold = held(Lock(hanging.store(), fresh(), ttl=TTL))
    hanging.hang()
    if renewing:
        threading.Thread(target=timed, args=(hold.extend,), daemon=True).start()
        assert until(lambda: hold._attempt.writes.in_flight)
    ended = timed(hold.release)
    assert isinstance(ended.outcome, StoreUnavailable)
    assert ended.seconds <= 3 * REQUEST
    hanging.go_on()
    again(hold.release)  # it can be called again


def test_async_releases_and_hand_overs_are_bounded_when_the_server_hangs(hanging: Hanging) -> None:
    """Given tasks that release, renew and wait while the server hangs, all return within their bounds."""
    timeout = 2.5 * REQUEST  # so that what hangs is over before

    async def scene() -> tuple[Ended, Ended, Ended]:
        store, key = hanging.async_store(), fresh()
        first, renewed = AsyncLock(store, key, ttl=TTL), AsyncLock(store, fresh(), ttl=TTL)
        hold, other = await had(first), await had(renewed)
        waiter = AsyncLock(store, key, ttl=TTL)
        waiting = asyncio.create_task(timed_await(lambda: waiter.acquire(timeout=timeout)))
        await _happens(lambda: hold._state._queue.waiting)
        hanging.hang()
        extending = asyncio.create_task(timed_await(other.extend))
        await _happens(lambda: other._attempt.writes.in_flight)
        async with going_on(hanging.go_on, store):
            ends = await asyncio.gather(waiting, timed_await(hold.release), timed_await(other.release))
            await extending
            return ends[0], ends[1], ends[2]

    acquired, *released = asyncio.run(scene())
    assert acquired.seconds <= timeout + 2 * REQUEST
    assert max(ended.seconds for ended in released) <= 3 * REQUEST
    assert all(isinstance(ended.outcome, StoreUnavailable) for ended in (acquired, *released))


def test_several_keys_are_bounded_together_when_the_server_hangs(hanging: Hanging) -> None:
    """Given ten keys, MultiLock has the bounds of one: its release, its acquire, and giving back what it had."""
    store, keys, timeout = hanging.store(), [fresh(f"key{number}") for number in range(10)], 2.5 * REQUEST
    again(held(Lock(store, fresh())).release)
    holds = present(again(MultiLock(store, keys, ttl=TTL).acquire))
    others = [fresh() for _ in keys]
    hanging.hang()
    released = timed(holds.release)
    acquired = timed(lambda: MultiLock(store, others, ttl=TTL).acquire(timeout=timeout))
    hanging.go_on()
    assert released.seconds <= 3 * REQUEST
    assert acquired.seconds <= timeout + 2 * REQUEST
    assert isinstance(released.outcome, StoreUnavailable)
    assert isinstance(acquired.outcome, StoreUnavailable)
    again(holds.release)  # it can be called again
    assert until(lambda: all(_free(store, key) for key in [*keys, *others]))


def test_what_a_multi_lock_could_not_give_back_is_released_in_the_background(
    hanging: Hanging, pool: ThreadPoolExecutor
) -> None:
    """Given a MultiLock that has one key and waits for the other, a hang leaves the one key only for a while."""
    store, free, taken = hanging.store(), fresh("a"), fresh("b")
    theirs = held(Lock(hanging.store(), taken, ttl=TTL))
    acquire = partial(MultiLock(store, [free, taken], ttl=TTL).acquire, timeout=2.5 * REQUEST)
    (waiting,) = hung(hanging, pool, lambda: again(Lock(store, free).locked), acquire)
    ended = waiting.result()
    hanging.go_on()
    assert ended.seconds <= 4.5 * REQUEST
    assert isinstance(ended.outcome, StoreUnavailable)
    assert until(lambda: _free(store, free))
    again(theirs.release)


def test_keys_that_a_hang_kept_from_being_released_are_not_renewed(hanging: Hanging, pool: ThreadPoolExecutor) -> None:
    """Given waiters for each key of a MultiLock whose release meets a hang, every key is free soon afterwards."""
    store, keys = hanging.store(), [fresh(f"key{number}") for number in range(3)]
    holds = present(again(MultiLock(store, keys, ttl=TTL).acquire))
    acquires = [partial(Lock(store, key, ttl=TTL).acquire, timeout=0.5) for key in keys]
    waiting = hung(hanging, pool, lambda: all(hold._state._queue.waiting for hold in holds), *acquires)
    ended = timed(holds.release)
    for each in waiting:
        each.result()
    hanging.go_on()
    assert isinstance(ended.outcome, StoreUnavailable)
    for hold in holds:  # the one that was tried can be released again, the others are released in the background
        with contextlib.suppress(NotHeld):
            again(hold.release)
    assert until(lambda: all(_free(store, key) for key in keys))


async def _happens(what: Callable[[], object]) -> None:
    """Let the other tasks of the loop run until something has happened."""
    async with asyncio.timeout(50):
        while not what():  # noqa: ASYNC110 - of what happens no event tells
            await asyncio.sleep(0)


def _free(store: Store, key: str) -> bool:
    hold = again(partial(Lock(store, key).acquire, timeout=0))
    if hold:
        again(hold.release)
    return hold is not None
