"""The two stores on TairString.  Every verb is one request, over the connections of the Redis store.

Waiters poll: what the module writes sends no notification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import redis
import redis.asyncio

from caslock.closing import AsyncClosing, Closing
from caslock.stores.redis.async_connections import AsyncConnections
from caslock.stores.redis.cluster import AsyncCluster, Cluster
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.failures import ADVICE, Dialect
from caslock.stores.redis.server import Server
from caslock.stores.redis.store import open_url
from caslock.stores.tair.requests import TairRequests, entry

if TYPE_CHECKING:
    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

    from caslock.store import Entry, Traits

_NO_MODULE: Final = "the server has no TairString; load the module, or use a redis:// URL, which needs none"
_NO_PX: Final = "leases need an EXCAS with PX, as the open-source module has it; use that, or a redis:// URL"
_TAIR: Final = Dialect(
    "tair",
    ADVICE
    | {
        "NoPermission": "grant the user eval, evalsha, exget, exset, excas, del and time (and wait, with replicas)",
        "WRONGTYPE": "another program stores a value other than a TairString under this key; use another or a prefix",
        "unknown command": _NO_MODULE,
        "Unknown Redis command": _NO_MODULE,
        "syntax error": _NO_PX,
        "number of arg": _NO_PX,
    },
)


class TairStore(Closing):
    """A `Store` on a server with TairString, for code that blocks; safe to share between threads and across a fork.

    Versions, and so fences, are the server's wall clock in microseconds, or one more than the version before.  What
    `RedisStore` says about that clock is true here as well.
    """

    def __init__(self, client: redis.Redis | RedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """Keep the entries where `client` points to; its kind and the arguments are those of `RedisStore`.

        Nothing is sent yet.  A server without TairString, or one whose EXCAS takes no PX, is a `StoreError` at the
        first acquire.
        """
        self._server = Server(client, prefix, replicas, dialect=_TAIR)
        self._requests = TairRequests(prefix)
        self._connections = Cluster(self._server) if self._server.nodes else Connections(self._server)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``tair://`` or ``tairs://`` (TLS), which are else like the URLs of `RedisStore.from_url`."""
        return open_url(cls, redis.Redis.from_url, _as_redis(url), prefix, replicas)

    @property
    def traits(self) -> Traits:
        """Versions only grow, so they are fences; the server ends leases by itself."""
        return self._server.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return entry(b"", self._server.definite(self._connections.ask(self._requests.get(key))))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        request = self._requests.put(key, value, version, ttl)
        return entry(value, self._server.definite(self._connections.ask(request)))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return entry(b"", self._server.definite(self._connections.ask(self._requests.invalidate(key, version))))

    def close(self) -> None:
        """Close the idle connections; the next request opens one again."""
        self._connections.close()

    def __repr__(self) -> str:
        """Show the location."""
        return f"TairStore({self._server.traits.location!r})"


class AsyncTairStore(AsyncClosing):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, client: redis.asyncio.Redis | AsyncRedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """See `TairStore`; `client` is a ``redis.asyncio.Redis`` or the ``RedisCluster`` of ``redis.asyncio``."""
        self._server = Server(client, prefix, replicas, awaits=True, dialect=_TAIR)
        self._requests = TairRequests(prefix)
        self._connections: AsyncCluster[AsyncConnections] | AsyncConnections
        if self._server.nodes:
            self._connections = AsyncCluster(self._server, AsyncConnections)
        else:
            self._connections = AsyncConnections(self._server)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `TairStore.from_url`."""
        return open_url(cls, redis.asyncio.Redis.from_url, _as_redis(url), prefix, replicas)

    @property
    def traits(self) -> Traits:
        """See `TairStore.traits`."""
        return self._server.traits

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return entry(b"", self._server.definite(await self._connections.ask(self._requests.get(key))))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        request = self._requests.put(key, value, version, ttl)
        return entry(value, self._server.definite(await self._connections.ask(request)))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return entry(b"", self._server.definite(await self._connections.ask(self._requests.invalidate(key, version))))

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._connections.close()

    def __repr__(self) -> str:
        """Show the location."""
        return f"AsyncTairStore({self._server.traits.location!r})"


def _as_redis(url: str) -> str:
    """Give the URL as redis-py reads it; raises ValueError for another scheme, and quotes nothing of the URL."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in ("tair", "tairs"):
        raise ValueError("a Tair URL begins with tair:// or, for TLS, tairs://")
    return f"redis{scheme[4:]}://{rest}"
