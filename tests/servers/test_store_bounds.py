"""Each verb of each store ends within one request timeout, whatever the server does and whenever it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from caslock import StoreUnavailable, connect, connect_async
from caslock.store import ABSENT, Put, Removal
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.stores.sqlite import SQLiteStore
from caslock.testing.drive import driven
from caslock.testing.proxy import PASS, FaultProxy, Passage, unreachable_port
from caslock.testing.steps import again
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import fresh, until
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, Server

K = TypeVar("K")
T = TypeVar("T")

TIMEOUT = 0.8
"""Seconds that a request may take."""

pytestmark = pytest.mark.long

APIS = ("redis", "redis for asyncio", "memcached")


class Tried:
    """A store of one of the APIs, each of whose verbs is timed."""

    def __init__(self, api: str, stack: contextlib.ExitStack) -> None:
        self.api = api
        self.key = fresh()
        self._stack = stack
        self._make: Callable[[], Any] = lambda: None
        self.store: Any = None

    def open(self, port: int, host: str = HOST) -> None:
        scheme, option = ("memcached", "timeout") if self.api == "memcached" else ("redis", "socket_timeout")
        make = connect_async if self.api == "redis for asyncio" else connect
        self.on(partial(make, f"{scheme}://{host}:{port}?{option}={TIMEOUT}"))

    def on(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.store = driven(make())
        self._stack.callback(self.store.close)

    def alone(self) -> Tried:
        """Another store of the same server, with a key of its own."""
        other = Tried(self.api, self._stack)
        other.on(self._make)
        return other

    def verbs(self) -> dict[str, Callable[[], object]]:
        store, k, l = self.store, self.key, f"{self.key}:l"  # noqa: E741
        verbs: dict[str, Callable[[], object]] = {
            "get": lambda: store.get(k),
            "put": lambda: store.put_if_version(k, b"v", ABSENT, 30),
            "put over": lambda: store.put_if_version(k, b"v", 7, 30),
            "invalidate": lambda: store.invalidate(k, 7),
        }
        if hasattr(store, "put_many"):
            verbs["put many"] = lambda: store.put_many([Put(k, b"v", ABSENT, 30), Put(l, b"v", 7, 30)])
            verbs["invalidate many"] = lambda: store.invalidate_many([Removal(k, 7), Removal(l, 7)])
        return verbs

    def each_ends(self) -> None:
        """Expect of each verb that it gets no answer, and says so in time; all are called at the same time."""
        ended = together(self.verbs(), lambda name: _fails(self.verbs()[name]))
        expect_in_time({name: seconds for name, (seconds, _) in ended.items()})


def together(names: Iterable[K], act: Callable[[K], T]) -> dict[K, T]:
    names = list(names)
    with ThreadPoolExecutor(len(names)) as threads:
        return dict(zip(names, threads.map(act, names), strict=True))


def expect_in_time(took: Mapping[K, float]) -> None:
    assert {name: round(seconds, 3) for name, seconds in took.items() if seconds > TIMEOUT} == {}


def _fails(verb: Callable[[], object]) -> tuple[float, StoreUnavailable]:
    """Expect no answer; give how many seconds that took, and what the verb said."""
    with Stopwatch() as watch, pytest.raises(StoreUnavailable) as caught:
        verb()
    return watch.seconds, caught.value


@pytest.fixture(params=APIS)
def tried(request: pytest.FixtureRequest) -> Iterator[Tried]:
    """A store of each API."""
    with contextlib.ExitStack() as stack:
        yield Tried(request.param, stack)


@pytest.fixture
def server(tried: Tried, request: pytest.FixtureRequest) -> Server:
    """A server of its kind that may be stopped."""
    server: Server = request.getfixturevalue("spare_memcached" if tried.api == "memcached" else "spare_redis")
    return server


@pytest.fixture
def black_hole() -> Iterator[int]:
    """Return a port at which nobody answers, not even the kernel."""
    with unreachable_port() as port:
        yield port


def test_a_server_that_is_stopped(tried: Tried, server: Server) -> None:
    """A request over an open connection to a stopped server ends within one timeout, and so does the one after it."""
    tried.open(server.port)
    each = {name: tried.alone() for name in tried.verbs()}
    together(each, lambda name: again(lambda: each[name].store.get("k")))
    server.pause()
    for _ in range(2):
        expect_in_time(together(each, lambda name: _fails(each[name].verbs()[name])[0]))


def test_a_name_of_several_black_holes(tried: Tried, black_hole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name with several addresses has one timeout, not one for each."""
    found = socket.getaddrinfo(HOST, black_hole, type=socket.SOCK_STREAM) * 3
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    tried.open(black_hole, "several.invalid")
    tried.each_ends()


