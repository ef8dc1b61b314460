"""`RedisStore` and `AsyncRedisStore` against real Redis servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import subprocess
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis._parsers import _AsyncHiredisParser, _AsyncRESP2Parser, _HiredisParser, _RESP2Parser
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

import caslock
from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, AsyncListingStore, AsyncStore, Entry, ListingStore, Store, Traits
from caslock.stores.redis import FOREIGN, AsyncRedisStore, RedisStore
from caslock.stores.redis.wire import new_reader
from caslock.testing.proxy import foreign_port, refused_port
from caslock.testing.stopwatch import Stopwatch
from tests.stores.test_memcached import Proxy
from tests.support.servers import HOST, Process, absent, free_port, ringing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from caslock.stores.redis.pipeline import Pipeline
    from caslock.stores.redis.sockets import Connection
    from tests.conftest import NewServer
    from tests.support.servers import Server

SECRET = "p@ss/w0rd?"  # noqa: S105 - of a server that ends with its test
OUTCOMES = (Entry, type(None))


Client = Any  # one of two classes of redis-py, which share no type
Option = Any


class OnLoop:
    """An `AsyncRedisStore` as a blocking one: each verb runs to its end on one loop."""

    def __init__(self, store: AsyncRedisStore, runner: asyncio.Runner) -> None:
        self.store = store
        self.run = runner.run
        self.traits = store.traits
        self._server = store._server

    def get(self, key: str) -> Entry | None:
        return self.run(self.store.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return self.run(self.store.put_if_version(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        return self.run(self.store.invalidate(key, version))

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        async def listed() -> dict[str, Entry]:
            return {key: entry async for key, entry in self.store.list(prefix)}

        return iter(self.run(listed()).items())

    def close(self) -> None:
        self.run(self.store.aclose())

    def __repr__(self) -> str:
        return repr(self.store)


class Api:
    """Opens stores through one of the two APIs, and closes them after the test."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.blocking = name == "blocking"
        self.module: Any = redis if self.blocking else redis.asyncio
        self.runner = stack.enter_context(asyncio.Runner())
        self.stack = stack

    def on(self, client: Client, **options: Option) -> RedisStore | OnLoop:
        store = (
            RedisStore(client, **options) if self.blocking else OnLoop(AsyncRedisStore(client, **options), self.runner)
        )
        self.stack.callback(store.close)
        return store

    def by_url(self, url: str) -> RedisStore | OnLoop:
        store = RedisStore.from_url(url) if self.blocking else OnLoop(AsyncRedisStore.from_url(url), self.runner)
        self.stack.callback(store.close)
        return store

    def open(self, url: str, **options: Option) -> RedisStore | OnLoop:
        ours = {name: options.pop(name) for name in ("prefix", "replicas") if name in options}
        return self.on(self.module.Redis.from_url(url, **options), **ours)


@pytest.fixture(params=["blocking", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Either API."""
    with contextlib.ExitStack() as stack:
        yield Api(request.param, stack)


@pytest.fixture
def admin(redis_server: Server) -> Iterator[redis.Redis]:
    """A plain client of the shared server."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def store(api: Api, redis_server: Server, admin: redis.Redis) -> RedisStore | OnLoop:
    """A store on the shared server, under whose keys nothing is there."""
    admin.flushall()
    return api.open(redis_server.url)


def put(store: Store, key: str, value: bytes, version: int = ABSENT, ttl: float = 30.0) -> Entry:
    """Write, and expect success."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    assert entry.version > version
    return entry


def until(condition: Callable[[], Any], seconds: float = 50.0) -> None:
    """Return as soon as the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"


def microseconds(admin: redis.Redis) -> int:
    """The server's TIME."""
    seconds, rest = admin.time()
    return int(seconds) * 1_000_000 + int(rest)


def age(store: RedisStore | OnLoop) -> None:
    """Make the idle connections look as if they had not been used for a minute."""
    for connection in idle(store):
        connection.used -= 60


def idle(store: RedisStore | OnLoop) -> list[Connection | Pipeline]:
    """Return the connections that wait to be used."""
    connections: Any = store.store._connections if isinstance(store, OnLoop) else store._connections
    if isinstance(store, OnLoop):
        return [link for each in connections._loops._loops.values() for link in each.connections._for_requests._stack]
    return list(connections._for_requests._stack)


def test_every_verb_answers_with_what_is_there_after_it(store: Store) -> None:
    """A winner sees its own value, a loser the one that is there, and nobody a value that is gone."""
    assert isinstance(store, Store)
    assert store.get("k") is None
    first = put(store, "k", b"a")
    assert store.get("k") == first
    assert store.put_if_version("k", b"b", ABSENT, 30) == first
    assert store.put_if_version("k", b"b", first.version - 1, 30) == first
    assert store.invalidate("k", first.version - 1) == first
    assert store.invalidate("k", ABSENT) == first
    second = put(store, "k", b"b", first.version)
    assert store.invalidate("k", first.version) == second
    assert store.invalidate("k", second.version) is None
    assert store.get("k") is None
    assert store.put_if_version("k", b"c", second.version, 30) is None
    assert store.invalidate("k", second.version) is None


def test_a_value_in_redis_is_version_colon_value_with_a_ttl(store: Store, admin: redis.Redis) -> None:
    """A person can read a lock in redis-cli, and Redis ends it."""
    begun = time.monotonic()
    entry = put(store, "k", b'{"caslock":1}', ttl=7.5)
    assert admin.get("k") == b'%d:{"caslock":1}' % entry.version
    assert 7498 - 1000 * (time.monotonic() - begun) < admin.pttl("k") <= 7501


def test_versions_grow_over_removal_expiry_and_a_forgotten_script(store: Store, admin: redis.Redis) -> None:
    """No version of a key comes twice, and each is larger than all before it."""
    versions = []
    for _ in range(5):
        entry = put(store, "k", b"removed")
        renewed = put(store, "k", b"renewed", entry.version)
        assert store.invalidate("k", renewed.version) is None
        versions += [entry.version, renewed.version]
        admin.script_flush()
        versions.append(put(store, "k", b"expires", ttl=0.001).version)
        until(lambda: store.get("k") is None)
    assert versions == sorted(set(versions))


def test_versions_grow_over_a_restart(api: Api, new_redis: NewServer) -> None:
    """A server that has lost everything goes on with larger versions."""
    server = new_redis()
    store = api.open(server.url)
    before = put(store, "k", b"a")
    server.restart()
    age(store)
    assert store.get("k") is None
    assert put(store, "k", b"b").version > before.version


def test_an_entry_never_expires_before_its_ttl(store: Store) -> None:
    """The ttl is rounded up to whole milliseconds, at least one."""
    for ttl in (1e-9, 0.0011, 0.0199):
        start = time.monotonic()
        put(store, "k", b"a", ttl=ttl)
        until(lambda: store.get("k") is None)
        assert time.monotonic() - start >= ttl


def test_a_removed_entry_whose_version_is_ahead_of_the_clock_leaves_its_version(
    store: Store, admin: redis.Redis
) -> None:
    """After the clock stepped back, the next tenure has a larger version all the same, and the stale one stays out."""
    ahead = microseconds(admin) + 3_600_000_000
    admin.set("k", b"%d:a" % ahead, px=60_000)
    assert store.get("k") == Entry(b"a", ahead)
    assert store.invalidate("k", ahead) is None
    assert store.get("k") is None
    assert admin.get("k") == b"%d!gone" % ahead
    assert 3_500_000 < admin.pttl("k") <= 3_600_002
    assert store.put_if_version("k", b"stale", ahead, 30) is None
    assert store.invalidate("k", ahead) is None
    assert put(store, "k", b"b", ABSENT).version == ahead + 1


def test_a_key_goes_only_when_the_clock_has_passed_its_version(store: Store, admin: redis.Redis) -> None:
    """Neither expiry nor removal lets a version come again."""
    for end in ("expiry", "removal"):
        ahead = microseconds(admin) + 50_000
        admin.set("k", b"%d:a" % ahead)
        entry = put(store, "k", b"b", ahead, ttl=0.001)
        if end == "removal":
            assert store.invalidate("k", entry.version) is None
        until(lambda: not admin.exists("k"))
        assert microseconds(admin) > entry.version
        assert put(store, "k", b"c").version > entry.version
        admin.delete("k")


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"hello", b"5", b":", b":x", b"0:x", b"-1:x", b"-:x", b"+5:x", b"007:x", b" 5:x", b"5 :x", b"1e3:x",
        b"99999999999999999:x", b"9007199254740991:x", b"5!gone?", b"!gone",
        b"5!gone\n", b"0!gone", b"007!gone", b"9007199254740991!gone", b"99999999999999999!gone",
        b"\xff\x00:\r\n", b"x" * 9000,
    ],
)  # fmt: skip
def test_a_foreign_value_is_held_for_ever(store: Store, admin: redis.Redis, raw: bytes) -> None:
    """What caslock did not write reads as an entry, and no version overwrites or removes it."""
    admin.set("k", raw)
    foreign = Entry(raw, FOREIGN)
    assert store.get("k") == foreign
    for version in (ABSENT, FOREIGN, 1, 5, 7, 1000, 2**53 - 1, 2**53, 10**17 - 1, -5):
        assert store.put_if_version("k", b"mine", version, 30) == foreign
        assert store.invalidate("k", version) == foreign
    assert admin.get("k") == raw
    assert admin.pttl("k") == -1


