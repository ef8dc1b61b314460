"""The two stores.  `requests` has their verbs, `session` the connection."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from caslock.errors import StoreUnavailable
from caslock.process.fork import PerProcess, generation
from caslock.process.guards import on_failure
from caslock.process.loop_end import PerLoop
from caslock.store import Traits
from caslock.stores.hazelcast.requests import Verbs
from caslock.stores.hazelcast.session import Session
from caslock.stores.hazelcast.target import target_of
from caslock.stores.shared.verbs import AsyncVerbs, BlockingVerbs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.stores.hazelcast.requests import Verb
    from caslock.stores.hazelcast.target import Target

T = TypeVar("T")

_Begun: TypeAlias = "Future[tuple[Session, asyncio.AbstractEventLoop, asyncio.Event]]"

_LAG: Final = 1.1
"""Seconds by which an entry may outlast its ttl: see `requests`."""

_PATIENCE: Final = 5.0  # seconds for a thread to end


def _traits(target: Target) -> Traits:
    return Traits(target.location, fences=False, expiry_lag=_LAG, request_timeout=target.timeout)


class HazelcastStore(BlockingVerbs):
    """A `Store` in a map of a Hazelcast cluster, version 5; safe to share between threads and across a fork.

    Leases end by the clocks of the members.  There are no fences: a version is a random number, which never comes
    again.  Hazelcast prefers to answer rather than to be right: when a cluster is split, each part may give the same
    lock to another holder.

    A thread of the store's own runs the client, which is one for asyncio, from the first request until `close`.
    """

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        """Keep the entries in ``hazelcast://host:port,host:port/map?cluster=dev``; no I/O yet.

        The hosts are members of one cluster: if one can't be reached, the next is asked.  `timeout` (2 s) is how long a
        verb may take, also as ``?timeout=``.  Raises ValueError or TypeError for bad arguments.
        """
        self._target = target_of(url, timeout)
        self._verbs: Verbs = Verbs(self._target.location)
        self._guards = PerProcess(RLock)
        self._threads: dict[int, _Thread] = {}  # by generation: a forked child leaves that of its parent alone
        self._closed = False
        self.traits: Traits = _traits(self._target)

    def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`: a listener, on the same connection."""
        self._in_thread(lambda session: session.wait_while(self._verbs, key, version, timeout))

    def close(self) -> None:
        """Close the connection, and end the thread.  A later request begins another, and ends it."""
        self._closed = True
        self._end()

    def _run(self, verb: Verb[T], /) -> T:
        return self._in_thread(lambda session: session.run(verb))

    def _in_thread(self, act: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        thread = self._enter()
        try:
            return thread.run(act)
        finally:
            self._leave(thread)

    def _enter(self) -> _Thread:
        mine = generation()
        with self._guards.here():
            found = self._threads.get(mine)
            if found is None:
                try:
                    new = _Thread(self._target)
                except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
                    raise StoreUnavailable(f"{self._target.location} is unreachable ({error})", sent=False) from error
                found = self._threads.setdefault(mine, new)  # a signal handler may have made one meanwhile
                new.end_with(self)
                if found is not new:
                    new.end()
            found.users += 1
            return found

    def _leave(self, thread: _Thread) -> None:
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


class AsyncHazelcastStore(AsyncVerbs):
    """The same for asyncio.  The connection belongs to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        """See `HazelcastStore`."""
        self._target = target_of(url, timeout)
        self._verbs: Verbs = Verbs(self._target.location)
        self._sessions = PerLoop(partial(Session, self._target))
        self.traits: Traits = _traits(self._target)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `HazelcastStore.wait_while`."""
        await self._sessions.here().wait_while(self._verbs, key, version, timeout)

    async def aclose(self) -> None:
        """Close the connection of the running loop; the next request opens one again."""
        await self._sessions.here().close()

    async def _run(self, verb: Verb[T], /) -> T:
        return await self._sessions.here().run(verb)


class _Thread:
    """A thread with an event loop, in which a blocking store has its connection."""

    def __init__(self, target: Target) -> None:
        """Start it."""
        self.generation: int = generation()
        self.users: int = 0
        """How many verbs run in it."""
        begun: _Begun = Future()
        self._thread = threading.Thread(target=_work, args=[target, begun], name="caslock-hazelcast", daemon=True)
        self._thread.start()
        self._session, self._loop, self._over = _result(begun)

    def run(self, act: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Use the connection there, and wait for the result."""
        future = asyncio.run_coroutine_threadsafe(act(self._session), self._loop)
        with on_failure(future.cancel):
            return _result(future)

    def end_with(self, store: HazelcastStore) -> None:
        """Have it end with a store that nobody has closed, or with the process."""
        self._finalizer = weakref.finalize(store, self._stop)

    def end(self) -> None:
        """Close its connection, and wait until it has ended."""
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


def _work(target: Target, begun: _Begun) -> None:
    try:
        with asyncio.Runner() as runner:
            runner.get_loop()  # raises its error before there is a coroutine
            runner.run(_serve(target, begun))
    except BaseException as error:
        if begun.done():
            raise
        begun.set_exception(error)


async def _serve(target: Target, begun: _Begun) -> None:
    session, over = Session(target), asyncio.Event()
    begun.set_result((session, asyncio.get_running_loop(), over))
    await over.wait()
    await session.close()
