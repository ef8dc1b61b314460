"""Waits for changes of keys in PostgreSQL: all those of a store share one connection (see `listener`).

The first wait opens it.  Where there can be none, as behind PgBouncer, waits are refused, and locks poll.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from caslock.errors import StoreUnavailable
from caslock.stores.shared.connections import is_readable
from caslock.stores.sql.failures import is_busy
from caslock.stores.sql.table import name_of
from caslock.stores.sql.wait import Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.errors import StoreError
    from caslock.stores.sql.failures import Failures
    from caslock.stores.sql.listener import Listener
    from caslock.stores.sql.target import Target

_PAUSE: Final = 10.0
"""Seconds after which another connection is tried where the server, or a pooler, has not let us listen."""

_MOMENT: Final = 0.005  # seconds for which a waiter first waits without a notification
_LATE: Final = 0.25  # seconds by which a wait may last longer for the server to learn that it is over
_LOOK: Final = 0.005  # seconds between two looks whether another has opened the connection


class Waits(ABC):
    """The waits of one process, or for asyncio of one event loop."""

    def __init__(self, target: Target, failures: Failures) -> None:
        """Open nothing yet."""
        self._target, self._failures = target, failures
        self._listener: Listener | None = None
        self._again = 0.0  # when the next connection may be tried
        self._why = ""  # there is none until then
        self._opener: object = None  # stands for the wait that opens one
        self._guard = RLock()  # of listeners; reentrant: a signal handler may use a lock
        self._ended = False

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`."""
        now, wait = monotonic(), Wait(name_of(key)[0], version)
        ends = now + self._target.timeout
        try:
            listener = self._join(wait) or await self._open(wait, ends)
            await self._watch(listener, wait, ends, now + timeout)
            self._stop(listener, wait)
            await self._tell(listener)
            self._leave(listener, wait)
        except BaseException as error:
            if wait.listener is not None:
                self._abandon(wait.listener, wait, error)
            raise

    def end(self) -> None:
        """Close the connection, and keep none from now on."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Close the connection; if anybody waits there, the last one does it."""
        with self._guard:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.close()

    def _join(self, wait: Wait) -> Listener | None:
        """Begin to wait on the connection; None: there is none, or it has ended while nobody waited."""
        with self._guard:
            listener = self._listener
            if listener is not None and not listener.users and is_readable(listener.descriptor):
                self._read(listener)
                if listener.problem:
                    listener.close()
            if listener is None or listener.problem:
                return None
            if not listener.begin(wait):
                raise self._failures.cannot_wait("too many keys are waited for")
            return listener

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
            except Exception as error:  # noqa: BLE001 - this wait is over, and the next one fails
                self._fail(listener, error)

    async def _tell(self, listener: Listener) -> None:
        """If nobody waits any more, see to it that the server hears of that: perhaps nobody reads from now on."""
        await self._until(listener, lambda: not listener.is_behind, monotonic() + min(_LATE, self._target.timeout))

    def _leave(self, listener: Listener, wait: Wait) -> None:
        """Need the connection no more; the last one closes it if it is not to be used again."""
        with self._guard:
            listener.users.discard(wait)
            if self._listener is listener and (self._ended or listener.is_behind):
                self._listener = None
            if self._listener is not listener:
                listener.close()

    def _abandon(self, listener: Listener, wait: Wait, error: BaseException) -> None:
        """Wait no more because of an error."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._stop(listener, wait)
        else:  # a signal handler may have raised it in the middle of a change
            self._fail(listener, error)
        self._leave(listener, wait)

    async def _open(self, wait: Wait, ends: float) -> Listener:
        """Begin to wait on a new connection; one is opened at a time."""
        me = object()
        try:
            while not self._may_open(me):
                if monotonic() > ends:
                    raise self._failures.cannot_wait("the connection for that is being opened")
                await self._sleep(_LOOK)
            if listener := self._join(wait):
                return listener
            if monotonic() < self._again:
                raise self._failures.cannot_wait(self._why)
            return await self._begin(wait, ends)
        finally:
            if self._opener is me:
                self._opener = None

    def _may_open(self, me: object) -> bool:
        with self._guard:
            self._opener = self._opener or me
            return self._opener is me

    async def _begin(self, wait: Wait, ends: float) -> Listener:
        from caslock.stores.sql.listener import Listener  # noqa: PLC0415 - it needs psycopg

        try:
            listener = Listener(await self._connect(ends))
        except Exception as error:
            failed = self._failures.of(error, sent=False)
            if is_busy(error) or not isinstance(failed, StoreUnavailable):
                self._put_off(str(failed))
            raise failed from error
        try:
            if listener.is_direct:
                with self._guard:
                    self._listener = listener
                    listener.begin(wait)
                return listener
        finally:
            if self._listener is not listener:
                listener.close()
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
        """Use a connection no more, and return the error of all who wait there."""
        with self._guard:
            if self._listener is listener:
                self._listener = None
            listener.fail(problem)
        return self._failures.of(problem, sent=True)

    @abstractmethod
    async def _connect(self, ends: float) -> Any:  # noqa: ANN401 - psycopg's generic class
        """Open a connection by the moment `ends`."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Let others run."""

    @abstractmethod
    async def _until(self, listener: Listener, done: Callable[[], bool], ends: float) -> None:
        """Read until something is done, or the connection has a problem, or until the moment `ends`."""
