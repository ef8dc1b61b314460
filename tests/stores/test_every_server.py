"""What several stores are asked alike, against their real servers, and the contract does not ask."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, cast

import pytest

from caslock import AsyncStore, StoreUnavailable, connect, connect_async
from caslock.store import ABSENT, Entry
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import timed
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import PING, Opened, Opening, expect_requests, opening, put, refusal, unsent, until_put
from tests.support.locations import fresh, until
from tests.support.servers import HOST, Server, private


class Served(NamedTuple):
    """A server of one kind, and how to make stores of one API on it."""

    kind: str
    server: Server
    api: Opening

    def open(self, port: int | None = None, options: str = "") -> Opened:
        """Make a store, which goes through a proxy on this port if one is given."""
        return self.api.open(self.server.url.replace(f":{self.server.port}", f":{port or self.server.port}") + options)

    def proxied(self) -> FaultProxy:
        return FaultProxy(self.server.host, self.server.port)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """Give the shared server of the kind that the test names, with one API."""
    kind, name = request.param.split("-")
    with connecting(name) as api:
        yield Served(kind, request.getfixturevalue(f"{kind}_server"), api)


def connecting(name: str) -> contextlib.AbstractContextManager[Opening]:
    return opening(connect if name == "blocking" else connect_async, blocking=name == "blocking")


def with_each(*kinds: str, apis: tuple[str, ...] = ("blocking", "asyncio")) -> pytest.MarkDecorator:
    """Run a test with each of these servers, by each API that it has a store for."""
    pairs = [(kind, api) for kind in kinds for api in apis]
    served = [f"{kind}-{api}" for kind, api in pairs if api == "blocking" or kind not in ("memcached", "zookeeper")]
    return pytest.mark.parametrize("served", served, indirect=True)


COUNTS: dict[str, tuple[int, Callable[[bytes], bool]]] = {
    "dynamodb": (1, lambda request: request.startswith(b"POST ")),
    "hazelcast": (2, lambda request: len(request) > PING),
    "mysql": (1, lambda _: True),
    "postgresql": (1, lambda request: not request.startswith(b"P") or b"E\0\0\0\t" in request),  # else it prepares
    "zookeeper": (1, lambda _: True),
}
"""How many requests it takes to write over an entry, and what a request is."""


@with_each(*COUNTS)
def test_an_uncontended_cycle_is_two_requests(served: Served) -> None:
    """To acquire is one request, and to release is one, also where the key was used before."""
    with served.proxied() as proxy:
        store, key = served.open(proxy.port), fresh()
        put(store, fresh())  # which may have to make the place of all keys
        renewal, counts = COUNTS[served.kind]
        for _ in range(2):
            version = expect_requests(1, proxy, lambda: put(store, key), counts).version
            renew = partial(put, store, key, b"2", version)
            version = expect_requests(renewal, proxy, renew, counts).version
            assert expect_requests(1, proxy, partial(store.invalidate, key, version), counts) is None


@with_each("etcd", "memcached", "nats")
def test_a_removal_is_one_although_the_key_is_taken_at_once(served: Served) -> None:
    """Whoever removes its own entry is told so, even if another has put one before the look that follows."""
    key = fresh()
    removed = list[object]()

    def contend(mine: Opened) -> None:
        while len(removed) < 200:
            value = fresh().encode()
            entry = mine.put_if_version(key, value, ABSENT, 30)
            if entry is not None and entry.value == value:
                removed.append(mine.invalidate(key, entry.version))

    stores = [served.open() for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(contend, stores))
    assert set(removed) == {None}


@with_each("etcd", "nats")
def test_a_packet_that_comes_twice_is_applied_once(served: Served) -> None:
    """Whichever copy is first, the put has succeeded, and its version is the one that is there."""
    with served.proxied() as proxy:
        through = served.open(proxy.port)
        through.get(fresh())
        proxy.decide = lambda _: Passage("duplicate")
        for _ in range(20):
            key = fresh()
            entry = put(through, key)
            assert proxy.settle(50)
            assert through.get(key) == entry
            assert through.invalidate(key, entry.version) is None
            assert proxy.settle(50)
            assert through.get(key) is None


@with_each("etcd", "nats")
def test_tls_to_a_server_without_it_is_a_refusal(served: Served) -> None:
    """The error says to leave TLS out."""
    get = partial(served.api.open(served.server.url.replace("://", "s://")).get, "k")
    if served.kind == "etcd":
        unsent(get, r"Does it speak TLS\?.*etcd://")
    else:
        refusal(get, "does not speak TLS. Without TLS, begin the URL with nats://")


@with_each("etcd", "nats")
def test_more_waiters_than_connections_are_told_to_sleep(served: Served) -> None:
    """32 of a process wait at a time: the next one is told at once; the others end with the change."""
    store = served.open()
    key = fresh()
    entry = put(store, key)

    def wait() -> Entry | None:
        while True:
            with contextlib.suppress(StoreUnavailable):  # `refused` had the last place for a moment
                return store.wait_while(key, entry.version, 20)

    def refused() -> bool:
        try:
            store.wait_while(key, entry.version, 0.01)
        except StoreUnavailable as error:
            return not error.sent and "another waiter" in str(error)
        return False

    waits = [timed(wait) for _ in range(32)]
    assert until(refused)
    store.invalidate(key, entry.version)
    assert max(wait.result(50)[0] for wait in waits) < 15
    store.wait_while(key, entry.version, 0.1)


@with_each("dynamodb", "etcd", "hazelcast", "mysql", "nats", "postgresql", apis=("asyncio",))
def test_a_store_for_asyncio_serves_every_loop(served: Served) -> None:
    """Each loop, one after the other, has connections of its own, which are closed before the loop ends."""
    with served.proxied() as proxy:
        url = served.server.url.replace(f":{served.server.port}", f":{proxy.port}")
        store, key = cast("AsyncStore", connect_async(url)), fresh()

        async def write() -> Entry | None:
            return await store.put_if_version(key, b"v", ABSENT, 30)

        entries = set[Entry | None]()
        for number in range(1, 4):
            entries.add(asyncio.run(write()))
            assert proxy.accepted >= number
            assert until(lambda: not proxy.connections)
        assert len(entries) == 1


@pytest.mark.parametrize("served", ["dynamodb-blocking", "dynamodb-asyncio", "hazelcast-blocking"], indirect=True)
def test_a_store_is_closed_while_others_use_it(served: Served) -> None:
    """Requests that are under way get their answers, and neither they nor later ones leave a connection open."""
    with served.proxied() as proxy:
        store, key, held = served.open(proxy.port), fresh(), list[bytes]()
        entry = put(store, key)

        def hold(request: bytes) -> Passage:
            held.append(request)
            return Passage("hold reply", 0.3)

        proxy.decide = hold
        with ThreadPoolExecutor(4) as threads:
            gets = [threads.submit(store.get, key) for _ in range(4)]
            assert until(lambda: held)
            store.close()
            assert {get.result(50) for get in gets} == {entry}
        proxy.decide = lambda _: PASS
        store.close()
        assert until(lambda: not proxy.connections)
        if served.api.blocking:  # a loop has a connection until it ends
            assert store.get(key) == entry
            assert until(lambda: not proxy.connections)


@pytest.mark.long
@with_each("etcd", "mysql", "nats", "postgresql")
def test_a_frozen_server_hangs_nobody(served: Served, tmp_path_factory: pytest.TempPathFactory) -> None:
    """While the server is stopped, verbs and waits on open and on new connections end in time; then all go on."""
    with (
        contextlib.nullcontext(served.server)  # which nobody else uses now
        if served.server.body
        else private(served.server.kind, tmp_path_factory.mktemp("frozen")) as server
    ):
        here = served._replace(server=server)
        patience = "?timeout=1" if "sql" in served.kind else "?timeout=0.5"  # to connect takes several requests
        store, new = here.open(options=patience), here.open(options=patience)
        key = fresh()
        entry = until_put(store, key)
        server.pause()
        try:
            for each, sent in ((store, True), (new, False), (store, False)):
                with Stopwatch() as watch, pytest.raises(StoreUnavailable) as caught:
                    each.get(key)
                assert watch.seconds <= each.traits.request_timeout
                assert caught.value.sent is sent
            if hasattr(new, "wait_while"):
                with Stopwatch() as watch, pytest.raises(StoreUnavailable):
                    new.wait_while(key, entry.version, 20)
                assert watch.seconds <= new.traits.request_timeout
        finally:
            server.resume()
        assert until_put(store, key) == until_put(new, key) == entry


GREETINGS = {
    "etcd": b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"etcdserver": "3.4.23"}',
    "nats": b'INFO {"server_id": "N", "version": "2.11.0", "jetstream": true}\r\n',
}


@pytest.mark.long
@pytest.mark.parametrize("greets", [True, False])
@pytest.mark.parametrize("kind", GREETINGS)
@pytest.mark.parametrize("name", ["blocking", "asyncio"])
def test_an_answer_that_trickles_is_given_up_in_time(kind: str, name: str, *, greets: bool) -> None:
    """A byte every tenth of a second keeps no verb waiting beyond its timeout, also after a good greeting."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=trickle, args=(listener.accept()[0],), daemon=True).start()

    def trickle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if greets:
                if kind == "etcd":
                    connection.recv(9999)
                connection.sendall(GREETINGS[kind])
            if (greets or kind == "etcd") and connection.recv(9999):
                asked.set()
            slow = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" if kind == "etcd" else b'INFO {"server_id": "'
            for byte in slow + b" " * 1000:
                connection.sendall(bytes([byte]))
                time.sleep(0.1)

    with socket.create_server((HOST, 0)) as listener, connecting(name) as api:
        asked = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        store = api.open(f"{kind}://{HOST}:{listener.getsockname()[1]}?timeout=0.5")
        with Stopwatch() as watch, pytest.raises(StoreUnavailable) as caught:
            store.put_if_version("k", b"v", ABSENT, 1)
        assert watch.seconds <= store.traits.request_timeout
        late = not (caught.value.sent or asked.is_set())  # the greeting may have been
        assert late or caught.value.sent is (greets and kind == "etcd")
        listener.close()
