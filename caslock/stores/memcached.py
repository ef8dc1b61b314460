"""The law of this file: one packet for each verb, and a connection that has not answered to its last byte is closed.

Each packet ends with the question who stands now (``mg``) and a full stop (``mn``).  A removal asks only where it was
refused, in a second packet: else nothing stands.  Writing is classic ``add`` and ``cas``, for a refused ``ms`` may
destroy what stands; removing is ``md`` with the cas id, which needs no memory.
"""

from __future__ import annotations

import math
import re
import selectors
import time
from collections import deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError, MemcacheUnknownCommandError

from caslock.errors import StoreError, StoreUnavailable
from caslock.process import generation
from caslock.sockets import sender
from caslock.store import ABSENT, Entry, Traits
from caslock.stores.memcached_wire import PIECE, name_of, read, terms_of, verdict_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

T = TypeVar("T")

_MOST_IDLE: Final = 32
_REMEMBERED: Final = 1024  # locks ask for the same again and again
_RESTED: Final = 1.0  # seconds after which an idle connection is looked at before it is used
_CAS_IDS: Final = 1 << 64
_OF_AGE: Final = 4  # `uptime` starts at 2 and counts ticks of whole seconds: at 4, more than one second has gone by

_new = tuple.__new__  # half the time of a NamedTuple's own


