"""What the stores over the connections of Redis have in common: each verb is one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import redis
import redis.asyncio

from caslock.closing import AsyncClosing, Closing
from caslock.stores.redis.async_connections import Loops, Pipelines
from caslock.stores.redis.cluster import Cluster
from caslock.stores.redis.connections import run
from caslock.stores.redis.failures import REDIS, Dialect
from caslock.stores.redis.server import Server
from caslock.stores.redis.sockets import Sockets
from caslock.stores.redis.url import open_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

    from caslock.store import Entry, Traits
    from caslock.stores.redis.requests import Request

T = TypeVar("T")


class Verbs(Protocol):
    """The three verbs as requests; they check their arguments, so a bad one is never sent."""

    def get(self, key: str) -> Request[Entry | None]:
        """Read."""

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Request[Entry | None]:
        """Write."""

    def invalidate(self, key: str, version: int) -> Request[Entry | None]:
        """Remove."""


V = TypeVar("V", bound=Verbs)


class RedisVerbs(Closing, Generic[V]):
    """The three verbs for code that blocks; safe to share between threads and across a fork."""

    _dialect: ClassVar[Dialect] = REDIS
    _verbs: ClassVar[Callable[..., Any]]
    """Makes the requests."""

    def __init__(self, client: redis.Redis | RedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """Store entries on the server of `client`, using its settings but separate connections without retries.

        `client` is standalone, of ``Sentinel.master_for``, or a ``RedisCluster``.  If it has no timeout, 2 s is used,
        as for a URL; a client that redis-py 8 makes has 5 s by default.  `prefix` is prepended to every key.  With
        `replicas` = n, an answer counts only when n replicas have acknowledged, within half the socket timeout, what
        its connection has written.  Fewer acknowledgements raise `StoreUnavailable`; a write stays on the primary.
        (WAIT makes it less likely that a failover loses a lock; it is no guarantee.)

        A verb ends within the client's `socket_timeout`.  If it has to connect, it ends within the longer of that and
        `socket_connect_timeout`, Sentinel's answer included.  Loading a Cluster's map may take as long again.
        (Resolving a host name is not bounded: that is up to the system's resolver.)

        Raises TypeError for any other client and ValueError for a bad argument, before anything is sent.
        """
        self._server = server = Server(client, prefix, replicas, self._dialect)
        self._requests: V = self._verbs(prefix, cluster=bool(server.nodes))
        self._connections: Cluster[Sockets] | Sockets = Cluster(server, Sockets) if server.nodes else Sockets(server)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``redis://``, ``rediss://`` or ``unix://``, with redis-py's query parameters (``?socket_timeout=1``).

        ``?prefix=`` and ``?replicas=`` say the same as the arguments.  Raises ValueError for a malformed
        or ambiguous URL.
        """
        return open_url(cls, redis.Redis.from_url, url, prefix, replicas)

    @property
    def traits(self) -> Traits:
        """Versions only grow, so they are fences; the server ends leases by itself."""
        return self._server.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._ask(self._requests.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        return self._ask(self._requests.put(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._ask(self._requests.invalidate(key, version))

    def close(self) -> None:
        """Close the idle connections; the next request opens one again."""
        run(self._connections.close())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.traits.location!r})"

    def _ask(self, request: Request[T]) -> T:
        return self._server.answer(request, run(self._connections.ask(request)))


class AsyncRedisVerbs(AsyncClosing, Generic[V]):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    _dialect: ClassVar[Dialect] = REDIS
    _verbs: ClassVar[Callable[..., Any]]

    def __init__(self, client: redis.asyncio.Redis | AsyncRedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """See `RedisVerbs`; `client` is a ``redis.asyncio.Redis`` or the ``RedisCluster`` of ``redis.asyncio``."""
        self._server = server = Server(client, prefix, replicas, self._dialect, awaits=True)
        self._requests: V = self._verbs(prefix, cluster=bool(server.nodes))
        self._connections: Loops[Cluster[Pipelines] | Pipelines]
        self._connections = Loops(lambda: Cluster(server, Pipelines) if server.nodes else Pipelines(server))

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `RedisVerbs.from_url`."""
        return open_url(cls, redis.asyncio.Redis.from_url, url, prefix, replicas)

    @property
    def traits(self) -> Traits:
        """See `RedisVerbs.traits`."""
        return self._server.traits

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._ask(self._requests.get(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        return await self._ask(self._requests.put(key, value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._ask(self._requests.invalidate(key, version))

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._connections.here().close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.traits.location!r})"

    async def _ask(self, request: Request[T]) -> T:
        return self._server.answer(request, await self._connections.here().ask(request))
