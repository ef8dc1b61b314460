"""How waiters of a key in PostgreSQL are notified, against real servers: what the contract does not ask."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from caslock import Lock, Store, StoreUnavailable, WatchingStore
from caslock.store import ABSENT, Entry
from caslock.stores.sql import AsyncSQLStore, SQLStore
from caslock.stores.sql.listener import MOST_KEYS, Listener
from caslock.stores.sql.statements import look_at
from caslock.stores.sql.table import name_of, place_of
from caslock.stores.sql.wait import Wait
from caslock.testing.drive import on_loop
from caslock.testing.extremes import KEYS
from caslock.testing.proxy import FaultProxy, Passage
from caslock.testing.steps import timed
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import answers, opening, put, unsent
from tests.support.locations import fresh, present, until
from tests.support.loops import in_a_loop
from tests.support.servers import POSTGRESQL, Server, private

if TYPE_CHECKING:

    class Watching(Store, WatchingStore):
        """A store with `wait_while`."""


LONG = 40.0  # seconds of a wait that something else has to end
SOON = LONG / 2  # seconds in which that has happened


class Postgres:
    """The server, and how to make stores on it and to ask it."""

    def __init__(self, server: Server, stack: contextlib.ExitStack, *, blocking: bool) -> None:
        self.server, self.blocking = server, blocking
        kind = SQLStore if blocking else AsyncSQLStore
        self._stores = stack.enter_context(opening(kind, blocking=blocking))
        self._name = fresh()  # other tests use the server at the same time
        self.url = server.url.replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        stack.callback(engine.dispose)
        self._admin = stack.enter_context(engine.connect())

    def open(self, target: Any = None, **settings: Any) -> Watching:  # noqa: ANN401 - as the stores take them
        """Make a store that is closed at the end of the test."""
        target = f"{self.server.url}?application_name={self._name}" if target is None else target
        return cast("Watching", self._stores.open(target, **settings))

    def ask(self, statement: str, **values: object) -> Any:  # noqa: ANN401 - one value of any kind
        return self._admin.execute(text(statement), values).scalar()

    def listeners(self, key: str) -> int:
        """Count the sessions that say that they wait for a key."""
        return int(self.ask(f"SELECT count(*) {_OF_KEY}", place=place_of(name_of(key)[0])))

    def end_listeners(self, key: str) -> bool:
        return bool(self.ask(f"SELECT pg_terminate_backend(pid) {_OF_KEY}", place=place_of(name_of(key)[0])))

    def sessions(self) -> int:
        """Count the sessions whose last statement was one of a listener's."""
        ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND query ~ :statements"
        return int(self.ask(ours, name=self._name, statements=_LISTENS))


_OF_KEY = (
    "FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    " AND ((classid::bigint << 32) | objid::bigint) = :place"
)
_LISTENS = "^(BEGIN; LISTEN|UNLISTEN|SELECT true FROM caslock)"


@pytest.fixture(params=["blocking", "asyncio"])
def postgres(request: pytest.FixtureRequest, postgresql_server: Server) -> Iterator[Postgres]:
    """Return the shared server, with each API."""
    with contextlib.ExitStack() as stack:
        yield Postgres(postgresql_server, stack, blocking=request.param == "blocking")


def test_only_a_store_in_postgresql_waits() -> None:
    """MySQL can't notify, so locks poll there."""
    assert isinstance(SQLStore("postgresql://db/app"), WatchingStore)
    assert isinstance(AsyncSQLStore("postgresql://db/app"), WatchingStore)
    assert not hasattr(SQLStore("mysql://db/app"), "wait_while")
    assert not hasattr(AsyncSQLStore("mysql://db/app"), "wait_while")


def test_the_look_finds_every_key(postgres: Postgres) -> None:
    """The statement that a waiter sends is never changed by a key, and finds the row of each."""
    salt, store = fresh(), postgres.open()
    for key in [salt + key for key in KEYS if len(key) < 800] + [salt + "'; --", salt + "\\'", salt + "{}%s"]:
        entry = put(store, key)
        name = name_of(key)[0]
        assert postgres.ask(look_at(name, entry.version).replace(":", r"\:")) is True
        assert postgres.ask(look_at(name, entry.version + 1).replace(":", r"\:")) is None


