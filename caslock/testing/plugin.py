"""Fixtures for pytest: ``pytest_plugins = ["caslock.testing.plugin"]`` in the topmost ``conftest.py`` brings them in.

It is not registered as an entry point, because pytest would then import caslock wherever it is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from caslock.testing.store_for_tests import AsyncStoreForTests, StoreForTests

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def caslock_store() -> Iterator[StoreForTests]:
    """A store in memory for `caslock.Lock`, with ``lose(hold)``, ``make_busy(key)`` and ``unavailable()``."""
    store = StoreForTests()
    yield store
    store.end()


@pytest.fixture
def caslock_async_store(caslock_store: StoreForTests) -> Iterator[AsyncStoreForTests]:
    """The same for `caslock.AsyncLock`, over the memory of ``caslock_store``: they exclude each other."""
    store = AsyncStoreForTests(caslock_store.memory)
    yield store
    store.end()