class MemcachedStore:
    """Locks in one memcached server (1.6.13 or newer, with cas on), through the settings of a pymemcache client.

    memcached forgets: a restart frees every lock at once, and a full server may evict one before its time.  Give locks
    a server of their own, with ``-M`` (refuse rather than evict) where you can.  A holder learns of such a loss when it
    renews; until then only a resource that checks the fence is safe.

    A version is ``server start in seconds * 2**30 + cas id``.  The cas id counts every write since the start, so
    versions only grow within one start; and from start to start too, as long as the server's wall clock does not go
    back between them and the server has not written more than 2**30 times a second.  Two starts within one second
    would repeat versions: so a server gets no request in its first two or three seconds, and is waited for as long as
    the client's `timeout` allows.  A place that answers with an earlier start than it did before (its clock went back,
    or two servers share one name) is refused.

    memcached's clock ticks in seconds: an entry never lives shorter than its ttl, and up to 3 s longer (a little more
    on a busy server, whose tick may be late).
    """

    def __init__(self, client: Client | PooledClient) -> None:
        """Take the server and the settings of a pymemcache `Client` or `PooledClient`, but never its connections.

        Raises TypeError for any other client, and ValueError for settings under which no lock is safe.
        """
        if not isinstance(client, Client | PooledClient):
            raise TypeError(
                f"MemcachedStore needs a pymemcache Client or PooledClient, not {type(client).__name__}: a HashClient"
                " moves keys to a second server, and a RetryingClient repeats a request that may have been carried out"
            )
        if client.ignore_exc:
            raise ValueError(
                "MemcachedStore can't use a client with ignore_exc=True: to it, an outage looks like a free lock"
            )
        if not (client.timeout and 0 < client.timeout < math.inf):
            raise ValueError(
                f"MemcachedStore needs a client with a timeout in seconds (timeout=5), not timeout={client.timeout}"
            )
        if not re.fullmatch(rb"[^\x00-\x20\x7f]{0,128}", client.key_prefix):
            raise ValueError(
                f"key_prefix may have up to 128 bytes, none of them a space or control: {client.key_prefix!r}"
            )
        self._prefix: bytes = client.key_prefix
        self._patience: float = client.timeout
        self._client: Callable[[], Client] = partial(
            Client,
            client.server,
            timeout=client.timeout,
            connect_timeout=client.connect_timeout or client.timeout,
            no_delay=True,  # else the second segment of a large value waits for the acknowledgement of the first
            socket_module=client.socket_module,
            socket_keepalive=client.socket_keepalive,
            tls_context=client.tls_context,
        )
        # A deque's append and pop are atomic, and where there is no lock, a fork can't leave one locked.
        self._idle: deque[_Connection] = deque()
        self._inherited: list[_Connection] = []
        self._start = 0
        self._name = lru_cache(_REMEMBERED)(partial(name_of, prefix=self._prefix))
        self._terms = lru_cache(_REMEMBERED)(terms_of)
        self._traits = Traits(place=_place(client.server, self._prefix), fences=True, expires=True, overstay=3.5)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Make a store from ``memcached://host[:port]`` or ``memcached:///path/to.sock``.

        Options: ``?timeout=`` in seconds (5) and ``&prefix=`` before every key.  Raises ValueError for anything else.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        timeout, prefix = float(options.pop("timeout", "5")), options.pop("prefix", "")
        host, path = parts.hostname, unquote(parts.path).removesuffix("/")
        if parts.scheme != "memcached" or bool(host) == path.startswith("/") or "@" in parts.netloc or options:
            raise ValueError(
                "a memcached URL is memcached://host:port or memcached:///path/to.sock, with ?timeout= and ?prefix="
            )
        return cls(Client((host, parts.port or 11211) if host else path, timeout=timeout, key_prefix=prefix.encode()))

    @property
    def traits(self) -> Traits:
        """What this store promises."""
        return self._traits

    def get(self, key: str) -> Entry | None:
        """Read what stands under `key`: one round trip."""
        return self._look(self._name(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds (up to 30 days less 2 s) if exactly `version` stands: one round trip."""
        name = self._name(key)
        terms, success = self._terms(len(value), ttl)
        if version != ABSENT:
            return self._write_over(name, version, terms, value)
        connection = self._next_idle() or self._open()
        packet = b"add %b%b\r\n%b\r\nmg %b v c\r\nmn\r\n" % (name, terms, value, name)
        reply, end = self._turn(connection, packet), b"\r\n%b\r\nMN\r\n" % value
        # The answer to who acquires alone is known byte by byte, but for the cas id: to parse it would take longer.
        if reply.startswith(success) and reply.endswith(end):
            cas = reply[len(success) : -len(end)]
            if cas.isdigit():
                self._keep(connection)
                return _new(Entry, (value, connection.origin + int(cas)))
        return self._answer(connection, reply, version)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove what stands under `key` if its version is exactly `version`: one round trip, and no memory.

        Where another version stands, a second one tells which: a removal that was refused has changed nothing, and a
        version never comes back, so the answer is as true of that moment as it would have been of the first.
        """
        name = self._name(key)
        connection = self._next_idle() or self._open()
        cas = version - connection.origin
        verdict = b""
        if 0 < cas < _CAS_IDS:
            reply = self._turn(connection, b"md %b C%d\r\nmn\r\n" % (name, cas))
            if reply == b"HD\r\nMN\r\n":
                self._keep(connection)
                return None
            verdict = self._finish(connection, reply, verdict_of)
            if verdict in {b"HD", b"NF"}:
                return None
        else:
            self._keep(connection)
        return self._judge(verdict, self._look(name), version)

    def close(self) -> None:
        """Close the idle connections.  A later request opens a new one."""
        while connection := self._next_idle():
            connection.close()

    def __repr__(self) -> str:
        """Show the place."""
        return f"MemcachedStore({self._traits.place!r})"

    def _look(self, name: bytes) -> Entry | None:
        """Ask who stands, and nothing else."""
        return self._ask(name, ABSENT, lambda _cas: b"")

    def _write_over(self, name: bytes, version: int, terms: bytes, value: bytes) -> Entry | None:
        """Put where something stands; apart, for a function that has a closure in it is slower throughout."""
        return self._ask(name, version, lambda cas: b"cas %b%b %d\r\n%b\r\n" % (name, terms, cas, value))

    def _ask(self, name: bytes, version: int, command: Callable[[int], bytes]) -> Entry | None:
        """Send the command for the cas id of `version`, and return who stands after it."""
        connection = self._next_idle() or self._open()
        cas = version - connection.origin
        # A version of another start can't stand any more, so there is nothing to do to it but to ask who does.
        order = command(cas) if version == ABSENT or 0 < cas < _CAS_IDS else b""
        reply = self._turn(connection, b"%bmg %b v c\r\nmn\r\n" % (order, name))
        # It is as if the server had said nothing to no command.
        return self._answer(connection, reply if order else b"\r\n" + reply, version)

    def _turn(self, connection: _Connection, packet: bytes) -> bytes:
        """Send a packet, and return the reply as far as it comes at once."""
        try:
            connection.send(packet)
            return connection.receive(PIECE)
        except BaseException as problem:
            self._hang_up(connection, problem)
            raise

    def _answer(self, connection: _Connection, reply: bytes, version: int) -> Entry | None:
        """Read a reply that tells who stands."""
        verdict, entry = self._finish(connection, reply, partial(read, origin=connection.origin))
        return self._judge(verdict, entry, version)

    def _finish(self, connection: _Connection, reply: bytes, reads: Callable[[bytes], T | None]) -> T:
        """Receive the rest of a reply, until `reads` finds it whole."""
        try:
            while (answer := reads(reply)) is None:
                piece = connection.receive(PIECE)
                if not piece:
                    raise ConnectionResetError("the server closed the connection")  # noqa: TRY301 - as the kernel does
                reply += piece
        except BaseException as problem:
            self._hang_up(connection, problem)
            raise
        self._keep(connection)
        return answer

    def _judge(self, verdict: bytes, entry: Entry | None, version: int) -> Entry | None:
        """Return who stands, unless the server has refused for a reason of its own."""
        # Where another version stands, the command would have come to nothing anyway, and the entry is the answer.
        if b"ERROR" in verdict and version == (entry.version if entry else ABSENT):
            reason = verdict.decode(errors="replace")
            raise StoreError(
                f"{self._traits.place} has refused the request ({reason}), and nothing has changed: has it memory left?"
            )
        return entry

    def _hang_up(self, connection: _Connection, problem: BaseException) -> None:
        """Close a connection whatever has ended its request (KeyboardInterrupt, too): the next would read its reply.

        Raises what an error comes to.
        """
        connection.close()
        if not isinstance(problem, Exception):
            return
        self.close()  # what has ended one connection has probably ended them all
        raise StoreUnavailable(
            f"no answer from {self._traits.place} ({problem}): the request may have been applied; read who stands"
        ) from problem

    def _keep(self, connection: _Connection) -> None:
        """Keep a connection that has answered to its last byte."""
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _next_idle(self) -> _Connection | None:
        """Take the connection used last, for as long as there are idle ones."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            now = time.monotonic()
            if connection.generation != generation():
                self._inherited.append(connection)  # the parent's: a child neither uses it nor closes it
            elif connection.start < self._start or (now - connection.used > _RESTED and connection.has_ended()):
                connection.close()
            else:
                connection.used = now
                return connection

    def _open(self) -> _Connection:
        """Connect, or tell what prevents it."""
        place = self._traits.place
        try:
            return self._connect()
        except StoreError:
            raise
        except Exception as problem:
            # Every memcached knows `stats`, so its "ERROR" is the one of "too many open connections".
            unknown = isinstance(problem, MemcacheUnknownCommandError)
            if isinstance(problem, MemcacheClientError | LookupError) and not unknown:
                raise StoreError(
                    f"{place} does not answer as a plain memcached without passwords does ({problem!r})"
                ) from problem
            raise StoreUnavailable(
                f"can't reach memcached at {place} ({problem!r}): check that it runs, listens there and has room",
                sent=False,
            ) from problem

    def _connect(self) -> _Connection:
        """Connect, and learn which start of the server this is and whether locks are safe with it."""
        client, patience = self._client(), time.monotonic() + self._patience
        try:
            facts = client.stats() | client.stats("settings")
            while facts[b"uptime"] < _OF_AGE and time.monotonic() < patience:
                time.sleep(0.05)
                facts |= client.stats()
            self._start = start = _start(facts, self._traits.place, not_before=self._start)
            return _Connection(client, start)
        except BaseException:
            client.close()
            raise


class _Connection:
    """A connection of our own to one start of the server.  It serves one request at a time."""

    def __init__(self, client: Client, start: int) -> None:
        self._client = client
        self._socket: socket.socket = client.sock
        self.send = sender(self._socket)
        self.receive: Callable[[int], bytes] = self._socket.recv
        self.generation = generation()
        self.start = start
        self.origin = start << 30
        self.used = time.monotonic()

    def has_ended(self) -> bool:
        """Whether the server has said anything, such as goodbye, while the connection lay idle."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(0))

    def close(self) -> None:
        """Close the socket, whatever state it is in."""
        self._client.close()


def _start(facts: dict[bytes, Any], place: str, not_before: int) -> int:
    """Tell the start of a server by its own facts, and refuse it if locks are not safe with it."""
    start: int = facts[b"time"] - facts[b"uptime"]  # the same number for the whole life of a server
    version: bytes = facts[b"version"]
    if [int(number) for number in re.findall(rb"\d+", version)[:3]] < [1, 6, 13]:
        raise StoreError(f"{place} runs memcached {version!r}, whose `md` knows no cas id: use 1.6.13 or newer")
    if facts[b"cas_enabled"] != b"yes":
        raise StoreError(f"{place} runs with cas switched off: start memcached without -C")
    if start < not_before:
        raise StoreError(f"{place} answers with an earlier start: its clock went back, or two servers share that name")
    if facts[b"uptime"] < _OF_AGE:
        raise StoreUnavailable(f"{place} has only just started: try again in two or three seconds", sent=False)
    return start


def _place(server: tuple[str, int] | str, prefix: bytes) -> str:
    """Name a server as a URL."""
    if isinstance(server, str):
        where = quote(server)
    else:
        where = f"[{server[0]}]:{server[1]}" if ":" in server[0] else f"{server[0]}:{server[1]}"
    return f"memcached://{where}" + (f"?prefix={quote(prefix, safe=':')}" if prefix else "")