def test_a_foreign_value_that_looks_like_ours_is_read_as_ours(store: Store, admin: redis.Redis) -> None:
    """The form of an entry is all there is to tell by: it is held, at the version it seems to have."""
    admin.set("k", b"5:hello")
    assert store.get("k") == Entry(b"hello", 5)
    assert store.put_if_version("k", b"mine", ABSENT, 30) == Entry(b"hello", 5)


@pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256)) * 16, b"1:2!gone\r\n"], ids=len)
def test_any_bytes_up_to_4096_are_kept_as_they_were_written(store: Store, value: bytes) -> None:
    """A value is bytes, not text."""
    first = put(store, "k", value)
    assert store.get("k") == first
    second = put(store, "k", value, first.version)
    assert store.get("k") == second


@pytest.mark.parametrize("key", ["k", " ", "a b\r\nSET x y\r\n", "\x00", "schlüssel", "🔑" * 1024, "{a}*?[b]"])
def test_any_unicode_is_a_key(api: Api, redis_server: Server, admin: redis.Redis, key: str) -> None:
    """A key is one argument of the command, whatever is in it, after the prefix."""
    admin.flushall()
    store = api.open(redis_server.url, prefix="locks:")
    entry = put(store, key, b"a")
    assert store.get(key) == entry
    assert admin.keys() == [f"locks:{key}".encode()]
    assert store.invalidate(key, entry.version) is None
    assert admin.dbsize() == 0


def test_bad_arguments_are_refused_before_anything_is_sent(api: Api) -> None:
    """A ValueError does not need a server."""
    store = api.open(f"redis://{HOST}:{free_port()}")
    for key in ("", "k" * 1025, "\ud800"):
        with pytest.raises(ValueError, match="key"):
            store.get(key)
        with pytest.raises(ValueError, match="key"):
            store.put_if_version(key, b"", ABSENT, 1)
        with pytest.raises(ValueError, match="key"):
            store.invalidate(key, 1)
    for ttl in (0, -1, float("nan"), float("inf"), 1e10):
        with pytest.raises(ValueError, match="ttl must be"):
            store.put_if_version("k", b"", ABSENT, ttl)
    with pytest.raises(ValueError, match="at most 4096 bytes"):
        store.put_if_version("k", bytes(4097), ABSENT, 1)
    with pytest.raises(ValueError, match="replicas"):
        api.open("redis://localhost", replicas=-1)


def test_the_longest_ttl_is_a_hundred_years(store: Store, admin: redis.Redis) -> None:
    """A huge ttl does not overflow."""
    put(store, "k", b"a", ttl=100 * 365 * 86400)
    assert admin.pttl("k") > 99 * 365 * 86_400_000


