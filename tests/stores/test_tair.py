"""`TairStore` and `AsyncTairStore`, against an emulator of TairString, and against the module where it is named.

A test whose id has "emulator" shows nothing about the module.  ``CASLOCK_TEST_TAIR`` names the module: see
`tests.support.servers.tair_module`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio

from caslock import AsyncLock, Lock, NotAcquired
from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry, Store
from caslock.stores.redis import FOREIGN
from caslock.stores.tair import AsyncTairStore, TairStore
from caslock.stores.tair.requests import entry as read_entry
from caslock.testing.proxy import FaultProxy
from tests.conftest import NewServer
from tests.stores import opening
from tests.stores.opening import (
    QUOTED,
    SECRET,
    Opening,
    apis,
    expect_no_version_again,
    expect_refused,
    expect_requests,
    microseconds,
    put,
    store_on,
    unsent,
)
from tests.support.locations import fresh, until
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, REDIS, TAIR_EMULATOR, Kind, Server, free_port, missing, private, tair_module

api = apis(TairStore.from_url, AsyncTairStore.from_url)
store = store_on("tair_server")

refusal = partial(opening.refusal, place="tair://")


@pytest.fixture
def admin(tair_server: Server) -> Iterator[redis.Redis]:
    """Give a plain client of the shared server."""
    with client_of(tair_server) as client:
        yield client


def client_of(server: Server) -> redis.Redis:
    return redis.Redis.from_url(as_redis(server.url))


def as_redis(url: str) -> str:
    return url.replace("tair", "redis", 1)


def command(client: Any, *arguments: object) -> Any:  # noqa: ANN401 - of any type
    """Give the reply to a command that redis-py does not know."""
    return client.execute_command(*arguments)


def test_the_module_was_tried_too(tair: Kind) -> None:
    """The real module is tested where it is named; a skip of this test says that only the emulator was."""
    if tair is TAIR_EMULATOR and tair_module() is None:
        pytest.skip(f"missing: TairString (an emulator was tested): {tair.variable} names the module (URL or file)")


def test_the_redis_behind_the_emulator_ends_with_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that the emulator has started outlives it."""
    assert REDIS.binary() or missing(REDIS)
    folder = tmp_path_factory.mktemp("tair")

    def accepts() -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(folder / "redis.sock")) == 0

    with private(TAIR_EMULATOR, folder):
        assert accepts()
    assert until(lambda: not accepts())


def test_a_value_is_a_tairstring_with_a_ttl(store: Store, admin: redis.Redis, key: str) -> None:
    """A person can read a lock with EXGET; its version is the server's time, and the server ends it."""
    before, began = microseconds(admin), time.monotonic()
    entry = put(store, key, b'{"caslock":1}', ttl=7.5)
    assert command(admin, "EXGET", key) == [b'{"caslock":1}', entry.version]
    assert before < entry.version < microseconds(admin)
    left = admin.pttl(key)
    assert 7498 - 1000 * (time.monotonic() - began) < left <= 7500


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
    expect_no_version_again(store, admin, key, lambda ahead: command(admin, "EXSET", key, "a", "ABS", ahead))


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


@pytest.mark.parametrize(
    "kind", ["SET {} 1!gone", "RPUSH {} a", "HSET {} value a", "SADD {} a", "ZADD {} 1 a", "XADD {} * a b"]
)
def test_a_key_of_another_type_is_a_refusal(store: Store, admin: redis.Redis, key: str, kind: str) -> None:
    """WRONGTYPE is a StoreError that says what to do; the value stays, and the connection goes on."""
    command(admin, *kind.format(key).split())
    before = admin.dump(key)
    for refused in expect_refused(store, key, "WRONGTYPE.*other than a TairString", place="tair://"):
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
            refusal(partial(store.put_if_version, key, b"b", version, 30), "raise the server's maxmemory")
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
    told = "The server has no TairString; load the module"
    acquire = partial(Lock(store, "the key").acquire, timeout=1)
    for refused in [*expect_refused(store, "the key", told, place="tair://"), refusal(acquire, told)]:
        assert f"tair://{HOST}:{server.port}/3 has refused" in str(refused)
        assert "the value" not in f"{refused!r} {refused.__cause__!r} {refused.__cause__.__context__!r}"  # type: ignore[union-attr] # there is one


def test_an_excas_without_px_is_a_clear_refusal(api: Opening, new_tair: NewServer, tair: Kind) -> None:
    """As the cloud service documents it: a StoreError at the first acquire, and nothing is left there."""
    if tair is not TAIR_EMULATOR:
        pytest.skip("the module's EXCAS takes PX")
    server = new_tair("--excas-without-px")
    refused = refusal(partial(Lock(api.open(server.url), "k").acquire, timeout=1), "Leases need EXCAS with PX")
    assert server.url in str(refused)
    with client_of(server) as admin:
        assert admin.keys() == []


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
    with pytest.raises(redis.exceptions.InvalidResponse, match="invalid reply"):
        read_entry(b"", reply)


def test_an_uncontended_cycle_is_two_requests(api: Opening, tair_server: Server, key: str) -> None:
    """One to acquire and one to release; a look and a renewal are one each."""
    with FaultProxy(tair_server.host, tair_server.port) as proxy:
        store = api.open(f"tair://{HOST}:{proxy.port}/0")
        store.invalidate(key, put(store, key).version)  # the server knows the scripts from here on
        entry = expect_requests(1, proxy, lambda: put(store, key))
        assert expect_requests(1, proxy, lambda: store.get(key)) == entry
        renewed = expect_requests(1, proxy, lambda: put(store, key, b"2", entry.version))
        assert expect_requests(1, proxy, lambda: store.invalidate(key, renewed.version)) is None


def test_replicas_are_waited_for(api: Opening, new_tair: NewServer) -> None:
    """With replicas=1 an answer counts only when a replica has it; there is none."""
    server = new_tair()
    put(api.open(server.url), "k", b"both know the script now", ttl=30)
    store = api.open(server.url, replicas=1)
    opening.beneath(store)._server.acknowledge = b"WAIT 1 500\r\n"  # 0.5 s instead of 10 s
    with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas acknowledged it"):
        store.put_if_version("k", b"a", ABSENT, 30)


@pytest.mark.long
@in_a_loop
async def test_a_cluster_serves_too(new_tair: NewServer) -> None:
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
    client = redis.asyncio.RedisCluster.from_url(as_redis(server.url))
    async with AsyncTairStore(client) as native, AsyncLock(native, "a", ttl=30, timeout=50) as hold:
        assert hold.fence


@pytest.mark.long
def test_tls_hints_are_those_of_a_tair(tair_server: Server, api: Opening) -> None:
    """A port without TLS is said to need tair://."""
    store = api.open(f"tairs://{tair_server.host}:{tair_server.port}?socket_timeout=2")
    assert "redis://" not in str(unsent(partial(store.get, "k"), "tair://"))
