"""Plausible bugs, planted one by one: each is caught, and it is known by which layers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest

from caslock.protocol.attempt import Attempt
from tests.proof.mutants.layers import LAYERS, Mutant
from tests.proof.mutants.table import CONTRACT, MUTANTS, SEEDS, law

if TYPE_CHECKING:
    from tests.proof.mutants.layers import Check

# What an interrupt took out of every hand, a connection or a coroutine, ends when it is collected.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),  # ten seconds of work for some, on a machine that may be busy
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CAUGHT: Final = {
    "unconditional invalidate": "contract, laws",
    "get-then-delete": "laws, simulator",
    "get-then-delete in a store": "contract",
    "a miss taken as a win": "laws, simulator",
    "hold id shared over attempts": "simulator",
    "owner name as identity": "simulator",
    "deadline from the reply": "simulator, directed",
    "extend that shortens late": "laws, simulator",
    "extend that ends the renewals": "simulator",
    "extend that re-creates": "laws, simulator",
    "release without version": "contract",
    "versions that restart": "contract, laws",
    "memcached versions that restart": "directed",
    "ttl missing on renewal": "contract",
    "ttl missing on renewal in the protocol": "laws, simulator",
    "retry that counts twice": "laws, simulator",
    "retry beyond its bound": "laws",
    "timeout taken as 'not acquired'": "laws, simulator",
    "timeout taken as 'released'": "laws, simulator",
    "hold forgotten before the answer": "laws, simulator",
    "fork keeps ownership": "directed",
    "connection kept after BaseException": "directed",
    "connection kept after BaseException by Redis": "directed",
    "hand-over without a new fence": "laws, simulator",
    "MultiLock unsorted": "laws, simulator, directed",
    "MultiLock that queues for every key first": "simulator, torture",
    "next one in the local queue not woken": "simulator",
    "MultiLock that leaks on the k-th failure": "laws, simulator",
    "MultiLock that stops at the first failed release": "laws, simulator",
    "random fence": "laws, simulator",
    "new fence at each renewal": "laws, simulator",
    "memcached ttl without margin": "directed",
    "free record treated as held": "laws, simulator",
    "held record treated as free": "laws, simulator",
    "foreign value treated as free": "laws",
    "thread name as identity": "laws",
    "no drift margin": "laws, simulator",
    "failed acquire not made definite": "laws, simulator",
    "removal while a lost put may land": "laws, simulator",
    "late request forgotten": "laws, simulator",
    "re-entry that drops the other holds": "laws, simulator",
    "renewal that revives": "simulator",
    "renewal accepted under another fence": "laws",
    "clean-up beside a renewal": "directed",
    "wait past the end of a lease": "directed",
    "loss not reported": "laws, simulator",
    "successor promised and forgotten": "simulator",
    "successor told too early": "simulator",
    "releaser told too early": "simulator",
    "key handed to a waiter that has gone": "simulator, directed",
    "no second look as the key is handed over": "simulator",
    "next one let in before the last has left": "simulator",
    "successor named beside others that leave": "simulator",
    "hold id read after another thread has drawn one": "simulator",
    "extension by a loop that is gone": "simulator",
    "force_release of the next holder": "simulator",
    "inner release that frees the key": "simulator",
    "local queue never left": "simulator",
    "batch of puts without an answer forgotten": "simulator",
    "batch of puts repeated key by key": "simulator",
    "quarantine that begins anew": "simulator",
    "batch of releases without an answer taken as released": "laws, simulator, directed",
    "interrupted clean-up forgotten": "simulator",
    "min_hold forgotten": "simulator",
    "kept key taken by who has released it": "simulator",
    "loser not told": "contract, laws",
}
"""By which layers each mutant is caught."""

_said: dict[str, dict[str, str]] = {}
"""What each layer has said of a mutant."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """Every check that is meant for a mutant passes without it, and fails with it, for the right reason."""
    said = {check.layer: check.catches(mutant, request) for check in mutant.checks}
    _said[mutant.name] = {layer: what for layer, what in said.items() if what}
    assert [*_said[mutant.name]] == [check.layer for check in mutant.checks], f"it survives: {mutant.wrong}"


def test_the_layers_that_catch_each_mutant_are_known() -> None:
    """What is meant to catch each mutant, as the test above has seen it do, is as it was.

    ``-s -n 0`` prints the table for ``docs/proof.md``.
    """
    lines = ["", "| mutant | what is wrong | caught by |", "|---|---|---|"]
    for mutant in MUTANTS:
        if mutant.name in _said:  # by this process
            by = "; ".join(f"{layer}: {what}" for layer, what in _said[mutant.name].items())
            lines.append(f"| {mutant.name} | {mutant.wrong} | {by} |")
    sys.stdout.write("\n".join([*lines, ""]))
    meant = {mutant.name: {check.layer for check in mutant.checks} for mutant in MUTANTS}
    assert {name: ", ".join(layer for layer in LAYERS if layer in checks) for name, checks in meant.items()} == CAUGHT


@pytest.mark.parametrize("check", [CONTRACT, law("test_fences_only_grow"), SEEDS], ids=lambda check: check.layer)
def test_what_is_no_bug_is_not_caught(check: Check, request: pytest.FixtureRequest) -> None:
    """A layer is silent about a mutant that changes nothing."""
    assert check.catches(Mutant("no bug", "Nothing is wrong.", (check,)), request) == ""


@pytest.mark.parametrize("check", [law("test_fences_only_grow"), SEEDS], ids=lambda check: check.layer)
def test_a_mutant_that_stumbles_is_not_caught(check: Check, request: pytest.FixtureRequest) -> None:
    """An error of a mutant's own, such as a TypeError, is no verdict: it is raised."""
    stumbles = Mutant("stumbles", "It is badly written.", (check,), ((Attempt, "next_record", lambda _: None),))
    with pytest.raises((TypeError, AssertionError), match="takes 1 positional argument"):
        check.catches(stumbles, request)
