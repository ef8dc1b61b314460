"""`ZooKeeperStore` against real servers of ZooKeeper: what the contract does not ask."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions
from kazoo.client import KazooClient

from caslock import Lock, StoreUnavailable, connect
from caslock.stores.zookeeper import ZooKeeperStore
from caslock.stores.zookeeper.failures import Failures
from caslock.stores.zookeeper.znodes import key_of, path_of
from caslock.testing.extremes import KEYS
from caslock.testing.proxy import FaultProxy
from caslock.testing.steps import at_once, timed
from caslock.testing.stopwatch import Stopwatch
from tests.stores.opening import QUOTED, SECRET, answers, expect_refused, put, refusal, unsent
from tests.support.locations import fresh, present, until
from tests.support.servers import HOST, Server, free_port, private, zookeeper


@pytest.fixture
def store(zookeeper_server: Server) -> Iterator[ZooKeeperStore]:
    """Give a store on the shared server."""
    with ZooKeeperStore(zookeeper_server.url) as store:
        yield store


@pytest.fixture
def admin(zookeeper_server: Server) -> Iterator[Any]:
    """Give a plain client of the shared server."""
    client = KazooClient(f"{zookeeper_server.host}:{zookeeper_server.port}")
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def path(key: str) -> str:
    return path_of("/locks", key)


def test_an_entry_is_a_znode_that_a_person_can_read_and_nothing_stays(
    store: ZooKeeperStore, admin: KazooClient
) -> None:
    """Its data is a line, and the value; its version is its zxid.  A removal deletes the guard, too."""
    key = fresh()
    entry = put(store, key, b'{"caslock":1}', ttl=7.5)
    data, stat = admin.get(path(key))
    (guard,) = admin.get_children(path(key))
    assert data == b'caslock 7500 %b\n{"caslock":1}' % guard.encode()
    assert entry.version == stat.mzxid
    assert store.invalidate(key, entry.version) is None
    assert admin.exists(path(key)) is None


def test_whoever_finds_an_expired_entry_deletes_it(zookeeper_server: Server, admin: KazooClient) -> None:
    """A dead holder leaves a znode behind, until somebody reads, puts, removes or lists it; nobody revives it."""
    root = f"/{fresh('expired').replace(':', '-')}"  # in which nobody else looks
    url = f"zookeeper://{HOST}:{zookeeper_server.port}{root}"
    with ZooKeeperStore(url) as store, ZooKeeperStore(url) as another:
        acts: list[Callable[[ZooKeeperStore, str, int], object]] = [
            lambda who, key, _: who.get(key),
            ZooKeeperStore.invalidate,
            lambda who, key, version: who.put_if_version(key, b"late", version, 30),
            lambda who, key, _: list(who.list(key)) or None,
        ]
        for act, who in itertools.product(acts, (another, store)):
            key = fresh()
            entry = put(store, key, ttl=0.05)
            time.sleep(0.1)
            assert admin.exists(path_of(root, key))
            assert act(who, key, entry.version) is None
            assert admin.exists(path_of(root, key)) is None
        key = fresh()
        dead = put(store, key, ttl=0.05)
        time.sleep(0.1)
        assert put(another, key).version > dead.version


def test_no_key_has_the_name_of_another() -> None:
    """Every key has a name of its own that gives it back, and none of the names that ZooKeeper does not take."""
    keys = {*KEYS, ".", "..", "a/b", "a%2Fb", "zookeeper", "\ud7ff\uf8ff\ufff0\uffff", "🔑" * 1024}
    names = [path_of("/locks", key).removeprefix("/locks/") for key in keys]
    assert len(set(names)) == len(keys)
    for key, name in zip(keys, names, strict=True):
        assert key_of(name) == key
        assert not set(name) & set("/.\0")
        assert name.isascii()
        assert name.isprintable()


def test_a_znode_of_another_program_is_never_overwritten(store: ZooKeeperStore, admin: KazooClient) -> None:
    """It is a `StoreError` that names it, for each verb."""
    key = fresh()
    admin.create(path(key), b"something else", makepath=True)
    expect_refused(store, key, "that caslock has not written")
    assert admin.get(path(key))[0] == b"something else"
    for name in ("%2e", "%zz", "x" * 2000, "%FF"):  # those of no key
        admin.ensure_path(f"/locks/{name}")
    mine = fresh()
    entry = put(store, mine)
    listed = dict(store.list(""))
    assert listed[mine] == entry
    assert not {key, ".", "%2e", "%zz", "x" * 2000, "\ufffd"} & set(listed)
    admin.delete(path(key))


def test_a_session_that_expires_loses_no_lock(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All sessions of the store expire while its lock is held: it is held on, and released."""
    settings = {"tickTime": 100, "maxSessionTimeout": 400}
    with private(zookeeper(settings), tmp_path_factory.mktemp("sessions")) as server:
        lost = list[object]()
        with ZooKeeperStore(server.url) as store:
            hold = Lock(store, "k", ttl=30, on_lost=lost.append).acquire(timeout=0)
            assert hold
            assert until(lambda: not store._servers.idle._stack[0].is_quiet())  # the server has closed it
            assert Lock(store, "k", ttl=30).acquire(timeout=0) is None
            hold.extend(30)
            hold.release()
            assert not Lock(store, "k").locked()
        assert lost == []


