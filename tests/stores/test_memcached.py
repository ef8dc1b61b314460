"""`MemcachedStore` against real memcached servers."""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient
from pymemcache.serde import pickle_serde

from caslock import Semaphore
from caslock.errors import StoreUnavailable
from caslock.store import ABSENT
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memcached import store as memcached
from caslock.stores.memcached.requests import name_of, parse
from caslock.stores.shared import connections
from caslock.testing.extremes import KEYS
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import again, at_once, in_a_thread
from caslock.testing.stopwatch import Stopwatch
from tests.conftest import NewServer, fill
from tests.stores.opening import expect_requests, put, refusal, unsent
from tests.support.locations import held, present, until
from tests.support.rewriting import RewritingProxy
from tests.support.servers import HOST, Server, absent, ringing

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    OpenClient: TypeAlias = Callable[..., Client]
    Late: TypeAlias = Callable[[Callable[[], object]], None]
    OpenStore: TypeAlias = Callable[..., MemcachedStore]


@pytest.fixture
def proxy(memcached_server: Server) -> Iterator[RewritingProxy]:
    """A proxy of the common server."""
    with contextlib.closing(RewritingProxy(memcached_server)) as proxy:
        yield proxy


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """Make pymemcache clients for servers and proxies."""
    with contextlib.ExitStack() as stack:

        def make(server: Server | RewritingProxy, **settings: object) -> Client:
            client = Client((server.host, server.port), **({"timeout": 20, "default_noreply": False} | settings))
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def open_store(open_client: OpenClient) -> Iterator[OpenStore]:
    """Make stores of a URL, of a client, or of a new client for a server or a proxy."""
    with contextlib.ExitStack() as stack:

        def make(where: str | Server | RewritingProxy | Client | PooledClient, **settings: object) -> MemcachedStore:
            if isinstance(where, str):
                store = MemcachedStore.from_url(f"{where}?timeout=60")  # the machine may be busy
            else:
                store = MemcachedStore(
                    open_client(where, **settings) if isinstance(where, Server | RewritingProxy) else where
                )
            stack.callback(store.close)
            return store

        yield make


@pytest.fixture
def store(memcached_server: Server, open_store: OpenStore) -> MemcachedStore:
    """A store on the common server."""
    return open_store(memcached_server.url)


@pytest.fixture
def through(proxy: RewritingProxy, open_store: OpenStore) -> MemcachedStore:
    """A store that goes through the proxy."""
    return open_store(proxy)


@pytest.fixture
def raw(memcached_server: Server, open_client: OpenClient) -> Client:
    """Any other program that uses the server."""
    return open_client(memcached_server)


# The verbs


