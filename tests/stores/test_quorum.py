"""A lock at several Redis servers, some of which are killed, stopped, or come back empty."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import pytest

from caslock import QuorumLock, Store, StoreUnavailable, connect
from caslock.protocol.quorum import Ballot, QuorumLease
from caslock.testing.steps import again, at_once
from caslock.testing.stopwatch import Stopwatch
from tests.conftest import NewServer
from tests.support.locations import close_when_clean, fresh, observed, present, until
from tests.support.servers import Server

PATIENCE: Final = 2.0
"""Seconds of a request timeout."""


@pytest.fixture
def three(new_redis: NewServer) -> list[Server]:
    """Return three Redis servers that a test may kill and pause."""
    return [new_redis() for _ in range(3)]


@pytest.fixture
def stores(three: list[Server]) -> Iterator[list[Store]]:
    """Return stores on three servers, with a short request timeout."""
    stores: list[Store] = [connect(f"{server.url}?socket_timeout={PATIENCE}") for server in three]
    yield stores
    for store in stores:
        close_when_clean(store)


def held(stores: list[Store], key: str) -> list[bool]:
    return [_is_held(store, key) for store in stores]


def _is_held(store: Store, key: str) -> bool:
    with suppress(StoreUnavailable):  # a connection of before a restart
        return observed(store, key) is not None
    return False


@pytest.mark.long
def test_a_server_that_is_stopped_delays_nobody(stores: list[Store], three: list[Server]) -> None:
    """With one server stopped, ten times acquire and release take less than a request timeout; nothing is left."""
    locks = [QuorumLock(stores, fresh(), timeout=0) for _ in range(10)]
    ballots = list[Ballot]()
    three[0].pause()
    with Stopwatch() as watch:
        for lock in locks:
            with lock as hold:
                ballots.append(present(cast("QuorumLease", hold._attempt.lease).ballot))
    assert watch.seconds < PATIENCE
    three[0].resume()
    assert until(lambda: not any(ballot.pending for ballot in ballots))
    close_when_clean(stores[0])
    assert not again(lambda: any(observed(stores[0], lock.key) for lock in locks))


@pytest.mark.long
def test_two_servers_that_are_stopped_are_an_outage(stores: list[Store], three: list[Server]) -> None:
    """With two stopped, an acquire says so within two request timeouts, and a release within three."""
    key, other = fresh(), fresh()
    hold = QuorumLock(stores, key, ttl=60).acquire()
    assert hold is not None
    assert until(lambda: held(stores, key) == [True] * 3)
    three[0].pause()
    three[1].pause()
    with Stopwatch() as watch, pytest.raises(StoreUnavailable, match="2 of 3 stores did not answer"):
        QuorumLock(stores, other, timeout=0).acquire()
    assert watch.seconds <= 2 * PATIENCE
    with Stopwatch() as watch, pytest.raises(StoreUnavailable, match="could not release"):
        hold.release()
    assert watch.seconds <= 3 * PATIENCE
    three[0].resume()
    three[1].resume()
    hold.release()
    assert until(lambda: held(stores, key) == held(stores, other) == [False] * 3)


@pytest.mark.long
def test_a_server_that_comes_back_empty_gets_its_lease_again(stores: list[Store], three: list[Server]) -> None:
    """One server after the other is restarted, and forgets everything: the hold goes on."""
    key = fresh()
    with QuorumLock(stores, key, ttl=12) as hold:
        for server in three:
            assert until(lambda: held(stores, key) == [True] * 3)
            server.restart()
        assert until(lambda: held(stores, key) == [True] * 3)
        hold.ensure_held()
    assert until(lambda: held(stores, key) == [False] * 3)


def add(urls: list[str], key: str, file: str, rounds: int) -> int:
    """Add to a number in two steps, in two threads, so many times each."""
    stores = [connect(url) for url in urls]
    path = Path(file)

    def work() -> None:
        lock = QuorumLock(stores, key, ttl=60, timeout=250)
        for _ in range(rounds):
            with lock:
                seen = int(path.read_text())
                time.sleep(0)
                path.write_text(str(seen + 1))

    at_once(lambda _: work(), 2)
    return 2 * rounds


@pytest.mark.long
@pytest.mark.parametrize("down", [0, 1])
def test_no_addition_is_lost(down: int, three: list[Server], tmp_path: Path) -> None:
    """Processes with two threads each add to one number, with all servers and without one, which splits the votes."""
    rounds, key, number = 15, fresh(), tmp_path / "number"
    number.write_text("0")
    for server in three[:down]:
        server._ours().kill()
    urls = [f"{server.url}?socket_timeout=20" for server in three]
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(add, urls[turn % 3 :] + urls[: turn % 3], key, str(number), rounds) for turn in range(3)]
        assert [one.result(timeout=280) for one in running] == [2 * rounds] * 3
    assert number.read_text() == str(6 * rounds)