def test_forty_waiters_share_one_connection(postgres: Postgres) -> None:
    """Waiters for ten keys end with the change of their own key, and the server then knows of none."""
    store, other = postgres.open(timeout=20), postgres.open()
    entries = {key: put(other, key) for key in [fresh() for _ in range(10)]}
    waits = [timed(_wait(store, key, entry)) for key, entry in entries.items() for _ in range(4)]
    assert until(lambda: all(postgres.listeners(key) for key in entries))
    assert postgres.sessions() == 1
    *others, last = entries.items()
    for key, entry in others:
        other.invalidate(key, entry.version)
    assert max(wait.result(LONG)[0] for wait in waits[:-4]) < SOON
    assert not any(wait.done() for wait in waits[-4:])
    put(other, last[0], b"v", last[1].version)
    assert max(wait.result(LONG)[0] for wait in waits[-4:]) < SOON
    assert until(lambda: not any(postgres.listeners(key) for key in entries))
    assert postgres.sessions() == 1


def _wait(store: Watching, key: str, entry: Entry, timeout: float = LONG) -> Callable[[], object]:
    return lambda: store.wait_while(key, entry.version, timeout)


def test_nobody_is_notified_of_a_key_that_nobody_waits_for(postgres: Postgres) -> None:
    """A session that listens to a key without having its lock hears nothing."""
    store, key = postgres.open(), fresh()
    entry = put(store, key)
    with psycopg.connect(postgres.server.url, autocommit=True) as plain:
        place = place_of(name_of(key)[0])
        plain.execute(f'LISTEN "caslock{place}"')
        entry = put(store, key, b"v", entry.version)
        store.invalidate(key, entry.version)
        assert list(plain.notifies(timeout=0.2)) == []
        entry = put(store, key)
        plain.execute(f"SELECT pg_advisory_lock_shared({place})")
        store.invalidate(key, entry.version)
        assert [each.channel for each in plain.notifies(timeout=LONG, stop_after=1)] == [f"caslock{place}"]


def test_more_keys_than_a_session_may_lock_are_polled(postgres: Postgres) -> None:
    """A wait for one key too many is refused at once; when others have ended, it is served."""
    store = postgres.open(timeout=20)
    entries = {key: put(store, key) for key in [fresh() for _ in range(MOST_KEYS + 1)]}
    *most, (key, entry) = entries.items()
    waits = [timed(_wait(store, *each)) for each in most]
    assert until(lambda: all(postgres.listeners(each) for each, _ in most))
    unsent(lambda: store.wait_while(key, entry.version, LONG), "too many keys")
    for each, one in most:
        store.invalidate(each, one.version)
    assert max(wait.result(LONG)[0] for wait in waits) < SOON
    store.wait_while(key, entry.version, 0.05)


def test_a_terminated_session_ends_its_waits_and_the_next_one_is_served(postgres: Postgres) -> None:
    """All waiters are told at once that the connection was lost."""
    store = postgres.open(timeout=20)
    entries = {key: put(store, key) for key in (fresh(), fresh())}
    waits = [timed(_wait(store, key, entry)) for key, entry in entries.items()]
    assert until(lambda: all(postgres.listeners(each) == 1 for each in entries))
    key, entry = next(iter(entries.items()))
    with Stopwatch() as watch:
        assert postgres.end_listeners(key)
        for wait in waits:
            with pytest.raises(StoreUnavailable):
                wait.result(LONG)
    assert watch.seconds < SOON
    assert until(lambda: not postgres.listeners(key))
    again = timed(_wait(store, key, entry))
    assert until(lambda: postgres.listeners(key) == 1)
    store.invalidate(key, entry.version)
    assert again.result(LONG)[0] < SOON


