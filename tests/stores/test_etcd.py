"""`EtcdStore` and `AsyncEtcdStore` against real etcd servers: what the contract does not ask."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from caslock import StoreError, StoreUnavailable, connect
from caslock.store import ABSENT
from caslock.stores.etcd import AsyncEtcdStore, EtcdStore
from caslock.testing.proxy import FaultProxy, foreign_port
from caslock.testing.steps import timed
from caslock.testing.stopwatch import Stopwatch
from tests.conftest import NewServer
from tests.stores.opening import (
    QUOTED,
    SECRET,
    Opened,
    Opening,
    apis,
    expect_full,
    expect_no_leader_missed,
    expect_requests,
    expect_tls_of_both_sides,
    expect_woken,
    put,
    refusal,
    store_on,
    unsent,
    until_put,
)
from tests.support.clusters import Cluster
from tests.support.locations import fresh, until
from tests.support.servers import ETCD, HOST, Server, free_port, private


def ask(server: Server, path: str, token: str = "", **body: object) -> Any:  # noqa: ANN401 - JSON
    headers = {"Authorization": token} if token else {}
    url = f"http://{server.host}:{server.port}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - it is http
        return json.load(answer)


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def leases(server: Server) -> set[str]:
    return {lease["ID"] for lease in ask(server, "lease/leases").get("leases", [])}


api = apis(EtcdStore, AsyncEtcdStore)
store = store_on("etcd_server")


def test_a_cycle_is_two_packets_and_leaves_no_lease(api: Opening, new_etcd: NewServer) -> None:
    """To acquire is one packet, to release is another, and etcd then knows no lease."""
    server = new_etcd()
    with FaultProxy(server.host, server.port) as proxy:
        through, key = api.open(f"etcd://127.0.0.1:{proxy.port}"), fresh()
        assert through.get(key) is None
        entry = expect_requests(1, proxy, lambda: put(through, key))
        assert len(leases(server)) == 1
        assert expect_requests(1, proxy, lambda: through.invalidate(key, entry.version)) is None
    assert leases(server) == set()


def test_a_refused_put_leaves_no_lease(api: Opening, new_etcd: NewServer) -> None:
    """Ten puts that find another version there: only the lease of the entry is left."""
    server = new_etcd()
    mine = api.open(server.url)
    key = fresh()
    entry = put(mine, key)
    before = leases(server)
    for version in (ABSENT, entry.version - 1, entry.version + 1, 1 << 62, (1 << 63) - 1, 1 << 70, -5):
        assert mine.put_if_version(key, b"other", version, 30) == entry
    assert leases(server) == before
    assert len(before) == 1
    renewed = put(mine, key, b"renewed", entry.version)
    assert mine.invalidate(key, entry.version) == renewed == mine.get(key)  # although it knows a later lease of the key


def test_a_list_of_many_pages_has_each_key_once(store: Opened, etcd_server: Server) -> None:
    """It has all keys of caslock's kind, and no name of another program that is no key."""
    salt = fresh()
    names = [f"{salt}:{number:04}" for number in range(1101)]
    for start in range(0, len(names), 100):
        writes = [
            {"request_put": {"key": text(name.encode()), "value": text(b"v")}} for name in names[start : start + 100]
        ]
        ask(etcd_server, "kv/txn", success=writes)
    for odd in (b"\xff", b"k" * 2000):
        ask(etcd_server, "kv/put", key=text(salt.encode() + odd), value=text(b"v"))
    listed = [key for key, _ in store.list(salt)]
    assert listed == names
    assert {key for key, _ in store.list("")} >= set(names)


def test_a_prefix_keeps_two_applications_apart(api: Opening, etcd_server: Server) -> None:
    """Two prefixes never meet in one name, and a list has the keys without them."""
    salt = fresh()
    one, two = api.open(etcd_server.url, prefix=f"{salt}/one/"), api.open(f"{etcd_server.url}?prefix={salt}/two/")
    key = "k\r\n'ü%2F"  # which reaches etcd as it is, in UTF-8
    first, second = put(one, key), put(two, key)
    assert one.traits.location != two.traits.location
    assert dict(one.list("")) == {key: first}
    assert dict(two.list("k")) == {key: second}
    assert ask(etcd_server, "kv/range", key=text(f"{salt}/one/{key}".encode()))["count"] == "1"