def test_a_server_that_stops_at_any_step(tried: Tried, server: Server) -> None:
    """At whatever step of connecting or asking the server stops answering, the verb ends within one timeout."""

    def stop(case: tuple[str, int]) -> tuple[float, int]:
        """Tell how long the verb took, and how many steps there were."""
        name, step = case
        seen: list[bytes] = []

        def decide(request: bytes) -> Passage:
            seen.append(request)
            return Passage("drop request") if len(seen) >= step else Passage("hold reply", TIMEOUT / 4)

        with FaultProxy(server.host, server.port, decide) as proxy, contextlib.ExitStack() as stack:
            stopped = Tried(tried.api, stack)
            stopped.open(proxy.port)
            with Stopwatch() as watch, contextlib.suppress(StoreUnavailable):
                stopped.verbs()[name]()
            return watch.seconds, len(seen)

    tried.open(server.port)
    verbs, reached = tried.verbs(), set[int]()
    while not reached >= {1, 2, 3}:  # a slow machine may not reach the third in time
        for verb in verbs:
            ended = together([(verb, step) for step in range(1, 6)], stop)
            expect_in_time({case: seconds for case, (seconds, _) in ended.items()})
            reached |= {step for (_, step), (_, seen) in ended.items() if seen >= step}


@pytest.mark.parametrize("tried", APIS[:2], indirect=True)
def test_a_script_that_the_server_has_forgotten(tried: Tried, server: Server) -> None:
    """The request that brings the script along has what is left of the timeout, not another one."""
    slow = {"seconds": 0.0}

    def hold(_: bytes) -> Passage:
        return Passage("hold reply", slow["seconds"]) if slow["seconds"] else PASS

    with FaultProxy(server.host, server.port, hold) as proxy:
        tried.open(proxy.port)
        again(lambda: tried.store.get("k"))
        slow["seconds"] = TIMEOUT * 0.7
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            tried.store.put_if_version("k", b"v", ABSENT, 30)
        assert watch.seconds <= TIMEOUT


@pytest.mark.parametrize("tried", APIS[:2], indirect=True)
@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
def test_a_wait_at_a_server_that_is_stopped(tried: Tried, server: Server, *, cold: bool) -> None:
    """A put that waits ends within its own timeout and one request timeout."""
    tried.open(server.port)
    if not cold:
        again(lambda: tried.store.put_when_absent(tried.key, b"v", 30, 0.1))
    server.pause()
    for _ in range(2):
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            tried.store.put_when_absent(tried.key, b"v", 30, 0.3)
        assert watch.seconds <= 0.3 + TIMEOUT


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@in_a_loop
async def test_many_tasks_at_a_server_that_is_stopped(spare_redis: Server, *, cold: bool) -> None:
    """A thousand tasks that ask at once, and a thousand later, end within one timeout each: no queue comes on top."""
    server = spare_redis
    timeout = 2.5 * TIMEOUT
    store = AsyncRedisStore.from_url(f"{server.url}?socket_timeout={timeout}&socket_connect_timeout={timeout}")

    async def ask(number: int, later: float) -> float:
        await asyncio.sleep(later)
        worked_before = time.thread_time()
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            await store.put_if_version(f"k{number}", b"v", ABSENT, 30)
        return watch.seconds - (time.thread_time() - worked_before)  # what the loop did for all the others is no wait

    warm = cold
    while not warm:  # a machine that is busy may take longer than the timeout
        with contextlib.suppress(StoreUnavailable):
            warm = await store.get("k") is None
    server.pause()
    try:
        times = [ask(number, 0.0 if number % 2 else timeout / 2) for number in range(2000)]
        assert max(await asyncio.gather(*times)) <= timeout
    finally:
        server.resume()
        await store.aclose()


