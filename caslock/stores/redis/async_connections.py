"""The connections to one server, for asyncio: in each event loop a shared one, and one for each task that waits."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from redis import exceptions

from caslock.fork import generation
from caslock.loop_end import before_the_loop_ends
from caslock.stores.redis.connections import Connections
from caslock.stores.redis.failures import FAILOVER, TOO_LATE
from caslock.stores.redis.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

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
        if self.generation != generation():  # a forked child closes no connection of its parent
            return
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
        for _ in range(2):  # a transport closes its socket in the next turn of the loop
            await asyncio.sleep(0)

    def _ready(self, request: Request[Any], _within: float | None, /) -> Pipeline | None:
        if not request.seconds:
            return self._shared if self._shared and self._shared.is_usable(monotonic()) else None
        while (link := self._idle.take()) and not link.is_usable(link.used):
            link.close()
        return link

    async def _connect(self, request: Request[Any], ends: float, /) -> Pipeline:
        if request.seconds:
            return await self._open(ends, shared=False)
        while True:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open_shared())
                # If nobody waits for it any more, asyncio would complain that nobody has looked at its error.
                self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
            opening = self._opening
            await asyncio.wait([opening], timeout=ends - monotonic())
            if not opening.done():
                raise TimeoutError
            # If the store was closed meanwhile, or this attempt began before our time did, there is time for another.
            if not opening.cancelled() and (not isinstance(opening.exception(), TOO_LATE) or monotonic() >= ends):
                link = opening.result()
                if link.closed:
                    raise exceptions.ConnectionError("Connection closed by server.")
                return link

    async def _open_shared(self) -> Pipeline:
        self._shared = await self._open(monotonic() + self._server.patience, shared=True)
        return self._shared

    async def _open(self, ends: float, *, shared: bool) -> Pipeline:
        self.changes += 1
        connection = self._new()
        try:
            async with asyncio.timeout(ends - monotonic()):
                await connection.connect()
            return Pipeline(connection, self._server.acknowledge, shared=shared)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

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


class _OfOneLoop(Protocol):
    generation: int


N = TypeVar("N", bound=_OfOneLoop)


class Loops(Generic[N]):
    """What each event loop has of its own."""

    def __init__(self, make: Callable[[], N]) -> None:
        """Have nothing yet."""
        self._make = make
        self._loops: dict[asyncio.AbstractEventLoop, N] = {}
        self._inherited: list[N] = []  # the parent's: neither used, nor closed, nor collected as garbage

    def here(self) -> N:
        """Give what the running loop has."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None or found.generation != generation():
            for other, theirs in list(self._loops.items()):
                if theirs.generation != generation():
                    self._inherited.append(theirs)
                elif not other.is_closed():
                    continue
                self._loops.pop(other, None)
            found = self._loops[loop] = self._make()
        return found
