"""The fault proxy loses, delays and doubles what was planned, nothing else, and no stream gets out of step.

What it refuses, or cuts in the middle of a reply, is in `test_server_contract_bites.py`: no store passes there without.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from caslock import ABSENT, Store, StoreUnavailable, connect
from caslock.testing.proxy import FAULTS, PASS, FaultProxy, Kind, Passage, chance
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import answers
from tests.support.locations import fresh, present, until
from tests.support.servers import Server

URLS = {
    "redis": "redis://127.0.0.1:{}/0?socket_timeout={}&socket_connect_timeout=20",
    "memcached": "memcached://127.0.0.1:{}?timeout={}",
}


class Proxied:
    """A server behind a proxy, a store that goes through it, and one that does not."""

    def __init__(self, server: Server, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.store, self.hasty = (connect(URLS[server.kind.name].format(proxy.port, seconds)) for seconds in (20, 2))
        self.direct: Store = connect(server.url)

    def once(self, passage: Passage, when: Callable[[bytes], bool] = lambda _: True) -> None:
        """Let this happen to the next request that `when` says, and nothing to the others."""
        left = [passage]

        def decide(request: bytes) -> Passage:
            return left.pop() if left and when(request) else PASS

        self.proxy.decide = decide

    def put(self, key: str, version: int = ABSENT, value: bytes = b"mine") -> None:
        assert present(self.store.put_if_version(key, value, version, 20)).value == value


@pytest.fixture(params=["redis", "memcached"])
def proxied(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    """Return each kind of server behind a proxy; the connection is open and has said who it is."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    with FaultProxy(server.host, server.port) as proxy:
        proxied = Proxied(server, proxy)
        proxied.direct.get(fresh())  # waits for a memcached that has only just started
        proxied.put(fresh())
        yield proxied
        for store in (proxied.store, proxied.hasty, proxied.direct):
            store.close()  # type: ignore[attr-defined] # both stores have it


def unanswered(proxied: Proxied, key: str, passage: Passage) -> None:
    assert until(lambda: answers(proxied.hasty))  # it is connected
    proxied.once(passage)
    with pytest.raises(StoreUnavailable):
        proxied.hasty.put_if_version(key, b"mine", ABSENT, 20)


@pytest.mark.parametrize("kind", ["drop request", "cut before", "drop reply", "cut after"])
def test_a_lost_request_is_not_applied_and_one_whose_reply_is_lost_is(proxied: Proxied, kind: Kind) -> None:
    """The caller gets no answer either way, and the next request is served."""
    key = fresh()
    unanswered(proxied, key, Passage(kind))
    if kind in ("drop reply", "cut after"):
        assert until(lambda: proxied.direct.get(key) is not None)
        assert (entry := present(proxied.store.get(key))).value == b"mine"
        assert proxied.direct.get(key) == entry
    else:
        assert proxied.direct.get(key) is None
        proxied.put(key)


def test_a_held_request_arrives_after_its_sender_has_gone(proxied: Proxied) -> None:
    """A request that is held for longer than its sender waits is applied all the same, later, and that is told."""
    key, arrived = fresh(), list[Kind]()
    proxied.proxy.arrived = lambda _request, passage: arrived.append(passage.kind)
    unanswered(proxied, key, Passage("hold request", 3))
    assert proxied.direct.get(key) is None or proxied.proxy.settle(0)
    assert until(lambda: proxied.direct.get(key) is not None)
    assert until(lambda: arrived == ["hold request"])


def test_a_held_reply_comes_late(proxied: Proxied) -> None:
    """A reply that is held for less than the caller waits is the answer, so much later."""
    key = fresh()
    proxied.once(Passage("hold reply", 0.15))
    with Stopwatch() as watch:
        proxied.put(key)
    assert watch.elapsed >= 0.15
    assert watch.seconds < 1.5


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_duplicate_is_applied_and_its_reply_is_nobodys(proxied: Proxied, seconds: float) -> None:
    """A removal that is doubled removes what is there, and its second copy, at once or later, garbles no reply."""
    key = fresh()
    proxied.put(key)
    entry = present(proxied.direct.get(key))
    proxied.once(Passage("duplicate", seconds))
    assert not any(proxied.store.invalidate(key, entry.version) or ())
    for _ in range(20):
        proxied.put(other := fresh())
        assert present(proxied.store.get(other)).value == b"mine"
    assert proxied.proxy.settle(50)


def test_a_duplicate_does_land(proxied: Proxied) -> None:
    """A put that is doubled, and removed in between, is there again when its copy arrives: the server applies both."""
    key, version = "", ABSENT
    for seconds in (0.3, 3, 30):  # so that it is removed before the copy arrives
        key = fresh()
        proxied.once(Passage("duplicate", seconds))
        proxied.put(key)
        entry = present(proxied.direct.get(key))
        version = entry.version
        proxied.direct.invalidate(key, version)
        if proxied.direct.get(key) is None and not proxied.proxy.settle(0):
            break
    assert until(lambda: proxied.direct.get(key) is not None)
    assert present(proxied.direct.get(key)).version > version


def test_a_duplicate_introduces_itself_to_redis(new_redis: Callable[..., Server]) -> None:
    """The copy goes to the database, and by the password, of the connection that it copies."""
    server = new_redis("--requirepass", "secret")
    key = fresh()
    with FaultProxy(server.host, server.port) as proxy:
        client = redis.Redis(port=proxy.port, password="secret", db=3, socket_timeout=20)  # noqa: S106 - of a test
        client.ping()
        proxy.decide = lambda _: Passage("duplicate")
        client.incr(key)
        assert proxy.settle(50)
        proxy.decide = lambda _: PASS
        assert client.get(key) == b"2"
        client.close()


def test_dice_fall_as_the_seed_says() -> None:
    """The same seed decides the same; each fault comes about as often as it should; nothing is held for too long."""
    first, second = ([decide(b"") for _ in range(20_000)] for decide in (chance(7, 0.5), chance(7, 0.5)))
    assert first == second
    for kind, odds in FAULTS.items():
        times = sum(passage.kind == kind for passage in first)
        assert 0.5 * odds < times / len(first) < 2 * odds, kind
    assert max(passage.seconds for passage in first) <= 0.5


def test_only_the_loopback_address_is_listened_on() -> None:
    """Nobody else comes in through a fault proxy."""
    with FaultProxy("example.invalid", 1, listen="::1") as proxy:
        assert proxy.port
    for address in ("0.0.0.0", "::", "192.0.2.1"):  # noqa: S104 - that is the point
        with pytest.raises(ValueError, match="loopback"):
            FaultProxy("127.0.0.1", 1, listen=address)


def test_a_server_that_is_not_there_is_a_closed_connection() -> None:
    """Where nobody listens behind it, the proxy hangs up."""
    with FaultProxy("127.0.0.1", 1) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 5) as client:
        assert client.recv(1) == b""


def test_nothing_is_left_of_a_proxy(redis_server: Server) -> None:
    """At its end all its connections are closed, even those with something held, and its port is free."""
    with FaultProxy(redis_server.host, redis_server.port, lambda _: Passage("hold request", 60)) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), 5)
        client.sendall(b"PING\r\n")
        while not proxy.counts["hold request"]:
            time.sleep(0.01)
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), 1)
