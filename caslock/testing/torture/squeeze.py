"""The law of this file: a server of our own runs out of memory for a while, and has it back whatever happens."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.testing.torture.plan import Plan

MOST: Final = 200_000
"""Items that fill a memcached server; it should be a small one, started with ``-M``, so that it evicts nothing."""

_SIZES: Final = range(150, 700, 50)


@contextlib.contextmanager
def squeezed(plan: Plan) -> Iterator[None]:
    """Take the memory of the plan's server, until the end of the block."""
    scheme = urlsplit(plan.url).scheme
    if scheme == "redis":
        with _redis(plan.url):
            yield
    elif scheme == "memcached":
        with _memcached(plan):
            yield
    else:
        yield


@contextlib.contextmanager
def _redis(url: str) -> Iterator[None]:
    import redis  # noqa: PLC0415 - an extra

    client: Any = redis.Redis.from_url(url, socket_timeout=2.0)
    with contextlib.suppress(redis.RedisError):
        client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        with contextlib.suppress(redis.RedisError):
            client.config_set("maxmemory", 0)
        client.close()


@contextlib.contextmanager
def _memcached(plan: Plan) -> Iterator[None]:
    parts = urlsplit(plan.url)
    names: list[bytes] = []
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", parts.port or 11211), 2) as link:
        for size in _SIZES:
            for number in range(MOST // len(_SIZES)):
                name = b"%b:junk:%d:%d" % (plan.scratch.encode(), size, number)
                link.sendall(b"set %b 0 60 %d\r\n%b\r\n" % (name, size, b"x" * size))
                if link.recv(200) != b"STORED\r\n":
                    break
                names.append(name)
    try:
        yield
    finally:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((parts.hostname or "", parts.port or 11211), 2) as link,
        ):
            for name in names:
                link.sendall(b"delete %b\r\n" % name)
                link.recv(200)
