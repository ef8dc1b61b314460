"""The stopwatch does not count what the machine was late by, and counts everything else."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.stopwatch import Stopwatch

NAP = 0.2


def test_time_that_is_waited_counts() -> None:
    """Sleep is no lateness."""
    with Stopwatch() as watch:
        time.sleep(NAP)
    assert watch.elapsed >= NAP
    assert watch.late < watch.elapsed


def test_what_a_busy_machine_adds_does_not_count() -> None:
    """Two programs compute on each processor: work takes three times as long, and its time without them is told."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        with Stopwatch() as watch:
            began = time.thread_time()
            while (work := time.thread_time() - began) < NAP:
                pass
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert watch.elapsed > 1.2 * work, "the programs have not slowed this one: the test shows nothing"
    assert watch.seconds <= work
