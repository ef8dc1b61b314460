"""A lock at several Redis servers, some of which are killed, stopped, or come back empty."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

from caslock import AsyncQuorumLock, LockLost, QuorumLock, StoreUnavailable, connect, connect_async
from caslock.stores.sqlite import SQLiteStore
from caslock.testing.stopwatch import Stopwatch
from tests.support.locations import close_when_clean, fresh, observed, until
from tests.support.servers import REDIS, Server, private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock import AsyncClosableStore, Store

PATIENCE: Final = 0.5
"""Seconds of a request timeout."""


@pytest.fixture(scope="session")
def _five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(private(REDIS, tmp_path_factory.mktemp("redis"))) for _ in range(5)]


@pytest.fixture
def five(_five: list[Server]) -> Iterator[list[Server]]:
    """Return five Redis servers that a test may kill and pause: use keys of your own."""
    yield _five
    revive(_five)


def revive(servers: list[Server]) -> None:
    """Start those that were killed, and let those go on that were stopped."""
    for server in servers:
        server.resume()
        if not server._ours().alive():
            server.start()


@pytest.fixture
def three(five: list[Server]) -> list[Server]:
    """Return three of them."""
    return five[:3]


class Opened:
    """The stores of a test."""

    def __init__(self, servers: list[Server]) -> None:
        """Connect to each server."""
        self.stores: list[Store] = [connect(url_of(server)) for server in servers]

    def held(self, key: str) -> list[bool]:
        """Tell of each store whether anybody holds the key there."""
        return [self._is_held(store, key) for store in self.stores]

    @staticmethod
    def _is_held(store: Store, key: str) -> bool:
        with suppress(StoreUnavailable):  # a connection of before a restart
            return observed(store, key) is not None
        return False


def url_of(server: Server) -> str:
    """Return the URL with the request timeout of these tests."""
    return f"{server.url}?socket_timeout={PATIENCE}"


@pytest.fixture
def opened(three: list[Server]) -> Iterator[Opened]:
    """Return stores on three servers."""
    made = Opened(three)
    yield made
    revive(three)
    for store in made.stores:
        close_when_clean(store)


@pytest.mark.long
def test_a_server_that_is_killed_is_not_missed(opened: Opened, three: list[Server]) -> None:
    """A hold outlives the loss of one server of three, and new ones are acquired without it; without two it is lost."""
    key, other, lost = fresh(), fresh(), threading.Event()
    hold = QuorumLock(opened.stores, key, ttl=4, on_lost=lambda _: lost.set()).acquire()
    assert hold is not None
    assert until(lambda: opened.held(key) == [True] * 3)

    three[0]._ours().kill()
    ends = time.monotonic() + hold.remaining()
    assert until(lambda: time.monotonic() + hold.remaining() > ends + 0.5), "it is not renewed"
    hold.ensure_held()
    with QuorumLock(opened.stores, other, timeout=0):
        assert until(lambda: observed(opened.stores[1], other))

    three[1]._ours().kill()
    assert lost.wait(50)
    with pytest.raises(LockLost):
        hold.release()
    with pytest.raises(StoreUnavailable, match="2 of 3 stores did not answer"):
        QuorumLock(opened.stores, other, timeout=5).acquire()
    assert until(lambda: not observed(opened.stores[2], other))


def test_a_server_that_is_stopped_delays_nobody(opened: Opened, three: list[Server]) -> None:
    """With one server stopped, ten times acquire and release take less than a request timeout; nothing is left."""
    keys = [fresh() for _ in range(10)]
    three[0].pause()
    with Stopwatch() as watch:
        for key in keys:
            with QuorumLock(opened.stores, key, timeout=0):
                pass
    assert watch.seconds < PATIENCE
    three[0].resume()
    assert until(lambda: not any(observed(opened.stores[0], key) for key in keys))
    close_when_clean(opened.stores[0])
    assert not any(observed(opened.stores[0], key) for key in keys)


def test_two_servers_that_are_stopped_are_an_outage(opened: Opened, three: list[Server]) -> None:
    """With two stopped, an acquire says so within two request timeouts, and a release within three."""
    key, other = fresh(), fresh()
    hold = QuorumLock(opened.stores, key, ttl=60).acquire()
    assert hold is not None
    assert until(lambda: opened.held(key) == [True] * 3)
    three[0].pause()
    three[1].pause()
    with Stopwatch() as watch, pytest.raises(StoreUnavailable, match="2 of 3 stores did not answer"):
        QuorumLock(opened.stores, other, timeout=0).acquire()
    assert watch.seconds <= 2 * PATIENCE
    with Stopwatch() as watch, pytest.raises(StoreUnavailable, match="could not release"):
        hold.release()
    assert watch.seconds <= 3 * PATIENCE
    three[0].resume()
    three[1].resume()
    hold.release()
    assert until(lambda: opened.held(key) == opened.held(other) == [False] * 3)


@pytest.mark.long
def test_a_server_that_comes_back_empty_gets_its_lease_again(opened: Opened, three: list[Server]) -> None:
    """One server after the other is restarted, and forgets everything: the hold goes on."""
    key = fresh()
    with QuorumLock(opened.stores, key, ttl=4) as hold:
        for server in three:
            assert until(lambda: opened.held(key) == [True] * 3)
            server.restart()
        assert until(lambda: opened.held(key) == [True] * 3)
        hold.ensure_held()
    assert until(lambda: opened.held(key) == [False] * 3)


def test_five_servers_survive_the_loss_of_two(five: list[Server]) -> None:
    """Two of five killed: acquired, extended and released; without a third one it is an outage."""
    made, key = Opened(five), fresh()
    five[1]._ours().kill()
    five[3]._ours().kill()
    with QuorumLock(made.stores, key, timeout=0) as hold:
        hold.extend(60)
        assert hold.remaining() > 50
    five[4]._ours().kill()
    with pytest.raises(StoreUnavailable, match="3 of 5 stores did not answer"):
        QuorumLock(made.stores, key, timeout=0).acquire()
    for number in (0, 2):
        assert until(lambda: not observed(made.stores[number], key))  # noqa: B023 - called in this pass
        close_when_clean(made.stores[number])


def test_asyncio_with_a_server_that_is_stopped(three: list[Server]) -> None:
    """One stopped server delays no task; a second one is an outage, and a cancelled acquire leaves nothing."""

    async def main() -> None:
        stores = [cast("AsyncClosableStore", connect_async(url_of(server))) for server in three]
        key, other = fresh(), fresh()
        async with AsyncQuorumLock(stores, key) as hold:
            three[0].pause()
            with Stopwatch() as watch:
                async with AsyncQuorumLock(stores, other, timeout=0):
                    pass
            assert watch.seconds < PATIENCE
            three[1].pause()
            waiting = asyncio.create_task(AsyncQuorumLock(stores, other).acquire())
            await asyncio.sleep(0.1)
            waiting.cancel()
            with Stopwatch() as watch, pytest.raises(asyncio.CancelledError):
                await waiting
            assert watch.seconds <= 2 * PATIENCE
            with Stopwatch() as watch, pytest.raises(StoreUnavailable):
                await AsyncQuorumLock(stores, other, timeout=0).acquire()
            assert watch.seconds <= 2 * PATIENCE
            three[0].resume()
            three[1].resume()
            await hold.extend()
        for name in (key, other):
            for store in stores:
                entry = await store.get(name)
                end = time.monotonic() + 50
                while entry is not None and b'"holds":[]' not in entry.value and time.monotonic() < end:
                    await asyncio.sleep(0.01)
                    entry = await store.get(name)
                assert entry is None or b'"holds":[]' in entry.value
        for store in stores:
            await store.aclose()

    asyncio.run(main())


def test_stores_of_several_kinds(three: list[Server], tmp_path: Path) -> None:
    """Two Redis servers and a file are a quorum as well."""
    stores: list[Store] = [connect(three[0].url), connect(three[1].url), SQLiteStore(str(tmp_path / "locks.db"))]
    key = fresh()
    with QuorumLock(stores, key):
        assert until(lambda: all(observed(store, key) for store in stores))
    assert until(lambda: not any(observed(store, key) for store in stores))


def add(urls: list[str], key: str, file: str, rounds: int) -> int:
    """Add to a number in two steps, in two threads, so many times each."""
    stores = [connect(url) for url in urls]
    path = Path(file)

    def work() -> None:
        lock = QuorumLock(stores, key, ttl=60, timeout=60)
        for _ in range(rounds):
            with lock:
                seen = int(path.read_text())
                time.sleep(0)
                path.write_text(str(seen + 1))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 2 * rounds


@pytest.mark.parametrize("down", [pytest.param(0, marks=pytest.mark.long), 1])
def test_no_addition_is_lost(down: int, three: list[Server], opened: Opened, tmp_path: Path) -> None:
    """Processes with two threads each add to one number, with all servers and without one, which splits the votes."""
    del opened
    rounds, key, number = 15, fresh(), tmp_path / "number"
    number.write_text("0")
    for server in three[:down]:
        server._ours().kill()
    urls = [f"{server.url}?socket_timeout=20" for server in three]
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(add, urls[turn % 3 :] + urls[: turn % 3], key, str(number), rounds) for turn in range(3)]
        assert [one.result(timeout=60) for one in running] == [2 * rounds] * 3
    assert number.read_text() == str(6 * rounds)
