"""`NatsStore` and `AsyncNatsStore` against real NATS servers: what the contract does not ask."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nkeys
import pytest

from caslock import Lock, StoreUnavailable, connect
from caslock.cli.doctor_nats import examine
from caslock.store import ABSENT, Entry
from caslock.stores.nats import AsyncNatsStore, NatsStore
from caslock.stores.nats.failures import Failures
from caslock.stores.nats.requests import RefusedError, Verbs
from caslock.stores.nats.wire import Ask, Message
from caslock.stores.shared.connections import run
from caslock.testing.extremes import KEYS
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.testing.steps import in_a_thread, timed
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
    finds,
    put,
    refusal,
    store_on,
    unsent,
    until_put,
)
from tests.support.clusters import Cluster
from tests.support.locations import fresh, until
from tests.support.servers import HOST, NATS, Server, private


def once(ask: Ask) -> Generator[Ask, Message, Message]:
    return (yield ask)


def ask(url: str, subject: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> Message:
    with NatsStore(url, timeout=20) as store:
        return run(store._servers.run(once(Ask(subject, body, headers))))


def make_bucket(server: Server, name: str, **settings: object) -> str:
    """Make a bucket as its owner would, and give its URL."""
    own = Verbs(name).settings(1) | settings
    made = ask(server.url, f"$JS.API.STREAM.CREATE.KV_{name}", Ask.api("", **own).body).json()
    assert "error" not in made, made
    return f"{server.url}/{name}"


api = apis(NatsStore, AsyncNatsStore)
store = store_on("nats_server")


# Requests and markers


def test_a_cycle_is_two_requests(api: Opening, nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """To acquire is one request, to release another, also at once after a release; a second later nothing is left."""
    with FaultProxy(nats_server.host, nats_server.port) as proxy:
        mine, theirs = (api.open(f"nats://127.0.0.1:{proxy.port}") for _ in range(2))
        for each in (mine, theirs):
            put(each, fresh())
        # On a busy machine the client may connect again, or answer a PING of the server: neither counts.
        key, counts = fresh(), lambda packet: packet != b"PONG\r\n" and b"CONNECT" not in packet
        monkeypatch.setattr("caslock.stores.nats.requests._MARKER", 300)  # seconds a store remembers it
        for _ in range(3):
            entry = expect_requests(1, proxy, lambda: put(mine, key), counts)
            assert expect_requests(1, proxy, partial(mine.invalidate, key, entry.version), counts) is None
        entry = expect_requests(3, proxy, lambda: put(theirs, key), counts)  # which has not seen the marker
        monkeypatch.undo()
        assert theirs.invalidate(key, entry.version) is None
        subject, known = Verbs("caslock").subject(key), time.monotonic() + 1.0
        assert until(lambda: time.monotonic() > known and "error" in last(nats_server, subject))
        expect_requests(1, proxy, lambda: put(theirs, key), counts)
        assert proxy.accepted < 8


def last(server: Server, subject: str) -> dict[str, Any]:
    """Ask for the last message of a subject, which may be a marker."""
    return ask(server.url, "$JS.API.STREAM.MSG.GET.KV_caslock", Ask.api("", last_by_subj=subject).body).json()


def test_a_marker_is_no_version(api: Opening, nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another program has left as a marker, nothing is there; and no put or removal finds its version."""
    monkeypatch.setattr("caslock.stores.nats.requests._MARKER", 300)  # seconds a store remembers a marker
    store, key = api.open(nats_server.url), fresh()
    subject = Verbs("caslock").subject(key)
    for headers in ({"KV-Operation": "DEL"}, {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}):
        entry = put(store, key)
        marker = int(ask(nats_server.url, subject, headers=headers).json()["seq"])
        assert marker > entry.version
        assert store.get(key) is None
        assert store.put_if_version(key, b"v", marker, 30) is None
        assert store.invalidate(key, marker) is None
        assert last(nats_server, subject)["message"]["seq"] == marker
        assert dict(store.list(key)) == {}
        third = put(api.open(nats_server.url), key)
        assert third.version > marker
        assert store.invalidate(key, third.version) is None


