"""QuorumLocks under a scheduler that loses, delays and repeats requests, and cancels and kills callers."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from caslock.local.quorum import QuorumState
from caslock.protocol import quorum
from caslock.protocol.life import State
from caslock.protocol.quorum import Ballot
from tests.proof.simulator import Violation
from tests.proof.simulator.chance import by_chance
from tests.proof.simulator.quorum import QuorumRun, drawn, simulate
from tests.proof.simulator.story import text

if TYPE_CHECKING:
    from collections.abc import Callable

# They open nothing: what is collected as garbage meanwhile was left by a test before them.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

SEEDS = int(os.environ.get("CASLOCK_SEEDS", "10000")) // 40


@pytest.mark.parametrize("part", range(2))
def test_no_interleaving_of_faults_breaks_a_law(part: int) -> None:
    """Random plans, each with its own faults."""
    steps = sum(simulate(seed) for seed in range(part, SEEDS, 2))
    assert steps > 50 * SEEDS


def test_the_runs_have_what_they_are_about() -> None:
    """Locks are held, votes are split, leases are won back, and losses are told."""
    stories = ""
    for seed in range(150):
        run = QuorumRun(drawn(seed))
        try:
            by_chance(run, random.Random(~seed))
        finally:
            run.close()
        stories += text(run.story)
    for what in (
        "holds the lock",
        "LockLost",
        "NotAcquired",
        "StoreUnavailable",
        "is killed",
        "interrupted",
        "lands late",
    ):
        assert stories.count(what) > 5, what


def half_is_a_majority(stores: int) -> int:
    """Let two owners each have a majority."""
    return stores // 2


def the_longest_lease(self: Ballot) -> float:
    """Believe for as long as any lease lasts."""
    return max((vote.attempt.lease.deadline for vote in self.votes if vote.counts), default=-float("inf"))


async def give_nothing_back(self: QuorumState, ballot: Ballot) -> None:
    """Keep the leases of a lost vote, and of a released lock."""
    del self
    for vote in ballot.close():
        vote.attempt.state = State.HELD


def lose_in_silence(self: QuorumState, *_: object) -> None:
    """Notice no loss of a lease."""
    del self


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (quorum, "majority", half_is_a_majority),
        (Ballot, "deadline", property(the_longest_lease)),
        (QuorumState, "_give_back", give_nothing_back),
        (QuorumState, "_part_lost", lose_in_silence),
    ],
    ids=["half_is_a_majority", "the_longest_lease", "give_nothing_back", "lose_in_silence"],
)
def test_a_rule_that_is_taken_out_is_missed(
    owner: object, name: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is noticed within the seeds that CI runs."""
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(Violation):
        sum(map(simulate, range(SEEDS)))
