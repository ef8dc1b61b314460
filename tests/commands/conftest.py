"""A store for locks of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from caslock import ClosableStore, Lock, connect


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Name the store of the locks."""
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def store(url: str) -> ClosableStore:
    """Open the same store, in which there has been a lock."""
    store = connect(url)
    with Lock(store, "first"):
        return store
