"""Reads the URL of a Redis.  A malformed or ambiguous one, which redis-py would accept, is a ValueError.

An error quotes no more of a URL than the name of an option, and not even that if it may be part of a password.
"""

from __future__ import annotations

import difflib
import inspect
import re
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.connection import URL_QUERY_ARGUMENT_PARSERS

from caslock.options import check_address, check_timeout, options_of

_OURS: Final = ("prefix", "replicas")
_NAME: Final = re.compile("[A-Za-z_]{2,40}")
_KINDS: Final[tuple[Any, ...]] = (
    redis.SSLConnection,
    redis.UnixDomainSocketConnection,
    redis.asyncio.SSLConnection,
    redis.asyncio.UnixDomainSocketConnection,
)
_TIMEOUTS: Final = ("socket_timeout", "socket_connect_timeout")
_SEVERAL: Final = "for a Cluster or Sentinel pass a client: RedisCluster or Sentinel.master_for"


class RedisURL(NamedTuple):
    """A URL, as redis-py reads it, and the options in it that are caslock's own."""

    url: str
    prefix: str = ""
    replicas: int = 0


def unreadable(url: str) -> ValueError:
    """Say that a URL can't be read, without the cause, which may quote part of a password."""
    password = "percent-encode reserved characters in the password, and " if "@" in url else ""
    return ValueError(f"invalid Redis URL: {password}check the scheme, host and options")


def read_url(url: str) -> RedisURL:
    """Check a URL, and remove our own options from it."""
    scheme, separator, rest = url.partition("://")
    url = scheme.lower() + separator + rest  # redis-py knows it in small letters only
    try:
        parts = urlsplit(url)
    except ValueError:
        raise unreadable(url) from None
    if "@" in parts.path + parts.query + parts.fragment:  # of a password with a reserved character, as a rule
        raise unreadable(url)
    check_address(parts, "Redis", _SEVERAL)
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", unquote(parts.path)):
        raise ValueError("the path of a Redis URL is the number of a database, as in redis://localhost:6379/0")
    given = options_of(parts.query)
    for name, value in given.items():
        _check(name, value, url)
    if given.keys() & set(_OURS):
        url = url.partition("?")[0] + "?" + urlencode([each for each in given.items() if each[0] not in _OURS])
    return RedisURL(url, given.get("prefix", ""), int(given.get("replicas", 0)))


def _check(name: str, value: str, url: str) -> None:
    if name not in _known():
        if not _NAME.fullmatch(name):
            raise unreadable(url)
        close = difflib.get_close_matches(name.lower(), _known(), 1)
        known = "see redis-py's Redis.from_url, and caslock's prefix and replicas"
        raise ValueError(f"unknown option {name!r} in the Redis URL; {f'did you mean {close[0]}?' if close else known}")
    parser: Any = int if name == "replicas" else URL_QUERY_ARGUMENT_PARSERS.get(name)
    try:
        if parser is not None:
            parser(value)
    except (ValueError, TypeError):
        raise ValueError(f"invalid value for option {name} of the Redis URL") from None
    if name in _TIMEOUTS:
        check_timeout(name, float(value))


@cache
def _known() -> frozenset[str]:
    """Give the names of all options: ours, and those settings of redis-py's connections that are text or numbers."""
    taken = {name for kind in _KINDS for each in kind.__mro__ for name in inspect.signature(each.__init__).parameters}
    objects = {"self", "args", "kwargs", "retry", "path", "host", "port", "parser_class", "credential_provider"}
    ours = {"max_connections", *_OURS}
    return frozenset(
        name for name in taken - objects | ours if not name.startswith(("orig_", "redis_connect", "maint"))
    )
