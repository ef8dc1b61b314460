"""`RedisStore` and `AsyncRedisStore` against real Redis servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

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
from caslock.store import ABSENT, Entry, Store, Traits
from caslock.stores.redis import FOREIGN, AsyncRedisStore, RedisStore
from caslock.stores.redis.pipeline import Pipeline
from caslock.stores.redis.sockets import Connection
from caslock.stores.redis.wire import new_reader
from caslock.testing.proxy import foreign_port, refused_port
from caslock.testing.steps import again, in_a_thread
from caslock.testing.stopwatch import Stopwatch
from tests.conftest import NewServer
from tests.proof.torture.failover import Watched, said
from tests.stores.opening import (
    QUOTED,
    SECRET,
    Opening,
    apis,
    beneath,
    each_verb,
    expect_no_version_again,
    expect_refused,
    made,
    microseconds,
    put,
    refusal,
    store_on,
    unsent,
)
from tests.stores.test_redis_batch import put_and_remove
from tests.support.locations import present, until
from tests.support.rewriting import RewritingProxy
from tests.support.servers import HOST, Server, free_port, ringing

Client = Any  # one of two classes of redis-py, which share no type
Option = Any
Opened = Any  # a store of either API, whose verbs block


api = apis(partial(made, RedisStore), partial(made, AsyncRedisStore))
store = store_on("redis_server")


def client(api: Opening, url: str, **options: Option) -> Client:
    return (redis if api.blocking else redis.asyncio).Redis.from_url(url, **options)


def age(store: Store) -> None:
    """Make the idle connections look as if they had not been used for a minute."""
    for connection in idle(store):
        connection.used -= 60


def idle(store: Store) -> list[Connection | Pipeline]:
    connections: Any = beneath(store)._connections
    if isinstance(beneath(store), AsyncRedisStore):
        return [link for each in connections._loops._loops.values() for link in each.connections._for_requests._stack]
    return list(connections._for_requests._stack)


def test_a_value_in_redis_is_version_colon_value_with_a_ttl(store: Store, admin: redis.Redis) -> None:
    """A person can read a lock in redis-cli, and Redis ends it."""
    begun = time.monotonic()
    entry = put(store, "k", b'{"caslock":1}', ttl=7.5)
    assert admin.get("k") == b'%d:{"caslock":1}' % entry.version
    left = admin.pttl("k")
    assert 7498 - 1000 * (time.monotonic() - begun) < left <= 7501


def test_versions_grow_over_a_restart(api: Opening, new_redis: NewServer) -> None:
    """A server that has lost everything goes on with larger versions; an idle connection is checked first."""
    server = new_redis()
    store = api.open(server.url)
    before = put(store, "k", b"a")
    server.restart()
    age(store)
    assert store.get("k") is None
    assert put(store, "k", b"b").version > before.version


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
    expect_no_version_again(store, admin, "k", lambda ahead: admin.set("k", b"%d:a" % ahead))


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


def test_the_shortest_ttl_is_a_millisecond_and_the_longest_a_hundred_years(store: Store, admin: redis.Redis) -> None:
    """None is rounded to nothing, and none overflows."""
    entry = put(store, "k", b"a", ttl=100 * 365 * 86400)
    assert admin.pttl("k") > 99 * 365 * 86_400_000
    put(store, "k", b"a", entry.version, ttl=1e-9)
    assert until(lambda: store.get("k") is None)


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
        "cmdstat_xadd": 2,  # the put in place of an entry, and the removal, would wake those who watch it
        "cmdstat_zpopmin": 1,
    }


def test_a_key_of_another_type_is_a_refusal(store: Store, admin: redis.Redis) -> None:
    """A list under the key is a StoreError that says what to do, and the connection goes on."""
    admin.lpush("list", "a")
    for refused in expect_refused(store, "list", "WRONGTYPE.*another key"):
        assert "script" not in str(refused)
        assert isinstance(refused.__cause__, redis.ResponseError)
    put(store, "k", b"a")
    assert admin.lrange("list", 0, -1) == [b"a"]


def test_a_replica_refuses_and_is_left(api: Opening, redis_server: Server, new_redis: NewServer) -> None:
    """READONLY is a StoreError, and the connection is not used again: the primary may be elsewhere now."""
    replica = new_redis("--replicaof", HOST, str(redis_server.port))
    store = api.open(replica.url)
    refusal(partial(store.put_if_version, "k", b"a", ABSENT, 30), "primary")
    assert not idle(store)


def test_too_few_replicas_by_the_servers_own_rule_is_a_refusal(api: Opening, new_redis: NewServer) -> None:
    """NOREPLICAS is answered before the write: nothing has happened."""
    store = api.open(new_redis("--min-replicas-to-write", "1").url)
    refusal(partial(store.put_if_version, "k", b"a", ABSENT, 30), "min-replicas-to-write")
    assert store.get("k") is None


def test_a_busy_server_is_unavailable(api: Opening, new_redis: NewServer) -> None:
    """BUSY says try again."""
    server = new_redis("--lua-time-limit", "10")
    store = api.open(server.url)
    put(store, "k", b"a")
    with redis.Redis.from_url(server.url) as admin:
        spinning = in_a_thread(lambda: admin.eval("while true do end", 0))

        def busy() -> bool:
            try:
                store.get("k")
            except StoreUnavailable as error:
                return "BUSY" in str(error)
            return False

        assert until(busy)
        with redis.Redis.from_url(server.url) as other:
            other.script_kill()
        assert isinstance(spinning.exception(50), redis.ResponseError)
    assert store.get("k") is not None


def test_an_answer_that_redis_does_not_give_is_none(api: Opening) -> None:
    """A server that echoes what it gets sends arrays back: no verb takes one for an entry, or for its absence."""
    nothing = {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}
    with foreign_port(lambda request: request) as port:
        store = api.open(client(api, f"redis://{HOST}:{port}", protocol=2, **nothing))
        for ask in each_verb(store, "k", 1):
            with pytest.raises(StoreUnavailable):
                ask()


def test_a_port_for_tls_is_told_apart(api: Opening) -> None:
    """It answers by an alert of TLS to what is none."""
    with foreign_port(lambda _: b"\x15\x03\x03\0\2\2F") as port:
        store = api.open(f"redis://{HOST}:{port}")
        with pytest.raises(StoreUnavailable, match="use rediss://"):
            store.get("k")


def test_sentinels_that_are_not_there_are_named_without_their_settings() -> None:
    """Given Sentinels that refuse connections, the error names the location and the service, and shows no client."""
    with refused_port() as port:
        sentinel: Client = Sentinel
        store = RedisStore(sentinel([(HOST, port)], socket_timeout=1).master_for("locks"))
        error = unsent(partial(store.get, "k"), "is unreachable")
    location = f"redis+sentinel://{HOST}:{port}/locks/0"
    hint = "check the name; are these Sentinels, and do they need ?sentinel_password=?"
    assert str(error) == f"{location} is unreachable (no master found for 'locks'): {hint}"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("hiredis", ["hiredis", ""])
@pytest.mark.parametrize("decode", ["decodes", ""])
def test_the_clients_protocol_and_parser_do_not_matter(
    api: Opening, redis_server: Server, protocol: int, hiredis: str, decode: str
) -> None:
    """RESP 2 and 3, with hiredis and without it, and a client that decodes: bytes come back as they were written."""
    if api.blocking:
        parser: Any = _HiredisParser if hiredis else _RESP2Parser
    else:
        parser = _AsyncHiredisParser if hiredis else _AsyncRESP2Parser
    options: Option = {"protocol": protocol, "parser_class": parser, "decode_responses": bool(decode)}
    store = api.open(client(api, redis_server.url, client_name="me", **options))
    key = f"{protocol}{hiredis}{decode}{api.blocking}"
    value = bytes(range(256))
    entry = put(store, key, value)
    assert store.get(key) == entry
    assert store.put_if_version(key, b"b", ABSENT, 30) == entry
    age(store)
    assert store.get(key) == entry
    assert store.invalidate(key, entry.version) is None
    assert store.get(key) is None


def test_a_client_is_only_asked_for_its_settings(api: Opening, new_redis: NewServer) -> None:
    """Database and name are the client's, the connections are ours, and the client gets none of them."""
    server = new_redis()
    store = api.open(client(api, f"redis://{HOST}:{server.port}/3?client_name=worker"))
    assert store.traits._replace(request_timeout=2.0) == Traits(f"redis://{HOST}:{server.port}/3")
    assert store.traits.request_timeout in {20.0, 5.0}  # redis-py 8 sets 5 s where its caller sets nothing
    put(store, "k", b"a")
    with redis.Redis(host=HOST, port=server.port, db=3) as admin:
        assert admin.exists("k")
        assert [each["name"] for each in admin.client_list()].count("worker") == 1
        store.close()
        assert until(lambda: "worker" not in [each["name"] for each in admin.client_list()])
    assert store.get("k") is not None


