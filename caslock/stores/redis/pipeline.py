"""One connection of an event loop, shared by all of its tasks.

Requests are written as they come, those of one turn of the loop together, and replies are matched in order.  The reply
to a request whose task was cancelled is read and dropped.  Any error, and any reply that is late, closes the connection
and fails everything in flight.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis import exceptions

from caslock.connections import RESTED, is_readable
from caslock.fork import generation
from caslock.stores.redis.wire import MORE, PUSH, new_reader

if TYPE_CHECKING:
    from caslock.stores.redis.server import Untyped
    from caslock.stores.redis.wire import Reply


class Pipeline(asyncio.Protocol):
    """Takes over the transport of a connected connection of redis-py."""

    def __init__(self, connection: Untyped, acknowledge: bytes) -> None:
        """`acknowledge`, if not empty, is sent after the requests of each turn, and has a reply of its own."""
        if connection._reader.at_eof() or connection._writer.is_closing():  # noqa: SLF001 - as below
            raise exceptions.ConnectionError("Connection closed by server.")
        self.generation: int = generation()
        self.used: float = monotonic()
        self._loop = asyncio.get_running_loop()
        self._writer, connection._writer, connection._reader = connection._writer, None, None  # noqa: SLF001 - redis-py has no other way to hand it over
        self._transport: Untyped = self._writer.transport
        self._transport.set_protocol(self)
        self._reader = new_reader()
        self._replies = deque[tuple[asyncio.Future[Any], float]]()  # each with the moment when its time is over
        self._unsent: list[bytes] = []
        self._acknowledge = acknowledge
        self._acknowledged: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings = math.inf  # when the timer does: no later than the time of any request is over
        self._retired = self._closed = False

    def ask(self, packet: bytes, ends: float) -> asyncio.Future[Reply]:
        """Send a request, and promise its reply, by the moment `ends` of `time.monotonic`."""
        if self._closed:
            raise exceptions.ConnectionError("Connection closed by server.")
        if not self._replies and not self._acknowledge:  # nobody else asks
            self._transport.write(packet)
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(packet)
        return self.expect(ends)

    def expect(self, ends: float) -> asyncio.Future[Reply]:
        """Promise one more reply."""
        promise: asyncio.Future[Reply] = self._loop.create_future()
        self._replies.append((promise, ends))
        if ends < self._rings:
            self._set_timer(ends)
        return promise

    def acknowledged(self) -> asyncio.Future[Reply]:
        """Promise the reply to what follows this turn's requests; it is for all of them, so await it by a shield."""
        if self._acknowledged is None:
            self._acknowledged = self._loop.create_future()
        return self._acknowledged

    def is_usable(self, now: float) -> bool:
        """Tell whether it is open; if it was idle for a while, by asking the kernel."""
        if self._retired or self._closed or (now - self.used > RESTED and not self._replies and not self.is_quiet()):
            return False
        self.used = now
        return True

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come in that was not asked for."""
        if self._closed or self._transport.is_closing() or self._reader.has_data():
            return False
        return not is_readable(self._transport.get_extra_info("socket").fileno())

    def retire(self) -> None:
        """Close it as soon as nobody waits for a reply."""
        self._retired = True
        if all(promise.done() for promise, _ in self._replies):
            self.close()

    def close(self) -> None:
        """Close it for good."""
        self._fail(exceptions.ConnectionError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        """Read what has come in."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not MORE:
                if type(reply) is PUSH:
                    continue
                if not self._replies:
                    self._fail(exceptions.InvalidResponse("the server sent a reply that was not asked for"))
                    return
                promise, _ = self._replies.popleft()
                if not promise.done():
                    promise.set_result(reply)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        if self._retired and not self._replies:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait."""
        self._fail(exc or exceptions.ConnectionError("Connection closed by server."))

    def _fail(self, error: BaseException) -> None:
        self._closed = True
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        told = error if isinstance(error, Exception) else exceptions.ConnectionError("an interrupt closed it")
        promises = [promise for promise, _ in self._replies]
        self._replies.clear()
        self._unsent.clear()
        for promise in [*promises, self._acknowledged]:
            if promise is not None and not promise.done():
                promise.set_exception(told)
                promise.exception()  # so that asyncio does not complain of those that nobody awaits

    def _flush(self) -> None:
        packets, self._unsent = self._unsent, []
        if not packets:  # it has failed meanwhile
            return
        if self._acknowledge:
            packets.append(self._acknowledge)
            self._replies.append((self.acknowledged(), self._replies[-1][1]))
            self._acknowledged = None
        self._transport.write(b"".join(packets))

    def _set_timer(self, when: float) -> None:
        # It is not cancelled with each reply, but rings, and sees whose time is over.
        if self._timer is not None:
            self._timer.cancel()
        self._rings, self._timer = when, self._loop.call_later(when - monotonic(), self._ring)

    def _ring(self) -> None:
        self._rings, self._timer = math.inf, None
        if self._replies:
            ends = min(ends for _, ends in self._replies)
            if ends <= monotonic():
                self._fail(TimeoutError())
            else:
                self._set_timer(ends)
