"""The store in one memcached server.  Each verb is one request."""

from __future__ import annotations

import re
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, unquote, urlsplit

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry, Traits
from caslock.stores.memcached.connection import Connection, opened
from caslock.stores.memcached.requests import name_of, put, question, removal, terms_of
from caslock.stores.shared.closing import Closing
from caslock.stores.shared.connections import IdleConnections, reason, seconds_left
from caslock.stores.shared.links import Endpoint
from caslock.stores.shared.options import (
    check_address,
    check_prefix,
    check_timeout,
    either,
    no_other_options,
    options_of,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.stores.memcached.requests import Reply

_NAMES: Final = 1024  # to encode a key anew for each request made acquire and release 10 % slower
_SLOW: Final = 0.1  # seconds; a server that answers a put later may have been stopped, and its clock may be behind
_TICK: Final = 0.02  # seconds after which its clock has been set again


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
            shown = self._prefix.decode(errors="backslashreplace")
            raise ValueError(
                f"the prefix must be at most 128 bytes without spaces or control characters, not {shown!r}"
            )
        self._new_client: Callable[..., Client] = partial(
            Client,
            client.server,
            no_delay=True,  # else the second segment of a large value waits for the acknowledgement of the first
            socket_module=client.socket_module,
            socket_keepalive=client.socket_keepalive,
            tls_context=client.tls_context,
        )
        self._idle = IdleConnections[Connection]()
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
        name = self._name(key)
        return self._ask(lambda _origin: question(name)).entry

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write `value` for `ttl` seconds (up to 30 days less 2 s) if the version is `version`, in one round trip."""
        name, terms, began = self._name(key), terms_of(value, ttl), time.monotonic()
        verdict, entry = self._ask(partial(put, name, terms, value, version))
        if verdict != b"STORED":
            return self._judge(verdict, entry, version)
        if time.monotonic() - began > _SLOW and entry and entry.value == value:
            entry = self._put_again(partial(put, name, terms, *entry), began + self._timeout)
        if entry and entry.value == value:
            return entry
        # Others have changed it since: on a busy server also between the put and the question in the same packet.
        raise StoreUnavailable(f"{self.traits.location} has written the entry, which has changed or gone since")

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Remove the entry under `key` if its version is `version`, in one round trip that needs no memory."""
        verdict, entry = self._ask(partial(removal, self._name(key), version))
        if verdict.rstrip() in {b"HD", b"NF"}:  # memcached 1.6.13 says "HD "
            return None  # an entry in the reply was put after the removal
        return self._judge(verdict, entry, version)

    def identify(self) -> str:
        """See `IdentifiedStore.identify`: the server's start, its process id and its address.

        memcached can't say more.  For a server that is reached at two addresses, other than those of the loopback, the
        order of keys is still right, but a key that two stores have in common there is taken for two.
        """
        connection = self._idle_one() or self._open(time.monotonic() + self._timeout)
        self._idle.keep(connection)
        return f"memcached:{connection.start}:{connection.process}:{connection.peer()}"

    def stored_name(self, key: str) -> str:
        """See `IdentifiedStore.stored_name`."""
        return self._name(key).decode()

    def close(self) -> None:
        """Close the idle connections.  A later request opens a new one, and closes it."""
        self._idle.end()

    def _put_again(self, request: Callable[[int], bytes], ends: float) -> Entry | None:
        """Put once more what was put while the server's clock may have been behind.

        Its main thread sets the clock, and after a stop its other threads may answer before it does.
        """
        time.sleep(_TICK)
        try:
            return self._ask(request, ends).entry
        except StoreError as problem:  # whatever it says of this put, the first one was applied
            raise StoreUnavailable(f"{problem}; an earlier request has written the entry") from problem

    def _ask(self, request: Callable[[int], bytes], ends: float | None = None) -> Reply:
        """Send what `request` makes of a connection's origin, and read the reply, by the moment `ends`.

        None: within the timeout, from now on.
        """
        connection = self._idle_one()
        if connection is None:
            ends = time.monotonic() + self._timeout if ends is None else ends
            connection = self._open(ends)
        answered = False
        try:
            reply = connection.ask(request(connection.origin), self._timeout, ends)
            answered = True
        except Exception as problem:
            self._idle.close()  # what has ended one connection has probably ended them all
            raise StoreUnavailable(f"{self.traits.location} did not answer ({problem})") from problem
        finally:
            (self._idle.keep if answered else self._idle.give_up)(connection)
        return reply

    def _judge(self, verdict: bytes, entry: Entry | None, version: int) -> Entry | None:
        """Return the entry, or raise `StoreError` if the server has refused what it could have done."""
        # Under another version the command would have changed nothing, and the entry is the answer.
        if b"ERROR" in verdict and version == (entry.version if entry else ABSENT):
            why = verdict.decode(errors="replace")
            raise StoreError(f"{self.traits.location} refused the request and changed nothing: {why}")
        return entry

    def _idle_one(self) -> Connection | None:
        """Take an idle connection."""
        while (connection := self._idle.take()) is not None:
            if connection.start >= self._start:
                return connection
            connection.close()
        return None

    def _open(self, ends: float) -> Connection:
        """Open a connection by the moment `ends`."""
        location, left = self.traits.location, seconds_left(ends)
        try:
            client = self._new_client(timeout=left, connect_timeout=left)
            connection = opened(client, location, self._start, ends)
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
                full = f"{location} has too many open connections: raise its limit, -c"
                raise StoreUnavailable(full, sent=False) from problem
            closed = isinstance(problem, MemcacheUnexpectedCloseError)
            why = "the connection was closed" if closed else reason(problem)
            other = isinstance(problem, MemcacheUnknownError | MemcacheUnexpectedCloseError | ConnectionResetError)
            hint = ": is it a memcached without TLS, and not another server? check the host and port" if other else ""
            raise StoreUnavailable(f"{location} is unreachable ({why}){hint}", sent=False) from problem
        self._start = connection.start
        return connection


def _location(server: tuple[str, int] | str, prefix: bytes) -> str:
    """Name a server as a URL."""
    where = quote(server) if isinstance(server, str) else str(Endpoint(*server))
    return f"memcached://{where}" + (f"?prefix={quote(prefix, safe=':')}" if prefix else "")
