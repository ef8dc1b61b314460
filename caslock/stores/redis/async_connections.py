"""The connections to one server, for asyncio: in each event loop a shared one, and one for each task that waits."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from caslock.guards import undoing
from caslock.loop_end import before_the_loop_ends, transports_are_closed
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.pipeline import Pipeline

if TYPE_CHECKING:
    from caslock.stores.redis.requests import Request
    from caslock.stores.redis.server import Address, Server


class Pipelines(Connections[Pipeline]):
    """The connections of one event loop to one server."""

    def __init__(self, server: Server, address: Address | None = None) -> None:
        """See `Connections`."""
        super().__init__(server, address)
        self._shared: Pipeline | None = None
        self._opening: asyncio.Task[Pipeline] | None = None
        self._ending = False
        self._end = before_the_loop_ends(self.end)

    async def end(self) -> None:
        """Close all connections as the loop ends; one that is used after that is not kept."""
        self._ending = True
        await asyncio.sleep(0)  # what else ends with the loop withdraws its requests
        await self.close()

    async def close(self) -> None:
        """Close what nobody waits for; the next request opens one again."""
        self._idle.close()
        self._retire()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()  # who waits for it opens another
            await asyncio.wait([self._opening])
        await transports_are_closed()

    def _ready(self, request: Request[Any], now: float, _within: float | None, /) -> Pipeline | None:
        if not request.seconds:
            return self._shared if self._shared and self._shared.is_usable(now) else None
        while (link := self._idle.take()) and not link.is_usable(now):
            link.close()
        return link

    async def _connect(self, request: Request[Any], ends: float, /) -> Pipeline:
        async with asyncio.timeout(ends - monotonic()):
            if request.seconds:
                return await self._open(shared=False)
            while True:
                opening = self._opening
                if opening is None or opening.done():
                    opening = self._opening = asyncio.create_task(self._open(shared=True))
                    # If nobody waits for it any more, asyncio would complain that nobody has looked at its error.
                    opening.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait([opening])
                # If the store was closed meanwhile, or this attempt began before our time did, there is another.
                if not opening.cancelled() and not isinstance(opening.exception(), TOO_LATE):
                    opening.result().check()
                    return opening.result()

    async def _open(self, *, shared: bool) -> Pipeline:
        connection = self._new()
        async with undoing(lambda _: connection.disconnect(nowait=True)):
            async with asyncio.timeout(self._server.patience):
                await connection.connect()
            link = Pipeline(connection, self._server.acknowledge, shared=shared)
        if shared:
            self._shared = link
        return link

    def _keep(self, link: Pipeline) -> None:
        if self._ending:
            link.retire()
        elif not link.shared:
            self._idle.keep(link)

    def _give_up(self, link: Pipeline, error: BaseException, /) -> None:
        if not link.shared:
            link.close()
        elif self._ending:
            link.retire()
        if isinstance(error, FAILOVER):
            self._retire()

    def _retire(self) -> None:
        if self._shared:
            self._shared.retire()
        self._shared = None
