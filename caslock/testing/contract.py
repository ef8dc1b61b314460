"""The law of this file: whatever passes `StoreContract` can carry a lock; what breaks locks in the field comes first.

Subclass it with one fixture, and pytest runs the contract on your store::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)  # a Store or an AsyncStore

What a store can do beyond the three verbs is tried where it says that it can: the tests of `WakingStore` and of
`BatchingStore` return at once on a store that is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from caslock.testing.batch_contract import BatchContract
from caslock.testing.drive import driven
from caslock.testing.entry_contract import EntryContract
from caslock.testing.version_contract import VersionContract
from caslock.testing.waiting_contract import WaitingContract

if TYPE_CHECKING:
    from caslock.store import AsyncStore, Store


class StoreContract(BatchContract, WaitingContract, EntryContract, VersionContract):
    """The contract of a store: subclass it with a fixture `store`; pytest begins with the last of these classes.

    `another_store` should be a second client of the same place, where there can be one.
    """

    @pytest.fixture
    def another_store(self, store: Store | AsyncStore) -> Store | AsyncStore:
        """Give another client of the same place; override it where there can be one."""
        return store

    @pytest.fixture
    def mine(self, store: Store | AsyncStore) -> Store:
        """One client, whose verbs can simply be called."""
        return driven(store)

    @pytest.fixture
    def theirs(self, another_store: Store | AsyncStore) -> Store:
        """Another client."""
        return driven(another_store)

    @pytest.fixture
    def key(self) -> str:
        """A key that no other test uses."""
        return f"contract:{uuid4().hex}"
