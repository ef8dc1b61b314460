"""`EtcdStore` and `AsyncEtcdStore` against real etcd servers: what the contract does not ask."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest

from caslock import Lock, StoreError, StoreUnavailable, connect, connect_async
from caslock.store import ABSENT, Entry
from caslock.stores.etcd import AsyncEtcdStore, EtcdStore
from caslock.testing.extremes import KEYS, VALUES
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import timed
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import QUOTED, SECRET, Opening, opening, put, refusal, refuse_the_33rd_waiter
from tests.support.locations import fresh, until
from tests.support.servers import ETCD, HOST, Process, Server, free_port, missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from caslock import Store
    from caslock.store import ListingStore, WatchingStore
    from tests.conftest import NewServer


def ask(server: Server, path: str, token: str = "", **body: object) -> Any:  # noqa: ANN401 - JSON
    """Ask the gateway, as an administrator would by etcdctl."""
    headers = {"Authorization": token} if token else {}
    url = f"http://{server.host}:{server.port}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - it is http
        return json.load(answer)


def text(raw: bytes) -> str:
    """Write bytes as etcd's JSON has them."""
    return base64.b64encode(raw).decode()


def leases(server: Server) -> set[str]:
    """Name all leases."""
    return {lease["ID"] for lease in ask(server, "lease/leases").get("leases", [])}


@pytest.fixture(params=["blocking", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Opening]:
    """Give each API in turn."""
    blocking = request.param == "blocking"
    with opening(EtcdStore if blocking else AsyncEtcdStore, blocking=blocking) as found:
        yield found


@pytest.fixture
def store(api: Opening, etcd_server: Server) -> Store:
    """A store on the shared server."""
    return api.open(etcd_server.url, timeout=20)


def test_a_cycle_is_two_packets_and_leaves_no_lease(api: Opening, new_etcd: NewServer) -> None:
    """To acquire is one packet, to release is another, and etcd then knows no lease."""
    server = new_etcd()
    sent = list[bytes]()
    with FaultProxy(server.host, server.port) as proxy:
        through = api.open(f"etcd://127.0.0.1:{proxy.port}", timeout=20)
        assert through.get(fresh()) is None

        def listen(request: bytes) -> Passage:
            sent.append(request)
            return PASS

        proxy.decide = listen
        key = fresh()
        entry = put(through, key)
        assert len(sent) == 1
        assert len(leases(server)) == 1
        assert through.invalidate(key, entry.version) is None
        assert len(sent) == 2
    assert leases(server) == set()


def test_a_refused_put_leaves_no_lease(api: Opening, new_etcd: NewServer) -> None:
    """Ten puts that find another version there: only the lease of the entry is left."""
    server = new_etcd()
    mine = api.open(server.url, timeout=20)
    key = fresh()
    entry = put(mine, key)
    before = leases(server)
    for version in (ABSENT, entry.version - 1, entry.version + 1, 1 << 62, (1 << 63) - 1, 1 << 70, -5):
        assert mine.put_if_version(key, b"other", version, 30) == entry
    assert leases(server) == before
    assert len(before) == 1


def test_a_store_that_did_not_put_the_entry_removes_that_version_only(
    api: Opening, store: Store, etcd_server: Server
) -> None:
    """Whoever knows the version removes it; a lease of an earlier put frees nothing of a later one."""
    other = api.open(etcd_server.url, timeout=20)
    key = fresh()
    first = put(store, key)
    second = put(other, key, b"second", first.version)
    assert store.invalidate(key, first.version) == second
    assert store.get(key) == second
    assert store.invalidate(key, second.version) is None
    third = put(store, key, b"third")
    assert third.version > second.version
    assert other.invalidate(key, second.version) == third
    assert other.invalidate(key, third.version) is None
    assert store.invalidate(key, third.version) is None


def test_a_removal_is_one_although_the_key_is_taken_at_once(api: Opening, store: Store, etcd_server: Server) -> None:
    """Whoever removes its own entry is told so, even if another has put one before the look that follows."""
    key = fresh()
    removed = list[Entry | None]()

    def contend(mine: Store) -> None:
        while len(removed) < 200:
            value = fresh().encode()
            entry = mine.put_if_version(key, value, ABSENT, 30)
            if entry is not None and entry.value == value:
                removed.append(mine.invalidate(key, entry.version))

    stores = [store, *(api.open(etcd_server.url, timeout=20) for _ in range(3))]
    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(contend, stores))
    assert set(removed) == {None}


