"""Opens the store of a run, through the fault proxy or past it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlunsplit

from caslock.connect import connect, connect_async
from caslock.store import AsyncStore, Store
from caslock.stores.shared.options import split
from caslock.testing.drive import driven, is_async
from caslock.verify.cleanup import put_for_a_moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.verify.plan import Plan

PORTS: Final = {
    "redis": 6379,
    "rediss": 6379,
    "tair": 6379,
    "tairs": 6379,
    "memcached": 11211,
    "postgresql": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "zookeeper": 2181,
    "etcd": 2379,
    "etcds": 2379,
    "nats": 4222,
    "natss": 4222,
    "hazelcast": 5701,
}
"""The usual ports of schemes; a URL with another scheme names its port."""

_REDIS: Final = ("socket_timeout", "socket_connect_timeout")
TIMEOUTS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("redis", "rediss", "unix", "tair", "tairs"), _REDIS),
    **dict.fromkeys(("memcached", "postgresql", "mysql", "mariadb", "zookeeper"), ("timeout",)),
    **dict.fromkeys(("etcd", "etcds", "nats", "natss", "hazelcast", "dynamodb"), ("timeout",)),
}
"""Which options of a URL set the timeout of a request, by scheme."""

SIZES: Final = (1, 100, 300, 1000)
"""Bytes of values of locks: a memcached that is full may have room for one size, and none for another."""


def server_of(plan: Plan) -> tuple[str, int] | None:
    """Tell the address that a proxy can stand before; None where faults must be injected inside the workers."""
    parts = split(_address(plan.url))
    several = "," in parts.netloc or parts.scheme.endswith(("+cluster", "+sentinel"))
    if plan.factory or not plan.proxy or several or parts.scheme == "https":
        return None
    port = parts.port or PORTS.get(parts.scheme)
    if not parts.hostname or not port:
        return None
    return parts.hostname, port


def through(url: str, port: int, timeout: float, host: str = "127.0.0.1") -> str:
    """Give the URL of the same store behind a proxy, for clients that wait `timeout` seconds for an answer.

    How to say so is known of caslock's own schemes only; a URL with another scheme names its own timeout.
    """
    parts = split(url)
    if _address(url) != url:
        options = dict(parse_qsl(parts.query)) | {"endpoint": f"http://{host}:{port}", "timeout": f"{timeout:g}"}
        return urlunsplit(parts._replace(query=urlencode(options)))
    user, at, _ = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    options |= dict.fromkeys(TIMEOUTS.get(parts.scheme, ()), f"{timeout:g}")
    return urlunsplit(
        parts._replace(netloc=f"{user}{at}{f'[{host}]' if ':' in host else host}:{port}", query=urlencode(options))
    )


def with_timeout(url: str, seconds: float) -> str:
    """Give the URL of the same store with a timeout of so many seconds, where it sets none.

    As for `through`, a URL with a scheme that is not caslock's own is left as it is.
    """
    parts = split(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    names = TIMEOUTS.get(parts.scheme.partition("+")[0], ())
    more = urlencode({name: f"{seconds:g}" for name in names if name not in given})
    return f"{url}{'&' if '?' in url else '?'}{more}" if more else url


def _address(url: str) -> str:
    """Give the URL that names the server: that of a DynamoDB names a region, and another server in an option."""
    parts = split(url)
    return dict(parse_qsl(parts.query)).get("endpoint", url) if parts.scheme == "dynamodb" else url


def open_store(plan: Plan, url: str) -> Store | AsyncStore:
    """Make the store for code that blocks, or the asyncio store where the factory gives that."""
    return _made(plan.factory) if plan.factory else connect(url)


def open_async(plan: Plan, url: str) -> Store | AsyncStore:
    """Make the store for asyncio, or the blocking store where there is no other."""
    return _made(plan.factory) if plan.factory else connect_async(url)


def open_blocking(plan: Plan, url: str) -> Store:
    """Make a store whose verbs can simply be called."""
    return driven(open_store(plan, url))


def open_direct(plan: Plan) -> Store:
    """Make the same past all faults."""
    return open_blocking(plan, plan.url)


def reach(plan: Plan, *, write: bool = False) -> Store:
    """Open the store past all faults, and be sure that it answers, or even can be written to.

    Raises ValueError where processes can't share it, and whatever opening it and asking it raise.
    """
    if plan.url.startswith("memory:"):
        raise ValueError("memory:// lives in one process, and verify needs several: name a store that they can share")
    store = open_direct(plan)
    try:
        if write:
            for size in SIZES:
                with put_for_a_moment(store, plan, "reached", 10.0, size):
                    pass
        else:
            store.get(f"{plan.prefix}reached")
    except BaseException:
        close(store)
        raise
    return store


def blocks(plan: Plan) -> bool:
    """Whether the plan's store is made for code that blocks."""
    store = open_store(plan, plan.url)
    try:
        return not is_async(store)
    finally:
        close(store)


def close(store: Store | AsyncStore) -> None:
    """Close a blocking store, if it can be closed."""
    getattr(store, "close", lambda: None)()


def _made(name: str) -> Store | AsyncStore:
    store = _factory(name)()
    if not isinstance(store, (Store, AsyncStore)):
        raise TypeError(f"{name} gave {type(store).__name__}, which lacks a verb of a store, or its traits")
    return store


def _factory(name: str) -> Callable[[], object]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"name your store as module:callable, not {name!r}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as text, as Python itself puts it there
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    factory: Callable[[], object] = getattr(import_module(module), attribute)
    return factory