@in_a_loop
async def test_a_request_that_waited_for_a_connection_was_not_sent(spare_redis: Server) -> None:
    """A request that waits until the connection is open says that it was not sent, if its timeout is over by then."""
    server = spare_redis
    store = AsyncRedisStore.from_url(f"{server.url}?socket_timeout={TIMEOUT}&socket_connect_timeout={TIMEOUT}")
    server.pause()
    try:
        asked = await asyncio.gather(*(store.get("k") for _ in range(4)), return_exceptions=True)
        assert [error.sent for error in asked if isinstance(error, StoreUnavailable)] == [False] * 4
    finally:
        server.resume()
        await store.aclose()


@pytest.mark.parametrize("api", APIS[:2])
def test_sentinels_that_do_not_answer(api: str, spare_redis: Server, black_hole: int) -> None:
    """A silent Sentinel costs a part of the timeout; a primary that no Sentinel names, no more than one timeout."""
    kind: Any = Sentinel if api == "redis" else AsyncSentinel
    settings: Any = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
    spare_redis.pause()
    with contextlib.ExitStack() as stack:
        tried = Tried(api, stack)
        watchers = [(HOST, black_hole), (HOST, spare_redis.port), (HOST, black_hole)]

        def make() -> RedisStore | AsyncRedisStore:
            client = kind(watchers, sentinel_kwargs=settings, **settings).master_for("main", **settings)
            return RedisStore(client) if api == "redis" else AsyncRedisStore(client)

        tried.on(make)
        tried.each_ends()


def test_threads_behind_a_locked_file(tmp_path: Path) -> None:
    """Threads that come one after the other to a file that stays locked wait one timeout each, from when they asked."""
    path = tmp_path / "locks.db"
    timeout = 2 * TIMEOUT
    store = SQLiteStore(path, timeout=timeout)
    store.get("k")

    def ask(number: int) -> float:
        time.sleep(number * timeout / 8)
        slowest = 0.0
        for _ in range(2):
            with Stopwatch() as watch, pytest.raises(StoreUnavailable) as caught:
                store.put_if_version(f"k{number}", b"v", ABSENT, 30)
            assert not caught.value.sent
            slowest = max(slowest, watch.seconds)
        return slowest

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(8) as threads:
        other.execute("BEGIN IMMEDIATE")
        assert max(threads.map(ask, range(8))) <= timeout
    assert store.put_if_version("k", b"v", ABSENT, 30) is not None
    store.close()


def test_a_shortened_wait_does_not_stay_short(tmp_path: Path) -> None:
    """A verb that got less than the timeout, for it had waited for another thread, leaves the next one all of it."""
    path = tmp_path / "locks.db"
    timeout = TIMEOUT / 2
    store = SQLiteStore(path, timeout=timeout)
    store.get("k")

    def fail() -> Stopwatch:
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            store.put_if_version("k", b"v", ABSENT, 30)
        return watch

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(2) as threads:
        other.execute("BEGIN IMMEDIATE")
        first = threads.submit(fail)
        time.sleep(timeout / 2)
        assert fail().seconds <= timeout
        first.result()
        last = fail()
        assert last.elapsed > timeout * 0.8
        assert last.seconds <= timeout
    store.close()


def test_threads_that_gave_up_leave_the_file_usable(tmp_path: Path) -> None:
    """A thread that gives up its wait for the others neither keeps them out nor lets two in."""
    store = SQLiteStore(tmp_path / "locks.db", timeout=TIMEOUT)
    store.get("k")
    with store._mutex, ThreadPoolExecutor(4) as threads:
        waits = [threads.submit(store.get, "k") for _ in range(4)]
        assert until(lambda: all(wait.done() for wait in waits))
        assert {type(wait.exception()) for wait in waits} == {StoreUnavailable}
    assert store.get("k") is None
    store.close()
