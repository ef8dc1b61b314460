"""The connections to one server, for code that blocks.

redis-py connects and authenticates; requests then go straight to the connected socket, and hiredis reads the replies.
One request per connection at a time.  A connection with an unread reply is closed, never reused.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from redis import exceptions

from caslock.connections import is_readable, seconds_left
from caslock.fork import generation
from caslock.guards import on_failure
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.wire import MORE, PUSH, new_reader

if TYPE_CHECKING:
    from caslock.stores.redis.requests import Request
    from caslock.stores.redis.server import Server, Untyped
    from caslock.stores.redis.wire import Reply

_CHUNK: Final = 16384


class Connection:
    """One connection."""

    def __init__(self, connection: Untyped, server: Server, ends: float) -> None:
        """Have redis-py connect by the moment `ends`."""
        self.generation: int = generation()
        self.used: float = monotonic()
        self._connection, self._server, self._reader = connection, server, new_reader()
        with on_failure(connection.disconnect):
            connection.ends = ends
            connection.connect()
            self._socket: Untyped = connection._sock  # noqa: SLF001 - there is no other way to the socket
            self.hurry(ends)

    async def ask(self, request: Request[Any], ends: float, wait: float) -> list[Reply]:
        """See `Link.ask`; it never suspends."""
        server, reader = self._server, self._reader
        packet = request.packet() + server.acknowledge
        self._socket.sendall(packet)
        if len(packet) > _CHUNK:  # to send so much may have taken a while
            self.hurry(ends)
        replies: list[Reply] = []
        count = request.replies + bool(server.replicas)
        while True:
            data = self._socket.recv(_CHUNK)
            if not data:
                raise exceptions.ConnectionError("Connection closed by server.")
            reader.feed(data)
            while (reply := reader.gets()) is not MORE:
                if type(reply) is PUSH:
                    continue
                replies.append(reply)
                if len(replies) == count:
                    return replies
                if wait and len(replies) == 1:
                    ends += wait
            self.hurry(ends)

    def hurry(self, ends: float) -> None:
        """Have the socket wait no longer than until `ends`.

        As a rule it waits for the timeout: to set it anew for each request, to acquire and release takes 6 % longer.
        """
        self._hurried = True
        self._socket.settimeout(seconds_left(ends))

    def relax(self) -> bool:
        """Have it wait as a rule again; False: there is something left to read."""
        if self._hurried:
            self._hurried = False
            self._socket.settimeout(self._server.timeout)
        return not self._reader.has_data()

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come in that was not asked for."""
        return not self._reader.has_data() and not is_readable(self._socket.fileno())

    def close(self) -> None:
        """Close it for good."""
        self._connection.disconnect()


class Sockets(Connections[Connection]):
    """The connections to one server."""

    async def close(self) -> None:
        """See `Connections.close`."""
        self._idle.end()

    def _ready(self, _request: Request[Any], now: float, within: float | None, /) -> Connection | None:
        link = self._idle.take()
        if link and within is not None:
            link.hurry(now + within)
        return link

    async def _connect(self, _request: Request[Any], ends: float, /) -> Connection:
        return Connection(self._new(), self._server, ends)

    def _keep(self, link: Connection) -> None:
        if link.relax():
            self._idle.keep(link)
        else:
            link.close()

    def _give_up(self, link: Connection, _error: BaseException, /) -> None:
        link.close()
