"""A connection to one server of an ensemble, with a session of its own, for one request at a time.

kazoo's client keeps a thread, sends a request again after it has lost its connection, and lets one that was given up
take effect later.  So only its formats of packets are used.  The session guards nothing: no znode of a lock belongs to
it.  It may expire while the connection is idle; the next request opens another.
"""

from __future__ import annotations

import random
import socket
import struct
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import Auth, CloseInstance, Connect, ReplyHeader, Transaction, Watch

from caslock.connections import is_readable, seconds_left
from caslock.fork import generation
from caslock.guards import on_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.stores.zookeeper.target import Target

SESSION: Final = 30_000  # milliseconds
"""How long a server is asked to keep the session of an idle connection: longer than between two usual renewals."""

_LONGEST: Final = 1 << 26  # bytes of a reply; what another protocol says reads as a longer one
_CHUNK: Final = 65_536
_WATCH, _AUTH = -1, -4  # the xids of what is no answer to a request


class Reply(NamedTuple):
    """The answer to one request."""

    error: Exception | None
    """kazoo's, for what the server has refused."""
    answer: Any = None
    """As kazoo reads it."""


class _Address(NamedTuple):
    host: str
    family: int
    address: Any  # of what form depends on the family


class Connection:
    """One connection."""

    def __init__(self, target: Target, ends: float) -> None:
        """Connect to any of the servers that answers, by the moment `ends`."""
        self.generation: int = generation()
        self.used: float = monotonic()
        self.session: int = 0
        """For how many milliseconds the server keeps it while it is idle."""
        self._received = bytearray()
        self._xid = 0
        addresses, failed = _addresses(target.hosts)
        for number, address in enumerate(addresses):
            try:
                share = seconds_left(ends) / (len(addresses) - number)
                self._open(address, target, monotonic() + share)
            except AuthFailedError:
                raise
            except Exception as error:  # noqa: BLE001 - the last one is raised
                failed = error
            else:
                return
        raise failed

    def ask(self, requests: Sequence[Any], ends: float) -> list[Reply]:
        """Send requests as one packet, and read their answers; the server keeps to their order."""
        packet = bytearray()
        first = self._xid + 1
        for request in requests:
            self._xid += 1
            packet += _frame(struct.pack("!ii", self._xid, request.type) + request.serialize())
        self._send(packet, ends)
        return [self._reply(xid, request, ends) for xid, request in enumerate(requests, first)]

    def changed(self, path: str, ends: float) -> bool:
        """Wait until a watch of `path` has told of a change; False: it has not by the moment `ends`."""
        while True:
            try:
                frame = self._frame(ends)
            except TimeoutError:
                return False
            header, offset = ReplyHeader.deserialize(frame, 0)
            if header.xid == _WATCH and Watch.deserialize(frame, offset)[0].path == path:
                return True

    def is_quiet(self) -> bool:
        """Tell whether it is open, and nothing has come in that was not asked for."""
        return not self._received and not is_readable(self._socket.fileno())

    def close(self) -> None:
        """Close it for good, and tell the server that the session is over, if that can be done at once."""
        with suppress(OSError, ValueError):
            self._socket.setblocking(False)  # noqa: FBT003 - its only argument
            self._xid += 1
            self._socket.send(_frame(struct.pack("!ii", self._xid, CloseInstance.type)))
        self.drop()

    def drop(self) -> None:
        """Close it for good, whatever state it is in."""
        self._socket.close()

    def _open(self, address: _Address, target: Target, ends: float) -> None:
        self._socket = socket.socket(address.family, socket.SOCK_STREAM)
        with on_failure(self.drop):
            self._socket.settimeout(seconds_left(ends))
            self._socket.connect(address.address)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls:
                self._socket = target.tls.wrap_socket(self._socket, server_hostname=address.host)
            hello = Connect(0, 0, SESSION, 0, bytes(16), False)  # noqa: FBT003 - not one that only reads
            self._send(_frame(hello.serialize()), ends)
            session, _ = Connect.deserialize(self._frame(ends), 0)
            if session.time_out <= 0:
                raise ConnectionResetError("the server has refused to open a session")
            self.session = session.time_out
            for scheme, secret in target.credentials:
                self._send(_frame(struct.pack("!ii", _AUTH, Auth.type) + Auth(0, scheme, secret).serialize()), ends)
                header, _ = ReplyHeader.deserialize(self._frame(ends), 0)
                if header.xid != _AUTH or header.err:
                    raise AuthFailedError

    def _reply(self, xid: int, request: Any, ends: float) -> Reply:  # noqa: ANN401 - kazoo comes without types
        while True:
            frame = self._frame(ends)
            header, offset = ReplyHeader.deserialize(frame, 0)
            if header.xid != _WATCH:  # of a wait that is over
                break
        if header.xid != xid:
            raise ConnectionResetError(f"the answer to another request has come ({header.xid}, not {xid})")
        if header.err:
            return Reply(EXCEPTIONS[header.err]())
        answer = request.deserialize(frame, offset)
        return Reply(_failure(answer) if isinstance(request, Transaction) else None, answer)

    def _frame(self, ends: float) -> bytes:
        size = 4
        while len(self._received) < size or (size == 4 and (size := 4 + self._length()) > len(self._received)):  # noqa: PLR2004 - bytes
            self._socket.settimeout(seconds_left(ends))
            piece = self._socket.recv(_CHUNK)
            if not piece:
                raise ConnectionResetError("the server has closed the connection")
            self._received += piece
        frame = bytes(self._received[4:size])
        del self._received[:size]
        return frame

    def _length(self) -> int:
        (length,) = struct.unpack_from("!i", self._received)
        if not 0 <= length <= _LONGEST:
            raise ConnectionResetError("what answers is not ZooKeeper")
        return int(length)

    def _send(self, packet: bytes | bytearray, ends: float) -> None:
        self._socket.settimeout(seconds_left(ends))
        self._socket.sendall(packet)


def _addresses(hosts: Sequence[tuple[str, int]]) -> tuple[list[_Address], Exception]:
    """Look up all hosts, in any order; give the addresses, and what to say if there is none."""
    addresses, failed = list[_Address](), OSError("no host")
    for host, port in random.sample(hosts, len(hosts)):
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failed = error
        else:
            addresses += [_Address(host, family, address) for family, _, _, _, address in found]
    return addresses, failed


def _failure(answers: Sequence[object]) -> Exception | None:
    """Return what a transaction has failed for: all its other operations have errors that name no reason."""
    errors = [each for each in answers if isinstance(each, Exception)]
    reasons = [each for each in errors if not isinstance(each, RolledBackError | RuntimeInconsistency)]
    return next(iter(reasons or errors), None)


def _frame(content: bytes | bytearray) -> bytes:
    return struct.pack("!i", len(content)) + content
