"""No more tests run at one time than there are processors, but for those that wait."""

from __future__ import annotations

import re
from pathlib import Path

from caslock.testing import StoreContract
from tests.support.turns import TOGETHER, WAITING, waits

ROOT = Path(__file__).parents[2]


def test_what_waits_is_known_by_its_name() -> None:
    """Each name is that of a file, a class or a test, and a test is found by it, with whatever parameters."""
    for name in (*WAITING, *TOGETHER):
        file, _, test = name.partition("::")
        assert (ROOT / file).exists()
        if test and not hasattr(StoreContract, test):
            assert re.search(rf"\b(def {test}|class {test}\()", (ROOT / file).read_text())
    assert waits("tests/proof/test_contract.py::TestRedis::test_a_refused_connection_is_not_sent")
    assert waits("tests/stores/test_redis_cluster.py::test_nodes_that_are_stopped_cost_two_timeouts[blocking-cold]")
    assert not waits("tests/api/test_lock.py::test_one_at_a_time[redis]")