def test_each_verb_is_one_command(store: Store, admin: redis.Redis) -> None:
    """One request and one answer: no PING, no WATCH, no second look."""
    store.invalidate("k", put(store, "k", b"both scripts are known from here on").version)
    first = put(store, "k", b"a")
    admin.config_resetstat()
    assert store.get("k") == first
    assert store.put_if_version("k", b"b", ABSENT, 30) == first
    second = put(store, "k", b"b", first.version)
    assert store.invalidate("k", second.version) is None
    stats = admin.info("commandstats")
    assert {name: stat["calls"] for name, stat in stats.items() if "config" not in name} == {
        "cmdstat_evalsha": 3,  # put, put, invalidate
        "cmdstat_get": 1 + 3,  # get; the others are what the scripts did
        "cmdstat_set": 1 + 1,  # the first finds that something is there
        "cmdstat_del": 1,
        "cmdstat_time": 3,
        "cmdstat_zpopmin": 1,
    }


def test_a_key_of_another_type_is_a_refusal(store: Store, admin: redis.Redis) -> None:
    """A list under the key is a StoreError that says what to do, and the connection goes on."""
    admin.lpush("list", "a")
    calls: list[Callable[[], object]] = [
        lambda: store.get("list"),
        lambda: store.put_if_version("list", b"", ABSENT, 1),
        lambda: store.invalidate("list", 5),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"WRONGTYPE.*another key") as caught:
            call()
        assert "script" not in str(caught.value)
        assert not isinstance(caught.value, StoreUnavailable)
        assert isinstance(caught.value.__cause__, redis.ResponseError)
    put(store, "k", b"a")
    assert admin.lrange("list", 0, -1) == [b"a"]


def test_a_full_server_refuses_acquires_and_allows_releases(api: Api, new_redis: NewServer) -> None:
    """Out of memory is a StoreError for a put; what is held can still be released."""
    server = new_redis()
    store = api.open(server.url)
    entry = put(store, "held", b"a")
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("maxmemory", "1")
        with pytest.raises(StoreError, match="maxmemory") as caught:
            store.put_if_version("new", b"a", ABSENT, 30)
        assert not isinstance(caught.value, StoreUnavailable)
        with pytest.raises(StoreError, match="maxmemory"):
            store.put_if_version("held", b"b", entry.version, 30)
        assert store.get("held") == entry
        assert store.invalidate("held", entry.version) is None
        admin.config_set("maxmemory", "0")
    put(store, "new", b"a")


def test_a_replica_refuses_and_is_left(api: Api, redis_server: Server, new_redis: NewServer) -> None:
    """READONLY is a StoreError, and the connection is not used again: the primary may be elsewhere now."""
    replica = new_redis("--replicaof", HOST, str(redis_server.port))
    store = api.open(replica.url)
    with pytest.raises(StoreError, match="primary") as caught:
        store.put_if_version("k", b"a", ABSENT, 30)
    assert not isinstance(caught.value, StoreUnavailable)
    assert not idle(store)


def test_too_few_replicas_by_the_servers_own_rule_is_a_refusal(api: Api, new_redis: NewServer) -> None:
    """NOREPLICAS is answered before the write: nothing has happened."""
    store = api.open(new_redis("--min-replicas-to-write", "1").url)
    with pytest.raises(StoreError, match="min-replicas-to-write") as caught:
        store.put_if_version("k", b"a", ABSENT, 30)
    assert not isinstance(caught.value, StoreUnavailable)
    assert store.get("k") is None


def test_a_busy_server_is_unavailable(api: Api, new_redis: NewServer) -> None:
    """BUSY says try again."""
    server = new_redis("--lua-time-limit", "10")
    store = api.open(server.url)
    put(store, "k", b"a")
    with redis.Redis.from_url(server.url) as admin, ThreadPoolExecutor() as pool:

        def spin() -> None:
            with contextlib.suppress(redis.ResponseError):
                admin.eval("while true do end", 0)

        spinning = pool.submit(spin)

        def busy() -> bool:
            try:
                store.get("k")
            except StoreUnavailable as error:
                return "BUSY" in str(error)
            return False

        until(busy)
        with redis.Redis.from_url(server.url) as other:
            other.script_kill()
        spinning.result()
    assert store.get("k") is not None


def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_sent(api: Api) -> None:
    """A refused connection is distinguished from an unknown outcome, in a few words that name the location once."""
    port = free_port()
    store = api.open(f"redis://{HOST}:{port}")
    with pytest.raises(StoreUnavailable) as caught:
        store.get("k")
    assert str(caught.value) == f"redis://{HOST}:{port}/0 is unreachable (connection refused)"
    assert not caught.value.sent
    assert isinstance(caught.value.__cause__, redis.ConnectionError)


def test_an_answer_that_redis_does_not_give_is_none(api: Api) -> None:
    """A server that echoes what it gets sends arrays back: no verb takes one for an entry, or for its absence."""
    nothing = {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}
    with foreign_port(lambda request: request) as port:
        store = api.open(f"redis://{HOST}:{port}", protocol=2, **nothing)
        asks: tuple[Callable[[], object], ...] = (
            lambda: store.get("k"),
            lambda: store.put_if_version("k", b"v", ABSENT, 30),
            lambda: store.invalidate("k", 1),
        )
        for ask in asks:
            with pytest.raises(StoreUnavailable):
                ask()


def test_another_protocol_is_named(api: Api) -> None:
    """What answers by HTTP, or by TLS to what is not, is told apart."""
    for answer, hint in (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x03\0\2\2F", "use rediss://"),
    ):
        with foreign_port(lambda _, answer=answer: answer) as port:  # type: ignore[misc] # as a default
            store = api.open(f"redis://{HOST}:{port}")
            with pytest.raises(StoreUnavailable, match=hint):
                store.get("k")


def test_sentinels_that_are_not_there_are_named_without_their_settings() -> None:
    """Given Sentinels that refuse connections, the error names the location and the service, and shows no client."""
    with refused_port() as port:
        sentinel: Client = Sentinel
        store = RedisStore(sentinel([(HOST, port)], socket_timeout=1).master_for("locks"))
        with pytest.raises(StoreUnavailable) as caught:
            store.get("k")
    location = f"redis+sentinel://{HOST}:{port}/locks/0"
    hint = "check the name; are these Sentinels, and do they need ?sentinel_password=?"
    assert str(caught.value) == f"{location} is unreachable (no master found for 'locks'): {hint}"
    assert not caught.value.sent
    store.close()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("hiredis", ["hiredis", ""])