def test_a_value_of_another_program_is_an_entry(store: Opened, nats_server: Server) -> None:
    """What `nats kv put` has written is held by somebody: it is never overwritten."""
    key = fresh()
    version = int(ask(nats_server.url, Verbs("caslock").subject(key), b"theirs").json()["seq"])
    assert store.put_if_version(key, b"mine", ABSENT, 30) == Entry(b"theirs", version)
    assert Lock(store, key).acquire(timeout=0) is None
    ask(nats_server.url, "$KV.caslock.a.name.that.no.key.has", b"theirs")
    assert dict(store.list(key)) == {key: Entry(b"theirs", version)}


def test_a_put_and_a_removal_of_one_version_are_never_both_applied(api: Opening, nats_server: Server) -> None:
    """Of a renewal and a removal that expect the same version one succeeds, whichever comes first."""
    one, two = (api.open(nats_server.url) for _ in range(2))
    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            key = fresh()
            entry = put(one, key)
            renewed = threads.submit(one.put_if_version, key, b"renewed", entry.version, 30)
            removed = threads.submit(two.invalidate, key, entry.version)
            renewal, rest = renewed.result(), removed.result()
            assert (renewal is None) == (rest is None), (renewal, rest)
            assert one.get(key) == renewal == rest


def test_every_key_is_a_name_that_tools_for_buckets_take() -> None:
    """Each name has the characters of keys in buckets, and fits into a line."""
    names = [Verbs("b").subject(key).removeprefix("$KV.b.") for key in KEYS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[-/_=a-zA-Z0-9]{1,1000}", name) for name in names)


# Waiting


def test_a_wait_is_not_ended_by_writes_that_are_refused(store: Opened, api: Opening, nats_server: Server) -> None:
    """Contenders that put and are refused wake nobody; a renewal and a removal do, also one that came before."""
    key = fresh()
    entry = put(store, key)
    other = api.open(nats_server.url)
    waiting = in_a_thread(lambda: store.wait_while(key, entry.version, 300))
    for _ in range(100):
        assert other.put_if_version(key, b"theirs", ABSENT, 30) == entry
        assert other.invalidate(key, entry.version - 1) == entry
    assert not waiting.done()
    put(other, key, b"renewed", entry.version)
    waiting.result(50)
    in_a_thread(lambda: store.wait_while(key, entry.version, 300)).result(50)


@pytest.mark.parametrize("program", ["ours", "another"])
def test_a_waiter_answers_the_server(api: Opening, program: str, new_nats: NewServer, tmp_path: Path) -> None:
    """A server that asks for signs of life would else cut it off; a removal, and a put by another program, wake it."""
    (tmp_path / "nats.conf").write_text('ping_interval: "500ms"\nping_max: 500\n')
    server = new_nats("-c", str(tmp_path / "nats.conf"))
    sent = list[bytes]()

    def note(request: bytes) -> Passage:
        sent.append(request)
        return PASS

    with FaultProxy(server.host, server.port, note) as proxy:
        store = api.open(f"nats://{HOST}:{proxy.port}")
        entry = put(store, "k")
        waiting = in_a_thread(lambda: store.wait_while("k", entry.version, 300))
        assert until(lambda: b"".join(sent).count(b"PONG") >= 3)
        store.invalidate("k", entry.version) if program == "ours" else ask(server.url, "$KV.caslock.k", b"theirs")
        waiting.result(50)


def test_a_bucket_that_tells_no_changes_is_polled(api: Opening, nats_server: Server) -> None:
    """Waiters are told to sleep, and a lock waits all the same."""
    name = fresh("mute").replace(":", "-")
    store = api.open(make_bucket(nats_server, name, republish=None))
    entry = put(store, "k")
    unsent(lambda: store.wait_while("k", entry.version, 5), "can't serve another waiter")
    assert store.invalidate("k", entry.version) is None
    with connect(f"{nats_server.url}/{name}") as plain, Lock(plain, "k"):
        waiting = timed(lambda: Lock(plain, "k").acquire(timeout=0.2))
        assert waiting.result(50)[0] < 5


# Buckets


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"allow_msg_ttl": False}, "does not end single entries"),
        ({"max_msgs_per_subject": 5}, "keeps a history"),
        ({"max_age": 10**12}, "by their age"),
        ({"discard": "old", "max_bytes": 10**6}, "drops entries when it is full"),
        ({"retention": "interest"}, "is a queue"),
    ],
)
def test_a_bucket_that_loses_entries_is_refused(
    api: Opening, nats_server: Server, settings: dict[str, object], sentence: str
) -> None:
    """Its settings are looked at before the first request; the error says what to change."""
    url = make_bucket(nats_server, fresh("bad").replace(":", "-"), **settings)
    refusal(lambda: api.open(url).get("k"), sentence)


