"""The law of this file: every verb is one script, and one request; what stands in Redis is told in `redis_requests`.

Needs Redis 6.2 or newer, Valkey, or a server that speaks as they do, alone, behind Sentinel or as a Cluster; and
redis-py 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

import redis
import redis.asyncio
from redis import exceptions

from caslock.stores.redis_cluster import AsyncCluster, Cluster
from caslock.stores.redis_line import Lines
from caslock.stores.redis_links import Links
from caslock.stores.redis_requests import FOREIGN, Requests, answer, answers
from caslock.stores.redis_server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

    from caslock.store import Entry, Put, Removal, Traits

__all__ = ["FOREIGN", "AsyncRedisStore", "RedisStore"]

_T = TypeVar("_T")


class RedisStore:
    """A `Store` on Redis primaries, for code that blocks; safe to share between threads and across a fork."""

    def __init__(self, client: redis.Redis | RedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """Keep the entries where `client` points to, over connections of our own that never retry.

        `client` is standalone, of ``Sentinel.master_for``, or a ``RedisCluster``; a timeout that it does not set is
        2 s.  `prefix` stands before every key.  With `replicas` = n, an answer counts only when n replicas have
        acknowledged, within half the socket timeout, what its connection has written; else it is `StoreUnavailable`,
        while the write stands on the primary.  (WAIT makes it less likely that a failover loses a lock; it is no
        guarantee.)  Raises TypeError for a client that can't be served and ValueError for a bad argument, before
        anything is sent.
        """
        self._server = Server(client, prefix, replicas)
        self._requests = Requests(prefix, cluster=bool(self._server.nodes))
        self._links = Cluster(self._server) if self._server.nodes else Links(self._server)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``redis://``, ``rediss://`` or ``unix://``, with redis-py's query parameters (``?socket_timeout=1``)."""
        return _from_url(lambda: cls(redis.Redis.from_url(url), prefix=prefix, replicas=replicas))

    @property
    def traits(self) -> Traits:
        """Versions only grow, so they are fences; Redis ends leases by itself."""
        return self._server.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        request = self._requests.get(key)
        return answer(self._server, request, self._links.ask(request))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        request = self._requests.put(key, value, version, ttl)
        return answer(self._server, request, self._links.ask(request))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        request = self._requests.invalidate(key, version)
        return answer(self._server, request, self._links.ask(request))

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `WakingStore.put_when_free`: on a connection of its own, at most 32 for each server and process."""
        wait = self._requests.put_when_free(key, value, ttl, timeout)
        if wait is None:
            raise self._server.cannot_wait()
        return answer(self._server, wait.put, self._links.wait(wait))

    def put_many(self, puts: Sequence[Put]) -> list[Entry | None] | None:
        """See `BatchingStore.put_many`: in a Cluster, the keys must have one slot, as ``{tag}a`` and ``{tag}b`` do."""
        request = self._requests.put_many(puts)
        if not puts or request is None:
            return None if puts else []
        return answers(self._server, request, self._links.ask(request))

    def invalidate_many(self, removals: Sequence[Removal]) -> list[Entry | None] | None:
        """See `BatchingStore.invalidate_many`, and `put_many`."""
        request = self._requests.invalidate_many(removals)
        if not removals or request is None:
            return None if removals else []
        return answers(self._server, request, self._links.ask(request))

    def close(self) -> None:
        """Close the idle connections; the next request opens one again."""
        self._links.close()

    def __repr__(self) -> str:
        """Show the place."""
        return f"RedisStore({self._server.traits.place!r})"


class AsyncRedisStore:
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, client: redis.asyncio.Redis | AsyncRedisCluster, *, prefix: str = "", replicas: int = 0) -> None:
        """See `RedisStore`; `client` is a ``redis.asyncio.Redis`` or the ``RedisCluster`` of ``redis.asyncio``."""
        self._server = Server(client, prefix, replicas, awaits=True)
        self._requests = Requests(prefix, cluster=bool(self._server.nodes))
        self._lines = AsyncCluster(self._server) if self._server.nodes else Lines(self._server)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `RedisStore.from_url`."""
        return _from_url(lambda: cls(redis.asyncio.Redis.from_url(url), prefix=prefix, replicas=replicas))

    @property
    def traits(self) -> Traits:
        """See `RedisStore.traits`."""
        return self._server.traits

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        request = self._requests.get(key)
        return answer(self._server, request, await self._lines.ask(request))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        request = self._requests.put(key, value, version, ttl)
        return answer(self._server, request, await self._lines.ask(request))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        request = self._requests.invalidate(key, version)
        return answer(self._server, request, await self._lines.ask(request))

    async def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `RedisStore.put_when_free`: at most 32 for each server and loop."""
        wait = self._requests.put_when_free(key, value, ttl, timeout)
        if wait is None:
            raise self._server.cannot_wait()
        return answer(self._server, wait.put, await self._lines.wait(wait))

    async def put_many(self, puts: Sequence[Put]) -> list[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.put_many(puts)
        if not puts or request is None:
            return None if puts else []
        return answers(self._server, request, await self._lines.ask(request))

    async def invalidate_many(self, removals: Sequence[Removal]) -> list[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.invalidate_many(removals)
        if not removals or request is None:
            return None if removals else []
        return answers(self._server, request, await self._lines.ask(request))

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._lines.close()

    def __repr__(self) -> str:
        """Show the place."""
        return f"AsyncRedisStore({self._server.traits.place!r})"


def _from_url(build: Callable[[], _T]) -> _T:
    try:
        return build()
    except (ValueError, TypeError, exceptions.RedisError):
        raise ValueError(
            "this Redis URL can't be read: percent-encode what is reserved in a password, and check the options"
        ) from None  # for the cause may quote a part of a password
