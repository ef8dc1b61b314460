"""The connections to one server: how a request is answered, and what an error means for other connections.

Written once, for asyncio.  Code that blocks runs it to its end in one step, because its connections never suspend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from redis import exceptions

from caslock.connections import Connection, IdleConnections, Waiters
from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.requests import Request, who

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from caslock.stores.redis.server import Address, Server
    from caslock.stores.redis.wire import Reply


_LATE: Final = 0.5
"""Seconds that Redis has at least to end a wait, even if the timeout is shorter: it checks ten times a second."""

_SLEEP: Final = 1.0
"""Seconds after a refused wait in which no other is tried: its caller sleeps, as it would at a store without waits."""


class Link(Connection, Protocol):
    """A connection to a Redis."""

    def ask(self, request: Request[Any], ends: float, wait: float) -> Awaitable[list[Reply]]:
        """Send a request, and give all its replies, that of the replicas last, by the moment `ends`.

        After the first reply the others may take `wait` seconds longer.
        """


L = TypeVar("L", bound=Link)
T = TypeVar("T")


class Connections(ABC, Generic[L]):
    """The connections to one server."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        self._server, self._new = server, server.opener(address)
        self._idle: IdleConnections[L] = IdleConnections()
        self._waiters = Waiters()
        self._sleeps_until = 0.0

    async def ask(self, request: Request[T], within: float | None = None) -> T:
        """Ask the server, and read its answer; raises what an error of the server means, or that there is no answer.

        That takes `within` seconds at most, or else the socket timeout (where it has to connect, the longer of both).
        """
        server, link = self._server, None
        try:
            now = monotonic()
            link = self._ready(request, now, within)
            ends = now + (within if within is not None else server.timeout if link else server.patience)
            link = link or await self._connect(request, ends)
            wait = request.seconds and request.seconds + max(now + _LATE - ends, 0.0)
            # In full, or the replicas would be waited for twice if a script is unknown.
            replies = await link.ask(request.in_full() if server.replicas else request, ends, wait)
            reply = replies[request.replies - 1]
            if isinstance(reply, FAILOVER):
                raise reply  # noqa: TRY301 - no open connection is used again
            answer: T = None if isinstance(reply, Exception) else request.read(reply)  # type: ignore[assignment] # unused
        except BaseException as error:
            if link:  # the answer may still come, and must not be read as that of the next request
                self._give_up(link, error)
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, TOO_LATE):  # after a restart or a failover, the others are dead as well
                self._idle.close()
            raise server.failures.of(error, sent=link is not None) from error
        self._keep(link)
        if wait and _refused(*replies[:2]):
            self._sleeps_until = monotonic() + _SLEEP
        if not isinstance(reply, Exception):
            if server.replicas:
                server.check(replies[-1])
            return answer
        if isinstance(reply, exceptions.NoScriptError) and request.script:
            return await self.ask(request.in_full(), ends - monotonic())
        raise server.failures.of(reply) from reply

    async def wait(self, request: Request[T], within: float | None = None) -> T:
        """Do the same for a request that waits; ``StoreUnavailable(sent=False)``, at once: it can't wait."""
        busy = self._server.failures.cannot_wait()
        if monotonic() < self._sleeps_until:
            raise busy
        with self._waiters.one_more(busy):
            return await self.ask(request, within)

    async def server_id(self) -> str | None:
        """Return the run id of the server, and the database; None: it does not say.

        It is asked each time: whoever knew it from before a restart would take keys in another order than all others.
        """
        try:
            return await self.ask(who(self._server.database))
        except StoreUnavailable:
            raise
        except StoreError:  # the user may not ask
            return None

    async def nodes(self) -> list[Self]:
        """Return the connections to each server that has keys."""
        return [self]

    @abstractmethod
    async def close(self) -> None:
        """Close what is idle; the next request opens one again."""

    @abstractmethod
    def _ready(self, request: Request[Any], now: float, within: float | None, /) -> L | None:
        """Return an open connection, if there is one."""

    @abstractmethod
    async def _connect(self, request: Request[Any], ends: float, /) -> L:
        """Open one by the moment `ends`."""

    @abstractmethod
    def _keep(self, link: L) -> None:
        """Take back the connection of a request that was answered."""

    @abstractmethod
    def _give_up(self, link: L, error: BaseException, /) -> None:
        """Take back that of a request that was not."""


def _refused(ticket: Reply, token: Reply) -> bool:
    """Tell whether the server has refused to let us wait, as for want of the right to block; a moved slot is none."""
    reply = ticket if isinstance(ticket, Exception) else token
    return isinstance(reply, Exception) and not isinstance(reply, exceptions.MovedError)
