"""The law of this file: the contract runs in this very process, quietly, on keys of our own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from caslock.cli.scratch import Scratch
from caslock.testing import StoreContract
from caslock.testing.drive import driven
from caslock.testing.torture import sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.store import AsyncStore, Store
    from caslock.testing.torture import Plan


class Broken(NamedTuple):
    """A sentence of the contract that does not hold."""

    sentence: str
    why: str


class ContractResult(NamedTuple):
    """What came of it."""

    passed: int
    broken: list[Broken]
    interrupted: bool


class TestStore(StoreContract):
    """The contract, on the store under test."""

    @pytest.fixture
    def store(self, scratch_store: Store) -> Store:
        """Give one client."""
        return scratch_store

    @pytest.fixture
    def another_store(self, another_scratch_store: Store) -> Store:
        """Give another."""
        return another_scratch_store


class _Plugin:
    """What pytest is told, and tells."""

    def __init__(self, mine: Store, theirs: Store, told: Callable[[int], object]) -> None:
        self.passed = 0
        self.broken: list[Broken] = []
        self._mine, self._theirs, self._told = mine, theirs, told

    @pytest.fixture
    def scratch_store(self) -> Store:
        return self._mine

    @pytest.fixture
    def another_scratch_store(self) -> Store:
        return self._theirs

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sentence = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            crash = getattr(report.longrepr, "reprcrash", None)
            self.broken.append(Broken(sentence, (crash.message if crash else str(report.longrepr))[:400]))
        elif report.when == "call" and report.passed:
            self.passed += 1
            self._told(self.passed)


def run_contract(make: Callable[[], Store | AsyncStore], plan: Plan, told: Callable[[int], object]) -> ContractResult:
    """Run the contract on stores that `make` makes; nothing is left of it afterwards."""
    touched, prefix = set[str](), f"{plan.scratch}contract:"
    mine, theirs = make(), make()
    plugin = _Plugin(Scratch(driven(mine), prefix, touched), Scratch(driven(theirs), prefix, touched), told)
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
        if not sweep(driven(mine), plan, touched):
            plugin.broken.append(Broken("it cleans up after itself", "some keys could not be removed"))
        for store in (mine, theirs):
            getattr(store, "close", lambda: None)()
    if not plugin.broken and not plugin.passed and code != pytest.ExitCode.INTERRUPTED:
        plugin.broken.append(Broken("the contract runs", f"pytest ended with {code!r}"))
    return ContractResult(plugin.passed, plugin.broken, code == pytest.ExitCode.INTERRUPTED)
