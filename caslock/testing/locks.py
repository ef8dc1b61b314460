"""The law of this file: on a store that passes `LockContract`, a lock is right whatever happens to its requests.

Subclass it with one fixture, and pytest runs it on your store, through `caslock.Lock` and `caslock.AsyncLock`::

    class TestMyLocks(LockContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)  # a Store; for an AsyncStore add: apis = ("asyncio",)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from uuid import uuid4

import pytest

from caslock.testing.drive import is_async
from caslock.testing.holders import Holders
from caslock.testing.owners import Owners
from caslock.testing.scene import Asyncio, Blocking, Play, Scene
from caslock.testing.several import SeveralKeys
from caslock.testing.trials import Trials
from caslock.testing.waiters import Waiters

if TYPE_CHECKING:
    from caslock.store import AsyncStore, Store

PLAYS: Final[dict[str, type[Play]]] = {"blocking": Blocking, "asyncio": Asyncio}


class LockContract(Waiters, SeveralKeys, Owners, Trials, Holders):
    """The laws of a lock: subclass it with a fixture `store`; pytest begins with the last of these classes.

    `another_store` should be a second client of the same place, where there can be one.
    """

    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")
    """The APIs that the store serves: a `Store` both, an `AsyncStore` only asyncio."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every scenario with every API."""
        if "scene" in metafunc.fixturenames:
            metafunc.parametrize("scene", self.apis, indirect=True)

    @pytest.fixture
    def another_store(self, store: Store | AsyncStore) -> Store | AsyncStore:
        """Give another client of the same place; override it where there can be one."""
        return store

    @pytest.fixture
    def scene(
        self, request: pytest.FixtureRequest, store: Store | AsyncStore, another_store: Store | AsyncStore
    ) -> Scene:
        """Set the scene for one API."""
        play = PLAYS[request.param]()
        if is_async(store) and isinstance(play, Blocking):
            pytest.skip('an AsyncStore has no blocking API: set apis = ("asyncio",)')
        return Scene(play, store, another_store, f"locks:{uuid4().hex}")