def test_one_request_for_each_verb(
    memcached_server: Server, key: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb is one request, also for the loser."""
    monkeypatch.setattr("caslock.stores.memcached.store._SLOW", 60.0)  # however late the answers of this test are
    with FaultProxy(memcached_server.host, memcached_server.port) as proxy:
        store = open_store(f"memcached://{HOST}:{proxy.port}")
        store.get(key)
        assert proxy.requests <= 3 + 60  # a server that has just started is asked again until it is old enough
        entry = expect_requests(1, proxy, lambda: put(store, key))
        expect_requests(1, proxy, lambda: store.put_if_version(key, b"rival", ABSENT, 60))
        entry = expect_requests(1, proxy, lambda: put(store, key, b"x" * 4096, entry.version))
        expect_requests(1, proxy, lambda: store.get(key))
        expect_requests(1, proxy, lambda: store.put_if_version(key, b"stale", entry.version - 1, 60))
        assert expect_requests(1, proxy, lambda: store.invalidate(key, entry.version - 1)) == entry
        for _ in range(2):
            assert expect_requests(1, proxy, lambda: store.invalidate(key, entry.version)) is None


@pytest.mark.long
def test_an_entry_lives_its_ttl(store: MemcachedStore, key: str) -> None:
    """An entry lives at least its ttl, whatever the phase of the server's clock, and little more than it may."""
    put(store, key)
    alive: dict[str, tuple[float, float]] = {}
    versions = []
    started = time.monotonic()
    with Stopwatch() as watch:
        for number in range(40):
            while time.monotonic() < started + number / 20:
                time.sleep(0.001)
            before = time.monotonic()
            versions.append(put(store, f"{key}:{number}", ttl=1).version)
            alive[f"{key}:{number}"] = before, time.monotonic()
        while alive:
            for name, (before, after) in list(alive.items()):
                asked = time.monotonic()
                if store.get(name) is None:
                    assert time.monotonic() - before >= 1
                    del alive[name]
                else:
                    assert asked - after <= 1 + store.traits.expiry_lag + watch.late
            time.sleep(0.005)
    assert put(store, f"{key}:0").version > max(versions)


def test_what_the_server_is_sent_for_a_ttl(store: MemcachedStore, raw: Client, key: str) -> None:
    """Every ttl, from a microsecond to 30 days less 2 s, is rounded up plus 2 s: never a date, never for ever."""

    def told(name: str, ttl: float) -> int:
        put(store, name, ttl=ttl)
        return int(raw.raw_command(f"mg {name} t").removeprefix(b"HD t"))

    with pytest.raises(ValueError, match="seconds"):
        put(store, key, ttl=30 * 24 * 3600 - 1)
    for ttl in (1e-6, 0.5, 1, 1.5, 60, 30 * 24 * 3600 - 2):
        # The clock may tick between the question and the answer, but not three times.
        assert max(told(f"{key}:{ttl}:{again}", ttl) for again in range(3)) == math.ceil(ttl) + 2


def test_a_foreign_value_is_an_entry(store: MemcachedStore, raw: Client, key: str) -> None:
    """What another program wrote is an entry like any other, with its real version, and no other version touches it."""
    ours = entry = put(store, key)
    for value in (b"theirs", b"", os.urandom(300_000)):
        raw.set(key, value, flags=65535)
        seen = present(store.get(key))
        assert seen.value == value
        assert seen.version > entry.version
        entry = seen
        assert store.put_if_version(key, b"ours", ABSENT, 60) == entry
        assert store.put_if_version(key, b"ours", ours.version, 60) == entry
        assert store.invalidate(key, ours.version) == entry
    assert store.invalidate(key, entry.version) is None


# Keys


def test_names_on_the_server() -> None:
    """A name is 1 to 250 plain bytes, reads like its key, and a digested one can't be had by a plain key."""
    chance = random.Random(42)
    alphabet = [chr(code) for code in range(0x180)] + list("%%%%%%25-\r\n  aaaa\u2028\U0001f512")
    lengths = [1, 2, 3, 9, 80, 249, 250, 251, 1024]
    drawn = ("".join(chance.choices(alphabet, k=chance.choice(lengths))) for _ in range(3000))
    full = ("k" * 247 + "%", "k" * 248 + "%", "k" * 184 + "\u00e9" * 66, "k" * 184 + "\u00e9" * 67)
    keys = list(dict.fromkeys((*KEYS, "%25", "%-", "a%2F", "a noreply", "a v c\r\nmn", *full, *drawn)))
    names = [name_of(key, b"") for key in keys]
    assert len(set(names)) == len(keys)
    assert all(re.fullmatch(rb"[A-Za-z0-9._:~%-]{1,250}", name) for name in names)
    assert name_of("Room:42_a.b~c-d", b"") == b"Room:42_a.b~c-d"
    assert name_of("a b%", b"") == b"a%20b%25"
    digested = name_of("k" * 1024, b"")
    assert name_of(digested.decode(), b"") != digested
    assert digested.startswith(b"k" * 184 + b"%-")


def test_the_prefix_is_part_of_the_place(
    memcached_server: Server, raw: Client, key: str, open_store: OpenStore
) -> None:
    """A client's key_prefix makes a location of its own on the same server."""
    mine = open_store(memcached_server, key_prefix=b"mine:")
    put(mine, key, b"ours")
    assert raw.get(f"mine:{key}") == b"ours"
    assert mine.traits.location == f"{memcached_server.url}?prefix=mine:"
    long = open_store(memcached_server, key_prefix=b"p" * 128)
    put(long, "k" * 1024, b"long")
    assert len(name_of("k" * 1024, b"p" * 128)) == 250


# Construction


@pytest.mark.parametrize(
    ("client", "error", "sentence"),
    [
        (HashClient(["127.0.0.1:1"], timeout=1), TypeError, "HashClient"),
        (RetryingClient(Client("127.0.0.1:1", timeout=1), attempts=2), TypeError, "RetryingClient"),
        (object(), TypeError, "object"),
        ("memcached://host", TypeError, "str"),
        (Client("127.0.0.1:1"), ValueError, "timeout=None"),
        (PooledClient("127.0.0.1:1"), ValueError, "timeout=None"),
        (Client("127.0.0.1:1", timeout=1, ignore_exc=True), ValueError, "ignore_exc"),
        (PooledClient("127.0.0.1:1", timeout=1, ignore_exc=True), ValueError, "ignore_exc"),
        (Client("127.0.0.1:1", timeout=1, key_prefix=b"a b"), ValueError, "the prefix must be .* not 'a b'"),
        (Client("127.0.0.1:1", timeout=1, key_prefix=b"p" * 129), ValueError, "at most 128 bytes"),
    ],
)
def test_unsafe_clients_are_refused(client: object, error: type[Exception], sentence: str) -> None:
    """A client under which no lock is safe is refused by name before any I/O."""
    with pytest.raises(error, match=sentence):
        MemcachedStore(client)  # type: ignore[arg-type, unused-ignore]  # that is the point


@pytest.mark.parametrize(
    "make",
    [
        lambda server: Client(server, timeout=5),
        lambda server: Client("{}:{}".format(*server), timeout=5, connect_timeout=5, no_delay=True),
        lambda server: PooledClient(server, timeout=5, max_pool_size=1),
        lambda server: Client(server, timeout=5, serde=pickle_serde, allow_unicode_keys=True, encoding="utf-8"),
        lambda server: Client(server, timeout=5, serializer=lambda *_: 1 / 0, deserializer=lambda *_: 1 / 0),
    ],
)
def test_any_plain_client_will_do(
    make: Callable[[object], Any], memcached_server: Server, raw: Client, key: str, open_store: OpenStore
) -> None:
    """A client as users make it works (default_noreply, serializers and all), and its own connection is left alone."""
    client = make((memcached_server.host, memcached_server.port))
    store = open_store(client)
    entry = put(store, key, b"\xff")
    assert raw.get(key) == b"\xff"
    assert store.put_if_version(key, b"rival", ABSENT, 60) == entry
    assert store.invalidate(key, entry.version) is None
    assert getattr(client, "sock", None) is None
    assert not getattr(client, "client_pool", None) or not client.client_pool.used


@contextlib.contextmanager
def on_a_socket(path: Path, *options: str) -> Iterator[str]:
    binary = shutil.which("memcached") or absent("no memcached on the PATH: `make servers` installs it")
    user = ["-u", "root"] if os.geteuid() == 0 else []
    with subprocess.Popen([binary, "-s", path, *user, *options]) as server:
        try:
            with socket.socket(socket.AF_UNIX) as knocking:
                assert until(lambda: knocking.connect_ex(str(path)) == 0)
            yield f"memcached://{path}"
        finally:
            server.kill()


@pytest.mark.long
def test_unix_sockets(tmp_path: Path, open_store: OpenStore) -> None:
    """A store speaks over a unix socket, by URL and by client."""
    path = tmp_path / "m.sock"
    with on_a_socket(path) as url:
        entry = put(open_store(url), "k")
        assert open_store(Client(f"unix:{path}", timeout=5)).get("k") == entry


# Servers that are not fit


@pytest.mark.long
def test_a_server_without_cas(new_memcached: NewServer, open_client: OpenClient, open_store: OpenStore) -> None:
    """A server with cas switched off is a StoreError at first use, before anything is written."""
    server = new_memcached("-C")
    store = open_store(server.url)
    refusal(lambda: store.put_if_version("k", b"x", ABSENT, 60), "without -C")
    assert open_client(server).get("k") is None


def test_a_server_that_is_too_old(proxy: RewritingProxy, key: str, open_store: OpenStore) -> None:
    """A server before 1.6.13 is a StoreError at first use."""
    for version in (b"1.4.39", b"1.6.9", b"1.6.12", b"1.6.13", b"1.6.22_3_gab", b"1.10"):
        proxy.rewrite = partial(re.compile(rb"(?<=STAT version )\S+").sub, version)
        store = open_store(proxy)
        if version in (b"1.4.39", b"1.6.9", b"1.6.12"):
            refusal(partial(store.get, key), r"1\.6\.13 or newer is needed")
        else:
            put(store, f"{key}:{version.decode()}")


def test_a_server_with_a_password(tmp_path: Path, open_store: OpenStore) -> None:
    """A server that wants a password first is a StoreError, for pymemcache has no words for one."""
    (tmp_path / "passwords").write_text("me:secret\n")
    with on_a_socket(tmp_path / "m.sock", "-Y", str(tmp_path / "passwords")) as url:
        refused = refusal(lambda: open_store(url).get("k"), "without authentication", url)
    assert refused.__cause__ is not None


def outage(store: MemcachedStore) -> StoreUnavailable | None:
    try:
        store.get("k")
    except StoreUnavailable as error:
        return error
    return None


def test_a_server_with_no_connection_left(new_memcached: NewServer, open_store: OpenStore) -> None:
    """Too many open connections are an outage like any other: nothing was sent, try again."""
    server = new_memcached("-c", "32")
    refused: StoreUnavailable | None = None
    with contextlib.ExitStack() as crowd:
        for _ in range(64):
            crowd.enter_context(socket.create_connection((server.host, server.port)))
        while refused is None:  # its threads are late to count a connection that has begun, and one that has ended
            refused = outage(open_store(server))  # a store that got a connection keeps it until the test ends
    assert "has too many open connections: raise its limit, -c" in str(refused)
    assert not refused.sent


@pytest.mark.long
def test_a_server_that_has_just_started(
    new_memcached: NewServer, open_client: OpenClient, open_store: OpenStore
) -> None:
    """A server is given no request in the second of its start, so that no other start can have the same number."""
    server, refused = next(
        (server, error)
        for server in (new_memcached() for _ in range(20))  # each may be too old by then, or too slow to tell its age
        if "started less than 3 s ago" in str(error := outage(open_store(server, timeout=0.2)))
    )
    assert not present(refused).sent
    put(open_store(server), "k")
    assert open_client(server).stats()[b"uptime"] >= 4


@pytest.mark.long
def test_an_earlier_start(new_memcached: NewServer, memcached_server: Server, key: str, open_store: OpenStore) -> None:
    """A location that turns out to be another, older server is refused, because its versions would go back."""
    open_store(memcached_server.url).get(key)
    newer = new_memcached()
    with contextlib.closing(RewritingProxy(newer)) as proxy:
        store = open_store(proxy)
        put(store, key)
        store.close()
        proxy.target = memcached_server
        refusal(lambda: store.get(key), "earlier start")
        proxy.target = newer
        assert store.get(key) is not None


# Restarts and outages


@pytest.mark.long
def test_a_restart_never_repeats_a_version(
    new_memcached: NewServer, open_client: OpenClient, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version from before a restart neither writes nor removes after it, though the raw cas id is the very same."""
    monkeypatch.setattr("caslock.stores.memcached.store._SLOW", 60.0)  # else a put that is answered late is sent again
    server = new_memcached()
    long_lived, other = open_store(server.url), open_store(server.url)
    old = put(long_lived, "k", b"old")
    old_cas = open_client(server).gets("k")[1]
    last = [put(long_lived, f"other:{number}") for number in range(100)][-1]

    server.restart()
    new = put(other, "k", b"new")
    assert open_client(server).gets("k")[1] == old_cas, "the counter must have restarted, or this proves nothing"
    assert new.version > last.version > old.version

    # The long-lived store's connection has died in its idle time: it notices, and no request fails for it.
    assert long_lived.get("k") == new
    for store in (long_lived, other):
        assert store.put_if_version("k", b"stale", old.version, 60) == new
        assert store.invalidate("k", old.version) == new
    assert open_client(server).raw_command(f"md k C{old_cas.decode()}").rstrip() == b"HD", "the raw id does remove it"


def test_dead_connections_cost_one_request(
    memcached_server: Server, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a restart has ended, only one request finds out the hard way, and may be repeated."""
    monkeypatch.setattr(connections, "CHECKED_AFTER", 60.0)  # a late request would find them dead before it is sent
    with FaultProxy(memcached_server.host, memcached_server.port) as proxy:
        store = open_store(f"memcached://{HOST}:{proxy.port}")
        proxy.decide = lambda _: Passage("hold reply", 0.05)
        at_once(lambda _: store.get("k"), 5)
        proxy.decide = lambda _: PASS
        assert len(store._idle._stack) > 1
        with proxy.refusing():
            pass
        with pytest.raises(StoreUnavailable) as caught:
            store.get("k")
        assert caught.value.sent
        assert store.get("k") is None


@pytest.mark.parametrize("place", ["no.such.host.invalid", f"{'x' * 70}.invalid", "/no/such.sock"])
def test_a_place_that_is_not_there_is_sent_nothing(place: str) -> None:
    """A host without an address, a name that can be none, and no file."""
    unsent(lambda: MemcachedStore.from_url(f"memcached://{place}").get("k"), "is unreachable")


@pytest.mark.long
def test_no_signal_begins_a_timeout_anew(spare_memcached: Server, key: str, open_store: OpenStore) -> None:
    """A server that is silent costs one timeout, though signals come more often, and its late reply answers nobody."""
    store, held_key, late_key = open_store(spare_memcached, timeout=0.6), f"{key}:held", f"{key}:late"
    held = again(partial(put, store, held_key))
    spare_memcached.pause()
    rescue = threading.Timer(50.0, spare_memcached.resume)  # of a request that would wait for ever
    rescue.start()
    with ringing(), pytest.raises(StoreUnavailable) as caught:
        store.put_if_version(late_key, b"late", ABSENT, 60)
    rescue.cancel()
    spare_memcached.resume()
    store._timeout = 20.0
    assert caught.value.sent
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert store.put_if_version(held_key, b"rival", ABSENT, 60) == held
    assert until(lambda: store.get(late_key))  # the server serves the given-up connection whenever it likes
    assert present(store.get(late_key)).value == b"late"


class Green(socket.socket):
    """A socket that is more than the kernel's: those of TLS and of green threads are."""

    sent = 0

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        return super().send(data, flags)

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        Green.sent += 1
        super().sendall(data, flags)


def test_a_socket_that_is_not_the_kernels(
    memcached_server: Server, key: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written past a socket that has a send of its own."""
    store = open_store(memcached_server, socket_module=SimpleNamespace(**(vars(socket) | {"socket": Green})))
    store.get(key)
    monkeypatch.setattr("caslock.stores.memcached.store._SLOW", 60.0)  # else a put that is answered late is sent again
    before = Green.sent
    assert store.invalidate(key, put(store, key).version) is None
    assert Green.sent == before + 2


@pytest.mark.parametrize(
    "reply",
    [
        b"\r\n",
        b"VA\r\n",
        b"VA x c1\r\n",
        b"VA 9 c1\r\n",
        b"SERVER_ERROR out of memory writing get response\r\n",
        b"EN\r\nEN\r\n",
        b"x" * 1_000_000,  # it has no end
    ],
    ids=lambda reply: repr(reply[:50]),
)
def test_a_reply_that_is_broken(
    proxy: RewritingProxy, store: MemcachedStore, through: MemcachedStore, key: str, reply: bytes
) -> None:
    """A reply that can't be read is StoreUnavailable, never a free lock, and the connection ends there."""
    entry = put(store, key)
    assert through.get(key) == entry
    through._timeout, proxy.rewrite = 1.0, lambda _data: reply
    with pytest.raises(StoreUnavailable):
        through.get(key)
    through._timeout, proxy.rewrite = 20.0, lambda data: data
    assert through.get(key) == entry


@pytest.mark.parametrize(
    "reply",
    [
        b"STORED\r\nVA 4 c7\r\nours\r\nMN\r\n",
        b"\r\nVA 0 c7\r\n\r\nMN\r\n",
        b"NOT_STORED\r\nVA 16 c7\r\n\r\nMN\r\nEN\r\nMN\r\n\r\n\r\nMN\r\n",
        b"HD\r\nEN\r\nMN\r\n",
        b"SERVER_ERROR out of memory storing object\r\nEN\r\nMN\r\n",
    ],
)
def test_a_reply_is_read_when_it_is_whole(reply: bytes) -> None:
    """Wherever a reply is cut it is known for not whole, and one byte too many is an error."""
    assert all(parse(reply[:size], 100) is None for size in range(len(reply)))
    whole = present(parse(reply, 100))
    assert whole[0] == reply.partition(b"\r\n")[0]
    assert whole[1] is None or whole[1].version == 107
    with pytest.raises(ConnectionError):
        parse(reply + b"\r", 100)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (b"STORED\r\nVA 4 c7\r\nrival\r\nMN\r\n", None),
        (b"STORED\r\nVA 5 c7\r\nrival\r\nMN\r\n", b"rival"),
        (b"STORED\r\nVA 4 c7\r\nOurs\r\nMN\r\n", b"Ours"),
        (b"STORED\r\nVA 4 c7\r\nOurs\r\nMN\r\nours\r\nMN\r\n", None),
        (b"STORED\r\nVA 14 c7\r\nours\r\nMN\r\nours\r\nMN\r\n", b"ours\r\nMN\r\nours"),
        (b"STORED\r\nVA 4 c7 t9\r\nours\r\nMN\r\n", None),
        (b"STORED\r\nVA 4 c\r\nours\r\nMN\r\n", None),
        (b"STORED\r\nEN\r\nMN\r\n", b""),
        (b"NOT_STORED\r\nVA 4 c7\r\nours\r\nMN\r\n", b"ours"),
        (b"NOT_STORED\r\nVA 5 c7\r\nrival\r\nMN\r\n", b"rival"),
    ],
)
def test_a_put_has_won_only_if_its_own_value_is_there(
    proxy: RewritingProxy, through: MemcachedStore, key: str, reply: bytes, value: bytes | None
) -> None:
    """Whatever resembles the answer to a put that has won is read as what it is, and nothing is taken for a win.

    A put that was stored, and has another value there, was overwritten at once: it was applied, and is no refusal.
    """
    through.get(key)
    through._timeout = 1.0 if value is None else 20.0
    proxy.rewrite = lambda _data: reply
    if value is None or reply.startswith(b"STORED"):
        why = "did not answer" if value is None else "has written the entry, which has changed or gone since"
        with pytest.raises(StoreUnavailable, match=why):
            through.put_if_version(key, b"ours", ABSENT, 60)
        return
    entry = through.put_if_version(key, b"ours", ABSENT, 60)
    assert (entry.value if entry else b"") == value
    assert entry is None or entry.version % 2**30 == 7


def test_a_removal_whose_answer_ends_with_a_blank_is_one(
    proxy: RewritingProxy, store: MemcachedStore, through: MemcachedStore, key: str
) -> None:
    """As memcached 1.6.13 answers; a later put by somebody else does not make it look refused."""
    entry = put(through, key)

    def rewrite(data: bytes) -> bytes:
        if not data.startswith(b"HD"):
            return data
        rival = put(store, key, b"rival")
        return b"HD \r\nVA 5 c%d\r\nrival\r\nMN\r\n" % (rival.version % 2**30)

    proxy.rewrite = rewrite
    assert through.invalidate(key, entry.version) is None
    assert present(store.get(key)).value == b"rival"


def test_a_removal_that_the_server_could_not_do(proxy: RewritingProxy, through: MemcachedStore, key: str) -> None:
    """An error in place of a removal is a StoreError if our version is still there, else it makes no difference."""
    entry = put(through, key)
    other = b"VA 5 c%d\r\nrival\r\nMN\r\n" % (entry.version % 2**30 + 1)
    ours = b"VA 4 c%d\r\nours\r\nMN\r\n" % (entry.version % 2**30)
    for second, value in ((b"EN\r\nMN\r\n", None), (other, b"rival"), (ours, b"")):
        proxy.rewrite = lambda _data, second=second: b"SERVER_ERROR out of order\r\n" + second  # type: ignore[misc]  # mypy infers no type of a default
        if value == b"":
            refusal(lambda: through.invalidate(key, entry.version), "out of order")
        else:
            observed = through.invalidate(key, entry.version)
            assert (observed and observed.value) == value


@pytest.mark.long
def test_a_full_server(new_memcached: NewServer, open_client: OpenClient, open_store: OpenStore) -> None:
    """On a full server a put is refused for certain, what is there stays, rivals see it, and release works."""
    server = new_memcached("-m", "2", "-M")
    store = open_store(server.url)
    held = put(store, "held", b"h" * 150)
    fill(server, 100_000, 4000, 150, 20)
    for key, version in (("fresh", ABSENT), ("held", held.version)):
        refusal(partial(store.put_if_version, key, b"x" * 150, version, 60), "out of memory")
    assert store.put_if_version("held", b"rival" * 30, ABSENT, 60) == held
    assert store.put_if_version("held", b"stale" * 30, held.version - 1, 60) == held
    assert store.get("fresh") is None
    assert store.get("held") == held
    assert store.invalidate("held", held.version) is None
    assert store.get("held") is None
    assert open_client(server).stats()[b"total_connections"] <= 6, "a refusal is an answer: no reason to hang up"


# Threads, stops and late answers


def test_many_threads_leave_few_connections_open(store: MemcachedStore, raw: Client, key: str) -> None:
    """No more than 32; a closed store has none, and opens one again."""
    before, gate = raw.stats()[b"curr_connections"], threading.Barrier(200)

    def ask(_number: int) -> None:
        gate.wait()
        for _ in range(10):
            assert store.get(key) is None

    with ThreadPoolExecutor(200) as pool:
        list(pool.map(ask, range(200)))
    assert until(lambda: raw.stats()[b"curr_connections"] <= before + 32)
    store.close()
    assert until(lambda: raw.stats()[b"curr_connections"] <= before)
    assert store.get(key) is None


@pytest.mark.long
def test_a_server_that_was_stopped_shortens_no_lease(new_memcached: NewServer, open_store: OpenStore) -> None:
    """What is written as the server goes on after a stop lasts for all of its ttl, though its clock was behind.

    Every second or third memcached lets a worker thread answer before the main thread sets the clock: of ten, one
    does.
    """
    stop, waits, ttl, many, apart = 4.5, 0.5, 3.0, 10, 0.1  # seconds apart: they go on one after the other
    servers = [new_memcached() for _ in range(many)]

    def early(server: Server) -> float:
        """Return the seconds by which an entry has gone before its time."""
        open_store(server.url).get("wait until it is old enough")
        store = open_store(server)
        held = put(store, "held")
        store.get("k")
        server.pause()
        time.sleep(stop + apart * servers.index(server) - waits)
        sent = time.monotonic()
        key, version = ("held", held.version) if server.port % 2 else ("new", ABSENT)
        writing = in_a_thread(partial(store.put_if_version, key, b"v", version, ttl))
        time.sleep(waits)
        server.resume()
        try:
            written = writing.result(50)
        except StoreUnavailable:  # it had gone, and the answer said so
            return 0.0
        while time.monotonic() < sent + ttl:
            if store.get(key) != written:
                return sent + ttl - time.monotonic()
            time.sleep(0.02)
        return 0.0

    with ThreadPoolExecutor(many) as threads:
        assert max(threads.map(early, servers)) <= 0


@pytest.fixture
def late(proxy: RewritingProxy, through: MemcachedStore, key: str, monkeypatch: pytest.MonkeyPatch) -> Late:
    """Let puts be answered so late that they are done once more, after something has happened."""
    through.get(key)

    def plan(happens: Callable[[], object]) -> None:
        def hold_up(reply: bytes) -> bytes:
            time.sleep(0.15)
            return reply

        proxy.rewrite = hold_up
        monkeypatch.setattr(memcached, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: happens()))

    return plan


