"""The two stores: where each takes its connections from, and how long a verb may take."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from caslock.process.fork import PerProcess
from caslock.process.loop_end import ConnectionsPerLoop, PerLoop, before_the_loop_ends
from caslock.store import Traits
from caslock.stores.shared.connections import run
from caslock.stores.shared.verbs import AsyncVerbs, BlockingVerbs
from caslock.stores.sql.connections import end_by
from caslock.stores.sql.engines import async_engine_of, engine_of
from caslock.stores.sql.failures import Failures
from caslock.stores.sql.target import target_of
from caslock.stores.sql.task_waits import TaskWaits
from caslock.stores.sql.thread_waits import ThreadWaits
from caslock.stores.sql.verbs import Verbs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from caslock.stores.shared.verbs import Verb
    from caslock.stores.sql.target import Target

T = TypeVar("T")


class SQLStore(BlockingVerbs):
    """A `Store` in a table of PostgreSQL, MySQL or MariaDB; safe to share between threads and across a fork.

    The table is called caslock.  It is made by the first acquire that does not find it, or by your migrations:
    `caslock.stores.sql.metadata` describes it.  Leases are measured by the server's wall clock: if that is set forward,
    they end early.
    """

    wait_while: Callable[[str, int, float], None]
    """See `WatchingStore.wait_while`: the server notifies us.  Only a store in PostgreSQL has it."""

    def __init__(self, target: str | URL | Engine, *, timeout: float | None = None) -> None:
        """Keep the entries in the database of a URL, or of an engine of yours; no I/O yet.

        A URL is ``postgresql://``, ``mysql://`` or ``mariadb://user:password@host:port/database``.  Its options, other
        than ``?timeout=``, are the driver's: psycopg's or PyMySQL's.
        Of an engine the store takes its settings, and connections that it keeps to itself.  It never takes part in a
        transaction of yours.  `timeout` (2 s) is how long a verb may take, also as ``?timeout=`` in a URL.
        Raises ValueError for a malformed URL, and TypeError for what is neither a URL nor an Engine.
        """
        self._target = target_of(target, timeout, awaits=False)
        self._verbs: Verbs = Verbs(self._target.backend)
        self._failures = Failures(self._target.location, self._target.secrets)
        self._engines = PerProcess(partial(engine_of, self._target))
        self._waits = PerProcess(partial(ThreadWaits, self._target, self._failures))
        self._closed = False
        self.traits: Traits = Traits(self._target.location, request_timeout=self._target.timeout)
        if self._target.backend == "postgresql":
            self.wait_while = self._wait_while

    def identify(self) -> str | None:
        """See `IdentifiedStore.identify`: the cluster, the database and the table of PostgreSQL; of MySQL, None."""
        return self._run(self._verbs.identify())

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return key

    def close(self) -> None:
        """Close the idle connections.  A later request opens one, and closes it."""
        self._closed = True
        self._end()

    def _wait_while(self, key: str, version: int, timeout: float) -> None:
        try:
            run(self._waits.here().wait_while(key, version, timeout))
        finally:
            if self._closed:
                self._end()

    def _run(self, verb: Verb[T]) -> T:
        end_by(monotonic() + self._target.timeout)
        sent, first = False, next(verb, None)  # None: a verb that asks nothing, which is `identify` of MySQL
        try:
            engine = self._engines.here()
            pool = engine.pool
            connection = engine.connect()
            sent = True
            return self._verbs.run(connection, verb, first, pool)
        except Exception as error:
            raise self._failures.of(error, sent=sent) from error
        finally:
            if self._closed:
                self._end()

    def _end(self) -> None:
        if waits := self._waits.found():
            waits.close()
        if engine := self._engines.found():
            engine.dispose()


class AsyncSQLStore(AsyncVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    wait_while: Callable[[str, int, float], Awaitable[None]]
    """See `SQLStore.wait_while`."""

    def __init__(self, target: str | URL | AsyncEngine, *, timeout: float | None = None) -> None:
        """See `SQLStore`; an engine is an ``AsyncEngine``, and the driver for MySQL is asyncmy."""
        self._target = target_of(target, timeout, awaits=True)
        self._verbs: Verbs = Verbs(self._target.backend)
        self._failures = Failures(self._target.location, self._target.secrets)
        self._loops = PerLoop(partial(_Loop, self._target))
        self.traits: Traits = Traits(self._target.location, request_timeout=self._target.timeout)
        self._waits = ConnectionsPerLoop(partial(TaskWaits, self._target, self._failures))
        if self._target.backend == "postgresql":
            self.wait_while = self._wait_while

    async def identify(self) -> str | None:
        """See `SQLStore.identify`."""
        return await self._run(self._verbs.identify())

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return key

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        self._waits.here().close()
        await self._loops.here().close()

    async def _wait_while(self, key: str, version: int, timeout: float) -> None:
        await self._waits.here().wait_while(key, version, timeout)

    async def _run(self, verb: Verb[T]) -> T:
        sent, first = False, next(verb, None)
        try:
            async with asyncio.timeout(self._target.timeout):
                engine = self._loops.here().engine
                pool = engine.pool
                connection = await engine.connect()
                sent = True
                return await connection.run_sync(self._verbs.run, verb, first, pool)
        except Exception as error:
            raise self._failures.of(error, sent=sent) from error


class _Loop:
    """The engine of one event loop."""

    def __init__(self, target: Target) -> None:
        self.engine: AsyncEngine = async_engine_of(target)
        self._end: AsyncGenerator[None, None] = before_the_loop_ends(self.close)

    async def close(self) -> None:
        """Close the idle connections; a later request opens one again."""
        await self.engine.dispose()
        await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop
