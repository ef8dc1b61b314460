"""The law of this file: what many tasks ask in one turn of the loop travels as one packet, and is answered together.

For asyncio.  Who asks while nobody else does is sent at once; all others queue until the turn ends, or until there is a
connection for them.  A connection carries one packet at a time and reads all its replies, whoever still waits for
them: a caller that is cancelled disturbs nobody.  The bytes go to and from the transport of a connected connection of
redis-py; where it shows none, they go through that connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet

from redis import exceptions

from caslock.errors import StoreError, StoreUnavailable
from caslock.process import generation
from caslock.stores.redis_links import FAILOVER, LATE, MOST_WAITING, RESTED, SLEEP, Turn, refused
from caslock.stores.redis_server import TOO_LATE, Address, Opener, Server, Untyped
from caslock.stores.redis_wire import Reply, read

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.stores.redis_requests import Request, Wait

MOST_AT_ONCE: Final = 8
"""Connections that carry requests at one time; what comes on top waits for one of them, no longer than the timeout."""

_MOST_TOGETHER: Final = 128  # requests in a packet

Told: TypeAlias = "Callable[[Channel, list[Reply] | BaseException], None]"
_Asked: TypeAlias = "tuple[Request, bool, asyncio.Future[Reply], float]"
"""A request, whether it carries its script, who waits for its answer, and since when."""


class Channel(asyncio.Protocol):
    """One connection."""

    def __init__(self, connection: Untyped, spawn: Callable[[Coroutine[Any, Any, object]], object]) -> None:
        """Take a connected connection; `spawn` runs what can't be done at once."""
        self._connection, self._spawn = connection, spawn
        self._told: Told | None = None
        self._count, self._found = 0, list[Reply]()
        self.rest = b""
        self.open = True
        self.since = self.deadline = 0.0
        self.asked: list[_Asked] = []
        self._transport = getattr(getattr(connection, "_writer", None), "transport", None)
        if self._transport is not None:
            self._transport.set_protocol(self)

    def send(self, packet: bytes, count: int, told: Told) -> None:
        """Send, and tell about its first `count` replies as `expect` does."""
        self._told, self._count, self._found = told, count, []
        if self._transport is None:
            self._spawn(self._through(packet))
        else:
            self._transport.write(packet)

    def expect(self, count: int, told: Told) -> None:
        """Call `told` with the next `count` replies, or with the error that prevents them."""
        self._told, self._count, self._found = told, count, []
        if self._transport is None:
            self._spawn(self._through(b""))
        else:
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        """Read what has come in."""
        if not self._told:
            self.fail(exceptions.InvalidResponse("it speaks unasked"))
            return
        try:
            self.rest = read(self.rest + data if self.rest else data, self._count, self._found)
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        self.fail(exc or exceptions.ConnectionError("Connection closed by server."))

    def fail(self, error: BaseException) -> None:
        """Close, and tell who waits why."""
        told, self._told = self._told, None
        self.close()
        if told:
            told(self, error)

    def quiet(self) -> bool:
        """Whether it is open, and holds nothing that we did not ask for."""
        if not self.open or self.rest or self._transport is None or self._transport.is_closing():
            return False
        where = self._transport.get_extra_info("socket")
        return where is not None and not _readable(where.fileno())

    def close(self) -> None:
        """Close it for good."""
        if self.open:
            self.open, self._told = False, None
            if self._transport is not None:
                self._transport.abort()
            self._spawn(self._connection.disconnect(nowait=True))

    def _tell(self) -> None:
        if self._told and len(self._found) == self._count:
            told, self._told, self._count = self._told, None, 0
            told(self, self._found)

    async def _through(self, packet: bytes) -> None:
        try:
            if packet:
                await self._connection.send_packed_command([packet], check_health=False)
            while len(self._found) < self._count:
                try:
                    self._found.append(await self._connection.read_response())
                except exceptions.ResponseError as error:
                    self._found.append(error)
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        self._tell()


