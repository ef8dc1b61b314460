"""The same faults for all: caslock is right after each, and the checks find what is wrong with a naive lock."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import redis
import redis.asyncio

import caslock
from benchmarks.faults.__main__ import Play, played
from benchmarks.faults.lost_replies import told_released
from benchmarks.faults.ours import ours, ours_async
from benchmarks.faults.scenes import SCENES, excuse
from benchmarks.faults.stage import Cell
from benchmarks.faults.subject import AsyncGrip, AsyncMake, AsyncSubject, Grip, Make, Report, Subject, Way
from benchmarks.places import FILE_PLACE, MEMCACHED_PLACE, REDIS_PLACE, Places
from tests.support.servers import Server

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("peer_faults"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

REDIS_OPTIONS = "?socket_timeout=3&socket_connect_timeout=20"


class Naive:
    """A lock as it is often written: it deletes without comparing, and takes a flag for the truth."""

    def __init__(self, client: redis.Redis, key: str, lease: float, *, forgets: bool) -> None:
        self._client, self._key, self._lease, self._forgets = client, key, lease, forgets
        self._held = False

    def acquire(self, wait: float) -> bool:
        end = time.monotonic() + wait
        while not self._held and not self._client.set(self._key, "taken", nx=True, px=int(self._lease * 1000)):
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        self._held = True
        return True

    def release(self) -> None:
        held, self._held = self._held, False
        if held or not self._forgets:
            self._client.delete(self._key)

    def __enter__(self) -> None:
        self.acquire(1)

    def __exit__(self, *error: object) -> None:
        self.release()


def naive(name: str, *, forgets: bool = False) -> Subject:
    """Return the naive lock; one that forgets before the server has answered does nothing when released again."""

    def opens(way: Way, lease: float) -> Make:
        client = redis.Redis.from_url(f"redis://{way.host}:{way.port}/0{REDIS_OPTIONS}")

        def make(key: str) -> Grip:
            lock = Naive(client, key, lease, forgets=forgets)
            return Grip(lock.acquire, lock.release, lock)

        return make

    return Subject(name, REDIS_PLACE, opens)


def naive_async(way: Way, lease: float) -> AsyncMake:
    client = redis.asyncio.Redis.from_url(f"redis://{way.host}:{way.port}/0{REDIS_OPTIONS}")

    def make(key: str) -> AsyncGrip:
        async def acquire(wait: float) -> bool:
            while not await client.set(key, "taken", nx=True, px=int(lease * 1000)):
                if wait == 0:
                    return False
                await asyncio.sleep(0.02)
            return True

        async def release() -> None:
            await client.delete(key)

        return AsyncGrip(acquire, release)

    return make


CASLOCK = (
    ours(REDIS_PLACE, REDIS_OPTIONS),
    ours_async(REDIS_OPTIONS),
    ours(MEMCACHED_PLACE, "?timeout=3"),
    ours(FILE_PLACE),
)
NAIVE = (naive("naive"), naive("forgetful", forgets=True), AsyncSubject("naive", REDIS_PLACE, naive_async))


@pytest.fixture(scope="module")
def cells(
    redis_server: Server, memcached_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Cell]:
    """Play every scene with all of them at once: what each cell says, by row and column."""
    store = caslock.connect(memcached_server.url)
    store.get("x")  # waits for a memcached that has only just started
    store.close()
    folder: Path = tmp_path_factory.mktemp("faults")
    locations = Places(folder, {REDIS_PLACE: redis_server, MEMCACHED_PLACE: memcached_server})
    play = Play((*CASLOCK, *NAIVE), tuple(SCENES), lease=8.0, short_lease=3.0, side_by_side=16, limit=600.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.faults.pauses.NOTICE", 10.0)
        return {(subject.label, name): cell for subject, name, cell in played(play, locations)}


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("subject", CASLOCK, ids=lambda subject: subject.label)
def test_caslock_does_what_is_right(
    cells: dict[tuple[str, str], Cell], subject: Subject | AsyncSubject, name: str
) -> None:
    """Whatever fault there is, caslock does what the scene calls right; where there can be none, it says why."""
    cell = cells[subject.label, name]
    assert cell.verdict == ("n/a" if excuse(name, subject) else "ok"), cell.note


@pytest.mark.parametrize(
    ("label", "name", "verdict"),
    [
        ("naive, Redis", "acquire cut", "BLOCKED"),
        ("naive, Redis", "acquire mute", "BLOCKED"),
        ("naive, Redis", "release cut", "LOST LOCK"),
        ("naive, Redis", "release mute", "LOST LOCK"),
        ("naive, Redis", "fork", "LOST LOCK"),
        ("naive, Redis", "shared", "TWO INSIDE"),
        ("naive, Redis", "stale", "LOST LOCK"),
        ("naive, Redis", "pause", "not told"),
        ("naive, Redis", "fence", "no fence"),
        ("naive, Redis", "outage", "ok"),  # it can be released again after it
        ("forgetful, Redis", "outage", "BLOCKED"),
        ("naive, Redis, asyncio", "stale", "LOST LOCK"),
    ],
)
def test_the_judge_bites(cells: dict[tuple[str, str], Cell], label: str, name: str, verdict: str) -> None:
    """A naive lock gets the verdict that it deserves."""
    assert cells[label, name].verdict.startswith(verdict), cells[label, name].note


def test_orphans_are_counted(cells: dict[tuple[str, str], Cell]) -> None:
    """Cancelled acquires of a naive lock leave keys that nobody holds."""
    cell = cells["naive, Redis, asyncio", "cancel"]
    number, _, word = cell.verdict.partition(" ")
    assert word == "ORPHANS", cell.note
    assert int(number) > 10


def test_verdicts_on_a_release() -> None:
    """What others found weighs most, then what the call returned or raised first."""
    fine, gone, silent = (
        Report(result, error, error or "None", 0.0)
        for result, error in ((False, ""), (None, "NotYours"), (None, "ConnectionError"))
    )

    def verdict(first: Report, second: Report, blocked: float = 0.0, *, safe: bool = True) -> str:
        return told_released(first, second, blocked, ["NotYours"], safe=safe)

    assert verdict(fine, gone) == "ok"
    assert verdict(silent, fine) == "ok"
    assert verdict(silent, gone) == "unclear"
    assert verdict(silent, silent) == "unclear"
    assert verdict(gone, gone) == "FALSE LOSS"
    assert verdict(fine, gone, 3.0) == "BLOCKED 3 s"
    assert verdict(fine, fine, 3.0, safe=False) == "LOST LOCK"
