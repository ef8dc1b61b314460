"""`TairStore` and `AsyncTairStore`, against an emulator of TairString, and against the module where it is named.

A test whose id has "emulator" shows nothing about the module.  ``CASLOCK_TEST_TAIR`` names the module: see
`tests.support.servers.tair_module`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import time
import traceback
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
from tests.support.locations import fresh, until
from tests.support.servers import HOST, REDIS, TAIR_EMULATOR, free_port, missing, private, tair_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.store import Traits
    from tests.conftest import NewServer
    from tests.support.servers import Kind, Server

SECRET = "p%40ss-w0rd"  # noqa: S105 - of a server that ends with its test
SECOND = 1_000_000  # microseconds


class OnLoop:
    """An `AsyncTairStore` as a blocking one: each verb runs to its end on one loop."""

    def __init__(self, store: AsyncTairStore, runner: asyncio.Runner) -> None:
        self.store, self.run = store, runner.run

    @property
    def traits(self) -> Traits:
        return self.store.traits

    def get(self, key: str) -> Entry | None:
        return self.run(self.store.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return self.run(self.store.put_if_version(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        return self.run(self.store.invalidate(key, version))

    def close(self) -> None:
        self.run(self.store.aclose())


class Api:
    """Opens stores through one of the two APIs, and closes them after the test."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.blocking = name == "blocking"
        self.runner = stack.enter_context(asyncio.Runner())
        self.stack = stack

    def open(self, url: str, prefix: str = "", replicas: int = 0) -> Store:
        store: TairStore | OnLoop
        if self.blocking:
            store = TairStore.from_url(url, prefix=prefix, replicas=replicas)
        else:
            store = OnLoop(AsyncTairStore.from_url(url, prefix=prefix, replicas=replicas), self.runner)
        self.stack.callback(store.close)
        return store


