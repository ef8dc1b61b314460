"""Runs the contract of a store under pytest in this process, quietly, on keys that begin with the run's prefix."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from caslock.testing import StoreContract, StoreServer
from caslock.verify import locations
from caslock.verify.cleanup import remove_keys
from caslock.verify.prefixed import PrefixedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.store import Store
    from caslock.verify import Plan
    from caslock.verify.route import Route


_PATIENCE: Final = 30.0
"""Seconds for an answer: one that is slow because the server is busy does not break the contract."""


class Sentence(NamedTuple):
    """A sentence of the contract that does not hold, or was not tried."""

    sentence: str
    why: str


class ContractResult(NamedTuple):
    """What came of it."""

    passed: int
    broken: list[Sentence]
    skipped: list[Sentence]
    interrupted: bool

    def to_dict(self) -> dict[str, object]:
        """Give it as plain data."""
        broken, skipped = ([each._asdict() for each in sentences] for sentences in (self.broken, self.skipped))
        return {"passed": self.passed, "broken": broken, "skipped": skipped}


class TestStore(StoreContract):
    """The contract, on the store under test."""

    @pytest.fixture
    def store(self, prefixed_store: Store) -> Store:
        """Give one client."""
        return prefixed_store

    @pytest.fixture
    def another_store(self, another_prefixed_store: Store) -> Store:
        """Give another."""
        return another_prefixed_store

    @pytest.fixture
    def caslock_server(self, store_server: StoreServer) -> StoreServer:
        """Give the way to the server."""
        return store_server


class _Plugin:
    """The fixtures of the contract, and what came of its tests."""

    def __init__(self, plan: Plan, route: Route, told: Callable[[str], object]) -> None:
        self.passed = 0
        self._total = 0
        self.broken: list[Sentence] = []
        self.skipped: list[Sentence] = []
        self.touched = set[str]()
        self._plan, self._route, self._told = plan, route, told

    def _prefixed(self, url: str) -> PrefixedStore:
        return PrefixedStore(locations.open_blocking(self._plan, url), f"{self._plan.prefix}contract:", self.touched)

    @pytest.fixture
    def prefixed_store(self) -> Iterator[Store]:
        store = self._prefixed(locations.with_timeout(self._plan.url, _PATIENCE))
        yield store
        locations.close(store)

    another_prefixed_store = prefixed_store

    @pytest.fixture
    def store_server(self) -> StoreServer:
        if self._route.server is None:
            pytest.skip(self._route.why_not)
        timeout = self._route.timeout

        def make(host: str, port: int) -> Store:
            return self._prefixed(locations.through(self._plan.url, port, timeout, host))

        return StoreServer(*self._route.server, make, timeout)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        sentence = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped.append(Sentence(sentence, why.removeprefix("Skipped: ")))
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.broken.append(Sentence(sentence, (crash.message if crash else str(report.longrepr))[:400]))
        elif report.when == "call" and report.passed:
            self.passed += 1
        done = self.passed + len(self.broken) + len(self.skipped)
        self._told(f"{done} of {self._total} tests")


def run_contract(plan: Plan, route: Route, told: Callable[[str], object]) -> ContractResult:
    """Run the contract on the plan's store; nothing is left of it afterwards.

    `told` is called with how many tests have come to an end.
    """
    plugin = _Plugin(plan, route, told)
    before = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        with tempfile.TemporaryDirectory(prefix="caslock-verify-") as folder:
            settings = Path(folder, "pytest.ini")
            settings.write_text("[pytest]\n")
            code = pytest.main(
                [
                    *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:logging"),
                    *("-c", str(settings), "--rootdir", folder, "--import-mode=importlib", "-o", "python_files=*.py"),
                    f"{__file__}::TestStore",
                ],
                plugins=[plugin],
            )
    finally:
        if before is None:
            del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        else:
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = before
        store = locations.open_direct(plan)
        if not remove_keys(store, plan, plugin.touched):
            plugin.broken.append(Sentence("it cleans up after itself", "some keys could not be removed"))
        locations.close(store)
    if not plugin.broken and not plugin.passed and code != pytest.ExitCode.INTERRUPTED:
        plugin.broken.append(Sentence("the contract runs", f"pytest ended with {code!r}"))
    return ContractResult(plugin.passed, plugin.broken, plugin.skipped, code == pytest.ExitCode.INTERRUPTED)
