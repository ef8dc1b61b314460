"""The law of this file: bytes go to memcached and come back, and here nothing is a socket."""

from __future__ import annotations

import hashlib
import math
from typing import Final
from urllib.parse import quote

from caslock.store import MAX_VALUE, Entry

PIECE: Final = 65_536
"""Bytes; a reply about what caslock writes comes in one piece."""

_LONGEST_KEY: Final = 1024
_LONGEST_TTL: Final = 30 * 24 * 3600 - 2  # the server takes an exptime of more than 30 days for a date


def read(reply: bytes, origin: int) -> tuple[bytes, Entry | None] | None:
    """Read a reply: what the server says to the command, and the entry that stands.  None: it is not whole yet."""
    lines = reply.split(b"\r\n", 2)
    if len(lines) < 3:  # noqa: PLR2004 - verdict, answer, and the rest
        if len(reply) > PIECE:
            raise ConnectionError(reply[:100])
        return None
    verdict, answer, rest = lines
    entry, end = None, b"MN\r\n"
    if answer.startswith(b"VA "):
        _, size, cas = answer.split()
        length = int(size)
        entry, rest, end = Entry(rest[:length], origin + int(cas.removeprefix(b"c"))), rest[length:], b"\r\nMN\r\n"
    elif answer != b"EN":
        raise ConnectionError(answer[:100])
    if rest == end:
        return verdict, entry
    if not end.startswith(rest):
        raise ConnectionError(rest[:100])
    return None


def verdict_of(reply: bytes) -> bytes | None:
    """Read a reply to a command that asks nothing.  None: it is not whole yet."""
    verdict, *rest = reply.split(b"\r\n", 3)
    if rest == [b"MN", b""]:
        return verdict
    if len(rest) > 1 or len(reply) > PIECE:
        raise ConnectionError(reply[:100])
    return None


def name_of(key: str, prefix: bytes) -> bytes:
    """Encode a key so that no two share a name, none is too long, and none can hold a command."""
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise ValueError(f"a key has 1 to {_LONGEST_KEY} characters, not {len(key)}")
    name = quote(key, safe=":", errors="surrogatepass").encode()
    if len(name) > (room := 250 - len(prefix)):
        digest = b"%%-%b" % hashlib.sha256(name).hexdigest().encode()  # quote never makes "%-": no plain key does
        name = name[: room - len(digest)] + digest
    return prefix + name


def terms_of(size: int, ttl: float) -> tuple[bytes, bytes]:
    """Give what follows the name in a put of so many bytes, and how the answer to one that succeeds begins."""
    if size > MAX_VALUE:
        raise ValueError(f"a value has up to {MAX_VALUE} bytes, not {size}")
    if not 0 < ttl <= _LONGEST_TTL:
        raise ValueError(f"memcached keeps an entry for more than 0 and up to {_LONGEST_TTL} seconds, not {ttl}")
    # The server's clock lags by up to a second and may leap by two: exptime T lives between T-2 and T seconds.
    return b" 0 %d %d" % (math.ceil(ttl) + 2, size), b"STORED\r\nVA %d c" % size
