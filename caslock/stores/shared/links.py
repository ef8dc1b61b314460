"""A connection to one server, for code that blocks and for asyncio: it sends and receives bytes, by a given moment."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from caslock.errors import StoreError, StoreUnavailable
from caslock.process.fork import generation
from caslock.process.guards import on_failure
from caslock.stores.shared.connections import Connection as AnyConnection
from caslock.stores.shared.connections import IdleConnections, Waiters, is_readable, seconds_left
from caslock.stores.shared.options import check_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from caslock.stores.shared.failures import Failures

C = TypeVar("C", bound=AnyConnection)

_PIECE: Final = 65_536

FILES: Final = ("cacert", "cert", "key")
"""Options of a URL that name files for TLS."""


class Endpoint(NamedTuple):
    """The address of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as in a URL."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def endpoints_of(hosts: str, port: int, kind: str, form: str) -> tuple[Endpoint, ...]:
    """Read the servers of a URL, and name each once; `form` is what a URL that can't be read should look like."""
    return tuple(dict.fromkeys(_endpoint(host, port, kind, form) for host in hosts.split(",")))


def _endpoint(text: str, port: int, kind: str, form: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
    except ValueError:
        raise ValueError(form) from None
    check_address(parts, kind, "separate several by commas")
    if not parts.hostname:
        raise ValueError(form)
    return Endpoint(parts.hostname, parts.port or port)


def tls_of(options: dict[str, str], url: str) -> ssl.SSLContext:
    """Make the settings of TLS from the options `FILES` of a URL, which errors call `url` ("an etcd URL")."""
    if "key" in options and "cert" not in options:
        raise ValueError(f"?key= of {url} needs ?cert=")
    try:
        context = ssl.create_default_context(cafile=options.get("cacert"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:  # also those of ssl
        why = error.strerror or "no certificate in it"
        raise ValueError(f"a file of ?cacert=, ?cert= or ?key= in {url} can't be used: {why}") from error
    return context


def tls_refused(location: str, error: ssl.SSLError) -> StoreError:
    """Say why a server and we could not agree on TLS."""
    why = str(error.reason).lower().replace("_", " ")
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or "the certificate is not trusted"
    return StoreError(f"{location} and this client do not accept each other's TLS ({why}).")


class Link(AnyConnection, ABC):
    """A connection, for one packet at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Note where it leads, and which process it belongs to."""
        self.endpoint = endpoint
        self.generation: int = generation()
        self.used: float = monotonic()

    @classmethod
    @abstractmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None, ends: float) -> Self:
        """Connect by the moment `ends`."""

    @abstractmethod
    async def secure(self, tls: ssl.SSLContext, ends: float) -> None:
        """Speak TLS from now on; a failure leaves only `close`."""

    @abstractmethod
    async def send(self, packet: bytes, ends: float) -> None:
        """Send all of it by the moment `ends`; else raises TimeoutError."""

    @abstractmethod
    async def receive(self, ends: float) -> bytes:
        """Return what comes by the moment `ends`, b"" at the end of the connection; else raises TimeoutError."""


class SocketLink(Link):
    """A socket.  None of its methods suspends."""

    def __init__(self, endpoint: Endpoint, opened: socket.socket) -> None:
        """Take a socket."""
        super().__init__(endpoint)
        self._socket = opened

    @classmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None, ends: float) -> Self:
        """See `Link.open`: each address of the host in turn, with its share of the time to connect."""
        problem: OSError = ConnectionRefusedError("the host has no address")
        found = socket.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(found):
            opened = cls(endpoint, socket.socket(family, kind, protocol))
            try:
                with on_failure(opened.close):
                    opened._socket.settimeout(seconds_left(ends) / (len(found) - number))
                    opened._socket.connect(address)
                    opened._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if tls:
                        await opened.secure(tls, ends)
                    return opened
            except ssl.SSLError:
                raise
            except OSError as error:
                problem = error
        raise problem

    async def secure(self, tls: ssl.SSLContext, ends: float) -> None:
        """See `Link.secure`."""
        self._socket.settimeout(seconds_left(ends))
        self._socket = tls.wrap_socket(self._socket, server_hostname=self.endpoint.host, do_handshake_on_connect=False)
        self._socket.do_handshake()

    async def send(self, packet: bytes, ends: float) -> None:
        """See `Link.send`."""
        self._socket.settimeout(seconds_left(ends))
        self._socket.sendall(packet)

    async def receive(self, ends: float) -> bytes:
        """See `Link.receive`."""
        self._socket.settimeout(seconds_left(ends))
        return self._socket.recv(_PIECE)

    def is_quiet(self) -> bool:
        """See `Link.is_quiet`."""
        return not is_readable(self._socket.fileno())

    def close(self) -> None:
        """See `Link.close`."""
        self._socket.close()


class StreamLink(Link):
    """A stream of asyncio."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take an open stream."""
        super().__init__(endpoint)
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None, ends: float) -> Self:
        """See `Link.open`."""
        async with asyncio.timeout(seconds_left(ends)):
            return cls(endpoint, *await asyncio.open_connection(*endpoint, ssl=tls))

    async def secure(self, tls: ssl.SSLContext, ends: float) -> None:
        """See `Link.secure`."""
        async with asyncio.timeout(seconds_left(ends)):
            await self._writer.start_tls(tls, server_hostname=self.endpoint.host)

    async def send(self, packet: bytes, ends: float) -> None:
        """See `Link.send`."""
        self._writer.write(packet)
        async with asyncio.timeout(seconds_left(ends)):
            await self._writer.drain()

    async def receive(self, ends: float) -> bytes:
        """See `Link.receive`."""
        async with asyncio.timeout(seconds_left(ends)):
            return await self._reader.read(_PIECE)

    def is_quiet(self) -> bool:
        """See `Link.is_quiet`."""
        return not (self._writer.is_closing() or self._reader.at_eof())

    def close(self) -> None:
        """See `Link.close`; the socket is closed in the next turn of the loop."""
        self._writer.transport.abort()


class Pool(Generic[C]):
    """The idle connections to the servers of a cluster, which server is asked next, and how many wait."""

    def __init__(self, endpoints: Sequence[Endpoint], failures: Failures) -> None:
        """Open nothing yet."""
        self._endpoints, self._failures = endpoints, failures
        self._current = 0  # the server that has answered last
        self.idle: IdleConnections[C] = IdleConnections()
        self.waiters: Waiters = Waiters()

    async def connect(self, opening: Callable[[Endpoint, float], Awaitable[C]], ends: float) -> C:
        """Connect to a server, beginning with the one that has answered last, each for its share of the time."""
        problems = list[StoreError]()
        first = self._current
        for left in range(len(self._endpoints), 0, -1):
            place = (first - left) % len(self._endpoints)
            now = monotonic()
            try:
                connection = await opening(self._endpoints[place], now + (ends - now) / left)
            except Exception as error:  # noqa: BLE001 - raised if no other server answers
                problems.append(self._failures.of(error, sent=False))
            else:
                self._current = place
                return connection
        raise next((each for each in problems if isinstance(each, StoreUnavailable)), problems[0])

    def leave(self, endpoint: Endpoint | None = None) -> None:
        """Ask another server than `endpoint` (None: the last one) next time, on a new connection."""
        self.idle.close()  # what has ended one connection has probably ended them all
        if endpoint is None or self._endpoints[self._current] == endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def end(self) -> None:
        """Close what is idle, and keep nothing from now on."""
        self.idle.end()
