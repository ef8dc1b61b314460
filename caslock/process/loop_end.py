"""Calls a function before an event loop ends, for what has to be closed in that loop."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from caslock.process.fork import generation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


def before_the_loop_ends(act: Callable[[], Awaitable[None]], *, in_a_child: bool = False) -> AsyncGenerator[None, None]:
    """Await `act` before the running loop is closed, for as long as the caller keeps what this returns.

    In a child that was forked since, in which the loop may run on, it is awaited only if `in_a_child` is true.

    `act` is a method, and its object is not kept alive.  A loop does not announce its end, but `asyncio.run` and every
    other runner cancel all tasks and then close the asynchronous generators that were begun in the loop.
    """
    end = _at_the_end(weakref.WeakMethod(act), 0 if in_a_child else generation())
    with contextlib.suppress(StopIteration):  # it does not suspend before its yield
        anext(end).__await__().__next__()
    return end


async def _at_the_end(
    reference: Callable[[], Callable[[], Awaitable[None]] | None], only_in: int
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        act = reference()
        if act is not None and only_in in (0, generation()):
            await act()


async def transports_are_closed() -> None:
    """Let transports that were just closed close their sockets: they do that in the next turn of the loop."""
    for _ in range(2):
        await asyncio.sleep(0)


class Connections(Protocol):
    """The connections of one event loop."""

    def end(self) -> None:
        """Close what is idle, and keep nothing from now on."""


C = TypeVar("C", bound=Connections)
T = TypeVar("T")


class PerLoop(Generic[T]):
    """What each event loop has of its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        """Make it for a loop that asks for the first time."""
        self._make = make
        # What a forked child inherits stays in here: it is neither used, nor closed, nor collected as garbage.
        self._loops: dict[tuple[int, asyncio.AbstractEventLoop], T] = {}

    def here(self) -> T:
        """Return what the running loop has."""
        here = mine, _ = generation(), asyncio.get_running_loop()
        found = self._loops.get(here)
        if found is None:
            for theirs in [each for each in list(self._loops) if each[0] == mine and each[1].is_closed()]:
                self._loops.pop(theirs, None)
            found = self._loops[here] = self._make()
        return found

    def forget(self) -> T | None:
        """Forget what the running loop has, and return it."""
        return self._loops.pop((generation(), asyncio.get_running_loop()), None)


class ConnectionsPerLoop(Generic[C]):
    """The connections of each event loop that a store is used in; they end with their loop."""

    def __init__(self, make: Callable[[], C]) -> None:
        """Make connections for a loop when it first asks."""
        self._loops = PerLoop(lambda: _Loop(make()))

    def here(self) -> C:
        """Return those of the running loop."""
        return self._loops.here().connections

    async def close(self) -> None:
        """Close the idle connections of the running loop; the next request opens others."""
        if loop := self._loops.forget():
            await loop.close()


class _Loop(Generic[C]):
    """The connections of one event loop."""

    def __init__(self, connections: C) -> None:
        self.connections = connections
        self._end: AsyncGenerator[None, None] = before_the_loop_ends(self.close)

    async def close(self) -> None:
        """Close the idle connections as the loop ends; a request after that keeps none."""
        await asyncio.sleep(0)  # what else ends with the loop withdraws its requests
        self.connections.end()
        await transports_are_closed()
