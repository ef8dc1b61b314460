"""The waits of asyncio tasks for changes of keys in PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from caslock.stores.sql.connections import async_connection_of
from caslock.stores.sql.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.errors import StoreError
    from caslock.stores.sql.listener import Listener


class TaskWaits(Waits):
    """Those of asyncio tasks: the loop reads, for all."""

    async def _connect(self, ends: float) -> Any:  # noqa: ANN401 - psycopg's generic class
        async with asyncio.timeout(ends - monotonic()):
            return await async_connection_of(self._target)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _until(self, listener: Listener, done: Callable[[], bool], ends: float) -> None:
        loop, mine = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            self._read(listener)
            listener.wake()

        if listener.reader is None and not listener.problem:
            loop.add_reader(listener.descriptor, read)
            listener.reader = loop
        listener.sleeping.append(mine.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ends - monotonic()):
                    while not (done() or listener.problem):
                        mine.clear()
                        await mine.wait()
        finally:
            listener.sleeping.remove(mine.set)
            if not listener.sleeping:
                _read_no_more(listener)

    def _fail(self, listener: Listener, problem: BaseException) -> StoreError:
        _read_no_more(listener)  # now: libpq has closed the socket, and the next one that is opened may have its number
        return super()._fail(listener, problem)


def _read_no_more(listener: Listener) -> None:
    loop, listener.reader = listener.reader, None
    if loop is not None:
        loop.remove_reader(listener.descriptor)
