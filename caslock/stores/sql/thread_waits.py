"""The waits of threads for changes of keys in PostgreSQL."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from caslock.stores.shared.connections import is_readable
from caslock.stores.sql.connections import connection_of, end_by
from caslock.stores.sql.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.stores.sql.failures import Failures
    from caslock.stores.sql.listener import Listener
    from caslock.stores.sql.target import Target

_LONGEST: Final = 3600.0  # seconds of one sleep of a thread: there is a limit, of many years


class ThreadWaits(Waits):
    """Those of threads: one of them reads, for all.  None of the methods suspends."""

    def __init__(self, target: Target, failures: Failures) -> None:
        """See `Waits`."""
        super().__init__(target, failures)
        self._waiting = set[int]()  # the threads

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`."""
        me = threading.get_ident()
        if me in self._waiting:  # it may read, and what it has begun can't go on
            raise self._failures.cannot_wait("a signal handler has interrupted another wait")
        try:
            self._waiting.add(me)
            await super().wait_while(key, version, timeout)
        finally:
            self._waiting.discard(me)

    async def _connect(self, ends: float) -> Any:  # noqa: ANN401 - psycopg's generic class
        end_by(ends)
        return connection_of(self._target)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - these coroutines block by design

    async def _until(self, listener: Listener, done: Callable[[], bool], ends: float) -> None:
        mine = threading.Lock()
        mine.acquire()

        def wake() -> None:
            with suppress(RuntimeError):  # it is awake
                mine.release()

        try:
            listener.sleeping.append(wake)
            while not (done() or listener.problem) and (left := ends - monotonic()) > 0:
                if not self._may_read(listener, mine):
                    mine.acquire(timeout=min(left, _LONGEST))
                # Whoever read before may have read what we wait for.
                elif not (done() or listener.problem) and is_readable(listener.descriptor, min(left, _LONGEST)):
                    self._read(listener)
                    listener.wake()
        finally:
            if listener.reader is mine:
                listener.reader = None
                listener.wake()  # somebody else reads now
            listener.sleeping.remove(wake)

    def _may_read(self, listener: Listener, me: object) -> bool:
        with self._guard:
            listener.reader = listener.reader or me
            return listener.reader is me
