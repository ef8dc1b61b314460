"""Tortured on every store, a lock keeps its laws; and the judge who says so is shown to bite.

``CASLOCK_TORTURE_SECONDS`` says how long each store is tortured (20).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest

from caslock import Lock, connect
from caslock.errors import StoreUnavailable
from caslock.stores.redis import RedisStore
from caslock.stores.sqlite import SQLiteStore
from caslock.testing.torture import PREFIX, Event, Judgement, Plan, judge, torture
from caslock.testing.torture.__main__ import NOT_TRIED, main
from caslock.testing.torture.history import History, read
from caslock.testing.torture.own import _TIED as TIED
from caslock.testing.torture.own import KINDS, own_store
from caslock.testing.torture.own import Server as OwnServer
from caslock.testing.torture.places import through
from caslock.testing.torture.resource import FencedCounter, Late
from caslock.testing.torture.standing import SLACK
from caslock.testing.torture.timeline import timeline
from tests.servers import MEMCACHED, REDIS, missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from caslock import Entry
    from caslock.testing.torture.history import What
    from tests.servers import Server

SECONDS = float(os.environ.get("CASLOCK_TORTURE_SECONDS", "20"))

unix = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP here")
for_long = pytest.mark.timeout(
    SECONDS + 120
)  # one that hangs is waited for as long as a plan's `grace`, and is told of


@unix
@for_long
def test_sqlite_withstands_torture(tmp_path: Path) -> None:
    """Lost, late and doubled requests, stopped and killed workers: no law of a lock is broken on SQLite."""
    check(Plan(url=f"sqlite:///{tmp_path}/locks.db", seconds=SECONDS, seed=1), None)


@unix
@for_long
def test_redis_withstands_torture(new_redis: Callable[..., Server]) -> None:
    """Nor on Redis, which is stopped, killed with all it knows, and out of memory for a while, besides."""
    server = new_redis()
    plan = Plan(url=server.url, seconds=SECONDS, seed=2, restart_every=SECONDS / 3, squeeze_every=SECONDS / 3)
    check(plan, server)


@unix
@for_long
def test_memcached_withstands_torture(new_memcached: Callable[..., Server]) -> None:
    """Nor on memcached, which is treated the same."""
    server = new_memcached("-m", "4", "-M")
    plan = Plan(url=server.url, seconds=SECONDS, seed=3, restart_every=SECONDS / 2, squeeze_every=SECONDS / 2)
    check(plan, server)


def check(plan: Plan, server: Server | None) -> None:
    """Torture, and want no violation, faults enough, and nothing left behind."""
    outcome = torture(plan, server=server if server and server.body else None)
    report = outcome.report
    assert not report.broken, report.reason
    assert report.passed
    assert (report.overlaps, report.fence_inversions, report.ghosts) == (0, 0, 0)
    assert report.requests > 25 * plan.seconds, report
    assert sum(report.faults.values()) > 5 * plan.seconds, report
    assert report.sections > plan.seconds, report
    with closing(connect(plan.url)) as store:  # type: ignore[type-var] # these stores can be closed
        assert [key for key in plan.names() if store.get(key)] == []
    root = ET.fromstring(timeline(outcome))  # noqa: S314 - our own
    assert len(root.findall("{*}rect")) > plan.seconds


# Stores that are broken in the ways that broke locks in the field.


class LooksThenRemoves(SQLiteStore):
    """Removes in two requests: it looks whether it is still its own, and then removes whatever stands."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        standing = self.get(key)
        if standing is None or standing.version != version:
            return standing
        time.sleep(random.uniform(0, 0.2))
        standing = self.get(key)
        return None if standing is None else super().invalidate(key, standing.version)


class EndsLeasesEarly(SQLiteStore):
    """Rounds a lease down."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return super().put_if_version(key, value, version, 0.6 * ttl)


class NeverEndsLeases(SQLiteStore):
    """Forgets the ttl."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return super().put_if_version(key, value, version, 3600 + ttl)


class FencesByChance(SQLiteStore):
    """Its versions don't grow, though it says so: they are its own, with a random number before them."""

    def _before(self, entry: Entry | None) -> Entry | None:
        dice = random.Random(entry.version if entry else 0)
        return entry and entry._replace(version=entry.version + (dice.randrange(1 << 20) << 60))

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return self._before(super().get(key))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        return self._before(super().put_if_version(key, value, version & ((1 << 60) - 1), ttl))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return self._before(super().invalidate(key, version & ((1 << 60) - 1)))


