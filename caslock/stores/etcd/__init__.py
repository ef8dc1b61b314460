"""The store in etcd, version 3."""

from caslock.stores.etcd.store import AsyncEtcdStore, EtcdStore

__all__ = ["AsyncEtcdStore", "EtcdStore"]
