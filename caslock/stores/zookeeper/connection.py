"""A connection to one server of an ensemble, with a session of its own, for one request at a time.

kazoo's client keeps a thread, sends a request again after it has lost its connection, and lets one that was given up
take effect later.  So only its formats of packets are used.  The session guards nothing: no znode of a lock belongs to
it.  It may expire while the connection is idle; the next request opens another.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.exceptions import EXCEPTIONS, AuthFailedError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import Auth, CloseInstance, Connect, ReplyHeader, Transaction, Watch

from caslock.process.guards import on_failure
from caslock.stores.shared.connections import run
from caslock.stores.shared.links import Pool, SocketLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.stores.shared.links import Endpoint
    from caslock.stores.zookeeper.failures import Failures
    from caslock.stores.zookeeper.target import Target

SESSION: Final = 30_000  # milliseconds
"""How long a server is asked to keep the session of an idle connection: longer than between two usual renewals."""

_LONGEST: Final = 1 << 26  # bytes of a reply; what another protocol says reads as a longer one
_WATCH, _AUTH = -1, -4  # the xids of what is no answer to a request


class Reply(NamedTuple):
    """The answer to one request."""

    error: Exception | None
    """kazoo's, for what the server has refused."""
    answer: Any = None
    """As kazoo reads it."""


class Connection:
    """One connection."""

    def __init__(self, link: SocketLink) -> None:
        """Take a link on which nothing was sent yet."""
        self.link: SocketLink = link
        self.generation: int = link.generation
        self.used: float = link.used
        self.session: int = 0
        """For how many milliseconds the server keeps it while it is idle."""
        self._received = bytearray()
        self._xid = 0

    def begin(self, credentials: Sequence[tuple[str, str]], ends: float) -> None:
        """Begin the session."""
        hello = Connect(0, 0, SESSION, 0, bytes(16), False)  # noqa: FBT003 - not one that only reads
        self._send(hello.serialize(), ends)
        session, _ = Connect.deserialize(self._frame(ends), 0)
        if session.time_out <= 0:
            raise ConnectionResetError("the server has refused to open a session")
        self.session = session.time_out
        for scheme, secret in credentials:
            self._send(struct.pack("!ii", _AUTH, Auth.type) + Auth(0, scheme, secret).serialize(), ends)
            header, _ = ReplyHeader.deserialize(self._frame(ends), 0)
            if header.xid != _AUTH or header.err:
                raise AuthFailedError

    def ask(self, requests: Sequence[Any], ends: float) -> list[Reply]:
        """Send requests as one packet, and read their answers; the server keeps to their order."""
        packet, first = b"", self._xid + 1
        for request in requests:
            self._xid += 1
            packet += _packet(struct.pack("!ii", self._xid, request.type) + request.serialize())
        run(self.link.send(packet, ends))
        return [self._reply(xid, request, ends) for xid, request in enumerate(requests, first)]

    def changed(self, path: str, ends: float) -> bool:
        """Wait until a watch reports a change of `path`; False: it has not by the moment `ends`."""
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
        return not self._received and self.link.is_quiet()

    def close(self) -> None:
        """Close it for good, and tell the server that the session is over, if that can be done at once."""
        self._xid += 1
        with suppress(OSError):
            self._send(struct.pack("!ii", self._xid, CloseInstance.type), monotonic())
        self.link.close()

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
        self._receive(4, ends)
        (length,) = struct.unpack_from("!i", self._received)
        if not 0 <= length <= _LONGEST:
            raise ConnectionResetError("what answers is not ZooKeeper")
        self._receive(4 + length, ends)
        frame = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        return frame

    def _receive(self, size: int, ends: float) -> None:
        while len(self._received) < size:
            piece = run(self.link.receive(ends))
            if not piece:
                raise ConnectionResetError("the server has closed the connection")
            self._received += piece

    def _send(self, frame: bytes, ends: float) -> None:
        run(self.link.send(_packet(frame), ends))


class Servers(Pool[Connection]):
    """The connections of one store."""

    def __init__(self, target: Target, failures: Failures) -> None:
        """Open nothing yet; each process begins with any of the servers, so that all have as many clients."""
        super().__init__(random.sample(target.hosts, len(target.hosts)), failures)
        self._target = target

    def take(self, ends: float) -> Connection:
        """Return an idle connection, or open one by the moment `ends`."""
        return self.idle.take() or run(self.connect(self._open, ends))

    async def _open(self, endpoint: Endpoint, ends: float) -> Connection:
        connection = Connection(await SocketLink.open(endpoint, self._target.tls, ends))
        with on_failure(connection.link.close):
            connection.begin(self._target.credentials, ends)
        return connection


def _failure(answers: Sequence[object]) -> Exception | None:
    """Return what a transaction has failed for: all its other operations have errors that name no reason."""
    errors = [each for each in answers if isinstance(each, Exception)]
    reasons = [each for each in errors if not isinstance(each, RolledBackError | RuntimeInconsistency)]
    return next(iter(reasons or errors), None)


def _packet(frame: bytes) -> bytes:
    return struct.pack("!i", len(frame)) + frame
