"""The law of this file: a URL becomes a store, importing no more than that store, and its secrets never reach an error.

A store of somebody else's makes its scheme known by an entry point: its name is the scheme, and what it names is a
callable that takes the URL, or a class with `from_url`.  Stores for blocking code stand in the group "caslock.stores",
stores for asyncio in "caslock.async_stores".  No entry point replaces a scheme of caslock's own.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.store import AsyncStore, Store

    _Factory: TypeAlias = Callable[[str], Any]  # what an entry point gives is only known when it is used

_BLOCKING: Final = "caslock.stores"
_ASYNCIO: Final = "caslock.async_stores"

# scheme -> (module of caslock.stores, which is the extra's name too; its client; the class by group)
_REDIS: Final = ("redis", "redis", {_BLOCKING: "RedisStore", _ASYNCIO: "AsyncRedisStore"})
_MEMCACHED: Final = ("memcached", "pymemcache", {_BLOCKING: "MemcachedStore"})
_SERVERS: Final = {"redis": _REDIS, "rediss": _REDIS, "unix": _REDIS, "memcached": _MEMCACHED}
_OWN: Final = ("memory", "sqlite", *_SERVERS)

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HIDDEN: Final = re.compile("pass|pwd|user|secret|token|auth|cred|key", re.IGNORECASE)


def connect(url: str) -> Store:
    """Make the store that a URL names, for code that blocks (`connect_async` for asyncio).

    ``sqlite:///relative.db``, ``sqlite:////absolute/path.db`` (``%`` and ``?`` in the path as ``%25`` and ``%3F``;
    ``?timeout=5``: seconds to wait for another process's transaction); ``memory://``, a new one each time;
    ``redis://``, ``rediss://``, ``unix://`` and ``memcached://``, each with the options of its store's `from_url`;
    and any scheme of an installed entry point (see above).

    Raises ValueError for a URL that can't be meant, TypeError for what is no text, and ModuleNotFoundError where the
    client library is not installed.  None of them shows a user name or password.
    """
    store: Store = _make(url, _BLOCKING)
    return store


def connect_async(url: str) -> AsyncStore | Store:
    """Make the store that a URL names, for `AsyncLock`: one for asyncio, or where there is none, one that blocks.

    `AsyncLock` runs the latter on worker threads.  URLs and errors are those of `connect`.
    """
    store: AsyncStore | Store = _make(url, _ASYNCIO, _BLOCKING)
    return store


def _make(url: str, *groups: str) -> Any:  # noqa: ANN401 - see _Factory
    if not isinstance(url, str):
        raise TypeError(f"a store's URL is a str, not {type(url).__name__}")
    match = _SCHEME.match(url)
    if match is None:  # It is not quoted: a URL with a slip in front may hold a password like any other.
        raise ValueError("a store's URL begins with its scheme, as redis://localhost:6379/0 or sqlite:///locks.db do")
    scheme, rest = match[1].lower(), url[match.end() :]
    if scheme == "memory":
        return _memory(rest, groups[0])
    if scheme == "sqlite":
        return _sqlite(rest)
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if scheme in _SERVERS and "@" in rest[len(authority) :]:
        # The likely cause is a password with a slash, of which the client would make a host that shows in messages.
        raise ValueError(f"in a {scheme}:// URL, write any of / ? # @ in the user name, password or options as %2F ...")
    for group in groups:
        factory = _server(scheme, group) if scheme in _SERVERS else _plugin(scheme, group)
        if factory is not None:
            return _call(factory, url, scheme)
    known = sorted({*_OWN, *(point for group in groups for point in _points(group))})
    raise ValueError(f"no store is known for {scheme}://; there are {', '.join(known)}")


def _memory(rest: str, group: str) -> AsyncStore | Store:
    from caslock.stores.memory import AsyncMemoryStore, MemoryStore  # noqa: PLC0415 - only what is asked for

    if rest:
        raise ValueError("memory:// makes a new memory each time, and takes no name and no options")
    return AsyncMemoryStore() if group == _ASYNCIO else MemoryStore()


def _sqlite(rest: str) -> Store:
    from caslock.stores.sqlite import SQLiteStore  # noqa: PLC0415 - only what is asked for

    if not rest.startswith("/"):
        raise ValueError("a file's URL is sqlite:///relative/path.db or sqlite:////absolute/path.db")
    path, _, query = rest[1:].partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    try:
        timeout = float(options.pop("timeout", "5"))
    except ValueError:
        raise ValueError("the timeout of a sqlite:// URL is a number of seconds") from None
    if options:
        raise ValueError(f"a sqlite:// URL takes ?timeout= only, not {', '.join(sorted(options))}")
    return SQLiteStore(unquote(path, errors="surrogateescape"), timeout=timeout)


def _server(scheme: str, group: str) -> _Factory | None:
    extra, client, classes = _SERVERS[scheme]
    if group not in classes:
        return None
    try:
        module = import_module(f"caslock.stores.{extra}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != client:
            raise
        message = f"{scheme}:// needs the {client} client, or a newer one: pip install 'caslock[{extra}]'"
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
    # Raised out here, so that nothing leads back to the error that shows the secret.
    raise ValueError(
        f"the {scheme}:// URL was refused ({kind}).  Why is not told, for it would show a part of the user name or "
        "password; are all special characters in them percent-encoded?"
    )


def _secrets(url: str) -> set[str]:
    # Cut at every separator, for who misreads a URL shows pieces of the password as port, host or path.
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
