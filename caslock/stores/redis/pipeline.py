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
from typing import TYPE_CHECKING

from redis import exceptions

from caslock.process.fork import generation
from caslock.stores.redis.wire import MORE, PUSH, new_reader
from caslock.stores.shared.connections import SUSPECT, is_readable

if TYPE_CHECKING:
    from collections.abc import Awaitable

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
        self._promises: deque[tuple[asyncio.Future[list[Reply]], float]] = deque()  # each with its end
        self._unsent: list[bytes] = []
        self._acknowledge = acknowledge
        self._acknowledged: asyncio.Future[list[Reply]] | None = None  # of what is not sent yet
        self._timer: asyncio.TimerHandle | None = None
        self._rings = math.inf  # when the timer does: no later than the time of any request is over
        self._retired = self._closed = False

    def ask(self, packet: bytes, replies: int, ends: float, wait: float) -> Awaitable[list[Reply]]:
        """See `Link.ask`."""
        if not self._promises and not self._acknowledge:  # nobody else asks
            self._transport.write(packet)
        else:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(packet)
        first = self._expect(ends)
        if replies == 1 and not self._acknowledge:
            return first
        promises = [first, *[self._expect(ends + wait) for _ in range(replies - 1)]]
        if self._acknowledge and self._acknowledged is None:
            self._acknowledged = self._loop.create_future()
        return _all(promises, self._acknowledged)

    def check(self) -> None:
        """Raise the error of a closed connection if it is closed by now."""
        if self._closed:
            raise exceptions.ConnectionError("Connection closed by server.")

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come in that was not asked for."""
        if self._closed or self._transport.is_closing():
            return False
        if self._promises:  # what comes in is theirs
            return True
        return not self._reader.has_data() and not is_readable(self._transport.get_extra_info("socket").fileno())

    def retire(self) -> None:
        """Close it as soon as nobody waits for a reply."""
        self._retired = True
        if all(promise.done() for promise, _ in self._promises):
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
                if not self._promises:
                    raise exceptions.InvalidResponse("the server sent a reply that was not asked for")  # noqa: TRY301 - ends it as any error does
                promise, _ = self._promises.popleft()
                if not promise.done():
                    promise.set_result([reply])
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        if self._retired and not self._promises:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait."""
        self._fail(exc or exceptions.ConnectionError("Connection closed by server."))

    def _expect(self, ends: float) -> asyncio.Future[list[Reply]]:
        promise: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._promises.append((promise, ends))
        if ends < self._rings:
            self._set_timer(ends)
        return promise

    def _fail(self, error: BaseException) -> None:
        self._closed, self.used = True, SUSPECT
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        failure = error if isinstance(error, Exception) else exceptions.ConnectionError("an interrupt closed it")
        promises = [promise for promise, _ in self._promises]
        self._promises.clear()
        self._unsent.clear()
        for promise in [*promises, self._acknowledged]:
            if promise is not None and not promise.done():
                promise.set_exception(failure)
                promise.exception()  # so that asyncio does not complain of those that nobody awaits

    def _flush(self) -> None:
        packets, self._unsent = self._unsent, []
        if not packets:  # it has failed meanwhile
            return
        if self._acknowledged:
            packets.append(self._acknowledge)
            self._promises.append((self._acknowledged, self._promises[-1][1]))
            self._acknowledged = None
        self._transport.write(b"".join(packets))

    def _set_timer(self, when: float) -> None:
        # It is not cancelled with each reply, but rings, and sees whose time is over.
        if self._timer is not None:
            self._timer.cancel()
        self._rings, self._timer = when, self._loop.call_later(when - monotonic(), self._ring)

    def _ring(self) -> None:
        self._rings, self._timer = math.inf, None
        if self._promises:
            ends = min(ends for _, ends in self._promises)
            if ends <= monotonic():
                self._fail(TimeoutError())
            else:
                self._set_timer(ends)


async def _all(
    promises: list[asyncio.Future[list[Reply]]], acknowledged: asyncio.Future[list[Reply]] | None
) -> list[Reply]:
    replies = [reply for promise in promises for reply in await promise]
    if acknowledged:  # it is for all who have asked in the same turn of the loop: none of them may cancel it
        replies += await asyncio.shield(acknowledged)
    return replies
