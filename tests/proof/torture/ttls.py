"""Asks Redis, Tair and memcached themselves whether a record would last for ever."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import redis

FOREVER: Final = -1


def without_ttl(url: str, keys: Iterable[str]) -> Iterator[str]:
    """Give those of the keys whose record has no ttl; none, where the server can't be asked or does not answer."""
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "tair"):
        with contextlib.suppress(redis.RedisError):
            yield from _in_redis(url, keys)
    elif scheme == "memcached":
        with contextlib.suppress(OSError):
            yield from _in_memcached(url, keys)


def _in_redis(url: str, keys: Iterable[str]) -> Iterator[str]:
    client: Any = redis.Redis.from_url(url.replace("tair", "redis", 1), socket_timeout=1.0)
    with client:
        yield from (key for key in keys if client.pttl(key) == FOREVER)


def _in_memcached(url: str, keys: Iterable[str]) -> Iterator[str]:
    parts = urlsplit(url)
    prefix = (parse_qs(parts.query).get("prefix") or [""])[0]
    with socket.create_connection((parts.hostname or "", parts.port or 11211), 1) as server:
        for key in keys:
            server.sendall(b"mg %b t\r\n" % (prefix + quote(key, safe=":")).encode())
            if server.recv(100).split() == [b"HD", b"t%d" % FOREVER]:
                yield key
