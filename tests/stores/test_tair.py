"""`TairStore` and `AsyncTairStore`, against an emulator of TairString, and against the module where it is named.

A test whose id has "emulator" shows nothing about the module.  ``CASLOCK_TEST_TAIR`` names the module: see
`tests.support.servers.tair_module`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

import caslock
from caslock import AsyncLock, Lock, NotAcquired, connect, connect_async
from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry, Store
from caslock.stores.redis import FOREIGN
from caslock.stores.tair import AsyncTairStore, TairStore
from caslock.stores.tair.requests import entry as read_entry
from caslock.testing.proxy import FaultProxy
from caslock.testing.stopwatch import Stopwatch
from tests.stores import opening
from tests.stores.opening import QUOTED, SECRET, Opening, apis, microseconds, put, unsent
from tests.support.locations import fresh, until
from tests.support.servers import HOST, REDIS, TAIR_EMULATOR, free_port, missing, private, tair_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import NewServer
    from tests.support.servers import Kind, Server

api = apis(TairStore.from_url, AsyncTairStore.from_url)

refusal = partial(opening.refusal, place="tair://")


@pytest.fixture
def store(api: Opening, tair_server: Server) -> Store:
    """Return a store on the shared server."""
    return api.open(tair_server.url)


@pytest.fixture
def admin(tair_server: Server) -> Iterator[redis.Redis]:
    """Give a plain client of the shared server."""
    with client_of(tair_server) as client:
        yield client


def client_of(server: Server) -> redis.Redis:
    """Make a plain client."""
    return redis.Redis.from_url(as_redis(server.url))


def as_redis(url: str) -> str:
    """Give the URL of the same server for redis-py."""
    return url.replace("tair", "redis", 1)


def command(client: Any, *arguments: object) -> Any:  # noqa: ANN401 - of any type
    """Give the reply to a command that redis-py does not know."""
    return client.execute_command(*arguments)


def test_the_module_was_tried_too(tair: Kind) -> None:
    """The real module is tested where it is named; a skip of this test says that only the emulator was."""
    if tair is TAIR_EMULATOR and tair_module() is None:
        pytest.skip(f"only an emulator of TairString was tested: {tair.variable} names the module (a URL or its file)")


def test_the_redis_behind_the_emulator_ends_with_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that the emulator has started outlives it."""
    if not any(map(shutil.which, REDIS.binaries)):
        missing(REDIS)
    folder = tmp_path_factory.mktemp("tair")

    def accepts() -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(folder / "redis.sock")) == 0

    with private(TAIR_EMULATOR, folder):
        assert accepts()
    assert until(lambda: not accepts())


def test_a_value_is_a_tairstring_with_a_ttl(store: Store, admin: redis.Redis, key: str) -> None:
    """A person can read a lock with EXGET; its version is the server's time, and the server ends it."""
    before = microseconds(admin)
    began = time.monotonic()
    entry = put(store, key, b'{"caslock":1}', ttl=7.5)
    assert command(admin, "EXGET", key) == [b'{"caslock":1}', entry.version]
    assert before < entry.version < microseconds(admin)
    left = admin.pttl(key)
    assert 7498 - 1000 * (time.monotonic() - began) < left <= 7500


def test_versions_grow_over_a_restart(api: Opening, new_tair: NewServer, key: str) -> None:
    """A server that has lost everything goes on with larger versions."""
    server = new_tair()
    before = put(api.open(server.url), key, b"a")
    server.restart()
    store = api.open(server.url)
    assert store.get(key) is None
    assert put(store, key, b"b").version > before.version