@pytest.mark.long
def test_a_packet_that_comes_twice_is_applied_once(api: Opening, etcd_server: Server) -> None:
    """Whichever copy is first, the put has succeeded, and its version is the one that is there."""
    with FaultProxy(etcd_server.host, etcd_server.port) as proxy:
        through = api.open(f"etcd://127.0.0.1:{proxy.port}", timeout=20)
        through.get(fresh())
        proxy.decide = lambda _: Passage("duplicate")
        for _ in range(20):
            key = fresh()
            entry = put(through, key)
            assert proxy.settle(5)
            assert through.get(key) == entry
            assert through.invalidate(key, entry.version) is None
            assert proxy.settle(5)
            assert through.get(key) is None


def test_hostile_keys_and_values_reach_etcd_as_they_are(store: Store, etcd_server: Server) -> None:
    """A key is its UTF-8, whatever is in it."""
    salt = fresh()
    hostile = [key for key in KEYS if len(key) < 900]
    entries = {salt + key: put(store, salt + key, VALUES[number % len(VALUES)]) for number, key in enumerate(hostile)}
    for key, entry in entries.items():
        (found,) = ask(etcd_server, "kv/range", key=text(key.encode()))["kvs"]
        assert Entry(base64.b64decode(found.get("value", "")), int(found["mod_revision"])) == entry


def test_a_list_of_many_pages_has_each_key_once(store: Store, etcd_server: Server) -> None:
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
    listed = [key for key, _ in cast("ListingStore", store).list(salt)]
    assert listed == names
    assert {key for key, _ in cast("ListingStore", store).list("")} >= set(names)


def test_a_prefix_keeps_two_applications_apart(api: Opening, etcd_server: Server) -> None:
    """Two prefixes never meet in one name, and a list has the keys without them."""
    salt = fresh()
    one, two = api.open(etcd_server.url, prefix=f"{salt}/one/"), api.open(f"{etcd_server.url}?prefix={salt}/two/")
    first, second = put(one, "k"), put(two, "k")
    assert one.traits.location != two.traits.location
    assert dict(cast("ListingStore", one).list("")) == {"k": first}
    assert dict(cast("ListingStore", two).list("k")) == {"k": second}
    assert ask(etcd_server, "kv/range", key=text(f"{salt}/one/k".encode()))["count"] == "1"


def test_a_wait_outlives_a_compaction(store: Store, etcd_server: Server) -> None:
    """If etcd has forgotten the history since the version, a wait neither fails nor ends before the entry changes."""
    key = fresh()
    entry = put(store, key)
    latest = put(store, fresh()).version
    ask(etcd_server, "kv/compaction", revision=str(latest))
    watching = cast("WatchingStore", store)
    began = time.monotonic()
    watching.wait_while(key, entry.version, 0.3)
    assert time.monotonic() - began >= 0.25
    waiting = timed(lambda: watching.wait_while(key, entry.version, 20))
    time.sleep(0.2)  # so that it has most likely begun
    store.invalidate(key, entry.version)
    assert waiting.result(50)[0] < 10
    assert timed(lambda: watching.wait_while(key, entry.version, 20)).result(50)[0] < 10


def test_more_waiters_than_connections_are_told_to_sleep(api: Opening, etcd_server: Server) -> None:
    """32 of a process wait at a time."""
    refuse_the_33rd_waiter(api.open(etcd_server.url, timeout=20))


