"""The connections to one server, for code that blocks.

redis-py connects and authenticates; requests then go straight to the connected socket, and hiredis reads the replies.
One request per connection at a time.  A connection with an unread reply is closed, never reused.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from redis import exceptions

from caslock.connections import LEAST, IdleConnections, is_readable
from caslock.fork import generation
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.server import LATE, MOST_WAITING, SLEEP, Address, Server, Untyped
from caslock.stores.redis.wire import MORE, PUSH, new_reader

if TYPE_CHECKING:
    from caslock.stores.redis.requests import Request, Wait
    from caslock.stores.redis.wire import Reply

_CHUNK: Final = 16384


class Connection:
    """One connection."""

    def __init__(self, connection: Untyped, timeout: float, ends: float) -> None:
        """Have redis-py connect by the moment `ends`; `timeout` is that of later requests."""
        self.ends = ends
        """When the time for the request under way is over."""
        self.generation: int = generation()
        self.used: float = monotonic()
        self._connection, self._timeout, self._reader = connection, timeout, new_reader()
        try:
            connection.ends = ends
            connection.connect()
            self._socket: Untyped = connection._sock  # noqa: SLF001 - there is no other way to the socket
            self.hurry()
        except BaseException:
            connection.disconnect()
            raise

    def ask(self, packet: bytes, count: int) -> list[Reply]:
        """Send a packet and read all its replies."""
        self.send(packet)
        self._receive()
        return self.read(count)

    def send(self, packet: bytes) -> None:
        """Send without reading."""
        self._socket.sendall(packet)
        if len(packet) > _CHUNK:  # to send so much may have taken a while
            self.hurry()

    def read(self, count: int) -> list[Reply]:
        """Read so many replies."""
        found: list[Reply] = []
        while len(found) < count:
            reply = self._reader.gets()
            if reply is MORE:
                self.hurry()
                self._receive()
            elif type(reply) is not PUSH:
                found.append(reply)
        return found

    def hurry(self) -> None:
        """Have the socket wait no longer than until `ends`.

        As a rule it waits for the timeout: to set it anew for each request, to acquire and release takes 6 % longer.
        """
        self._hurried = True
        self._socket.settimeout(max(self.ends - monotonic(), LEAST))

    def relax(self) -> bool:
        """Have it wait as a rule again; False: there is something left to read."""
        if self._hurried:
            self._hurried = False
            self._socket.settimeout(self._timeout)
        return not self._reader.has_data()

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come in that was not asked for."""
        return not self._reader.has_data() and not is_readable(self._socket.fileno())

    def close(self) -> None:
        """Close it for good."""
        self._connection.disconnect()

    def _receive(self) -> None:
        data = self._socket.recv(_CHUNK)
        if not data:
            raise exceptions.ConnectionError("Connection closed by server.")
        self._reader.feed(data)


class Turn:
    """The right to wait: it ends with the wait, or with its last reference where an interrupt has cut that short."""

    __slots__ = ("__weakref__",)


class Connections:
    """The connections to one server."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        self._server, self._new = server, server.opener(address)
        self._idle: IdleConnections[Connection] = IdleConnections()
        self._waiting: tuple[int, WeakSet[Turn]] = generation(), WeakSet()
        self._sleeps_until = 0.0
        self.changes: int = 0
        """Counts connections: the next one may lead to another server than the last."""

    def ask(self, request: Request, within: float | None = None) -> Reply:
        """Give the server's answer, which may be its error; raises what means that there is none.

        That takes `within` seconds at most, or else the socket timeout (where it has to connect, the longer of both).
        """
        server, connection = self._server, None
        try:
            connection = self._take(within)
            count = request.replies + server.extra
            replies = connection.ask(request.packet() + server.acknowledge, count)
            reply = replies[request.replies - 1]
            if isinstance(reply, exceptions.NoScriptError):
                connection.hurry()
                replies = connection.ask(request.in_full().packet() + server.acknowledge, count)
                reply = replies[request.replies - 1]
            if isinstance(reply, FAILOVER):
                raise reply  # noqa: TRY301 - no open connection is used again
        except Exception as error:  # there is no answer, and the request may have been applied
            raise self._failed(connection, error) from error
        except BaseException:  # the answer may still come, and must not be read as that of the next request
            if connection:
                connection.close()
            raise
        self._keep(connection)
        return server.checked(reply, replies[-1])

    def wait(self, wait: Wait, within: float | None = None) -> Reply:
        """Give the server's answer to a put that waits; ``StoreUnavailable(sent=False)``, at once: it can't wait.

        That takes what `ask` takes on top of the wait.
        """
        server, connection, turn = self._server, None, Turn()
        if self._waiting[0] != generation():  # those who wait are the parent's
            self._waiting = generation(), WeakSet()
        waiting = self._waiting[1]
        if len(waiting) >= MOST_WAITING or monotonic() < self._sleeps_until:
            raise server.failures.cannot_wait()
        waiting.add(turn)
        try:
            connection = self._take(server.patience if within is None else within)
            until = connection.ends + wait.seconds + max(LATE - server.patience, 0.0)
            connection.send(wait.packet + server.acknowledge)
            (ticket,) = connection.read(1)
            connection.ends = until
            token, *replies = connection.read(2 + server.extra)
            if isinstance(replies[0], FAILOVER):
                raise replies[0]  # noqa: TRY301 - see ask
        except Exception as error:
            raise self._failed(connection, error) from error
        except BaseException:
            if connection:
                connection.close()
            raise
        finally:
            waiting.discard(turn)
        self._keep(connection)
        if refused(ticket, token):
            self._sleeps_until = monotonic() + SLEEP
        return server.checked(replies[0], replies[-1])

    def nodes(self) -> list[Connections]:
        """Give the connections to each server that has keys."""
        return [self]

    def close(self) -> None:
        """Close what is idle; the next request opens one again."""
        self.changes += 1
        self._idle.close()

    def _take(self, within: float | None) -> Connection:
        server = self._server
        connection = self._idle.take()
        if connection is None:
            self.changes += 1
            ends = monotonic() + (server.patience if within is None else within)
            return Connection(self._new(), server.timeout, ends)
        if within is None:
            connection.ends = connection.used + server.timeout
        else:
            connection.ends = connection.used + within
            connection.hurry()
        return connection

    def _keep(self, connection: Connection) -> None:
        if connection.relax():
            self._idle.keep(connection)
        else:
            connection.close()

    def _failed(self, connection: Connection | None, error: Exception) -> Exception:
        if connection:
            connection.close()
        if not isinstance(error, TOO_LATE):  # after a restart or a failover, the others are dead as well
            self.close()
        return self._server.failures.of(error, sent=connection is not None)


def refused(ticket: Reply, token: Reply) -> bool:
    """Tell whether the server has refused to let us wait, as for want of the right to block; a moved slot is none."""
    reply = ticket if isinstance(ticket, Exception) else token
    return isinstance(reply, Exception) and not isinstance(reply, exceptions.MovedError)
