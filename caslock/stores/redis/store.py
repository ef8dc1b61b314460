"""The two stores.  Every verb is one request; `requests` says what is kept in Redis.

Needs Redis 6.2 or newer, Valkey, or a server that speaks as they do, and redis-py 6 with hiredis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.stores.redis.async_connections import Pipelines
from caslock.stores.redis.connections import run
from caslock.stores.redis.requests import FOREIGN, Requests, who
from caslock.stores.redis.sockets import Sockets
from caslock.stores.redis.verbs import AsyncRedisVerbs, RedisVerbs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from caslock.store import Entry, Put, Removal


class RedisStore(RedisVerbs[Requests]):
    """A `Store` on Redis primaries, for code that blocks; safe to share between threads and across a fork.

    Versions, and so fences, are the server's wall clock in microseconds, or one more than the version before.  Fences
    grow from tenure to tenure unless that clock steps back while nobody holds the key, or a failover leads to a primary
    whose clock is behind: then the next fence is smaller, by up to the step.  A step while somebody holds the key does
    no harm to fences.  Leases are measured by the same clock: a step forward ends them early, by the step, and a step
    back prolongs them.  Let the servers' clocks slew, as chrony and ntpd do once they run.
    """

    _verbs = Requests
    _known: tuple[int, str | None] = -1, None  # which server it is, and when it was asked

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `QueueingStore.put_when_absent`: on a connection of its own, at most 32 for each server and process."""
        request = self._requests.put_when_absent(key, value, ttl, timeout)
        if request is None:
            raise self._server.failures.cannot_wait()
        return self._server.answer(request, run(self._connections.wait(request)))

    def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """See `BatchingStore.put_many`: in a Cluster, the keys must have one slot, as ``{tag}a`` and ``{tag}b`` do."""
        request = self._requests.put_many(puts)
        return None if request is None else self._ask(request)

    def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """See `BatchingStore.invalidate_many`, and `put_many`."""
        request = self._requests.invalidate_many(removals)
        return None if request is None else self._ask(request)

    def identify(self) -> str | None:
        """See `IdentifiedStore.identify`: the run id of the primary and the database; of a Cluster, None.

        None also where the user may not ask for INFO.
        """
        here = self._connections
        if not isinstance(here, Sockets):
            return None
        if here.changes != self._known[0]:
            request = who(self._server.database)
            found = request.read(run(here.ask(request)))
            self._known = here.changes, found
        return self._known[1]

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._requests.name(key).decode()

    def list(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """See `ListingStore.list`: by SCAN, on every node of a Cluster, and one GET for each key."""
        seen = set[str]()
        for node in run(self._connections.nodes()):
            cursor = b"0"
            while cursor:
                request = self._requests.scan(prefix, cursor)
                cursor, keys = self._server.answer(request, run(node.ask(request)))
                for key in keys - seen:
                    found = self.get(key)
                    if found and found.version != FOREIGN:
                        yield key, found
                seen |= keys


class AsyncRedisStore(AsyncRedisVerbs[Requests]):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    _verbs = Requests
    _known: tuple[object, str | None] = None, None  # which server it is, and when it was asked

    async def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Entry | None:
        """See `RedisStore.put_when_absent`: at most 32 for each server and loop."""
        request = self._requests.put_when_absent(key, value, ttl, timeout)
        if request is None:
            raise self._server.failures.cannot_wait()
        return self._server.answer(request, await self._connections.here().wait(request))

    async def put_many(self, puts: Sequence[Put]) -> Sequence[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.put_many(puts)
        return None if request is None else await self._ask(request)

    async def invalidate_many(self, removals: Sequence[Removal]) -> Sequence[Entry | None] | None:
        """See `RedisStore.put_many`."""
        request = self._requests.invalidate_many(removals)
        return None if request is None else await self._ask(request)

    async def identify(self) -> str | None:
        """See `RedisStore.identify`."""
        here = self._connections.here()
        if not isinstance(here, Pipelines):
            return None
        if (here, here.changes) != self._known[0]:
            request = who(self._server.database)
            found = request.read(await here.ask(request))
            self._known = (here, here.changes), found
        return self._known[1]

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._requests.name(key).decode()

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """See `RedisStore.list`: its requests are made as the iteration goes on."""
        seen = set[str]()
        for node in await self._connections.here().nodes():
            cursor = b"0"
            while cursor:
                request = self._requests.scan(prefix, cursor)
                cursor, keys = self._server.answer(request, await node.ask(request))
                for key in keys - seen:
                    found = await self.get(key)
                    if found and found.version != FOREIGN:
                        yield key, found
                seen |= keys