@pytest.mark.parametrize(("value", "ttl"), [(b"x" * 4097, 1), (b"", 0), (b"", -1), (b"", float("nan")), (b"", 1e10)])
def test_bad_input_is_refused_before_any_request(value: bytes, ttl: float) -> None:
    """A value that is too long, or a ttl that is none, is a ValueError although there is no server."""
    with EtcdStore("etcd://127.0.0.1:1") as store, pytest.raises(ValueError, match="must be"):
        store.put_if_version("key", value, ABSENT, ttl)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://localhost:2379", "an etcd URL is"),
        ("etcd://", "an etcd URL is"),
        ("etcd://localhost:2379,", "an etcd URL is"),
        ("etcd://localhost/path", "an etcd URL is"),
        ("etcd://localhost?unknown=1", "an etcd URL is"),
        ("etcd://localhost?cacert=/x", "an etcd URL is"),
        ("etcd://[::1", "an etcd URL is"),
        ("etcd://localhost:0", "the port of"),
        ("etcd://localhost:99999", "the port of"),
        ("etcd://localhost:port", "the port of"),
        (f"etcd://me:{QUOTED}@localhost?timeout=soon", "number of seconds"),
        ("etcd://localhost?timeout=0", "above 0"),
        ("etcd://localhost?timeout=1&timeout=2", "given twice"),
        ("etcd://me@localhost", "both a user and a password"),
        ("etcds://localhost?key=/x", "needs"),
        ("etcds://localhost?cacert=/none", "No such file"),
        ("etcds://localhost?cacert=/dev/null", "no certificate"),
    ],
)
def test_a_malformed_url_is_refused(url: str, sentence: str) -> None:
    """Each is a ValueError that says what to write, and shows no secret."""
    for make in (EtcdStore, AsyncEtcdStore):
        with pytest.raises(ValueError, match=sentence) as caught:
            make(url)
        assert QUOTED not in str(caught.value)


def test_arguments_of_another_kind_are_refused() -> None:
    """What is no URL, a timeout given twice, or a prefix that is no text."""
    with pytest.raises(TypeError, match="must be a str, not int"):
        EtcdStore(5)  # type: ignore[arg-type] # which is the test
    with pytest.raises(TypeError, match="prefix must be a str"):
        EtcdStore("etcd://localhost", prefix=5)  # type: ignore[arg-type] # as above
    with pytest.raises(ValueError, match="once"):
        EtcdStore("etcd://localhost?timeout=1", timeout=1)
    with pytest.raises(ValueError, match="not both"):
        connect("etcd://localhost?prefix=a", prefix="b")


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("etcd://db", "etcd://db:2379"),
        (f"etcd://me:{QUOTED}@db:2380/?timeout=1", "etcd://db:2380"),
        ("etcd://b,a:1,b,[::1]", "etcd://[::1]:2379,a:1,b:2379"),
        ("etcds://db?prefix=locks/", "etcds://db:2379?prefix=locks/"),
    ],
)
def test_the_location_names_the_members_and_no_user(url: str, location: str) -> None:
    """In whatever order the members are named, a cluster has one location."""
    with connect(url) as store:
        assert type(store) is EtcdStore
        assert store.traits.location == location
        assert location in repr(store)
    other = connect_async(url)
    assert type(other) is AsyncEtcdStore
    assert other.traits.location == location


def test_a_store_for_asyncio_serves_every_loop(etcd_server: Server) -> None:
    """One store is used in several loops, one after the other, and each closes its connections as it ends."""
    with FaultProxy(etcd_server.host, etcd_server.port) as proxy:
        store = AsyncEtcdStore(f"etcd://127.0.0.1:{proxy.port}", timeout=20)
        for _ in range(3):
            assert asyncio.run(store.get(fresh())) is None
            assert until(lambda: not proxy.connections)


# Faults and bad servers


def test_a_full_server_refuses_puts_and_still_releases(api: Opening, new_etcd: NewServer) -> None:
    """Over its quota etcd takes no put; the error says what to do, and what is there can be read and removed."""
    server = new_etcd("--quota-backend-bytes=150000")
    store = api.open(server.url, timeout=20)
    key = fresh()
    entry = put(store, key)
    for number in range(100):
        with contextlib.suppress(StoreError):
            store.put_if_version(f"{key}:{number}", b"v" * 4096, ABSENT, 60)
    refusal(lambda: store.put_if_version(fresh(), b"v", ABSENT, 60), "alarm disarm")
    assert store.get(key) == entry
    assert store.invalidate(key, entry.version) is None
    assert store.get(key) is None


