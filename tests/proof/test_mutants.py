"""Plausible bugs, planted one by one: each is caught, and it is known by which layers."""

from __future__ import annotations

from typing import Final

import pytest

from caslock.protocol.attempt import Attempt
from tests.proof.laws.locks import LockContract
from tests.proof.laws.trouble import KINDS
from tests.proof.mutants.layers import Check, Law, Mutant
from tests.proof.mutants.table import CONTRACT, MUTANTS, SEEDS, law
from tests.proof.test_laws_bite import REMOVALS

# What an interrupt took out of every hand, a connection or a coroutine, ends when it is collected.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """Every check that is meant for a mutant passes without it, and fails with it, for the right reason."""
    for check in mutant.checks:
        assert check.catches(mutant, request), f"it survives {check.layer}: {mutant.wrong}"


SEEN_RED: Final = [
    *((removal.scenario, removal.arguments) for removal in REMOVALS),
    *((check.scenario, dict(check.arguments)) for each in MUTANTS for check in each.checks if isinstance(check, Law)),
]
"""Scenarios of `LockContract`, and their cases, that fail without a protection: here or in `test_laws_bite`."""
FEW: Final = SEEDS._replace(most=100)


def test_every_kind_of_fault_bites() -> None:
    """There is no kind of fault that all protections could be removed for, unseen."""
    assert {arguments["kind"] for _, arguments in SEEN_RED if "kind" in arguments} == set(KINDS)


def test_no_scenario_is_idle() -> None:
    """All scenarios but one have been seen red."""
    scenarios = {name for name in dir(LockContract) if name.startswith("test_")}
    assert scenarios - {scenario for scenario, _ in SEEN_RED} == {"test_an_interrupted_renewal_loses_nothing"}


@pytest.mark.parametrize("check", [CONTRACT, law("test_fences_only_grow"), FEW], ids=lambda check: check.layer)
def test_what_is_no_bug_is_not_caught(check: Check, request: pytest.FixtureRequest) -> None:
    """A layer is silent about a mutant that changes nothing."""
    assert not check.catches(Mutant("no bug", "Nothing is wrong.", (check,)), request)


@pytest.mark.parametrize("check", [law("test_fences_only_grow"), SEEDS], ids=lambda check: check.layer)
def test_a_mutant_that_stumbles_is_not_caught(check: Check, request: pytest.FixtureRequest) -> None:
    """An error of a mutant's own, such as a TypeError, is no verdict: it is raised."""
    stumbles = Mutant("stumbles", "It is badly written.", (check,), ((Attempt, "next_record", lambda _: None),))
    with pytest.raises((TypeError, AssertionError), match="takes 1 positional argument"):
        check.catches(stumbles, request)
