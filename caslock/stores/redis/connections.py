"""The connections to one server: how a request is answered, and what an error means for other connections.

Written once, for asyncio.  Code that blocks runs it to its end in one step, because its connections never suspend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from redis import exceptions

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.requests import who
from caslock.stores.redis.wire import packed
from caslock.stores.shared.connections import Connection, IdleConnections, Waiters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from caslock.stores.redis.requests import Request
    from caslock.stores.redis.server import Address, Server
    from caslock.stores.redis.wire import Reply


_LATE: Final = 0.5
"""Seconds that Redis has at least to end a wait, even if the timeout is shorter: it checks ten times a second."""

_SLEEP: Final = 1.0
"""Seconds after a refused wait in which no other is tried: its caller sleeps, as it would at a store without waits."""


class Link(Connection, Protocol):
    """A connection to a Redis."""

    def ask(self, packet: bytes, replies: int, ends: float, wait: float) -> Awaitable[list[Reply]]:
        """Send a packet, and give its replies by the moment `ends`, that of the replicas last; or raise TimeoutError.

        After the first reply the others may take `wait` seconds longer.
        """


L = TypeVar("L", bound=Link)
T = TypeVar("T")


class Pool(IdleConnections[L], ABC):
    """Connections that can be had one by one, and are opened where none is idle."""

    def __init__(self, server: Server, address: Address | None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        super().__init__()
        self._server, self._new = server, server.opener(address)

    @abstractmethod
    async def open(self, ends: float) -> L:
        """Connect by the moment `ends`."""


class Connections(Generic[L]):
    """The connections to one server."""

    def __init__(
        self, requests: type[Pool[L]], waits: type[Pool[L]], server: Server, address: Address | None = None
    ) -> None:
        """Open nothing yet; `waits` is the kind of pool for requests that wait, and may be that for all."""
        self._server = server
        self._for_requests = requests(server, address)
        self._for_waits = self._for_requests if waits is requests else waits(server, address)
        self._waiters = Waiters()
        self._sleeps_until: dict[bytes, float] = {}  # by what follows upon the wait

    async def ask(self, request: Request[T], within: float | None = None) -> T:
        """Ask the server, and read its answer; raises what an error of the server means, or that there is no answer.

        That takes `within` seconds at most, or else the socket timeout (where it has to connect, the longer of both).
        """
        server, link, kept = self._server, None, False
        # In full, or the replicas would be waited for twice if a script is unknown.
        request = request.in_full() if server.replicas else request
        command, _, read, _, before, count, wait, _ = request
        pool = self._for_waits if wait else self._for_requests
        try:
            link = pool.take()
            seconds = within if within is not None else server.timeout if link else server.patience
            ends = monotonic() + seconds
            wait = wait and wait + max(_LATE - seconds, 0.0)
            if link is None:
                link = await pool.open(ends)
            replies = await link.ask(before + packed(command), count, ends, wait)
            answer = read_answer(replies[count - 1], read)
            kept = True
        except Exception as error:
            raise self._failed(error, sent=link is not None) from error
        finally:
            if link is not None:
                (pool.keep if kept else pool.give_up)(link)
        if wait and _refused(*replies[:2]):
            self._sleeps_until[command[0]] = monotonic() + _SLEEP
        if isinstance(answer, Exception):
            return await self.ask_otherwise(request, answer, ends)
        acknowledged = replies[-1]
        if server.replicas and (not isinstance(acknowledged, int) or acknowledged < server.replicas):
            raise server.failures.too_few(server.replicas, acknowledged)
        return answer

    async def ask_otherwise(self, request: Request[T], error: Exception, ends: float) -> T:
        """Ask in another way after an error, or raise what it means."""
        other = _in_place_of(request, error)
        if other != request:
            return await self.ask(other, ends - monotonic())
        raise self._server.failures.of(error, sent=True) from error

    async def wait(self, request: Request[T], within: float | None = None) -> T:
        """Do the same for a request that waits; ``StoreUnavailable(sent=False)``, at once: it can't wait."""
        busy = self._server.failures.cannot_wait()
        if monotonic() < self._sleeps_until.get(request.command[0], 0.0):
            raise busy
        with self._waiters.one_more(busy):
            return await self.ask(request, within)

    def _failed(self, error: Exception, *, sent: bool) -> StoreError:
        if not isinstance(error, TOO_LATE):  # after a restart or a failover, the others are dead as well
            self._for_waits.close()
        if isinstance(error, FAILOVER):
            self._for_requests.close()
        return self._server.failures.of(error, sent=sent)

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

    def end(self) -> None:
        """Close what is idle, and keep nothing from now on."""
        self._for_requests.end()
        self._for_waits.end()


def read_answer(reply: Reply, read: Callable[[Reply], T]) -> T | Exception:
    """Return what an answer says, or the error that it is; raise one that means a failover: it ends all connections."""
    if not isinstance(reply, Exception):
        return read(reply)
    if isinstance(reply, FAILOVER):
        raise reply
    return reply


def _in_place_of(request: Request[T], error: Exception) -> Request[T]:
    """Return what to send after an error: the script itself, or without names that the user may not touch."""
    if isinstance(error, exceptions.NoScriptError):
        return request.in_full()
    return request.alone() if isinstance(error, exceptions.NoPermissionError) else request


def _refused(ticket: Reply, token: Reply) -> bool:
    """Tell whether the server has refused to let us wait, as for want of the right to block; a moved slot is none."""
    reply = ticket if isinstance(ticket, Exception) else token
    return isinstance(reply, Exception) and not isinstance(reply, exceptions.MovedError)
