"""A connection to memcached, and what is asked of a server before locks are kept in it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from caslock.errors import StoreError, StoreUnavailable
from caslock.process.fork import generation
from caslock.process.guards import on_failure
from caslock.stores.memcached.requests import Reply, parse
from caslock.stores.shared.connections import is_readable, seconds_left

if TYPE_CHECKING:
    import socket

    from pymemcache.client.base import Client

_PIECE: Final = 65_536  # bytes to receive at once: a reply about what caslock writes comes in one piece
_PAUSE: Final = 0.05  # seconds between two looks at a server that has only just started
_OF_AGE: Final = 4  # `uptime` starts at 2 and counts ticks of whole seconds: at 4, more than one second has gone by


class Connection:
    """A connection to one start of the server, for one request at a time."""

    def __init__(self, client: Client, start: int, process: int) -> None:
        """Take the socket of a client."""
        self._client = client  # it closes the socket
        self._socket: socket.socket = client.sock
        self.origin: int = start << 30
        """The versions of the server's start begin above it."""
        self.start: int = start
        self.process: int = process
        self.generation: int = generation()
        self.used: float = time.monotonic()
        self._timeout = 0.0  # of the socket; not known yet

    def ask(self, packet: bytes, seconds: float, ends: float | None) -> Reply:
        """Send a packet, and receive until the reply is whole.

        That ends by the moment `ends`; None: within `seconds` of when the connection was taken, and the timeout of the
        socket is set only if it was another one, which saves a system call.
        """
        if ends is not None or seconds != self._timeout:
            self._within(seconds if ends is None else seconds_left(ends))
        self._socket.sendall(packet)
        reply = b""
        while piece := self._socket.recv(_PIECE):
            reply += piece
            if (found := parse(reply, self.origin)) is not None:
                return found
            self._within(seconds_left(self.used + seconds if ends is None else ends))
        raise ConnectionResetError("the server closed the connection")

    def _within(self, seconds: float) -> None:
        """Set the timeout of the socket."""
        self._socket.settimeout(seconds)
        self._timeout = seconds

    def peer(self) -> str:
        """Return the address of the server."""
        address = self._socket.getpeername()
        if not isinstance(address, tuple):
            return str(address)
        host = address[0].removeprefix("::ffff:")
        return f"{'loopback' if host == '::1' or host.startswith('127.') else host}:{address[1]}"

    def is_quiet(self) -> bool:
        """Whether the server has sent nothing, such as the end of the connection, while it was idle."""
        return not is_readable(self._socket.fileno())

    def close(self) -> None:
        """Close the socket, whatever state it is in."""
        self._client.close()


def opened(client: Client, location: str, not_before: int, ends: float) -> Connection:
    """Connect until `ends`, and refuse a server with which locks are not safe, or that started earlier."""
    with on_failure(client.close):
        client._connect()  # noqa: SLF001 - else `stats` would connect, and begin the timeout anew after that
        facts = _facts(client, ends) | _facts(client, ends, "settings")
        while facts[b"uptime"] < _OF_AGE and seconds_left(ends) > 2 * _PAUSE:
            time.sleep(_PAUSE)
            facts |= _facts(client, ends)
        return Connection(client, _start(facts, location, not_before), facts[b"pid"])


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