@pytest.mark.long
def test_no_signal_begins_a_timeout_anew(api: Opening, new_redis: NewServer) -> None:
    """A server that is silent costs one timeout, however often a signal comes meanwhile."""
    server = new_redis()
    store = api.open(f"{server.url}?socket_timeout=0.6")
    again(partial(put, store, "k", b"a"))
    server.pause()
    rescue = threading.Timer(10.0, server.resume)  # of a request that would wait for ever
    rescue.start()
    with Stopwatch() as watch, ringing(), pytest.raises(StoreUnavailable, match="gave no usable answer"):
        store.put_if_version("other", b"b", ABSENT, 30)
    assert watch.seconds <= 0.6
    rescue.cancel()
    server.resume()


def test_a_timeout_is_always_set(api: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds where the client sets none, and as long for a connection as for an answer."""
    monkeypatch.setattr("caslock.stores.redis.server._TIMEOUT", 2.0)  # in place of the patience of the tests
    opened = {
        api.open("redis://h"): (2, 2),
        api.open(client(api, "redis://h", socket_timeout=None, socket_connect_timeout=None)): (2, 2),
        api.open("redis://h?socket_timeout=0.5"): (0.5, 0.5),
        api.open("redis://h?socket_connect_timeout=0.5"): (2, 0.5),
        api.open(client(api, "redis://h", socket_timeout=7, socket_connect_timeout=1)): (7, 1),
    }
    for store, timeouts in opened.items():
        assert (beneath(store)._server.timeout, beneath(store)._server.opener()().socket_connect_timeout) == timeouts


def test_a_reply_that_was_not_asked_for_answers_no_request(api: Opening, redis_server: Server) -> None:
    """One reply too many ends its connection, and the next request goes out on a new one."""
    with contextlib.closing(RewritingProxy(redis_server)) as proxy:
        store = api.open(f"redis://{HOST}:{proxy.port}")
        entry = put(store, "asked for", b"a", ttl=5)
        proxy.rewrite = lambda data: data + b"$-1\r\n"
        assert store.get("asked for") == entry
        proxy.rewrite = lambda data: data
        assert store.get("asked for") == entry


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
        for _ in range(20):
            await put_and_remove(store, name)
        await store.aclose()

    for number in range(3):
        asyncio.run(work(f"loop{number}"))
    with ThreadPoolExecutor() as pool:
        list(pool.map(asyncio.run, [work(f"thread{number}") for number in range(4)]))
    assert len(cast("Any", store)._connections._loops._loops) <= 5


def test_all_idle_connections_are_dropped_when_one_is_found_dead(
    api: Opening, redis_server: Server, admin: redis.Redis
) -> None:
    """A restart or a failover kills them all: the second request after it goes out on a new connection."""
    store = api.open(redis_server.url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.get, ["k"] * 64))
    admin.client_kill_filter(_type="normal", skipme=True)
    with contextlib.suppress(StoreUnavailable):
        store.get("k")
    for _ in range(10):
        store.get("k")


def test_a_password_is_nowhere_to_be_read(api: Opening, new_redis: NewServer) -> None:
    """Neither the location, nor the repr, nor an error with all its causes shows a password or a user."""
    server = new_redis()
    user = "oscar-user"
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", f">{SECRET}", "~*", "+@all", "-get")
        url = f"redis://{user}:{QUOTED}@{HOST}:{server.port}/0"
        denied = api.open(url)
        wrong = api.open(url.replace("p%40", "q%40"))
        for protocol in (2, 3):
            for store in (denied, wrong, api.open(f"{url}?protocol={protocol}")):
                with pytest.raises(StoreError) as caught:
                    store.get("k")
                assert not isinstance(caught.value, StoreUnavailable)
                shown = "".join(traceback.format_exception(caught.value)) + repr(beneath(store)) + store.traits.location
                for secret in (user, SECRET, QUOTED, SECRET.replace("p@", "q@")):
                    assert secret not in shown
        admin.execute_command("ACL", "SETUSER", user, "+get")
    assert denied.get("k") is None
    assert denied.traits.location == f"redis://{HOST}:{server.port}/0"


def test_a_refusal_says_what_to_do(api: Opening, new_redis: NewServer) -> None:
    """Who may not write in a script is told which rights that needs; and who names a Cluster, that there is none."""
    server = new_redis()
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "reader", "on", ">another", "~*", "+@all", "-set")
    reader = api.open(f"redis://reader:another@{HOST}:{server.port}/0")
    with pytest.raises(StoreError, match="Grant the user eval, evalsha, get, set, del and time"):
        reader.put_if_version("k", b"v", ABSENT, 5)
    cluster = caslock.connect(f"redis+cluster://{HOST}:{server.port}")
    with cluster, pytest.raises(StoreError, match="is not part of a Redis Cluster; use a URL that names one server"):
        cluster.get("k")


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("provides", [True, False], ids=["by a provider", "in the URL"])
def test_a_server_that_does_not_know_auth_does_not_betray_the_password(
    api: Opening, new_redis: NewServer, protocol: int, *, provides: bool
) -> None:
    """It repeats the arguments of AUTH or HELLO in its error; a provider's are not known before they are sent."""
    server = new_redis("--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
    provider = redis.UsernamePasswordCredentialProvider("oscar-user", "s3cret-word")
    if provides:
        store = api.open(client(api, server.url, protocol=protocol, credential_provider=provider))
    else:
        store = api.open(f"redis://oscar-user:s3cret-word@{HOST}:{server.port}?protocol={protocol}")
    with pytest.raises(StoreError, match="unknown command") as caught:
        store.get("k")
    shown = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in shown
    assert provides or "oscar" not in shown


def test_a_server_that_names_the_user_does_not_betray_it(api: Opening) -> None:
    """Redis 7.2 and newer do so in NOPERM."""
    store = api.open("redis://oscar-user:s3cret-word@localhost")
    refusal = redis.exceptions.NoPermissionError("User oscar-user has no permissions to run the 'get' command")
    shown = f"{beneath(store)._server.failures.of(refusal, sent=True)} {refusal}"
    assert "User *** has no permissions" in shown
    assert "oscar" not in shown


def test_a_list_has_what_there_is_under_a_prefix(api: Opening, redis_server: Server, admin: redis.Redis) -> None:
    """Keys without the store's prefix, with entries that exist now, also those of others."""
    keys = ["a:1", "a:", "a:*", "a?", "[a]", "A:1", "schlüssel", "k" * 1024]
    for prefix in ("", "locks:", "l*[k]\\"):
        store = api.open(redis_server.url, prefix=prefix)
        admin.flushall()
        entries = {key: put(store, key, key.encode()) for key in keys}
        admin.set(f"{prefix}a:marker", b"7!gone")
        admin.set(f"{prefix}a:foreign", b"hello")
        admin.lpush(f"{prefix}a:list", b"x")
        admin.set(prefix.encode() + b"a:\xff", b"5:x")
        admin.set(prefix.encode() + b"a:" + b"k" * 1024, b"5:x")
        admin.set("other", b"hello")
        for foreign in ("a:foreign", *(["other"] if not prefix else [])):
            entries[foreign] = Entry(b"hello", FOREIGN)
        for begin in ("", "a", "a:*", "[", *keys):
            listed = list(store.list(begin))
            assert sorted(listed) == sorted(pair for pair in entries.items() if pair[0].startswith(begin)), begin
    with pytest.raises(ValueError, match="lone surrogate"):
        list(api.open(redis_server.url).list("\ud800"))


def test_a_long_list_has_each_key_once(api: Opening, redis_server: Server, admin: redis.Redis) -> None:
    """SCAN may repeat a key while the server's table grows, and it needs several requests for many."""
    store = api.open(redis_server.url)
    names = {f"k{number}" for number in range(3000)}
    admin.mset(dict.fromkeys(names, b"5:x"))
    assert sorted(key for key, _ in store.list("k")) == sorted(names)


def complaints(server: Server, options: str, act: Callable[[AsyncRedisStore], Awaitable[None]]) -> list[dict[str, Any]]:
    """Act with a store, and give what asyncio complains of until nothing is left of it."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: told.append(complaint))
        async with AsyncRedisStore.from_url(server.url + options) as store:
            await act(store)
        del store
        gc.collect()

    asyncio.run(main())
    return told


def test_a_connection_that_nobody_waits_for_fails_in_silence(new_redis: NewServer) -> None:
    """The task that asked is cancelled, and the server freezes: asyncio complains of nothing."""
    server = new_redis()

    async def act(store: AsyncRedisStore) -> None:
        server.pause()
        for timeout in (0.1, 0.15):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.get("k"), timeout)
        await asyncio.sleep(0.3)  # the attempts to connect end
        with pytest.raises(StoreUnavailable):
            await store.get("k")
        server.resume()
        async with asyncio.timeout(50):
            while True:  # a busy machine may not answer in 0.2 s
                with contextlib.suppress(StoreUnavailable):
                    await store.get("k")
                    break
        server.pause()
        for _ in range(3):  # a reply that is late ends the connection, and with it what was asked after it
            with pytest.raises((TimeoutError, StoreUnavailable)):
                await asyncio.wait_for(store.get("k"), 0.1)
        with pytest.raises(StoreUnavailable):
            await asyncio.gather(store.get("k"), store.get("k"))
        server.resume()

    assert complaints(server, "?socket_timeout=0.2&socket_connect_timeout=0.2", act) == []


def test_an_acknowledgement_that_nobody_waits_for_fails_in_silence(new_redis: NewServer) -> None:
    """The server freezes before it has answered, and asyncio complains of nothing."""
    server = new_redis()

    async def act(store: AsyncRedisStore) -> None:
        store._server.acknowledge = b"WAIT 1 500\r\n"  # 0.5 s instead of 1.5 s
        with pytest.raises(StoreUnavailable, match="replicas"):
            await store.get("k")
        server.pause()
        with pytest.raises(StoreUnavailable, match="gave no usable answer"):
            await store.get("k")
        server.resume()

    assert complaints(server, "?socket_timeout=3&socket_connect_timeout=20&replicas=1", act) == []


REDIS_6 = b"-ERR Error running script (call to f_3f4261b542d2102c96f9b711dba3840fe75aa284): @user_script:36: "
REDIS_7 = b" script: 3f4261b542d2102c96f9b711dba3840fe75aa284, on @user_script:36."


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (REDIS_6 + b"@user_script: 36: -OOM it's full", "(OutOfMemoryError: it's full). Free memory"),
        (b"-OOM it's full" + REDIS_7, "(OutOfMemoryError: it's full). Free memory"),
        (REDIS_6 + b"@user_script: 36: -READONLY a replica", "(ReadOnlyError: a replica). Connect to the primary"),
        (b"-READONLY a replica" + REDIS_7, "(ReadOnlyError: a replica). Connect to the primary"),
        (REDIS_6 + b"WRONGTYPE a list", "(ResponseError: WRONGTYPE a list). Another program stores"),
        (
            REDIS_6 + b"@user_script: 36: The user executing the script can't run this command or subcommand",
            "(ResponseError: The user executing the script can't run this command or subcommand). Grant the user",
        ),
        (
            b"-ERR ACL failure in script: No permissions to access a key" + REDIS_7,
            "(ResponseError: ACL failure in script: No permissions to access a key). Grant the user",
        ),
    ],
)
def test_an_error_in_our_script_is_the_error_itself(api: Opening, reply: bytes, told: str) -> None:
    """As Redis 6.2, 7.0 and 7.2 report it: where in our script that was helps nobody who reads it."""
    reader = new_reader()
    reader.feed(reply + b"\r\n")
    error = reader.gets()
    assert isinstance(error, Exception)
    assert told in str(beneath(api.open("redis://localhost"))._server.failures.of(error, sent=True))


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_missing_password_is_a_refusal(api: Opening, new_redis: NewServer, protocol: int) -> None:
    """NOAUTH says that one is needed, and WRONGPASS to check it; the right password opens."""
    server = new_redis("--requirepass", "right")
    for user, sentence in (("", "requires a password"), (":wrong@", "password")):
        store = api.open(f"{server.url.replace('//', f'//{user}')}?protocol={protocol}")
        told = str(refusal(partial(store.get, "k"), sentence))
        assert "HELLO" not in told
        assert user or "Check" not in told
    put(api.open(f"{server.url.replace('//', '//:right@')}?protocol={protocol}"), "k", b"a")


def test_a_unix_socket_serves_too(api: Opening, new_redis: NewServer, tmp_path: Path) -> None:
    """unix:// works, with a password too, and names its path."""
    path = tmp_path / "s"
    new_redis("--unixsocket", str(path), "--requirepass", "right")
    for protocol in (2, 3):
        store = api.open(f"unix://:right@{path}?db=2&protocol={protocol}")
        assert store.traits.location == f"unix://{path}?db=2"
        put(store, f"k{protocol}", b"a")
        refusal(partial(api.open(f"unix://:wrong@{path}?protocol={protocol}").get, "k"), "password", f"unix://{path}")


def test_clients_that_cannot_be_served_are_refused(api: Opening) -> None:
    """A TypeError says which client is needed, before anything is sent."""
    for kind, other in ((RedisStore, redis.asyncio.Redis()), (AsyncRedisStore, redis.Redis())):
        with pytest.raises(TypeError, match="the client must be a redis"):
            kind(other)  # type: ignore[arg-type]  # that is the point
    for kind, cluster in ((RedisStore, AsyncRedisCluster), (AsyncRedisStore, RedisCluster)):
        with pytest.raises(TypeError, match="the client must be a redis"):
            kind(object.__new__(cluster))  # type: ignore[arg-type]  # that is the point
    sentinel: Any = (Sentinel if api.blocking else AsyncSentinel)([(HOST, 1)])
    with pytest.raises(TypeError, match="primary"):
        api.open(sentinel.slave_for("main"))


@pytest.mark.long
def test_replicas_must_acknowledge(api: Opening, new_redis: NewServer) -> None:
    """With replicas=1 an answer counts only when a replica has it; the write is on the primary all the same."""
    server = new_redis("--repl-diskless-sync-delay", "0")
    store, plain = api.open(f"{server.url}?replicas=1"), api.open(server.url)
    beneath(store)._server.acknowledge = b"WAIT 1 500\r\n"  # 0.5 s instead of 10 s
    with pytest.raises(StoreUnavailable, match="replicas") as caught:
        store.put_if_version("k", b"a", ABSENT, 30)
    assert caught.value.sent
    entry = present(plain.get("k"))
    with pytest.raises(StoreUnavailable, match="replicas"):
        store.get("k")  # else the lock would believe in a write that only the primary has
    replica = new_redis("--replicaof", HOST, str(server.port))
    with redis.Redis.from_url(server.url) as admin, redis.Redis.from_url(replica.url) as copy:
        assert until(lambda: admin.info("replication")["connected_slaves"] == 1)
        assert until(
            lambda: admin.set("written", 1) and admin.wait(1, 100) == 1
        )  # with no write, it would wait for nothing
        admin.script_flush()
        store = api.open(f"{server.url}?replicas=1")
        second = put(store, "k", b"b", entry.version)
        assert copy.get("k") == b"%d:b" % second.version
        assert store.get("k") == second
        assert store.invalidate("k", second.version) is None


def test_sentinel_leads_to_the_primary(api: Opening, tmp_path: Path) -> None:
    """A store on master_for finds the primary, past a dead Sentinel at once, and the new one after a failover."""
    with contextlib.ExitStack() as stack:
        watched = Watched(stack, tmp_path)
        primary, replica = watched.servers
        watchers = [(HOST, free_port()), (HOST, watched.port)]
        manager: Any = (Sentinel if api.blocking else AsyncSentinel)(watchers)
        store = api.open(manager.master_for("main"))
        hosts = ",".join(sorted(f"{host}:{port}" for host, port in watchers))
        assert store.traits.location == f"redis+sentinel://{hosts}/main/0"
        with Stopwatch() as watch:
            before = put(store, "k", b"a")
        assert watch.seconds < 1
        assert said(primary, "GET", "k") == b"%d:a" % before.version
        assert until(lambda: said(replica, "EXISTS", "k"))
        assert until(lambda: watched.asked("SENTINEL", "FAILOVER", "main"))  # once it has looked at the replica

        def moved() -> bool:
            with contextlib.suppress(StoreError, redis.ConnectionError):  # Sentinel ends every connection then
                store.put_if_version("new", b"b", ABSENT, 30)
                return bool(said(replica, "EXISTS", "new")) and watched.primaries() == [replica]
            return False

        assert until(moved)
        assert store.get("k") == before
        assert api.open(f"redis+sentinel://{hosts}/main").get("k") == before


def test_tls_serves_too(api: Opening, new_redis: NewServer, certificates: Path) -> None:
    """rediss:// works, and a certificate that is not trusted is unavailable with nothing sent."""
    port, authority = free_port(), str(certificates / "ca.pem")
    new_redis(
        "--tls-port", str(port), "--tls-cert-file", str(certificates / "server.pem"), "--tls-key-file",
        str(certificates / "server.key"), "--tls-ca-cert-file", authority, "--tls-auth-clients", "no",
    )  # fmt: skip
    store = api.open(f"rediss://{HOST}:{port}?ssl_ca_certs={authority}")
    entry = put(store, "k", b"a")
    age(store)
    assert store.get("k") == entry
    assert store.traits.location == f"rediss://{HOST}:{port}/0"
    unsent(lambda: api.open(f"rediss://{HOST}:{port}").get("k"), r"is unreachable \(.*certificate verify failed")
