"""The connections to one server, for asyncio: in each event loop a shared one, and one for each task that waits."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from redis import exceptions

from caslock.connections import IdleConnections
from caslock.fork import generation
from caslock.loop_end import before_the_loop_ends
from caslock.stores.redis.connections import Turn, refused
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.pipeline import Pipeline
from caslock.stores.redis.server import LATE, MOST_WAITING, SLEEP, Address, Server

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from caslock.stores.redis.requests import Request, Wait
    from caslock.stores.redis.wire import Reply


class LoopConnections:
    """The connections of one event loop to one server."""

    def __init__(self, server: Server, address: Address | None) -> None:
        self._server, self._new = server, server.opener(address)
        self.generation: int = generation()
        self.changes: int = 0
        """See `Connections.changes`."""
        self._shared: Pipeline | None = None
        self._opening: asyncio.Task[Pipeline] | None = None
        self._idle: IdleConnections[Pipeline] = IdleConnections()
        self._waiting = WeakSet[Turn]()
        self._sleeps_until = 0.0
        self._ending = False
        self._end = before_the_loop_ends(self.end)

    async def ask(self, request: Request, within: float | None = None) -> Reply:
        """See `Connections.ask`."""
        server, pipeline, now = self._server, self._shared, monotonic()
        if pipeline and not pipeline.is_usable(now):
            pipeline = None
        if within is None:
            within = server.timeout if pipeline else server.patience
        ends, sent = now + within, False
        try:
            pipeline = pipeline or await self._opened(ends)
            if request.replies > 1:
                pipeline.expect(ends).cancel()  # nobody waits for the first
            promise = pipeline.ask(request.packet(), ends)
            sent = True
            acknowledged = pipeline.acknowledged() if server.acknowledge else promise
            if self._ending:
                pipeline.retire()
            reply = await promise
            if server.acknowledge:  # one reply for all tasks that have asked in this turn: none may cancel it
                await asyncio.shield(acknowledged)
            if isinstance(reply, FAILOVER):
                raise reply  # noqa: TRY301 - no open connection is used again
        except Exception as error:
            raise self._failed(error, sent=sent) from error
        if isinstance(reply, exceptions.NoScriptError) and request.script:
            return await self.ask(request.in_full(), ends - monotonic())
        return server.checked(reply, acknowledged.result())

    async def wait(self, wait: Wait, within: float | None = None) -> Reply:
        """See `Connections.wait`."""
        server, pipeline, turn, sent = self._server, None, Turn(), False
        if len(self._waiting) >= MOST_WAITING or monotonic() < self._sleeps_until:
            raise server.failures.cannot_wait()
        self._waiting.add(turn)
        try:
            within = server.patience if within is None else within
            ends = monotonic() + within
            until = ends + wait.seconds + max(LATE - server.patience, 0.0)
            while (pipeline := self._idle.take()) and not pipeline.is_usable(pipeline.used):
                pipeline.close()
            pipeline = pipeline or await self._connect(within)
            ticket = pipeline.ask(wait.packet, ends)
            sent = True
            token, put = pipeline.expect(until), pipeline.expect(until)
            acknowledged = pipeline.acknowledged() if server.acknowledge else put
            reply = await put
            await acknowledged
            if isinstance(reply, FAILOVER):
                raise reply  # noqa: TRY301 - no open connection is used again
        except BaseException as error:
            if pipeline:
                pipeline.close()
            if isinstance(error, Exception):
                raise self._failed(error, sent=sent) from error
            raise
        finally:
            self._waiting.discard(turn)
        if self._ending:
            pipeline.close()
        else:
            self._idle.keep(pipeline)
        if refused(ticket.result(), token.result()):
            self._sleeps_until = monotonic() + SLEEP
        return server.checked(reply, acknowledged.result())

    async def end(self) -> None:
        """Close all connections as the loop ends; one that is used after that is not kept."""
        if self.generation != generation():  # a forked child closes no connection of its parent
            return
        self._ending = True
        await asyncio.sleep(0)  # what else ends with the loop withdraws its requests
        await self.aclose()

    async def aclose(self) -> None:
        """Close what nobody waits for; the next request opens one again."""
        self._drop()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()  # who waits for it opens another
            await asyncio.wait([self._opening])
        for _ in range(2):  # a transport closes its socket in the next turn of the loop
            await asyncio.sleep(0)

    async def _opened(self, ends: float) -> Pipeline:
        """Give the shared connection as soon as it is open."""
        while True:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open())
                # If nobody waits for it any more, asyncio would complain that nobody has looked at its error.
                self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            opening = self._opening
            await asyncio.wait([opening], timeout=ends - monotonic())
            if not opening.done():
                raise TimeoutError
            # If the store was closed meanwhile, or this attempt began before our time did, there is time for another.
            if not opening.cancelled() and (not isinstance(opening.exception(), TOO_LATE) or monotonic() >= ends):
                return opening.result()

    async def _open(self) -> Pipeline:
        self._shared = await self._connect(self._server.patience)
        return self._shared

    async def _connect(self, within: float) -> Pipeline:
        self.changes += 1
        connection = self._new()
        try:
            async with asyncio.timeout(within):
                await connection.connect()
            return Pipeline(connection, self._server.acknowledge)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    def _drop(self) -> None:
        if self._shared:
            self._shared.retire()
        self._shared = None
        self._idle.close()

    def _failed(self, error: Exception, *, sent: bool) -> Exception:
        if isinstance(error, FAILOVER):
            self._drop()
        elif not isinstance(error, TOO_LATE):  # after a restart, the others are dead as well
            self._idle.close()
        return self._server.failures.of(error, sent=sent)


class AsyncConnections:
    """The connections of each event loop to one server."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """Open nothing yet; `address` is that of a cluster's node."""
        self._server, self._address = server, address
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        self._inherited: list[LoopConnections] = []  # the parent's: neither used, nor closed, nor collected as garbage

    def here(self) -> LoopConnections:
        """Give those of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None or found.generation != generation():
            for other, connections in list(self._loops.items()):
                if connections.generation != generation():
                    self._inherited.append(connections)
                elif not other.is_closed():
                    continue
                self._loops.pop(other, None)
            found = self._loops[loop] = LoopConnections(self._server, self._address)
        return found

    def ask(self, request: Request, within: float | None = None) -> Coroutine[Any, Any, Reply]:
        """See `Connections.ask`."""
        return self.here().ask(request, within)

    def wait(self, wait: Wait, within: float | None = None) -> Coroutine[Any, Any, Reply]:
        """See `Connections.wait`."""
        return self.here().wait(wait, within)

    async def nodes(self) -> list[AsyncConnections]:
        """See `Connections.nodes`."""
        return [self]

    async def close(self) -> None:
        """See `LoopConnections.aclose`."""
        await self.here().aclose()
