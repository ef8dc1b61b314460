"""A store in one memcached server.

A request is one packet: a command, a question for the entry under the key (``mg``), and ``mn``, whose answer marks the
end of the reply.  The commands that write are ``add`` and ``cas``, because an ``ms`` that the server refuses may delete
the entry.  The one that removes is ``md`` with a cas id, which needs no memory.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, unquote, urlsplit

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

from caslock.closing import Closing
from caslock.connections import IdleConnections, is_readable, reason, seconds_left
from caslock.errors import StoreError, StoreUnavailable
from caslock.fork import generation
from caslock.guards import on_failure
from caslock.options import (
    check_address,
    check_key,
    check_prefix,
    check_put,
    check_timeout,
    either,
    no_other_options,
    options_of,
    seconds_of,
)
from caslock.store import ABSENT, Entry, Traits

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

T = TypeVar("T")

_PIECE: Final = 65_536  # bytes to receive at once: a reply about what caslock writes comes in one piece
_NAMES: Final = 1024  # to encode a key anew for each request made acquire and release 10 % slower
_CAS_IDS: Final = 1 << 64
_SLOW: Final = 0.1  # seconds; a server that answers a put later may have been stopped, and its clock may be behind
_TICK: Final = 0.02  # seconds after which its clock has been set again
_PAUSE: Final = 0.05  # seconds between two looks at a server that has only just started
_OF_AGE: Final = 4  # `uptime` starts at 2 and counts ticks of whole seconds: at 4, more than one second has gone by
_LONGEST_TTL: Final = 30 * 24 * 3600 - 2  # the server takes an exptime of more than 30 days for a date
_HEAD: Final = re.compile(rb"([^\r\n]*)\r\n(?:EN|VA (\d+) c(\d+))\r\n")


class MemcachedStore(Closing):
    """Locks in one memcached server (1.6.13 or newer, with cas on), through the settings of a pymemcache client.

    memcached forgets: a restart frees every lock at once, and a full server may evict one before its time.  Give locks
    a server of their own, with ``-M`` (refuse rather than evict) where you can.  A holder learns of such a loss when it
    renews; until then only a resource that checks the fence is safe.

    A version is ``server start in seconds * 2**30 + cas id``.  The cas id counts every write since the start, so
    versions only grow within one start.  They grow from start to start too, as long as the server's wall clock does not
    go back between them and the server has not written more than 2**30 times a second.  Two starts within one second
    would repeat versions: so a server gets no request in its first two or three seconds, and is waited for as long as
    the client's `timeout` allows.  A location that answers with an earlier start than it did before (its clock went
    back, or two servers share one name) is refused.

    memcached's clock ticks in seconds: an entry never lives shorter than its ttl, and up to 3 s longer (a little more
    on a busy server, whose tick may be late).  There is one exception.  A server that was stopped (SIGSTOP, a paused VM
    or container) for S seconds may go on for some milliseconds with a clock that is S seconds behind, and an entry
    written then lives up to S seconds shorter.  A put that was answered after 0.1 s or more is therefore done once
    more.  What remains is a put that was sent in the last 0.1 s of a stop: its lease may end up to S seconds early.
    The next renewal, after a third of the ttl, makes the lease whole again, so only stops of more than two thirds of
    the ttl can end it.
    """

    def __init__(self, client: Client | PooledClient, *, prefix: str = "") -> None:
        """Use the server and settings of a pymemcache `Client` or `PooledClient`, but not its connections.

        `prefix` is prepended to every key, behind the client's own `key_prefix`.
        A verb ends within the client's `timeout`, connecting included (but not the resolving of a host name).  Raises
        TypeError for any other client, and ValueError for settings under which no lock is safe.
        """
        if not isinstance(client, Client | PooledClient):
            raise TypeError(
                f"MemcachedStore needs a pymemcache Client or PooledClient, not {type(client).__name__}: a HashClient"
                " may move a key to another server, and a RetryingClient repeats requests that may have been applied"
            )
        if client.ignore_exc:
            raise ValueError(
                "MemcachedStore can't use a client with ignore_exc=True: it would make an outage look like a free lock"
            )
        if client.timeout is None:
            raise ValueError("MemcachedStore needs a client with a timeout in seconds (timeout=5), not timeout=None")
        self._timeout = check_timeout("timeout", client.timeout)
        check_prefix(prefix)
        self._prefix: bytes = client.key_prefix + prefix.encode()
        if not re.fullmatch(rb"[^\x00-\x20\x7f]{0,128}", self._prefix):
            told = f"without spaces or control characters, not {self._prefix.decode(errors='backslashreplace')!r}"
            raise ValueError(f"the prefix must be at most 128 bytes {told}")
        self._new_client: Callable[..., Client] = partial(
            Client,
            client.server,
            no_delay=True,  # else the second segment of a large value waits for the acknowledgement of the first
            socket_module=client.socket_module,
            socket_keepalive=client.socket_keepalive,
            tls_context=client.tls_context,
        )
        self._idle = IdleConnections[_Connection]()
        self._start = 0  # the latest start of the server that was seen
        self._name = lru_cache(_NAMES)(partial(name_of, prefix=self._prefix))
        location = _location(client.server, self._prefix)
        self.traits: Traits = Traits(location, expiry_lag=3.5, request_timeout=self._timeout)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "") -> Self:
        """Create a store from ``memcached://host[:port]`` or ``memcached:///path/to.sock``.

        Options: ``?timeout=`` in seconds (5) and ``&prefix=`` before every key, which may be given as an argument, too.
        Raises ValueError for anything else.
        """
        check_prefix(prefix)
        parts = urlsplit(url)
        check_address(parts, "memcached", "a lock lives in one")
        options = options_of(parts.query)
        usage = "a memcached URL is memcached://host:port or memcached:///path/to.sock, with ?timeout= and ?prefix="
        no_other_options(options, ("timeout", "prefix"), usage)
        timeout = seconds_of(options.pop("timeout", "5"), "a memcached")
        prefix = either("prefix", options.pop("prefix", ""), prefix)
        host, path = parts.hostname, unquote(parts.path).removesuffix("/")
        if parts.scheme != "memcached" or bool(host) == path.startswith("/") or "@" in parts.netloc:
            raise ValueError(usage)
        return cls(Client((host, parts.port or 11211) if host else path, timeout=timeout, key_prefix=prefix.encode()))

    def get(self, key: str) -> Entry | None:
        """Read the entry under `key`, in one round trip."""
        return self._look(self._name(key), time.monotonic() + self._timeout)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds (up to 30 days less 2 s) if the version is `version`, in one round trip."""
        name, terms, ends = self._name(key), terms_of(value, ttl), time.monotonic() + self._timeout
        connection = self._connection(ends)
        sent = connection.used
        reply = self._exchange(connection, connection.put(name, terms, value, version), ends)
        # The usual replies, here and below, are known but for the cas id: without that, a lock cycle took 8 % longer.
        begin, end = b"STORED\r\nVA %d c" % len(value), b"\r\n%b\r\nMN\r\n" % value
        if reply.startswith(begin) and reply.endswith(end) and time.monotonic() - sent < _SLOW:
            cas = reply[len(begin) : -len(end)]
            if cas.isdigit():
                self._idle.keep(connection)
                return Entry(value, connection.origin + int(cas))
        verdict, entry = self._finish(connection, reply, ends, parse)
        if verdict == b"STORED" and entry and entry.value == value and time.monotonic() - sent > _SLOW:
            return self._put_again(name, terms, entry, ends)
        return self._judge(verdict, entry, version)

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove the entry under `key` if its version is `version`, in one round trip that needs no memory.

        If another version is there, a second round trip reads it: a refused removal has changed nothing.
        """
        name, ends = self._name(key), time.monotonic() + self._timeout
        connection = self._connection(ends)
        reply = self._exchange(connection, connection.removal(name, version), ends)
        if reply == b"HD\r\n":
            self._idle.keep(connection)
            return None
        verdict = self._finish(connection, reply, ends, line_of)
        if verdict in {b"HD", b"NF"}:
            return None
        return self._judge(verdict, self._look(name, ends), version)

    def identify(self) -> str:
        """See `IdentifiedStore.identify`: the server's start, its process id and its address.

        memcached can't say more.  For a server that is reached at two addresses, other than those of the loopback, the
        order of keys is still right, but a key that two stores have in common there is taken for two.
        """
        connection = self._connection(time.monotonic() + self._timeout)
        self._idle.keep(connection)
        return f"memcached:{connection.start}:{connection.process}:{connection.peer()}"

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._name(key).decode()

    def close(self) -> None:
        """Close the idle connections.  A later request opens a new one, and closes it."""
        self._idle.end()

    def _look(self, name: bytes, ends: float) -> Entry | None:
        """Ask for the entry under `name`."""
        connection = self._connection(ends)
        return self._finish(connection, self._exchange(connection, _question(name), ends), ends, parse).entry

    def _put_again(self, name: bytes, terms: bytes, entry: Entry, ends: float) -> Entry | None:
        """Put once more what was put while the server's clock may have been behind.

        Its main thread sets the clock, and after a stop its other threads may answer before it does.
        """
        time.sleep(_TICK)
        try:
            connection = self._connection(ends)
            reply = self._exchange(connection, connection.put(name, terms, *entry), ends)
            return self._finish(connection, reply, ends, parse).entry
        except StoreError as problem:  # whatever it says of this put, the first one was applied
            raise StoreUnavailable(f"{problem}; an earlier request has written the entry") from problem

    def _exchange(self, connection: _Connection, packet: bytes, ends: float) -> bytes:
        """Send a packet, and receive of the reply what comes at once."""
        try:
            with on_failure(connection.close):
                connection.socket.settimeout(seconds_left(ends))
                connection.socket.sendall(packet)
                return connection.socket.recv(_PIECE)
        except Exception as problem:
            raise self._unanswered(problem) from problem

    def _finish(self, connection: _Connection, reply: bytes, ends: float, parse: Callable[[bytes, int], T | None]) -> T:
        """Receive until `parse` finds the reply whole, and keep the connection."""
        try:
            with on_failure(connection.close):
                while (found := parse(reply, connection.origin)) is None:
                    connection.socket.settimeout(seconds_left(ends))
                    if not (piece := connection.socket.recv(_PIECE)):
                        raise ConnectionResetError("the server closed the connection")  # noqa: TRY301 - as the kernel does
                    reply += piece
        except Exception as problem:
            raise self._unanswered(problem) from problem
        self._idle.keep(connection)
        return found

    def _unanswered(self, problem: Exception) -> StoreUnavailable:
        self._idle.close()  # what has ended one connection has probably ended them all
        return StoreUnavailable(f"{self.traits.location} did not answer ({problem})")

    def _judge(self, verdict: bytes, entry: Entry | None, version: int) -> Entry | None:
        """Return the entry, or raise `StoreError` if the server has refused what it could have done."""
        # Under another version the command would have changed nothing, and the entry is the answer.
        if b"ERROR" in verdict and version == (entry.version if entry else ABSENT):
            told = verdict.decode(errors="replace")
            raise StoreError(f"{self.traits.location} refused the request and changed nothing: {told}")
        return entry

    def _connection(self, ends: float) -> _Connection:
        """Take an idle connection, or open one until `ends`."""
        while (connection := self._idle.take()) is not None:
            if connection.start >= self._start:
                return connection
            connection.close()
        location = self.traits.location
        try:
            return self._open(ends)
        except StoreError:
            raise
        except Exception as problem:
            # Every memcached knows `stats`, so "ERROR" in answer to it means too many open connections.
            unknown = isinstance(problem, MemcacheUnknownCommandError)
            if isinstance(problem, MemcacheClientError | LookupError) and not unknown:
                raise StoreError(
                    f"{location} does not speak the memcached text protocol without authentication ({problem!r})"
                ) from problem
            if unknown:
                told = f"{location} has too many open connections: raise its limit, -c"
                raise StoreUnavailable(told, sent=False) from problem
            closed = isinstance(problem, MemcacheUnexpectedCloseError)
            told = "the connection was closed" if closed else reason(problem)
            other = isinstance(problem, MemcacheUnknownError | MemcacheUnexpectedCloseError | ConnectionResetError)
            hint = ": is it a memcached without TLS, and not another server? check the host and port" if other else ""
            raise StoreUnavailable(f"{location} is unreachable ({told}){hint}", sent=False) from problem

    def _open(self, ends: float) -> _Connection:
        """Connect, and learn which start of the server this is and whether locks are safe with it."""
        left = seconds_left(ends)
        client = self._new_client(timeout=left, connect_timeout=left)
        with on_failure(client.close):
            client._connect()  # noqa: SLF001 - else `stats` would connect, and begin the timeout anew after that
            facts = _facts(client, ends) | _facts(client, ends, "settings")
            while facts[b"uptime"] < _OF_AGE and seconds_left(ends) > 2 * _PAUSE:
                time.sleep(_PAUSE)
                facts |= _facts(client, ends)
            self._start = start = _start(facts, self.traits.location, not_before=self._start)
            return _Connection(client, start, facts[b"pid"])


class _Reply(NamedTuple):
    """The answer to a command, and to the read behind it."""

    verdict: bytes  # what the server says to the command
    entry: Entry | None  # what is under the key after it


class _Connection:
    """A connection to one start of the server, for one request at a time."""

    def __init__(self, client: Client, start: int, process: int) -> None:
        self._client = client  # it closes the socket
        self.socket: socket.socket = client.sock
        self.origin = start << 30
        self.start = start
        self.process = process
        self.generation = generation()
        self.used = time.monotonic()

    def put(self, name: bytes, terms: bytes, value: bytes, version: int) -> bytes:
        """Return the packet that writes `value` if `version` is under the key, and asks for the entry."""
        if version == ABSENT:
            return b"add %b%b\r\n%b\r\nmg %b v c\r\nmn\r\n" % (name, terms, value, name)
        cas = version - self.origin
        if not 0 < cas < _CAS_IDS:  # the version of another start, which can't be there any more
            return _question(name)
        return b"cas %b%b %d\r\n%b\r\nmg %b v c\r\nmn\r\n" % (name, terms, cas, value, name)

    def removal(self, name: bytes, version: int) -> bytes:
        """Return the packet that removes `version`."""
        cas = version - self.origin
        return b"md %b C%d\r\n" % (name, cas) if 0 < cas < _CAS_IDS else b"mn\r\n"

    def peer(self) -> str:
        """Return the address of the server."""
        address = self.socket.getpeername()
        if not isinstance(address, tuple):
            return str(address)
        host = address[0].removeprefix("::ffff:")
        return f"{'loopback' if host == '::1' or host.startswith('127.') else host}:{address[1]}"

    def is_quiet(self) -> bool:
        """Whether the server has sent nothing, such as the end of the connection, while it was idle."""
        return not is_readable(self.socket.fileno())

    def close(self) -> None:
        """Close the socket, whatever state it is in."""
        self._client.close()


def _facts(client: Client, ends: float, *about: str) -> dict[bytes, Any]:
    client.sock.settimeout(seconds_left(ends))
    facts: dict[bytes, Any] = client.stats(*about)
    return facts


def _start(facts: dict[bytes, Any], location: str, not_before: int) -> int:
    """Return the start of a server by its own facts, and refuse it if locks are not safe with it."""
    start: int = facts[b"time"] - facts[b"uptime"]  # the same number for the whole life of a server
    version: bytes = facts[b"version"]
    if [int(number) for number in re.findall(rb"\d+", version)[:3]] < [1, 6, 13]:
        raise StoreError(
            f"memcached {version.decode(errors='replace')} at {location} is too old: its `md` knows no cas id, "
            "so 1.6.13 or newer is needed"
        )
    if facts[b"cas_enabled"] != b"yes":
        raise StoreError(f"cas is disabled at {location}: start memcached without -C")
    if start < not_before:
        raise StoreError(
            f"{location} reports an earlier start: its clock was set back, or two servers share that address"
        )
    if facts[b"uptime"] < _OF_AGE:
        raise StoreUnavailable(f"{location} started less than 3 s ago: try again shortly", sent=False)
    return start


def parse(reply: bytes, origin: int) -> _Reply | None:
    """Read a reply; None: it is not whole yet.  Raises ConnectionError for what is no reply."""
    head = _HEAD.match(reply)
    if head is None:
        if reply.count(b"\r\n") > 1 or len(reply) > _PIECE:
            raise ConnectionError(reply[:100])
        return None
    verdict, size, cas = head.groups()
    begins = head.end()
    if size is None:
        entry, end, rest = None, b"MN\r\n", reply[begins:]
    else:
        ends = begins + int(size)
        entry, end, rest = Entry(reply[begins:ends], origin + int(cas)), b"\r\nMN\r\n", reply[ends:]
    if rest == end:
        return _Reply(verdict, entry)
    if not end.startswith(rest):
        raise ConnectionError(rest[:100])
    return None


def line_of(reply: bytes, _origin: int) -> bytes | None:
    """Read a reply of one line; None: it is not whole yet."""
    if len(reply) > _PIECE or b"\n" in reply[:-1]:
        raise ConnectionError(reply[:100])
    return reply[:-2] if reply[-2:] == b"\r\n" else None


def _question(name: bytes) -> bytes:
    """Return a packet that changes nothing; its first line stands in for a command, so that all replies read alike."""
    return b"mg %b\r\nmg %b v c\r\nmn\r\n" % (name, name)


def name_of(key: str, prefix: bytes) -> bytes:
    """Encode a key so that no two share a name, none is too long, and none can hold a command."""
    check_key(key)
    name = quote(key, safe=":").encode()
    if len(name) > (room := 250 - len(prefix)):
        digest = b"%%-%b" % hashlib.sha256(name).hexdigest().encode()  # quote never makes "%-": no plain key does
        name = name[: room - len(digest)] + digest
    return prefix + name


def terms_of(value: bytes, ttl: float) -> bytes:
    """Return what follows the name in a put."""
    check_put(value, ttl, _LONGEST_TTL)
    # The server's clock lags by up to a second and may leap by two: exptime T lives between T-2 and T seconds.
    return b" 0 %d %d" % (math.ceil(ttl) + 2, len(value))


def _location(server: tuple[str, int] | str, prefix: bytes) -> str:
    """Name a server as a URL."""
    if isinstance(server, str):
        where = quote(server)
    else:
        where = f"[{server[0]}]:{server[1]}" if ":" in server[0] else f"{server[0]}:{server[1]}"
    return f"memcached://{where}" + (f"?prefix={quote(prefix, safe=':')}" if prefix else "")
