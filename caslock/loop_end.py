"""Calls a function before an event loop ends, for what has to be closed in that loop."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


def before_the_loop_ends(act: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Await `act` before the running loop is closed, for as long as the caller keeps what this returns.

    `act` is a method, and its object is not kept alive.  A loop does not announce its end, but `asyncio.run` and every
    other runner cancel all tasks and then close the asynchronous generators that were begun in the loop.
    """
    end = _at_the_end(weakref.WeakMethod(act))
    with contextlib.suppress(StopIteration):  # it does not suspend before its yield
        anext(end).__await__().__next__()
    return end


async def _at_the_end(reference: Callable[[], Callable[[], Awaitable[None]] | None]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        act = reference()
        if act is not None:
            await act()
