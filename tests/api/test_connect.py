"""`connect` and `connect_async`: which store a URL makes, and that no error shows a secret."""

from __future__ import annotations

import copy
import http.server
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest
import redis
import redis.asyncio
import sqlalchemy
from pymemcache.client.base import Client, PooledClient
from redis.sentinel import Sentinel

from caslock import StoreUnavailable, connect, connect_async
from caslock.store import WOKEN
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.stores.sqlite import SQLiteStore
from caslock.testing.proxy import FaultProxy, foreign_port, refused_port
from caslock.verify.locations import server_of
from caslock.verify.plan import Plan
from tests.support.command_line import python
from tests.support.loops import in_a_loop
from tests.support.servers import Server

SENTINEL: Any = Sentinel  # untyped
WATCHER = SENTINEL([("localhost", 1)])

BOTH = pytest.mark.parametrize("make", [connect, connect_async])

PLUGIN = """
from caslock.stores.memory import AsyncMemoryStore, MemoryStore

class Shop(MemoryStore):
    @classmethod
    def from_url(cls, url):
        store = cls()
        store.url = url
        return store

def shop(url):
    return Shop.from_url(url)

class AsyncShop(AsyncMemoryStore):
    @classmethod
    def from_url(cls, url):
        return cls(Shop.from_url(url))

def clumsy(url):
    try:
        int(url.partition("://")[2].partition("@")[0].partition(":")[2])
    except ValueError as error:
        raise RuntimeError("no") from error
    raise ValueError("the host is down")
"""

ENTRY_POINTS = """
[caslock.stores]
shop = shop_store:Shop
stall = shop_store:shop
clumsy = shop_store:clumsy
redis = shop_store:shop

[caslock.async_stores]
shop = shop_store:AsyncShop
bazaar = shop_store:AsyncShop
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with stores of somebody else's."""
    (tmp_path / "shop_store.py").write_text(PLUGIN)
    folder = tmp_path / "shop_store-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-store\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def everything_told(error: BaseException | None) -> str:
    """Join all texts that hang on an error, in every direction."""
    if error is None:
        return ""
    return f"{error} {error!r}" + everything_told(error.__cause__) + everything_told(error.__context__)


LEAKY = [
    "redis://gast:hunter2@host:port/0",
    "redis://gast:hun/ter2@host:6379/0",
    "redis://:hun#ter2@host",
    "redis://:hun?ter2@host",
    "redis://gast:hunter2@[::1/0",
    "redis://gast:hunter2@ho\u2100st/0",
    "redis://gast:hunter2@host:99999999/0",
    "rediss://gast:hunter2@host/0?socket_timeout=soon",
    "redis://host/0?password=hunter2&socket_timeout=soon",
    "unix://gast:hunter2@/run/redis.sock?db=first",
    "memcached://gast:hunter2@host",
    "memcached://gast:hunter2@host:port",
    "memory://gast:hunter2@host",
    "sqlite://gast:hunter2@host/locks.db",
    "gast:hunter2@host",
    " redis://gast:hunter2@host:port/0",
    "nothing://gast:hunter2@host",
    "clumsy://gast:hunter2@host",
    "clumsy://gast:hun%74er2@host",
]


@BOTH
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("url", LEAKY)
def test_no_error_shows_a_secret(make: Callable[[str], object], url: str) -> None:
    """Whatever is wrong with a URL, neither the error nor anything chained to it shows user or password."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        make(url)
    told = everything_told(caught.value)
    assert [piece for piece in ("hunter2", "ter2", "hun", "gast") if piece in told] == []


@BOTH
@pytest.mark.parametrize("url", ["redis://host/0", "tair://host/0", "redis+cluster://host"])
def test_a_prefix_that_is_none_is_told(make: Callable[..., object], url: str) -> None:
    """Whatever client reads the URL."""
    with pytest.raises(ValueError, match="prefix must not contain control characters"):
        make(url, prefix="a\nb")


@BOTH
@pytest.mark.parametrize("user", ["postgres", "user:postgres", "me:timeou"])
def test_a_secret_that_is_a_part_of_a_word_hides_no_reason(make: Callable[[str], object], user: str) -> None:
    """The user "postgres" is no part of "postgresql"."""
    with pytest.raises(ValueError, match="there is no option nosuch"):
        make(f"postgresql://{user}@localhost/db?nosuch=1")


SERVERS = ("redis", "tair", "memcached", "postgresql", "mysql", "zookeeper", "etcd", "nats", "hazelcast", "dynamodb")


@BOTH
@pytest.mark.parametrize("scheme", SERVERS)
def test_a_fragment_is_refused(make: Callable[[str], object], scheme: str) -> None:
    """Else what follows the # would be dropped in silence."""
    with pytest.raises(ValueError, match="write # as %23"):
        make(f"{scheme}://host/name#more")


