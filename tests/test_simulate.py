"""The real core under a scheduler that loses, delays and repeats its requests, and cancels it."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from caslock import claim, core
from caslock.claim import Claim
from caslock.testing.simulate import Run, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.record import Record

SEEDS = 1_500


def simulate(seed: int) -> None:
    """Run one seed: 2 to 4 clients, 3 to 6 rounds each, at three rates of faults."""
    random.seed(seed)  # tenacity's jitter
    Run(seed, clients=2 + seed % 3, rounds=3 + seed % 4, faults=(0.1, 0.3, 0.5)[seed % 3]).run()


def simulate_all(seeds: int) -> None:
    """Run many seeds."""
    for seed in range(seeds):
        simulate(seed)


def test_no_interleaving_of_faults_breaks_a_law() -> None:
    """Whatever is lost, late, doubled or cancelled: beliefs never overlap, fences grow, failures are final."""
    simulate_all(SEEDS)


def test_a_seed_replays_exactly() -> None:
    """The same seed tells the same story."""
    stories = []
    for _ in range(2):
        random.seed(7)
        run = Run(7, clients=3, rounds=5)
        run.run()
        stories.append([line.split("[")[0] for line in run.story])
    assert stories[0] == stories[1]
    assert len(stories[0]) > 10


def leave_nothing(self: Claim, standing: Record, version: int, now: float) -> Record | None:
    """Remove the record although a lost put may still arrive."""
    del version, now
    others = self.others(standing) if self.stands_in(standing) else standing.holds
    return standing._replace(holds=others, write=self.mark()) if others else None


def believe_from_the_reply(self: Claim, record: Record, version: int, now: float) -> None:
    """Count the lease from when the answer came."""
    STAND(self, record, version, now)
    self.deadline = now + self.lease


def shorten_others(self: Claim, standing: Record | None, version: int) -> Record:
    """Write the record with our own, shorter ttl."""
    bid = BID(self, standing, version)
    return bid._replace(ttl=self.lease)


def new_fence_at_each_write(self: Claim, standing: Record | None, version: int) -> Record:
    """Leave the fence out of renewals and re-entries."""
    return BID(self, standing, version)._replace(fence=None)


def take_anybodys(self: Claim, record: Record | None) -> bool:
    """Write over whoever stands there."""
    del self, record
    return True


def forget_what_was_sent(self: Claim, version: int) -> bool:
    """Think that no late request can land."""
    del self, version
    return False


def stand_in_any(self: Claim, record: Record | None) -> bool:
    """Take the owner's name for the proof that this attempt stands."""
    return record is not None and record.owner == self.owner


STAND, BID = Claim.stand, Claim.bid

MUTANTS: list[tuple[type, str, Callable[..., object]]] = [
    (Claim, "farewell", leave_nothing),
    (Claim, "stand", believe_from_the_reply),
    (Claim, "bid", shorten_others),
    (Claim, "bid", new_fence_at_each_write),
    (Claim, "may_take", take_anybodys),
    (Claim, "may_land", forget_what_was_sent),
    (Claim, "stands_in", stand_in_any),
]


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Take a protection out of the core for a while."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@pytest.mark.parametrize(("owner", "name", "mutant"), MUTANTS, ids=[mutant[2].__name__ for mutant in MUTANTS])
def test_the_simulator_catches_a_core_without_that_protection(
    owner: type, name: str, mutant: Callable[..., object]
) -> None:
    """Each protection that is taken out of the core is missed within the same seeds."""
    with replaced(owner, name, mutant), pytest.raises(Violation):
        simulate_all(20_000)


async def give_up_without_looking(*args: object) -> None:
    """Report a failure without making it definite."""


def test_the_simulator_catches_an_acquire_that_gives_up_without_looking() -> None:
    """An acquire that reports a failure while its own hold may stand is caught."""
    with replaced(core, "give_up", give_up_without_looking), pytest.raises(Violation):
        simulate_all(SEEDS)


def test_the_simulator_catches_a_lease_that_is_believed_too_long() -> None:
    """A margin below zero is an overlap of beliefs."""
    with replaced(claim, "margin", lambda lease: -0.5 * lease), pytest.raises(Violation):
        simulate_all(SEEDS)
