"""Creates stores from URLs and clients; imports only the store that is asked for.

Another package makes the scheme of its store known by an entry point: its name is the scheme, and its object a callable
that takes the URL, or a class with `from_url`.  The group is "caslock.stores" for blocking code and
"caslock.async_stores" for asyncio.  No entry point replaces a scheme of caslock's own.  `prefix` and `replicas` are
passed on by name if they are given.  No error shows a secret of the URL.
"""

from __future__ import annotations

import difflib
import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

from caslock.options import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis.asyncio
    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from caslock.store import AsyncClosableStore, ClosableStore

    class MemcachedClient(Protocol):
        """A pymemcache `Client` or `PooledClient`, which come without types."""

        @property
        def server(self) -> object:
            """Its address."""

        @property
        def key_prefix(self) -> object:
            """What it puts before each key."""

        @property
        def ignore_exc(self) -> object:
            """Whether it hides errors."""

    Client: TypeAlias = redis.Redis | RedisCluster | MemcachedClient | Engine
    AsyncClient: TypeAlias = redis.asyncio.Redis | AsyncRedisCluster | AsyncEngine
    _Factory: TypeAlias = Callable[..., Any]  # what an entry point names is only known when it is used

_BLOCKING: Final = "caslock.stores"
_ASYNCIO: Final = "caslock.async_stores"

# scheme -> (module of caslock.stores; the extra; its clients; the class by group)
_REDIS: Final = ("redis", "redis", ("redis",), {_BLOCKING: "RedisStore", _ASYNCIO: "AsyncRedisStore"})
_TAIR: Final = ("tair", "tair", ("redis",), {_BLOCKING: "TairStore", _ASYNCIO: "AsyncTairStore"})
_MEMCACHED: Final = ("memcached", "memcached", ("pymemcache",), {_BLOCKING: "MemcachedStore"})
_SQL: Final = {_BLOCKING: "SQLStore", _ASYNCIO: "AsyncSQLStore"}
_POSTGRESQL: Final = ("sql", "postgresql", ("sqlalchemy", "psycopg"), _SQL)
_MYSQL: Final = ("sql", "mysql", ("sqlalchemy", "pymysql", "asyncmy"), _SQL)
_SERVERS: Final = {
    **dict.fromkeys(("redis", "rediss", "unix"), _REDIS),
    **dict.fromkeys(("tair", "tairs"), _TAIR),
    "memcached": _MEMCACHED,
    **dict.fromkeys(("postgresql", "postgresql+psycopg"), _POSTGRESQL),
    **dict.fromkeys(
        ("mysql", "mysql+pymysql", "mysql+asyncmy", "mariadb", "mariadb+pymysql", "mariadb+asyncmy"), _MYSQL
    ),
}
_TAKES: Final = {
    "memcached": ("prefix",),
    **dict.fromkeys(("redis", "rediss", "unix", "tair", "tairs"), ("prefix", "replicas")),
}
_OWN: Final = ("memory", "sqlite", *_SERVERS)

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HIDDEN: Final = re.compile("pass|pwd|user|secret|token|auth|cred|key", re.IGNORECASE)


def connect(target: str | Client, *, prefix: str = "", replicas: int = 0) -> ClosableStore:
    """Make the store that a URL names, or that an existing client uses, for blocking code.

    URLs: ``sqlite:///relative.db``, ``sqlite:////absolute/path.db`` (``%`` and ``?`` in the path as ``%25`` and
    ``%3F``; ``?timeout=5``: seconds to wait for others); ``memory://``, a new one each time; ``redis://``,
    ``rediss://``, ``unix://``, ``tair://``, ``tairs://``, ``memcached://``, ``postgresql://``, ``mysql://`` and
    ``mariadb://``, each with the options of its store's `from_url`; and any scheme of an installed entry point (see the
    documentation of the module).

    Clients: a ``redis.Redis``, one of ``Sentinel.master_for``, a ``RedisCluster``, pymemcache's ``Client`` and
    ``PooledClient``, or SQLAlchemy's ``Engine``.  Their settings are used, but not their connections.

    `prefix` is put before every key (Redis, Tair and memcached).  With `replicas` = n, a write counts only after n
    replicas have acknowledged it (Redis and Tair).  ``with`` closes the store.

    Raises ValueError for a malformed or ambiguous URL, TypeError for anything that is neither a URL nor such a client,
    and ModuleNotFoundError if the client library is not installed.  None of them shows a user name or password.
    """
    store: ClosableStore = _make(target, _settings(prefix, replicas), _BLOCKING)
    return store