class Hangs(SQLiteStore):
    """Gives no worker an answer, ever."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        threading.Event().wait()
        return super().put_if_version(key, value, version, ttl)


class Stops(SQLiteStore):
    """Stops the worker that asks it."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`."""
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().put_if_version(key, value, version, ttl)


def _where() -> str:
    return os.environ["CASLOCK_BROKEN_DB"]


def looks_then_removes() -> SQLiteStore:
    """Make it."""
    return LooksThenRemoves(_where())


def ends_leases_early() -> SQLiteStore:
    """Make it."""
    return EndsLeasesEarly(_where())


def never_ends_leases() -> SQLiteStore:
    """Make it."""
    return NeverEndsLeases(_where())


def fences_by_chance() -> SQLiteStore:
    """Make it."""
    return FencesByChance(_where())


def hangs() -> SQLiteStore:
    """Make it."""
    return Hangs(_where())


def stops() -> SQLiteStore:
    """Make it."""
    return Stops(_where())


BROKEN = {
    looks_then_removes: ("overlap", 0.0),
    ends_leases_early: ("overlap", 2.0),
    never_ends_leases: ("ghost", 0.7),
    fences_by_chance: ("fence inversion", 2.0),
}
"""Which law each breaks, and every how many seconds a worker is killed to show it."""


