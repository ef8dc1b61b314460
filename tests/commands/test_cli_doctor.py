"""``caslock doctor`` finds what is wrong with real servers, and nothing with good ones."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from caslock import Lock, cli, connect
from caslock.cli.doctor_dynamodb import judged
from caslock.cli.doctor_sqlite import NETWORK, file_system
from caslock.connect import OWN
from caslock.store import ABSENT
from caslock.testing.proxy import FaultProxy, Passage
from tests.conftest import NewServer
from tests.proof.torture.failover import SixNodes, Watched, said
from tests.stores.opening import fill
from tests.stores.test_etcd import Three
from tests.stores.test_nats import make_bucket
from tests.support.command_line import caslock
from tests.support.locations import fresh, patiently
from tests.support.servers import ETCD, HOST, TAIR_EMULATOR, Server, free_port, private, zookeeper
from tests.support.tair.emulator import WITHOUT_PX


def doctor(*arguments: str, store: str = "") -> tuple[int, str, str]:
    """Run doctor to its end, up to five times while the machine is so busy that doctor finds the store slow."""
    each = (caslock("doctor", *arguments, store=store) for _ in range(5))
    return next((done for done in each if "it answers in" not in done[1]), (0, "it was slow five times", ""))


def findings(url: str) -> tuple[int, dict[str, str]]:
    code, output, errors = caslock("doctor", patiently(url), "--json")
    assert errors == ""
    report = json.loads(output)
    found = {finding["what"]: finding["severity"] for finding in report["findings"]}
    slow = [found.pop(what) for what in [*found] if what.startswith("it answers in")]  # the machine is busy
    code = 0 if slow and code == 1 and "warning" not in found.values() else code
    assert report["round_trip"] is None if "it refuses to be asked" in found else report["round_trip"] >= 0
    assert all(finding["means"] for finding in report["findings"])
    return code, found


def make(url: str) -> None:
    with connect(url) as store, Lock(store, "first"):
        pass


def test_a_good_redis_has_no_finding(new_redis: NewServer) -> None:
    """noeviction, and each write on the disk."""
    server = new_redis("--maxmemory", "100mb", "--appendonly", "yes", "--appendfsync", "always")
    assert findings(server.url) == (0, {})
    code, output, _ = doctor(server.url)
    assert (code, len(output.splitlines())) == (0, 1)
    assert "answers in" in output


def test_a_slow_redis_is_found(redis_server: Server) -> None:
    """Slow replies are the first thing it reports."""
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        proxy.decide = lambda _: Passage("hold reply", 0.2)
        assert "it answers in 0." in caslock("doctor", f"redis://{HOST}:{proxy.port}/0?socket_timeout=20")[1]


BAD_REDIS = {
    ("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"): (3, "maxmemory-policy is volatile-lru", "danger"),
    ("--maxmemory-policy", "allkeys-lru"): (1, "maxmemory-policy is allkeys-lru", "note"),
    ("--maxmemory", "1kb"): (3, "of maxmemory is used", "danger"),
    ("--save", ""): (1, "nothing is written to disk", "warning"),
    ("--save", "60 1"): (1, "only snapshots are written", "warning"),
    ("--appendonly", "yes"): (0, "appendfsync is everysec", "note"),
    ("--min-replicas-to-write", "1"): (3, "1 replicas have to acknowledge", "danger"),
    ("--replicaof", "127.0.0.1 1"): (3, "it is a replica", "danger"),
    ("--cluster-enabled", "yes"): (3, "part of a Cluster", "danger"),
    ("--rename-command", "CONFIG", ""): (1, "CONFIG is not allowed", "note"),
}


@pytest.mark.parametrize("options", BAD_REDIS, ids=" ".join)
def test_what_is_wrong_with_a_redis_is_found(options: tuple[str, ...], new_redis: NewServer) -> None:
    """Each bad setting has its finding, and the exit status is that of the worst one."""
    status, what, severity = BAD_REDIS[options]
    more = ["--cluster-port", str(free_port())] if "--cluster-enabled" in options else []
    code, found = findings(new_redis(*options, *more).url)
    assert code == status, found
    assert [each for told, each in found.items() if what in told] == [severity]


def test_what_a_user_of_redis_may_not_do_is_found(new_redis: NewServer) -> None:
    """Even if its settings are not told to the user; nothing is written."""
    server = new_redis("--appendonly", "yes", "--appendfsync", "always")
    said(server, "ACL", "SETUSER", "u", "on", ">p", "~a:*", "+@all", "-set", "-evalsha")
    url = f"redis://u:p@{HOST}:{server.port}?prefix=a:"
    assert findings(url) == (3, {"this user may not use set, evalsha on keys that begin with 'a:'": "danger"})
    said(server, "ACL", "SETUSER", "u", "+set", "+evalsha", "-info")
    assert findings(url) == (1, {"its settings can't be read": "warning"})
    said(server, "ACL", "SETUSER", "u", "-wait", "-time")
    assert findings(f"{url}&replicas=1")[1]["this user may not use time, wait on keys that begin with 'a:'"] == "danger"
    assert not said(server, "DBSIZE")


@pytest.mark.long
def test_replicas_that_nobody_waits_for_are_found(new_redis: NewServer) -> None:
    """With a replica, a failover may forget locks, unless writes wait for it."""
    primary = new_redis("--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
    replica = new_redis("--replicaof", f"{primary.host} {primary.port}")
    with closing(redis.Redis.from_url(replica.url)) as client:
        while client.info("replication")["master_link_status"] != "up":
            pass
    always = {"min-replicas-to-write is 0": "warning"}
    assert findings(primary.url) == (1, {"writes do not wait for the 1 replicas": "warning", **always})
    assert findings(f"{primary.url}?replicas=1")[1] == always
    code, found = findings(f"{primary.url}?replicas=2&socket_timeout=2")  # WAIT gets half of that
    assert (code, found["2 replicas have to acknowledge a write, and there are 1"]) == (3, "danger")


@pytest.mark.long
@pytest.mark.parametrize("kind", [SixNodes, Watched])
def test_the_primaries_of_a_cluster_and_of_sentinels_are_looked_at(
    kind: type[SixNodes | Watched], tmp_path: Path
) -> None:
    """What is the same on all primaries is said once; replicas=1 counts, and too few Sentinels are a warning."""
    with ExitStack() as stack:
        servers = kind(stack, tmp_path)
        few = {"the number of its Sentinels is 1": "warning"} if kind is Watched else {}
        all_of_them = {"nothing is written to disk": "warning", "min-replicas-to-write is 0": "warning"} | few
        url = servers.url.replace("socket_timeout=1", "socket_timeout=20")
        assert findings(url) == (1, all_of_them)
        without = findings(url.replace("replicas=1&", ""))[1]
        assert without == all_of_them | {"writes do not wait for the 1 replicas": "warning"}
        one = servers.primaries()[0]
        said(one, "CONFIG", "SET", "maxmemory", 1)
        code, found = findings(url)
        (full,) = (what for what in found if "of maxmemory is used" in what)
        assert (code, full.startswith(f"on {one.host}:{one.port}: ")) == (3, kind is SixNodes)


@pytest.mark.long
def test_what_is_wrong_with_a_memcached_is_found(memcached_server: Server, new_memcached: NewServer) -> None:
    """Eviction is a warning, -M has none, and -C is danger."""
    code, found = findings(memcached_server.url)
    assert (code, found["it evicts entries when it is full"]) == (1, "warning")
    assert findings(new_memcached("-M").url) == (0, {"memcached keeps nothing": "note"})
    code, found = findings(new_memcached("-M", "-C").url)
    assert (code, found["it refuses to be asked"]) == (3, "danger")


def test_what_has_refused_is_not_said_to_answer(tmp_path: Path) -> None:
    """Nothing was measured: there is no round trip to tell of."""
    file = tmp_path / "text.db"
    file.write_text("This is no database. " * 100)
    url = f"sqlite:///{file}"
    code, output, _ = caslock("doctor", url)
    assert (code, "answers in" in output, "it refuses to be asked" in output) == (3, False, True)
    code, output, _ = caslock("doctor", url, "--json")
    assert (code, json.loads(output)["round_trip"]) == (3, None)


@pytest.mark.long
def test_what_is_wrong_with_an_etcd_is_found(new_etcd: NewServer) -> None:
    """A single member is no more than a note; one that is full takes no lock."""
    server = new_etcd("--quota-backend-bytes=150000")
    assert findings(server.url) == (0, {"it has one member": "note"})
    with closing(connect(server.url)) as store:
        fill(store, b"v" * 4096)
    assert findings(server.url) == (3, {"it is full": "danger", "it has one member": "note"})


@pytest.mark.long
def test_members_that_a_url_does_not_name_are_found(tmp_path: Path) -> None:
    """With three members, all of them should be named."""
    with closing(Three(ETCD, tmp_path)) as cluster:
        assert findings(cluster.url) == (0, {})
        assert findings(cluster.members[0].url) == (0, {"the URL names 1 of 3 members": "note"})


@pytest.mark.long
def test_what_a_bucket_of_nats_lacks_is_found(nats_server: Server) -> None:
    """Files on one server are no more than a note; memory loses leases, and without republishing waiters poll."""
    name = fresh("doctor").replace(":", "-")
    assert findings(f"{nats_server.url}/{name}") == (0, {"there is no bucket": "note"})
    one = {"its bucket has one replica": "note"}
    make(f"{nats_server.url}/{name}")
    assert findings(f"{nats_server.url}/{name}") == (0, one)
    mute = make_bucket(nats_server, f"{name}-mute", republish=None)
    assert findings(mute) == (0, {"its bucket does not republish changes": "note", **one})
    memory = make_bucket(nats_server, f"{name}-memory", storage="memory")
    assert findings(memory) == (3, {"its bucket is in memory": "danger", **one})


def test_every_store_that_processes_share_is_looked_at() -> None:
    """A new scheme of `connect` needs a module of doctor."""
    modules = {path.stem.removeprefix("doctor_") for path in Path(cli.__file__).parent.glob("doctor_*.py")}
    assert {kind.extra or kind.module for kind in OWN.values()} - {"memory"} == modules - {"sql"}


@pytest.mark.long
def test_a_hazelcast_is_looked_at(hazelcast_server: Server) -> None:
    """One member alone keeps no lock when it ends."""
    code, found = findings(hazelcast_server.url)
    assert (code, found) == (1, {"Hazelcast keeps nothing on disk": "note", "it has one member": "warning"})


@pytest.mark.long
def test_a_table_of_dynamodb_is_looked_at(dynamodb_server: Server) -> None:
    """A table that `create_table` has made is well; a global one is not, if the last of two writes wins there."""
    assert findings(dynamodb_server.url) == (0, {})
    table = {"TableStatus": "ACTIVE", "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}, "Replicas": [{}]}
    enabled = {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
    assert [each.what for each in judged(table, enabled)] == ["it is a global table"]
    assert not list(judged(table | {"MultiRegionConsistency": "STRONG"}, enabled))
    bad = list(judged({"TableStatus": "UPDATING"}, {"TimeToLiveStatus": "DISABLED"}))
    assert [each.severity.name for each in bad] == ["warning", "note", "note"]


def test_a_sqlite_file_is_looked_at(tmp_path: Path) -> None:
    """A file on a local disk is well, unless others may write to it."""
    path = tmp_path / "100%?.db"
    url = f"sqlite:///{tmp_path}/100%25%3F.db"
    make(url)
    assert findings(url) == (0, {"one file serves one host": "note"})
    path.chmod(0o666)
    assert findings(url)[1]["others may write to the file"] == "warning"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of its mounts")
def test_a_network_file_system_is_known(tmp_path: Path) -> None:
    """The longest mount point that leads to the file counts, and of two at one place the later one."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nhost:/x /mnt/a\\040b nfs4 rw 0 0\n/dev/sdb /mnt/a\\040b/c xfs rw 0 0\n"
        "/dev/sdc /over ext4 rw 0 0\nhost:/y /over fuse.sshfs rw 0 0\n"
    )
    kinds = {name: file_system(Path(name), mounts) for name in ("/l.db", "/mnt/a b/l.db", "/mnt/a b/c/l.db", "/over/l")}
    assert list(kinds.values()) == ["ext4", "nfs4", "xfs", "fuse.sshfs"]
    assert kinds["/mnt/a b/l.db"].startswith(NETWORK)
    assert kinds["/over/l"].startswith(NETWORK)
    assert file_system(Path("/l.db"), tmp_path / "none") == ""
    assert file_system(tmp_path, Path("/proc/self/mounts"))