def connect_async(
    target: str | Client | AsyncClient, *, prefix: str = "", replicas: int = 0
) -> AsyncClosableStore | ClosableStore:
    """Make the store of a URL or client for `AsyncLock`: one for asyncio, or a blocking one if there is no other.

    `AsyncLock` runs a blocking store on worker threads.  ``async with`` closes either.  A client of ``redis.asyncio``
    and an ``AsyncEngine`` make a store for asyncio.  Everything else is as with `connect`, also the errors.
    """
    store: AsyncClosableStore | ClosableStore = _make(target, _settings(prefix, replicas), _ASYNCIO, _BLOCKING)
    return store


def _settings(prefix: str, replicas: int) -> dict[str, Any]:
    return ({"prefix": prefix} if prefix else {}) | ({"replicas": replicas} if replicas else {})


def _make(target: Any, settings: dict[str, Any], *groups: str) -> Any:  # noqa: ANN401 - see _Factory
    if not isinstance(target, str):
        return _of_client(target, settings, groups[0])
    match = _SCHEME.match(target)
    if match is None:  # It is not quoted in the error, because it may contain a password.
        raise ValueError("a store URL must begin with a scheme, as in redis://localhost:6379/0 or sqlite:///locks.db")
    scheme, rest = match[1].lower(), target[match.end() :]
    if scheme in _OWN:
        _refuse(settings, _TAKES.get(scheme, ()), f"{scheme}://")
    if scheme == "memory":
        return _memory(rest, groups[0])
    if scheme == "sqlite":
        return _sqlite(rest)
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if scheme in _SERVERS and "@" in rest[len(authority) :]:
        # Most likely the password has a slash, and the client would take its beginning for a host and show it.
        raise ValueError(f"percent-encode / ? # @ in user name, password and options of a {scheme}:// URL (/ as %2F)")
    for group in groups:
        factory = _server(scheme, group) if scheme in _SERVERS else _plugin(scheme, group)
        if factory is not None:
            return _call(partial(factory, **settings), target, scheme)
    known = sorted({*_OWN, *(point for group in groups for point in _points(group))})
    close = difflib.get_close_matches(scheme, known, 1)
    meant = f"Did you mean {close[0]}://? " if close else ""
    raise ValueError(f"unknown scheme {scheme}://. {meant}Known schemes: {', '.join(known)}")


def _of_client(client: object, settings: dict[str, Any], group: str) -> Any:  # noqa: ANN401 - see _Factory
    modules = [kind.__module__ for kind in type(client).__mro__]
    if any(module.startswith("redis.") for module in modules):
        from caslock.stores.redis import AsyncRedisStore, RedisStore  # noqa: PLC0415 - only what is asked for

        if not any(module.startswith("redis.asyncio.") for module in modules):
            return RedisStore(client, **settings)  # type: ignore[arg-type] # which it checks
        if group == _BLOCKING:
            raise TypeError(f"a {type(client).__module__} client is for asyncio: use connect_async, or a redis.Redis")
        return AsyncRedisStore(client, **settings)  # type: ignore[arg-type] # which it checks
    if any(module.startswith("pymemcache.") for module in modules):
        from caslock.stores.memcached import MemcachedStore  # noqa: PLC0415 - only what is asked for

        _refuse(settings, _TAKES["memcached"], "memcached")
        return MemcachedStore(client, **settings)
    if any(module.startswith("sqlalchemy.") for module in modules):
        from caslock.stores.sql import AsyncSQLStore, SQLStore  # noqa: PLC0415 - only what is asked for

        _refuse(settings, (), "a database")
        if group == _ASYNCIO and type(client).__name__ == "AsyncEngine":
            return AsyncSQLStore(client)  # type: ignore[arg-type] # which it checks
        return SQLStore(client)  # type: ignore[arg-type] # which it checks
    known = "redis-py, pymemcache or SQLAlchemy client"
    raise TypeError(f"expected a URL (str) or a {known}, not {type(client).__name__}")