def test_a_wait_outlives_a_compaction(api: Opening, new_etcd: NewServer) -> None:
    """If etcd has forgotten the history since the version, a wait neither fails nor ends before the entry changes."""
    server = new_etcd()
    store, key = api.open(server.url), fresh()
    entry = put(store, key)
    latest = put(store, fresh()).version
    ask(server, "kv/compaction", revision=str(latest))
    began = time.monotonic()
    store.wait_while(key, entry.version, 0.3)
    assert time.monotonic() - began >= 0.25
    waiting = timed(lambda: store.wait_while(key, entry.version, 20))
    metrics = f"http://{server.host}:{server.port}/metrics"
    assert until(lambda: b"mvcc_watcher_total 1\n" in urllib.request.urlopen(metrics, timeout=20).read())
    store.invalidate(key, entry.version)
    assert waiting.result(50)[0] < 10
    assert timed(lambda: store.wait_while(key, entry.version, 20)).result(50)[0] < 10


# Faults and bad servers


def test_a_full_server_refuses_puts_and_still_releases(api: Opening, new_etcd: NewServer) -> None:
    """Over its quota etcd takes no put; the error says what to do, and what is there can be read and removed."""
    store = api.open(new_etcd("--quota-backend-bytes=150000").url)
    expect_full(store, b"v" * 4096, "alarm disarm")


def test_a_wrong_password_is_a_refusal_that_shows_none(api: Opening, new_etcd: NewServer) -> None:
    """A wrong password, none at all, and a key that the user may not touch: each says what to do."""
    server = secured(new_etcd)
    where = f"{server.host}:{server.port}"
    for user in (f"locks:{QUOTED}x@", f"nobody:{QUOTED}@"):
        store = api.open(f"etcd://{user}{where}")
        for _ in range(2):
            refusal(lambda: store.get("locks/k"), "Check the user and the password")  # noqa: B023 - called at once
        assert "p@ss" not in repr(store)
    refusal(lambda: api.open(server.url).get("locks/k"), "Name a user")
    store = api.open(f"etcd://locks:{QUOTED}@{where}")
    refusal(lambda: store.get("other"), "Grant the user readwrite")
    refusal(lambda: store.put_if_version("other", b"v", ABSENT, 1), "Grant the user readwrite")
    refusal(lambda: store.wait_while("other", 1, 5), "Grant the user readwrite")
    expect_woken(store, "locks/k")


@pytest.mark.long
def test_a_forgotten_token_is_renewed(api: Opening, new_etcd: NewServer) -> None:
    """Etcd forgets its tokens when it restarts: the store names its user again, and the put is applied once."""
    server = secured(new_etcd)
    store = api.open(f"etcd://locks:{QUOTED}@{server.host}:{server.port}")
    put(store, "locks/before")
    server.restart()
    entry = until_put(store, "locks/after")
    assert store.invalidate("locks/after", entry.version) is None
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda number: store.get(f"locks/{number}"), range(16))) == {None}


def test_a_user_where_nobody_is_asked_is_a_refusal(api: Opening, etcd_server: Server) -> None:
    """A server without authentication says so, and the secret stays one."""
    store = api.open(f"etcd://me:{QUOTED}@{etcd_server.host}:{etcd_server.port}")
    refusal(lambda: store.get("k"), "Leave user and password out")


def secured(new_etcd: NewServer) -> Server:
    """Start a server that wants passwords; the user "locks" may use what begins with "locks/"."""
    server = new_etcd("--bcrypt-cost=4")
    ask(server, "auth/user/add", name="root", password=SECRET)
    ask(server, "auth/user/grant", user="root", role="root")
    ask(server, "auth/role/add", name="locks")
    permission = {"permType": "READWRITE", "key": text(b"locks/"), "range_end": text(b"locks0")}
    ask(server, "auth/role/grant", name="locks", perm=permission)
    ask(server, "auth/user/add", name="locks", password=SECRET)
    ask(server, "auth/user/grant", user="locks", role="locks")
    ask(server, "auth/enable")
    return server


def test_another_server_on_that_port_is_a_refusal(api: Opening, redis_server: Server, memcached_server: Server) -> None:
    """Redis, memcached, a web server, and an etcd that is too old are named as what they are not."""
    for other in (redis_server, memcached_server):
        store = api.open(f"etcd://{other.host}:{other.port}")
        with pytest.raises(StoreError, match="Is it an etcd") as caught:
            store.put_if_version("k", b"v", ABSENT, 1)
        assert not getattr(caught.value, "sent", False)
    for status, body, sentence in (
        ("404 Not Found", "no such file", "Is it an etcd"),
        ("200 OK", '{"etcdserver": "3.3.9"}', "version 3.3.9"),
        ("200 OK", "{}", "unknown"),
        ("200 OK", "[]", "Is it"),
    ):
        answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        with foreign_port(lambda _, answer=answer: answer) as port:  # type: ignore[misc] # mypy infers no type of it
            refusal(partial(api.open(f"etcd://{HOST}:{port}").get, "k"), sentence)


# TLS


