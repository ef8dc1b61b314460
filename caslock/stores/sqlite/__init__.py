"""The store in one local SQLite file."""

from caslock.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
