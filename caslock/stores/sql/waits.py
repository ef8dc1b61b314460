"""Waits for changes of keys in PostgreSQL: all those of a store share one connection (see `listener`).

The first wait opens it.  Where there can be none, as behind PgBouncer, waits are refused, and locks poll.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from caslock.connections import is_readable
from caslock.errors import StoreUnavailable
from caslock.stores.sql.engines import async_connection_of, begin, connection_of
from caslock.stores.sql.failures import is_told
from caslock.stores.sql.table import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.errors import StoreError
    from caslock.stores.sql.engines import Target
    from caslock.stores.sql.failures import Failures
    from caslock.stores.sql.listener import Listener, Wait

_PAUSE: Final = 10.0
"""Seconds after which another connection is tried where the server, or a pooler, has not let us listen."""

_MOMENT: Final = 0.005  # seconds for which a waiter first waits without a notification
_LOOK: Final = 0.005  # seconds between two looks whether another has opened the connection
_LONGEST: Final = 3600.0  # seconds of one sleep of a thread: there is a limit, of many years


class Waits(ABC):
    """The waits of one process, or for asyncio of one event loop."""

    def __init__(self, target: Target, failures: Failures) -> None:
        """Open nothing yet."""
        self._target, self._failures = target, failures
        self._listener: Listener | None = None
        self._again = 0.0  # when the next connection may be tried
        self._why = ""  # there is none until then
        self._opening = threading.Lock()
        self._guard = threading.RLock()  # of listeners; reentrant: a signal handler may use a lock
        self._ended = False

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`."""
        name, now = name_of(key)[0], monotonic()
        ends = now + self._target.timeout
        listener = self._usable() or await self._open(ends)
        with self._guard:
            wait = listener.begin(name, version)
        if wait is None:
            raise self._failures.cannot_wait("too many keys are waited for")
        try:
            try:
                await self._watch(listener, wait, ends, now + timeout)
            finally:
                self._stop(listener, wait)
            # Nobody may read from now on, so the server has to know that nobody waits.
            await self._until(listener, lambda: not listener.is_behind, monotonic() + self._target.timeout)
        finally:
            with self._guard:
                if self._ended or listener.is_behind:
                    self._listener = None if self._listener is listener else self._listener
                if self._listener is not listener and not listener.waits:
                    listener.close()

    def end(self) -> None:
        """Close the connection, and keep none from now on."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Close the connection; if anybody waits there, the last one does it."""
        with self._guard:
            listener, self._listener = self._listener, None
            if listener is not None and not listener.waits:
                listener.close()

    async def _watch(self, listener: Listener, wait: Wait, ends: float, until: float) -> None:
        if not wait.channel.shared:  # a lock that is held for a moment only is not worth the notification
            await self._sleep(max(0.0, min(random.uniform(0.0, _MOMENT), until - monotonic())))  # noqa: S311 - a pause is no secret
            await self._look(listener, wait, ends, shares=False)
        if wait.there is not False:
            await self._look(listener, wait, ends, shares=True)
        if wait.there:
            await self._until(listener, lambda: wait.over, until)
        if listener.problem:
            raise self._fail(listener, listener.problem) from listener.problem

    async def _look(self, listener: Listener, wait: Wait, ends: float, *, shares: bool) -> None:
        with self._guard:
            try:
                listener.look(wait, shares=shares)
            except Exception as error:
                raise self._fail(listener, error) from error
        await self._until(listener, lambda: wait.there is not None, ends)
        if wait.there is None:
            problem = listener.problem or TimeoutError()
            raise self._fail(listener, problem) from problem

    def _stop(self, listener: Listener, wait: Wait) -> None:
        with self._guard:
            try:
                listener.end(wait)
            except Exception as error:  # noqa: BLE001 - this wait is over, and the next one is told
                self._fail(listener, error)

    def _usable(self) -> Listener | None:
        """Give the connection, unless it has ended while nobody waited."""
        listener = self._listener
        if listener is not None and not listener.waits and is_readable(listener.descriptor):
            self._read(listener)
        return self._listener

    async def _open(self, ends: float) -> Listener:
        while not self._opening.acquire(blocking=False):
            if monotonic() > ends:
                raise self._failures.cannot_wait("the connection for that is being opened")
            await self._sleep(_LOOK)
        try:
            if self._listener:
                return self._listener
            if monotonic() < self._again:
                raise self._failures.cannot_wait(self._why)
            return await self._opened(ends)
        finally:
            self._opening.release()

    async def _opened(self, ends: float) -> Listener:
        try:
            listener = await self._connect(ends)
        except Exception as error:
            failed = self._failures.of(error, sent=False)
            if is_told(error) or not isinstance(failed, StoreUnavailable):
                self._put_off(str(failed))
            raise failed from error
        try:
            await self._until(listener, lambda: listener.is_direct is not None, ends)
            if listener.is_direct:
                self._listener = listener
                return listener
        finally:
            if self._listener is not listener:
                listener.close()
        if listener.is_direct is None:
            raise self._failures.of(listener.problem or TimeoutError(), sent=False)
        self._put_off("behind a pooler such as PgBouncer, no session can listen")
        raise self._failures.cannot_wait(self._why)

    def _put_off(self, why: str) -> None:
        self._again, self._why = monotonic() + _PAUSE, why

    def _read(self, listener: Listener) -> None:
        with self._guard:
            try:
                listener.read()
            except BaseException as error:
                self._fail(listener, error)
                if not isinstance(error, Exception):
                    raise

    def _fail(self, listener: Listener, problem: BaseException) -> StoreError:
        """Use a connection no more, and give the error of all who wait there."""
        listener.problem = problem
        if self._listener is listener:
            self._listener = None
        listener.wake()
        return self._failures.of(problem, sent=True)

    @abstractmethod
    async def _connect(self, ends: float) -> Listener:
        """Open a connection by the moment `ends`."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Let others run."""

    @abstractmethod
    async def _until(self, listener: Listener, done: Callable[[], bool], ends: float) -> None:
        """Read until something is done, or the connection has a problem, or until the moment `ends`."""


