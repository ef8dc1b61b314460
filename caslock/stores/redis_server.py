"""The law of this file: of a client of redis-py only the settings are used, and no secret of theirs is ever shown.

The connections are redis-py's own kind, for they know TLS, passwords, Sentinel and both protocols; but they are ours,
never retry, and always have a timeout.
"""

from __future__ import annotations

import copy
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import Traits
from caslock.stores.redis_wire import Reply, packed

if TYPE_CHECKING:
    from collections.abc import Callable

Untyped: TypeAlias = Any  # redis-py: its two APIs are used by one code here, and share no type
Address: TypeAlias = tuple[str, int]

TOO_LATE: Final = (TimeoutError, exceptions.TimeoutError)

_TIMEOUT: Final = 2.0  # seconds, where the client sets none
_NOT_NOW: Final = (exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.BusyLoadingError)
_REFUSED: Final = (exceptions.ResponseError, exceptions.AuthenticationError, exceptions.AuthorizationError)
_ADVICE: Final = {
    "OutOfMemory": "Free memory or raise its maxmemory; releases still work.",
    "ReadOnly": "Connect to the primary, not to a replica.",
    "Authentication": "Check the user and the password.",
    "NoPermission": (
        "Grant the user eval, evalsha, get, set, del and time (and wait, with replicas) on these keys; to be woken: "
        "blpop, rpush, zadd, zcard, zpopmin, zremrangebyscore and pexpire on all names that begin so."
    ),
    "WRONGTYPE": "Another program keeps something else than a string under this key: use another key, or a prefix.",
    "MovedError": "It is a node of a Redis Cluster: make the store of a RedisCluster.",
    "NOREPLICAS": "Bring its replicas back, or lower its min-replicas-to-write.",
}


class Opener(NamedTuple):
    """How connections come to be in one process, and one event loop."""

    new: Callable[[], Untyped]
    sentinel: Untyped


class Server:
    """Where a store's entries live: a primary, or the primaries of a cluster."""

    def __init__(self, client: Untyped, prefix: str, replicas: int, *, awaits: bool = False) -> None:
        """Take the settings of the client, or raise TypeError for one that can't be served."""
        if replicas < 0:
            raise ValueError(f"replicas must be 0 or more, not {replicas}")
        self._replicas = replicas
        kind, cluster = (redis.asyncio.Redis, AsyncRedisCluster) if awaits else (redis.Redis, RedisCluster)
        self.nodes: list[Address] = []
        """Those of a cluster that the client was told of; none: it is no cluster."""
        if isinstance(client, cluster):
            self.nodes = sorted({(str(node.host), int(node.port)) for node in client.startup_nodes})
            self._pool: Untyped = _cluster_pool(client, self.nodes[0], awaits=awaits)
        else:
            self._pool = _pool(client, kind, cluster)
        self._retry = (AsyncRetry if awaits else Retry)(NoBackoff(), 0)
        self._awaits = awaits
        opener = self.opener()
        # Not connected, but an unknown setting is refused here.
        self.traits = Traits(_place(self._pool, self.nodes, opener.new(), prefix), fences=True, expires=True)
        watchers = [each.connection_pool for each in opener.sentinel.sentinels] if opener.sentinel else []
        names = ("password", "username", "ssl_password")
        secrets = {str(each.connection_kwargs.get(name) or "") for each in (self._pool, *watchers) for name in names}
        self._secrets = sorted(secrets - {""}, key=len, reverse=True)
        settings = _settings(self._pool, self._retry)
        self.timeout: float = settings["socket_timeout"]
        self.connect_timeout: float = (settings["socket_connect_timeout"] + self.timeout) * (1 + len(watchers))
        wait = (b"WAIT", b"%d" % replicas, b"%d" % math.ceil(self.timeout * 500))  # ms: half the timeout
        self.acknowledge = packed(*wait) if replicas else b""
        """What follows every packet, and has a reply of its own; nothing without replicas."""

    def opener(self, address: Address | None = None) -> Opener:
        """Give the maker of connections to a node, or to the only server there is."""
        pool, settings, sentinel = self._pool, _settings(self._pool, self._retry), None
        if address:
            settings["host"], settings["port"] = address
        if hasattr(pool, "sentinel_manager"):
            sentinel = copy.copy(pool.sentinel_manager)
            sentinel.sentinels = [_asking_once(client, self._retry) for client in sentinel.sentinels]
            settings["connection_pool"] = _Primary(sentinel, pool.service_name)
        if self._awaits:
            settings["socket_timeout"] = None  # ours is around it: in redis-py's, Python 3.11 can lose a cancellation
        return Opener(partial(pool.connection_class, **settings), sentinel)

    def too_few(self, acknowledged: Reply) -> StoreUnavailable | None:
        """Tell whether fewer replicas have acknowledged a request than were to."""
        if isinstance(acknowledged, int) and acknowledged >= self._replicas:
            return None
        told = f"{self._replicas} replicas were to acknowledge it, not {self._masked(str(acknowledged))}"
        error = StoreUnavailable(f"{self.traits.place} may have applied the request: {told}. Check them.")
        error.__cause__ = acknowledged if isinstance(acknowledged, Exception) else None
        return error

    def cannot_wait(self) -> StoreUnavailable:
        """Say that a put can't wait now."""
        return StoreUnavailable(f"{self.traits.place} can't be waited at now. Sleep, and put then.", sent=False)

    def failure(self, error: BaseException, *, sent: bool = True) -> StoreError:
        """Tell which outcome an error of the client means, and blot every secret out of that error."""
        step: BaseException | None = error
        while step is not None:
            if isinstance(step, exceptions.RedisError):
                step.args = tuple(self._masked(part) if isinstance(part, str) else part for part in step.args)
            step = step.__cause__ or step.__context__
        # redis-py wraps what the server answers to an asyncio handshake on a unix socket in a ConnectionError.
        reply = error.__cause__ if isinstance(error.__cause__, exceptions.RedisError) else error
        text = f"{type(reply).__name__}: {str(reply) or 'it took too long'}"
        not_now = isinstance(reply, _NOT_NOW) or str(reply).startswith(("BUSY ", "UNBLOCKED "))
        failed: StoreError
        if isinstance(reply, _REFUSED) and not not_now:
            say = next((say for word, say in _ADVICE.items() if word in text), "Check its configuration and its log.")
            failed = StoreError(f"{self.traits.place} has refused the request ({text}). {say}")
        elif not_now:
            failed = StoreUnavailable(f"{self.traits.place} can't serve it now ({text}). Try again later.", sent=False)
        elif sent:
            say = f"gave no answer, and may have applied the request ({text}). Read before you try again."
            failed = StoreUnavailable(f"{self.traits.place} {say}", sent=True)
        else:
            say = f"can't be reached ({text}). Check that it runs, and that this host may connect to it."
            failed = StoreUnavailable(f"{self.traits.place} {say}", sent=False)
        failed.__cause__ = error
        return failed

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return re.sub(r",? with args beginning with.*", "", text, flags=re.DOTALL)  # so is a refused AUTH echoed


