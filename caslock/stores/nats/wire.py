"""The client protocol of NATS, as far as a store needs it: no I/O, for both APIs.

A connection subscribes to its own inbox, and each request names a new subject there for its answer.  So an answer that
comes late is never taken for that of another request.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE: Final = 4096
"""Bytes of the longest line that is read; that of INFO may be longer."""
_LONGEST: Final = 1 << 26  # bytes of one message
_KNOWN: Final = re.compile(rb"(?i:INFO|MSG|HMSG|PING|PONG|\+OK|-ERR)([ \t\r]|$)")
_BEGIN: Final = b"NATS/1.0"


class NotNatsError(Exception):
    """What answers is no NATS server."""


class Ask(NamedTuple):
    """A request: a message that is answered."""

    subject: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    pause: float = 0.0
    """Seconds to wait before it is sent."""

    @classmethod
    def api(cls, name: str, /, **body: object) -> Ask:
        """Ask JetStream's own interface."""
        return cls(f"$JS.API.{name}", json.dumps(body).encode() if body else b"")


class Message(NamedTuple):
    """What the server has sent: a message, or with another verb than MSG something about the connection."""

    verb: str
    body: bytes = b""
    """Of INFO its JSON, of -ERR the error."""
    subject: str = ""
    subscription: str = ""
    headers: Mapping[str, str] = {}
    status: str = ""
    """Of a message that the server has made itself, such as 503: nobody listens to that subject."""

    def json(self) -> dict[str, Any]:
        """Read a body that has to be a JSON object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NotNatsError("what it says is no JSON object")
        return found


class Wire:
    """What one connection writes and reads."""

    def __init__(self) -> None:
        """Begin a new connection."""
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._asked = 0
        self._subscribed = 1
        self._received = bytearray()

    def greeting(self, options: Mapping[str, object]) -> bytes:
        """Say who connects; the server answers with PONG, or with -ERR."""
        about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "python"}
        return b"CONNECT %b\r\nSUB %b.* 1\r\nPING\r\n" % (
            json.dumps(about | {"name": "caslock"} | dict(options)).encode(),
            self._inbox.encode(),
        )

    def request(self, ask: Ask) -> bytes:
        """Ask; `is_answer` tells the answer from other messages."""
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}"
        if not ask.headers:
            return f"PUB {ask.subject} {reply} {len(ask.body)}\r\n".encode() + ask.body + b"\r\n"
        head = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in ask.headers.items())
        head = _BEGIN + b"\r\n" + head + b"\r\n"
        line = f"HPUB {ask.subject} {reply} {len(head)} {len(head) + len(ask.body)}\r\n"
        return line.encode() + head + ask.body + b"\r\n"

    def is_answer(self, message: Message) -> bool:
        """Tell whether it is the answer to the last request."""
        return message.verb == "MSG" and message.subject == f"{self._inbox}.{self._asked}"

    def subscribe(self, subject: str) -> tuple[str, bytes]:
        """Return the name of a new subscription, and what makes it."""
        self._subscribed += 1
        name = str(self._subscribed)
        return name, f"SUB {subject} {name}\r\n".encode()

    def unsubscribe(self, name: str) -> bytes:
        """Return what ends a subscription."""
        return f"UNSUB {name}\r\n".encode()

    def feed(self, piece: bytes) -> None:
        """Take what has come; raises ConnectionResetError for the end of the connection."""
        if not piece:
            raise ConnectionResetError("the server closed the connection")
        self._received += piece

    def next(self) -> Message | None:
        """Return the next that is whole, or None; raises NotNatsError."""
        end = self._received.find(b"\n")
        begin = bytes(self._received[:8])
        if len(begin) > 4 and not _KNOWN.match(begin):  # noqa: PLR2004 - the length of a verb
            raise NotNatsError("it speaks another protocol")
        if end < 0:
            if len(self._received) > (_LONGEST if begin[:4].upper() == b"INFO" else _LINE):
                raise NotNatsError("its line is too long")
            return None
        verb, _, rest = bytes(self._received[:end]).strip().partition(b" ")
        if not _KNOWN.match(verb):
            raise NotNatsError("it speaks another protocol")
        name = verb.decode().upper()
        if name not in ("MSG", "HMSG"):
            del self._received[: end + 1]
            return Message(name, rest.strip().strip(b"'"))
        return self._message(name, rest.decode(errors="replace").split(), end + 1)

    def _message(self, name: str, words: list[str], start: int) -> Message | None:
        """Read ``subject subscription [reply] [length of the headers] length``, and what follows."""
        lengths = 2 if name == "HMSG" else 1
        try:
            head, size = (int(words[-2]), int(words[-1])) if lengths > 1 else (0, int(words[-1]))
        except (ValueError, IndexError):
            raise NotNatsError("a message of it has no length") from None
        if not 0 <= head <= size <= _LONGEST or len(words) - lengths < 2:  # noqa: PLR2004 - subject and subscription
            raise NotNatsError("a message of it has no possible length")
        if len(self._received) < start + size + 2:
            return None
        block = bytes(self._received[start : start + head])
        body = bytes(self._received[start + head : start + size])
        del self._received[: start + size + 2]
        status, headers = headers_of(block)
        return Message("MSG", body, words[0], words[1], headers, status)


def headers_of(block: bytes) -> tuple[str, dict[str, str]]:
    """Return the status of a block of headers, "" if it has none, and the headers."""
    first, *lines = block.decode(errors="replace").split("\r\n")
    pairs = [line.partition(":") for line in lines if line]
    return first[len(_BEGIN) :].strip()[:3], {name: value.strip() for name, _, value in pairs}