@pytest.mark.parametrize("decode", ["decodes", ""])
def test_the_clients_protocol_and_parser_do_not_matter(
    api: Api, redis_server: Server, protocol: int, hiredis: str, decode: str
) -> None:
    """RESP 2 and 3, with hiredis and without it, and a client that decodes: bytes come back as they were written."""
    if api.blocking:
        parser: Any = _HiredisParser if hiredis else _RESP2Parser
    else:
        parser = _AsyncHiredisParser if hiredis else _AsyncRESP2Parser
    store = api.open(
        redis_server.url, protocol=protocol, parser_class=parser, decode_responses=bool(decode), client_name="me"
    )
    key = f"{protocol}{hiredis}{decode}{api.blocking}"
    value = bytes(range(256))
    entry = put(store, key, value)
    assert store.get(key) == entry
    assert store.put_if_version(key, b"b", ABSENT, 30) == entry
    age(store)
    assert store.get(key) == entry
    assert store.invalidate(key, entry.version) is None
    assert store.get(key) is None


def test_a_client_is_only_asked_for_its_settings(api: Api, new_redis: NewServer) -> None:
    """Database and name are the client's, the connections are ours, and the client gets none of them."""
    server = new_redis()
    client = api.module.Redis(host=HOST, port=server.port, db=3, client_name="worker")
    store = api.on(client)
    assert store.traits._replace(request_timeout=2.0) == Traits(f"redis://{HOST}:{server.port}/3")
    assert store.traits.request_timeout in {2.0, 5.0}  # redis-py 8 sets 5 s where its caller sets nothing
    put(store, "k", b"a")
    with redis.Redis(host=HOST, port=server.port, db=3) as admin:
        assert admin.exists("k")
        assert [each["name"] for each in admin.client_list()].count("worker") == 1
        store.close()
        until(lambda: "worker" not in [each["name"] for each in admin.client_list()])
    assert store.get("k") is not None


def test_a_default_client_is_not_allowed_its_retries(api: Api, new_redis: NewServer) -> None:
    """One timeout, one error, and the server got the command once: redis-py alone would send it eleven times."""
    server = new_redis()
    store = api.on(api.module.Redis(host=HOST, port=server.port, socket_timeout=0.6))
    put(store, "k", b"a")
    with redis.Redis.from_url(server.url) as admin:
        admin.config_resetstat()
    server.pause()
    with Stopwatch() as watch, pytest.raises(StoreUnavailable, match="did not answer") as caught:
        store.put_if_version("other", b"b", ABSENT, 30)
    assert watch.elapsed >= 0.6
    assert watch.seconds <= 0.6
    assert caught.value.sent
    assert isinstance(caught.value.__cause__, (redis.TimeoutError, TimeoutError))
    server.resume()
    entry = store.get("other")
    assert entry is not None
    assert entry.value == b"b"
    with redis.Redis.from_url(server.url) as admin:
        assert admin.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_no_signal_begins_a_timeout_anew(api: Api, new_redis: NewServer) -> None:
    """A server that is silent costs one timeout, however often a signal comes meanwhile."""
    server = new_redis()
    store = api.on(api.module.Redis(host=HOST, port=server.port, socket_timeout=0.6))
    put(store, "k", b"a")
    server.pause()
    rescue = threading.Timer(10.0, server.resume)  # of a request that would wait for ever
    rescue.start()
    with Stopwatch() as watch, ringing(), pytest.raises(StoreUnavailable, match="did not answer"):
        store.put_if_version("other", b"b", ABSENT, 30)
    assert watch.seconds <= 0.6
    rescue.cancel()
    server.resume()


def test_a_dead_server_costs_one_connect(api: Api) -> None:
    """A default client's connections are not tried ten times either."""
    store = api.on(api.module.Redis(host=HOST, port=free_port()))
    with Stopwatch() as watch, pytest.raises(StoreUnavailable):
        store.get("k")
    assert watch.seconds < 0.5


def test_a_timeout_is_always_set(api: Api) -> None:
    """Two seconds where the client sets none, and as long for a connection as for an answer."""
    opened = {
        api.open("redis://h"): (2, 2),
        api.on(api.module.Redis(socket_timeout=None, socket_connect_timeout=None)): (2, 2),
        api.open("redis://h?socket_timeout=0.5"): (0.5, 0.5),
        api.open("redis://h?socket_connect_timeout=0.5"): (2, 0.5),
        api.open("redis://h", socket_timeout=7, socket_connect_timeout=1): (7, 1),
    }
    for store, timeouts in opened.items():
        assert (store._server.timeout, store._server.opener()().socket_connect_timeout) == timeouts


def test_a_keyboard_interrupt_leaves_no_stale_reply(new_redis: NewServer) -> None:
    """A signal handler that raises while a request waits: the next request gets its own answer."""
    server = new_redis()
    store = RedisStore(redis.Redis(host=HOST, port=server.port))
    one, two = put(store, "one", b"1"), put(store, "two", b"2")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(5):
            server.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                store.get("one")
            server.resume()
            assert store.get("two") == two
            assert store.get("one") == one
    finally:
        signal.signal(signal.SIGALRM, before)
    store.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before its first step
def test_a_storm_of_signals_never_mixes_up_replies(redis_server: Server) -> None:
    """Wherever the interrupt hits, the answer that follows belongs to its question."""
    store = RedisStore.from_url(redis_server.url)
    entries = {f"storm{n}": store.put_if_version(f"storm{n}", b"%d" % n, ABSENT, 60) for n in range(10)}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    hits = 0
    try:
        for n in range(400):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.00002 + n % 40 * 0.00001)
                try:
                    for key, entry in entries.items():
                        assert store.get(key) == entry
                except KeyboardInterrupt:
                    hits += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            for key, entry in entries.items():
                assert store.get(key) == entry
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits > 20
    store.close()