def test_a_put_that_others_have_overwritten_was_applied(
    store: MemcachedStore, through: MemcachedStore, key: str, late: Late
) -> None:
    """A put was answered late, and another client has written before it could be done once more: not a refusal."""
    held = put(store, key)
    late(lambda: store.put_if_version(key, b"theirs", present(store.get(key)).version, 60))
    with pytest.raises(StoreUnavailable, match="has written the entry, which has changed or gone since") as caught:
        through.put_if_version(key, b"ours", held.version, 60)
    assert caught.value.sent
    assert present(store.get(key)).value == b"theirs"


def test_a_semaphore_is_released_though_its_release_was_overwritten(
    store: MemcachedStore, through: MemcachedStore, key: str, late: Late
) -> None:
    """The holder that stays has renewed in between: that is no loss of the hold that was released."""
    stays = Semaphore(store, key, 2, auto_renew=False)
    with stays as hold:
        leaves = held(Semaphore(through, key, 2, auto_renew=False))
        late(hold.extend)
        leaves.release()
        assert {each.slot for each in stays.holders()[0].shares} == {hold.slot}


def test_a_put_that_cannot_be_done_again_may_have_been_applied(
    proxy: RewritingProxy, store: MemcachedStore, through: MemcachedStore, key: str, late: Late
) -> None:
    """A put was answered late, and the server can't be reached to do it once more: the first one still counts."""

    def go_away() -> None:
        through.close()
        proxy.close()

    late(go_away)
    with pytest.raises(StoreUnavailable, match=r"is unreachable .* an earlier request has written the entry") as caught:
        through.put_if_version(key, b"ours", ABSENT, 60)
    assert caught.value.sent
    assert present(store.get(key)).value == b"ours"
