"""Engines of our own, for the pool of connections that they have: one for each process, or event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from caslock.stores.sql.connections import async_connection_of, connection_of

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from caslock.stores.sql.target import Target

_CONNECTIONS: Final = 5  # of a process; where more requests run at once, they wait for each other
_OLD: Final = 1800  # seconds after which an idle connection is replaced


def engine_of(target: Target) -> Engine:
    """Make an engine for this process, which has no connection yet."""
    return create_engine(target.url, creator=partial(connection_of, target), **_settings(target))


def async_engine_of(target: Target) -> AsyncEngine:
    """Make an engine for this event loop, which has no connection yet."""
    return create_async_engine(target.url, async_creator=partial(async_connection_of, target), **_settings(target))


def _settings(target: Target) -> dict[str, Any]:
    own: dict[str, Any] = {"use_native_hstore": False} if target.backend == "postgresql" else {}
    return own | {
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,  # which would be a request of its own
        "pool_reset_on_return": None,
        "pool_size": _CONNECTIONS,
        "max_overflow": 0,
        "pool_timeout": target.timeout * 0.75,
        "pool_use_lifo": True,
        "pool_recycle": _OLD,
        "hide_parameters": True,
    }