def _refuse(settings: dict[str, Any], taken: tuple[str, ...], what: str) -> None:
    for name in settings:
        if name not in taken:
            there = "Redis and Tair do" if name == "replicas" else "Redis, Tair and memcached do"
            raise ValueError(f"{what} has no {name}; only {there}")


def _memory(rest: str, group: str) -> AsyncClosableStore | ClosableStore:
    from caslock.stores.memory import AsyncMemoryStore, MemoryStore  # noqa: PLC0415 - only what is asked for

    if rest:
        raise ValueError("memory:// creates a new store each time and takes no name or options")
    return AsyncMemoryStore() if group == _ASYNCIO else MemoryStore()


def _sqlite(rest: str) -> ClosableStore:
    from caslock.stores.sqlite import SQLiteStore  # noqa: PLC0415 - only what is asked for

    if not rest.startswith("/"):
        raise ValueError("the URL of a file is sqlite:///relative/path.db or sqlite:////absolute/path.db")
    path, _, query = rest[1:].partition("?")
    options = options_of(query)
    try:
        timeout = float(options.pop("timeout", "5"))
    except ValueError:
        raise ValueError("the timeout of a sqlite:// URL must be a number of seconds") from None
    if options:
        raise ValueError(f"a sqlite:// URL takes ?timeout= only, not {', '.join(sorted(options))}")
    return SQLiteStore(unquote(path, errors="surrogateescape"), timeout=timeout)


def _server(scheme: str, group: str) -> _Factory | None:
    name, extra, clients, classes = _SERVERS[scheme]
    if group not in classes:
        return None
    try:
        for client in clients:
            import_module(client)
        module = import_module(f"caslock.stores.{name}")
    except ImportError as error:
        client = (error.name or "").partition(".")[0]
        if client not in clients:
            raise
        message = f"{scheme}:// needs the package {client}, or a newer version of it: pip install 'caslock[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    factory: _Factory = getattr(module, classes[group]).from_url
    return factory


def _plugin(scheme: str, group: str) -> _Factory | None:
    load = _points(group).get(scheme)
    if load is None:
        return None
    target = load()
    factory: _Factory = getattr(target, "from_url", target)
    return factory


def _points(group: str) -> dict[str, Callable[[], Any]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and seldom needed

    return {point.name.lower(): point.load for point in entry_points(group=group)}


def _call(factory: _Factory, url: str, scheme: str) -> Any:  # noqa: ANN401 - see _Factory
    secrets = _secrets(url)
    try:
        return factory(url)
    except Exception as error:
        told = " ".join(f"{link} {link!r}" for link in _chain(error)).casefold()
        if not any(secret in told for secret in secrets):
            raise
        kind = type(error).__name__
    # Raised outside of the except block, so that the error with the secret is not its context.
    raise ValueError(
        f"the {scheme}:// URL was refused ({kind}).  The reason is not shown, because it contains a part of the user "
        "name or password; are all special characters in them percent-encoded?"
    )


def _secrets(url: str) -> set[str]:
    # In pieces, because a client that misreads a URL shows a piece of the password as port, host or path.
    _, _, rest = url.partition("://")
    texts = re.split("[:/@?#]", rest.rpartition("@")[0])
    texts += [value for name, value in parse_qsl(rest.partition("?")[2]) if _HIDDEN.search(name)]
    return {form.casefold() for text in texts for form in (text, unquote(text)) if form}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = list[BaseException]()
    links = [error]
    while links:
        link = links.pop()
        if link is not None and link not in seen:
            seen.append(link)
            links += [link.__cause__, link.__context__]
    return iter(seen)