def test_a_reply_that_was_not_asked_for_answers_no_request(api: Api, redis_server: Server) -> None:
    """One reply too many ends its connection, and the next request goes out on a new one."""
    with contextlib.closing(Proxy(redis_server)) as proxy:
        store = api.open(f"redis://{HOST}:{proxy.port}")
        entry = put(store, "asked for", b"a", ttl=5)
        proxy.rewrite = lambda data: data + b"$-1\r\n"
        assert store.get("asked for") == entry
        proxy.rewrite = lambda data: data
        assert store.get("asked for") == entry


def test_a_cancelled_request_leaves_no_stale_reply(new_redis: NewServer) -> None:
    """A task that is cancelled while it waits: the next request gets its own answer."""
    server = new_redis()

    async def main() -> None:
        store = AsyncRedisStore(redis.asyncio.Redis(host=HOST, port=server.port))
        assert isinstance(store, AsyncStore)
        one = await store.put_if_version("one", b"1", ABSENT, 30)
        two = await store.put_if_version("two", b"2", ABSENT, 30)
        for steps in range(12):
            server.pause()
            task = asyncio.create_task(store.get("one"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.resume()
            assert await store.get("two") == two
            assert await store.get("one") == one
        server.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.get("one"), 0.05)
        server.resume()
        assert await store.get("two") == two
        await store.aclose()

    asyncio.run(main())


def test_a_child_process_starts_with_connections_of_its_own(new_redis: NewServer) -> None:
    """After a fork, parent and child never read each other's replies, and the parent's connection stays open."""
    server = new_redis()
    store = RedisStore.from_url(server.url + "?client_name=ours")
    entries = {f"k{n}": put(store, f"k{n}", b"%d" % n) for n in range(20)}
    with redis.Redis.from_url(server.url) as admin:

        def ours() -> set[str]:
            return {each["id"] for each in admin.client_list() if each["name"] == "ours"}

        before = ours()
        child = os.fork()
        if not child:
            right = all(store.get(key) == entry for _ in range(50) for key, entry in entries.items())
            store.close()
            os._exit(0 if right else 1)
        for _ in range(50):
            assert all(store.get(key) == entry for key, entry in entries.items())
        assert os.waitpid(child, 0)[1] == 0
        assert ours() == before
    assert store.get("k0") == entries["k0"]
    store.close()


def test_a_child_process_of_an_asyncio_program_starts_afresh(new_redis: NewServer) -> None:
    """The parent's loop and connections are of no use to the child."""
    server = new_redis()
    store = AsyncRedisStore.from_url(server.url)

    async def main() -> Entry | None:
        entry = await store.put_if_version("k", b"1", ABSENT, 30)
        child = os.fork()
        if not child:
            asyncio.events._set_running_loop(None)
            os._exit(0 if asyncio.run(read()) == entry else 1)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - there is nothing else for this loop to do
        assert await store.get("k") == entry
        await store.aclose()
        return entry

    async def read() -> Entry | None:
        return await store.get("k")

    assert asyncio.run(main()) is not None


def test_an_asyncio_store_serves_one_loop_after_another(redis_server: Server) -> None:
    """Connections belong to their loop: a new loop opens its own, and two at one time do not disturb each other."""
    store = AsyncRedisStore.from_url(redis_server.url)

    async def work(name: str) -> None:
        for n in range(20):
            entry = await store.put_if_version(name, b"%d" % n, ABSENT, 30)
            assert entry is not None
            assert await store.get(name) == entry
            assert await store.invalidate(name, entry.version) is None
        await store.aclose()

    for n in range(3):
        asyncio.run(work(f"loop{n}"))
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(asyncio.run, work(f"thread{n}")) for n in range(4)]:
            done.result()
    connections: Any = store._connections
    assert len(connections._loops._loops) <= 5


def test_threads_share_a_store(redis_server: Server) -> None:
    """Many at once get their own answers, and no more than 32 connections stay open."""
    store = RedisStore.from_url(redis_server.url)
    start = threading.Barrier(50)

    def work(n: int) -> None:
        start.wait()
        for turn in range(20):
            entry = put(store, f"t{n}", b"%d:%d" % (n, turn))
            assert store.get(f"t{n}") == entry
            assert store.invalidate(f"t{n}", entry.version) is None

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    assert 1 <= len(idle(store)) <= 40  # a thread or two may look at the length in the same moment
    store.close()
    assert not idle(store)


def test_a_restart_in_between_is_not_seen_on_rested_connections(api: Api, new_redis: NewServer) -> None:
    """A connection that was idle for a while is looked at first: the request goes out on a new one."""
    server = new_redis()
    store = api.open(server.url)
    put(store, "k", b"a")
    server.restart()
    age(store)
    assert store.get("k") is None


def test_a_restart_costs_at_most_one_request(api: Api, new_redis: NewServer) -> None:
    """A connection used just now may fail once, with an unknown outcome; all others of its time are dropped with it."""
    server = new_redis()
    store = api.open(server.url)
    put(store, "k", b"a")
    for _ in range(3):
        server.restart()
        with contextlib.suppress(StoreUnavailable):
            store.put_if_version("k", b"b", ABSENT, 30)
        assert isinstance(store.get("k"), OUTCOMES)
        assert store.put_if_version("k", b"b", ABSENT, 30) is not None


def test_all_idle_connections_are_dropped_when_one_is_found_dead(redis_server: Server, admin: redis.Redis) -> None:
    """A failover kills them all: the second request after it goes out on a new connection."""
    store = RedisStore.from_url(redis_server.url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.get, ["k"] * 64))
    admin.client_kill_filter(_type="normal", skipme=True)
    with contextlib.suppress(StoreUnavailable):
        store.get("k")
    for _ in range(10):
        store.get("k")
    store.close()