class Line:
    """The connections of one event loop to one server, and the requests that wait for one of them."""

    def __init__(self, server: Server, address: Address | None, loop: asyncio.AbstractEventLoop) -> None:
        """Open nothing yet."""
        self._server, self._loop = server, loop
        self._opener: Opener = server.opener(address)
        self._extra = 1 if server.acknowledge else 0
        self.generation = generation()
        self.idle: list[Channel] = []
        self.busy = set[Channel]()
        self._queue = deque[_Asked]()
        self._flushing = False
        self._opening: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[Channel] = []
        self._waiting = WeakSet[Turn]()
        self._sleeps_until = 0.0
        self._tasks = set[asyncio.Task[object]]()

    def ask(self, request: Request) -> asyncio.Future[Reply]:
        """Promise the server's answer, which may be its error; the promise fails where there is none."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        now = self._loop.time()
        if self.idle and not self.busy and not self._queue:
            channel = self.idle.pop()
            if now - channel.since < RESTED and channel.open:  # nobody else asks: one packet, no queue, no task
                self._send(channel, [(request, False, future, now)], now)
                return future
            self.idle.append(channel)
        self._queue.append((request, False, future, now))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return future

    async def wait(self, wait: Wait) -> Reply:
        """See `Links.wait`."""
        server = self._server
        if len(self._waiting) >= MOST_WAITING or self._loop.time() < self._sleeps_until:
            raise server.cannot_wait()
        turn, channel, sent = Turn(), None, False
        self._waiting.add(turn)
        try:
            channel = self._quiet(self._waiters, self._loop.time()) or await self._opened()
            sent = True
            ticket, rest = await self._ticket(channel, wait)
            async with asyncio.timeout(wait.seconds + LATE + server.timeout):
                token, *replies = await rest
            if isinstance(replies[0], FAILOVER):
                raise replies[0]  # noqa: TRY301 - no connection of its time must be used again
        except BaseException as error:
            if channel:
                channel.close()
            if isinstance(error, Exception):
                raise self._failed(error, sent=sent) from error
            raise
        finally:
            self._waiting.discard(turn)
        if channel.rest:
            channel.close()
        channel.since = self._loop.time()
        self._waiters.append(channel)
        if refused(ticket, token):
            self._sleeps_until = self._loop.time() + SLEEP
        if isinstance(replies[0], exceptions.NoScriptError):  # nothing of it was applied
            return await self.ask(wait.put)
        if self._extra and (missed := server.too_few(replies[-1])):
            raise missed
        return replies[0]

    async def aclose(self) -> None:
        """Close what nobody waits for; the next request opens one again."""
        self._drop()
        self._queue = deque(each for each in self._queue if not each[2].done())
        for channel in list(self.busy):
            if all(future.done() for _, _, future, _ in channel.asked):
                channel.fail(exceptions.ConnectionError("the store was closed"))
        if self._opening and not self._queue:
            self._opening.cancel()
        # Twice: what is cancelled while it connects has something to close then.
        for _ in range(2):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._opener.sentinel.sentinels if self._opener.sentinel else ():
            await client.aclose()

    def _send(self, channel: Channel, asked: list[_Asked], now: float) -> None:
        self.busy.add(channel)
        channel.asked, channel.deadline = asked, now + self._server.timeout
        if self._timer is None:  # it is not cancelled with each answer, but rings, and sees who is late
            self._timer = self._loop.call_at(channel.deadline, self._ring)
        if len(asked) == 1:
            request, in_full, _, _ = asked[0]
            packet, count = (request.in_full() if in_full else request).packet, request.replies
        else:
            packet = b"".join([(request.in_full() if full else request).packet for request, full, _, _ in asked])
            count = sum([request.replies for request, _, _, _ in asked])
        channel.send(packet + self._server.acknowledge, count + self._extra, self._told)

    def _told(self, channel: Channel, outcome: list[Reply] | BaseException) -> None:
        self.busy.discard(channel)
        asked, channel.asked = channel.asked, []
        if isinstance(outcome, BaseException):
            self._fail(asked, outcome, sent=True)
            if not isinstance(outcome, TOO_LATE):  # a restart or a failover: the others are dead as well
                self._drop()
        else:
            self._settle(channel, asked, outcome)
        if self._queue:
            self._flush()

    def _settle(self, channel: Channel, asked: list[_Asked], replies: list[Reply]) -> None:
        too_few = self._server.too_few(replies[-1]) if self._extra else None
        at, failover = -1, False
        for request, in_full, future, since in asked:
            at += request.replies
            reply = replies[at]
            if future.done():  # cancelled: its reply is read, and nobody's
                continue
            if isinstance(reply, exceptions.NoScriptError) and not in_full:
                self._queue.append((request, True, future, since))
            elif isinstance(reply, FAILOVER):
                failover = True
                future.set_exception(self._server.failure(reply))
            elif too_few and not isinstance(reply, Exception):
                error = self._server.too_few(replies[-1])
                future.set_exception(error or too_few)
            else:
                future.set_result(reply)
        if failover or channel.rest:
            channel.close()
        if failover:
            self._drop()
        elif channel.open:
            channel.since = self._loop.time()
            self.idle.append(channel)

    def _fail(self, asked: list[_Asked], error: BaseException, *, sent: bool) -> None:
        for _, _, future, _ in asked:
            if not future.done():
                future.set_exception(self._server.failure(error, sent=sent))

    def _flush(self) -> None:
        self._flushing = False
        now = self._loop.time()
        while self._queue:
            channel = self._quiet(self.idle, now)
            if channel is None:
                break
            asked: list[_Asked] = []
            while self._queue and len(asked) < _MOST_TOGETHER:
                each = self._queue.popleft()
                if not each[2].done() and not self._overdue(each, now):
                    asked.append(each)
            if asked:
                self._send(channel, asked, now)
            else:
                self.idle.append(channel)
        opening = self._opening is not None and not self._opening.done()
        if self._queue and not opening and len(self.busy) < MOST_AT_ONCE:
            self._opening = self._spawn(self._open())
            self._opening.add_done_callback(self._try_again)

    def _try_again(self, opening: asyncio.Task[object]) -> None:
        # The store was closed meanwhile: who has asked since then opens a connection anew.
        if opening.cancelled() and self._queue and not self._loop.is_closed():
            self._flush()

    def _overdue(self, asked: _Asked, now: float) -> bool:
        if now - asked[3] <= self._server.timeout + self._server.connect_timeout:
            return False
        busy = StoreUnavailable(f"{self._server.traits.place} has too much to do. Try again later.", sent=False)
        asked[2].set_exception(busy)
        return True

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        for channel in [each for each in self.busy if each.deadline <= now]:
            channel.fail(TimeoutError())
        if self.busy and self._timer is None:
            self._timer = self._loop.call_at(min(channel.deadline for channel in self.busy), self._ring)

    async def _open(self) -> None:
        try:
            channel = await self._opened()
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no connection
            if not self.busy and not self.idle:  # else the others serve them
                asked = list(self._queue)
                self._queue.clear()
                self._fail(asked, error, sent=False)
        else:
            self._opening = None
            self.idle.append(channel)
            self._flush()

    async def _opened(self) -> Channel:
        connection = self._opener.new()
        try:
            async with asyncio.timeout(self._server.connect_timeout):
                await connection.connect()
            channel = Channel(connection, self._spawn)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        channel.since = self._loop.time()
        return channel

    def _failed(self, error: Exception, *, sent: bool) -> Exception:
        if not isinstance(error, TOO_LATE):  # a restart or a failover: the others are dead as well
            self._drop()
        return self._server.failure(error, sent=sent)

    def _quiet(self, stack: list[Channel], now: float) -> Channel | None:
        while stack:
            channel = stack.pop()
            if channel.open and (now - channel.since < RESTED or channel.quiet()):
                return channel
            channel.close()
        return None

    async def _ticket(self, channel: Channel, wait: Wait) -> tuple[Reply, asyncio.Future[list[Reply]]]:
        """Give the first reply, and the promise of the others."""
        ticket: asyncio.Future[list[Reply]] = self._loop.create_future()
        rest: asyncio.Future[list[Reply]] = self._loop.create_future()

        def told(channel: Channel, outcome: list[Reply] | BaseException) -> None:
            _resolve(ticket, outcome)
            if isinstance(outcome, list):
                channel.expect(2 + self._extra, lambda _, later: _resolve(rest, later))

        channel.send(wait.packet + self._server.acknowledge, 1, told)
        async with asyncio.timeout(self._server.timeout):
            (reply,) = await ticket
        if isinstance(reply, exceptions.NoScriptError):
            with contextlib.suppress(StoreError):  # then nobody wakes us: that costs no more than time
                reply = await self.ask(wait.ticket)
        return reply, rest

    def _drop(self) -> None:
        for stack in (self.idle, self._waiters):
            while stack:
                stack.pop().close()

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        task: asyncio.Task[object] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Lines:
    """The lines to one server, one for each loop."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        self._server, self._address = server, address
        self.lines: dict[asyncio.AbstractEventLoop, Line] = {}
        self._inherited: list[Line] = []

    def here(self) -> Line:
        """Give the line of the running loop."""
        loop = asyncio.get_running_loop()
        line = self.lines.get(loop)
        if line is None or line.generation != generation():
            for old, other in list(self.lines.items()):
                if other.generation != generation():  # the sockets are the parent's: see Links
                    self._inherited.append(other)
                if other.generation != generation() or old.is_closed():
                    self.lines.pop(old, None)
            line = self.lines[loop] = Line(self._server, self._address, loop)
        return line

    def ask(self, request: Request) -> asyncio.Future[Reply]:
        """See `Line.ask`."""
        return self.here().ask(request)

    async def wait(self, wait: Wait) -> Reply:
        """See `Links.wait`."""
        return await self.here().wait(wait)

    async def close(self) -> None:
        """See `Line.aclose`."""
        await self.here().aclose()


def _resolve(future: asyncio.Future[list[Reply]], outcome: list[Reply] | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, list):
        future.set_result(outcome)
    else:
        future.set_exception(outcome if isinstance(outcome, Exception) else exceptions.ConnectionError("interrupted"))


def _readable(number: int) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([number], [], [], 0)[0])
