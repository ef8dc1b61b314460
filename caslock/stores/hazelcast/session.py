"""The client of one event loop, which is running.  It is opened when it is needed, and given up when it fails.

The client waits without end for a member that accepts a connection and then says nothing, and for an answer that does
not come.  So whatever is awaited here ends at a given moment.  Why it could not connect, the client only logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from hazelcast.asyncio import HazelcastClient
from hazelcast.config import Config, IntType, ReconnectMode
from hazelcast.errors import HazelcastError
from hazelcast.internal.asyncio_proxy.manager import MAP_SERVICE
from hazelcast.lifecycle import LifecycleState

from caslock.errors import StoreError
from caslock.process.guards import on_failure
from caslock.process.loop_end import before_the_loop_ends, transports_are_closed
from caslock.stores.hazelcast.failures import Failures
from caslock.stores.shared.connections import LEAST, seconds_left
from caslock.stores.shared.verbs import follow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine

    from hazelcast.asyncio import Map

    from caslock.stores.hazelcast.requests import Verb, Verbs
    from caslock.stores.hazelcast.target import Target

T = TypeVar("T")

FOREVER: Final = (1 << 63) - 1
"""The ttl of an entry that does not expire, in milliseconds."""

_PROBE: Final = 60  # seconds
_AGAIN: Final = 0.01  # seconds

_heard: ContextVar[list[BaseException] | None] = ContextVar("_heard", default=None)


class _Reasons(logging.Handler):
    """Remembers the first error that the client logs while it is opened."""

    def emit(self, record: logging.LogRecord) -> None:
        heard = _heard.get()
        if heard == [] and record.exc_info and record.exc_info[1]:
            heard.append(record.exc_info[1])


logging.getLogger("hazelcast").addHandler(_Reasons())


class _Open(NamedTuple):
    client: HazelcastClient
    map: Map[Any, Any]
    waits: set[asyncio.Event]
    """What is set when the connection is lost."""


class Session:
    """A connection to one member at a time, which passes requests on to the others."""

    def __init__(self, target: Target) -> None:
        """Begin without a client."""
        self._target = target
        self._failures = Failures(target)
        self._opening = asyncio.Lock()
        self._open: _Open | None = None
        # With all connections that they have begun to open; also those that are asked no more, and may still answer.
        self._clients: dict[HazelcastClient, list[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._first = secrets.randbelow(len(target.members))  # the member to be tried first
        self._probed = False
        self._end: AsyncGenerator[None, None] = before_the_loop_ends(self.close)

    async def run(self, verb: Verb[T]) -> T:
        """Run a verb to its end; raises what an error means, within the timeout."""
        return await self._run(verb, self._ends())

    async def wait_while(self, verbs: Verbs, key: str, version: int, timeout: float) -> None:
        """See `WatchingStore.wait_while`: a listener, on the same connection."""
        look, ends, until = verbs.get(key), self._ends(), monotonic() + timeout
        async with self._listening(key, ends) as changed:
            entry = await self._run(look, ends)
            if entry is not None and entry.version == version:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(until - monotonic(), 0)):
                        await changed.wait()

    async def members(self) -> int:
        """Count the members that keep entries."""
        used = await self._opened(self._ends())
        return sum(not member.lite_member for member in used.client.cluster_service.get_members())

    async def close(self) -> None:
        """Close all connections; a later request opens one again."""
        self._open = None
        for client in list(self._clients):
            self._leave(client)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await transports_are_closed()

    def _ends(self) -> float:
        return monotonic() + self._target.timeout

    async def _run(self, verb: Verb[T], ends: float) -> T:
        return await follow(verb, lambda request: self._ask(ends, *request))

    async def _ask(self, ends: float, method: str, *arguments: object) -> Any:  # noqa: ANN401 - as the method says
        used = await self._opened(ends)
        try:
            async with asyncio.timeout(seconds_left(ends)):
                return await getattr(used.map, method)(*arguments)
        except Exception as error:  # also whatever a reply that breaks off leads to
            if isinstance(error, TimeoutError):
                self._retire(used)
            raise self._failures.of(error, sent=True) from error

    @contextlib.asynccontextmanager
    async def _listening(self, key: str, ends: float) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set when the key has changed, or may have."""
        used, changed = await self._opened(ends), asyncio.Event()

        def heard(_event: object) -> None:
            changed.set()

        listener = asyncio.ensure_future(
            used.map.add_entry_listener(
                key=key, removed_func=heard, updated_func=heard, evicted_func=heard, expired_func=heard
            )
        )
        used.waits.add(changed)
        try:
            done, _ = await asyncio.wait({listener}, timeout=seconds_left(ends))
            if not done:
                self._retire(used)
                raise self._failures.of(TimeoutError(), sent=True)
            try:
                await listener
            except Exception as error:
                raise self._failures.of(error, sent=True) from error
            yield changed
        finally:
            used.waits.discard(changed)
            self._spawn(self._unlisten(used, listener))

    async def _unlisten(self, used: _Open, listener: asyncio.Future[str]) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self._target.timeout):
                await used.map.remove_entry_listener(await listener)

    async def _opened(self, ends: float) -> _Open:
        if self._open is not None and self._open.client.lifecycle_service.is_running():
            return self._open
        try:
            async with asyncio.timeout(seconds_left(ends)):
                await self._opening.acquire()
        except TimeoutError as error:
            raise self._failures.of(error, sent=False) from error
        try:
            if self._open is None or not self._open.client.lifecycle_service.is_running():
                self._open = await self._connect(ends)
            return self._open
        finally:
            self._opening.release()

    async def _connect(self, ends: float) -> _Open:
        """Try each member, for its share of the time."""
        count, problem = len(self._target.members), Exception()
        for number in range(count):
            try:
                opened = await self._begin(self._first, monotonic() + seconds_left(ends) / (count - number))
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the next member is asked
                problem = error
                self._first = (self._first + 1) % count
            else:
                return opened
        raise self._failures.of(problem, sent=False) from problem

    async def _begin(self, member: int, ends: float) -> _Open:
        """Connect to one member; raises what was in the way."""
        client, waits = HazelcastClient(self._config(self._target.members[member], ends)), set[asyncio.Event]()

        def changed(state: str) -> None:
            if state == LifecycleState.DISCONNECTED:
                if self._open is not None and self._open.client is client:
                    self._open = None
                for event in waits:
                    event.set()
                self._clients.pop(client, None)  # it shuts itself down

        client.lifecycle_service.add_listener(changed)
        heard = list[BaseException]()
        connections = self._connections_of(client)
        before = _heard.set(heard)
        try:
            starting = asyncio.create_task(self._start(client))
        finally:
            _heard.reset(before)

        def started(task: asyncio.Task[Any]) -> None:
            _forget(task)
            if client not in self._clients:  # it was given up while it connected
                _close(connections)

        starting.add_done_callback(started)
        try:
            with on_failure(partial(self._leave, client)), on_failure(partial(_cancel, starting)):
                done, _ = await asyncio.wait({starting}, timeout=seconds_left(ends))
                if not done:
                    raise TimeoutError
                return _Open(client, starting.result(), waits)
        except HazelcastError as error:
            if heard and isinstance(heard[0], Exception):
                raise heard[0] from error
            raise

    def _connections_of(self, client: HazelcastClient) -> list[Any]:
        """Note from now on what it begins to open, and let it open nothing once it was given up."""
        connections = self._clients[client] = list[Any]()
        manager: Any = client._connection_manager  # noqa: SLF001 - see `_close`
        connect = manager._create_connection  # noqa: SLF001 - as above

        def connected(address: object) -> object:
            if client not in self._clients:
                raise HazelcastError("the client was given up")
            connections.append(connect(address))
            return connections[-1]

        manager._create_connection = connected  # noqa: SLF001 - as above
        return connections

    async def _start(self, client: HazelcastClient) -> Map[Any, Any]:
        await client._start()  # type: ignore[no-untyped-call] # noqa: SLF001 - create_and_start() would not let go of a client that hangs
        # get_map() would leave a future behind if it failed or was cancelled, of whose error asyncio complains.
        proxies: Any = client._proxy_manager  # noqa: SLF001 - see above
        found: Map[Any, Any] = await proxies._create_proxy(MAP_SERVICE, self._target.map, True)  # noqa: FBT003, SLF001
        if not self._probed:
            await self._probe(found)
            self._probed = True
        return found

    async def _probe(self, found: Map[Any, Any]) -> None:
        """Raise StoreError unless a replaced entry stays for good: the leases of `requests` depend on it."""
        key = secrets.randbits(62)
        await found.set(key, "a", _PROBE)
        replaced = await found.replace_if_same(key, "a", "b")
        view = await found.get_entry_view(key)
        await found.delete(key)
        if not replaced or view.ttl != FOREVER or view.max_idle != FOREVER:
            raise StoreError(
                f"{self._target.location} ends entries by itself: the map must have no time-to-live-seconds and no "
                "max-idle-seconds, and the members must be Hazelcast 5 or newer"
            )

    def _config(self, member: str, ends: float) -> Config:
        config = Config()  # type: ignore[no-untyped-call] # the client has no type for it
        config.cluster_members = [member]
        config.cluster_name = self._target.cluster
        if self._target.user:
            config.creds_username, config.creds_password = self._target.user, self._target.password
        config.smart_routing = False  # a connection to each member would hang on one that is frozen
        config.connection_timeout = seconds_left(ends)
        config.cluster_connect_timeout = 0  # one try
        config.reconnect_mode = ReconnectMode.OFF
        config.invocation_timeout = LEAST  # nothing is sent twice
        config.redo_operation = False
        config.statistics_enabled = False
        config.default_int_type = IntType.LONG
        return config

    def _retire(self, used: _Open) -> None:
        """Ask it no more; others may still wait for answers, for as long as a request may take."""
        if self._open is used:
            self._open = None
            self._first = (self._first + 1) % len(self._target.members)
            asyncio.get_running_loop().call_later(self._target.timeout, self._leave, used.client)

    def _leave(self, client: HazelcastClient) -> None:
        connections = self._clients.pop(client, None)
        if connections is not None:
            # Not by the task itself: one that is cancelled before its first step does nothing.
            self._spawn(self._shut(client)).add_done_callback(lambda _: _close(connections))

    async def _shut(self, client: HazelcastClient) -> None:
        # In 5.7.0, shutdown() closes the last connection, which calls shutdown(), which waits for the first one.
        client._connection_manager._reconnect_mode = ReconnectMode.ON  # noqa: SLF001 - there is no other way
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self._target.timeout):
                await client.shutdown()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended: the client swallows a cancellation, and may then wait without end."""
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_later(_AGAIN, _cancel, task)


def _close(connections: list[Any]) -> None:
    """Close what shutdown() has left: it may take too long, and in 5.7.0 forgets what is not authenticated yet."""
    for connection in connections:
        connection._inner_close()  # noqa: SLF001 - there is no other way


def _forget(task: asyncio.Task[Any]) -> None:
    """Take the error of a task, or asyncio would log it."""
    if not task.cancelled():
        task.exception()
