"""`HazelcastStore` and `AsyncHazelcastStore` against real members: what the contract does not ask."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hazelcast.client import HazelcastClient
from hazelcast.config import IntType

import caslock.stores.hazelcast.session
from caslock import StoreUnavailable
from caslock.store import ABSENT
from caslock.stores.hazelcast import AsyncHazelcastStore, HazelcastStore
from caslock.testing.proxy import PASS, FaultProxy, Passage, refused_port, unreachable_port
from caslock.testing.steps import again, timed
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import (
    PING,
    QUOTED,
    Opened,
    Opening,
    apis,
    expect_refused,
    expect_requests,
    put,
    refusal,
    store_on,
    unsent,
)
from tests.support.locations import fresh, until
from tests.support.servers import HOST, Member, Server, hazelcast, private

api = apis(HazelcastStore, AsyncHazelcastStore)
store = store_on("hazelcast_server")

Map = Any  # of a client without types


@pytest.fixture
def locks(hazelcast_server: Server) -> Iterator[Any]:
    """Give the map as Hazelcast's own blocking client sees it."""
    client = HazelcastClient(
        cluster_members=[f"{hazelcast_server.host}:{hazelcast_server.port}"], default_int_type=IntType.LONG
    )
    yield client.get_map("locks").blocking()
    client.shutdown()


def test_an_entry_is_a_text_that_a_person_can_read_and_nothing_stays(store: Opened, locks: Map) -> None:
    """A new entry has a ttl of its own; one that was written over has a lease; a removal leaves neither for long."""
    key = fresh()
    first = put(store, key, b'{"caslock":1}', ttl=7.5)
    assert locks.get(key) == f'caslock {first.version} ttl\n{{"caslock":1}}'
    assert locks.get_entry_view(key).ttl == 8000  # of seconds; a second more than was asked for, cut
    second = put(store, key, b"2", first.version, ttl=5)
    assert locks.get(key) == f"caslock {second.version} lease\n2"
    assert locks.get(second.version) == key
    assert locks.get_entry_view(key).ttl == caslock.stores.hazelcast.session.FOREVER
    assert store.invalidate(key, second.version) is None
    assert until(lambda: not any(key in name_and_value for name_and_value in locks.entry_set()))