def test_a_wrong_password_is_a_refusal_that_shows_none(api: Opening, new_etcd: NewServer) -> None:
    """A wrong password, none at all, and a key that the user may not touch: each says what to do."""
    server = secured(new_etcd)
    where = f"{server.host}:{server.port}"
    for user in (f"locks:{QUOTED}x@", f"nobody:{QUOTED}@"):
        store = api.open(f"etcd://{user}{where}", timeout=20)
        for _ in range(2):
            refusal(lambda: store.get("locks/k"), "Check the user and the password")  # noqa: B023 - called at once
        assert "p@ss" not in repr(store)
    refusal(lambda: api.open(server.url, timeout=20).get("locks/k"), "Name a user")
    store = api.open(f"etcd://locks:{QUOTED}@{where}", timeout=20)
    entry = put(store, "locks/k")
    refusal(lambda: store.get("other"), "Grant the user readwrite")
    refusal(lambda: store.put_if_version("other", b"v", ABSENT, 1), "Grant the user readwrite")
    watching = cast("WatchingStore", store)
    refusal(lambda: watching.wait_while("other", 1, 5), "Grant the user readwrite")
    waiting = timed(lambda: watching.wait_while("locks/k", entry.version, 20))
    assert store.invalidate("locks/k", entry.version) is None
    assert waiting.result(50)[0] < 15


@pytest.mark.long
def test_a_forgotten_token_is_renewed(api: Opening, new_etcd: NewServer) -> None:
    """Etcd forgets its tokens when it restarts: the store names its user again, and the put is applied once."""
    server = secured(new_etcd)
    store = api.open(f"etcd://locks:{QUOTED}@{server.host}:{server.port}", timeout=20)
    put(store, "locks/before")
    server.restart()
    entry = until_put(store, "locks/after")
    assert store.invalidate("locks/after", entry.version) is None
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda number: store.get(f"locks/{number}"), range(16))) == {None}


def test_a_user_where_nobody_is_asked_is_a_refusal(api: Opening, etcd_server: Server) -> None:
    """A server without authentication says so, and the secret stays one."""
    store = api.open(f"etcd://me:{QUOTED}@{etcd_server.host}:{etcd_server.port}", timeout=20)
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


def until_put(store: Store, key: str) -> Entry:
    """Put, as soon as the server answers again."""
    put = list[Entry]()

    def tried() -> bool:
        try:
            entry = store.get(key) or store.put_if_version(key, b"v", ABSENT, 60)
        except StoreUnavailable:
            return False
        assert entry is not None
        put.append(entry)
        return True

    assert until(tried)
    return put[0]


def test_another_server_on_that_port_is_a_refusal(
    api: Opening, redis_server: Server, memcached_server: Server, tmp_path: Path
) -> None:
    """Redis, memcached, a web server, and an etcd that is too old are named as what they are not."""
    for other in (redis_server, memcached_server):
        store = api.open(f"etcd://{other.host}:{other.port}", timeout=20)
        with pytest.raises(StoreError, match="Is it an etcd") as caught:
            store.put_if_version("k", b"v", ABSENT, 1)
        assert not getattr(caught.value, "sent", False)
    port = free_port()
    web = Process([sys.executable, "-m", "http.server", "--bind", HOST, str(port)], tmp_path)
    web.start()
    try:
        assert until(lambda: listens(port)), web.log()
        store = api.open(f"etcd://{HOST}:{port}", timeout=20)
        refusal(lambda: store.get("k"), "Is it an etcd")
        for version, sentence in (('{"etcdserver": "3.3.9"}', "version 3.3.9"), ("{}", "unknown"), ("[]", "Is it")):
            (tmp_path / "version").write_text(version)
            refusal(lambda: store.get("k"), sentence)
    finally:
        web.remove()


