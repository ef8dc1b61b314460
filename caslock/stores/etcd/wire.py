"""Requests to etcd's JSON gateway as packets, and its replies: no I/O, for both APIs.

h11 writes and reads HTTP/1.1.  Requests that belong together leave in one packet; the server answers them in order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import h11

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

LARGEST: Final = 1 << 26
"""Bytes of a reply; a server that sends more is no etcd."""

_OK: Final = 200
_LATE_ERROR: Final = 500


class Call(NamedTuple):
    """One request; without a body, it is a GET."""

    path: str
    body: Mapping[str, Any] | None = None


class Reply(NamedTuple):
    """One answer."""

    status: int
    body: dict[str, Any]

    @property
    def refused(self) -> bool:
        """Whether it is an error."""
        return self.status != _OK

    @property
    def message(self) -> str:
        """What an error says."""
        said = self.body.get("message") or self.body.get("error") or f"HTTP status {self.status}"
        return str(said).removeprefix("etcdserver: ")


class Replies(NamedTuple):
    """All answers to a packet."""

    replies: list[Reply]
    reusable: bool
    """Whether the connection can carry another packet."""


def exchange(calls: Sequence[Call], headers: Mapping[str, str]) -> Generator[bytes, bytes, Replies]:
    """Yield the packet of `calls` first, and then b"" for as long as another piece of the answers is to be sent in.

    Raises h11.RemoteProtocolError for what is no HTTP, ValueError for what is no JSON object, and ConnectionResetError
    if the answer ends too early.
    """
    sides = [_side(call, headers) for call in calls]
    rest = yield b"".join(packet for _, packet in sides)
    sides[0][0].receive_data(rest)
    replies = list[Reply]()
    for http, _ in sides:
        if replies and rest:  # an empty piece would be the end of the connection
            http.receive_data(rest)
        status, body = 0, bytearray()
        while not isinstance(event := _next(http), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data((yield b""))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > LARGEST:
                    raise ValueError("the answer is too long")
        replies.append(_reply(status, bytes(body)))
        rest = http.trailing_data[0]
        if http.their_state is not h11.DONE and http is not sides[-1][0]:
            raise ConnectionResetError("the server closed the connection")
    return Replies(replies, http.their_state is h11.DONE and not rest)


class Stream:
    """The answers to a call that is answered again and again."""

    def __init__(self, call: Call, headers: Mapping[str, str]) -> None:
        """Have the packet of the call in `packet`."""
        self.packet: bytes
        self._http, self.packet = _side(call, headers)
        self._status, self._rest = 0, b""

    def feed(self, piece: bytes) -> list[Reply]:
        """Return the answers that are whole with this piece; raises what `exchange` does."""
        self._http.receive_data(piece)
        while (event := _next(self._http)) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._status = event.status_code
            elif isinstance(event, h11.Data):
                self._rest += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._rest += b"\n"
                break
        *whole, self._rest = self._rest.split(b"\n")
        if len(self._rest) > LARGEST:
            raise ValueError("the answer is too long")
        return [_reply(self._status, line) for line in whole if line]


def _side(call: Call, headers: Mapping[str, str]) -> tuple[h11.Connection, bytes]:
    """Return a parser for the answer to a call, and the call's bytes."""
    http = h11.Connection(h11.CLIENT)
    body = b"" if call.body is None else json.dumps(call.body).encode()
    lines = {**headers, "Content-Length": str(len(body))}
    method = "GET" if call.body is None else "POST"
    parts = [
        http.send(h11.Request(method=method, target=call.path, headers=list(lines.items()))),
        http.send(h11.Data(data=body)),
        http.send(h11.EndOfMessage()),
    ]
    return http, b"".join(part for part in parts if part)


def _next(http: h11.Connection) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
    try:
        event = http.next_event()
    except h11.RemoteProtocolError as error:
        if http.trailing_data[1]:  # the end came within an answer
            raise ConnectionResetError("the server closed the connection") from error
        raise
    if isinstance(event, h11.ConnectionClosed):
        raise ConnectionResetError("the server closed the connection")
    return event


def _reply(status: int, body: bytes) -> Reply:
    try:
        found = json.loads(body)
        if not isinstance(found, dict):
            raise ValueError("the answer is no JSON object")  # noqa: TRY004, TRY301 - as what is no JSON at all
    except ValueError:
        if status == _OK:
            raise
        # From something before etcd, or from a server that knows no such path.
        return Reply(status, {"message": " ".join(body[:200].decode(errors="replace").split())})
    error = found.get("error")
    if isinstance(error, dict):  # in the midst of a stream
        return Reply(_LATE_ERROR, {"message": error.get("message"), "code": error.get("grpc_code")})
    return Reply(status, found)