@pytest.mark.long
def test_waits_at_a_frozen_server_end_in_time(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither for the answer to the end of another wait, nor for another connection, does one wait a second time."""
    with private(POSTGRESQL, tmp_path_factory.mktemp("frozen")) as server:
        store, new = postgres.open(server.url, timeout=2), postgres.open(server.url, timeout=2)
        assert until(lambda: answers(store))
        entries = {key: put(store, key) for key in [fresh() for _ in range(3)]}
        waits = [timed(_wait(store, *each, 12.0 + number / 10)) for number, each in enumerate(entries.items())]
        assert until(lambda: all(_listeners(server, each) for each in entries))
        server.pause()
        try:
            assert max(wait.result(LONG)[0] for wait in waits) < 13.2
            key, entry = next(iter(entries.items()))
            first = timed(lambda: _refused(_wait(new, key, entry)))
            time.sleep(0.5)
            with Stopwatch() as watch:
                _refused(_wait(new, key, entry))
            assert watch.seconds < 3
            first.result(LONG)
        finally:
            server.resume()


def _listeners(server: Server, key: str) -> int:
    with contextlib.ExitStack() as stack:
        return Postgres(server, stack, blocking=True).listeners(key)


def _refused(wait: Callable[[], object]) -> None:
    with pytest.raises(StoreUnavailable):
        wait()


def test_who_finds_the_connection_dead_tells_the_one_that_reads(postgres: Postgres, postgresql_server: Server) -> None:
    """The only waiter until now ends with the next one, whose look gets no answer."""
    with FaultProxy(postgresql_server.host, postgresql_server.port) as proxy:
        url = postgresql_server.url.replace(f":{postgresql_server.port}", f":{proxy.port}")
        store, other = postgres.open(url, timeout=3), postgres.open()
        entries = {key: put(other, key) for key in (fresh(), fresh())}
        (key, entry), second = entries.items()
        first = timed(_wait(store, key, entry))
        assert until(lambda: postgres.listeners(key) == 1)
        proxy.decide = lambda _: Passage("drop request")
        _refused(_wait(store, *second))
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            first.result(LONG)
        assert watch.seconds < SOON


def test_behind_pgbouncer_a_lock_polls(postgres: Postgres, pgbouncer: str) -> None:
    """A wait is refused at once and leaves nothing in the pooled session, and a lock waits all the same."""
    store, key = postgres.open(pgbouncer, timeout=20), fresh()
    entry = put(store, key)
    for _ in range(2):
        unsent(lambda: store.wait_while(key, entry.version, LONG), "PgBouncer")
    assert postgres.listeners(key) == 0
    # What a waiter without a pooler hears of, although the release comes through one.
    direct = postgres.open(timeout=20)
    wait = timed(_wait(direct, key, entry))
    assert until(lambda: postgres.listeners(key) == 1)
    store.invalidate(key, entry.version)
    assert wait.result(LONG)[0] < SOON
    with SQLStore(pgbouncer, timeout=20) as pooled, Lock(pooled, key), Stopwatch() as watch:
        with SQLStore(pgbouncer, timeout=20) as another:
            assert Lock(another, key).acquire(timeout=0.2) is None
        assert watch.seconds < SOON


def test_a_closed_store_leaves_no_session(postgres: Postgres) -> None:
    """Neither with a wait under way when it is closed, nor with one that is begun afterwards."""
    store, other, key = postgres.open(timeout=20), postgres.open(), fresh()
    entry = put(other, key)
    wait = timed(_wait(store, key, entry))
    assert until(lambda: postgres.listeners(key) == 1)
    cast("Any", store).close()
    other.invalidate(key, entry.version)
    assert wait.result(LONG)[0] < SOON
    assert until(lambda: not postgres.sessions())


def test_an_engine_of_the_user_lends_one_connection(postgres: Postgres) -> None:
    """Waiters of a store on an engine are notified as well, and its pool of one is free for its owner."""
    make: Any = create_engine if postgres.blocking else create_async_engine
    engine = make(postgres.url, pool_size=1, max_overflow=0, pool_timeout=50)
    store, key = postgres.open(engine, timeout=20), fresh()
    entry = put(store, key)
    wait = timed(_wait(store, key, entry))
    assert until(lambda: postgres.listeners(key) == 1)
    if postgres.blocking:
        with engine.connect() as mine:
            assert mine.execute(text("SELECT 1")).scalar() == 1
    store.invalidate(key, entry.version)
    assert wait.result(LONG)[0] < SOON
    engine.dispose() if postgres.blocking else on_loop(engine.dispose())


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
def test_a_session_that_could_not_have_the_lock_stops_listening(postgres: Postgres) -> None:
    """While somebody writes a key, its lock can't be had: the wait ends, and leaves nothing in the session."""
    name = fresh().encode()
    with psycopg.connect(postgres.server.url, autocommit=True) as writer, psycopg.connect(postgres.server.url) as ours:
        writer.execute(f"SELECT pg_advisory_lock({place_of(name)})")
        listener, wait = Listener(ours), Wait(name, 1)

        def answered(done: Callable[[], object]) -> bool:
            listener.read()
            return bool(done())

        assert listener.begin(wait)
        listener.look(wait, shares=True)
        assert until(lambda: answered(lambda: wait.there is not None))
        assert not wait.there
        listener.end(wait)
        assert until(lambda: answered(lambda: not listener._asked))
        ours.pgconn.nonblocking = 0
        assert ours.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
def test_a_signal_handler_may_wait(postgres: Postgres) -> None:
    """It is refused at once, and so its lock polls, if it has interrupted a wait, which goes on."""
    store, other = postgres.open(timeout=LONG), postgres.open()
    entries = {key: put(other, key) for key in (fresh(), fresh())}
    (key, entry), second = entries.items()
    tooks = list[float]()

    def handle(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        with Stopwatch() as watch:
            _refused(_wait(store, *second))
        tooks.append(watch.seconds)
        other.invalidate(key, entry.version)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with Stopwatch() as watch:
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)  # again, should it come just as the wait begins
            store.wait_while(key, entry.version, LONG)
        assert watch.seconds < SOON
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [took < SOON for took in tooks] == [True]


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
@in_a_loop
async def test_another_socket_may_have_the_number_of_one_that_was_lost(postgres: Postgres) -> None:
    """Libpq closes it as it finds it dead between queries; the loop then hears nothing of ours under that number."""
    store, key = AsyncSQLStore(postgres.server.url, timeout=20), fresh()
    entry = present(await store.put_if_version(key, b"v", ABSENT, 60))
    loop, heard, (mine, other) = asyncio.get_running_loop(), asyncio.Event(), socket.socketpair()
    wait = asyncio.ensure_future(store.wait_while(key, entry.version, LONG))
    assert await asyncio.to_thread(until, lambda: postgres.listeners(key))
    listener = present(store._waits.here()._listener)
    assert await asyncio.to_thread(until, lambda: all(each.there for each in listener.users))
    assert postgres.end_listeners(key)
    while not listener.problem:  # noqa: ASYNC110 - so that nobody else has run since it was found dead
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(listener.descriptor)
    same = os.dup2(mine.fileno(), listener.descriptor)
    loop.add_reader(same, heard.set)
    with pytest.raises(StoreUnavailable):
        await wait
    other.send(b"x")
    await asyncio.wait_for(heard.wait(), SOON)
    loop.remove_reader(same)
    for each in (same, mine.detach(), other.detach()):
        os.close(each)
    await store.aclose()


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
def test_a_forked_child_waits_on_a_connection_of_its_own(postgres: Postgres) -> None:
    """It does not touch that of its parent, on which another thread waits at the fork."""
    store, key = postgres.open(timeout=20), fresh()
    entry = put(store, key)
    wait = timed(_wait(store, key, entry))
    assert until(lambda: postgres.listeners(key) == 1)
    child = multiprocessing.get_context("fork").Process(target=_wait(store, key, entry))
    child.start()
    assert until(lambda: postgres.listeners(key) == 2)
    assert not wait.done()
    store.invalidate(key, entry.version)
    assert wait.result(LONG)[0] < SOON
    child.join(LONG)
    assert child.exitcode == 0


@pytest.mark.long
def test_a_server_without_room_for_another_lock_is_asked_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A release needs an advisory lock to learn whether anybody waits; that it can't have one now is no refusal."""
    room = ("-c", "max_locks_per_transaction=10", "-c", "max_connections=10")
    with (
        private(POSTGRESQL, tmp_path_factory.mktemp("full"), *room) as server,
        SQLStore(server.url, timeout=20) as store,
    ):
        entry = put(store, "key")
        with psycopg.connect(server.url, autocommit=True) as other:
            other.execute("SELECT 1 FROM caslock")
            with contextlib.suppress(psycopg.errors.OutOfMemory):
                for number in range(10_000):
                    other.execute(f"SELECT pg_advisory_lock({number})")
            unsent(lambda: store.invalidate("key", entry.version), "shared memory")
        assert until(lambda: _is_gone(store, entry))


def _is_gone(store: Store, entry: Entry) -> bool:
    with contextlib.suppress(StoreUnavailable):
        return store.invalidate("key", entry.version) is None
    return False
