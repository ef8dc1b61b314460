"""The stores over the connections of Redis.  Every verb is one request; `requests` says what is kept in Redis.

Needs Redis 6.2 or newer, Valkey, or a server that speaks as they do, and redis-py 5.2 or newer with hiredis.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import redis
import redis.asyncio

from caslock.process.loop_end import ConnectionsPerLoop
from caslock.stores.redis.async_connections import Pipelines, SharedPipeline
from caslock.stores.redis.cluster import Cluster, connections_to
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.failures import REDIS, Dialect
from caslock.stores.redis.requests import Requests
from caslock.stores.redis.server import Server
from caslock.stores.redis.sockets import SocketConnections
from caslock.stores.redis.url import open_url
from caslock.stores.shared.closing import AsyncClosing, Closing
from caslock.stores.shared.connections import run

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

    from caslock.store import Entry, Put, Removal, Traits


class RedisVerbs(Closing):
    """The three verbs for code that blocks; safe to share between threads and across a fork."""

    _dialect: ClassVar[Dialect] = REDIS
    _verbs: ClassVar[type[Requests]] = Requests

    def __init__(self, client: redis.Redis | RedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """Store entries on the server of `client`, using its settings but separate connections without retries.

        `client` is standalone, of ``Sentinel.master_for``, or a ``RedisCluster``.  If it has no timeout, 2 s is used,
        as for a URL; a client that redis-py 8 makes has 5 s by default.  `prefix` is prepended to every key.  With
        `replicas` = n, an answer counts only when n replicas have acknowledged, within half the socket timeout, what
        its connection has written.  Fewer acknowledgements raise `StoreUnavailable`; a write stays on the primary.
        (WAIT makes it less likely that a failover loses a lock; it is no guarantee.)

        A verb ends within the client's `socket_timeout`.  If it has to connect, it ends within the longer of that and
        `socket_connect_timeout`, which is as long if the client does not set it; Sentinel's answer is included.
        Loading a Cluster's map may take as long again.
        (Resolving a host name is not bounded: that is up to the system's resolver.)

        Raises TypeError for any other client and ValueError for a bad argument, before anything is sent.
        """
        self._server = server = Server(client, prefix, replicas, self._dialect)
        self.traits: Traits = server.traits
        self._requests = self._verbs(prefix, server.failures, cluster=bool(server.nodes))
        self._connections = connections_to(server, SocketConnections)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``redis://``, ``rediss://`` or ``unix://``, with redis-py's query parameters (``?socket_timeout=1``).

        A Cluster is ``redis+cluster://user:password@node:7000,node:7001``; a primary that Sentinels watch is
        ``redis+sentinel://user:password@one:26379,two:26379/service/0``, with ``?sentinel_username=`` and
        ``?sentinel_password=`` for the Sentinels themselves.  Name several, because any one may be down.  With
        ``rediss+``, all of them speak TLS.

        ``?prefix=`` and ``?replicas=`` say the same as the arguments.  Nothing is sent before the first request.
        Raises ValueError for a malformed or ambiguous URL.
        """
        return open_url(cls, redis.Redis.from_url, url, prefix, replicas)

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._connections.ask_blocking(self._requests.get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        return self._connections.ask_blocking(self._requests.put(key, value, version, ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._connections.ask_blocking(self._requests.invalidate(key, version))

    def close(self) -> None:
        """Close the idle connections.  A later request opens one, and closes it."""
        self._connections.end()


class AsyncRedisVerbs(AsyncClosing):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    _dialect: ClassVar[Dialect] = REDIS
    _verbs: ClassVar[type[Requests]] = Requests

    def __init__(self, client: redis.asyncio.Redis | AsyncRedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """See `RedisVerbs`; `client` is a ``redis.asyncio.Redis`` or the ``RedisCluster`` of ``redis.asyncio``."""
        self._server = server = Server(client, prefix, replicas, self._dialect, awaits=True)
        self.traits: Traits = server.traits
        self._requests = self._verbs(prefix, server.failures, cluster=bool(server.nodes))
        new = partial(Connections, SharedPipeline, Pipelines)
        self._connections = ConnectionsPerLoop(partial(connections_to, server, new))

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `RedisVerbs.from_url`."""
        return open_url(cls, redis.asyncio.Redis.from_url, url, prefix, replicas)

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._connections.here().ask(self._requests.get(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        return await self._connections.here().ask(self._requests.put(key, value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._connections.here().ask(self._requests.invalidate(key, version))

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._connections.close()


class RedisStore(RedisVerbs):
    """A `Store` on Redis primaries, for code that blocks; safe to share between threads and across a fork.

    Versions, and so fences, are the server's wall clock in microseconds, or one more than the version before.  Fences
    grow from tenure to tenure unless that clock steps back while nobody holds the key, or a failover leads to a primary
    whose clock is behind: then the next fence is smaller, by up to the step.  A step while somebody holds the key does
    no harm to fences.  Leases are measured by the same clock: a step forward ends them early, by the step, and a step
    back prolongs them.  Let the servers' clocks slew, as chrony and ntpd do once they run.
    """

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `QueueingStore.put_when_absent`: on a connection of its own, at most 32 for each server and process."""
        return run(self._connections.wait(self._requests.put_when_absent(key, value, ttl, timeout)))

    def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        """See `WatchingStore.wait_while`, and `put_when_absent`."""
        return run(self._connections.wait(self._requests.wait_while(key, version, timeout)))

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """See `BatchingStore.put_many`: in a Cluster, the keys must have one slot, as ``{tag}a`` and ``{tag}b`` do."""
        request = self._requests.put_many(puts)
        return None if request is None else run(self._connections.ask(request))

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """See `BatchingStore.invalidate_many`, and `put_many`."""
        request = self._requests.invalidate_many(removals)
        return None if request is None else run(self._connections.ask(request))

    def identify(self) -> str | None:
        """See `IdentifiedStore.identify`: the run id of the primary and the database; of a Cluster, None.

        None also where the user may not ask for INFO.
        """
        return run(self._connections.server_id())

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._requests.name(key).decode()

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """See `ListingStore.list`: by SCAN, on every node of a Cluster, and one GET for each key."""
        entries = _entries(self._connections, self._requests, prefix)
        with suppress(StopAsyncIteration):
            while True:
                yield run(entries.__anext__())


class AsyncRedisStore(AsyncRedisVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `RedisStore.put_when_absent`: at most 32 for each server and loop."""
        return await self._connections.here().wait(self._requests.put_when_absent(key, value, ttl, timeout))

    async def wait_while(self, key: str, version: int, timeout: float) -> Entry | None:
        """See `RedisStore.wait_while`."""
        return await self._connections.here().wait(self._requests.wait_while(key, version, timeout))

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.put_many(puts)
        return None if request is None else await self._connections.here().ask(request)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.invalidate_many(removals)
        return None if request is None else await self._connections.here().ask(request)

    async def identify(self) -> str | None:
        """See `RedisStore.identify`."""
        return await self._connections.here().server_id()

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._requests.name(key).decode()

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """See `RedisStore.list`: its requests are made as the iteration goes on."""
        async for found in _entries(self._connections.here(), self._requests, prefix):
            yield found


async def _entries(
    connections: Cluster | Connections[Any], requests: Requests, prefix: str
) -> AsyncGenerator[tuple[str, Entry], None]:
    seen = set[str]()
    for node in await connections.nodes():
        cursor = b"0"
        while cursor:
            cursor, keys = await node.ask(requests.scan(prefix, cursor))
            for key in keys - seen:
                found = await connections.ask(requests.get(key))
                if found:
                    yield key, found
            seen |= keys
