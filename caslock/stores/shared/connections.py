"""What stores on servers share: idle connections, what they remember, and why a connection could not be opened.

Idle connections are kept between requests, across threads and across fork, without a lock.  One request per connection
at a time.  A connection with an unread reply is closed, never kept.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from caslock.process.fork import PerProcess, generation

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

MOST_IDLE: Final = 32
"""Connections kept; where more requests run at once, more are opened, and closed afterwards."""

CHECKED_AFTER: Final = 1.0
"""Seconds after which an idle connection is checked before it is used: the server may have closed it."""

SUSPECT: Final = -math.inf
"""In place of the time when a connection was last used: check it before it is used again."""

MOST_WAITING: Final = 32
"""Connections on which a store's waiters may be at one time, in one process or loop, for each server or cluster."""

MOST_REMEMBERED: Final = 10_000
"""Entries that a store remembers, to ask its server less."""

LEAST: Final = 0.001
"""Seconds; the shortest timeout of a socket.  One of 0 would mean that it never blocks."""

_FAILED: Final = re.compile(r"\[Errno (\d+)\] Connect call failed")  # asyncio's error for a name of several addresses


class Connection(Protocol):
    """What an idle connection has."""

    generation: int
    """The `caslock.process.fork.generation` in which it was opened."""
    used: float
    """When it was last taken, on the clock of `time.monotonic`; or `SUSPECT`."""

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come in that was not asked for."""

    def close(self) -> None:
        """Close it for good."""


C = TypeVar("C", bound=Connection)
K = TypeVar("K")
T = TypeVar("T")

# Where there is poll(), it needs no descriptor of its own: the selector of epoll would fail when none is left.
_SELECTOR: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)


class IdleConnections(Generic[C]):
    """A stack: the connection used last is taken first, so the others grow old and are found dead early."""

    def __init__(self) -> None:
        # A deque's append and pop are atomic: there is no lock that a fork could copy in use.
        self._stack: deque[C] = deque()
        self._most = MOST_IDLE
        self._inherited: list[C] = []  # the parent's: neither used, nor closed, nor collected as garbage

    def take(self) -> C | None:
        """Take the one used last that is still good; None: there is none."""
        while True:
            try:
                connection = self._stack.pop()
            except IndexError:
                return None
            now = time.monotonic()
            if connection.generation != generation():
                self._inherited.append(connection)
            elif now - connection.used > CHECKED_AFTER and not connection.is_quiet():
                connection.close()
            else:
                connection.used = now
                return connection

    def give_up(self, connection: C) -> None:
        """Close a connection whose reply may still come, and must not be read as that of the next request."""
        connection.close()

    def keep(self, connection: C) -> None:
        """Give back a connection that has read its last reply."""
        if len(self._stack) >= self._most:
            connection.close()
            return
        self._stack.append(connection)
        if not self._most:  # the store was closed at this moment
            self.close()

    def end(self) -> None:
        """Close all, and keep none from now on: a clean-up that asks a closed store leaves nothing open."""
        self._most = 0
        self.close()

    def close(self) -> None:
        """Close all: what has ended one connection has probably ended them all."""
        while self._stack:
            try:
                connection = self._stack.pop()
            except IndexError:  # another thread has just taken the last one
                return
            if connection.generation == generation():
                connection.close()
            else:
                self._inherited.append(connection)


def seconds_left(ends: float) -> float:
    """Return the seconds until the moment `ends`, as a timeout of a socket."""
    return max(ends - time.monotonic(), LEAST)


class Waiters:
    """Counts those who wait at a server, each on a connection of its own."""

    def __init__(self) -> None:
        self._places = PerProcess(set[object])  # who waits at a fork is the parent's

    @contextmanager
    def one_more(self, failure: Exception) -> Iterator[None]:
        """Count one for as long as the block runs, or raise `failure` if there are `MOST_WAITING`."""
        places, place = self._places.here(), object()
        if len(places) >= MOST_WAITING:
            raise failure
        try:
            places.add(place)
            yield
        finally:
            places.discard(place)


def remember(known: dict[K, T], key: K, value: T) -> T:
    """Note what was last seen of a key, and forget the oldest of too many; return the value.  Any thread may."""
    if len(known) >= MOST_REMEMBERED and key not in known:
        with suppress(RuntimeError, StopIteration):  # another thread has just changed it
            known.pop(next(iter(known)), None)
    known[key] = value
    return value


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because its connections block."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a blocking connection has suspended")


def is_readable(descriptor: int, seconds: float = 0) -> bool:
    """Tell whether a socket has anything to read, its end included, or gets it within some seconds."""
    with _SELECTOR() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def reason(problem: BaseException) -> str:
    """Say in a few words, which don't name the place, why a connection could not be opened."""
    closed = isinstance(problem, ConnectionResetError | BrokenPipeError)
    text = str(problem).rstrip(".") or ("the connection was closed" if closed else type(problem).__name__)
    if isinstance(problem, TimeoutError):
        text = "no answer in time"
    elif failed := _FAILED.search(text):
        text = os.strerror(int(failed[1]))
    elif isinstance(problem, OSError) and problem.errno:
        # Errors of TLS and of the resolver have numbers of their own.
        text = os.strerror(problem.errno) if type(problem).__module__ == "builtins" else str(problem.strerror)
    return text[:1].lower() + text[1:]
