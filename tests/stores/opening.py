"""What the tests of stores with a server have in common, for blocking code and for asyncio."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import pytest
import redis

from caslock import Lock, StoreError, StoreUnavailable
from caslock.store import ABSENT, ClosableStore, Entry, ListingStore, Store, WatchingStore
from caslock.stores.dynamodb import AsyncDynamoDBStore, DynamoDBStore
from caslock.stores.etcd import AsyncEtcdStore, EtcdStore
from caslock.stores.hazelcast import AsyncHazelcastStore, HazelcastStore
from caslock.stores.memcached import MemcachedStore
from caslock.stores.nats import AsyncNatsStore, NatsStore
from caslock.stores.redis import AsyncRedisStore, RedisStore
from caslock.stores.sql import AsyncSQLStore, SQLStore
from caslock.stores.tair import AsyncTairStore, TairStore
from caslock.stores.zookeeper import ZooKeeperStore
from caslock.testing.drive import driven, on_loop
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import timed
from tests.support.clusters import Cluster
from tests.support.locations import fresh, present, until

T = TypeVar("T")

SECRET = "p@ss/w0rd?"  # noqa: S105 - of a user that ends with its test
QUOTED = "p%40ss%2Fw0rd%3F"

PING = 22
"""Bytes that an idle connection to a Hazelcast sends now and then."""

KINDS: Final[dict[str, tuple[Any, Any]]] = {
    "dynamodb": (DynamoDBStore, AsyncDynamoDBStore),
    "etcd": (EtcdStore, AsyncEtcdStore),
    "hazelcast": (HazelcastStore, AsyncHazelcastStore),
    "mariadb": (SQLStore, AsyncSQLStore),
    "memcached": (MemcachedStore, MemcachedStore),
    "mysql": (SQLStore, AsyncSQLStore),
    "nats": (NatsStore, AsyncNatsStore),
    "postgresql": (SQLStore, AsyncSQLStore),
    "redis": (RedisStore, AsyncRedisStore),
    "tair": (TairStore, AsyncTairStore),
    "zookeeper": (ZooKeeperStore, ZooKeeperStore),
}
"""The stores of each kind of server, for blocking code and for asyncio."""


class Opened(ClosableStore, WatchingStore, ListingStore, Protocol):
    """A store as these tests use it, of either API; one of MySQL or DynamoDB has no `wait_while`."""


class Opening(NamedTuple):
    """How to make stores of one API; they are closed with the test."""

    blocking: bool
    open: Callable[..., Opened]


def made(kind: Any, target: Any, **options: Any) -> Any:  # noqa: ANN401 - of any class
    """Make a store of a URL or of a client, where its class takes clients."""
    return kind.from_url(target, **options) if isinstance(target, str) else kind(target, **options)


def apis(kind: Callable[..., Any], native: Callable[..., Any]) -> Any:  # noqa: ANN401 - a fixture has no public type
    """Make the fixture `api`, which gives each API in turn: `kind` makes stores for blocking code."""

    @pytest.fixture(name="api", params=["blocking", "asyncio"])
    def each(request: pytest.FixtureRequest) -> Iterator[Opening]:
        blocking = request.param == "blocking"
        with opening(kind if blocking else native, blocking=blocking) as found:
            yield found

    return each


def store_on(server: str) -> Any:  # noqa: ANN401 - as above
    """Make the fixture `store`: a store of each API in turn, on the server of the fixture that is named."""

    @pytest.fixture(name="store")
    def one(api: Opening, request: pytest.FixtureRequest) -> Opened:
        return api.open(request.getfixturevalue(server).url)

    return one


@contextlib.contextmanager
def opening(kind: Callable[..., Any], *, blocking: bool) -> Iterator[Opening]:
    """Make stores of a class; `blocking`: it is one for blocking code."""
    with contextlib.ExitStack() as stack:

        def make(target: Any, **settings: Any) -> Opened:  # noqa: ANN401 - as the stores take it
            store = kind(target, **settings)
            stack.callback(store.close if blocking else lambda: on_loop(store.aclose()))
            return cast("Opened", driven(store))

        yield Opening(blocking, make)


def beneath(store: Store) -> Any:  # noqa: ANN401 - of any class
    """Give the store that `driven` has made callable."""
    return getattr(store, "_store", store)


def put(store: Store, key: str, value: bytes = b"v", version: int = ABSENT, ttl: float = 300.0) -> Entry:
    entry = present(store.put_if_version(key, value, version, ttl))
    assert entry.value == value
    assert entry.version > version or not store.traits.fences
    return entry


def microseconds(admin: redis.Redis) -> int:
    """Ask a Redis for its TIME."""
    seconds, rest = admin.time()
    return int(seconds) * 1_000_000 + int(rest)


def expect_no_version_again(store: Store, admin: redis.Redis, key: str, plant: Callable[[int], object]) -> None:
    """Let a key end in each way, with a version ahead of the clock, which `plant` puts there."""
    for end in ("expiry", "removal"):
        ahead = microseconds(admin) + 50_000
        plant(ahead)
        entry = put(store, key, b"b", ahead, ttl=0.001)
        if end == "removal":
            assert store.invalidate(key, entry.version) is None
        assert until(lambda: not admin.exists(key))
        assert microseconds(admin) > entry.version
        assert put(store, key, b"c").version > entry.version
        admin.delete(key)


def refusal(act: Callable[[], object], match: str, place: str = "://127.0.0.1") -> StoreError:
    """Expect a definite refusal, which says so in one sentence and names the place once."""
    with pytest.raises(StoreError, match=match) as caught:
        act()
    assert not isinstance(caught.value, StoreUnavailable), caught.value
    assert str(caught.value).count(place) == 1, caught.value
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


def each_verb(store: Store, key: str, version: int) -> tuple[Callable[[], object], ...]:
    """Give a read, a put where nothing is, one over a version, and a removal, all to be called."""
    return (
        partial(store.get, key),
        partial(store.put_if_version, key, b"the value", ABSENT, 30),
        partial(store.put_if_version, key, b"the value", version, 30),
        partial(store.invalidate, key, version),
    )


def expect_refused(
    store: Store, key: str, match: str, *, place: str = "://127.0.0.1", version: int = 5
) -> list[StoreError]:
    """Expect of each verb what `refusal` expects."""
    return [refusal(act, match, place) for act in each_verb(store, key, version)]


def unsent(act: Callable[[], object], match: str) -> StoreUnavailable:
    """Expect that nothing was sent, and an error that says why."""
    with pytest.raises(StoreUnavailable, match=match) as caught:
        act()
    assert not caught.value.sent
    return caught.value


def expect_requests(
    number: int, proxy: FaultProxy, act: Callable[[], T], counts: Callable[[bytes], bool] = lambda _: True
) -> T:
    """Expect so many requests that count while this acts, or soon after, and no more; give its answer."""
    sent = list[bytes]()

    def listen(request: bytes) -> Passage:
        if counts(request):
            sent.append(request)
        return PASS

    proxy.decide = listen
    answer = act()
    assert until(lambda: len(sent) >= number), sent
    assert len(sent) == number, sent
    proxy.decide = lambda _: PASS
    return answer


def expect_woken(store: Opened, key: str) -> None:
    """Put, and expect a wait for that to end with the removal."""
    entry = until_put(store, key)
    waiting = timed(lambda: store.wait_while(key, entry.version, 20))
    assert store.invalidate(key, entry.version) is None
    assert waiting.result(50)[0] < 15


def expect_tls_of_both_sides(api: Opening, base: str, certificates: Path) -> None:
    """Expect service with its authority and a certificate of ours, and an error without either."""
    trusted = f"{base}&cacert={certificates / 'ca.pem'}"
    ours = f"&cert={certificates / 'client.pem'}&key={certificates / 'client.key'}"
    expect_woken(api.open(trusted + ours), "k")
    refusal(lambda: api.open(base + ours).get("k"), "do not accept each other's TLS.*certificate")
    with pytest.raises(StoreError, match=r"certificate|closed"):
        api.open(trusted).get("k")


def until_put(store: Store, key: str) -> Entry:
    """Put, as soon as the server answers again."""
    found = list[Entry]()

    def tried() -> bool:
        with contextlib.suppress(StoreUnavailable):
            found.append(present(store.get(key) or store.put_if_version(key, b"v", ABSENT, 60)))
        return bool(found)

    assert until(tried)
    return found[0]


def finds(store: Store, key: str, entry: Entry) -> bool:
    """Whether the store finds the entry."""
    with contextlib.suppress(StoreUnavailable):
        return store.get(key) == entry
    return False


def fill(store: Store, value: bytes) -> None:
    """Put more than a small server has room for."""
    for _ in range(100):
        with contextlib.suppress(StoreError):
            store.put_if_version(fresh(), value, ABSENT, 60)


def expect_full(store: Store, value: bytes, match: str) -> None:
    """Expect of a server that was filled that it refuses puts, and that what is there can be read and removed."""
    key, small = fresh(), value[:300]
    entry = put(store, key, small)
    fill(store, value)
    refusal(lambda: store.put_if_version(fresh(), small, ABSENT, 60), match)
    assert store.get(key) == entry
    assert store.invalidate(key, entry.version) is None
    assert store.get(key) is None


def answers(store: Store) -> bool:
    with contextlib.suppress(StoreUnavailable):
        store.get("another")
        return True
    return False


def expect_no_leader_missed(cluster: Cluster, store: Store, ours: Store, theirs: Store) -> None:
    """Kill the leader: a hold is renewed at the next one, what was acknowledged is there, and versions grow."""
    key = fresh()
    before = until_put(store, key)
    with Lock(ours, f"{key}:lock", ttl=30, timeout=50) as hold:  # an election takes up to 9 s
        cluster.body(cluster.leader()).kill()
        versions = set[int]()

        def renewed() -> bool:
            with contextlib.suppress(StoreUnavailable):
                versions.add(present(theirs.get(f"{key}:lock")).version)
            return len(versions) > 1

        assert until(renewed)
        hold.ensure_held()
        assert Lock(theirs, f"{key}:lock").acquire(timeout=0) is None
    assert theirs.get(f"{key}:lock") is None
    assert until(lambda: finds(store, key, before))
    after = put(theirs, key, b"after", before.version)
    assert store.put_if_version(key, b"stale", before.version, 30) == after
    assert store.invalidate(key, after.version) is None
    assert put(theirs, key).version > after.version