class ThreadWaits(Waits):
    """Those of threads: one of them reads, for all.  None of the methods suspends."""

    async def _connect(self, ends: float) -> Listener:
        del ends
        from caslock.stores.sql.listener import Listener  # noqa: PLC0415 - it needs psycopg

        begin(self._target)
        return Listener(connection_of(self._target))

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - these coroutines block by design

    async def _until(self, listener: Listener, done: Callable[[], bool], ends: float) -> None:
        mine = threading.Lock()
        mine.acquire()

        def wake() -> None:
            with suppress(RuntimeError):  # it is awake
                mine.release()

        listener.sleeping.append(wake)
        try:
            while not (done() or listener.problem) and (left := ends - monotonic()) > 0:
                if not listener.reading.acquire(blocking=False):
                    mine.acquire(timeout=min(left, _LONGEST))
                    continue
                try:
                    # Whoever read before may have read what we wait for.
                    if not (done() or listener.problem) and is_readable(listener.descriptor, min(left, _LONGEST)):
                        self._read(listener)
                finally:
                    listener.reading.release()
                    listener.wake()  # somebody else reads now
        finally:
            listener.sleeping.remove(wake)


class TaskWaits(Waits):
    """Those of asyncio tasks: the loop reads, for all."""

    async def _connect(self, ends: float) -> Listener:
        from caslock.stores.sql.listener import Listener  # noqa: PLC0415 - it needs psycopg

        async with asyncio.timeout(ends - monotonic()):
            return Listener(await async_connection_of(self._target))

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _until(self, listener: Listener, done: Callable[[], bool], ends: float) -> None:
        loop, mine = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            self._read(listener)
            listener.wake()

        if not listener.sleeping:
            loop.add_reader(listener.descriptor, read)
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
                loop.remove_reader(listener.descriptor)