def test_an_interrupt_as_a_verb_wakes_stays_what_it_is(
    hazelcast_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No verb waits for a `threading.Condition` in the thread of its caller: an interrupt as that wakes is masked."""
    here, wait = threading.current_thread(), threading.Condition.wait

    def of_others(condition: threading.Condition, timeout: float | None = None) -> bool:
        assert threading.current_thread() is not here
        return wait(condition, timeout)

    with HazelcastStore(hazelcast_server.url, timeout=20) as store:
        key = fresh()
        entry = put(store, key)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Condition, "wait", of_others)
            assert store.get(key) == entry
            store.wait_while(key, entry.version, 0.1)


def test_no_lease_ends_early(hazelcast_server: Server) -> None:
    """Hazelcast cuts the end of an entry to a second: whenever within one it was written, it lasts for its ttl."""
    with HazelcastStore(hazelcast_server.url) as store, Stopwatch() as watch:
        leases, began = list[tuple[str, float, float]](), time.monotonic()
        while leases or time.monotonic() < began + 1:
            if time.monotonic() < began + 1:
                for over in (False, True):
                    key = fresh()
                    version = put(store, key).version if over else ABSENT
                    ends = time.monotonic() + 0.3
                    put(store, key, b"2", version, 0.3)
                    leases.append((key, ends, time.monotonic() + 0.3))
            for key, ends, over_by in list(leases):
                asked = time.monotonic()
                there = store.get(key)
                if there is None:
                    assert time.monotonic() >= ends
                    leases.remove((key, ends, over_by))
                else:
                    assert asked < over_by + store.traits.expiry_lag + watch.late


def test_whoever_finds_a_lease_over_removes_the_entry(
    api: Opening, store: Opened, hazelcast_server: Server, locks: Map
) -> None:
    """So no write that was sent before can bring it back, not even its own; a new entry may take its place at once."""
    for finder in ("another", "whoever puts next", "its own"):
        key = fresh()
        stale = put(store, key, b"2", put(store, key).version, ttl=0.1)
        text = locks.get(key)
        assert until(lambda version=stale.version: not locks.contains_key(version))  # type: ignore[misc]
        assert locks.get(key) == text  # nobody has looked
        if finder == "its own":
            assert store.put_if_version(key, b"late", stale.version, 30) is None
        another = api.open(hazelcast_server.url)
        if finder != "whoever puts next":
            assert another.get(key) is None
            assert not locks.replace_if_same(key, text, text)
        later = put(another, key, b"3")
        assert store.put_if_version(key, b"late", stale.version, 30) == later
        assert store.invalidate(key, stale.version) == later


def test_what_another_program_has_written_is_never_overwritten(store: Opened, locks: Map) -> None:
    """A value of any kind that is not caslock's is an error, and stays."""
    for value in (1, b"bytes", "text", "caslock 0 ttl\n", "caslock 1 forever\n", ["caslock 1 ttl\n"]):
        key = fresh()
        locks.set(key, value)
        expect_refused(store, key, "that caslock has not written", version=1)
        assert locks.get(key) == value
        locks.delete(key)


@pytest.mark.long
def test_a_map_that_ends_entries_by_itself_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A time-to-live or a max-idle of the map would end leases early; how it keeps values makes no difference."""
    elements = """
        <map name="ttl"><time-to-live-seconds>3600</time-to-live-seconds></map>
        <map name="idle"><max-idle-seconds>3600</max-idle-seconds></map>
        <map name="objects"><in-memory-format>OBJECT</in-memory-format></map>
    """
    with (
        private(hazelcast(Member(elements=elements)), tmp_path_factory.mktemp("hazelcast")) as server,
        HazelcastStore(server.url.replace("/locks", "/ttl"), timeout=20) as ttl,
        HazelcastStore(server.url.replace("/locks", "/idle"), timeout=20) as idle,
        HazelcastStore(server.url.replace("/locks", "/objects"), timeout=20) as objects,
    ):
        for store in (ttl, idle, ttl):
            refusal(partial(store.get, "k"), "time-to-live-seconds")
        entry = put(objects, "k", b"\xff", put(objects, "k", bytes(range(256))).version)
        assert objects.get("k") == entry
        assert objects.invalidate("k", entry.version) is None


def test_another_cluster_or_password_is_a_refusal(api: Opening, hazelcast_server: Server) -> None:
    """The error says what to check, and shows no password."""
    where = f"{hazelcast_server.host}:{hazelcast_server.port}"
    for url in (f"hazelcast://{where}/locks?cluster=other", f"hazelcast://user:{QUOTED}@{where}/locks"):
        store = api.open(url)
        refusal(lambda: store.get("k"), "check the name of the cluster")  # noqa: B023 - it is called at once


@pytest.mark.long
def test_a_member_that_is_away_costs_a_part_of_the_timeout(api: Opening, hazelcast_server: Server) -> None:
    """The others are asked in time, whether it refuses connections, does not accept them, or says nothing."""
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(FaultProxy(HOST, hazelcast_server.port, lambda _: Passage("drop request")))
        away = [stack.enter_context(refused_port()), silent.port]
        with contextlib.suppress(OSError):  # no such port can be made here
            away.append(stack.enter_context(unreachable_port()))
        several = [f"hazelcast://{HOST}:{port},{HOST}:{hazelcast_server.port}/locks" for port in away]
        puts = [timed(partial(put, api.open(each, timeout=24), fresh())) for each in several]
        for each in puts:
            each.result(50)
        for port in away:
            store = api.open(f"hazelcast://{HOST}:{port}/locks", timeout=0.3)
            unsent(partial(store.put_if_version, "k", b"v", ABSENT, 30), "unreachable")
        assert until(lambda: not silent.connections)


def test_a_wait_ends_when_its_connection_is_lost(hazelcast_server: Server) -> None:
    """No listener would tell it any more; whoever waits looks again."""
    with (
        FaultProxy(hazelcast_server.host, hazelcast_server.port) as proxy,
        HazelcastStore(f"hazelcast://{HOST}:{proxy.port}/locks", timeout=20) as store,
    ):
        key, seen = fresh(), list[bytes]()
        version = put(store, key).version

        def listen(request: bytes) -> Passage:
            if key.encode() in request:
                seen.append(request)
            return PASS

        proxy.decide = listen
        wait = timed(partial(store.wait_while, key, version, 60))
        assert until(lambda: len(seen) == 2)  # it has begun to listen, and looks
        assert store.get(key)  # answers about one key come in order: it has looked
        with proxy.refusing():
            assert wait.result(50)[0] < 10


def test_a_client_that_does_not_shut_down_in_time_leaves_no_connection(
    hazelcast_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shutdown` may take longer than a request on a busy machine; the connections are closed all the same."""

    async def hang(_client: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("hazelcast.asyncio.HazelcastClient.shutdown", hang)
    with FaultProxy(hazelcast_server.host, hazelcast_server.port) as proxy:
        with HazelcastStore(f"hazelcast://{HOST}:{proxy.port}/locks", timeout=2) as store:
            again(lambda: store.get("key"))
            assert proxy.connections
        assert until(lambda: proxy.connections == 0)


@pytest.mark.parametrize("seconds", [None, 0.005, 0.02])
def test_a_loop_that_ends_as_a_connection_opens_or_closes_leaves_none(
    seconds: float | None, hazelcast_server: Server
) -> None:
    """What is left of it is cancelled then, perhaps before its first step."""

    async def main(url: str) -> None:
        store = AsyncHazelcastStore(url, timeout=20)
        if seconds is None:
            await store.get("key")
            closing = asyncio.create_task(store.aclose())
            await asyncio.sleep(0)
            assert not closing.done()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await store.get("key")

    gc.disable()  # it would close them
    try:
        with FaultProxy(hazelcast_server.host, hazelcast_server.port) as proxy:
            asyncio.run(main(f"hazelcast://{HOST}:{proxy.port}/locks"))
            assert until(lambda: proxy.connections == 0)
    finally:
        gc.enable()


def test_a_client_that_swallows_its_cancellation_ends_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so while it connects, and may then wait without end."""
    swallowed = list[bool]()

    async def start(_client: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        swallowed.append(True)
        await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(StoreUnavailable):
            await AsyncHazelcastStore(f"hazelcast://{HOST}:1/locks", timeout=0.1).get("key")

    monkeypatch.setattr("hazelcast.asyncio.HazelcastClient._start", start)
    asyncio.run(main())
    assert swallowed


def test_to_make_the_map_leaves_no_future_behind(hazelcast_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's `get_map`, if it fails or is cancelled, leaves one with an error, of which asyncio complains."""
    monkeypatch.setattr("hazelcast.internal.asyncio_proxy.manager.ProxyManager.get_or_create", None)
    with HazelcastStore(hazelcast_server.url, timeout=20) as store:
        assert store.get(fresh()) is None


def test_listeners_do_not_stay(hazelcast_server: Server) -> None:
    """After a wait, whether it was in vain or not, the member tells nothing more of the key."""
    with (
        FaultProxy(hazelcast_server.host, hazelcast_server.port) as proxy,
        HazelcastStore(f"hazelcast://{HOST}:{proxy.port}/locks", timeout=20) as store,
    ):
        key = fresh()
        version = put(store, key).version
        for _ in range(3):  # to begin to listen, to look, and to end
            wait = partial(store.wait_while, key, version, 0.01)
            expect_requests(3, proxy, wait, lambda request: len(request) > PING)


def test_a_thread_that_cannot_start_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop takes descriptors, of which a process may have none left."""
    monkeypatch.setattr(asyncio.events, "new_event_loop", Mock(side_effect=OSError("too many open files")))
    with HazelcastStore("hazelcast://127.0.0.1:9") as store:
        unsent(lambda: store.get("k"), "too many open files")


def test_a_store_that_is_closed_or_forgotten_ends_its_thread(hazelcast_server: Server) -> None:
    """It closes its connection, too; that of a later request does not last."""
    with FaultProxy(hazelcast_server.host, hazelcast_server.port) as proxy:
        for forgotten in (False, True):
            store = HazelcastStore(f"hazelcast://{HOST}:{proxy.port}/locks", timeout=20)
            store.get(fresh())
            assert _threads()
            assert proxy.connections == 1
            if forgotten:
                del store
                gc.collect()
            else:
                store.close()
                store.get(fresh())
            assert until(lambda: not proxy.connections and not _threads())


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "caslock-hazelcast"]
