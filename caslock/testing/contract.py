"""The contract of a store as tests.

Subclass `StoreContract` with a fixture `store`, and pytest runs it on your store::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)  # a Store or an AsyncStore

Two more fixtures make it stricter.  `another_store` returns a second store on the same server.  `caslock_server` tells
the kit how to put its fault proxy between a store and its server; without it those tests are skipped, and say so::

        @pytest.fixture
        def caslock_server(self):
            return StoreServer("localhost", 6379, lambda host, port: MyStore(host, port, timeout=0.5), timeout=0.5)

If the store has no server, let that fixture return None.

Tests of an optional Protocol that the store does not have, and of ``close``, are skipped with a reason.  All other
names that the kit gives to pytest begin with ``caslock_``, so that they never hide a fixture or a parameter of yours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from uuid import uuid4

import pytest

from caslock.testing.batching_contract import BatchingContract
from caslock.testing.drive import driven
from caslock.testing.entry_contract import EntryContract
from caslock.testing.life_contract import LifeContract
from caslock.testing.listing_contract import ListingContract
from caslock.testing.queueing_contract import QueueingContract
from caslock.testing.server_contract import ServerContract
from caslock.testing.steps import Clients
from caslock.testing.version_contract import VersionContract
from caslock.testing.watching_contract import WatchingContract

if TYPE_CHECKING:
    from caslock.store import AsyncStore, Store


_EVERY_STORE: Final = ("get", "put_if_version", "invalidate", "traits")


# pytest runs the tests of the last base class first.
class StoreContract(
    ServerContract,
    LifeContract,
    ListingContract,
    BatchingContract,
    QueueingContract,
    WatchingContract,
    EntryContract,
    VersionContract,
):
    """The contract of a store.  Subclass it with a fixture `store`."""

    _told: ClassVar[bool]
    """Set once a test has failed because `store` gives no store."""

    @pytest.fixture
    def another_store(self, store: Store | AsyncStore) -> Store | AsyncStore:
        """Give a second client of the same place.  Override it where there can be one."""
        return store

    @pytest.fixture
    def caslock_clients(self, store: Store | AsyncStore, another_store: Store | AsyncStore) -> Clients:
        """Give both clients, and a key that no other test uses; what is no store fails the first test only."""
        if lacking := [name for name in _EVERY_STORE if not hasattr(store, name)]:
            has_not = " and ".join(f"no {name}" for name in lacking)
            message = (
                f"{type(store).__name__} has {has_not}, which every store has: see caslock.Store and caslock.Traits"
            )
            if "_told" in vars(type(self)):
                pytest.skip(message)
            type(self)._told = True
            pytest.fail(message, pytrace=False)
        return Clients(driven(store), driven(another_store), f"contract:{uuid4().hex}")