def test_the_store_is_named_as_in_the_other_commands(tmp_path: Path) -> None:
    """``--store`` and ``CASLOCK_STORE`` name it, too; the argument goes before the latter, and not with the former."""
    named, other = f"sqlite:///{tmp_path}/named.db", f"sqlite:///{tmp_path}/other.db"
    make(named)
    for arguments, store in ((["--store", named], other), ([named], other), ([], named)):
        code, output, errors = doctor(*arguments, store=store)
        assert (code, errors) == (0, "")
        assert "named.db answers in" in output
    code, output, errors = caslock("doctor", named, "--store", other)
    assert (code, output) == (2, "")
    assert "name one store, by URL or by --store" in errors


@pytest.mark.long
def test_what_is_wrong_with_a_tair_is_found(tair_server: Server, new_redis: NewServer, tmp_path: Path) -> None:
    """What is true of a Redis is, here too; a server without TairString, or with less of it, takes no locks."""
    code, found = findings(tair_server.url)
    assert code < 3, found
    assert "nothing is written to disk" in found
    code, found = findings(new_redis().url.replace("redis:", "tair:"))
    assert (code, found["it has no TairString"], found["it refuses to be asked"]) == (3, "danger", "danger")
    with private(TAIR_EMULATOR, tmp_path, WITHOUT_PX) as server:
        code, found = findings(server.url)
    assert (code, found["its EXCAS takes no PX"]) == (3, "danger")


@pytest.mark.long
def test_what_is_wrong_with_a_zookeeper_is_found(zookeeper_server: Server, tmp_path: Path) -> None:
    """One server is no more than a note; two that know nothing of each other would give each lock twice."""
    assert findings(zookeeper_server.url) == (0, {"it has one server": "note"})
    with connect(zookeeper_server.url) as store:
        store.put_if_version("k", b"v", ABSENT, 0.1)  # now there is something to look at the clock with
    assert findings(zookeeper_server.url) == (0, {"it has one server": "note"})
    with private(zookeeper({"tickTime": 500}), tmp_path) as other:
        both = f"{HOST}:{zookeeper_server.port}", f"{HOST}:{other.port}"
        code, found = findings(f"zookeeper://{','.join(both)}/locks")
        assert (code, found[f"the URL names several servers, and {' and '.join(both)} are standalone"]) == (3, "danger")
        assert findings(other.url)[1]["sessions end after 10 s"] == "note"