def test_only_a_put_makes_a_bucket(api: Opening, nats_server: Server) -> None:
    """To look makes none; after one was deleted, the next put makes it again."""
    name = fresh("new").replace(":", "-")
    store = api.open(f"{nats_server.url}/{name}")
    about = f"$JS.API.STREAM.INFO.KV_{name}"
    for _ in range(2):
        assert store.get("k") is None
        assert list(store.list("")) == []
        with pytest.raises(StoreUnavailable, match="another waiter"):
            store.wait_while("k", 1, 5)
        assert "error" in ask(nats_server.url, about).json()
        put(store, "k")
        assert dict(store.list("")).keys() == {"k"}
        assert ask(nats_server.url, about.replace("INFO", "DELETE")).json()["success"]
        unsent(lambda: store.put_if_version("k", b"v", ABSENT, 30), "there is no such stream")


def test_one_bucket_is_made_by_many(api: Opening, nats_server: Server) -> None:
    """Of many that find none, one makes it, and one gets the key."""
    url = f"{nats_server.url}/{fresh('new').replace(':', '-')}"
    stores = [api.open(url) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda store: store.put_if_version("k", fresh().encode(), ABSENT, 30), stores))) == 1


def test_a_bucket_with_markers_of_its_own_serves(api: Opening, nats_server: Server) -> None:
    """Where the server leaves a marker for what has expired, the key is free all the same, and versions grow."""
    name = fresh("marked").replace(":", "-")
    store = api.open(make_bucket(nats_server, name, subject_delete_marker_ttl=60 * 10**9))
    first = put(store, "k", ttl=1)
    assert until(lambda: store.get("k") is None)
    second = put(store, "k")
    assert second.version > first.version + 1  # the marker was between them


def test_a_full_bucket_refuses_puts_and_still_releases(api: Opening, nats_server: Server) -> None:
    """The error says what to do, and what is there can be read and removed."""
    url = make_bucket(nats_server, fresh("full").replace(":", "-"), max_bytes=20_000)
    expect_full(api.open(url), b"v" * 300, "is full .* Raise its limits")


@pytest.mark.long
def test_a_restart_keeps_entries_and_versions(new_nats: NewServer) -> None:
    """After a kill, leases go on where they were, and no version comes again, even if nothing is left."""
    server = new_nats()
    with NatsStore(server.url, timeout=20) as store:
        began = time.monotonic()
        kept, short = put(store, "kept", ttl=60), put(store, "short", ttl=3)
        gone = put(store, "gone")
        assert store.invalidate("gone", gone.version) is None
        server.restart()
        assert until(lambda: finds(store, "kept", kept))
        assert store.invalidate("kept", kept.version) is None
        assert until(lambda: store.get("short") is None)
        assert time.monotonic() - began >= 3
        assert until(lambda: "error" in last(server, Verbs("caslock").subject("kept")))
        server.restart()
        again = until_put(store, "gone")
        assert again.version > kept.version + 2
        assert again.version > short.version


# Bad servers


CONFIGURATION = """
authorization {{ users: [
  {{ user: "locks", password: "{secret}", permissions: {{
       publish: ["$KV.caslock.>", "$JS.API.STREAM.INFO.KV_caslock", "$JS.API.STREAM.CREATE.KV_caslock",
                 "$JS.API.STREAM.MSG.GET.KV_caslock"], subscribe: ["_INBOX.>", "$CASLOCK.caslock.>"] }} }}
  {{ user: "reader", password: "{secret}", permissions: {{
       publish: ["$JS.API.>"], subscribe: ["_INBOX.>"] }} }}
] }}
"""


