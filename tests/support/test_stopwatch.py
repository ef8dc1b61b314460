"""The stopwatch does not count what the machine was late by, and counts everything else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from caslock.testing import stopwatch
from caslock.testing.stopwatch import Stopwatch

NAP = 0.2


def test_time_that_is_waited_counts() -> None:
    """Sleep is no lateness: if it were, each nap would be late for all of its time."""
    naps = [Stopwatch() for _ in range(100)]
    for watch in naps:
        with watch:
            time.sleep(NAP / 20)
    assert any(watch.late < watch.elapsed for watch in naps)


@pytest.mark.long
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


def test_a_processor_that_the_host_has_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel says how long each was stopped, in hundredths of a second or the like; the longest one counts."""
    now = 1000.0
    stat, looker = tmp_path / "stat", SimpleNamespace(start=lambda: None, stop=lambda: None, read=lambda: (now, 0.25))
    monkeypatch.setattr(stopwatch, "STAT", stat)
    monkeypatch.setattr(stopwatch, "_LOOKER", looker)
    lines = "cpu 1 2 3 4 5 6 7 {} 9 10\ncpu0 1 2 3 4 5 6 7 {} 9 10\ncpu1 1 2 3 4 5 6 7 {} 9 10\nintr 8 7 6\n"
    stat.write_text(lines.format(150, 100, 50))
    with Stopwatch() as watch:
        now += 7
        stat.write_text(lines.format(165, 105, 60))
        stopped = 10 / os.sysconf("SC_CLK_TCK")
        assert watch.late == pytest.approx(stopped)
    stat.write_text(lines.format(999, 999, 999))
    assert (watch.elapsed, watch.late) == pytest.approx((7, stopped))


def test_a_look_that_is_overdue_counts_already() -> None:
    """Lateness counts when it is asked for, even before the thread that looks at the clock has run again."""
    before = sys.getswitchinterval()
    with Stopwatch() as watch:
        sys.setswitchinterval(60.0)
        try:
            until = time.monotonic() + NAP
            while time.monotonic() < until:
                pass
            late = watch.late
        finally:
            sys.setswitchinterval(before)
    assert late >= NAP / 2, "the other thread can't have run"


def test_lateness_never_becomes_less() -> None:
    """Not even when a look that counted as overdue turns out to have ended a little earlier."""
    looker, now = stopwatch._Looker(), time.monotonic()
    looker._seen = 1.0, now - 500.0
    late = looker.read()[1]
    assert late > 500.0
    looker._seen = 501.0, now + 500.0
    assert looker.read()[1] >= late


def test_stopwatches_that_run_together_do_not_disturb_each_other() -> None:
    """Each counts from its own beginning to its own end."""
    with Stopwatch() as outer:
        with Stopwatch() as first:
            time.sleep(NAP)
        with Stopwatch() as second:
            pass
        assert first.elapsed >= NAP
    assert outer.elapsed >= first.elapsed + second.elapsed
    assert outer.late >= first.late
