"""The law of this file: whether a record will end by itself is asked of the server, not of caslock."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.testing.torture.plan import Plan

_FOREVER: Final = -1


@contextlib.contextmanager
def ttl_view(plan: Plan) -> Iterator[Callable[[str], bool]]:
    """Give what tells whether a record under a key would stand for ever; where nobody can ask, it never does."""
    scheme = "" if plan.factory else urlsplit(plan.url).scheme
    if scheme in ("redis", "rediss", "unix"):
        import redis  # noqa: PLC0415 - an extra

        client: Any = redis.Redis.from_url(plan.url, socket_timeout=1.0)
        with client:
            yield lambda key: _forever_in_redis(client, key)
    elif scheme == "memcached" and urlsplit(plan.url).hostname:
        yield lambda key: _forever_in_memcached(plan.url, key)
    else:
        yield lambda _key: False


def _forever_in_redis(client: Any, key: str) -> bool:  # noqa: ANN401 - redis-py's two answers share no type
    from redis import RedisError  # noqa: PLC0415 - an extra

    with contextlib.suppress(RedisError):
        return bool(client.pttl(key) == _FOREVER)
    return False


def _forever_in_memcached(url: str, key: str) -> bool:
    parts = urlsplit(url)
    prefix = (parse_qs(parts.query).get("prefix") or [""])[0]
    name = (prefix + quote(key, safe=":")).encode()
    with (
        contextlib.suppress(OSError),
        socket.create_connection((parts.hostname or "", parts.port or 11211), 1) as server,
    ):
        server.settimeout(1.0)
        server.sendall(b"mg %b t\r\n" % name)
        return server.recv(100).split() == [b"HD", b"t%d" % _FOREVER]
    return False