def test_passwords_and_rights(api: Opening, new_nats: NewServer, tmp_path: Path) -> None:
    """A wrong password, none at all, and a missing right: each says what to do.  The documented rights are enough."""
    (tmp_path / "nats.conf").write_text(CONFIGURATION.format(secret=SECRET))
    server = new_nats("-c", str(tmp_path / "nats.conf"))
    where = f"{server.host}:{server.port}"
    for user in (f"locks:{QUOTED}x@", f"nobody:{QUOTED}@", f"{QUOTED}@", ""):
        store = api.open(f"nats://{user}{where}")
        for _ in range(2):
            refusal(lambda: store.get("k"), "Authorization Violation.*Check user and password")  # noqa: B023 - called at once
        assert "p@ss" not in repr(store)
    store = api.open(f"nats://locks:{QUOTED}@{where}")
    expect_woken(store, "k")
    reader = api.open(f"nats://reader:{QUOTED}@{where}")
    assert reader.get("k") is None
    refusal(lambda: reader.put_if_version("k", b"v", ABSENT, 1), r"Permissions Violation.*publish to \$KV")
    refusal(lambda: reader.wait_while("k", 1, 5), "Permissions Violation")
    assert reader.get("k") is None


def test_a_token_is_taken(api: Opening, new_nats: NewServer) -> None:
    """Instead of user and password."""
    server = new_nats("--auth", SECRET)
    store = api.open(f"nats://{QUOTED}@{server.host}:{server.port}")
    put(store, "k")
    refusal(lambda: api.open(server.url).get("k"), "Authorization Violation")


@pytest.mark.parametrize("with_jwt", [True, False])
def test_a_key_signs_for_its_user(api: Opening, new_nats: NewServer, tmp_path: Path, with_jwt: bool) -> None:  # noqa: FBT001 - a parameter
    """A file with a JWT and a seed is taken, and one with a seed only; another key is refused."""
    operator, account, system, user, stranger = (
        nkeys.encode_seed(os.urandom(32), prefix)
        for prefix in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            *[nkeys.PREFIX_BYTE_USER] * 2,
        )
    )
    limits = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    everything = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    if with_jwt:
        accounts = {
            public(account): jwt(operator, account, type="account", limits=limits | everything | {"wildcards": True}),
            public(system): jwt(operator, system, type="account", limits=everything | {"wildcards": True}),
        }
        preload = "\n".join(f"{name}: {token}" for name, token in accounts.items())
        configuration = (
            f"operator: {jwt(operator, operator, type='operator')}\nsystem_account: {public(system)}\n"
            f"resolver: MEMORY\nresolver_preload: {{ {preload} }}\n"
        )
    else:
        configuration = f"authorization {{ users: [ {{ nkey: {public(user)} }} ] }}\n"
    (tmp_path / "nats.conf").write_text(configuration)
    token = jwt(account, user, type="user", subs=-1, data=-1, payload=-1)
    armoured = f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n" if with_jwt else ""
    for name, seed in (("ours", user), ("theirs", stranger)):
        (tmp_path / name).write_text(f"{armoured}-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END")
    server = new_nats("-c", str(tmp_path / "nats.conf"))
    put(api.open(f"{server.url}?creds={tmp_path / 'ours'}"), "k")
    refusal(lambda: api.open(f"{server.url}?creds={tmp_path / 'theirs'}").get("k"), "Authorization Violation")
    (tmp_path / "empty").write_text("")
    for url, sentence in (
        (f"{server.url}?creds={tmp_path / 'none'}", "No such file"),
        (f"{server.url}?creds={tmp_path / 'empty'}", "no seed"),
        (f"nats://me@{HOST}?creds={tmp_path / 'ours'}", "either"),
    ):
        with pytest.raises(ValueError, match=sentence):
            api.open(url)


def public(seed: bytes) -> str:
    key: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return key.decode()


