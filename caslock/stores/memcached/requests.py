"""What is asked of memcached, and how its replies are read: pure functions.

A request is one packet: a command, a question for the entry under the key (``mg``), and ``mn``, whose answer marks the
end of the reply.  The commands that write are ``add`` and ``cas``, because an ``ms`` that the server refuses may delete
the entry.  The one that removes is ``md`` with a cas id, which needs no memory.

A version is a cas id and an `origin`, which is that of the server's start.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Final, NamedTuple
from urllib.parse import quote

from caslock.store import ABSENT, Entry, check_key, check_put

_CAS_IDS: Final = 1 << 64
_LONGEST_REPLY: Final = 65_536  # bytes
_LONGEST_TTL: Final = 30 * 24 * 3600 - 2  # the server takes an exptime of more than 30 days for a date
_HEAD: Final = re.compile(rb"([^\r\n]*)\r\n(?:EN|VA (\d+) c(\d+))\r\n")


_new: Final = tuple.__new__  # takes half the time of a NamedTuple's own


class Reply(NamedTuple):
    """The answer to a command, and to the question behind it."""

    verdict: bytes
    """What the server says to the command."""
    entry: Entry | None
    """What is under the key after it."""


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


def question(name: bytes) -> bytes:
    """Return a packet that changes nothing; its first line stands in for a command, so that all replies read alike."""
    return b"mg %b\r\nmg %b v c\r\nmn\r\n" % (name, name)


def put(name: bytes, terms: bytes, value: bytes, version: int, origin: int) -> bytes:
    """Return the packet that writes `value` if `version` is under the key, and asks for the entry."""
    if version == ABSENT:
        return b"add %b%b\r\n%b\r\nmg %b v c\r\nmn\r\n" % (name, terms, value, name)
    cas = version - origin
    if not 0 < cas < _CAS_IDS:  # the version of another start, which can't be there any more
        return question(name)
    return b"cas %b%b %d\r\n%b\r\nmg %b v c\r\nmn\r\n" % (name, terms, cas, value, name)


def removal(name: bytes, version: int, origin: int) -> bytes:
    """Return the packet that removes `version` if it is under the key, and asks for the entry."""
    cas = version - origin
    command = b"md %b C%d" % (name, cas) if 0 < cas < _CAS_IDS else b"mn"  # a version of another start is not there
    return b"%b\r\nmg %b v c\r\nmn\r\n" % (command, name)


def parse(reply: bytes, origin: int) -> Reply | None:
    """Read a reply; None: it is not whole yet.  Raises ConnectionError for what is no reply."""
    head = _HEAD.match(reply)
    if head is None:
        if reply.count(b"\r\n") > 1 or len(reply) > _LONGEST_REPLY:
            raise ConnectionError(reply[:100])
        return None
    verdict, size, cas = head.groups()
    begins = head.end()
    if size is None:
        entry, end, rest = None, b"MN\r\n", reply[begins:]
    else:
        ends = begins + int(size)
        entry, end, rest = _new(Entry, (reply[begins:ends], origin + int(cas))), b"\r\nMN\r\n", reply[ends:]
    if rest == end:
        return _new(Reply, (verdict, entry))
    if not end.startswith(rest):
        raise ConnectionError(rest[:100])
    return None
