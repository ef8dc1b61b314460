"""The store in a bucket of NATS JetStream."""

from caslock.stores.nats.store import AsyncNatsStore, NatsStore

__all__ = ["AsyncNatsStore", "NatsStore"]
