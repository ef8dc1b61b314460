"""The server of a store, and how a connection to it is made: by redis-py, with the settings of the user's client.

redis-py connects, authenticates, speaks TLS and asks Sentinel.  The client's own connections are never used; ours never
retry and always have a timeout.
"""

from __future__ import annotations

import copy
import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from caslock.store import Traits
from caslock.stores.redis.failures import Dialect, Failures
from caslock.stores.redis.wire import packed
from caslock.stores.shared.connections import run, seconds_left
from caslock.stores.shared.links import Endpoint
from caslock.stores.shared.options import check_prefix, check_replicas, check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

Untyped: TypeAlias = Any  # redis-py: its two APIs are used by one code here, and share no type
Address: TypeAlias = tuple[str, int]

_TIMEOUT: Final = 2.0  # seconds, where the client sets none
_LEFT_OUT: Final = ("retry_", "health_check_", "maint", "oss_cluster_", "orig_")  # settings


class ClusterNodes(NamedTuple):
    """A Cluster, as a URL names it; redis-py's own client would connect at once."""

    pool: Untyped
    """With the settings of connections to each node."""
    addresses: list[Address]


class Server:
    """A primary, or the primaries of a cluster."""

    def __init__(self, client: Untyped, prefix: str, replicas: int, dialect: Dialect, *, awaits: bool = False) -> None:
        """Take the settings of the client; raises TypeError for another kind of client, ValueError for bad settings."""
        check_prefix(prefix)
        check_replicas(replicas)
        self._awaits = awaits
        self.replicas: int = replicas
        kind, cluster = (redis.asyncio.Redis, AsyncRedisCluster) if awaits else (redis.Redis, RedisCluster)
        self.nodes: list[Address] = []
        """Those of a cluster that the client names; none: it is no cluster."""
        if isinstance(client, ClusterNodes):
            self._pool: Untyped = client.pool
            self.nodes = sorted(set(client.addresses))
        elif isinstance(client, cluster):
            self.nodes = sorted({(str(node.host), int(node.port)) for node in _startup_nodes(client)})
            self._pool = _cluster_pool(client, self.nodes[0], awaits=awaits)
        else:
            self._pool = _pool(client, kind, cluster)
        self._retry = (AsyncRetry if awaits else Retry)(NoBackoff(), 0)
        settings = self._settings(self._pool)
        self.timeout: float = settings["socket_timeout"]
        """Seconds in which a verb ends that has an open connection."""
        self.patience: float = max(self.timeout, settings["socket_connect_timeout"])
        """Seconds in which a verb ends that has to open one, with all that belongs to it."""
        connection = self.opener()()  # not connected, but an unknown setting is refused here
        self.database: int = int(connection.db or 0)
        manager = getattr(self._pool, "sentinel_manager", None)
        pools = [self._pool, *(each.connection_pool for each in (manager.sentinels if manager else []))]
        names = ("password", "username", "ssl_password")
        secrets = [str(each.connection_kwargs.get(name) or "") for each in pools for name in names]
        location = _location(dialect.scheme, self._pool, self.nodes, connection, prefix)
        self.failures: Failures = Failures(location, secrets, dialect)
        # In a Cluster, to load the map of its slots may take as long again.
        self.traits: Traits = Traits(location, request_timeout=self.patience * (2 if self.nodes else 1))
        wait = (b"WAIT", b"%d" % replicas, b"%d" % math.ceil(self.timeout * 500))  # ms: half the timeout
        self.acknowledge: bytes = packed(wait) if replicas else b""
        """What follows requests, and has a reply of its own; nothing without replicas."""

    def opener(self, address: Address | None = None) -> Callable[[], Untyped]:
        """Return the maker of connections to a node, or to the only server there is."""
        settings, kind = self._settings(self._pool), self._pool.connection_class
        if address:
            settings["host"], settings["port"] = address
        if hasattr(self._pool, "sentinel_manager"):
            settings["connection_pool"] = _Primary(self._discover if self._awaits else lambda: run(self._discover()))
        if self._awaits:
            settings["socket_timeout"] = None  # ours replaces it: Python 3.11 can lose a cancellation in redis-py's
        else:
            kind = _timely(kind, settings["socket_timeout"], settings["socket_connect_timeout"])
        return partial(kind, **settings)

    def _settings(self, pool: Untyped) -> dict[str, Untyped]:
        """Return the settings of a pool's connections without its retries, its pings and what can stretch a timeout."""
        settings = {name: setting for name, setting in pool.connection_kwargs.items() if not name.startswith(_LEFT_OUT)}
        timeout = _TIMEOUT
        for name in ("socket_timeout", "socket_connect_timeout"):  # the second is the first if it is not set
            given = settings.get(name)
            settings[name] = timeout = timeout if given is None else check_timeout(name, given)
        return settings | {"retry": self._retry, "decode_responses": False}

    async def _discover(self) -> Address:
        """Ask the Sentinels where the primary is, over connections that live no longer than that."""
        sentinel = copy.copy(self._pool.sentinel_manager)
        # Each has a share of the time, so that the next one is asked when the first does not answer.
        share = self.patience / (len(sentinel.sentinels) + 1)
        sentinel.sentinels = [self._asking_once(client, share) for client in sentinel.sentinels]
        try:
            found = sentinel.discover_master(self._pool.service_name)
            address: Address = await found if self._awaits else found
        finally:
            for client in sentinel.sentinels:
                await client.aclose() if self._awaits else client.close()
        return address

    def _asking_once(self, client: Untyped, share: float) -> Untyped:
        pool = client.connection_pool
        settings = self._settings(pool)
        for name in ("socket_timeout", "socket_connect_timeout"):
            settings[name] = min(settings[name], share)
        return type(client).from_pool(type(pool)(connection_class=pool.connection_class, **settings))