def test_leases_and_fences_survive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After kill -9, a lock is still held, and the next one has a larger fence."""
    with (
        private(zookeeper({}), tmp_path_factory.mktemp("restart")) as server,
        ZooKeeperStore(server.url, timeout=20) as store,
        ZooKeeperStore(server.url, timeout=20) as another,
    ):
        hold = Lock(store, "k", ttl=60).acquire(timeout=0)
        assert hold
        server.restart()
        assert until(lambda: answers(another))
        assert Lock(another, "k").acquire(timeout=0) is None
        hold.release()
        with Lock(another, "k") as later:
            assert later.fence > hold.fence


def test_a_user_needs_the_password_and_no_error_shows_it(zookeeper_server: Server) -> None:
    """Znodes that one user has made are refused to another, in words that say so, and show no secret."""
    place = f"{HOST}:{zookeeper_server.port}/{fresh('private').replace(':', '-')}"
    with ZooKeeperStore(f"zookeeper://me:{QUOTED}@{place}") as mine:
        entry = put(mine, "k")
        for user in ("me:wrong@", f"you:{QUOTED}@", ""):
            with ZooKeeperStore(f"zookeeper://{user}{place}") as theirs:
                assert theirs.traits.location == mine.traits.location == f"zookeeper://{place}"
                for act in (partial(theirs.get, "k"), partial(put, theirs, "other")):
                    refused = refusal(act, "Check the user and the password", place)
                    told = "".join(traceback.format_exception(refused)) + repr(theirs)
                    assert not any(secret in told for secret in (SECRET, QUOTED, "wrong@"))
        assert mine.invalidate("k", entry.version) is None


def test_what_is_not_a_zookeeper_is_said_to_be_none(redis_server: Server, zookeeper_server: Server) -> None:
    """Another protocol, and TLS against plain, are told in time; nothing was sent."""
    tls = f"zookeepers://{HOST}:{zookeeper_server.port}?check_hostname=no"
    for url in (f"zookeeper://{HOST}:{redis_server.port}", tls):
        with ZooKeeperStore(url, timeout=0.5) as store:
            with Stopwatch() as watch:
                error = unsent(partial(put, store, "k"), r"is unreachable .*TLS")
            assert watch.seconds <= store.traits.request_timeout
            assert str(error).count(HOST) == 1


@pytest.mark.long
def test_a_silent_address_of_a_host_leaves_time_for_the_next(
    zookeeper_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host has two addresses, and at the first, nobody takes the connection."""
    usual = socket.getaddrinfo
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind((HOST, 0))
        silent.listen(0)
        ports = (silent.getsockname()[1], zookeeper_server.port)
        for each in (first, second):  # which fill its queue
            each.setblocking(False)  # noqa: FBT003 - its only argument
            each.connect_ex((HOST, ports[0]))

        def resolved(_host: str, _port: int, **settings: Any) -> list[Any]:  # noqa: ANN401 - as `socket` has it
            return [found for port in ports for found in usual(HOST, port, **settings)]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        while True:
            of_two = ZooKeeperStore("zookeeper://of-two-addresses/locks", timeout=8)
            with Stopwatch() as watch, contextlib.suppress(StoreUnavailable), of_two as store:
                assert store.get(fresh()) is None
                break
            assert watch.late > 3.0


