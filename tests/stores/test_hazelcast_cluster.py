"""`HazelcastStore` on a cluster of several members, of which some are killed or cut off."""

from __future__ import annotations

import contextlib
import re
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from caslock import Lock, LockLost, StoreUnavailable
from caslock.cli.doctor import examined
from caslock.store import ABSENT, Entry
from caslock.stores.hazelcast import HazelcastStore
from caslock.testing.proxy import FaultProxy
from caslock.testing.steps import again
from tests.stores.opening import finds, put
from tests.support.clusters import contenders
from tests.support.locations import fresh, until
from tests.support.servers import HOST, Member, Server, _prepared, _remove, free_port, hazelcast

# The client may leave a connection open whose member was cut off.
pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("hazelcast_cluster"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

PATIENCE = 200.0
"""Seconds after which members that have not found each other, or not noticed that one is gone, are taken to hang."""

QUICK = {
    "partition.count": 31,
    "merge.first.run.delay.seconds": 1,
    "merge.next.run.delay.seconds": 1,
    "max.no.heartbeat.seconds": 5,
    "heartbeat.interval.seconds": 1,
}
PROTECTED = """
    <split-brain-protection name="majority" enabled="true">
      <minimum-cluster-size>2</minimum-cluster-size>
    </split-brain-protection>
    <map name="protected"><split-brain-protection-ref>majority</split-brain-protection-ref></map>
"""


class Cluster:
    """Two members, which find each other by ways that can be cut."""

    def __init__(self, servers: Sequence[Server], ways: Sequence[FaultProxy]) -> None:
        self.servers, self.ways = servers, ways
        self.url = f"hazelcast://{','.join(f'{HOST}:{server.port}' for server in servers)}/locks"

    @contextlib.contextmanager
    def split(self) -> Iterator[None]:
        """Cut the members off from each other, and wait until they know."""
        with contextlib.ExitStack() as cut:
            for way in self.ways:
                cut.enter_context(way.refusing())
            assert until(lambda: self.sizes() == [1, 1], PATIENCE)
            yield
        assert until(lambda: self.sizes() == [2, 2], PATIENCE)

    def kill(self, number: int) -> None:
        """End a member as a crash would, and wait until the others know."""
        body = self.servers[number].body
        assert body
        body.kill()
        assert until(lambda: self.sizes() == [len(self.servers) - 1], PATIENCE)

    def revive(self) -> None:
        """Start whoever is not there, and wait until all have found each other and keep copies of all entries."""
        for server in self.servers:
            if server.body and not server.body.alive():
                server.body.start()
        count = len(self.servers)
        assert until(lambda: self.sizes() == [count] * count and self.safe(), PATIENCE)

    def sizes(self) -> list[int]:
        return [int(said) for server in self.servers if (said := _said(server, "cluster-size"))]

    def safe(self) -> bool:
        """Tell whether every entry has its copy, so that a member may go."""
        return all(_said(server, "cluster-safe") is not None for server in self.servers)


def _said(server: Server, question: str) -> str | None:
    url = f"http://{server.host}:{server.port}/hazelcast/health/{question}"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=20) as answer:
        return re.sub(r"\W", "", answer.read().decode())
    return None


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ports = [free_port() for _ in range(2)]
    servers = list[Server]()
    with contextlib.ExitStack() as stack:
        ways = [stack.enter_context(FaultProxy(HOST, port)) for port in ports]
        for port, way in zip(ports, ways, strict=True):
            kind = hazelcast(Member([each.port for each in ways], way.port, QUICK, PROTECTED))
            servers.append(_prepared(kind, tmp_path_factory.mktemp("hazelcast"), port, ()))
            stack.callback(_remove, servers[-1])
        yield Cluster(servers, ways)


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    """Give a cluster that is whole."""
    _cluster.revive()
    return _cluster


def certainly(store: HazelcastStore, key: str, value: bytes, version: int = ABSENT, ttl: float = 60.0) -> Entry:
    return again(partial(put, store, key, value, version, ttl))


def test_entries_outlive_a_member_with_their_leases(cluster: Cluster) -> None:
    """Whichever member dies: what was written over lasts for as long as its lease, and not for its first ttl."""
    with HazelcastStore(cluster.url, timeout=20) as store:
        keys = [fresh() for _ in range(30)]  # so that each member has some of them, and some of their leases
        entries = [certainly(store, key, b"2", certainly(store, key, b"1", ttl=2).version) for key in keys]
        for key in (f"{key}:short" for key in keys):
            certainly(store, key, b"2", certainly(store, key, b"1").version, 3)
        cluster.kill(0)
        with HazelcastStore(cluster.url, timeout=20) as another:
            assert until(lambda: not any(another.get(f"{key}:short") for key in keys))
            assert [another.get(key) for key in keys] == entries
            for key, entry in zip(keys, entries, strict=True):
                assert another.invalidate(key, entry.version) is None


def test_locks_are_taken_in_turn_while_members_die(cluster: Cluster) -> None:
    """Four contenders take a key, while two members are killed: no two hold it at one time, and no hold is lost."""
    with contenders(lambda: HazelcastStore(cluster.url), ttl=15, timeout=PATIENCE) as turns:
        for number in (1, 0):
            assert turns.go_on(PATIENCE)
            cluster.kill(number)
            assert turns.go_on(PATIENCE)
            cluster.revive()
    assert turns.losses == []
    assert len({number for number, _ in turns.holds}) == 4


def test_a_cluster_that_is_split_has_two_holders_unless_it_is_protected(cluster: Cluster) -> None:
    """Each part gives out the lock, unless the map is protected; of two holders, one learns that it lost the lock."""
    lost = threading.Event()
    with contextlib.ExitStack() as stack:
        places = [f"hazelcast://{HOST}:{server.port}" for server in cluster.servers]
        stores = [stack.enter_context(HazelcastStore(f"{place}/locks")) for place in places]
        safer = [stack.enter_context(HazelcastStore(f"{place}/protected")) for place in places]
        key = fresh()
        entry = certainly(safer[0], key, b"v")
        locks = [Lock(store, key, ttl=6, on_lost=lambda _: lost.set()) for store in stores]
        holds = [locks[0].acquire()]
        assert locks[1].acquire(timeout=0) is None
        with cluster.split():
            holds.append(locks[1].acquire(timeout=PATIENCE))
            assert all(holds)
            assert not lost.is_set()
            for store in safer:
                for act in (partial(store.get, key), partial(put, store, fresh())):
                    with pytest.raises(StoreUnavailable, match="split-brain protection refuses"):
                        act()
        assert lost.wait(PATIENCE)
        outcomes = list[bool]()
        for hold in holds:
            assert hold
            try:
                hold.release()
            except LockLost:
                outcomes.append(False)
            else:
                outcomes.append(True)
        assert sorted(outcomes) == [False, True]
        assert all(store.get(key) is None for store in stores)
        assert until(lambda: all(finds(store, key, entry) for store in safer), PATIENCE)


def test_doctor_counts_the_members(cluster: Cluster) -> None:
    """Two are too few to tell which part of a split cluster may go on."""
    alone = f"hazelcast://{HOST}:{cluster.servers[0].port}/locks"
    with HazelcastStore(alone, timeout=20) as store:
        _, findings = examined(store, f"{alone}?timeout=10")
    told = {finding.what: finding.severity.name for finding in findings}
    assert (told["it has two members"], told["the URL names 1 of 2 members"]) == ("warning", "note")
