"""`ZooKeeperStore` on an ensemble of three servers, of which some are killed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from caslock import Lock, StoreUnavailable
from caslock.cli.doctor import examined
from caslock.store import ABSENT
from caslock.stores.zookeeper import ZooKeeperStore
from caslock.testing.steps import again, in_a_thread
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import answers, expect_no_leader_missed, put
from tests.support.clusters import Cluster, contenders
from tests.support.locations import fresh, present, until
from tests.support.servers import HOST, ZOOKEEPER, Server, free_port, zookeeper

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("zookeeper_ensemble")]

PATIENCE = 200.0
"""Seconds in which an ensemble has elected a leader."""


class Ensemble(Cluster):
    def __init__(self, folder: Path) -> None:
        self._elections = [free_port() for _ in range(3)]
        super().__init__(ZOOKEEPER, folder)

    def arguments(self, number: int, port: int, peers: Sequence[int], folder: Path) -> list[str]:
        (folder / "data").mkdir()
        (folder / "data" / "myid").write_text(str(number + 1))
        ports = enumerate(zip(peers, self._elections, strict=True), 1)
        names = {f"server.{each}": f"{HOST}:{peer}:{election}" for each, (peer, election) in ports}
        return zookeeper({"tickTime": 500, "initLimit": 20, "syncLimit": 10, **names}).arguments(port, folder)

    @property
    def url(self) -> str:
        return f"zookeeper://{self.hosts}/locks"

    def leader(self) -> int:
        return next(number for number in range(3) if b"Mode: leader" in _said(self.members[number]))

    def followers(self) -> list[int]:
        return [number for number in range(3) if b"Mode: follower" in _said(self.members[number])]

    def revive(self) -> None:
        """Start again whatever was killed, and wait until each has found the others."""
        for number in range(3):
            if not self.body(number).alive():
                self.body(number).start()
        assert until(lambda: len(self.followers()) == 2, PATIENCE)


def _said(server: Server) -> bytes:
    with contextlib.suppress(OSError), socket.create_connection((server.host, server.port), timeout=20) as connection:
        connection.sendall(b"srvr")
        return b"".join(iter(partial(connection.recv, 4096), b""))
    return b""


@pytest.fixture(scope="module")
def _ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with contextlib.closing(Ensemble(tmp_path_factory.mktemp("zookeeper"))) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(_ensemble: Ensemble) -> Iterator[Ensemble]:
    """Give an ensemble that is whole, and in which somebody writes all the time.

    Up to 3.8.0, a server may leave the request of its only client unanswered until somebody else has written
    (ZOOKEEPER-4537).
    """
    _ensemble.revive()
    over = threading.Event()

    def write() -> None:
        with ZooKeeperStore(_ensemble.url) as store:
            while not over.wait(0.05):
                with contextlib.suppress(StoreUnavailable):
                    store.put_if_version(fresh(), b"v", ABSENT, 0.01)

    writing = in_a_thread(write)
    yield _ensemble
    over.set()
    writing.result(PATIENCE)


def test_the_ensemble_goes_on_without_its_leader(ensemble: Ensemble) -> None:
    """See `expect_no_leader_missed`."""
    with ZooKeeperStore(ensemble.url) as store, ZooKeeperStore(ensemble.url) as theirs:
        expect_no_leader_missed(ensemble, store, store, theirs)


def test_locks_are_taken_in_turn_while_leaders_die(ensemble: Ensemble) -> None:
    """Four contenders take a key, while two leaders are killed: no two hold it at one time, and fences only grow."""
    with contenders(lambda: ZooKeeperStore(ensemble.url), ttl=5, timeout=PATIENCE) as turns:
        for _ in range(2):
            assert turns.go_on(3 * PATIENCE)
            ensemble.body(ensemble.leader()).kill()
            assert turns.go_on(3 * PATIENCE)
            ensemble.revive()
    fences = [hold.fence for _, hold in turns.holds]
    assert fences == sorted(set(fences))
    assert fences[-1] >> 32 >= (fences[0] >> 32) + 2


def test_the_lease_of_a_dead_holder_ends_after_the_leader_has_changed(ensemble: Ensemble) -> None:
    """It was written by the clock of another leader: it ends when it was watched for its whole ttl, and not before."""
    with ZooKeeperStore(ensemble.url) as dead, ZooKeeperStore(ensemble.url) as another:
        key, ttl = fresh(), 1.0
        entry = again(partial(put, dead, key, ttl=ttl))
        ensemble.body(ensemble.leader()).kill()
        assert until(lambda: answers(another), PATIENCE)
        with Stopwatch() as watch:
            assert another.get(key) == entry  # although its ttl is over by any clock
            assert until(lambda: another.get(key) is None)
        assert watch.elapsed >= ttl
        assert watch.seconds < ttl + 1


def test_without_a_quorum_nothing_is_certain_and_leases_go_on(ensemble: Ensemble) -> None:
    """While two of three are down, each verb fails in time; when one is back, the lock is still held."""
    with ZooKeeperStore(ensemble.url, timeout=1) as store, ZooKeeperStore(ensemble.url, timeout=1) as another:
        key = fresh()
        hold = present(again(lambda: Lock(store, key, ttl=120).acquire(timeout=0)))
        for number in ensemble.followers():
            ensemble.body(number).kill()
        assert until(lambda: not answers(store) and not answers(another))  # a leader may not know for a moment
        for _ in range(2):
            for each in (store, another):
                with Stopwatch() as watch, pytest.raises(StoreUnavailable):
                    each.get(key)
                assert watch.seconds <= each.traits.request_timeout
        ensemble.revive()
        assert until(lambda: answers(another) and answers(store), PATIENCE)
        assert Lock(another, key).acquire(timeout=0) is None
        hold.ensure_held()
        hold.release()
        assert another.get(key) is None


def test_a_missing_or_frozen_server_costs_a_part_of_the_timeout(ensemble: Ensemble) -> None:
    """A store with several hosts connects to those that answer, whichever it tries first."""
    frozen = ensemble.body(ensemble.followers()[0])
    frozen.pause()
    try:
        for _ in range(6):
            with ZooKeeperStore(f"{ensemble.url.replace('/locks', '')},{HOST}:1/locks", timeout=4) as store:
                assert store.get(fresh()) is None
    finally:
        frozen.resume()


def test_no_server_answers_from_the_past(ensemble: Ensemble) -> None:
    """What was written through one server is read through another at once, although that one may lag behind."""
    order = [ensemble.leader(), *ensemble.followers()]
    urls = [f"zookeeper://{HOST}:{ensemble.members[number].port}/locks" for number in order]
    with contextlib.ExitStack() as stack:
        writer, *readers = [stack.enter_context(ZooKeeperStore(url)) for url in urls]
        key = fresh()
        entry = put(writer, key)
        for number in range(500):
            assert readers[number % 2].get(key) == entry
            entry = put(writer, key, b"%d" % number, entry.version)


def test_doctor_looks_at_each_server(ensemble: Ensemble) -> None:
    """It tells of one that is down, of those that the URL does not name, and of versions that leave requests alone."""
    old = {f"{HOST}:{server.port} has version 3.8.0" for server in ensemble.members}
    assert found(ensemble.url) in ({}, dict.fromkeys(old, "warning"))  # tests may run on newer ones
    named = found(f"zookeeper://{HOST}:{ensemble.members[0].port}/locks")
    assert named["the URL names 1 of 3 servers"] == "note"
    dead = ensemble.followers()[0]
    ensemble.body(dead).kill()
    assert found(ensemble.url)[f"{HOST}:{ensemble.members[dead].port} does not answer"] == "warning"


def found(url: str) -> dict[str, str]:
    """Give the severity of doctor's findings, except of short sessions and slow answers, which these tests cause."""
    with ZooKeeperStore(f"{url}?timeout=20") as store:
        told = {finding.what: finding.severity.name for finding in examined(store, f"{url}?timeout=20")[1]}
    return {what: severity for what, severity in told.items() if "sessions" not in what and "it answers in" not in what}
