"""Stores in PostgreSQL and in MySQL or MariaDB: `table` is what is kept there, `store` has the two classes."""

from __future__ import annotations

from caslock.stores.sql.store import AsyncSQLStore, SQLStore
from caslock.stores.sql.table import metadata

__all__ = ["AsyncSQLStore", "SQLStore", "metadata"]