def test_a_password_is_nowhere_to_be_read(api: Api, new_redis: NewServer) -> None:
    """Neither the location, nor the repr, nor an error with all its causes shows a password or a user."""
    server = new_redis()
    user, quoted = "oscar-user", "p%40ss%2Fw0rd%3F"
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", f">{SECRET}", "~*", "+@all", "-get")
        url = f"redis://{user}:{quoted}@{HOST}:{server.port}/0"
        denied = api.open(url)
        wrong = api.open(url.replace("p%40", "q%40"))
        for protocol in (2, 3):
            for store in (denied, wrong, api.open(url, protocol=protocol)):
                with pytest.raises(StoreError) as caught:
                    store.get("k")
                assert not isinstance(caught.value, StoreUnavailable)
                shown = "".join(traceback.format_exception(caught.value)) + repr(store) + store.traits.location
                for secret in (user, SECRET, quoted, SECRET.replace("p@", "q@")):
                    assert secret not in shown
        admin.execute_command("ACL", "SETUSER", user, "+get")
    assert denied.get("k") is None
    assert denied.traits.location == f"redis://{HOST}:{server.port}/0"


def test_a_refusal_says_what_to_do(api: Api, new_redis: NewServer) -> None:
    """Who may not write in a script is told which rights that needs; and who names a Cluster, that there is none."""
    server = new_redis()
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "reader", "on", ">another", "~*", "+@all", "-set")
    reader = api.open(f"redis://reader:another@{HOST}:{server.port}/0")
    with pytest.raises(StoreError, match="grant the user eval, evalsha, get, set, del and time"):
        reader.put_if_version("k", b"v", ABSENT, 5)
    cluster = caslock.connect(f"redis+cluster://{HOST}:{server.port}")
    with cluster, pytest.raises(StoreError, match="is in no Redis Cluster; use a URL that names one server"):
        cluster.get("k")


def test_a_server_that_does_not_know_auth_does_not_betray_the_password(api: Api, new_redis: NewServer) -> None:
    """Such a server repeats the arguments of AUTH or HELLO in its error."""
    server = new_redis("--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
    for protocol in (2, 3):
        store = api.open(f"redis://oscar-user:s3cret-word@{HOST}:{server.port}", protocol=protocol)
        with pytest.raises(StoreError, match="unknown command") as caught:
            store.get("k")
        shown = "".join(traceback.format_exception(caught.value))
        assert "s3cret" not in shown
        assert "oscar" not in shown


def test_nor_does_it_betray_what_a_credential_provider_gave(api: Api, new_redis: NewServer) -> None:
    """Such a password is not known to the store before it is sent."""
    server = new_redis("--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
    for protocol in (2, 3):
        provider = redis.UsernamePasswordCredentialProvider("oscar-user", "s3cret-word")
        store = api.open(server.url, protocol=protocol, credential_provider=provider)
        with pytest.raises(StoreError, match="unknown command") as caught:
            store.get("k")
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_a_server_that_names_the_user_does_not_betray_it(api: Api) -> None:
    """Redis 7.2 and newer do so in NOPERM."""
    store = api.open("redis://oscar-user:s3cret-word@localhost")
    refusal = redis.exceptions.NoPermissionError("User oscar-user has no permissions to run the 'get' command")
    shown = f"{store._server.failures.of(refusal, sent=True)} {refusal}"
    assert "User *** has no permissions" in shown
    assert "oscar" not in shown


def test_a_list_has_what_there_is_under_a_prefix(api: Api, redis_server: Server, admin: redis.Redis) -> None:
    """Keys without the store's prefix that begin as asked for, with entries that exist now, also those of others."""
    admin.flushall()
    keys = ["a:1", "a:", "a:*", "a?", "[a]", "A:1", "b\\", "\0", "schlüssel", "🔒", "k" * 1024]
    for prefix in ("", "locks:", "l*[k]\\"):
        store = api.open(redis_server.url, prefix=prefix)
        admin.flushall()
        entries = {key: put(store, key, key.encode()) for key in keys}
        store.invalidate("a:removed", put(store, "a:removed", b"").version)
        admin.set(f"{prefix}a:marker", b"7!gone")
        put(store, "a:expired", b"", ttl=0.001)
        until(lambda store=store: store.get("a:expired") is None)  # type: ignore[misc] # it takes none
        admin.set(f"{prefix}a:foreign", b"hello")
        admin.lpush(f"{prefix}a:list", b"x")
        admin.set(prefix.encode() + b"a:\xff", b"5:x")
        admin.set(prefix.encode() + b"a:" + b"k" * 1024, b"5:x")
        admin.set("other", b"hello")
        entries["a:foreign"] = Entry(b"hello", FOREIGN)
        if not prefix:
            entries["other"] = Entry(b"hello", FOREIGN)
        for begin in ("", "a", "a:", "a:*", "a?", "*", "?", "[", "[a]", "b\\", "\\", "🔒", "k", "nothing", *keys):
            expected = {key: entry for key, entry in entries.items() if key.startswith(begin)}
            listed = list(store.list(begin))
            assert len(listed) == len(expected)
            assert dict(listed) == expected, begin
    with pytest.raises(ValueError, match="lone surrogate"):
        list(api.open(redis_server.url).list("\ud800"))


def test_a_long_list_has_each_key_once(api: Api, redis_server: Server, admin: redis.Redis) -> None:
    """SCAN may repeat a key while the server's table grows, and it needs several requests for many."""
    admin.flushall()
    store = api.open(redis_server.url)
    names = {f"k{number}" for number in range(3000)}
    admin.mset(dict.fromkeys(names, b"5:x"))
    listed = [key for key, entry in store.list("k")]
    assert len(listed) == len(names)
    assert set(listed) == names
    assert isinstance(RedisStore.from_url(redis_server.url), ListingStore)
    assert isinstance(AsyncRedisStore.from_url(redis_server.url), AsyncListingStore)


def test_a_list_of_a_server_that_is_gone_is_unavailable(api: Api) -> None:
    """Each step raises what get raises."""
    with pytest.raises(StoreUnavailable, match="is unreachable"):
        list(api.open(f"redis://{HOST}:{free_port()}").list(""))


def test_a_connection_that_nobody_waits_for_fails_in_silence(new_redis: NewServer) -> None:
    """The task that asked is cancelled, and the server freezes: asyncio complains of nothing."""
    server = new_redis()

    async def main() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        store = AsyncRedisStore.from_url(f"{server.url}?socket_timeout=0.2&socket_connect_timeout=0.2")
        server.pause()
        for timeout in (0.1, 0.15):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.get("k"), timeout)
        await asyncio.sleep(0.3)  # the attempts to connect end
        with pytest.raises(StoreUnavailable):
            await store.get("k")
        server.resume()
        await store.get("k")
        server.pause()
        for _ in range(3):  # a reply that is late ends the connection, and with it what was asked after it
            with pytest.raises((TimeoutError, StoreUnavailable)):
                await asyncio.wait_for(store.get("k"), 0.1)
        with pytest.raises(StoreUnavailable):
            await asyncio.gather(store.get("k"), store.get("k"))
        server.resume()
        await store.aclose()
        del store
        gc.collect()
        return complaints

    assert asyncio.run(main()) == []


def test_an_acknowledgement_that_nobody_waits_for_fails_in_silence(new_redis: NewServer) -> None:
    """The server freezes before it has answered, and asyncio complains of nothing."""
    server = new_redis()

    async def main() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        store = AsyncRedisStore.from_url(f"{server.url}?socket_timeout=0.5&replicas=1")
        with pytest.raises(StoreUnavailable, match="replicas"):
            await store.get("k")
        server.pause()
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await store.get("k")
        server.resume()
        await store.aclose()
        del store
        gc.collect()
        return complaints

    assert asyncio.run(main()) == []


REDIS_6 = b"-ERR Error running script (call to f_3f4261b542d2102c96f9b711dba3840fe75aa284): @user_script:36: "
REDIS_7 = b" script: 3f4261b542d2102c96f9b711dba3840fe75aa284, on @user_script:36."


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (REDIS_6 + b"@user_script: 36: -OOM it's full", "(OutOfMemoryError: it's full): free memory"),
        (b"-OOM it's full" + REDIS_7, "(OutOfMemoryError: it's full): free memory"),
        (REDIS_6 + b"@user_script: 36: -READONLY a replica", "(ReadOnlyError: a replica): connect to the primary"),
        (b"-READONLY a replica" + REDIS_7, "(ReadOnlyError: a replica): connect to the primary"),
        (REDIS_6 + b"WRONGTYPE a list", "(ResponseError: WRONGTYPE a list): another program stores"),
        (
            REDIS_6 + b"@user_script: 36: The user executing the script can't run this command or subcommand",
            "(ResponseError: The user executing the script can't run this command or subcommand): grant the user",
        ),
        (
            b"-ERR ACL failure in script: No permissions to access a key" + REDIS_7,
            "(ResponseError: ACL failure in script: No permissions to access a key): grant the user",
        ),
    ],
)
def test_an_error_in_our_script_is_the_error_itself(api: Api, reply: bytes, told: str) -> None:
    """As Redis 6.2, 7.0 and 7.2 report it: where in our script that was helps nobody who reads it."""
    reader = new_reader()
    reader.feed(reply + b"\r\n")
    error = reader.gets()
    assert isinstance(error, Exception)
    assert told in str(api.open("redis://localhost")._server.failures.of(error))


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_server_that_needs_a_password_is_said_to(api: Api, new_redis: NewServer, protocol: int) -> None:
    """The error for a missing password says that one is needed, and not to check it."""
    server = new_redis("--requirepass", "s3cret-word")
    with pytest.raises(StoreError, match=r"requires a password") as caught:
        api.open(server.url, protocol=protocol).get("k")
    assert "HELLO" not in str(caught.value)
    assert "Check" not in str(caught.value)


