"""The two stores.  Every verb is one request; `requests` says what is kept in Redis.

Needs Redis 6.2 or newer, Valkey, or a server that speaks as they do, and redis-py 6 with hiredis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

import redis
import redis.asyncio
from redis import exceptions

from caslock.closing import AsyncClosing, Closing
from caslock.options import check_prefix, check_replicas
from caslock.stores.redis.async_connections import AsyncConnections
from caslock.stores.redis.cluster import AsyncCluster, Cluster
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.requests import FOREIGN, WHO, Requests, entries, entry, run_id
from caslock.stores.redis.server import Server
from caslock.stores.redis.url import read_url, unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

    from caslock.store import Entry, Put, Removal, Traits

__all__ = ["FOREIGN", "AsyncRedisStore", "RedisStore"]

_T = TypeVar("_T")


class RedisStore(Closing):
    """A `Store` on Redis primaries, for code that blocks; safe to share between threads and across a fork.

    Versions, and so fences, are the server's wall clock in microseconds, or one more than the version before.  Fences
    grow from tenure to tenure unless that clock steps back while nobody holds the key, or a failover leads to a primary
    whose clock is behind: then the next fence is smaller, by up to the step.  A step while somebody holds the key does
    no harm to fences.  Leases are measured by the same clock: a step forward ends them early, by the step, and a step
    back prolongs them.  Let the servers' clocks slew, as chrony and ntpd do once they run.
    """

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
        self._server = Server(client, prefix, replicas)
        self._requests = Requests(prefix, cluster=bool(self._server.nodes))
        self._connections = Cluster(self._server) if self._server.nodes else Connections(self._server)
        self._known: tuple[int, str | None] = -1, None  # which server it is, and when it was asked

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``redis://``, ``rediss://`` or ``unix://``, with redis-py's query parameters (``?socket_timeout=1``).

        ``?prefix=`` and ``?replicas=`` say the same as the arguments.  Raises ValueError for a malformed
        or ambiguous URL.
        """
        return open_url(cls, redis.Redis.from_url, url, prefix, replicas)

    @property
    def traits(self) -> Traits:
        """Versions only grow, so they are fences; Redis ends leases by itself."""
        return self._server.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        request = self._requests.get(key)
        return entry(request, self._server.definite(self._connections.ask(request)))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        request = self._requests.put(key, value, version, ttl)
        return entry(request, self._server.definite(self._connections.ask(request)))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        request = self._requests.invalidate(key, version)
        return entry(request, self._server.definite(self._connections.ask(request)))

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `QueueingStore.put_when_absent`: on a connection of its own, at most 32 for each server and process."""
        wait = self._requests.put_when_absent(key, value, ttl, timeout)
        if wait is None:
            raise self._server.failures.cannot_wait()
        return entry(wait.put, self._server.definite(self._connections.wait(wait)))

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """See `BatchingStore.put_many`: in a Cluster, the keys must have one slot, as ``{tag}a`` and ``{tag}b`` do."""
        request = self._requests.put_many(puts)
        if request is None:
            return None if puts else []
        return entries(request, self._server.definite(self._connections.ask(request)))

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """See `BatchingStore.invalidate_many`, and `put_many`."""
        request = self._requests.invalidate_many(removals)
        if request is None:
            return None if removals else []
        return entries(request, self._server.definite(self._connections.ask(request)))

    def identify(self) -> str | None:
        """See `IdentifiedStore.identify`: the run id of the primary and the database; of a Cluster, None.

        None also where the user may not ask for INFO.
        """
        if isinstance(self._connections, Cluster):
            return None
        if self._connections.changes != self._known[0]:
            reply = self._connections.ask(WHO)
            self._known = self._connections.changes, run_id(reply, self._server.database)
        return self._known[1]

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._requests.stored_name(key)

    def close(self) -> None:
        """Close the idle connections; the next request opens one again."""
        self._connections.close()

    def __repr__(self) -> str:
        """Show the location."""
        return f"RedisStore({self._server.traits.location!r})"

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """See `ListingStore.list`: by SCAN, on every node of a Cluster, and one GET for each key."""
        seen = set[str]()
        for node in self._connections.nodes():
            cursor = b""
            while cursor != b"0":
                reply = node.ask(self._requests.scan(prefix, cursor or b"0"))
                cursor, keys = self._requests.scanned(self._server.definite(reply))
                for key in keys:
                    found = None if key in seen else self.get(key)
                    seen.add(key)
                    if found and found.version != FOREIGN:
                        yield key, found


class AsyncRedisStore(AsyncClosing):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, client: redis.asyncio.Redis | AsyncRedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """See `RedisStore`; `client` is a ``redis.asyncio.Redis`` or the ``RedisCluster`` of ``redis.asyncio``."""
        self._server = Server(client, prefix, replicas, awaits=True)
        self._requests = Requests(prefix, cluster=bool(self._server.nodes))
        if self._server.nodes:
            self._connections: AsyncCluster[AsyncConnections] | AsyncConnections
            self._connections = AsyncCluster(self._server, AsyncConnections)
        else:
            self._connections = AsyncConnections(self._server)
        self._known: tuple[object, str | None] = None, None  # which server it is, and when it was asked

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `RedisStore.from_url`."""
        return open_url(cls, redis.asyncio.Redis.from_url, url, prefix, replicas)

    @property
    def traits(self) -> Traits:
        """See `RedisStore.traits`."""
        return self._server.traits

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        request = self._requests.get(key)
        return entry(request, self._server.definite(await self._connections.ask(request)))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        request = self._requests.put(key, value, version, ttl)
        return entry(request, self._server.definite(await self._connections.ask(request)))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        request = self._requests.invalidate(key, version)
        return entry(request, self._server.definite(await self._connections.ask(request)))

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `RedisStore.put_when_absent`: at most 32 for each server and loop."""
        wait = self._requests.put_when_absent(key, value, ttl, timeout)
        if wait is None:
            raise self._server.failures.cannot_wait()
        return entry(wait.put, self._server.definite(await self._connections.wait(wait)))

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.put_many(puts)
        if request is None:
            return None if puts else []
        return entries(request, self._server.definite(await self._connections.ask(request)))

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.invalidate_many(removals)
        if request is None:
            return None if removals else []
        return entries(request, self._server.definite(await self._connections.ask(request)))

    async def identify(self) -> str | None:
        """See `RedisStore.identify`."""
        if isinstance(self._connections, AsyncCluster):
            return None
        here = self._connections.here()
        if (here, here.changes) != self._known[0]:
            reply = await here.ask(WHO)
            self._known = (here, here.changes), run_id(reply, self._server.database)
        return self._known[1]

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._requests.stored_name(key)

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._connections.close()

    def __repr__(self) -> str:
        """Show the location."""
        return f"AsyncRedisStore({self._server.traits.location!r})"

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """See `RedisStore.list`: its requests are made as the iteration goes on."""
        seen = set[str]()
        for node in await self._connections.nodes():
            cursor = b""
            while cursor != b"0":
                reply = await node.ask(self._requests.scan(prefix, cursor or b"0"))
                cursor, keys = self._requests.scanned(self._server.definite(reply))
                for key in keys:
                    found = None if key in seen else await self.get(key)
                    seen.add(key)
                    if found and found.version != FOREIGN:
                        yield key, found


def open_url(store: Callable[..., _T], client: Callable[[str], object], url: str, prefix: str, replicas: int) -> _T:
    """Make a store of the client that a URL describes; see `RedisStore.from_url`."""
    check_prefix(prefix)
    check_replicas(replicas)
    read = read_url(url)
    if (prefix and read.prefix) or (replicas and read.replicas):
        raise ValueError("give prefix and replicas in the URL or as arguments, not both")
    check_replicas(read.replicas)
    try:
        return store(client(read.url), prefix=prefix or read.prefix, replicas=replicas or read.replicas)
    except (ValueError, TypeError, exceptions.RedisError):
        raise unreadable(url) from None
