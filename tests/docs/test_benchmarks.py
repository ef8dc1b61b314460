"""The benchmarks: figures are computed right, and a small run of all measures gives figures of the right shape."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.candidate import Handle
from benchmarks.figures import Section, fairness, overlaps, percentile
from benchmarks.measures.contended import Watch, Worker
from benchmarks.ratios import ratios
from benchmarks.report import Row
from tests.support.locations import until
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]


def test_percentile_is_the_nearest_rank() -> None:
    """A percentile is one of the values: the smallest that enough of them do not exceed."""
    values = list(range(100, 0, -1))
    assert [percentile(values, part) for part in (0.0, 0.01, 0.5, 0.99, 1.0)] == [1, 1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1, 2, 3], 0.5) == 2
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([], 0),
        ([(0, 10, 20)], 0),
        ([(0, 10, 20), (1, 20, 30), (0, 31, 40)], 0),
        ([(0, 10, 20), (1, 19, 30)], 1),
        ([(1, 19, 30), (0, 10, 20)], 1),  # in whatever order they were noted down
        ([(0, 10, 100), (1, 20, 30), (2, 40, 50)], 2),  # a long one hides no later one
        ([(0, 10, 20), (1, 10, 20)], 1),
        ([(0, 10, 20), (1, 15, 15)], 1),  # even one that takes no time
    ],
)
def test_overlaps_are_counted(sections: list[tuple[int, int, int]], expected: int) -> None:
    """Every section (worker, from, until) that begins while another worker is in one counts; touching does not."""
    assert overlaps(Section(worker, got - 1, got, left) for worker, got, left in sections) == expected


def test_fairness_shows_who_got_the_lock() -> None:
    """Changes of holder, their time, shares and the longest wait, also of current waiters, come from the sections."""
    sections = [Section(0, 0, 1_000_000, 2_000_000), Section(0, 2_000_000, 2_500_000, 3_000_000)]
    sections += [Section(1, 0, 5_000_000, 6_000_000)]
    told = fairness(sections, workers=2, waiting_since=[1_000_000], end=9_000_000)
    assert told.handed_on == 0.5
    assert told.handover_ms == (2.0, 2.0)
    assert told.jain == pytest.approx(0.9)
    assert told.longest_wait_ms == 8.0


def contend(make: Callable[[str], Handle], workers: int = 3, seconds: float = 0.1) -> list[Watch]:
    crew = [Worker(make, "key", f"own {number}", 0.002) for number in range(workers)]
    for worker in crew:
        worker.start()
    for worker in crew:
        assert worker.ready.wait(50)
    start = time.monotonic_ns() + 10_000_000
    for worker in crew:
        worker.start_at, worker.end_at = start, start + int(seconds * 1e9)
        worker.go.set()
    for worker in crew:
        worker.join(50)
    return [worker.watch() for worker in crew]


def overlaps_of(watches: list[Watch]) -> int:
    return overlaps(Section(number, *noted) for number, watch in enumerate(watches) for noted in watch.sections)


def test_a_lock_that_excludes_nobody_is_found_out() -> None:
    """Workers with a lock that does nothing overlap; with one that works they do not."""
    assert until(lambda: overlaps_of(contend(lambda _: Handle(int, int))) > 0)
    locks: dict[str, threading.Lock] = {}

    def make(key: str) -> Handle:
        lock = locks.setdefault(key, threading.Lock())
        return Handle(lock.acquire, lock.release)

    sound = list[Watch]()
    while not any(watch.sections for watch in sound):  # all have begun too late
        sound = contend(make)
    assert overlaps_of(sound) == 0


def test_errors_are_counted_and_the_worker_goes_on() -> None:
    """A lock that raises at each second acquire costs no worker its run, and each error is counted."""
    calls = iter(range(1_000_000))

    def acquire() -> None:
        if next(calls) % 2:
            raise OSError("no answer")

    locks = {"key": Handle(acquire, int), "own 0": Handle(int, int)}
    assert until(lambda: (watch := contend(locks.__getitem__, 1)[0]).sections and watch.errors["OSError: no answer"])


def test_a_ratio_is_ours_divided_by_theirs() -> None:
    """A ratio without figures is NaN; with figures it is caslock's divided by the other's, of the same location."""
    assert all(math.isnan(ratio.ratio) for ratio in ratios({}))
    rows: list[Row] = [
        {"candidate": "caslock", "place": "Redis", "kind": "caslock", "median_us": 75.0},
        {"candidate": "SET NX PX + EVALSHA by redis-py", "place": "Redis", "kind": "floor", "median_us": 100.0},
        {"candidate": "caslock", "place": "file", "kind": "caslock", "median_us": 50.0},
        {"candidate": "filelock", "place": "file", "kind": "peer", "median_us": math.nan},
    ]
    known = {ratio.figure: ratio for ratio in ratios({"uncontended": rows}) if not math.isnan(ratio.ratio)}
    assert [*known] == ["Redis, alone: time"]
    assert known["Redis, alone: time"].ratio == 0.75
    assert known["Redis, alone: time"].divided_by == "SET NX PX + EVALSHA by redis-py"


@pytest.mark.long
def test_all_measures_give_figures(redis_server: Server, memcached_server: Server, tmp_path: Path) -> None:
    """A small run over caslock and the floors measures everything, finds no overlap, and writes it down."""
    environment = os.environ | {"CASLOCK_TEST_REDIS": redis_server.url, "CASLOCK_TEST_MEMCACHED": memcached_server.url}
    command = [sys.executable, "-m", "benchmarks", "--effort", "smoke", "--without-peers", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert {"date", "effort", "Python", "system", "caslock", "redis", "Redis server"} <= set(written["circumstances"])
    measures = written["measures"]
    assert set(measures) == {
        *("uncontended", "requests", "one_task", "many_tasks"),
        *("imports", "objects", "handover", "waiters", "contended"),
    }
    for name, rows in measures.items():
        assert rows, name
        assert [row for row in rows if row["error"]] == [], name
    for row in measures["contended"]:
        assert row["overlaps"] == 0, row
        assert row["per_second"] > 0, row
        assert not row["errors"], row
        assert 0 < row["jain"] <= 1.000001, row
    assert all(row["early"] == 0 for row in measures["handover"])
    assert all(row["intruders"] == 0 for row in measures["waiters"])
    locations = {row["place"] for row in measures["uncontended"] if row["candidate"] == "caslock"}
    assert locations == {"Redis", "memcached", "file", "memory"}
    assert {"lower", "higher"} == {ratio["better"] for ratio in written["ratios"]}
    assert ET.parse(tmp_path / "chart.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own picture
    assert "caslock divided by others" in done.stdout