def test_a_full_server_is_said_to_be_full(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server that takes one connection of a host closes the second; when the first is gone, it is used."""
    with (
        private(zookeeper({"maxClientCnxns": 1}), tmp_path_factory.mktemp("full")) as server,
        ZooKeeperStore(server.url) as one,
        ZooKeeperStore(server.url) as two,
    ):
        assert until(lambda: answers(one))
        unsent(lambda: two.get("k"), "maxClientCnxns")
        one.close()
        assert until(lambda: answers(two))


def test_fifty_threads_share_eight_connections(zookeeper_server: Server) -> None:
    """Requests wait for each other, so that a server takes the connections of several processes; waits are refused."""
    with (
        FaultProxy(zookeeper_server.host, zookeeper_server.port) as proxy,
        ZooKeeperStore(f"zookeeper://{HOST}:{proxy.port}/locks", timeout=20) as store,
    ):

        def cycle(_: int) -> list[int]:
            return [present(Lock(store, fresh(), timeout=50).acquire()).fence for _ in range(5)]

        fences = at_once(cycle)
        assert len({fence for each in fences for fence in each}) == 250
        assert until(lambda: proxy.connections <= 8)

        key = fresh()
        entry = put(store, key)
        waits = [timed(partial(store.wait_while, key, entry.version, 20)) for _ in range(8)]
        assert until(lambda: len(store._busy[max(store._busy)]) == 8)
        unsent(lambda: store.wait_while(key, entry.version, 20), "8 waits")
        assert store.get(key) == entry
        assert store.invalidate(key, entry.version) is None
        for wait in waits:
            wait.result(50)


def test_connect_takes_a_client(zookeeper_server: Server) -> None:
    """Hosts, chroot and credentials are those of a `KazooClient`; what the store can't do for it is refused."""
    hosts = f"{HOST}:{zookeeper_server.port}"
    client = KazooClient(f"{hosts}/{fresh('chroot')}", auth_data=[("digest", f"me:{SECRET}")])
    with connect(client) as store:
        assert isinstance(store, ZooKeeperStore)
        assert store.traits.location.startswith(f"zookeeper://{hosts}/chroot")
        with Lock(store, "k") as hold:
            assert hold.fence > 0
        assert SECRET not in repr(store) + repr(store.traits)
    assert not client.connected
    with pytest.raises(ValueError, match="no SASL"):
        connect(KazooClient(hosts, sasl_options={"mechanism": "DIGEST-MD5"}))
    with pytest.raises(ValueError, match="verifies certificates"):
        connect(KazooClient(hosts, use_ssl=True, verify_certs=False))


def test_tls_is_spoken_and_verified(certificates: Path, tmp_path: Path) -> None:
    """With the authority of the server it works; without it, or without TLS, nothing is sent."""
    port, pem, both = free_port(), certificates / "ca.pem", tmp_path / "both.pem"
    both.write_text((certificates / "server.key").read_text() + (certificates / "server.pem").read_text())
    stores = {"ssl.keyStore.location": both, "ssl.trustStore.location": pem}
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": port,
        "ssl.clientAuth": "none",
        "ssl.keyStore.password": "",
        "ssl.trustStore.password": "",
    }
    with private(zookeeper(settings | stores), tmp_path):
        for host in (HOST, "localhost"):
            with ZooKeeperStore(f"zookeepers://{host}:{port}?ca={pem}", timeout=20) as store:
                assert until(lambda: answers(store))
                with Lock(store, "k") as hold:
                    assert hold.fence > 0
        with ZooKeeperStore(KazooClient(f"{HOST}:{port}", use_ssl=True, ca=str(pem)), timeout=20) as store:
            assert store.get("k") is None
        for url, reason, timeout in (
            (f"zookeepers://{HOST}:{port}", "certificate verify failed", 20),
            (f"zookeeper://{HOST}:{port}", "has closed the connection|no answer in time|reset by peer", 2),
        ):
            with ZooKeeperStore(url, timeout=timeout) as store:
                assert isinstance(unsent(partial(put, store, "k"), reason).__cause__, ssl.SSLError | OSError)


@pytest.mark.parametrize(
    ("error", "sentence", "refused"),
    [
        (exceptions.UnimplementedError(), "needs ZooKeeper 3.4 or newer", True),
        (exceptions.NotReadOnlyCallError(), "not read-only", True),
        (exceptions.QuotaExceededError(), "Raise the quota", True),
        (exceptions.AuthFailedError(), "Check the user and the password", True),
        (exceptions.InvalidACLError(), r"\(InvalidACL\)", True),
        (exceptions.SessionExpiredError(), r"\(SessionExpired\)", False),
        (exceptions.SystemZookeeperError(), r"\(SystemZookeeper\)", False),
    ],
)
def test_an_answer_that_a_test_cannot_provoke(error: Exception, sentence: str, refused: bool) -> None:  # noqa: FBT001 - a parameter
    """What a server says for good is a `StoreError`; what leaves the outcome open is `StoreUnavailable`."""
    failed = Failures("zookeeper://db").of(error, sent=True)
    assert re.search(sentence, str(failed))
    assert str(failed).count("zookeeper://db") == 1
    assert isinstance(failed, StoreUnavailable) is not refused
    assert not isinstance(failed, StoreUnavailable) or failed.sent
