"""A store in ZooKeeper, through kazoo's settings and its formats of packets."""

from caslock.stores.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