def jwt(issuer: bytes, subject: bytes, **claims: object) -> str:
    """Say something about a key, signed by another, as `nsc` does."""
    about = {"jti": fresh(), "iat": int(time.time()), "iss": public(issuer), "sub": public(subject), "name": "test"}
    parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, about | {"nats": {"version": 2, **claims}})
    text = ".".join(unpadded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{unpadded(nkeys.from_seed(bytearray(issuer)).sign(text.encode()))}"


def unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_a_server_without_jetstream_is_a_refusal(api: Opening, tmp_path: Path) -> None:
    """The error says how to start it."""
    with private(replace(NATS, arguments=lambda port, _: ["-a", HOST, "-p", str(port)]), tmp_path) as server:
        refusal(lambda: api.open(server.url).get("k"), "start it with -js")


@pytest.mark.parametrize(
    ("greeting", "sentence"),
    [
        (b"220 mail.example.org ESMTP\r\n", "does not answer as NATS does"),
        (b"\x4a\0\0\0\x0a5.5.5-10.11.6-MariaDB\0", "does not answer as NATS does"),
        (b"INFO no JSON\r\n", "does not answer as NATS does"),
        (b"INFO []\r\n", "does not answer as NATS does"),
        (b"INFO {}\r\n", "does not answer as NATS does"),
        (b"PING\r\nPING\r\nPONG\r\n", "does not answer as NATS does"),
        (b'INFO {"server_id": "N", "version": "2.10.29", "jetstream": true}\r\n', "version 2.10.29, and only 2.11"),
    ],
)
def test_another_server_on_that_port_is_a_refusal(api: Opening, greeting: bytes, sentence: str) -> None:
    """What greets otherwise is named as what it is not; and so is a NATS that is too old."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        connection.sendall(greeting)
                        while connection.recv(100):
                            pass

        threading.Thread(target=serve, daemon=True).start()
        store = api.open(f"nats://{HOST}:{listener.getsockname()[1]}")
        refusal(lambda: store.put_if_version("k", b"v", ABSENT, 1), sentence)
        listener.shutdown(socket.SHUT_RDWR)


def test_tls_with_certificates_of_both_sides(api: Opening, new_nats: NewServer, certificates: Path) -> None:
    """And TLS is asked for where it was left out."""
    files = {name: str(certificates / f"server.{kind}") for name, kind in (("tlscert", "pem"), ("tlskey", "key"))}
    options = [f"--{name}={file}" for name, file in files.items()]
    server = new_nats("--tlsverify", f"--tlscacert={certificates / 'ca.pem'}", *options)
    expect_tls_of_both_sides(api, f"natss://{server.host}:{server.port}?timeout=10", certificates)
    refusal(lambda: api.open(server.url).get("k"), "Begin the URL with natss://")


# Clusters


class Three(Cluster):
    def arguments(self, number: int, port: int, peers: Sequence[int], folder: Path) -> list[str]:
        others = ",".join(f"nats://{HOST}:{peer}" for peer in peers)
        return [
            *("-a", HOST, "-p", str(port), "-n", f"n{number}", "-js", "-sd", str(folder / "js")),
            *("--cluster_name", "locks", "--cluster", f"nats://{HOST}:{peers[number]}", "--routes", others),
        ]

    @property
    def url(self) -> str:
        return f"nats://{self.hosts}/caslock?replicas=3&timeout=3"

    def leader(self) -> int:
        """Find the leader of the bucket, which is not that of the cluster in every case."""
        told = ask(f"nats://{self.hosts}", "$JS.API.STREAM.INFO.KV_caslock").json()
        return int(told["cluster"]["leader"].removeprefix("n"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Three]:
    """Start a cluster of three, with a bucket on all of them."""
    with contextlib.closing(Three(NATS, tmp_path)) as cluster:
        with NatsStore(cluster.url) as store:
            until_put(store, "first")
        yield cluster


def test_a_bucket_can_be_made_once_all_its_servers_are_there() -> None:
    """As a cluster starts, its servers know each other only after a while; NATS 2.12.15 has said these words."""
    refused = RefusedError("no suitable peers for placement, peer offline", code=10005, status=400)
    error = Failures("nats://h").of(refused, sent=True)
    assert isinstance(error, StoreUnavailable)
    assert not error.sent


@pytest.mark.long
def test_a_cluster_goes_on_without_its_leader(cluster: Three) -> None:
    """See `expect_no_leader_missed`; doctor notices, too."""
    with connect(cluster.url) as store, connect(cluster.url) as theirs:
        key = fresh()
        with ThreadPoolExecutor(8) as threads:
            race = threads.map(lambda number: store.put_if_version(key, b"%d" % number, ABSENT, 60), range(8))
            assert len(set(race)) == 1
        assert until(lambda: not list(examine(cluster.url)))
        expect_no_leader_missed(cluster, store, store, theirs)
        assert until(lambda: ["the replica on n" in each.what for each in examine(cluster.url)] == [True])
