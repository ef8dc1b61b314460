"""The table, and how the rows of keys are named in it.

A row is never deleted: a removal leaves it as a tombstone, so its version goes on counting.  The first version is the
server's clock in microseconds, which a row that is written less than a million times a second does not overtake: also
where somebody has deleted tombstones, versions only grow.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, __version__
from sqlalchemy.dialects import mysql

from caslock.store import MAX_KEY, MAX_VALUE, check_key

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

_LONGEST_NAME: Final = 255  # bytes; every InnoDB row format can index as many
_HEAD: Final = 190  # bytes of a longer key that begin its name


def _bytes(longest: int) -> TypeEngine[bytes]:
    return LargeBinary().with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


# Half of each page is left free, so that PostgreSQL can write the new version of a row beside the old one.  SQLAlchemy
# has this option since 2.1.
_FREE: Final[dict[str, Any]] = {} if __version__.startswith("2.0.") else {"postgresql_with": {"fillfactor": 50}}

metadata: MetaData = MetaData()
"""The table of the stores, for Alembic: ``target_metadata = [your_metadata, caslock.stores.sql.metadata]``."""

TABLE: Final = Table(
    "caslock",
    metadata,
    Column("name", _bytes(_LONGEST_NAME), primary_key=True, comment="the key in UTF-8, or its beginning and a digest"),
    Column("long_key", _bytes(4 * MAX_KEY), comment="the key, where it is too long for a name"),
    Column("value", _bytes(MAX_VALUE), nullable=False),
    Column("version", BigInteger, nullable=False, autoincrement=False, comment="counts the puts into this row"),
    Column("expires", BigInteger, nullable=False, comment="microseconds since 1970 by the server's clock; 0: removed"),
    mysql_engine="InnoDB",
    **_FREE,
)


def name_of(key: str) -> tuple[bytes, bytes | None]:
    """Return the name of a key's row, and the key in bytes if it is too long to be the name."""
    name = check_key(key)
    if len(name) <= _LONGEST_NAME:
        return name, None
    # No UTF-8 has the byte 0xff, so no key is the name of another.
    return name[:_HEAD] + b"\xff" + hashlib.sha256(name).digest(), name


def place_of(name: bytes) -> int:
    """Return the number by which a key is waited for: that of an advisory lock, and of a channel."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"caslock").digest(), "big", signed=True)
