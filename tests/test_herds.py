"""Many waiters cost a store that queues them a bounded number of requests, and a store that can't, not many more."""

from __future__ import annotations

import pytest

from tests.herds.herd import HOLD, TURNS, herd


@pytest.mark.parametrize(("waiters", "threads"), [(10, 1), (10, 10), (200, 1), (200, 10), (200, 100)])
def test_a_waiter_that_the_store_queues_costs_three_requests_at_most(waiters: int, threads: int) -> None:
    """However many wait: a put that finds the key held, one that waits, and a removal.  Nobody overlaps."""
    figures = herd(waiters, threads, queueing=True)
    assert figures.ended
    assert (figures.acquisitions, figures.overlaps) == (TURNS * waiters, 0)
    assert 1.0 <= figures.requests_per_acquisition <= 3.0
    assert figures.longest_wait > (waiters - 1) * HOLD / 2


def test_a_herd_is_the_same_each_time() -> None:
    """In virtual time, so many waiters are one run."""
    assert herd(20, 1, queueing=False) == herd(20, 1, queueing=False)


def test_a_herd_at_a_polled_store_is_no_avalanche() -> None:
    """Where the store cannot queue, a hundred processes look less often the more of them there are (ten cost 4)."""
    figures = herd(100, 1, queueing=False)
    assert figures.ended
    assert (figures.acquisitions, figures.overlaps) == (200, 0)
    assert 3.0 < figures.requests_per_acquisition < 18.0