class _Primary:
    """What a Sentinel connection of redis-py needs of its pool: the address of the primary, each time it connects."""

    is_master = True
    check_connection = False
    service_name = ""

    def __init__(self, discover: Callable[[], object]) -> None:
        self.get_master_address = discover


def _pool(client: Untyped, *kinds: Untyped) -> Untyped:
    """Return the pool of a client; only its settings are used."""
    if not isinstance(client, kinds[0]):
        needed, other, given = (f"{each.__module__}.{each.__qualname__}" for each in (*kinds, type(client)))
        raise TypeError(f"the client must be a {needed} or a {other}, not {given}")
    if not getattr(client.connection_pool, "is_master", True):
        raise TypeError("use Sentinel.master_for, not slave_for: locks need the primary")
    return client.connection_pool


def _startup_nodes(client: Untyped) -> Untyped:
    """Return the nodes that a cluster's client was given, for they name its location in every process alike."""
    if not hasattr(client, "startup_nodes"):
        raise TypeError(
            f"redis-py {redis.__version__} does not tell which nodes a RedisCluster was given: use redis-py 7 or newer,"
            " or a URL, such as redis+cluster://one:6379,two:6379"
        )
    return client.startup_nodes


def _cluster_pool(client: Untyped, node: Address, *, awaits: bool) -> Untyped:
    """Return a pool with the settings that a cluster's client has for each of its nodes."""
    settings = dict(client.get_connection_kwargs())
    for name in ("path", "url", "redis_connect_func"):  # the last one would allow reading from replicas
        settings.pop(name, None)
    settings["host"], settings["port"] = node
    if awaits:
        (kind,) = {each.connection_class for each in client.startup_nodes}
        for name in ("response_callbacks", "event_dispatcher", "himport_registry"):
            settings.pop(name, None)
        return redis.asyncio.ConnectionPool(**(settings | {"connection_class": kind}))
    if "connection_class" in settings:
        return redis.ConnectionPool(**settings)
    return redis.Redis(**settings).connection_pool


def _timely(kind: Untyped, timeout: float, connect_timeout: float) -> Untyped:
    """Return a kind of connection whose every step of connecting ends by the moment `ends`.

    redis-py has a timeout for each address of a host name, and one for each of some five requests to introduce itself;
    but it looks each of them up when it needs it.
    """
    if not inspect.isclass(kind):  # a function that makes connections: it keeps redis-py's timeouts
        return kind
    usual: Untyped = kind

    def left(own: float) -> property:
        return property(lambda self: min(own, seconds_left(self.ends)), lambda _self, _own: None)

    def read_response(self: Untyped, *options: Untyped, **settings: Untyped) -> Untyped:
        self._sock.settimeout(self.socket_timeout)
        return usual.read_response(self, *options, **settings)

    own = {"ends": math.inf, "socket_timeout": left(timeout), "socket_connect_timeout": left(connect_timeout)}
    return type(kind.__name__, (usual,), own | {"read_response": read_response})


def _location(scheme: str, pool: Untyped, nodes: list[Address], connection: Untyped, prefix: str) -> str:
    """Name the server and the part of its keys that is ours; two stores differ in it if they differ in either."""
    query = [f"prefix={prefix}"] if prefix else []
    database = connection.db or 0
    scheme += "s" if isinstance(connection, (redis.SSLConnection, redis.asyncio.SSLConnection)) else ""
    if hasattr(pool, "sentinel_manager"):
        settings = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        hosts = ",".join(sorted(str(Endpoint(setting["host"], setting["port"])) for setting in settings))
        where = f"{scheme}+sentinel://{hosts}/{pool.service_name}/{database}"
    elif path := getattr(connection, "path", None):
        where = f"unix://{path}"
        query.insert(0, f"db={database}")
    else:
        hosts = ",".join(str(Endpoint(*node)) for node in nodes)
        single = f"{scheme}://{Endpoint(connection.host, connection.port)}/{database}"
        where = f"{scheme}+cluster://{hosts}" if nodes else single
    return f"{where}?{'&'.join(query)}" if query else where
