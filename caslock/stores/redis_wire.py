"""The law of this file: bytes go to a Redis server and come back, in RESP 2 or 3, and here nothing is a socket.

What redis-py does for a reply costs more than the server does.  Ours are few: integers, strings, nil, lists of them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from redis import exceptions

Reply: TypeAlias = "int | bytes | Exception | list[Reply] | None"
"""What a server has answered; an error is a reply, too."""

PUSH: Final = ord(">")

_INTEGER, _STRING, _STATUS, _ERROR, _ARRAY, _NIL, _MAP = b":$+-*_%"

_ERRORS: Final[dict[str, type[exceptions.RedisError]]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.MasterDownError,
    "MOVED": exceptions.MovedError,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "NOSCRIPT": exceptions.NoScriptError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError,
    "WRONGPASS": exceptions.AuthenticationError,
}


def packed(*parts: bytes) -> bytes:
    """Make one command of its arguments."""
    return b"*%d\r\n%b" % (len(parts), arguments(*parts))


def arguments(*parts: bytes) -> bytes:
    """Make a part of a command."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def parse(data: bytes, at: int) -> tuple[Reply, int]:  # noqa: PLR0911 - one for each kind
    """Read the reply that begins there, and where the next one begins: 0 when it is not yet complete."""
    stop = data.find(b"\r\n", at)
    if stop < 0:
        return None, 0
    kind, line, end = data[at], data[at + 1 : stop], stop + 2
    if kind == _INTEGER:
        return int(line), end
    if kind == _STRING:
        size = int(line)
        if size < 0:
            return None, end
        stop = end + size
        return (data[end:stop], stop + 2) if len(data) >= stop + 2 else (None, 0)
    if kind == _NIL:
        return None, end
    if kind == _ERROR:
        return _error(line.decode(errors="replace")), end
    if kind == _STATUS:
        return line, end
    if kind in (_ARRAY, PUSH):
        return _several(data, end, int(line))
    if kind == _MAP:  # a list of its keys and values
        return _several(data, end, 2 * int(line))
    raise exceptions.InvalidResponse(f"a reply of an unknown kind: {bytes([kind])!r}")


def read(data: bytes, count: int, found: list[Reply]) -> bytes:
    """Append what is complete to `found`, up to `count` of them in all; give the rest."""
    at = 0
    while len(found) < count and at < len(data):
        reply, end = parse(data, at)
        if not end:
            break
        if data[at] != PUSH:  # which nobody has asked for
            found.append(reply)
        at = end
    return data[at:]


def _several(data: bytes, at: int, count: int) -> tuple[Reply, int]:
    replies: list[Reply] = []
    for _ in range(count):
        reply, at = parse(data, at)
        if not at:
            return None, 0
        replies.append(reply)
    return None if count < 0 else replies, at


def _error(text: str) -> Exception:
    code, _, rest = text.partition(" ")
    if code in _ERRORS:
        return _ERRORS[code](rest)
    return exceptions.ResponseError(rest if code == "ERR" else text)
