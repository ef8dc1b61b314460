"""The connections to one server: how a request is answered, and what an error means for other connections.

Written once, for asyncio.  Code that blocks runs it to its end in one step, because its connections never suspend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from redis import exceptions

from caslock.connections import Connection, IdleConnections
from caslock.fork import generation
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.server import LATE, MOST_WAITING, SLEEP, Address, Server

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from caslock.stores.redis.requests import Request
    from caslock.stores.redis.wire import Reply


class Link(Connection, Protocol):
    """A connection to a Redis."""

    async def ask(self, request: Request[Any], ends: float, wait: float) -> list[Reply]:
        """Send a request, and give all its replies, that of the replicas last, by the moment `ends`.

        After the first reply the others may take `wait` seconds longer.
        """


T = TypeVar("T")
L = TypeVar("L", bound=Link)


class Connections(ABC, Generic[L]):
    """The connections to one server."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        self._server, self._new = server, server.opener(address)
        self._idle: IdleConnections[L] = IdleConnections()
        self._waiting: dict[int, set[object]] = {}  # by generation: who waits at a fork is the parent's
        self._sleeps_until = 0.0
        self.generation: int = generation()
        self.changes: int = 0
        """Counts connections: the next one may lead to another server than the last."""

    async def ask(self, request: Request[Any], within: float | None = None) -> Reply:
        """Give the server's answer, which may be its error; raises what means that there is none.

        That takes `within` seconds at most, or else the socket timeout (where it has to connect, the longer of both).
        """
        server, link = self._server, None
        try:
            link, now = self._ready(request, within), monotonic()
            ends = now + (within if within is not None else server.timeout if link else server.patience)
            link = link or await self._connect(request, ends)
            wait = request.seconds and request.seconds + max(now + LATE - ends, 0.0)
            replies = await link.ask(request, ends, wait)
            reply = replies[request.replies - 1]
            if isinstance(reply, FAILOVER):
                raise reply  # noqa: TRY301 - no open connection is used again
        except BaseException as error:
            if link:  # the answer may still come, and must not be read as that of the next request
                self._give_up(link, error)
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, TOO_LATE):  # after a restart or a failover, the others are dead as well
                self.changes += 1
                self._idle.close()
            raise server.failures.of(error, sent=link is not None) from error
        self._keep(link)
        if wait:
            refused = next((each for each in replies[:2] if isinstance(each, Exception)), None)
            if refused and not isinstance(refused, exceptions.MovedError):  # as for want of the right to block
                self._sleeps_until = monotonic() + SLEEP
        elif isinstance(reply, exceptions.NoScriptError) and request.script:
            return await self.ask(request.in_full(), ends - monotonic())
        return server.checked(reply, replies[-1])

    async def wait(self, request: Request[Any], within: float | None = None) -> Reply:
        """Do the same for a request that waits; ``StoreUnavailable(sent=False)``, at once: it can't wait."""
        waiting, place = self._waiting.setdefault(generation(), set()), object()
        if len(waiting) >= MOST_WAITING or monotonic() < self._sleeps_until:
            raise self._server.failures.cannot_wait()
        try:
            waiting.add(place)
            return await self.ask(request, within)
        finally:
            waiting.discard(place)

    async def nodes(self) -> list[Self]:
        """Give the connections to each server that has keys."""
        return [self]

    @abstractmethod
    async def close(self) -> None:
        """Close what is idle; the next request opens one again."""

    @abstractmethod
    def _ready(self, request: Request[Any], within: float | None, /) -> L | None:
        """Give an open connection, if there is one."""

    @abstractmethod
    async def _connect(self, request: Request[Any], ends: float, /) -> L:
        """Open one by the moment `ends`."""

    @abstractmethod
    def _keep(self, link: L) -> None:
        """Take back the connection of a request that was answered."""

    @abstractmethod
    def _give_up(self, link: L, error: BaseException, /) -> None:
        """Take back that of a request that was not."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    raise RuntimeError("a blocking connection suspended")
