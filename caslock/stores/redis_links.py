"""The law of this file: who asks alone has a connection, and none is used again that may still have something to say.

For code that blocks.  The requests go straight to the socket of a connected connection of redis-py: its own way of
sending and reading costs more than the server takes.  Where it shows no socket, that way is taken all the same.
"""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from redis import exceptions

from caslock.errors import StoreError
from caslock.process import generation
from caslock.sockets import sender
from caslock.stores.redis_server import TOO_LATE, Address, Opener, Server, Untyped
from caslock.stores.redis_wire import PUSH, Reply, parse, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.stores.redis_requests import Request, Wait

MOST_WAITING: Final = 32
"""Connections on which a store's waiters may block at one time, in one process, for each server."""

LATE: Final = 0.5
"""Seconds that Redis may take longer than the socket timeout to end a wait: it looks ten times a second."""

SLEEP: Final = 1.0
"""Seconds after a refusal to let us wait until we ask again: who comes in between sleeps as it would without."""

RESTED: Final = 1.0
"""Seconds after which an idle connection is looked at before it is used."""

FAILOVER: Final = (exceptions.ReadOnlyError, exceptions.BusyLoadingError)
"""Replies after which no connection of their time is used again: the primary may be elsewhere."""

_MOST_IDLE: Final = 32  # connections kept; where more threads ask at once, more are opened, and closed afterwards
_CHUNK: Final = 16384


class Link:
    """One connection, and what came in on it beyond what was asked."""

    __slots__ = ("__weakref__", "_connection", "_socket", "rest", "send", "since")

    def __init__(self, connection: Untyped) -> None:
        """Take a connection that is not connected yet."""
        self._connection = connection
        self._socket: Untyped = None
        self.send: Callable[[bytes], None] = self._send_slowly
        """Sends without reading."""
        self.rest = b""
        self.since = 0.0

    def connect(self) -> None:
        """Connect, with all that redis-py does then."""
        self._connection.connect()
        self._socket = getattr(self._connection, "_sock", None)
        if hasattr(self._socket, "recv"):
            self.send = sender(self._socket)
        else:
            self._socket = None

    def ask(self, packet: bytes, count: int) -> list[Reply]:
        """Send one packet and read all its replies."""
        self.send(packet)
        if count == 1 and self._socket is not None:
            data = self._socket.recv(_CHUNK)
            if data:
                reply, end = parse(data, 0)
                if end == len(data) and data[0] != PUSH:
                    return [reply]
                self.rest = data
                return self.read(1)
            raise exceptions.ConnectionError("Connection closed by server.")
        return self.read(count)

    def _send_slowly(self, packet: bytes) -> None:
        self._connection.send_packed_command([packet], check_health=False)

    def read(self, count: int) -> list[Reply]:
        """Read so many replies."""
        found: list[Reply] = []
        while self._socket is None and len(found) < count:
            try:
                found.append(self._connection.read_response())
            except exceptions.ResponseError as error:
                found.append(error)
        rest = read(self.rest, count, found)
        while len(found) < count:
            data = self._socket.recv(max(_CHUNK, len(rest)))
            if not data:
                raise exceptions.ConnectionError("Connection closed by server.")
            rest = read(rest + data, count, found)
        self.rest = rest
        return found

    def read_within(self, seconds: float, usual: float) -> Reply:
        """Read one reply that may take longer than the `usual` timeout."""
        if self._socket is not None:
            self._socket.settimeout(seconds)
            try:
                return self.read(1)[0]
            finally:
                self._socket.settimeout(usual)
        if not self._connection.can_read(seconds):
            raise exceptions.TimeoutError("Timeout reading from socket")
        return self.read(1)[0]

    def quiet(self) -> bool:
        """Whether it is open, and holds nothing that we did not ask for."""
        try:
            return not self._connection.can_read()
        except (exceptions.RedisError, OSError):
            return False

    def close(self) -> None:
        """Close it for good."""
        self._connection.disconnect()


class _Kept(NamedTuple):
    """The connections of one process."""

    generation: int
    opener: Opener
    # Append and pop are atomic: there is no lock that a fork could copy in use.
    idle: list[Link]
    waiting: WeakSet[Turn]


