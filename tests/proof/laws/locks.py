"""Tests of a lock over a store whose requests fail as planned, through `Lock` and `AsyncLock`: `LockContract`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final
from uuid import uuid4

import pytest

from caslock.store import AsyncStore, Store
from caslock.testing.drive import is_async
from tests.proof.laws.holders import Holders
from tests.proof.laws.owners import Owners
from tests.proof.laws.scene import Asyncio, Blocking, Scene
from tests.proof.laws.several import SeveralKeys
from tests.proof.laws.trials import Trials
from tests.proof.laws.waiters import Waiters

PLAYS: Final[dict[str, type[Blocking | Asyncio]]] = {"blocking": Blocking, "asyncio": Asyncio}


class LockContract(Waiters, SeveralKeys, Owners, Trials, Holders):
    """The laws of a lock: subclass it with a fixture `store`; pytest begins with the last of these classes.

    `another_store` should be a second client of the same place, where there can be one.
    """

    apis: ClassVar[tuple[str, ...]] = ("blocking", "asyncio")
    """The APIs that the store serves: a `Store` both, an `AsyncStore` only asyncio."""

    proved: ClassVar[tuple[str, ...]] = ()
    """Those of them with which only `make prove` tries the laws: they depend little on the store."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every scenario with every API."""
        if "scene" in metafunc.fixturenames:
            apis = [pytest.param(api, marks=pytest.mark.long if api in self.proved else ()) for api in self.apis]
            metafunc.parametrize("scene", apis, indirect=True)

    @pytest.fixture
    def another_store(self, store: Store | AsyncStore) -> Store | AsyncStore:
        """Return another client of the same location; override it where there can be one."""
        return store

    @pytest.fixture
    def scene(
        self, request: pytest.FixtureRequest, store: Store | AsyncStore, another_store: Store | AsyncStore
    ) -> Iterator[Scene]:
        """Make the scene for one API."""
        play = PLAYS[request.param]()
        if is_async(store) and isinstance(play, Blocking):
            pytest.skip('an AsyncStore has no blocking API: set apis = ("asyncio",)')
        scene = Scene(play, store, another_store, f"locks:{uuid4().hex}")
        yield scene
        scene.end()
