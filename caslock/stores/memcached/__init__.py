"""The store in one memcached server."""

from caslock.stores.memcached.store import MemcachedStore

__all__ = ["MemcachedStore"]
