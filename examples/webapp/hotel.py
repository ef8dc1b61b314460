"""The database of the booking service: PostgreSQL or SQLite, by SQLAlchemy.  It knows fences, but no locks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from caslock.fencing import fence_column, write_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

metadata = sa.MetaData()

# No constraint forbids a second booking, so that its absence shows what the lock does.  In a real service, have both.
bookings = sa.Table(
    "bookings",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("night", sa.Integer, nullable=False, index=True),
    sa.Column("room", sa.Integer, nullable=False),
    sa.Column("guest", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger),  # NULL: it was booked without the lock
)

# A row for each key that was ever locked, with the largest fence that has written.
fences = sa.Table("fences", metadata, sa.Column("key", sa.Text, primary_key=True), fence_column())

# What each worker process says of itself, for the page: which of its requests wait.
workers = sa.Table(
    "workers",
    metadata,
    sa.Column("pid", sa.Integer, primary_key=True),
    sa.Column("seen", sa.Float, nullable=False),
    sa.Column("waiting", sa.JSON, nullable=False),
)

SILENT = 3.0
"""Seconds after which a worker that says nothing more counts as ended."""


class Wish(NamedTuple):
    """What a guest wants."""

    night: int
    room: int
    guest: str


class Hotel:
    """The database, for the threads of one process."""

    def __init__(self, url: str) -> None:
        """Connect at the first use."""
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)

    def create(self) -> None:
        """Create the tables that do not exist."""
        metadata.create_all(self._engine)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def is_free(self, wish: Wish, held: Mapping[str, int]) -> bool:
        """Whether the room is free that night, and the guest has no other; `held` are the keys and their fences."""
        same_room_or_guest = (bookings.c.room == wish.room) | (bookings.c.guest == wish.guest)
        query = sa.select(bookings.c.id).where(bookings.c.night == wish.night, same_room_or_guest).limit(1)
        with self._engine.begin() as connection:
            _claim(connection, held)  # first: from now on, no earlier holder can change what is read here
            return connection.scalar(query) is None

    def insert(self, wish: Wish, held: Mapping[str, int]) -> None:
        """Write the booking.  Raises `caslock.StaleFence` if a later holder of a key was here meanwhile."""
        fence = max(held.values(), default=None)
        with self._engine.begin() as connection:
            _claim(connection, held)
            connection.execute(sa.insert(bookings).values(**wish._asdict(), fence=fence))

    def totals(self) -> dict[str, int]:
        """Count the bookings, those of a room that was sold already, and those of a guest who had a room already."""
        night, room, guest = bookings.c.night, bookings.c.room, bookings.c.guest
        with self._engine.connect() as connection:
            count, last = connection.execute(sa.select(sa.func.count(), sa.func.max(night)).select_from(bookings)).one()
            rooms, guests = (
                connection.scalar(
                    sa.select(sa.func.count()).select_from(sa.select(night, other).distinct().subquery()),
                )
                or 0
                for other in (room, guest)
            )
        return {
            "bookings": count,
            "last_night": last or 0,
            "rooms_twice": count - rooms,
            "guests_twice": count - guests,
        }

    def latest(self, number: int) -> list[dict[str, object]]:
        """Return the latest bookings."""
        columns = (bookings.c.id, bookings.c.night, bookings.c.room, bookings.c.guest)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(*columns).order_by(bookings.c.id.desc()).limit(number))
            return [dict(row) for row in rows.mappings()]

    def publish(self, pid: int, waiting: Sequence[Mapping[str, object]]) -> None:
        """Say which requests of a worker wait."""
        row = {"seen": time.time(), "waiting": [*waiting]}
        with self._engine.begin() as connection:
            if connection.execute(sa.update(workers).where(workers.c.pid == pid).values(row)).rowcount == 0:
                connection.execute(sa.insert(workers).values(pid=pid, **row))

    def waiting(self) -> list[dict[str, object]]:
        """Return which requests of all workers wait, the longest first."""
        query = sa.select(workers.c.pid, workers.c.waiting).where(workers.c.seen > time.time() - SILENT)
        with self._engine.connect() as connection:
            found = [{**each, "pid": pid} for pid, waiting in connection.execute(query) for each in waiting]
        return sorted(found, key=lambda each: each["since"])


def _claim(connection: sa.Connection, held: Mapping[str, int]) -> None:
    """Refuse an earlier holder of the keys until the end of this transaction, and a late write of ours."""
    for key in sorted(held):  # in one order, so that no two transactions wait for each other
        write_row(connection, fences, {"key": key}, fence=held[key])


def _set_up_sqlite(connection: sa.engine.interfaces.DBAPIConnection, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout = 30000")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()
