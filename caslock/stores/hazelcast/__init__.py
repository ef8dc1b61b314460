"""Stores in a map of Hazelcast, through the asyncio client of hazelcast-python-client."""

from caslock.stores.hazelcast.store import AsyncHazelcastStore, HazelcastStore

__all__ = ["AsyncHazelcastStore", "HazelcastStore"]
