"""The store on Redis, Valkey and servers that speak as they do: standalone, behind Sentinel, or a Cluster."""

from caslock.stores.redis.requests import FOREIGN
from caslock.stores.redis.store import AsyncRedisStore, RedisStore

__all__ = ["FOREIGN", "AsyncRedisStore", "RedisStore"]