class Links:
    """The connections to one server that wait to be used: the last used is on top."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        self._server, self._address = server, address
        self._inherited: list[_Kept] = []
        self._sleeps_until = 0.0
        self._kept = self._new()

    def ask(self, request: Request) -> Reply:
        """Give the server's answer, which may be its error; raises what means that there is none."""
        kept = self._kept
        if kept.generation != generation():
            kept = self._afresh()
        acknowledge = self._server.acknowledge
        count = request.replies + 1 if acknowledge else request.replies
        link, sent = None, False
        try:
            link = self._take(kept)
            sent = True
            replies = link.ask(request.packet + acknowledge, count)
            reply = replies[request.replies - 1]
            if isinstance(reply, Exception):
                if isinstance(reply, exceptions.NoScriptError):
                    replies = link.ask(request.in_full().packet + acknowledge, count)
                    reply = replies[request.replies - 1]
                if isinstance(reply, FAILOVER):
                    raise reply  # noqa: TRY301 - this connection must not be used again, nor the others
        except Exception as error:  # whatever it is, no answer came, and the request may have been applied
            raise self._failed(kept, link, error, sent=sent) from error
        except BaseException:  # the answer may still come: nobody must read it
            if link:
                link.close()
            raise
        self._put_back(link, kept)
        if acknowledge and (missed := self._server.too_few(replies[-1])):
            raise missed
        return reply

    def wait(self, wait: Wait) -> Reply:
        """Give the server's answer to a put that waits; ``StoreUnavailable(sent=False)``, at once: it can't wait."""
        kept = self._kept
        if kept.generation != generation():
            kept = self._afresh()
        if len(kept.waiting) >= MOST_WAITING or monotonic() < self._sleeps_until:
            raise self._server.cannot_wait()
        server = self._server
        turn, link, sent = Turn(), None, False
        kept.waiting.add(turn)
        try:
            link = self._take(kept)
            sent = True
            ticket = self._ticket(link, wait)
            token = link.read_within(wait.seconds + LATE + server.timeout, server.timeout)
            replies = link.read(2 if server.acknowledge else 1)
            if isinstance(replies[0], FAILOVER):
                raise replies[0]  # noqa: TRY301 - see ask
        except Exception as error:
            raise self._failed(kept, link, error, sent=sent) from error
        except BaseException:
            if link:
                link.close()
            raise
        finally:
            kept.waiting.discard(turn)
        self._put_back(link, kept)
        if refused(ticket, token):
            self._sleeps_until = monotonic() + SLEEP
        if isinstance(replies[0], exceptions.NoScriptError):  # nothing of it was applied
            return self.ask(wait.put)
        if server.acknowledge and (missed := server.too_few(replies[-1])):
            raise missed
        return replies[0]

    def close(self) -> None:
        """Close what is idle; the next request opens one again."""
        kept = self._kept if self._kept.generation == generation() else self._afresh()
        self._drop(kept)
        for client in kept.opener.sentinel.sentinels if kept.opener.sentinel else ():
            client.close()

    def _ticket(self, link: Link, wait: Wait) -> Reply:
        """Send a wait, and give its first reply."""
        link.send(wait.packet + self._server.acknowledge)
        (ticket,) = link.read(1)
        if isinstance(ticket, exceptions.NoScriptError):
            with contextlib.suppress(StoreError):  # then nobody wakes us: that costs no more than time
                ticket = self.ask(wait.ticket)
        return ticket

    def _take(self, kept: _Kept) -> Link:
        now = monotonic()
        try:
            link = kept.idle.pop()
        except IndexError:
            link = self._open(kept)
        else:
            if now - link.since > RESTED and not link.quiet():
                link.close()
                link = self._open(kept)
        link.since = now
        return link

    def _open(self, kept: _Kept) -> Link:
        link = Link(kept.opener.new())
        try:
            link.connect()
        except BaseException:
            link.close()
            raise
        return link

    def _put_back(self, link: Link, kept: _Kept) -> None:
        if link.rest or len(kept.idle) >= _MOST_IDLE:
            link.close()
        else:
            kept.idle.append(link)

    def _failed(self, kept: _Kept, link: Link | None, error: Exception, *, sent: bool) -> Exception:
        if link:
            link.close()
        if not isinstance(error, TOO_LATE):  # a restart or a failover: the others are dead as well
            self._drop(kept)
        return self._server.failure(error, sent=sent)

    def _drop(self, kept: _Kept) -> None:
        while kept.idle:
            with contextlib.suppress(IndexError):  # another thread has just taken the last one
                kept.idle.pop().close()

    def _afresh(self) -> _Kept:
        # The sockets are the parent's: never touched, nor closed by the garbage collector.
        self._inherited.append(self._kept)
        self._kept = kept = self._new()
        return kept

    def _new(self) -> _Kept:
        return _Kept(generation(), self._server.opener(self._address), [], WeakSet())


class Turn:
    """The right to wait: it ends with the wait, or with its last reference where an interrupt has cut that short."""

    __slots__ = ("__weakref__",)


def refused(ticket: Reply, token: Reply) -> bool:
    """Tell whether the server has not let us wait (no right to block, say); that things have moved on is no refusal."""
    reply = ticket if isinstance(ticket, Exception) else token
    return isinstance(reply, Exception) and not isinstance(reply, exceptions.MovedError)
