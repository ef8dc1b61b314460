"""The two stores.  `requests` has their verbs, `target` the settings of their clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final, TypeVar

from botocore.exceptions import ClientError

from caslock.errors import StoreError
from caslock.process.fork import PerProcess
from caslock.process.loop_end import PerLoop, before_the_loop_ends, transports_are_closed
from caslock.store import Traits
from caslock.stores.dynamodb.failures import Failures, code_of
from caslock.stores.dynamodb.requests import Reply, Request, Verbs
from caslock.stores.dynamodb.target import target_of
from caslock.stores.shared.connections import run
from caslock.stores.shared.verbs import AsyncVerbs, BlockingVerbs, follow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from caslock.stores.dynamodb.target import Client, Target
    from caslock.stores.shared.verbs import Verb

T = TypeVar("T")

_INSTALL: Final = "pip install 'caslock[dynamodb-async]', or give AsyncLock a DynamoDBStore"


def _traits(target: Target) -> Traits:
    return Traits(target.location, expires=False, expiry_lag=0.0, request_timeout=target.timeout)


class DynamoDBStore(BlockingVerbs):
    """A `Store` in a table of DynamoDB; safe to share between threads and across a fork.

    DynamoDB does not end entries in time: an entry stays until it is removed or written over.

    Fences are the clocks of the clients in microseconds, or one more than the version before, and only grow as long as
    no clock is a week behind another.
    """

    def __init__(self, target: str | Client, *, table: str | None = None, timeout: float | None = None) -> None:
        """Keep the entries in ``dynamodb://region/table``, or in a table that a boto3 client reaches; no I/O yet.

        ``?endpoint=http://host:port`` is another server than that of AWS.  Credentials are found as boto3 finds them.
        Of a client, the region, endpoint, credentials and settings are used, and neither its connections nor its
        retries.  The table is ``caslock`` if none is named.  `timeout` (2 s) is how long a verb may take, also as
        ``?timeout=``.  Raises ValueError or TypeError for bad arguments.
        """
        self._target = target_of(target, table, timeout)
        self._verbs: Verbs = Verbs(self._target.table, self._target.location)
        self._failures = Failures(self._target.location)
        self._clients = PerProcess(self._target.new_client)
        self._guards = PerProcess(RLock)  # reentrant: a signal handler may use the store meanwhile
        self._closed = False
        self.traits: Traits = _traits(self._target)

    def create_table(self) -> None:
        """Make the table if there is none, billed by request, and wait until it can be used, for up to two minutes.

        DynamoDB's "time to live" is enabled for it: it deletes what nobody has used for a week.

        Raises `StoreUnavailable` and `StoreError`.
        """
        self._run(self._verbs.creation(), bounded=False)

    def close(self) -> None:
        """Close the connections.  A later request opens one, and closes it."""
        self._closed = True
        self._end()

    def _run(self, verb: Verb[T], *, bounded: bool = True) -> T:
        began, client, first = time.monotonic(), None, next(verb)

        async def ask(request: Request) -> Reply:
            # A further request begins in the first half of the time only: it may take the other half.
            if bounded and request is not first and time.monotonic() - began > self._target.timeout / 2:
                raise self._failures.too_late()
            return await _answered(client, request, awaits=False)

        try:
            client = self._client()
            return run(follow(verb, ask, first))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised as what it means
            raise self._failures.of(error, sent=client is not None) from self._failures.shown(error)
        finally:
            if self._closed:
                self._end()

    def _client(self) -> Client:
        found = self._clients.found()
        if found is None:
            with self._guards.here():
                found = self._clients.here()
        return found

    def _end(self) -> None:
        """Close what is idle; a connection that is in use is closed after its reply."""
        client = self._clients.found()
        if client is not None:
            client.close()


class AsyncDynamoDBStore(AsyncVerbs):
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, target: str | Client, *, table: str | None = None, timeout: float | None = None) -> None:
        """See `DynamoDBStore`; a client is one of aiobotocore.

        Raises ModuleNotFoundError if aiobotocore is not installed.
        """
        try:
            import aiobotocore.session  # noqa: F401, PLC0415 - an extra of its own
        except ImportError as error:
            message = f"DynamoDB for asyncio needs the package aiobotocore: {_INSTALL}"
            raise ModuleNotFoundError(message, name=error.name) from error
        self._target = target_of(target, table, timeout, awaits=True)
        self._verbs: Verbs = Verbs(self._target.table, self._target.location)
        self._failures = Failures(self._target.location)
        self._loops = PerLoop(partial(_Loop, self._target))
        self.traits: Traits = _traits(self._target)

    async def create_table(self) -> None:
        """See `DynamoDBStore.create_table`."""
        await self._run(self._verbs.creation(), bounded=False)

    async def aclose(self) -> None:
        """Close the connections of the running loop; the next request opens one again."""
        await self._loops.here().close()

    async def _run(self, verb: Verb[T], *, bounded: bool = True) -> T:
        sent, first = False, next(verb)
        try:
            async with asyncio.timeout(self._target.timeout if bounded else None):
                async with self._loops.here().client() as client:
                    sent = True
                    return await follow(verb, partial(_answered, client, awaits=True), first)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised as what it means
            raise self._failures.of(error, sent=sent) from self._failures.shown(error)


class _Loop:
    """The client of one event loop, which is running."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._opening = asyncio.Lock()
        self._open: Client = None
        self._users: dict[Client, int] = {}
        self._end: AsyncGenerator[None, None] = before_the_loop_ends(self.close)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Yield a client, which is not closed meanwhile."""
        async with self._opening:
            if self._open is None:
                self._open = await self._made()
        client = self._open
        self._users[client] = self._users.get(client, 0) + 1
        try:
            yield client
        finally:
            self._users[client] -= 1
            if client is not self._open and not self._users[client]:
                del self._users[client]
                await _shut(client)

    async def close(self) -> None:
        """Close the client, or have the last request that uses it do so."""
        client, self._open = self._open, None
        if client is not None and not self._users.get(client):
            self._users.pop(client, None)
            await _shut(client)

    async def _made(self) -> Client:
        from aiobotocore.config import AioConfig  # noqa: PLC0415 - see `AsyncDynamoDBStore`
        from aiobotocore.session import AioSession  # noqa: PLC0415 - as above

        session = self._target.prepare(AioSession())
        return await session.create_client(**self._target.client_settings(AioConfig)).__aenter__()


async def _shut(client: Client) -> None:
    await client.__aexit__(None, None, None)
    await transports_are_closed()


async def _answered(client: Client, request: Request, *, awaits: bool) -> Reply:
    """Send a request, and read the reply; it never suspends for a client that blocks."""
    if request.pause:
        await asyncio.sleep(request.pause) if awaits else time.sleep(request.pause)  # noqa: ASYNC251 - see above
    try:
        answer = getattr(client, request.method)(**request.arguments)
        body = await answer if awaits else answer
    except ClientError as error:
        if code_of(error) != request.refused_by:
            raise
        return Reply(error.response, accepted=False)
    if body.keys() <= {"ResponseMetadata"}:  # botocore takes a reply that was cut short for one that is empty
        raise ConnectionResetError("the answer broke off")
    return Reply(body, accepted=True)