def test_a_removed_entry_whose_version_is_ahead_of_the_clock_leaves_its_version(
    store: Store, admin: redis.Redis, key: str
) -> None:
    """After the clock stepped back, the next tenure has a larger version all the same, and the stale one stays out."""
    ahead = microseconds(admin) + 3_600_000_000
    command(admin, "EXSET", key, "a", "PX", 60_000, "ABS", ahead)
    assert store.invalidate(key, ahead) is None
    assert store.get(key) is None
    assert command(admin, "EXGET", key) == [b"%d!gone" % ahead, 0]
    assert 3_500_000 < admin.pttl(key) <= 3_600_002
    assert store.put_if_version(key, b"stale", ahead, 30) is None
    assert store.invalidate(key, ahead) is None
    entry = put(store, key, b"b")
    assert entry.version == ahead + 1
    assert admin.pttl(key) > 3_500_000
    assert store.invalidate(key, entry.version) is None


def test_a_key_goes_only_when_the_clock_has_passed_its_version(store: Store, admin: redis.Redis, key: str) -> None:
    """Neither expiry nor removal lets a version come again."""
    for end in ("expiry", "removal"):
        ahead = microseconds(admin) + 50_000
        command(admin, "EXSET", key, "a", "ABS", ahead)
        entry = put(store, key, b"b", ahead, ttl=0.001)
        if end == "removal":
            assert store.invalidate(key, entry.version) is None
        assert until(lambda: not admin.exists(key))
        assert microseconds(admin) > entry.version
        assert put(store, key, b"c").version > entry.version
        admin.delete(key)


@pytest.mark.parametrize("value", [b"x", b"", b"5!gone", b"0!gone", b"x5!gone"])
@pytest.mark.parametrize("version", [0, 2**53 - 1, 2**53])
def test_a_version_that_is_not_ours_is_never_matched(
    store: Store, admin: redis.Redis, key: str, version: int, value: bytes
) -> None:
    """Another program's version that a script can't compare exactly is held by an unknown owner, for ever."""
    if (version, value) == (0, b"5!gone"):
        return  # this is what a removal leaves
    command(admin, "EXSET", key, value, "PX", 60_000, "ABS", version)
    foreign = Entry(value, FOREIGN)
    assert store.get(key) == foreign
    for tried in (ABSENT, FOREIGN, version, 1, 2**53 - 2):
        assert store.put_if_version(key, b"ours", tried, 30) == foreign
        assert store.invalidate(key, tried) == foreign
    assert command(admin, "EXGET", key) == [value, version]
    with pytest.raises(NotAcquired), Lock(store, key, ttl=5, timeout=0):
        pass
    admin.delete(key)


@pytest.mark.parametrize("kind", ["string", "list", "hash", "set", "zset", "stream"])
def test_a_key_of_another_type_is_a_refusal(store: Store, admin: redis.Redis, key: str, kind: str) -> None:
    """WRONGTYPE is a StoreError that says what to do; the value stays, and the connection goes on."""
    filled: dict[str, Callable[[], object]] = {
        "string": lambda: admin.set(key, "1!gone"),
        "list": lambda: admin.rpush(key, "a"),
        "hash": lambda: admin.hset(key, "value", "a"),
        "set": lambda: admin.sadd(key, "a"),
        "zset": lambda: admin.zadd(key, {"a": 1}),
        "stream": lambda: admin.xadd(key, {"a": "b"}),
    }
    filled[kind]()
    before = admin.dump(key)
    calls: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.put_if_version(key, b"", ABSENT, 1),
        lambda: store.put_if_version(key, b"", 5, 1),
        lambda: store.invalidate(key, 5),
    ]
    for call in calls:
        refused = refusal(call, "WRONGTYPE.*other than a TairString")
        assert "script" not in str(refused)
        assert isinstance(refused.__cause__, redis.ResponseError)
    assert admin.dump(key) == before
    put(store, fresh(), b"a", ttl=1)


def test_a_full_server_refuses_acquires_and_allows_releases(api: Opening, new_tair: NewServer) -> None:
    """Out of memory is a StoreError for a put; what is held can still be released, and a loser still hears who is."""
    server = new_tair()
    store = api.open(server.url)
    entry = put(store, "held", b"a")
    with client_of(server) as admin:
        ahead = microseconds(admin) + 3_600_000_000
        command(admin, "EXSET", "ahead", "a", "ABS", ahead)
        admin.config_set("maxmemory", "1")
        for key, version in (("new", ABSENT), ("held", entry.version)):
            refusal(partial(store.put_if_version, key, b"b", version, 30), "raise its maxmemory")
        assert store.put_if_version("held", b"b", ABSENT, 30) == entry
        assert store.get("held") == entry
        assert store.invalidate("held", entry.version) is None
        assert store.invalidate("ahead", ahead) is None
        assert store.get("held") is store.get("ahead") is store.get("new") is None
        admin.config_set("maxmemory", "0")
    assert put(store, "ahead", b"a").version == ahead + 1
    put(store, "new", b"a")


@pytest.mark.parametrize("user", ["", f":{QUOTED}@"], ids=["open", "with a password"])
def test_a_server_without_tairstring_is_a_clear_refusal(api: Opening, new_redis: NewServer, user: str) -> None:
    """A plain Redis is a StoreError at the first use of any verb, which says what is missing and where; no secret."""
    server = new_redis(*(["--requirepass", SECRET] if user else []))
    store = api.open(f"tair://{user}{HOST}:{server.port}/3")
    calls: list[Callable[[], object]] = [
        lambda: store.put_if_version("the key", b"the value", ABSENT, 1),
        lambda: store.put_if_version("the key", b"the value", 5, 1),
        lambda: store.invalidate("the key", 5),
        lambda: store.get("the key"),
        lambda: Lock(store, "the key").acquire(timeout=1),
    ]
    for call in calls:
        refused = refusal(call, "the server has no TairString; load the module")
        assert f"tair://{HOST}:{server.port}/3 refused" in str(refused)
        assert "the value" not in f"{refused!r} {refused.__cause__!r} {refused.__cause__.__context__!r}"  # type: ignore[union-attr] # there is one


def test_an_excas_without_px_is_a_clear_refusal(api: Opening, new_tair: NewServer, tair: Kind) -> None:
    """As the cloud service documents it: a StoreError at the first acquire, and nothing is left there."""
    if tair is not TAIR_EMULATOR:
        pytest.skip("the module's EXCAS takes PX")
    server = new_tair("--excas-without-px")
    refused = refusal(partial(Lock(api.open(server.url), "k").acquire, timeout=1), "leases need an EXCAS with PX")
    assert server.url in str(refused)
    with client_of(server) as admin:
        assert admin.keys() == []


def test_a_wrong_password_is_nowhere_to_be_read(api: Opening, new_tair: NewServer) -> None:
    """It is a refusal that says what to check."""
    server = new_tair("--requirepass", "right")
    for user in ("", f":{QUOTED}@"):
        refused = refusal(partial(api.open(server.url.replace("//", f"//{user}")).get, "k"), "password")
        assert "w0rd" not in "".join(traceback.format_exception(refused))
    put(api.open(server.url.replace("//", "//:right@")), "k", b"a")


def test_a_user_without_rights_is_told_which(api: Opening, new_tair: NewServer) -> None:
    """NOPERM names the commands of this store."""
    server = new_tair()
    with client_of(server) as admin:
        command(admin, "ACL", "SETUSER", "reader", "on", ">s", "~*", "+@connection", "+get")
    with pytest.raises(StoreError, match=r"evalsha, exget, exset, excas, del and time"):
        api.open(server.url.replace("//", "//reader:s@")).put_if_version("k", b"", ABSENT, 1)


@pytest.mark.parametrize("reply", [b"OK", [b"a"], [b"a", b"1"], [1, b"a"], [], [b"OK", b"", 5]])
def test_another_answer_is_a_refusal_and_no_absence(reply: Any) -> None:  # noqa: ANN401 - of any type
    """What is not understood is never taken for "nothing is there"."""
    with pytest.raises(StoreError, match="something else than a value and a version"):
        read_entry(b"", reply)


def test_an_uncontended_lock_takes_two_requests(tair_server: Server, key: str) -> None:
    """One to acquire and one to release, also with asyncio; a look and a renewal are one each."""
    url = f"tair://{HOST}:{{}}/0"
    with FaultProxy(tair_server.host, tair_server.port) as proxy, connect(url.format(proxy.port)) as store:
        lock = Lock(store, key, ttl=30)
        with lock:
            pass
        before = proxy.requests
        with lock:
            assert proxy.requests == before + 1
        assert proxy.requests == before + 2
        with lock as hold:
            hold.extend(20)
            lock.holder()
        assert proxy.requests == before + 6

        async def main() -> int:
            async with connect_async(url.format(proxy.port)) as store:
                lock = AsyncLock(store, key, ttl=30)
                async with lock:
                    pass
                before = proxy.requests
                async with lock:
                    pass
                return proxy.requests - before

        assert asyncio.run(main()) == 2


def test_waiters_poll(tair_server: Server, key: str) -> None:
    """The store queues nobody, and wakes nobody; a waiter has the key soon after all the same."""
    with connect(tair_server.url) as store, connect(tair_server.url) as another:
        for kind in (caslock.QueueingStore, caslock.WatchingStore, caslock.BatchingStore):
            assert not isinstance(store, kind)
        assert store.traits == (tair_server.url, True, True, 0.05, 20.0)
        hold = Lock(store, key, ttl=30).acquire(timeout=0)
        assert hold is not None
        assert Lock(another, key, ttl=30).acquire(timeout=0.1) is None
        hold.release()
        with Stopwatch() as watch, Lock(another, key, ttl=30, timeout=50) as later:
            assert watch.seconds < 2
            assert later.fence > hold.fence


def test_replicas_are_waited_for(api: Opening, new_tair: NewServer) -> None:
    """With replicas=1 an answer counts only when a replica has it; there is none."""
    server = new_tair()
    put(api.open(server.url), "k", b"both know the script now", ttl=30)
    with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas acknowledged it"):
        api.open(f"{server.url}?socket_timeout=2", replicas=1).put_if_version("k", b"a", ABSENT, 30)


@pytest.mark.long
def test_a_cluster_serves_too(new_tair: NewServer) -> None:
    """A RedisCluster leads to the node that has the key, with either API."""
    server = new_tair("--cluster-enabled", "yes", "--cluster-announce-ip", HOST, "--cluster-port", str(free_port()))
    with client_of(server) as admin:
        command(admin, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        assert until(lambda: b"cluster_state:ok" in command(admin, "CLUSTER", "INFO"))
    with TairStore(redis.cluster.RedisCluster.from_url(as_redis(server.url))) as store:
        assert store.traits.location == f"tair+cluster://{HOST}:{server.port}"
        for name in "abcdef":
            with Lock(store, name, ttl=30, timeout=50) as hold:
                assert hold.fence
            assert store.get(name) is None

    async def main() -> None:
        client = redis.asyncio.RedisCluster.from_url(as_redis(server.url))
        async with AsyncTairStore(client) as store, AsyncLock(store, "a", ttl=30, timeout=50) as hold:
            assert hold.fence

    asyncio.run(main())


def test_an_unreachable_server_is_named_as_a_tair(api: Opening) -> None:
    """The location and the hints are in the words of the URL."""
    unsent(
        lambda: api.open("tair://127.0.0.1:1").get("k"), r"tair://127.0.0.1:1/0 is unreachable \(connection refused\)"
    )


@pytest.mark.long
def test_tls_hints_are_those_of_a_tair(tair_server: Server, api: Opening) -> None:
    """A port without TLS is said to need tair://."""
    with pytest.raises(StoreUnavailable, match=r"tair://") as caught:
        api.open(f"tairs://{tair_server.host}:{tair_server.port}?socket_timeout=2").get("k")
    assert "redis://" not in str(caught.value)
    assert not caught.value.sent