@unix
@pytest.mark.timeout(120)
@pytest.mark.parametrize("factory", BROKEN, ids=lambda factory: factory.__name__)
def test_torture_finds_what_is_broken(
    factory: Callable[[], SQLiteStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few seconds of it are enough to find a store that removes what is not its own, or ends leases too early."""
    monkeypatch.setenv("CASLOCK_BROKEN_DB", str(tmp_path / "locks.db"))
    law, kill_every = BROKEN[factory]
    name = f"{__name__}:{factory.__name__}"
    plan = Plan(factory=name, seconds=4, ttls=(0.25, 0.5), keys=2, workers=4, pauses=4, kill_every=kill_every)
    broken: dict[str, int] = {}
    for seed in range(4):  # it is found in the first run nearly always
        report = torture(replace(plan, seed=seed)).report
        broken |= report.broken
        if law in broken:
            assert not report.passed
            assert law in report.reason
            return
    pytest.fail(f"{law} was not found, but {broken}")


@unix
@pytest.mark.parametrize(
    ("factory", "threads", "who"), [(hangs, 2, "worker1/0 worker1/1 worker2/0"), (stops, 1, "worker1 worker2")]
)
def test_a_hang_is_found(
    factory: Callable[[], SQLiteStore], threads: int, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not come to its end is told of by its worker, and a worker that can't by its parent."""
    monkeypatch.setenv("CASLOCK_BROKEN_DB", str(tmp_path / "locks.db"))
    monkeypatch.setattr("caslock.testing.torture.run.LEEWAY", 3.0)
    plan = Plan(
        factory=f"{__name__}:{factory.__name__}", seconds=3, ttls=(0.25, 0.5), keys=2, workers=1, threads=threads,
        tasks=1, pauses=0, kill_every=0, faults=0, quiet=True, patience=1,
    )  # fmt: skip
    outcome = torture(plan)
    assert [event.who for event in sorted(outcome.events, key=lambda event: event.who) if event.what == "hung"] == (
        who.split()
    )
    assert outcome.report.broken == {"hang": len(who.split())}, outcome.report
    where = [violation.text for violation in outcome.judgement.violations]
    assert all("put_if_version" in text for text in where if "/0" in text and "worker1" in text), where
    assert not outcome.report.passed


@unix
def test_one_without_processes_to_share_it_is_refused() -> None:
    """A memory lives in one process."""
    with pytest.raises(ValueError, match="one process"):
        torture(Plan(url="memory://"))


@unix
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stopped worker outlives a killed parent")
def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Kill -9 of who tortures ends all workers, even those that are stopped."""
    command = [sys.executable, "-m", "caslock.testing.torture", f"sqlite:///{tmp_path}/locks.db", "--seconds", "50"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # which a killed process can't clean up
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait(lambda: len(children(parent.pid)) >= 5)
        workers = children(parent.pid)
        time.sleep(1.0)
        os.kill(workers[0], signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait()
    wait(lambda: not any(alive(worker) for worker in workers))


def wait(condition: Callable[[], bool]) -> None:
    """Wait, within bounds, until a condition is true."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Name the children of a process."""
    output = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in output.stdout.split()]


def alive(pid: int) -> bool:
    """Tell whether a process still is."""
    output = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(output.stdout.strip()) and not output.stdout.startswith("Z")


# The judge, on histories that are made up.


class Tale:
    """A made-up history, told in the order of time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 100.0

    def tell(self, what: What, who: str, hold: str = "", *, fence: int = 0, until: float = 0.0, note: str = "") -> Tale:
        """Something happens, a tenth of a second after the last."""
        self.now += 0.1
        self.events.append(Event(self.now, what, who, "key", hold.partition(".")[0], hold, fence, until, note))
        return self

    def later(self, seconds: float) -> Tale:
        """Nothing happens for a while."""
        self.now += seconds
        return self

    def copy(self) -> Tale:
        """Give the story so far, to be gone on with otherwise."""
        other = Tale()
        other.events, other.now = list(self.events), self.now
        return other

    def section(self, who: str, hold: str, fence: int) -> Tale:
        """Somebody comes in, stays, and leaves in peace."""
        self.tell("try", who).tell("got", who, hold, fence=fence, until=self.now + 30)
        return self.tell("leave", who, hold).tell("left", who, hold, note="ok")

    def judged(self) -> Judgement:
        """Shuffle, and judge."""
        events = list(self.events)
        random.Random(1).shuffle(events)
        return judge(events)

    def broken(self) -> set[str]:
        """Name the laws that were broken."""
        return {violation.law for violation in self.judged().violations}


def test_a_good_history_breaks_no_law() -> None:
    """One after the other, with growing fences; who lost its lease is told; what is unknown stays unknown."""
    tale = Tale().section("a", "A.1", 1).section("b", "B.1", 2).section("a", "A.2", 3)
    tale.tell("try", "c").tell("failed", "c", note="unknown").tell("try", "c").tell("none", "c")
    tale.tell("try", "a").tell("got", "a", "A.3", fence=4, until=tale.now + 0.3)
    tale.tell("stop", "a").tell("try", "b").tell("go", "a")
    tale.tell("got", "b", "B.2", fence=5, until=tale.now + 30)  # after the deadline of A.3
    tale.tell("late", "a", "A.3", fence=4, note="write").tell("told", "a", "A.3").tell("leave", "a", "A.3")
    tale.tell("left", "a", "A.3", note="lost").tell("leave", "b", "B.2").tell("left", "b", "B.2", note="ok")
    found = tale.judged()
    assert found.violations == []
    assert (found.counts["got"], found.counts["late writes"], found.counts["failed unknown"]) == (5, 1, 1)
    assert len(found.tenures) == 5


def test_an_overlap_is_found() -> None:
    """Two owners who believe at the same time break the first law, also when others stood between them."""
    tale = Tale().tell("got", "a", "A.1", fence=1, until=130).section("b", "B.1", 2)
    assert "overlap" in tale.broken()
    long_ago = Tale().tell("got", "a", "A.1", fence=1, until=130)
    long_ago.tell("got", "a", "A.2", fence=2, until=100.25).tell("got", "a", "A.3", fence=3, until=100.35)
    assert "overlap" not in long_ago.broken()
    assert "overlap" in long_ago.tell("got", "b", "B.1", fence=4, until=130).broken()


def test_a_belief_is_taken_for_no_longer_than_it_was_proved() -> None:
    """It ends at the deadline that was last seen, at the release, at the loss, or when nobody has it in hand."""
    ends: list[What] = ["leave", "told", "dropped", "at"]
    for end in ends:
        tale = Tale().tell("got", "a", "A.1", fence=1, until=130)
        tale.tell(end, "a", "A.1").tell("got", "b", "B.1", fence=2, until=130)
        assert tale.broken() == set(), end
    extended = Tale().tell("got", "a", "A.1", fence=1, until=130).tell("extend", "a", "A.1", until=100.25)
    assert extended.tell("got", "b", "B.1", fence=2, until=130).broken() == set()
    renewed = Tale().tell("got", "a", "A.1", fence=1, until=100.15).tell("at", "a", "A.1", until=130)
    assert "overlap" in renewed.tell("got", "b", "B.1", fence=2, until=130).broken()


def test_an_owner_does_not_overlap_with_itself() -> None:
    """Holds of one explicit owner are one tenure, with one fence; holds of a private owner are not."""
    tale = Tale().tell("got", "a", "x:owner.1", fence=1, until=130)
    tale.events[-1] = tale.events[-1]._replace(owner="x:owner")
    tale.tell("got", "b", "x:owner.2", fence=1, until=130)
    tale.events[-1] = tale.events[-1]._replace(owner="x:owner")
    assert tale.broken() == set()
    assert Tale().section("a", "A.1", 1).section("a", "A.2", 1).broken() == {"fence twice"}


def test_one_owner_does_not_believe_in_two_fences() -> None:
    """Who goes by an owner's name joins its tenure; only one that comes after it has a larger fence."""
    for until, broken in ((130.0, {"two fences"}), (100.15, set[str]())):
        tale = Tale().tell("got", "a", "x:owner.1", fence=5, until=until)
        tale.tell("got", "b", "x:owner.2", fence=9, until=130)
        tale.events = [event._replace(owner="x:owner") for event in tale.events]
        assert tale.broken() == broken


def test_a_fence_inversion_is_found() -> None:
    """A later tenure has a larger fence, whoever has it."""
    assert Tale().section("a", "A.1", 2).section("b", "B.1", 1).broken() == {"fence inversion"}
    assert Tale().section("a", "A.1", 2).section("b", "B.1", 2).broken() == {"fence twice"}
    far = Tale().section("a", "A.1", 9).section("b", "B.1", 1).section("b", "B.2", 2)
    assert [violation.law for violation in far.judged().violations] == ["fence inversion"] * 2


def test_an_untold_loss_is_found() -> None:
    """Who releases in peace, though somebody else came in between, was not told; nor who waited in vain."""
    tale = Tale().tell("got", "a", "A.1", fence=1, until=100.15).section("b", "B.1", 2)
    tale.tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok")
    assert tale.broken() == {"untold loss"}
    assert Tale().tell("got", "a", "A.1", fence=1, until=130).tell("untold", "a", "A.1").broken() == {"untold loss"}
    back = Tale().tell("got", "a", "A.1", fence=1, until=130).tell("told", "a", "A.1").tell("at", "a", "A.1", until=130)
    assert back.broken() == {"loss taken back"}


def test_a_second_success_of_one_hold_id_is_found() -> None:
    """One acquire succeeds once."""
    assert "second success" in Tale().section("a", "A.1", 1).section("a", "A.1", 2).broken()


def test_a_false_failure_is_found() -> None:
    """Who reports failure must not stand, unless the network has sent its request once more since."""
    tale = Tale().tell("try", "a").tell("failed", "a", note="sure").tell("stands", "a", "A.1", fence=1)
    assert tale.broken() == {"false failure"}
    assert tale.tell("fault", "", "A.1", note="duplicate").broken() == set()


def test_who_is_broken_is_told() -> None:
    """From the call of `break_` on nobody counts on it; its holder must learn of it, and the next fence is larger."""
    tale = Tale().tell("try", "a").tell("got", "a", "A.1", fence=2, until=130)
    tale.tell("break", "c").tell("broke", "c", note="A.1").section("b", "B.1", 3)
    lost = tale.copy().tell("told", "a", "A.1").tell("leave", "a", "A.1").tell("left", "a", "A.1", note="lost")
    assert lost.broken() == set()
    assert tale.copy().tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok").broken() == {"untold loss"}
    assert tale.copy().tell("leave", "a", "A.1").tell("left", "a", "A.1", note="blind").broken() == set()
    assert tale.copy().section("d", "D.1", 2).broken() == {"fence inversion"}
    other = Tale().tell("got", "a", "A.1", fence=2, until=130).tell("break", "c").tell("broke", "c", note="X.1")
    assert other.section("b", "B.1", 3).broken() == {"overlap"}


def test_nothing_tells_of_a_break_once_a_lease_has_ended() -> None:
    """Where who came after has died, nothing stands, and the one that was broken can't know."""
    tale = Tale().tell("try", "a").tell("got", "a", "A.1", fence=2, until=130)
    tale.tell("break", "c").tell("broke", "c", note="A.1")
    tale.tell("got", "b", "B.1", fence=3, until=tale.now + 0.2).tell("stop", "b").tell("go", "b")
    assert tale.tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok").broken() == set()


def test_who_was_broken_may_leave_in_peace_where_another_may_have_stood_and_ended() -> None:
    """Whoever takes the free record, and whose lease then ends, leaves nothing that could tell of the break."""
    start = Tale().tell("try", "a", until=3.0).tell("got", "a", "A.1", fence=2, until=103)
    start.tell("break", "c").tell("broke", "c", note="A.1")
    late = start.copy().tell("try", "w/1").later(0.5).tell("got", "w/1", "B.1", fence=3, until=100.7)
    killed = start.copy().tell("try", "w/1").tell("kill", "w").later(0.5)
    alarmed = start.copy().tell("try", "w/1").tell("alarm", "w/1").later(0.5)
    rolled_back = start.copy().tell("try", "w/1").tell("failed", "w/1", "B.1", note="unknown").later(0.5)
    busy = start.copy().tell("try", "w/1").later(0.5).tell("none", "w/1", "B.1").section("b", "C.1", 4)
    early = Tale().tell("try", "w/1")
    early.events += start.events
    slept = start.copy().tell("try", "w/1").tell("got", "w/1", "B.1", fence=3, until=101).tell("leave", "w/1", "B.1")
    slept.later(0.5).tell("left", "w/1", "B.1", note="ok")
    blind = start.copy().tell("try", "w/1").tell("got", "w/1", "B.1", fence=3, until=101).tell("leave", "w/1", "B.1")
    blind.tell("left", "w/1", "B.1", note="blind")
    for number, tale in enumerate((late, killed, alarmed, rolled_back, busy, early, slept, blind)):
        tale.now = max(tale.now, 101.0)
        assert tale.tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok").broken() == set(), number
    slow = start.copy().tell("leave", "a", "A.1").tell("try", "w/1").tell("kill", "w").later(0.5)
    assert slow.tell("left", "a", "A.1", note="ok").broken() == set()
    long_after = start.copy().later(70).tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok")
    assert long_after.broken() == set()  # a free record ends as well


def test_who_was_broken_can_not_leave_in_peace_while_something_stands() -> None:
    """The free record does, and so does what came after it; who was killed long before has taken neither."""
    for before in ("", "kill", "alarm"):
        tale = Tale()
        if before:
            tale.tell("try", "w/1").tell("kill" if before == "kill" else "alarm", "w/1").later(2.0)
        tale.tell("try", "a", until=3.0).tell("got", "a", "A.1", fence=2, until=tale.now + 3)
        tale.tell("break", "c").tell("broke", "c", note="A.1")
        alone = tale.copy().tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok")
        assert alone.broken() == {"untold loss"}, before
        tale.tell("try", "b").tell("got", "b", "B.1", fence=3, until=tale.now + 30)
        tale.tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok")
        assert tale.broken() == {"untold loss"}, before


def test_who_was_forgotten_may_leave_in_peace() -> None:
    """Also if it did not look at its deadline for a while: it was renewed all the same."""
    tale = Tale().tell("try", "a", until=3.0).tell("got", "a", "A.1", fence=2, until=100.5).later(1.0)
    tale.tell("down", "").tell("up", "").section("b", "B.1", 3)
    assert tale.tell("leave", "a", "A.1").tell("left", "a", "A.1", note="ok").broken() == set()


@pytest.mark.parametrize("end", ["broke", "kill"])
def test_a_break_without_an_answer_may_have_broken_anybody(end: What) -> None:
    """Without an answer, or when who breaks is killed, whoever is there may have lost; who comes later has not."""
    tale = Tale().tell("got", "a", "A.1", fence=1, until=130).tell("break", "c/1")
    tale.tell(end, "c" if end == "kill" else "c/1", note="unknown").section("b", "B.1", 2)
    assert tale.broken() == set()
    assert tale.tell("got", "c", "C.1", fence=3, until=130).section("d", "D.1", 4).broken() == {"overlap"}


def test_a_hold_is_not_renewed_after_it_was_broken_or_forgotten() -> None:
    """A belief that grows longer than the last lease before that was renewed where nothing of it stood."""
    stories: list[tuple[tuple[What, str, str], ...]] = [
        (("break", "c", ""), ("broke", "c", "A.1")),
        (("down", "", ""), ("up", "", "")),
    ]
    for story in stories:
        tale = Tale().tell("try", "a", until=2.0).tell("got", "a", "A.1", fence=2, until=102.1)
        for what, who, note in story:
            tale.tell(what, who, note=note)
        assert tale.copy().tell("at", "a", "A.1", until=102.2).broken() == set()
        assert tale.copy().tell("at", "a", "A.1", until=103.0).broken() == {"untold loss"}
        extended = Tale().tell("try", "a", until=2.0).tell("got", "a", "A.1", fence=2, until=102.1)
        extended.tell("extend", "a", "A.1", until=104.0)
        for what, who, note in story:
            extended.tell(what, who, note=note)
        assert extended.tell("at", "a", "A.1", until=104.0).broken() == set()


def test_a_belief_that_outlasts_max_hold_is_found() -> None:
    """It is counted from the return of the acquire."""
    tale = Tale().tell("try", "a").tell("got", "a", "A.1", fence=1, until=103, note="5.0")
    assert tale.copy().tell("at", "a", "A.1", until=105).broken() == set()
    assert tale.tell("at", "a", "A.1", until=110).broken() == {"max_hold"}


def test_a_ghost_is_found_while_it_stands() -> None:
    """A record whose owner has gone ends with its lease; one that nobody renews does, whoever has it."""
    tale = Tale().tell("try", "w/1", "A.1").tell("got", "w/1", "A.1", fence=1, until=130)
    there = tale.copy().later(9.0).tell("seen", "", "A.1", fence=1, until=2.0)
    assert there.broken() == set()
    not_renewed = there.copy().later(2.5 + SLACK).tell("seen", "", "A.1", fence=1, until=2.0)
    assert not_renewed.broken() == {"ghost"}
    assert there.copy().later(2.5 + SLACK).tell("seen", "", "A.1", fence=2, until=2.0).broken() == set()
    ends: list[tuple[What, str]] = [("left", "w/1"), ("dropped", "w/1"), ("alarm", "w/1"), ("kill", "w")]
    for what, who in ends:
        gone = tale.copy().tell(what, who, "A.1" if what in ("left", "dropped") else "")
        assert gone.copy().later(2.5).tell("seen", "", "A.1", fence=2, until=2.0).broken() == set(), what
        assert gone.copy().later(2.5 + SLACK).tell("seen", "", "A.1", fence=2, until=2.0).broken() == {"ghost"}, what
        back = gone.tell("try", "w/2", "A.2").later(2.5 + SLACK)
        assert back.tell("seen", "", "A.1", fence=2, until=2.0).broken() == set(), what
    failed = Tale().tell("try", "w/1", "A.1").tell("none", "w/1", "A.1").later(2.5 + SLACK)
    assert failed.tell("seen", "", "A.1", fence=2, until=2.0).broken() == {"ghost"}


def test_what_lands_late_is_no_ghost_for_one_lease() -> None:
    """A put that was held or doubled lands when the fault says, or when who delivers it, or the server, goes on."""
    gone = Tale().tell("try", "w/1", "A.1").tell("failed", "w/1", "A.1", note="unknown")
    for stop in ("", "worker", "server"):
        tale = gone.copy().tell("fault", "w", "A.1", until=4.0, note="duplicate").later(3.0)
        if stop == "worker":
            tale.tell("stop", "w").later(2.0).tell("go", "w")
        elif stop == "server":
            tale.tell("freeze", "").later(2.0).tell("thaw", "")
        for seconds, broken in ((2.5, set[str]()), (4.5 + SLACK, {"ghost"})):
            late = tale.copy().later(seconds).tell("seen", "", "A.1", fence=2, until=2.0)
            assert late.broken() == broken, (stop, seconds)


def test_an_announced_loss_is_no_violation() -> None:
    """What a server forgets that was killed is lost; from then on the laws hold again, and fences all the time."""
    tale = Tale().tell("got", "a", "A.1", fence=1, until=130).tell("try", "c").tell("down", "").tell("up", "")
    tale.section("b", "B.1", 2).tell("got", "c", "C.1", fence=3, until=130).section("d", "D.1", 4)
    assert tale.broken() == set()
    assert tale.section("a", "A.2", 3).broken() == {"fence inversion"}
    again = Tale().tell("down", "").tell("up", "").tell("try", "a").tell("got", "a", "A.1", fence=1, until=130)
    assert "overlap" in again.section("b", "B.1", 2).broken()


def test_what_stands_for_ever_is_found() -> None:
    """Records without a ttl, records that outlive the end, forked children that hold, and updates that are lost."""
    assert Tale().tell("forever", "").broken() == {"no ttl"}
    assert Tale().tell("ghost", "").broken() == {"ghost"}
    assert Tale().tell("child", "a", "A.1", note="held").broken() == {"fork"}
    assert Tale().tell("child", "a", "A.1", note="inert").broken() == set()
    for count, broken in ((0, True), (1, False), (2, False), (3, True)):
        tale = Tale().tell("adding", "a", "A.1").tell("added", "a", "A.1").tell("adding", "b", "B.1")
        tale.tell("adding", "c", "C.1").tell("late", "c", "C.1", note="write")
        assert tale.tell("counter", "", fence=count).broken() == ({"lost update"} if broken else set()), count


def test_a_fenced_counter_refuses_who_comes_late(tmp_path: Path) -> None:
    """From the first touch with a larger fence on, the smaller one neither reads nor writes."""
    counter = FencedCounter(tmp_path / "counter")
    assert counter.count == 0
    assert counter.read(7) == 0
    counter.write(7, 1)
    assert counter.read(8) == 1
    for touch in (lambda: counter.read(7), lambda: counter.write(7, 2)):
        with pytest.raises(Late):
            touch()
    assert counter.count == 1


def test_a_history_survives_its_writer(tmp_path: Path) -> None:
    """A line that was cut off is left out; all others are read as they were written."""
    history = History(tmp_path / "a.history")
    history.note("got", "w/1", "key", "owner", "hold", fence=3, until=7.5, note="é")
    history.close()
    with (tmp_path / "a.history").open("ab") as file:
        file.write(b'[1.0, "got"')
    (event,) = read(tmp_path)
    assert event[1:] == ("got", "w/1", "key", "owner", "hold", 3, 7.5, "é")


def test_a_history_that_is_cut_short_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has too much to tell says so in its last line, and the judge takes that for a violation."""
    monkeypatch.setattr("caslock.testing.torture.history.MOST", 3)
    history = History(tmp_path / "a.history")
    for _ in range(5):
        history.note("clock", "w")
    history.close()
    events = list(read(tmp_path))
    assert [event.what for event in events] == ["clock", "clock", "cut"]
    assert [violation.law for violation in judge(events).violations] == ["history cut short"]


def test_a_plan_travels_as_json() -> None:
    """What a worker reads is what was meant; its keys are of this run alone."""
    plan = Plan(url="redis://h/0", ttls=(0.5, 1.0), seed=9)
    assert Plan.from_json(plan.to_json()) == plan
    assert len({*plan.names(), *Plan().names()}) == 2 * plan.keys
    assert all(key.startswith(PREFIX) for key in plan.names())


def test_a_url_leads_through_the_proxy() -> None:
    """User, password, database and options stay; host and port are the proxy's, and the timeouts short."""
    assert through("redis://u:p%40@h:1/3?protocol=3&socket_timeout=9", 77, 0.2) == (
        "redis://u:p%40@127.0.0.1:77/3?protocol=3&socket_timeout=0.2&socket_connect_timeout=0.2"
    )
    assert through("memcached://h?prefix=x", 77, 0.25) == "memcached://127.0.0.1:77?prefix=x&timeout=0.25"


@unix
def test_a_server_of_our_own_is_stopped_and_killed_and_leaves_with_the_run() -> None:
    """It answers where its URL says, forgets what it knew when it is killed, and ends."""
    if not shutil.which("redis-server") and not shutil.which("valkey-server"):
        missing(REDIS)
    with own_store("redis") as (url, server):
        assert server is not None
        with closing(RedisStore.from_url(url)) as store:
            store.put_if_version("key", b"value", 0, 60)
            server.pause()
            server.resume()
            assert store.get("key") is not None
            server.restart()
        with closing(RedisStore.from_url(url)) as store:
            assert store.get("key") is None
    with closing(RedisStore.from_url(url)) as store, pytest.raises(StoreUnavailable):
        store.get("key")


@unix
@pytest.mark.parametrize("name", KINDS)
def test_a_server_of_somebody_else_is_not_taken_for_our_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens where ours was to listen is left alone."""
    if not any(map(shutil.which, KINDS[name].binaries)):
        missing(REDIS if name == "redis" else MEMCACHED)
    with own_store(name) as (url, _):
        port = urlsplit(url).port
        with closing(connect(url)) as store:  # type: ignore[type-var] # these stores can be closed
            standing = store.put_if_version("key", b"value", 0, 60)
            monkeypatch.setattr("caslock.testing.torture.own._free_port", lambda: port)
            with pytest.raises(RuntimeError, match="does not answer"), own_store(name):
                pass
            assert store.get("key") == standing


@unix
def test_a_server_does_not_outlive_an_interrupt_of_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed before anybody else hears of the interrupt."""
    if not any(map(shutil.which, KINDS["redis"].binaries)):
        missing(REDIS)
    born: list[int] = []

    def struck(_server: object, pid: int) -> bool:
        born.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr("caslock.testing.torture.own.Server._answers", struck)
    with pytest.raises(KeyboardInterrupt), OwnServer(KINDS["redis"], tmp_path):
        pass
    assert [alive(pid) for pid in born] == [False]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ties a server to its parent")
def test_a_server_whose_parent_has_gone_already_does_not_start() -> None:
    """What ties it to its parent takes effect from then on only, so it looks once more."""
    for parent, output in ((os.getpid(), "started\n"), (1, "")):
        command = [sys.executable, "-I", "-S", "-c", TIED, str(parent), shutil.which("echo") or "echo", "started"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert (done.stdout, done.stderr) == (output, "")


@unix
def test_a_stopped_server_goes_on_after_an_interrupt(tmp_path: Path) -> None:
    """Whoever ends the run does not leave somebody's server stopped."""
    calls: list[str] = []

    class Frozen:
        def pause(self) -> None:
            calls.append("pause")
            signal.setitimer(signal.ITIMER_REAL, 0.01)

        def resume(self) -> None:
            calls.append("resume")

        def restart(self) -> None:
            calls.append("restart")

    def ring(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    plan = Plan(
        url=f"sqlite:///{tmp_path}/locks.db", seconds=5, server_pause_every=0.2, restart_every=0, squeeze_every=0,
        workers=1, threads=1, tasks=1,
    )  # fmt: skip
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(KeyboardInterrupt):
            torture(plan, server=Frozen())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert calls == ["pause", "resume"]


@unix
def test_a_server_that_is_not_installed_is_asked_for(tmp_path: Path) -> None:
    """Exit 2, and a line that says what to install."""
    command = [sys.executable, "-m", "caslock.testing.torture", "memcached"]
    environment = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no memcached on the PATH" in done.stderr


def test_a_wall_clock_goes_wrong() -> None:
    """By as much as was said, in that process; the clocks of leases go on."""
    script = (
        "import time\nfrom caslock import clock\nfrom caslock.testing.torture.wall_clock import WallClock\n"
        "wall, before, lease = WallClock(), time.time(), clock.now()\nwall.wrong = -7200\n"
        "print(round(time.time() - before), round(time.time_ns() / 1e9 - before), round(clock.now() - lease))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-7200", "-7200", "0"]


@unix
def test_the_command_line_prints_the_report(tmp_path: Path) -> None:
    """``python -m caslock.testing.torture URL`` ends with 0, tells its figures, and leaves other keys alone."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with Lock(connect(url), "somebody else's", ttl=50) as hold:
        command = [sys.executable, "-m", "caslock.testing.torture", url, "--seconds", "2", "--seed", "5"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        hold.extend()
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["passed"]
    assert report["seed"] == 5


@unix
def test_the_command_line_cleans_up_when_it_is_ended(tmp_path: Path) -> None:
    """After SIGTERM there is no process, no folder, and the exit code says which signal it was."""
    if not any(map(shutil.which, KINDS["redis"].binaries)):
        missing(REDIS)
    command = [sys.executable, "-m", "caslock.testing.torture", "redis", "--seconds", "50"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait(lambda: len(children(parent.pid)) >= 8)
        family = children(parent.pid)
        time.sleep(1.0)
        parent.terminate()
        output, said = parent.communicate(timeout=40)
    finally:
        parent.kill()
        parent.wait()
    assert (parent.returncode, output) == (128 + signal.SIGTERM, "")
    assert said.endswith("nothing is left behind\n")
    assert list(tmp_path.iterdir()) == []
    assert not any(alive(pid) for pid in family)


@pytest.mark.parametrize(
    "options",
    [
        "--seconds 0", "--seconds -1", "--seconds nan", "--seconds inf", "--ttl 0 1", "--ttl 2 1", "--ttl nan 1",
        "--ttl 1 inf", "--keys 0", "--workers 0", "--threads 0", "--tasks -1",
    ],
)  # fmt: skip
def test_the_command_line_refuses_what_can_not_be_meant(
    options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 before anything is started, and a line that names the option."""
    monkeypatch.setattr("sys.argv", ["torture", "sqlite", *options.split()])
    monkeypatch.setattr("caslock.testing.torture.__main__.torture", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == NOT_TRIED
    assert f"error: {options.split(maxsplit=1)[0]} must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:1/0", "memcached://127.0.0.1:1", "redis://h:port", "nonsense://h", "memory://", "/{}/no/x"],
)
def test_the_command_line_says_why_a_store_can_not_be_had(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line, as `caslock verify` has it."""
    monkeypatch.setattr("sys.argv", ["torture", f"sqlite://{url.format(tmp_path)}" if url[0] == "/" else url])
    assert main() == NOT_TRIED
    assert capsys.readouterr().err.count("\n") == 1