def test_a_missing_password_is_a_refusal(api: Api, new_redis: NewServer) -> None:
    """NOAUTH and WRONGPASS are StoreErrors that say what to check; the right password opens."""
    server = new_redis("--requirepass", "right")
    for url in (server.url, server.url.replace("//", "//:wrong@")):
        for protocol in (2, 3):
            with pytest.raises(StoreError, match="password") as caught:
                api.open(url, protocol=protocol).get("k")
            assert not isinstance(caught.value, StoreUnavailable)
    put(api.open(server.url.replace("//", "//:right@")), "k", b"a")


@pytest.mark.parametrize(
    "url",
    ["redis://user:xyz/zyx@h:1/0", "http://user:xyz-zyx@h", "redis://:xyz?zyx=@h", "redis://h:zyx", "redis://h?db=zyx"],
)
def test_a_url_that_cannot_be_read_is_a_value_error_without_secrets(url: str) -> None:
    """The message says what to do, and quotes nothing of the URL."""
    for kind in (RedisStore, AsyncRedisStore):
        with pytest.raises(ValueError, match=r"percent-encode|the option db|the port of") as caught:
            kind.from_url(url)
        assert "zyx" not in "".join(traceback.format_exception(caught.value))


def test_a_url_opens_a_store(redis_server: Server) -> None:
    """Both classes read the URLs of redis-py, and show where they lead to."""
    store = RedisStore.from_url(redis_server.url + "?socket_timeout=20", prefix="p:")
    put(store, "url", b"a")
    assert repr(store) == f"RedisStore('redis://{HOST}:{redis_server.port}/0?prefix=p:')"
    store.close()
    locations = {
        "redis://": "redis://localhost:6379/0",
        "redis://user:pass@h:1/2": "redis://h:1/2",
        "rediss://:pass@h": "rediss://h:6379/0",
        "redis://[::1]:7?db=4": "redis://[::1]:7/4",
        "unix://user:pass@/run/redis.sock?db=1": "unix:///run/redis.sock?db=1",
        "redis+cluster://user:pass@b:1,[::1]:2,a?prefix=p": "redis+cluster://[::1]:2,a:6379,b:1?prefix=p",
        "rediss+cluster://a": "rediss+cluster://a:6379",
        "redis+sentinel://user:pass@b:1,a/mine/2?sentinel_password=word": "redis+sentinel://a:26379,b:1/mine/2",
        "rediss+sentinel://a:1,[::1]:2/mine": "rediss+sentinel://[::1]:2,a:1/mine/0",
    }
    for url, location in locations.items():
        assert RedisStore.from_url(url).traits.location == AsyncRedisStore.from_url(url).traits.location == location