@pytest.fixture
def tls_port(certificates: Path, tmp_path: Path) -> Iterator[int]:
    """Start an etcd that speaks TLS on this port, and wants a certificate of its clients there."""
    port = free_port()
    files = {"cert-file": "server.pem", "key-file": "server.key", "trusted-ca-file": "ca.pem"}

    def arguments(plain: int, folder: Path) -> list[str]:
        urls = f"--listen-client-urls=http://{HOST}:{plain},https://{HOST}:{port}"
        names = [f"--{name}={certificates / file}" for name, file in files.items()]
        return [*ETCD.arguments(plain, folder), urls, "--client-cert-auth", *names]

    with private(replace(ETCD, arguments=arguments), tmp_path):
        yield port


def test_tls_with_certificates_of_both_sides(api: Opening, tls_port: int, certificates: Path) -> None:
    """And TLS is asked for where it was left out."""
    expect_tls_of_both_sides(api, f"etcds://{HOST}:{tls_port}?timeout=10", certificates)
    unsent(lambda: api.open(f"etcd://{HOST}:{tls_port}").get("k"), "for TLS, begin the URL with etcds://")


# Clusters


class Three(Cluster):
    def arguments(self, number: int, port: int, peers: Sequence[int], folder: Path) -> list[str]:
        here, ours = f"http://{HOST}:{port}", f"http://{HOST}:{peers[number]}"
        cluster = ",".join(f"m{each}=http://{HOST}:{peer}" for each, peer in enumerate(peers))
        return [
            *(f"--name=m{number}", f"--data-dir={folder / 'data'}", f"--initial-cluster={cluster}"),
            *(f"--listen-client-urls={here}", f"--advertise-client-urls={here}"),
            *(f"--listen-peer-urls={ours}", f"--initial-advertise-peer-urls={ours}"),
            *("--heartbeat-interval=50", "--election-timeout=500"),
        ]

    @property
    def url(self) -> str:
        return f"etcd://{self.hosts}"

    def leader(self) -> int:
        for number, member in enumerate(self.members):
            status = ask(member, "maintenance/status")
            if status["leader"] == status["header"]["member_id"]:
                return number
        raise AssertionError("no leader")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Three]:
    """Start a cluster of three."""
    with contextlib.closing(Three(ETCD, tmp_path)) as cluster:
        yield cluster


@pytest.mark.long
def test_a_cluster_goes_on_without_its_leader(api: Opening, cluster: Three) -> None:
    """See `expect_no_leader_missed`."""
    with connect(cluster.url) as ours, connect(cluster.url) as theirs:
        expect_no_leader_missed(cluster, api.open(cluster.url), ours, theirs)


@pytest.mark.long
def test_a_member_that_is_away_costs_nothing(api: Opening, cluster: Three) -> None:
    """While a member refuses connections the others are asked; with two of three away, nothing was sent."""
    follower = next(number for number in range(3) if number != cluster.leader())
    where = cluster.members[follower]
    others = [member for member in cluster.members if member is not where]
    url = f"etcd://{','.join(f'{member.host}:{member.port}' for member in (where, *others))}"
    cluster.body(follower).kill()
    store = api.open(url)
    for _ in range(20):
        key = fresh()
        entry = put(store, key)
        assert store.invalidate(key, entry.version) is None
    cluster.body(cluster.members.index(others[1])).kill()

    def no_leader() -> bool:
        try:
            store.get(key)
        except StoreUnavailable as error:
            return not error.sent and "no leader" in str(error)
        return False

    assert until(no_leader)


@pytest.mark.long
def test_an_unreachable_member_leaves_time_for_the_others(api: Opening, etcd_server: Server) -> None:
    """A first endpoint that answers nothing takes its share of the timeout, once."""
    with socket.create_server((HOST, 0)) as silent:
        url = f"etcd://{HOST}:{silent.getsockname()[1]},{etcd_server.host}:{etcd_server.port}"
        while True:
            store = api.open(url, timeout=8)
            with Stopwatch() as watch, contextlib.suppress(StoreUnavailable):
                assert store.get(fresh()) is None
                assert watch.elapsed > 3.0
                assert watch.seconds < 8.0
                break
            assert watch.late > 3.0
        with Stopwatch() as watch:
            assert store.get(fresh()) is None
        assert watch.seconds < 3.0


def test_a_host_with_several_addresses_is_tried_in_each() -> None:
    """`localhost` may mean ::1 first: a refusal there is not the end; a host that is none is told as such."""
    with (
        socket.create_server((HOST, 0)) as listener,
        EtcdStore(f"etcd://localhost:{listener.getsockname()[1]}", timeout=0.5) as store,
        pytest.raises(StoreUnavailable, match="no answer in time"),
    ):
        store.get("k")
    with EtcdStore("etcd://no-such-host.invalid", timeout=20) as nowhere:
        unsent(lambda: nowhere.get("k"), "is unreachable")
