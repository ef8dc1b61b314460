"""The connections to one server, for asyncio: in each event loop a shared one, and one for each task that waits."""

from __future__ import annotations

import asyncio
from time import monotonic

from caslock.stores.redis.connections import Pool
from caslock.stores.redis.failures import TOO_LATE
from caslock.stores.redis.pipeline import Pipeline


class Pipelines(Pool[Pipeline]):
    """The pool for requests that wait: each has a connection of its own."""

    async def open(self, ends: float) -> Pipeline:
        """See `Pool.open`."""
        connection = self._new()
        try:
            async with asyncio.timeout(ends - monotonic()):
                await connection.connect()
            return Pipeline(connection, self._server.acknowledge)
        except GeneratorExit:  # nothing can be awaited
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise


class SharedPipeline(Pipelines):
    """The pool for all other requests: it has one connection, and whoever takes that leaves it there for others."""

    _opening: asyncio.Task[Pipeline] | None = None

    async def open(self, ends: float) -> Pipeline:
        """See `Pool.open`; all who come while one is being opened share it."""
        async with asyncio.timeout(ends - monotonic()):
            while True:
                opening = self._opening
                if opening is None or opening.done():
                    opening = self._opening = asyncio.create_task(self._open())
                    # If nobody waits for it any more, asyncio would complain that nobody has looked at its error.
                    opening.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait([opening])
                # If the pool was closed meanwhile, or this attempt began before our time did, there is another.
                if not opening.cancelled() and not isinstance(opening.exception(), TOO_LATE):
                    opening.result().check()
                    return opening.result()

    def take(self) -> Pipeline | None:
        """See `IdleConnections.take`."""
        if link := super().take():
            self._stack.append(link)
        return link

    def keep(self, connection: Pipeline) -> None:
        """See `IdleConnections.keep`."""
        if not self._most:
            connection.retire()

    give_up = keep  # the reply will be read, and dropped

    def close(self) -> None:
        """See `IdleConnections.close`; one that is in use is closed as soon as nobody waits for a reply."""
        while self._stack:
            self._stack.pop().retire()
        if self._opening:
            self._opening.cancel()  # who waits for it opens another

    async def _open(self) -> Pipeline:
        link = await super().open(monotonic() + self._server.patience)
        self._stack.append(link)
        return link