def test_a_unix_socket_serves_too(api: Api, new_redis: NewServer, tmp_path: Path) -> None:
    """unix:// works, with a password too, and names its path."""
    path = tmp_path / "s"
    new_redis("--unixsocket", str(path), "--requirepass", "right")
    for protocol in (2, 3):
        store = api.open(f"unix://:right@{path}?db=2", protocol=protocol)
        assert store.traits.location == f"unix://{path}?db=2"
        put(store, f"k{protocol}", b"a")
        with pytest.raises(StoreError, match="password") as caught:
            api.open(f"unix://:wrong@{path}", protocol=protocol).get("k")
        assert not isinstance(caught.value, StoreUnavailable)


def test_clients_that_cannot_be_served_are_refused(api: Api) -> None:
    """A TypeError says which client is needed, before anything is sent."""
    for kind, other in ((RedisStore, redis.asyncio.Redis()), (AsyncRedisStore, redis.Redis())):
        with pytest.raises(TypeError, match="the client must be a redis"):
            kind(other)  # type: ignore[arg-type]  # that is the point
    for kind, cluster in ((RedisStore, AsyncRedisCluster), (AsyncRedisStore, RedisCluster)):
        with pytest.raises(TypeError, match="the client must be a redis"):
            kind(object.__new__(cluster))  # type: ignore[arg-type]  # that is the point
    sentinel: Any = (Sentinel if api.blocking else AsyncSentinel)([(HOST, 1)])
    with pytest.raises(TypeError, match="primary"):
        api.on(sentinel.slave_for("main"))


@pytest.mark.long
def test_replicas_must_acknowledge(api: Api, new_redis: NewServer) -> None:
    """With replicas=1 an answer counts only when a replica has it; the write is on the primary all the same."""
    server = new_redis("--repl-diskless-sync-delay", "0")
    store, plain = api.open(server.url, replicas=1, socket_timeout=1), api.open(server.url)
    with pytest.raises(StoreUnavailable, match="replicas") as caught:
        store.put_if_version("k", b"a", ABSENT, 30)
    assert caught.value.sent
    entry = plain.get("k")
    assert entry is not None
    with pytest.raises(StoreUnavailable, match="replicas"):
        store.get("k")  # else the lock would believe in a write that only the primary has
    with redis.Redis.from_url(server.url) as admin, contextlib.ExitStack() as stack:
        replica = new_redis("--replicaof", HOST, str(server.port))
        until(lambda: admin.info("replication")["connected_slaves"] == 1)
        until(lambda: admin.set("written", 1) and admin.wait(1, 100) == 1)  # with no write, it would wait for nothing
        admin.script_flush()
        second = put(store, "k", b"b", entry.version)
        copy = stack.enter_context(redis.Redis.from_url(replica.url))
        assert copy.get("k") == b"%d:b" % second.version
        assert store.get("k") == second
        assert store.invalidate("k", second.version) is None


@pytest.fixture
def sentinel(new_redis: NewServer, tmp_path: Path) -> Iterator[tuple[int, Server, Server]]:
    """A Sentinel's port, the primary it watches, and that one's replica."""
    if not shutil.which("redis-server"):
        absent("no redis-server on the PATH to run as a Sentinel: `make servers` installs one")
    primary = new_redis("--repl-diskless-sync-delay", "0")
    replica = new_redis("--replicaof", HOST, str(primary.port))
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(
        f"port {port}\nbind {HOST}\nsentinel monitor main {HOST} {primary.port} 1\n"
        "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
    )
    process = Process([shutil.which("redis-server") or "", str(tmp_path / "sentinel.conf"), "--sentinel"], tmp_path)
    process.start()
    try:
        with redis.Redis(port=port, host=HOST) as admin:

            def ready() -> bool:
                with contextlib.suppress(redis.ConnectionError):
                    return bool(admin.sentinel_slaves("main"))
                return False

            until(ready)
        yield port, primary, replica
    finally:
        process.remove()


def test_sentinel_leads_to_the_primary(api: Api, sentinel: tuple[int, Server, Server]) -> None:
    """A store on master_for finds the primary, past a dead Sentinel at once, and the new one after a failover."""
    port, primary, replica = sentinel
    watchers = [(HOST, free_port()), (HOST, port)]
    manager: Any = (Sentinel if api.blocking else AsyncSentinel)(watchers)
    store = api.on(manager.master_for("main"))
    hosts = ",".join(sorted(f"{host}:{port}" for host, port in watchers))
    assert store.traits.location == f"redis+sentinel://{hosts}/main/0"
    with Stopwatch() as watch:
        before = put(store, "k", b"a")
    assert watch.seconds < 1
    with redis.Redis.from_url(primary.url) as admin:
        assert admin.get("k") == b"%d:a" % before.version

    def copied() -> bool:
        with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(replica.url) as admin:
            return bool(admin.exists("k"))
        return False

    until(copied)
    with redis.Redis(port=port, host=HOST) as admin:

        def started() -> bool:
            with contextlib.suppress(redis.ResponseError):  # until it has looked at the replica
                return bool(admin.execute_command("SENTINEL", "FAILOVER", "main"))
            return False

        until(started)

    def moved() -> bool:
        with contextlib.suppress(StoreError, redis.ConnectionError), redis.Redis.from_url(replica.url) as admin:
            store.put_if_version("new", b"b", ABSENT, 30)
            return bool(admin.exists("new")) and admin.role()[0] in (b"master", "master")
        return False

    until(moved)
    assert store.get("k") == before
    assert api.by_url(f"redis+sentinel://{hosts}/main").get("k") == before


def test_tls_serves_too(api: Api, new_redis: NewServer, tmp_path: Path) -> None:
    """rediss:// works, and a certificate that is not trusted is unavailable with nothing sent."""
    if not shutil.which("openssl"):
        absent("no openssl on the PATH to make a certificate: `make servers` installs it")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    new_redis(
        "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
    )  # fmt: skip
    store = api.open(f"rediss://{HOST}:{port}", ssl_ca_certs=str(certificate))
    entry = put(store, "k", b"a")
    age(store)
    assert store.get("k") == entry
    assert store.traits.location == f"rediss://{HOST}:{port}/0"
    with pytest.raises(StoreUnavailable, match=r"is unreachable \(.*certificate verify failed") as caught:
        api.open(f"rediss://{HOST}:{port}").get("k")
    assert not caught.value.sent
