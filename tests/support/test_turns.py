"""No more tests run at one time than there are processors, but for those that wait."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caslock.testing import StoreContract
from tests.support.locations import fresh
from tests.support.turns import PROCESSORS, TOGETHER, WAITING, turn, waits

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

ROOT = Path(__file__).parents[2]

IN_TURN = """
import sys
from tests.support.turns import turn
with turn(sys.argv[1]):
    print("in turn", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of bytes here")
def test_a_test_waits_until_another_has_ended(pool: ThreadPoolExecutor) -> None:
    """While as many tests run as there are processors, one more waits, but not one of another session."""
    session = fresh()

    def take() -> bool:
        with turn(session):
            return True

    with contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", IN_TURN, session],
                    cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for _ in range(PROCESSORS)
        ]  # fmt: skip
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "in turn\n"
        waiting = pool.submit(take)
        with turn(fresh()), pytest.raises(TimeoutError):
            waiting.result(0.1)
        others[0].kill()
        assert waiting.result(20)
        for other in others:
            other.kill()


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