@pytest.fixture(params=["blocking", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Either API."""
    with contextlib.ExitStack() as stack:
        yield Api(request.param, stack)


@pytest.fixture
def store(api: Api, tair_server: Server) -> Store:
    """Return a store on the shared server."""
    return api.open(tair_server.url)


@pytest.fixture
def admin(tair_server: Server) -> Iterator[redis.Redis]:
    """Give a plain client of the shared server."""
    with client_of(tair_server) as client:
        yield client


@pytest.fixture
def key() -> str:
    """Make a key that no other test uses."""
    return fresh()


def client_of(server: Server) -> redis.Redis:
    """Make a plain client."""
    return redis.Redis.from_url(as_redis(server.url))


def as_redis(url: str) -> str:
    """Give the URL of the same server for redis-py."""
    return url.replace("tair", "redis", 1)


def command(client: Any, *arguments: object) -> Any:  # noqa: ANN401 - of any type
    """Give the reply to a command that redis-py does not know."""
    return client.execute_command(*arguments)


def put(store: Store, key: str, value: bytes, version: int = ABSENT, ttl: float = 30.0) -> Entry:
    """Write, and expect success."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    assert entry.version > version
    return entry


def microseconds(admin: redis.Redis) -> int:
    """Ask for the server's TIME."""
    seconds, rest = admin.time()
    return int(seconds) * SECOND + int(rest)


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
    assert 7498 - 1000 * (time.monotonic() - began) < admin.pttl(key) <= 7500


def test_every_write_renews_the_ttl(store: Store, admin: redis.Redis, key: str) -> None:
    """EXCAS alone would remove it; a shorter ttl is shorter."""
    entry = put(store, key, b"a", ttl=30)
    for ttl in (90, 5):
        entry = put(store, key, b"b", entry.version, ttl=ttl)
        assert ttl * 1000 - 2000 < admin.pttl(key) <= ttl * 1000


def test_every_verb_answers_with_what_is_there_after_it(store: Store, key: str) -> None:
    """A winner sees its own value, a loser the one that is there, and nobody a value that is gone."""
    assert store.get(key) is None
    first = put(store, key, b"a")
    assert store.get(key) == first
    assert store.put_if_version(key, b"b", ABSENT, 30) == first
    assert store.put_if_version(key, b"b", first.version - 1, 30) == first
    assert store.invalidate(key, first.version - 1) == first
    assert store.invalidate(key, ABSENT) == first
    second = put(store, key, b"b", first.version)
    assert store.invalidate(key, first.version) == second
    assert store.invalidate(key, second.version) is None
    assert store.get(key) is None
    assert store.put_if_version(key, b"c", second.version, 30) is None
    assert store.invalidate(key, second.version) is None


def test_a_stale_owner_does_nothing_to_a_later_tenure(store: Store, admin: redis.Redis, key: str) -> None:
    """Versions of the module begin again at 1 after a removal, and so would match; these do not, nor after expiry."""
    stale = put(store, key, b"stale")
    renewed = put(store, key, b"renewed", stale.version)
    for end in ("removal", "expiry"):
        if end == "removal":
            assert store.invalidate(key, renewed.version) is None
        else:
            admin.pexpire(key, 1)
            assert until(lambda: not admin.exists(key))
        later = put(store, key, b"later")
        assert later.version > renewed.version
        for version in (stale.version, renewed.version, 1, 2):
            assert store.put_if_version(key, b"again", version, 30) == later
            assert store.invalidate(key, version) == later
        renewed = later


def test_versions_only_grow(store: Store, admin: redis.Redis, key: str) -> None:
    """No version of a key comes twice, and each is larger than all before it; a forgotten script is sent again."""
    versions = []
    for _ in range(5):
        entry = put(store, key, b"removed")
        renewed = put(store, key, b"renewed", entry.version)
        assert store.invalidate(key, renewed.version) is None
        versions += [entry.version, renewed.version]
        admin.script_flush()
        versions.append(put(store, key, b"expires", ttl=0.001).version)
        assert until(lambda: store.get(key) is None)
    assert versions == sorted(set(versions))


def test_versions_grow_over_a_restart(api: Api, new_tair: NewServer, key: str) -> None:
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
    ahead = microseconds(admin) + 3600 * SECOND
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
        ahead = microseconds(admin) + SECOND // 20
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
        with pytest.raises(StoreError, match=r"WRONGTYPE.*other than a TairString") as caught:
            call()
        assert "script" not in str(caught.value)
        assert not isinstance(caught.value, StoreUnavailable)
        assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert admin.dump(key) == before
    put(store, fresh(), b"a", ttl=1)


def test_a_full_server_refuses_acquires_and_allows_releases(api: Api, new_tair: NewServer) -> None:
    """Out of memory is a StoreError for a put; what is held can still be released, and a loser still hears who is."""
    server = new_tair()
    store = api.open(server.url)
    entry = put(store, "held", b"a")
    with client_of(server) as admin:
        ahead = microseconds(admin) + 3600 * SECOND
        command(admin, "EXSET", "ahead", "a", "ABS", ahead)
        admin.config_set("maxmemory", "1")
        for key, version in (("new", ABSENT), ("held", entry.version)):
            with pytest.raises(StoreError, match=r"raise its maxmemory") as caught:
                store.put_if_version(key, b"b", version, 30)
            assert not isinstance(caught.value, StoreUnavailable)
        assert store.put_if_version("held", b"b", ABSENT, 30) == entry
        assert store.get("held") == entry
        assert store.invalidate("held", entry.version) is None
        assert store.invalidate("ahead", ahead) is None
        assert store.get("held") is store.get("ahead") is store.get("new") is None
        admin.config_set("maxmemory", "0")
    assert put(store, "ahead", b"a").version == ahead + 1
    put(store, "new", b"a")


def test_a_lock_is_released_on_a_full_server(new_tair: NewServer) -> None:
    """The whole lock: the `with` block ends without an error, and nothing is left."""
    server = new_tair()
    with client_of(server) as admin, connect(server.url) as store:
        with Lock(store, "k", ttl=30, auto_renew=False):
            admin.config_set("maxmemory", "1")
        assert admin.keys() == []
        with pytest.raises(StoreError, match="maxmemory"):
            Lock(store, "k", ttl=30).acquire(timeout=1)


@pytest.mark.parametrize("password", ["", SECRET])
def test_a_server_without_tairstring_is_a_clear_refusal(api: Api, new_redis: NewServer, password: str) -> None:
    """A plain Redis is a StoreError at the first use of any verb, which says what is missing and where; no secret."""
    server = new_redis(*(["--requirepass", "p@ss-w0rd"] if password else []))
    store = api.open(f"tair://{':' * bool(password)}{password}{'@' * bool(password)}{HOST}:{server.port}/3")
    calls: list[Callable[[], object]] = [
        lambda: store.put_if_version("the key", b"the value", ABSENT, 1),
        lambda: store.put_if_version("the key", b"the value", 5, 1),
        lambda: store.invalidate("the key", 5),
        lambda: store.get("the key"),
        lambda: Lock(store, "the key").acquire(timeout=1),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="the server has no TairString; load the module") as caught:
            call()
        assert not isinstance(caught.value, StoreUnavailable)
        assert f"tair://{HOST}:{server.port}/3 refused" in str(caught.value)
        told = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__cause__.__context__!r}"  # type: ignore[union-attr] # there is one
        assert "p@ss-w0rd" not in told
        assert "the value" not in told


def test_an_excas_without_px_is_a_clear_refusal(api: Api, new_tair: NewServer, tair: Kind) -> None:
    """As the cloud service documents it: a StoreError at the first acquire, and nothing is left there."""
    if tair is not TAIR_EMULATOR:
        pytest.skip("the module's EXCAS takes PX")
    server = new_tair("--excas-without-px")
    store = api.open(server.url)
    with pytest.raises(StoreError, match="leases need an EXCAS with PX") as caught:
        Lock(store, "k").acquire(timeout=1)
    assert not isinstance(caught.value, StoreUnavailable)
    assert server.url in str(caught.value)
    with client_of(server) as admin:
        assert admin.keys() == []


def test_a_wrong_password_is_nowhere_to_be_read(api: Api, new_tair: NewServer) -> None:
    """It is a refusal that says what to check."""
    server = new_tair("--requirepass", "right")
    for user in ("", f":{SECRET}@"):
        with pytest.raises(StoreError, match="password") as caught:
            api.open(server.url.replace("//", f"//{user}")).get("k")
        assert not isinstance(caught.value, StoreUnavailable)
        assert "w0rd" not in "".join(traceback.format_exception(caught.value))
    put(api.open(server.url.replace("//", "//:right@")), "k", b"a")


def test_a_user_without_rights_is_told_which(api: Api, new_tair: NewServer) -> None:
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
        assert store.traits == (tair_server.url, True, True, 0.05, 2.0)
        hold = Lock(store, key, ttl=30).acquire(timeout=0)
        assert hold is not None
        assert Lock(another, key, ttl=30).acquire(timeout=0.1) is None
        hold.release()
        with Stopwatch() as watch, Lock(another, key, ttl=30, timeout=50) as later:
            assert watch.seconds < 2
            assert later.fence > hold.fence


def test_replicas_are_waited_for(api: Api, new_tair: NewServer) -> None:
    """With replicas=1 an answer counts only when a replica has it; there is none."""
    server = new_tair()
    put(api.open(server.url), "k", b"both know the script now", ttl=30)
    with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas acknowledged it"):
        api.open(server.url, replicas=1).put_if_version("k", b"a", ABSENT, 30)


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


def test_urls_and_locations() -> None:
    """Both classes read ``tair://`` and ``tairs://``, and show where they lead to."""
    locations = {
        "tair://": "tair://localhost:6379/0",
        "tair://user:pass@h:1/2?prefix=p:": "tair://h:1/2?prefix=p:",
        "tairs://:pass@h?socket_timeout=1": "tairs://h:6379/0",
        "TAIR://[::1]:7?db=4": "tair://[::1]:7/4",
    }
    for url, location in locations.items():
        stores: list[Any] = [TairStore.from_url(url), AsyncTairStore.from_url(url), connect(url), connect_async(url)]
        assert [type(each) for each in stores] == [TairStore, AsyncTairStore] * 2
        assert {each.traits.location for each in stores} == {location}
        assert {repr(each) for each in stores} == {f"TairStore({location!r})", f"AsyncTairStore({location!r})"}


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://hunter2@h", "begins with tair:// or, for TLS, tairs://"),
        ("tair+unix:///hunter2", "begins with tair:// or, for TLS, tairs://"),
        ("hunter2", "begins with tair:// or, for TLS, tairs://"),
        ("tair://u:hunter2@h/abc", "number of a database"),
        ("tair://u:hunter2@h?sockettimeout=1", "check the option sockettimeout"),
        ("tair://u:hunter2@h:99999", "port of a Redis URL"),
        ("tair://u:hun/ter2@h", "percent-encode"),
    ],
)
def test_a_bad_url_is_a_value_error_without_secrets(url: str, sentence: str) -> None:
    """The message says what to do, and quotes nothing of the URL."""
    for kind in (TairStore, AsyncTairStore):
        with pytest.raises(ValueError, match=sentence) as caught:
            kind.from_url(url)
        assert "ter2" not in "".join(traceback.format_exception(caught.value)).replace(url, "")


def test_an_unreachable_server_is_named_as_a_tair(api: Api) -> None:
    """The location and the hints are in the words of the URL."""
    with pytest.raises(StoreUnavailable, match=r"tair://127.0.0.1:1/0 is unreachable \(connection refused\)") as caught:
        api.open("tair://127.0.0.1:1").get("k")
    assert not caught.value.sent


@pytest.mark.long
def test_tls_hints_are_those_of_a_tair(tair_server: Server, api: Api) -> None:
    """A port without TLS is said to need tair://."""
    with pytest.raises(StoreUnavailable, match=r"tair://") as caught:
        api.open(f"tairs://{tair_server.host}:{tair_server.port}?socket_timeout=2").get("k")
    assert "redis://" not in str(caught.value)
    assert not caught.value.sent
