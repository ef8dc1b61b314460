"""The law of this file: where a run's store is, and by which way: through the fault proxy, or past it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from caslock.connect import connect, connect_async
from caslock.store import AsyncStore, Store
from caslock.testing.drive import driven, is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.testing.torture.plan import Plan

PORTS: Final = {"redis": 6379, "memcached": 11211}
"""The schemes whose traffic can go through the proxy, and their usual ports."""

_TIMEOUTS: Final = {"redis": ("socket_timeout", "socket_connect_timeout"), "memcached": ("timeout",)}


def server_of(plan: Plan) -> tuple[str, int] | None:
    """Tell the address that a proxy can stand before; None where faults must be injected inside the workers."""
    parts = urlsplit(plan.url)
    if plan.factory or parts.scheme not in PORTS or not parts.hostname:
        return None
    return parts.hostname, parts.port or PORTS[parts.scheme]


def through(url: str, port: int, timeout: float) -> str:
    """Give the URL of the same store behind a proxy, for clients that wait `timeout` seconds for an answer."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    options |= dict.fromkeys(_TIMEOUTS[parts.scheme], f"{timeout:g}")
    return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}", query=urlencode(options)))


def open_store(plan: Plan, url: str) -> Store | AsyncStore:
    """Make the store for code that blocks, or what there is."""
    if plan.factory:
        return _made(plan.factory)
    return connect(url)


def open_async(plan: Plan, url: str) -> Store | AsyncStore:
    """Make the store for asyncio, or what there is."""
    return _made(plan.factory) if plan.factory else connect_async(url)


def open_direct(plan: Plan) -> Store:
    """Make a store past all faults."""
    return driven(open_store(plan, plan.url))


def blocks(plan: Plan) -> bool:
    """Whether code that blocks can use the plan's store."""
    store = open_store(plan, plan.url)
    try:
        return not is_async(store)
    finally:
        close(store)


def close(store: Store | AsyncStore) -> None:
    """Close a blocking store, where it can be closed."""
    getattr(store, "close", lambda: None)()


def _made(name: str) -> Store | AsyncStore:
    store = _factory(name)()
    if not isinstance(store, (Store, AsyncStore)):
        raise TypeError(f"{name} gave {type(store).__name__}, which has not the verbs of a store")
    return store


def _factory(name: str) -> Callable[[], object]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"name your store as module:callable, not {name!r}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as text, as Python itself puts it there
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    factory: Callable[[], object] = getattr(import_module(module), attribute)
    return factory
