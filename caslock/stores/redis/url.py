"""Reads the URL of a Redis.  A malformed or ambiguous one, which redis-py would accept, is a ValueError.

An error quotes no more of a URL than the name of an option, and not even that if it may be part of a password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlencode

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis import exceptions

from caslock.stores.redis.server import ClusterNodes, Untyped
from caslock.stores.shared.links import Endpoint, endpoints_of
from caslock.stores.shared.options import check_address, either, options_of, split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_OBJECTS: Final = {
    "command_packer",
    "credential_provider",
    "event_dispatcher",
    "maint_notifications_config",
    "redis_connect_func",
    "retry",
}
"""Settings of redis-py that it would take from a URL, although text can't be one."""

_TIMEOUTS: Final = {"timeout": "socket_timeout", "connect_timeout": "socket_connect_timeout"}
"""Options that URLs of other stores have, and those of redis-py that mean the same."""

_SEVERAL: Final = "for a Cluster it begins with redis+cluster://, for Sentinels with redis+sentinel://"

_NO_DATABASES: Final = "a Redis Cluster has one database: leave out its number"

_PORTS: Final = {"cluster": 6379, "sentinel": 26379}

_SENTINEL: Final = {"sentinel_username": "username", "sentinel_password": "password"}
"""Options for the Sentinels themselves, and what redis-py calls them."""


class RedisURL(NamedTuple):
    """A URL, as redis-py reads it, and what in it is caslock's own."""

    url: str
    """Of the only server, or of the first one with the settings for all."""
    prefix: str
    replicas: int
    others: Mapping[str, str]
    """The options that are redis-py's."""
    kind: str = ""
    """A "cluster" or "sentinel"; empty: one server."""
    addresses: tuple[Endpoint, ...] = ()
    """Of the Cluster's nodes, or of the Sentinels."""
    service: str = ""
    """What the Sentinels call the primary."""
    sentinel: Mapping[str, str] = {}
    """The options that are for the Sentinels."""

    def client(self, single: Callable[[str], Untyped]) -> Untyped:
        """Make the client of a store; `single` makes that of one server.  Nothing is sent."""
        first = single(self.url)
        pool = first.connection_pool
        if self.kind == "cluster":
            return ClusterNodes(pool, list(self.addresses))
        if self.kind == "sentinel":
            return self._watched(pool, awaits=isinstance(first, redis.asyncio.Redis))
        return first

    def _watched(self, pool: Untyped, *, awaits: bool) -> Untyped:
        settings = {name: value for name, value in pool.connection_kwargs.items() if name not in ("host", "port")}
        settings["ssl"] = self.url.startswith("rediss:")
        own = {name: value for name, value in settings.items() if name.startswith(("socket_", "ssl"))}
        own |= {_SENTINEL[name]: value for name, value in self.sentinel.items()}
        kind: Untyped = redis.asyncio.sentinel.Sentinel if awaits else redis.sentinel.Sentinel
        return kind(self.addresses, sentinel_kwargs=own).master_for(self.service, **settings)


def read_url(url: str) -> RedisURL:
    """Check a URL, and remove our own options from it."""
    scheme, separator, rest = url.partition("://")
    scheme, plus, kind = scheme.lower().partition("+")  # redis-py knows it in small letters only
    if plus and kind not in _PORTS:
        raise _unreadable(url)
    try:
        parts = split(scheme + separator + rest)
    except ValueError:
        raise _unreadable(url) from None
    if "@" in parts.path + parts.query + parts.fragment:  # of a password with a reserved character, as a rule
        raise _unreadable(url)
    addresses: tuple[Endpoint, ...] = ()
    service = ""
    if kind:
        user, at, hosts = parts.netloc.rpartition("@")
        port = _PORTS[kind]
        form = f"{_unreadable(url)}; a {kind} URL names its servers, as in redis+{kind}://one:{port},two:{port}"
        addresses = endpoints_of(hosts, port, "Redis", form)
        service, path = _service_of(parts.path) if kind == "sentinel" else ("", parts.path)
        if kind == "cluster" and path not in ("", "/", "/0"):
            raise ValueError(_NO_DATABASES)
        parts = parts._replace(netloc=f"{user}{at}{hosts.partition(',')[0]}", path=path)
    check_address(parts, "Redis", _SEVERAL)
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", unquote(parts.path)):
        raise ValueError("the path of a Redis URL is the number of a database, as in redis://localhost:6379/0")
    options = options_of(parts.query)
    prefix, replicas = options.pop("prefix", ""), options.pop("replicas", "0")
    sentinel = {name: options.pop(name) for name in _SENTINEL if kind == "sentinel" and name in options}
    if kind == "cluster" and "db" in options:
        raise ValueError(_NO_DATABASES)
    if not all(options.values()) or options.keys() & _OBJECTS:
        raise _unreadable(url)
    if not re.fullmatch("-?[0-9]{1,9}", replicas):
        raise ValueError("invalid Redis URL: check the option replicas, which is a number")
    single = f"{scheme}{separator}{parts.netloc}{parts.path}?{urlencode(options)}"
    return RedisURL(single, prefix, int(replicas), options, kind, addresses, service, sentinel)


def _service_of(path: str) -> tuple[str, str]:
    """Return what Sentinels call the primary, and the rest of the path."""
    service, slash, database = path.removeprefix("/").partition("/")
    if not service:
        raise ValueError("the path of a Sentinel URL names the service, as in redis+sentinel://localhost/mymaster/0")
    return unquote(service), slash + database


def open_url(store: Callable[..., T], single: Callable[[str], object], url: str, prefix: str, replicas: int) -> T:
    """Make a store of the client that redis-py makes of a URL; `single` makes that of one server."""
    read = read_url(url)
    prefix, replicas = either("prefix", read.prefix, prefix), either("replicas", read.replicas, replicas)
    try:
        return store(read.client(single), prefix=prefix, replicas=replicas)
    except (ValueError, TypeError, AttributeError, exceptions.RedisError) as error:
        if re.match("(socket_(connect_)?timeout|prefix|replicas) must ", str(error)):  # our own: it shows no secret
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
