"""Creates stores from URLs and clients; imports only the store that is asked for.

Another package makes the scheme of its store known by an entry point: its name is the scheme, and its object a callable
that takes the URL, or a class with `from_url`.  The group is "caslock.stores" for blocking code and
"caslock.async_stores" for asyncio.  No entry point replaces a scheme of caslock's own.  `prefix` and `replicas` are
passed on by name if they are given.  No error shows a secret of the URL.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

from caslock.stores.shared.options import has_control_characters

if TYPE_CHECKING:
    from collections.abc import Callable

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

    class ZooKeeperClient(Protocol):
        """A `KazooClient`, which comes without types."""

        @property
        def hosts(self) -> object:
            """Its servers."""

        @property
        def chroot(self) -> object:
            """What it puts before each path."""

        @property
        def auth_data(self) -> object:
            """Its credentials."""

    Client: TypeAlias = redis.Redis | RedisCluster | MemcachedClient | Engine | ZooKeeperClient
    AsyncClient: TypeAlias = redis.asyncio.Redis | AsyncRedisCluster | AsyncEngine
    _Factory: TypeAlias = Callable[..., Any]  # what an entry point names is only known when it is used

_BLOCKING: Final = "caslock.stores"
_ASYNCIO: Final = "caslock.async_stores"


class _Kind(NamedTuple):
    """The stores of a scheme."""

    module: str  # of caslock.stores
    store: str  # the class for blocking code; that for asyncio is called Async...
    extra: str = ""
    clients: tuple[str, ...] = ()  # the packages that they need
    takes: tuple[str, ...] = ()  # the settings that they have
    awaits: bool = True  # whether there is one for asyncio


_PRIMARY: Final = ("prefix", "replicas")
_MEMORY: Final = _Kind("memory", "MemoryStore")
_SQLITE: Final = _Kind("sqlite", "SQLiteStore", awaits=False)
_REDIS: Final = _Kind("redis", "RedisStore", "redis", ("redis",), _PRIMARY)
_TAIR: Final = _Kind("tair", "TairStore", "tair", ("redis",), _PRIMARY)
_MEMCACHED: Final = _Kind("memcached", "MemcachedStore", "memcached", ("pymemcache",), ("prefix",), awaits=False)
_POSTGRESQL: Final = _Kind("sql", "SQLStore", "postgresql", ("sqlalchemy", "psycopg"))
_MYSQL: Final = _Kind("sql", "SQLStore", "mysql", ("sqlalchemy", "pymysql", "asyncmy"))
_ZOOKEEPER: Final = _Kind("zookeeper", "ZooKeeperStore", "zookeeper", ("kazoo",), awaits=False)
_ETCD: Final = _Kind("etcd", "EtcdStore", "etcd", ("h11",), ("prefix",))
_NATS: Final = _Kind("nats", "NatsStore")
_HAZELCAST: Final = _Kind("hazelcast", "HazelcastStore", "hazelcast", ("hazelcast",))
_DYNAMODB: Final = _Kind("dynamodb", "DynamoDBStore", "dynamodb", ("botocore", "boto3"))
OWN: Final = {
    "memory": _MEMORY,
    "sqlite": _SQLITE,
    **dict.fromkeys(("redis", "rediss", "unix"), _REDIS),
    **dict.fromkeys(("redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"), _REDIS),
    **dict.fromkeys(("tair", "tairs"), _TAIR),
    "memcached": _MEMCACHED,
    **dict.fromkeys(("etcd", "etcds"), _ETCD),
    **dict.fromkeys(("nats", "natss"), _NATS),
    "hazelcast": _HAZELCAST,
    "dynamodb": _DYNAMODB,
    **dict.fromkeys(("postgresql", "postgresql+psycopg"), _POSTGRESQL),
    **dict.fromkeys(
        ("mysql", "mysql+pymysql", "mysql+asyncmy", "mariadb", "mariadb+pymysql", "mariadb+asyncmy"), _MYSQL
    ),
    **dict.fromkeys(("zookeeper", "zookeepers"), _ZOOKEEPER),
}
"""By scheme."""
_CLIENTS: Final = {"redis": _REDIS, "pymemcache": _MEMCACHED, "sqlalchemy": _POSTGRESQL, "kazoo": _ZOOKEEPER}

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HIDDEN: Final = re.compile("pass|pwd|user|secret|token|auth|cred|key", re.IGNORECASE)


def connect(target: str | Client, *, prefix: str = "", replicas: int = 0) -> ClosableStore:
    """Make the store that a URL names, or that an existing client uses, for blocking code.

    URLs: ``sqlite:///relative.db``, ``sqlite:////absolute/path.db`` (``%`` and ``?`` in the path as ``%25`` and
    ``%3F``; ``?timeout=5``: seconds to wait for others); ``memory://``, a new one each time; ``redis://``,
    ``rediss://``, ``unix://``, ``redis+cluster://``, ``redis+sentinel://``, ``tair://``, ``tairs://``,
    ``memcached://``, ``postgresql://``, ``mysql://``, ``mariadb://``, ``zookeeper://``, ``zookeepers://``,
    ``etcd://``, ``etcds://``, ``nats://``, ``natss://``, ``hazelcast://`` and ``dynamodb://``, each with the options of
    its store; and any scheme of an installed entry point (see the documentation of the module).

    Clients: a ``redis.Redis``, one of ``Sentinel.master_for``, a ``RedisCluster``, pymemcache's ``Client`` and
    ``PooledClient``, SQLAlchemy's ``Engine``, or a ``KazooClient``.  Their settings are used, not their connections.

    `prefix` is put before every key (Redis, Tair, memcached and etcd).  With `replicas` = n, a write counts only after
    n replicas have acknowledged it (Redis and Tair).  ``with`` closes the store.

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
    if has_control_characters(target):
        # Some clients would drop it, and others take it for a part of the name, which then is another one.
        raise ValueError("a store URL must not contain a control character, such as a line break at its end")
    match = _SCHEME.match(target)
    if match is None:  # It is not quoted in the error, because it may contain a password.
        raise ValueError("a store URL must begin with a scheme, as in redis://localhost:6379/0 or sqlite:///locks.db")
    scheme, rest = match[1].lower(), target[match.end() :]
    own = OWN.get(scheme)
    if own:
        _refuse(settings, own, f"{scheme}://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if own and scheme != "sqlite" and has_control_characters(unquote(rest.rpartition("@")[2])):
        raise ValueError(f"{scheme}:// URLs must not contain control characters, percent-encoded or not")
    if own and own.clients and "@" in rest[len(authority) :]:
        # Most likely the password has a slash, and the client would take its beginning for a host and show it.
        raise ValueError(f"percent-encode / ? # @ in user name, password and options of a {scheme}:// URL (/ as %2F)")
    if own and scheme != "sqlite" and "#" in rest:
        raise ValueError(f"{scheme}:// URLs have no fragment: write # as %23")
    for group in groups:
        factory = _load(scheme, own, group) if own else _plugin(scheme, group)
        if factory is not None:
            return _call(partial(factory, **settings), target, scheme)
    known = sorted({*OWN, *(point for group in groups for point in _points(group))})
    from difflib import get_close_matches  # noqa: PLC0415 - not for `import caslock`

    close = get_close_matches(scheme, known, 1)
    meant = f"Did you mean {close[0]}://? " if close else ""
    raise ValueError(f"unknown scheme {scheme}://. {meant}Known schemes: {', '.join(known)}")


def _of_client(client: object, settings: dict[str, Any], group: str) -> Any:  # noqa: ANN401 - see _Factory
    modules = [kind.__module__.split(".") for kind in type(client).__mro__]
    kind = next((_CLIENTS[names[0]] for names in modules if names[0] in _CLIENTS), None)
    if kind is None:
        known = "redis-py, pymemcache, SQLAlchemy or kazoo client"
        raise TypeError(f"expected a URL (str) or a {known}, not {type(client).__name__}; other stores take their URL")
    awaits = any("asyncio" in names for names in modules)
    if awaits and group == _BLOCKING:
        name = f"{type(client).__module__}.{type(client).__name__}"
        raise TypeError(f"{name} is for asyncio: use connect_async")
    _refuse(settings, kind, f"a store on {kind.clients[0]}")
    store = getattr(import_module(f"caslock.stores.{kind.module}"), f"{'Async' if awaits else ''}{kind.store}")
    return store(client, **settings)


def _refuse(settings: dict[str, Any], kind: _Kind, what: str) -> None:
    for name in settings.keys() - kind.takes:
        there = "Redis and Tair do" if name == "replicas" else "Redis, Tair, memcached and etcd do"
        raise ValueError(f"{what} has no {name}; only {there}")


def _load(scheme: str, kind: _Kind, group: str) -> _Factory | None:
    if group == _ASYNCIO and not kind.awaits:
        return None
    try:
        for client in kind.clients:
            import_module(client)
        module = import_module(f"caslock.stores.{kind.module}")
    except ImportError as error:
        client = (error.name or "").partition(".")[0]
        if client not in kind.clients:
            raise
        needs = f"{scheme}:// needs the package {client}, or a newer version of it"
        raise ModuleNotFoundError(f"{needs}: pip install 'caslock[{kind.extra}]'", name=error.name) from error
    factory: _Factory = getattr(module, f"{'Async' if group == _ASYNCIO else ''}{kind.store}").from_url
    return factory


def _plugin(scheme: str, group: str) -> _Factory | None:
    load = _points(group).get(scheme)
    target = load and load()
    factory: _Factory | None = getattr(target, "from_url", target)
    return factory


def _points(group: str) -> dict[str, Callable[[], Any]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and seldom needed

    return {point.name.lower(): point.load for point in entry_points(group=group)}


def _call(factory: _Factory, url: str, scheme: str) -> Any:  # noqa: ANN401 - see _Factory
    secrets = _secrets(url)
    try:
        return factory(url)
    except Exception as error:  # of any store or client: its text may show the password
        told = _told(error).casefold()
        # As words of their own: the user "postgres" is no part of "postgresql://".
        if not any(re.search(rf"(?<![a-z0-9]){re.escape(secret)}(?![a-z0-9])", told) for secret in secrets):
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


def _told(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {error!r} {_told(error.__cause__ or error.__context__)}"
