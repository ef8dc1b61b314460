"""A connection to a database, for doctor."""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from caslock.stores.sql.connections import end_by
from caslock.stores.sql.engines import engine_of
from caslock.stores.sql.target import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connect as the store does; raises an error of the driver, or of SQLAlchemy, where the server does not answer."""
    target = target_of(url, None, awaits=False)
    end_by(monotonic() + target.timeout)
    engine = engine_of(target)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
