"""An event loop in a thread of its own, in which a store for blocking code does what needs one."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from caslock.process.fork import PerProcess, generation
from caslock.process.guards import on_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Served(Protocol):
    """What runs in the loop of a thread: the connections of a store."""

    async def close(self) -> None:
        """Close all connections."""


S = TypeVar("S", bound=Served)
T = TypeVar("T")

_Begun: TypeAlias = "Future[tuple[S, asyncio.AbstractEventLoop, asyncio.Event]]"

_PATIENCE: Final = 5.0  # seconds for a thread to end


class LoopThread(Generic[S]):
    """The thread of one store, in each process that uses it, from the first use until `end`."""

    def __init__(self, name: str, make: Callable[[], S]) -> None:
        """Start nothing yet; `make` is called in the loop, and must not refer to the store."""
        self._name, self._make = name, make
        self._guards = PerProcess(RLock)
        self._threads: dict[int, _Thread[S]] = {}  # by generation: a forked child leaves that of its parent alone
        self._closed = False

    def run(self, act: Callable[[S], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and wait for its result."""
        thread = self._enter()
        try:
            return thread.run(act)
        finally:
            self._leave(thread)

    def end(self) -> None:
        """Close the connections, and end the thread.  A later use starts another, and ends it afterwards."""
        self._closed = True
        self._end()

    def _enter(self) -> _Thread[S]:
        mine = generation()
        with self._guards.here():
            found = self._threads.get(mine)
            if found is None:
                new = _Thread(self._name, self._make, self)
                found = self._threads.setdefault(mine, new)  # a signal handler may have made one meanwhile
                if found is not new:
                    new.end()
            found.users += 1
            return found

    def _leave(self, thread: _Thread[S]) -> None:
        with self._guards.here():
            thread.users -= 1
        if self._closed:
            self._end()

    def _end(self) -> None:
        mine = generation()
        with self._guards.here():
            found = self._threads.get(mine)
            if found is None or found.users:  # the last of them ends it
                return
            self._threads.pop(mine, None)
        found.end()


class _Thread(Generic[S]):
    """One thread with its event loop, in one process."""

    def __init__(self, name: str, make: Callable[[], S], owner: LoopThread[S]) -> None:
        """Start it; it ends with an owner that nobody has ended, or with the process."""
        self.generation: int = generation()
        self.users: int = 0
        """How many coroutines run in it."""
        begun: _Begun[S] = Future()
        self._thread = threading.Thread(target=_work, args=[make, begun], name=name, daemon=True)
        self._thread.start()
        self._served, self._loop, self._over = _result(begun)
        self._finalizer = weakref.finalize(owner, self._stop)

    def run(self, act: Callable[[S], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine, and wait for the result."""
        future = asyncio.run_coroutine_threadsafe(act(self._served), self._loop)
        with on_failure(future.cancel):
            return _result(future)

    def end(self) -> None:
        """Close its connections, and wait until it has ended."""
        self._finalizer()
        self._thread.join(_PATIENCE)

    def _stop(self) -> None:
        if self.generation == generation() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)


def _result(future: Future[T]) -> T:
    """Wait for it; `Future.result` would turn an interrupt into a RuntimeError if it struck as the wait ends."""
    done = threading.Lock()
    done.acquire()
    future.add_done_callback(lambda _: done.release())
    done.acquire()
    return future.result()


def _work(make: Callable[[], S], begun: _Begun[S]) -> None:
    # The usual loop of Windows reads no socket that it has not opened.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(_serve(make, begun))


async def _serve(make: Callable[[], S], begun: _Begun[S]) -> None:
    try:
        served, over = make(), asyncio.Event()
    except BaseException as error:
        begun.set_exception(error)
        raise
    begun.set_result((served, asyncio.get_running_loop(), over))
    await over.wait()
    await served.close()
