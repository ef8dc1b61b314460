"""Torture of locks on every store finds no violation; and it finds what is broken on purpose.

``CASLOCK_TORTURE_SECONDS`` says how long each store is tortured (8).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from caslock import connect
from caslock.protocol.shared_attempt import ReadWriteAttempt
from caslock.protocol.shares import Seen
from caslock.stores.sqlite import SQLiteStore
from caslock.verify import Plan, torture
from caslock.verify.plan import PAGE, POOL, SEVERAL
from caslock.verify.timeline import timeline
from tests.proof.torture import LAWS, TroubledServer, stores
from tests.proof.torture.__main__ import KINDS, OPTIONS
from tests.proof.torture.failover import SixNodes, TroubledPrimaries, Watched
from tests.support.locations import until
from tests.support.servers import Server, family, goes_on, private

SECONDS = float(os.environ.get("CASLOCK_TORTURE_SECONDS", "8"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("torture"),  # each has many processes: one after the other
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP here"),
]

HANG = 300.0
"""Seconds after which whoever has not come to its end is taken to hang: a server may take long to start again."""

patient = pytest.mark.timeout(10 * SECONDS + 4 * HANG)  # whoever hangs is reported sooner


@patient
def test_sqlite_withstands_torture(tmp_path: Path) -> None:
    """Lost, late and doubled requests, stopped and killed workers: no law of a lock is broken on SQLite."""
    check(Plan(url=f"sqlite:///{tmp_path}/locks.db", seconds=SECONDS, seed=1), None)


@patient
@pytest.mark.parametrize(
    ("name", "seed", "seconds", "pace"),
    [
        ("redis", 2, SECONDS, SECONDS / 3),  # forgets what it knew when it is killed, and is out of memory for a while
        ("memcached", 3, SECONDS, SECONDS / 2),  # so does memcached
        ("zookeeper", 5, SECONDS, SECONDS / 3),  # leases survive, as in the databases
        ("hazelcast", 7, 12, 4),  # forgets everything; there are no fences to judge
        ("etcd", 6, SECONDS, SECONDS / 3),  # leases begin anew
        ("nats", 7, SECONDS / 2, SECONDS / 5),  # leases survive
        ("postgresql", 9, SECONDS, SECONDS / 2),
        ("mariadb", 9, SECONDS, SECONDS / 2),
    ],
)
def test_a_server_withstands_torture(name: str, seed: int, seconds: float, pace: float, tmp_path: Path) -> None:
    """No law is broken on a server that is stopped, and killed, besides."""
    with private(KINDS[name], tmp_path, *OPTIONS.get(name, ())) as server:
        check(Plan(url=server.url, seconds=seconds, seed=seed), server, pace)


@patient
@pytest.mark.parametrize("kind", [SixNodes, Watched])
def test_redis_withstands_failovers(kind: type[SixNodes | Watched], tmp_path: Path) -> None:
    """No law is broken on a Cluster, or under Sentinel (replicas=1), whose primaries are stopped and killed."""
    sections = kills = 0
    with ExitStack() as stack:
        servers = kind(stack, tmp_path)
        plan = Plan(url=servers.url, seconds=SECONDS, seed=7, patience=HANG)
        while sections <= SECONDS or not kills:  # a machine that is busy does less in that time
            trouble = TroubledPrimaries(servers, SECONDS / 3)
            report = torture(plan, disturb=trouble.actions, laws=LAWS).report
            assert not report.broken, report.reason
            sections, kills = sections + report.sections, kills + trouble.kills


@patient
def test_dynamodb_withstands_torture(dynamodb_server: Server) -> None:
    """No law is broken on DynamoDB, which ends no lease: those of killed holders are taken over by observation."""
    check(Plan(url=dynamodb_server.url, seconds=8, seed=8), None)


@patient
def test_memcached_withstands_stops_under_short_leases(new_memcached: Callable[..., Server]) -> None:
    """A memcached that is stopped for longer than leases last breaks no law but for leases written as it goes on."""
    server = new_memcached()
    plan = Plan(
        url=server.url, seconds=SECONDS / 2, seed=4, ttls=(1.0, 3.0), answer_timeout=6.0, faults=0, several=0, keys=10,
        pauses=0, kill_every=0, patience=HANG,
    )  # fmt: skip
    sections, stops = 0, not server.body
    while not (sections and stops):  # as above
        pauses = TroubledServer(server, pause_every=3.0, restart_every=0, squeeze_every=0)
        report = torture(plan, disturb=pauses.actions if server.body else None, laws=LAWS).report
        assert not report.broken, report.reason
        sections, stops = sections + report.sections, stops or report.faults["server stopped"] > 0


def check(plan: Plan, server: Server | None, pace: float = 0.0) -> None:
    """Torture until enough has happened; expect no violation, nothing left; `pace`: seconds per server fault."""
    requests = faults = sections = drawn = 0
    plan = replace(plan, patience=HANG)
    while min(requests / 25, faults / 5, sections, drawn) <= plan.seconds:
        ours = TroubledServer(server, restart_every=pace, squeeze_every=pace) if server and server.body else None
        outcome = torture(plan, disturb=ours.actions if ours else None, laws=LAWS)
        report = outcome.report
        assert not report.broken, report.reason
        assert (report.overlaps, report.fence_inversions, report.orphans) == (0, 0, 0)
        with closing(connect(plan.url)) as store:
            assert [key for key in plan.all_names() if store.get(key)] == []
        requests, faults = requests + report.requests, faults + sum(report.faults.values())
        sections, drawn = sections + report.sections, drawn + len(ET.fromstring(timeline(outcome)).findall("{*}rect"))  # noqa: S314 - our own
        plan = replace(plan, seed=plan.seed + 100)


def named(factory: Callable[[], SQLiteStore]) -> str:
    return f"{stores.__name__}:{factory.__name__}"


def torture_who_waits(folder: Path, *, planted: bool) -> None:
    """Torture MultiLocks in processes that nobody stops or kills, which would excuse a long wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(stores.FILE, str(folder / "locks.db"))
        patch.setattr("caslock.verify.processes.PATIENCE", HANG)
        plan = Plan(
            factory=named(stores.queues_for_every_key_first if planted else stores.Plain), seconds=8.5,
            workers=2, threads=1, tasks=1, several=4, pauses=0, kill_every=0, faults=0, quiet=True,
        )  # fmt: skip
        for seed in range(4 if planted else 1):  # tried again: allowing for a late machine may hide the defect
            report = torture(replace(plan, seed=seed, seconds=plan.seconds * 2**seed), laws=LAWS).report
            assert not report.broken, report.reason
            assert report.passed


