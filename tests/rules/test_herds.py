"""Many waiters cost a store that queues them a bounded number of requests, and a store that can't, not many more."""

from __future__ import annotations

import pytest

from tests.rules.herds.herd import BODIES, HOLD, TURNS, herd, leaving, unequal
from tests.rules.herds.virtual_time import Waits


@pytest.mark.parametrize(("waiters", "threads"), [(10, 1), (10, 10), (200, 1), (200, 10), (200, 100)])
def test_a_waiter_that_the_store_queues_costs_three_requests_at_most(waiters: int, threads: int) -> None:
    """However many wait: a put that finds the key held, one that waits, and a removal.  Nobody overlaps."""
    figures = herd(waiters, threads, queueing=True)
    assert figures.ended
    assert (figures.acquisitions, figures.overlaps) == (TURNS * waiters, 0)
    assert 1.0 <= figures.requests_per_acquisition <= 3.0
    assert figures.longest_wait > (waiters - 1) * HOLD / 2


def test_a_herd_at_a_polled_store_is_no_avalanche() -> None:
    """Where the store cannot queue, a hundred processes look less often the more of them there are (ten cost 4)."""
    figures = herd(100, 1, queueing=False)
    assert figures.ended
    assert (figures.acquisitions, figures.overlaps) == (200, 0)
    assert 3.0 < figures.requests_per_acquisition < 18.0


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 10])
@pytest.mark.parametrize(("waits", "longest"), [("watching", 12.0), ("polled", 20.0)])
def test_a_process_that_is_farther_from_the_store_gets_its_turns(waits: Waits, threads: int, longest: float) -> None:
    """Three processes want a key all the time, for 300 s; the requests of one take 6 ms longer: it waits 300 s else."""
    near, other, far = unequal([0.0, 0.0, 0.003], threads, waits)
    turns = len(near) + len(other) + len(far)
    assert len(far) > turns / 12
    assert max(*near, *other, *far) < longest
    assert turns > 0.85 * 300 / (sum(BODIES) / len(BODIES))


@pytest.mark.parametrize("waits", ["watching", "polled"])
def test_a_process_that_nobody_sees_gets_its_turns(waits: Waits) -> None:
    """The nearer of two takes the key again and again, and never sees that the other one waits."""
    near, far = unequal([0.0, 0.003], 1, waits)
    assert len(far) > len(near) / 20
    assert max(*near, *far) < 20


@pytest.mark.long
def test_six_processes_wait_at_a_polled_store_in_turn() -> None:
    """One that has had the key lets others go first: without that, the longest wait in 300 s was 52 s."""
    waited = unequal([0.0] * 6, 1, "polled")
    assert max(map(max, waited)) < 15


@pytest.mark.parametrize(("processes", "waits"), [pytest.param(4, "watching", marks=pytest.mark.long), (3, "polled")])
def test_a_release_gets_through_to_a_record_that_keeps_changing(processes: int, waits: Waits) -> None:
    """Whoever releases a permit retries at once: with a pause first, one release can take the whole run."""
    leaves = leaving(processes, 4, 3, waits)
    assert len(leaves) > 2000
    assert max(leaves) < 0.5