def listens(port: int) -> bool:
    """Whether there is a server."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


@pytest.mark.long
def test_a_frozen_server_hangs_nobody(api: Opening, new_etcd: NewServer) -> None:
    """While the server is stopped, verbs and waits on open and on new connections end in time; then all go on."""
    server = new_etcd()
    store, new = api.open(server.url, timeout=0.5), api.open(server.url, timeout=0.5)
    key = fresh()
    entry = until_put(store, key)
    server.pause()
    try:
        for each, sent in ((store, True), (new, False), (store, False)):
            with Stopwatch() as watch, pytest.raises(StoreUnavailable) as caught:
                each.get(key)
            assert watch.seconds <= each.traits.request_timeout
            assert caught.value.sent is sent
        with Stopwatch() as watch, pytest.raises(StoreUnavailable):
            cast("WatchingStore", new).wait_while(key, entry.version, 20)
        assert watch.seconds <= new.traits.request_timeout
    finally:
        server.resume()
    assert until_put(store, key) == until_put(new, key) == entry


@pytest.mark.parametrize("greets", [True, False])
def test_an_answer_that_trickles_is_given_up_in_time(api: Opening, greets: bool) -> None:  # noqa: FBT001 - a parameter
    """A byte every tenth of a second keeps no verb waiting beyond its timeout, also after a good greeting."""
    version = b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"etcdserver": "3.4.23"}'
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=trickle, args=(listener.accept()[0],), daemon=True).start()

        def trickle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                if greets:
                    connection.recv(9999)
                    connection.sendall(version)
                connection.recv(9999)
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.1)

        threading.Thread(target=serve, daemon=True).start()
        store = api.open(f"etcd://{HOST}:{listener.getsockname()[1]}", timeout=0.5)
        with Stopwatch() as watch, pytest.raises(StoreUnavailable) as caught:
            store.put_if_version("k", b"v", ABSENT, 1)
        assert watch.seconds <= store.traits.request_timeout
        assert caught.value.sent is greets
        listener.close()


# TLS


@pytest.fixture
def tls_port(certificates: Path, tmp_path: Path) -> Iterator[int]:
    """Start an etcd that speaks TLS only, and wants a certificate of its clients."""
    binary = ETCD.binary() or missing(ETCD)
    port, peer = free_port(), f"http://{HOST}:{free_port()}"
    here = f"https://{HOST}:{port}"
    files = {"cert-file": "server.pem", "key-file": "server.key", "trusted-ca-file": "ca.pem"}
    body = Process(
        [
            *(binary, f"--data-dir={tmp_path / 'data'}", f"--listen-client-urls={here}"),
            *(f"--advertise-client-urls={here}", f"--listen-peer-urls={peer}", "--client-cert-auth"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
            *(f"--{name}={certificates / file}" for name, file in files.items()),
        ],
        tmp_path,
    )
    body.start()
    try:
        assert until(lambda: listens(port)), body.log()
        yield port
    finally:
        body.remove()


def test_tls_with_certificates_of_both_sides(api: Opening, tls_port: int, certificates: Path) -> None:
    """With its authority and a certificate of ours, all verbs work; without either, the error says what is wrong."""
    base = f"etcds://{HOST}:{tls_port}?timeout=10"
    trusted = f"{base}&cacert={certificates / 'ca.pem'}"
    ours = f"&cert={certificates / 'client.pem'}&key={certificates / 'client.key'}"
    store = api.open(trusted + ours)
    entry = until_put(store, "k")
    watching = cast("WatchingStore", store)
    waiting = timed(lambda: watching.wait_while("k", entry.version, 20))
    assert store.invalidate("k", entry.version) is None
    assert waiting.result(50)[0] < 15
    refusal(lambda: api.open(base + ours).get("k"), "do not accept each other's TLS.*certificate")
    plain, nameless = api.open(f"etcd://{HOST}:{tls_port}"), api.open(trusted)
    with pytest.raises(StoreUnavailable, match="for TLS, begin the URL with etcds://") as caught:
        plain.get("k")
    assert not caught.value.sent
    with pytest.raises(StoreError, match=r"certificate|closed"):
        nameless.get("k")


def test_tls_to_a_server_without_it_is_a_refusal(api: Opening, etcd_server: Server) -> None:
    """The error says to leave TLS out."""
    store = api.open(f"etcds://{etcd_server.host}:{etcd_server.port}", timeout=20)
    with pytest.raises(StoreUnavailable, match=r"Does it speak TLS\?.*etcd://") as caught:
        store.get("k")
    assert not caught.value.sent


# Clusters


class Cluster:
    """Three members, each a process."""

    def __init__(self, folder: Path) -> None:
        """Start them, and wait until there is a leader."""
        binary = ETCD.binary() or missing(ETCD)
        clients, peers = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        cluster = ",".join(f"m{number}=http://{HOST}:{port}" for number, port in enumerate(peers))
        self.members = list[Server]()
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            (folder / f"m{number}").mkdir()
            body = Process(
                [
                    *(binary, f"--name=m{number}", f"--data-dir={folder / f'm{number}' / 'data'}"),
                    *(
                        f"--listen-client-urls=http://{HOST}:{client}",
                        f"--advertise-client-urls=http://{HOST}:{client}",
                    ),
                    *(
                        f"--listen-peer-urls=http://{HOST}:{peer}",
                        f"--initial-advertise-peer-urls=http://{HOST}:{peer}",
                    ),
                    *(f"--initial-cluster={cluster}", "--heartbeat-interval=50", "--election-timeout=500"),
                ],
                folder / f"m{number}",
            )
            self.members.append(Server(ETCD, f"etcd://{HOST}:{client}", HOST, client, body))
            body.start()
        for member in self.members:
            member.wait()

    @property
    def url(self) -> str:
        """Name all members."""
        return f"etcd://{','.join(f'{member.host}:{member.port}' for member in self.members)}"

    def leader(self) -> int:
        """Find the leader."""
        for number, member in enumerate(self.members):
            status = ask(member, "maintenance/status")
            if status["leader"] == status["header"]["member_id"]:
                return number
        raise AssertionError("no leader")

    def body(self, number: int) -> Process:
        """Give the process of a member."""
        return cast("Process", self.members[number].body)

    def close(self) -> None:
        """End all."""
        for number in range(3):
            self.body(number).resume()
            self.body(number).remove()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start a cluster of three."""
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.long
def test_a_cluster_goes_on_without_its_leader(api: Opening, cluster: Cluster) -> None:
    """The leader is killed: what was acknowledged is there, versions grow, and one owner has the key."""
    store, other = api.open(cluster.url), api.open(cluster.url)
    key = fresh()
    before = until_put(store, key)
    cluster.body(cluster.leader()).kill()
    assert until(lambda: answers(store, key, before))
    assert until(lambda: answers(other, key, before))
    after = put(other, key, b"after", before.version)
    assert after.version > before.version
    assert store.put_if_version(key, b"stale", before.version, 30) == after
    assert store.invalidate(key, after.version) is None