class _Primary:
    """All that a Sentinel connection of redis-py asks of its pool: where the primary is, whenever it connects."""

    is_master = True
    check_connection = False

    def __init__(self, sentinel: Untyped, service_name: str) -> None:
        self.service_name = service_name
        self.get_master_address = partial(sentinel.discover_master, service_name)


def _pool(client: Untyped, *kinds: Untyped) -> Untyped:
    """Give the pool of a client that can be served; only its settings are used."""
    if not isinstance(client, kinds[0]):
        needed, other, given = (f"{each.__module__}.{each.__qualname__}" for each in (*kinds, type(client)))
        raise TypeError(f"the client must be a {needed} or a {other}, not a {given}")
    if not getattr(client.connection_pool, "is_master", True):
        raise TypeError("the client must be of Sentinel.master_for, not of its replicas: a lock lives on the primary")
    return client.connection_pool


def _cluster_pool(client: Untyped, node: Address, *, awaits: bool) -> Untyped:
    """Give a pool with the settings that a cluster's client has for each of its nodes."""
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


def _settings(pool: Untyped, retry: object) -> dict[str, Untyped]:
    """Give the settings of a pool's connections without its retries, its pings and what can stretch a timeout."""
    left_out = ("retry_", "health_check_", "maint", "oss_cluster_", "orig_")
    settings = {name: setting for name, setting in pool.connection_kwargs.items() if not name.startswith(left_out)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        settings[name] = settings.get(name) or _TIMEOUT
    return settings | {"retry": retry, "decode_responses": False}


def _asking_once(client: Untyped, retry: object) -> Untyped:
    pool = client.connection_pool
    return type(client).from_pool(type(pool)(connection_class=pool.connection_class, **_settings(pool, retry)))


def _place(pool: Untyped, nodes: list[Address], link: Untyped, prefix: str) -> str:
    """Name the server and the part of its keys that is ours: what differs in either is another place."""
    query = [f"prefix={prefix}"] if prefix else []
    if hasattr(pool, "sentinel_manager"):
        settings = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        hosts = ",".join(sorted(f"{setting.get('host')}:{setting.get('port')}" for setting in settings))
        where = f"redis+sentinel://{hosts}/{pool.service_name}/{link.db or 0}"
    elif path := getattr(link, "path", None):
        where = f"unix://{path}"
        query.insert(0, f"db={link.db or 0}")
    else:
        scheme = "rediss" if isinstance(link, (redis.SSLConnection, redis.asyncio.SSLConnection)) else "redis"
        hosts = ",".join(f"{_host(host)}:{port}" for host, port in nodes)
        where = f"{scheme}+cluster://{hosts}" if nodes else f"{scheme}://{_host(link.host)}:{link.port}/{link.db or 0}"
    return f"{where}?{'&'.join(query)}" if query else where


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
