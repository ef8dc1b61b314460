"""Reads the URL of a Redis.  A malformed or ambiguous one, which redis-py would accept, is a ValueError.

An error quotes no more of a URL than the name of an option, and not even that if it may be part of a password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

from redis import exceptions

from caslock.options import check_address, either, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_OBJECTS: Final = {"command_packer", "credential_provider", "event_dispatcher", "redis_connect_func", "retry"}
"""Settings of redis-py that it would take from a URL, although text can't be one."""

_TIMEOUTS: Final = {"timeout": "socket_timeout", "connect_timeout": "socket_connect_timeout"}
"""Options that URLs of other stores have, and those of redis-py that mean the same."""

_SEVERAL: Final = "for a Cluster or Sentinel pass a client: RedisCluster or Sentinel.master_for"


class RedisURL(NamedTuple):
    """A URL, as redis-py reads it, and the options in it that are caslock's own."""

    url: str
    prefix: str
    replicas: int
    others: Mapping[str, str]
    """The options that are redis-py's."""


def read_url(url: str) -> RedisURL:
    """Check a URL, and remove our own options from it."""
    scheme, separator, rest = url.partition("://")
    url = scheme.lower() + separator + rest  # redis-py knows it in small letters only
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(url) from None
    if "@" in parts.path + parts.query + parts.fragment:  # of a password with a reserved character, as a rule
        raise _unreadable(url)
    check_address(parts, "Redis", _SEVERAL)
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", unquote(parts.path)):
        raise ValueError("the path of a Redis URL is the number of a database, as in redis://localhost:6379/0")
    options = options_of(parts.query)
    prefix, replicas = options.pop("prefix", ""), options.pop("replicas", "0")
    if not all(options.values()) or options.keys() & _OBJECTS:
        raise _unreadable(url)
    if not re.fullmatch("-?[0-9]{1,9}", replicas):
        raise ValueError("invalid Redis URL: check the option replicas, which is a number")
    return RedisURL(url.partition("?")[0] + "?" + urlencode(options), prefix, int(replicas), options)


def open_url(store: Callable[..., T], client: Callable[[str], object], url: str, prefix: str, replicas: int) -> T:
    """Make a store of the client that redis-py makes of a URL."""
    read = read_url(url)
    prefix, replicas = either("prefix", read.prefix, prefix), either("replicas", read.replicas, replicas)
    try:
        return store(client(read.url), prefix=prefix, replicas=replicas)
    except (ValueError, TypeError, exceptions.RedisError) as error:
        if re.match("(socket_(connect_)?timeout|prefix|replicas) must be", str(error)):  # our own: it shows no secret
            raise
        wrong = [name for name in read.others if name.isidentifier() and f"'{name}'" in str(error)]
    raise _unreadable(url, *wrong)


def _unreadable(url: str, *options: str) -> ValueError:
    """Say that a URL can't be read, without the cause, which may quote part of a password."""
    password = "percent-encode reserved characters in the password, and " if "@" in url else ""
    where = f"the option {options[0]}" if options else "the scheme, host and options"
    if options and options[0] in _TIMEOUTS:
        where += f": Redis has {_TIMEOUTS[options[0]]}"
    return ValueError(f"invalid Redis URL: {password}check {where}")