@pytest.mark.long
def test_a_member_that_is_away_costs_nothing(api: Opening, cluster: Cluster) -> None:
    """While a member refuses connections the others are asked; with two of three away, nothing was sent."""
    follower = next(number for number in range(3) if number != cluster.leader())
    where = cluster.members[follower]
    others = [member for member in cluster.members if member is not where]
    url = f"etcd://{','.join(f'{member.host}:{member.port}' for member in (where, *others))}"
    cluster.body(follower).kill()
    store = api.open(url, timeout=20)
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


def test_an_unreachable_member_leaves_time_for_the_others(api: Opening, etcd_server: Server) -> None:
    """A first endpoint that answers nothing takes its share of the timeout, once."""
    with socket.create_server((HOST, 0)) as silent:
        url = f"etcd://{HOST}:{silent.getsockname()[1]},{etcd_server.host}:{etcd_server.port}"
        store = api.open(url, timeout=3)
        with Stopwatch() as watch:
            assert store.get(fresh()) is None
        assert watch.elapsed > 1.0
        assert watch.seconds < 3.0
        with Stopwatch() as watch:
            assert store.get(fresh()) is None
        assert watch.seconds < 1.0


def answers(store: Store, key: str, entry: Entry) -> bool:
    """Whether the store finds the entry."""
    try:
        return store.get(key) == entry
    except StoreUnavailable:
        return False


@pytest.mark.long
def test_a_lock_is_held_through_a_change_of_leader(cluster: Cluster) -> None:
    """Renewals go on at the new leader: the hold is never lost, and nobody else gets in."""
    with connect(cluster.url) as store, connect(cluster.url) as theirs:
        key = fresh()
        with Lock(store, key, ttl=20, timeout=50) as hold:
            cluster.body(cluster.leader()).kill()
            versions = set[int]()

            def renewed() -> bool:
                with contextlib.suppress(StoreUnavailable):
                    entry = theirs.get(key)
                    assert entry is not None
                    versions.add(entry.version)
                return len(versions) > 1

            assert until(renewed)
            hold.ensure_held()
            assert Lock(theirs, key).acquire(timeout=0) is None
        assert theirs.get(key) is None


def test_a_host_with_several_addresses_is_tried_in_each() -> None:
    """`localhost` may mean ::1 first: a refusal there is not the end; a host that is none is told as such."""
    with (
        socket.create_server((HOST, 0)) as listener,
        EtcdStore(f"etcd://localhost:{listener.getsockname()[1]}", timeout=0.5) as store,
        pytest.raises(StoreUnavailable, match="no answer in time"),
    ):
        store.get("k")
    with EtcdStore("etcd://no-such-host.invalid", timeout=20) as nowhere:
        with pytest.raises(StoreUnavailable, match="is unreachable") as caught:
            nowhere.get("k")
        assert not caught.value.sent