@pytest.fixture
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the file of the stores in `stores`, for the workers."""
    monkeypatch.setenv(stores.FILE, str(tmp_path / "locks.db"))
    monkeypatch.setattr("caslock.verify.processes.PATIENCE", HANG)


BROKEN: dict[type[SQLiteStore], tuple[str, float]] = {
    stores.LooksThenRemoves: ("overlap", 0.0),
    stores.EndsLeasesEarly: ("overlap", 2.0),
    stores.NeverEndsLeases: ("orphaned record", 0.7),
    stores.FencesByChance: ("fence inversion", 2.0),
}
"""Which law each breaks, and every how many seconds a worker is killed to show it."""


@patient
@pytest.mark.parametrize("factory", BROKEN, ids=lambda factory: factory.__name__)
@pytest.mark.usefixtures("_file")
def test_torture_finds_what_is_broken(factory: type[SQLiteStore]) -> None:
    """A few seconds of it are enough to find a store that removes what is not its own, or ends leases too early."""
    law, kill_every = BROKEN[factory]
    plan = Plan(factory=named(factory), seconds=4, ttls=(0.25, 0.5), keys=2, workers=4, pauses=4, kill_every=kill_every)
    broken: dict[str, int] = {}
    for seed in range(40):  # one run in three finds the rarest of them
        report = torture(replace(plan, seed=seed)).report
        broken |= report.broken
        if law in broken:
            assert not report.passed
            assert law in report.reason
            return
    pytest.fail(f"{law} was not found, but {broken}")


@patient
@pytest.mark.parametrize(("factory", "kind"), [(stores.takes_places_early, POOL), (stores.reads_beside_writers, PAGE)])
@pytest.mark.usefixtures("_file")
def test_torture_finds_what_is_broken_where_several_hold(
    factory: Callable[[], SQLiteStore], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in one slot of a semaphore, and a reader beside a writer."""
    for owner, rule in ((Seen, "over"), (ReadWriteAttempt, "_has_place")):  # the factory is called in this process, too
        monkeypatch.setattr(owner, rule, getattr(owner, rule))
    plan = Plan(
        factory=named(factory), seconds=3, ttls=(0.25, 0.5), keys=1, workers=2, several=0, pauses=0, kill_every=0
    )
    for seed in range(40):  # nearly always the first one is enough
        found = torture(replace(plan, seed=seed)).judgement.violations
        if any(each.law == "overlap" and kind in each.key for each in found):
            return
    pytest.fail("no overlap was found")


@pytest.mark.usefixtures("_file")
def test_the_keys_of_multilocks_have_to_be_free_at_the_end() -> None:
    """A key of a MultiLock that is left when all clients have ended is a violation, as any other key is."""
    plan = Plan(
        factory=named(stores.KeepsSeveral), seconds=8, ttls=(0.25, 0.5), keys=2, workers=1, threads=1,
        tasks=1, several=2, several_ttl=1.0, pauses=0, kill_every=0, faults=0, quiet=True,
    )  # fmt: skip
    found = torture(plan).judgement.violations
    assert any(SEVERAL in violation.key and "after the end" in violation.text for violation in found), found


@pytest.mark.parametrize(
    ("factory", "threads", "who"),
    [(stores.Hangs, 2, "worker1/0 worker1/1 worker2/0"), (stores.Stops, 1, "worker1 worker2")],
)
@pytest.mark.usefixtures("_file")
def test_a_hang_is_found(factory: type[SQLiteStore], threads: int, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not end is reported by its worker, and a worker that does not by its parent."""
    monkeypatch.setattr("caslock.verify.run.LEEWAY", 15.0)
    plan = Plan(
        factory=named(factory), seconds=3, ttls=(0.25, 0.5), keys=2, workers=1, threads=threads,
        tasks=1, several=0, pauses=0, kill_every=0, faults=0, quiet=True, patience=1,
    )  # fmt: skip
    outcome = torture(plan)
    assert [event.who for event in sorted(outcome.events, key=lambda event: event.who) if event.what == "hung"] == (
        who.split()
    )
    assert outcome.report.broken == {"hang": len(who.split())}, outcome.report
    where = [violation.text for violation in outcome.judgement.violations]
    assert all("put_if_version" in text for text in where if "/0" in text and "worker1" in text), where
    assert not outcome.report.passed


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stopped worker outlives a killed parent")
def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Kill -9 of the torturing process ends all workers, even those that are stopped."""
    command = [sys.executable, "-m", "tests.proof.torture", f"sqlite:///{tmp_path}/locks.db", "--seconds", "50"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # which a killed process can't clean up
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        assert until(lambda: len(family(parent.pid)) > 5)
        _, *workers = family(parent.pid)
        time.sleep(1.0)
        os.kill(workers[0], signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not any(map(goes_on, workers)))
