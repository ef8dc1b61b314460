"""The store on TairString: the module for Redis, and the command set of Alibaba Cloud's Tair."""

from caslock.stores.tair.store import AsyncTairStore, TairStore

__all__ = ["AsyncTairStore", "TairStore"]