@BOTH
@pytest.mark.parametrize("scheme", SERVERS)
@pytest.mark.parametrize("sign", ["%00", "%0A", "%7f", "%1B"])
def test_a_control_character_is_refused_however_it_is_written(
    make: Callable[[str], object], scheme: str, sign: str
) -> None:
    """It would end up in the location, in errors and in the log."""
    for rest in (f"host/a{sign}", f"host/a?prefix={sign}a"):
        with pytest.raises(ValueError, match="must not contain control characters"):
            make(f"{scheme}://{rest}")


@pytest.mark.usefixtures("plugin")
def test_an_error_without_a_secret_is_shown_as_it_is() -> None:
    """Only what would show a secret is withheld: any other error of a store reaches the caller whole."""
    with pytest.raises(ValueError, match="the host is down"):
        connect("clumsy://gast:123456@host")


@BOTH
def test_a_file_by_its_path(make: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes and a relative path, or four and an absolute one, mean one file; the location is such a URL."""
    monkeypatch.chdir(tmp_path)
    one, two = make("sqlite:///odd%20%3F%25@#%0A.db"), make(f"sqlite:///{tmp_path}/odd %3F%25@#%0A.db?timeout=1.5")
    assert isinstance(one, SQLiteStore)
    assert isinstance(two, SQLiteStore)
    assert one.traits.location == two.traits.location
    one.put_if_version("k", b"v", 0, 60)
    assert [path.name for path in tmp_path.glob("*.db")] == ["odd ?%@#\n.db"]
    three = connect(one.traits.location)
    assert isinstance(three, SQLiteStore)
    assert three.get("k") == two.get("k") is not None
    assert (one._timeout, two._timeout) == (5.0, 1.5)
    for store in (one, two, three):
        store.close()


def test_a_memory() -> None:
    """Each ``memory://`` is a new memory, of the API that asks."""
    one, two, three = connect("memory://"), connect("MEMORY://"), connect_async("memory://")
    assert (type(one), type(two), type(three)) == (MemoryStore, MemoryStore, AsyncMemoryStore)
    assert len({store.traits.location for store in (one, two, three)}) == 3


@pytest.mark.usefixtures("plugin")
def test_a_store_of_somebody_else() -> None:
    """An entry point may name a class with `from_url` or a callable; asyncio prefers a store of its own group.

    A scheme of caslock's own is never somebody else's.  `prefix` is passed on only if it is given, and such a store may
    refuse it.
    """
    assert type(connect("shop://x")).__name__ == "Shop"
    assert getattr(connect("STALL://x?y"), "url", None) == "STALL://x?y"
    assert type(connect_async("shop://x")).__name__ == "AsyncShop"
    assert type(connect_async("stall://x")).__name__ == "Shop"
    assert type(connect_async("bazaar://x")).__name__ == "AsyncShop"
    with pytest.raises(ValueError, match="bazaar"):  # It is for asyncio only.
        connect("bazaar://x")
    assert type(connect("redis://localhost")).__name__ == "RedisStore"
    with pytest.raises(TypeError, match="prefix"):
        connect("shop://x", prefix="p")


@BOTH
@pytest.mark.usefixtures("plugin")
def test_an_unknown_scheme(make: Callable[[str], object]) -> None:
    """The error lists every scheme that is known, those of entry points too."""
    known = "memcached, memory, redis, rediss, shop, sqlite, stall, tair, tairs, unix, zookeeper, zookeepers"
    with pytest.raises(ValueError, match=r"unknown scheme redi://\. Did you mean redis://\? Known schemes:") as caught:
        make("redi://localhost")
    assert not set(known.split(", ")) - set(str(caught.value).partition("Known schemes: ")[2].split(", "))


MISTAKES = {
    "must begin with a scheme": ["localhost:6379", "", "://x"],
    "no name": ["memory://name"],
    "sqlite:///relative": ["sqlite://locks.db", "sqlite://"],
    "MemoryStore": ["sqlite:///", "sqlite:///:memory:"],
    "control character": ["sqlite:///x.db\n", "redis://h/0\r\n"],
    "number of seconds": ["sqlite:///x.db?timeout=soon"],
    "timeout must be": [f"sqlite:///x.db?timeout={seconds}" for seconds in (-1, math.nan, math.inf, 86_401)],
    "there is no option mode": ["sqlite:///x.db?timeout=1&mode=ro&cache=shared"],
    "timeout is given twice": ["sqlite:///x.db?timeout=1&timeout=2"],
    "timeout must be .* at most 86400": ["memcached://h?timeout=3e6"],
    "prefix is given twice": ["memcached://h?prefix=a&prefix=b", "redis://h?prefix=a&prefix=b"],
    "a memcached URL names one server": ["memcached://a:1,b:2"],
    "port of a memcached URL must be a number from 1 to 65535": ["memcached://h:port", "memcached://h:0"],
    "connect_timeout .* must be a whole number": [
        "postgresql://h/db?connect_timeout=abc",
        "mysql://h/db?connect_timeout=abc",
    ],
    "keepalives_idle .* must be a whole number": ["postgresql://h/db?keepalives_idle=-1"],
    "sslmode .* must be one of disable, allow": ["postgresql://h/db?sslmode=yes"],
    "number of a database": ["redis://h/abc", "redis://h/1/2", "redis://h/-1", "redis+sentinel://a,b/mymaster/x"],
    "check the option sockettimeout": ["redis://h?sockettimeout=1"],
    "check the option timeout: Redis has socket_timeout": ["redis://h?timeout=1"],
    "check the option connect_timeout: .* socket_connect_timeout": ["redis://h?connect_timeout=1"],
    "check the option zzzz": ["redis://h?zzzz=1", "redis+cluster://a,b?zzzz=1", "redis+sentinel://a,b/mymaster?zzzz=1"],
    "invalid Redis URL": [
        "redis://h?retry=1",
        "redis://h?maint_notifications_config=x",
        "redis://h?cache_config=x",
        "redis://h?db=",
        "redis+cluster://a,b?sentinel_password=x",
    ],
    "check the option socket_timeout": ["redis://h?socket_timeout=soon"],
    "check the option replicas": ["redis://h?replicas=few"],
    "replicas must be 0 or more": ["redis://h?replicas=-1"],
    "socket_timeout must be .* above 0": [
        "redis://h?socket_timeout=-1",
        "redis://h?socket_timeout=0",
        "redis://h?socket_timeout=inf",
    ],
    "socket_timeout must be .* at most 86400": ["redis://h?socket_timeout=3e6"],
    "socket_connect_timeout must be .* above 0": ["redis://h?socket_connect_timeout=nan"],
    "db is given twice": ["redis://h?db=1&db=2"],
    "port of a Redis URL must be a number from 1 to 65535": [
        "redis://h:port",
        "redis://gast:hunter2@h:99999",
        "redis://h:0",
        "redis+cluster://a:1,b:port",
    ],
    "a cluster URL names its servers": ["redis+cluster://", "redis+cluster://a,,b"],
    "a Redis Cluster has one database": ["redis+cluster://a,b/2", "redis+cluster://a,b?db=2"],
    "the path of a Sentinel URL names the service": ["redis+sentinel://a,b", "redis+sentinel://a,b/"],
    "sentinel_password is given twice": ["redis+sentinel://a,b/mymaster?sentinel_password=x&sentinel_password=y"],
    r"a Redis URL names one server; .* redis\+cluster://, for Sentinels": ["redis://a,b/0"],
}
"""What is said of which URLs; redis-py would accept some of them silently, or refuse them without naming it."""


@BOTH
@pytest.mark.parametrize(("url", "sentence"), [(url, sentence) for sentence, urls in MISTAKES.items() for url in urls])
def test_a_url_that_cannot_be_meant(make: Callable[[str], object], url: str, sentence: str) -> None:
    """A slip in a URL is a ValueError which says how it should look, when the store is made."""
    with pytest.raises(ValueError, match=sentence):
        make(url)


@BOTH
@pytest.mark.parametrize(
    "place", ["sqlite:///locks.db", "dynamodb://eu-central-1", *(f"{kind}://localhost" for kind in SERVERS[2:-1])]
)
def test_an_option_with_a_typing_error_is_named(make: Callable[[str], object], place: str) -> None:
    """And what was meant; before any request.  What may be a part of a password is not named."""
    with pytest.raises(ValueError, match=r"there is no option timout; did you mean timeout\?$"):
        make(f"{place}?timout=3")
    with pytest.raises(ValueError, match="URL") as caught:
        make(f"{place}?hunter2%2F=3")
    assert "hunter2" not in everything_told(caught.value)
    for scheme in ("redis", "tair"):
        with pytest.raises(ValueError, match=r"check the option timout$"):
            make(f"{scheme}://localhost?timout=3")


@BOTH
@pytest.mark.parametrize("scheme", ["etcd", "nats", "hazelcast", "zookeeper", "redis+cluster"])
def test_a_list_of_servers_may_have_ipv6_addresses(
    make: Callable[[str], Any], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `urlsplit` takes such a list for one bad address, as that of Python 3.14.8 does."""

    def strict(url: str) -> SplitResult:
        parts = urlsplit(url)
        if "[" in parts.netloc.strip("["):
            raise ValueError("Invalid IPv6 URL")
        return parts

    monkeypatch.setattr("caslock.stores.shared.options.urlsplit", strict)
    url = f"{scheme}://one:1,[::1]:2/"
    assert "one:1" in make(url).traits.location
    assert "[::1]:2" in make(url).traits.location
    assert server_of(Plan(url)) is None
    with pytest.raises(ValueError, match="URL"):
        make(f"{scheme}://one:1,[::1:2/")


def test_an_engine_for_sqlite_is_refused_with_what_to_give_instead() -> None:
    """SQLite has a store of its own, which takes no engine."""
    with pytest.raises(ValueError, match="sqlite:///path"):
        connect(sqlalchemy.create_engine("sqlite:///locks.db"))


@BOTH
def test_a_missing_file_of_credentials_is_told(make: Callable[[str], object], tmp_path: Path) -> None:
    """The reason is given; it is not taken for a secret because the error of the system repeats the path."""
    with pytest.raises(ValueError, match=r"the file of \?creds= in a NATS URL can't be used: No such file") as caught:
        make(f"nats://localhost?creds={tmp_path}/missing")
    assert "missing" not in everything_told(caught.value)


@BOTH
@pytest.mark.parametrize("url", [None, b"memory://", Path("locks.db")])
def test_what_is_no_text(make: Callable[[object], object], url: object) -> None:
    """Anything but a str is a TypeError that names its type."""
    with pytest.raises(TypeError, match=f"not {type(url).__name__}; other stores take their URL"):
        make(url)


@BOTH
@pytest.mark.parametrize(
    "url",
    [
        *("redis://[::1", "redis://h?protocol=9", "redis+cluster://a,[::1", "rediss://h?ssl_cert_reqs=maybe"),
        *("redis://gast:hunter2@[::1", "redis+sentinel://gast:hunter2@a,[::1/mymaster"),
    ],
)
def test_a_password_is_mentioned_only_where_there_may_be_one(make: Callable[[str], object], url: str) -> None:
    """An unreadable URL without an @ has no password, and its error does not speak of one."""
    with pytest.raises(ValueError, match="invalid Redis URL: ") as caught:
        make(url)
    assert ("password" in str(caught.value)) == ("@" in url)


ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prefix": 5}, TypeError, "prefix must be a str, not int"),
    ({"replicas": "1"}, TypeError, "replicas must be an int, not str"),
    ({"replicas": 1.5}, TypeError, "replicas must be an int, not float"),
    ({"replicas": True}, TypeError, "replicas must be an int, not bool"),
    ({"replicas": -1}, ValueError, "replicas must be 0 or more"),
]


@BOTH
@pytest.mark.parametrize(("settings", "kind", "sentence"), ARGUMENTS)
@pytest.mark.parametrize("name", ["redis", "memcached"])
def test_an_argument_that_is_of_no_use(
    make: Callable[..., object], name: str, settings: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    """A prefix or replicas of the wrong type or range is refused by its name, with a URL and with a client."""
    if name == "memcached" and "replicas" in settings:
        kind, sentence = ValueError, "has no replicas"
    clients: dict[str, Any] = {"redis": redis.Redis(), "memcached": Client("localhost", timeout=1)}
    for target in (f"{name}://localhost", clients[name]):
        with pytest.raises(kind, match=sentence):
            make(target, **settings)


@pytest.mark.parametrize("name", ["socket_timeout", "socket_connect_timeout"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 3e6, "5", True])
def test_a_client_needs_a_timeout_that_can_be_used(name: str, value: object) -> None:
    """A timeout of a client that a socket would refuse, or that bounds nothing, is refused when the store is made."""
    for kind, make in ((redis.Redis, connect), (redis.asyncio.Redis, connect_async)):
        untyped: Any = kind
        with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
            make(untyped(**{name: value}))
    if name == "socket_timeout":
        with pytest.raises((ValueError, TypeError), match="timeout must be"):
            connect(Client("localhost", timeout=value))


def test_settings_beside_a_url() -> None:
    """A prefix and replicas can be given to `connect` or in the URL, alike; the location shows the prefix."""
    locations = [
        connect("redis://localhost/3", prefix="locks:", replicas=1).traits.location,
        connect("redis://localhost/3?prefix=locks:&replicas=1").traits.location,
        connect("redis://localhost/3?prefix=locks:&socket_timeout=1").traits.location,
        connect_async("redis://localhost/3", prefix="locks:").traits.location,
    ]
    assert set(locations) == {"redis://localhost:6379/3?prefix=locks:"}
    assert connect("unix:///run/redis.sock?db=2", prefix="p").traits.location == "unix:///run/redis.sock?db=2&prefix=p"
    assert connect("memcached://localhost", prefix="p:").traits.location == "memcached://localhost:11211?prefix=p:"


@BOTH
@pytest.mark.parametrize("url", ["memory://", "sqlite:///locks.db", "memcached://localhost"])
def test_settings_that_a_store_has_not(make: Callable[..., object], url: str) -> None:
    """A setting that means nothing to a store is refused, and the error says where it does."""
    with pytest.raises(ValueError, match=r"has no replicas; only Redis and Tair do"):
        make(url, replicas=1)
    if "memcached" not in url:
        with pytest.raises(ValueError, match=r"has no prefix; only Redis, Tair, memcached and etcd do"):
            make(url, prefix="p")


def test_a_client(redis_server: Server, memcached_server: Server) -> None:
    """An existing client makes the store of its API, with its settings, and is left alone."""
    clients: list[tuple[Any, type]] = [
        (redis.Redis.from_url(redis_server.url, socket_timeout=3), RedisStore),
        (Client((memcached_server.host, memcached_server.port), timeout=3, key_prefix="a:"), MemcachedStore),
        (PooledClient((memcached_server.host, memcached_server.port), timeout=3), MemcachedStore),
        (WATCHER.master_for("main"), RedisStore),
    ]
    for client, kind in clients:
        for make in (connect, connect_async):
            store = make(client, prefix="p:")
            assert type(store) is kind
            assert store.traits.location.endswith(("?prefix=p:", "?prefix=a:p:"))
    with connect(clients[0][0], prefix="p:") as store:
        put = store.put_if_version("client", b"v", 0, 5)
        assert put is not None
        assert clients[0][0].get("p:client") == b"%d:v" % put.version
        assert store.invalidate("client", put.version) in (None, WOKEN)
    assert clients[0][0].ping()


@in_a_loop
async def test_a_client_for_asyncio(redis_server: Server) -> None:
    """A client of redis.asyncio makes a store for asyncio, and for blocking code an error that says what to use."""
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        async with connect_async(client, prefix="p:") as store:
            assert type(store) is AsyncRedisStore
            assert await store.get("nothing") is None
        with pytest.raises(TypeError, match="connect_async"):
            connect(client)  # type: ignore[arg-type] # which mypy sees
        assert await client.ping()


@pytest.mark.parametrize("name", ["memory", "sqlite", "redis", "memcached"])
@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_store_is_copied(name: str, act: Callable[[object], object]) -> None:
    """To pickle or copy a store is a TypeError that says what to send instead, or that there is nothing to send."""
    url = {"memory": "memory://", "sqlite": "sqlite:///locks.db"}.get(name, f"{name}://localhost")
    instead = (
        "its locks live in this object, in one process"
        if name == "memory"
        else r"send the URL and call caslock\.connect"
    )
    for store in (connect(url), connect_async(url)):
        with pytest.raises(TypeError, match=instead):
            act(store)


@pytest.fixture
def web_server() -> Iterator[str]:
    """A web server: host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@in_a_loop
async def ask(make: Callable[[str], Any], url: str) -> None:
    async with make(url) as store:
        answer = store.get("k")
        if hasattr(answer, "__await__"):
            await answer


@BOTH
def test_another_server_at_the_port(
    make: Callable[[str], Any], web_server: str, redis_server: Server, memcached_server: Server
) -> None:
    """Who speaks something else at the port is named as far as it is known, with nothing sent."""
    cache, server = f"127.0.0.1:{memcached_server.port}", f"127.0.0.1:{redis_server.port}"
    sentences = {
        f"redis://{web_server}": "speaks HTTP, not Redis",
        f"redis://{web_server}?protocol=2": "speaks HTTP, not Redis",
        f"redis://{cache}": "speaks memcached, not Redis",
        f"rediss://{cache}": "does not speak TLS; use redis://",
        f"rediss://{server}?socket_timeout=0.3&socket_connect_timeout=0.3": "if not, use redis://",
        f"memcached://{server}": "is it a memcached without TLS, and not another server",
        f"memcached://{web_server}": "is it a memcached without TLS",
    }
    with foreign_port(lambda _: b"INFO {}\r\n") as unknown:
        sentences[f"redis://127.0.0.1:{unknown}"] = "speaks another protocol, not Redis"
        for url, sentence in sentences.items():
            with pytest.raises(StoreUnavailable, match=sentence) as caught:
                ask(make, url)
            assert not caught.value.sent


SCHEMES = ("redis", "rediss", "memcached", "hazelcast", "nats", "etcds", "zookeeper")
ON_SERVERS = [*(f"{scheme}://{{}}" for scheme in SCHEMES), "postgresql://{}/x", "mysql://{}/x"]


def unavailable(make: Callable[[str], Any], url: str, sentence: str) -> StoreUnavailable:
    """Read a key; expect an error that nothing was sent, which names the place once."""
    place = make(url).traits.location
    with pytest.raises(StoreUnavailable, match=sentence) as caught:
        ask(make, url)
    assert not caught.value.sent
    told, port = str(caught.value), place.rpartition(":")[2].partition("/")[0]
    assert [told.count(part) for part in (place, "127.0.0.1", port)] == [1, 1, 1], told
    return caught.value


@BOTH
@pytest.mark.parametrize("url", ON_SERVERS)
def test_a_refused_connection_is_told_in_words(make: Callable[[str], Any], url: str) -> None:
    """Which names the place once, whatever the client library says."""
    with refused_port() as port:
        unavailable(make, url.format(f"127.0.0.1:{port}"), "[Cc]onnection refused")


@BOTH
@pytest.mark.parametrize("url", ON_SERVERS)
def test_a_server_that_hangs_up(make: Callable[[str], Any], url: str) -> None:
    """What answers no connection is told in words, and not by the name of an exception."""
    with refused_port() as dead, FaultProxy("127.0.0.1", dead) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        error = unavailable(make, url.format(address), r"clos|reset|Lost connection|connection lost|EOF")
    assert "Error" not in str(error)


SCRIPT = """
import sys, caslock
sys.modules["redis"] = sys.modules["pymemcache"] = sys.modules["kazoo"] = None
for make in (caslock.connect, caslock.connect_async):
    make("memory://"), make("sqlite:///x.db")
    kinds = {name: name for name in ("redis", "memcached", "zookeeper")} | {"rediss": "redis", "unix": "redis"}
    for scheme, extra in kinds.items():
        try:
            make(f"{scheme}://gast:hunter2@localhost")
        except ModuleNotFoundError as error:
            assert f"{scheme}:// needs" in str(error) and f"pip install 'caslock[{extra}]'" in str(error), error
            assert isinstance(error.__cause__, ImportError) and "hunter2" not in str(error)
        else:
            raise AssertionError(scheme)
"""


WITHOUT_HIREDIS = """
import sys, redis, caslock
sys.modules["hiredis"] = None
for target in ("redis://gast:hunter2@localhost", redis.Redis(password="hunter2")):
    try:
        caslock.connect(target)
    except ModuleNotFoundError as error:
        assert "hiredis" in str(error) and "pip install 'caslock[redis]'" in str(error), error
        assert "hunter2" not in str(error)
    else:
        raise AssertionError(target)
"""


def test_a_missing_hiredis_says_what_to_install() -> None:
    """It is another package than the client, and that may be there without it."""
    assert python("-c", WITHOUT_HIREDIS) == (0, "", "")


def test_a_missing_client_says_what_to_install() -> None:
    """Where the client of a scheme is not installed, the error says how to install it."""
    assert python("-c", SCRIPT) == (0, "", "")
