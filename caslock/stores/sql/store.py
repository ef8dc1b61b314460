"""The two stores.  Each verb is one statement; `table` has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import exc

from caslock.connections import run
from caslock.fork import generation
from caslock.loop_end import ConnectionsPerLoop, PerLoop, before_the_loop_ends
from caslock.store import Traits
from caslock.stores.sql.engines import async_engine_of, begin, engine_of, limit, target_of
from caslock.stores.sql.failures import Failures
from caslock.stores.sql.table import Verbs, with_table
from caslock.stores.sql.task_waits import TaskWaits
from caslock.stores.sql.thread_waits import ThreadWaits
from caslock.verbs import AsyncVerbs, BlockingVerbs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from caslock.verbs import Verb

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
        self._engines: dict[int, Engine] = {}  # those of a parent are neither used, nor closed, nor collected
        self._closed = False
        self.traits: Traits = Traits(self._target.location, request_timeout=self._target.timeout)
        self._waits: dict[int, ThreadWaits] = {}  # as the engines
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
        if waits := self._waits.get(generation()):
            waits.end()
        engine = self._engines.pop(generation(), None)
        if engine is not None:
            engine.dispose()

    def _wait_while(self, key: str, version: int, timeout: float) -> None:
        mine = generation()
        waits = self._waits.get(mine) or self._waits.setdefault(mine, ThreadWaits(self._target, self._failures))
        if self._closed:
            waits.end()
        run(waits.wait_while(key, version, timeout))

    def _run(self, verb: Verb[T]) -> T:
        begin(self._target)
        sent = False
        try:
            mine = generation()
            engine = self._engines.get(mine) or self._engines.setdefault(mine, engine_of(self._target))
            connection = engine.connect()
            try:
                steps = with_table(verb)
                request = next(steps)
                sent = True
                while True:
                    limit(connection.connection.driver_connection)
                    try:
                        answer = self._verbs.reply(connection.execute(*request))
                    except exc.DBAPIError as error:
                        request = steps.throw(error)
                    else:
                        request = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            except BaseException:
                connection.invalidate()
                raise
            finally:
                if self._engines.get(generation()) is not engine:
                    connection.invalidate()  # the store was closed meanwhile, and its pool is gone
                connection.close()
                if self._closed:
                    self.close()
        except Exception as error:
            raise self._failures.of(error, sent=sent) from error


class AsyncSQLStore(AsyncVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    wait_while: Callable[[str, int, float], Awaitable[None]]
    """See `SQLStore.wait_while`."""

    def __init__(self, target: str | URL | AsyncEngine, *, timeout: float | None = None) -> None:
        """See `SQLStore`; an engine is an ``AsyncEngine``, and the driver for MySQL is asyncmy."""
        self._target = target_of(target, timeout, awaits=True)
        self._verbs: Verbs = Verbs(self._target.backend)
        self._failures = Failures(self._target.location, self._target.secrets)
        self._loops = PerLoop(lambda: _Loop(async_engine_of(self._target)))
        self.traits: Traits = Traits(self._target.location, request_timeout=self._target.timeout)
        self._waits = ConnectionsPerLoop(lambda: TaskWaits(self._target, self._failures))
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
        sent = False
        try:
            async with asyncio.timeout(self._target.timeout):
                here = self._loops.here()
                closed = here.closed
                connection = await here.engine.connect()
                try:
                    steps = with_table(verb)
                    request = next(steps)
                    sent = True
                    while True:
                        try:
                            answer = self._verbs.reply(await connection.execute(*request))
                        except exc.DBAPIError as error:
                            request = steps.throw(error)
                        else:
                            request = steps.send(answer)
                except StopIteration as done:
                    result: T = done.value
                    return result
                except BaseException:
                    await connection.invalidate()
                    raise
                finally:
                    if here.closed != closed:
                        await connection.invalidate()  # as above
                    await connection.close()
        except Exception as error:
            raise self._failures.of(error, sent=sent) from error


class _Loop:
    """The engine of one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.closed = 0
        """How often: whoever has a connection of before closes it, as its pool is gone."""
        self._end: AsyncGenerator[None, None] = before_the_loop_ends(self.close)

    async def close(self) -> None:
        """Close the idle connections; a later request opens one again."""
        self.closed += 1
        await self.engine.dispose()
        await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop
