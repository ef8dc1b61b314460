"""The servers of a cluster, and the connections to them.

Written once, for asyncio.  Code that blocks runs it to its end in one step, because its links never suspend.  nats-py
is not used: it only has asyncio, so each request of code that blocks would go through a thread of its own, which takes
three times as long; and it keeps what it could not send, and sends that later.

A request is never sent twice.  Each connection looks at the settings of the bucket before its first request.  If there
is none, it is made before the first write.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from caslock.process.guards import on_failure
from caslock.stores.nats.failures import ServerError, check_jetstream, check_server, check_stream
from caslock.stores.nats.requests import NO_STREAM, RefusedError, sound
from caslock.stores.nats.target import signed
from caslock.stores.nats.wire import Ask, Message, NotNatsError, Wire
from caslock.stores.shared.links import Link, Pool
from caslock.stores.shared.verbs import follow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from caslock.stores.nats.failures import Failures
    from caslock.stores.nats.requests import Verb, Verbs
    from caslock.stores.nats.target import Target
    from caslock.stores.shared.links import Endpoint

L = TypeVar("L", bound=Link)
T = TypeVar("T")

_OTHER_STREAM: Final = 10058


class Connection(Generic[L]):
    """A link, and the state of the protocol on it."""

    def __init__(self, link: L) -> None:
        """Take a link on which nothing was sent yet."""
        self.link = link
        self.wire: Wire = Wire()
        self.generation: int = link.generation
        self.used: float = link.used
        self._heard: deque[Message] = deque()
        self.bucket: Mapping[str, Any] | None = None
        """The settings of the bucket; None: there is none."""

    async def ask(self, ask: Ask, ends: float, before: bytes = b"") -> Message:
        """Send a request, behind other bytes, and wait for its answer."""
        if ask.pause:
            with suppress(TimeoutError):
                await self.next(monotonic() + ask.pause)
            if monotonic() > ends:
                raise TimeoutError
        self._heard.clear()
        await self.link.send(before + self.wire.request(ask), ends)
        while not self.wire.is_answer(message := await self.next(ends)):
            self._heard.append(message)
        return message

    async def hear(self, subscription: str, ends: float) -> Message:
        """Return the next message of a subscription, also one that came before the last answer."""
        while True:
            message = self._heard.popleft() if self._heard else await self.next(ends)
            if message.subscription == subscription:
                return message

    async def next(self, ends: float) -> Message:
        """Return the next message that comes by the moment `ends`; else raises TimeoutError."""
        while True:
            message = self.wire.next()
            if message is None:
                if monotonic() > ends:
                    raise TimeoutError
                self.wire.feed(await self.link.receive(ends))
            elif message.verb == "-ERR":
                raise ServerError(message.body.decode(errors="replace")[:200])
            elif message.verb == "PING":
                await self.link.send(b"PONG\r\n", ends)
            else:
                return message

    def is_quiet(self) -> bool:
        """See `Link.is_quiet`."""
        return self.link.is_quiet()

    def close(self) -> None:
        """See `Link.close`."""
        self.link.close()


class Servers(Pool[Connection[L]]):
    """The connections of one store, for asyncio those of one event loop."""

    def __init__(self, target: Target, verbs: Verbs, failures: Failures, kind: type[L]) -> None:
        """Open nothing yet."""
        super().__init__(target.endpoints, failures)
        self._target, self._verbs, self._kind = target, verbs, kind
        self._look = Ask.api(f"STREAM.INFO.{verbs.stream}")

    async def run(self, verb: Verb[T]) -> T:
        """Run a verb to its end; raises what an error means, within the timeout."""
        first, ends = next(verb), monotonic() + self._target.timeout

        async def act(connection: Connection[L]) -> T:
            if first.headers and connection.bucket is None:  # it is a write
                await self._make_bucket(connection, ends)
            return await follow(verb, lambda ask: connection.ask(ask, ends), first)

        return await self._use(act, ends)

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        """Subscribe to what the server stores for the key, and look; it reports whatever that look misses."""
        ends, until = monotonic() + self._target.timeout, monotonic() + timeout
        look = self._verbs.get(key)
        first = next(look)
        busy = self._failures.cannot_wait()

        async def watch(connection: Connection[L]) -> bool:
            if not self._verbs.tells(connection.bucket or {}):
                return False
            name, subscribe = connection.wire.subscribe(self._verbs.changes(key))
            await connection.link.send(subscribe, ends)
            entry = await follow(look, lambda ask: connection.ask(ask, ends), first)
            if entry is not None and entry.version == version:
                with suppress(TimeoutError):
                    while not self._verbs.changed(key, version, await connection.hear(name, until)):
                        pass
            await connection.link.send(connection.wire.unsubscribe(name), max(ends, until))
            return True

        with self.waiters.one_more(busy):
            if not await self._use(watch, ends):
                raise busy

    async def _use(self, act: Callable[[Connection[L]], Coroutine[Any, Any, T]], ends: float) -> T:
        """Act on a connection that nobody else uses.  It is closed after a failure, since an answer may still come."""
        connection = self.idle.take() or await self.connect(self._open, ends)
        try:
            with on_failure(connection.close):
                result = await act(connection)
        except Exception as error:
            if not isinstance(error, RefusedError):
                self.leave(connection.link.endpoint)
            raise self._failures.of(error, sent=True) from error
        self.idle.keep(connection)
        return result

    async def _open(self, endpoint: Endpoint, ends: float) -> Connection[L]:
        connection = Connection(await self._kind.open(endpoint, None, ends))
        with on_failure(connection.close):
            await self._greet(connection, ends)
        return connection

    async def _greet(self, connection: Connection[L], ends: float) -> None:
        """Say who connects, and check the server and the bucket."""
        first = await connection.next(ends)
        if first.verb != "INFO":
            raise NotNatsError("it does not say who it is")
        server, tls = first.json(), self._target.tls
        check_server(server, tls=tls is not None)
        if tls:
            await connection.link.secure(tls, ends)
        proof = signed(self._target.creds, str(server.get("nonce", ""))) if self._target.creds else {}
        greeting = connection.wire.greeting({"tls_required": tls is not None, **self._target.credentials, **proof})
        try:
            about = sound(await connection.ask(self._look, ends, greeting))
        except RefusedError as refused:
            if refused.code != NO_STREAM:
                raise check_jetstream(server, refused) from refused
        else:
            self._check(connection, about)

    async def _make_bucket(self, connection: Connection[L], ends: float) -> None:
        stream, settings = self._verbs.stream, self._verbs.settings(self._target.replicas)
        made = await connection.ask(Ask.api(f"STREAM.CREATE.{stream}", **settings), ends)
        if made.json().get("error", {}).get("err_code") == _OTHER_STREAM:  # somebody else was faster
            made = await connection.ask(self._look, ends)
        self._check(connection, sound(made))

    def _check(self, connection: Connection[L], about: Mapping[str, Any]) -> None:
        check_stream(about["config"], self._verbs.stream)
        connection.bucket = about["config"]
