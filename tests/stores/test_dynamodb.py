"""`DynamoDBStore` and `AsyncDynamoDBStore` against DynamoDB Local: what the contract does not ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import boto3
import pytest
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from caslock import AsyncLock, Lock, LockLost, StoreError, StoreUnavailable, connect, connect_async
from caslock.store import ABSENT, Entry
from caslock.stores.dynamodb import AsyncDynamoDBStore, DynamoDBStore, requests
from caslock.stores.dynamodb.failures import Failures
from caslock.stores.dynamodb.target import target_of
from caslock.testing.drive import driven, on_loop
from caslock.testing.proxy import PASS, FaultProxy, Passage, foreign_port, refused_port
from tests.support.locations import fresh, until
from tests.support.servers import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from caslock import Store
    from caslock.store import ListingStore
    from tests.support.servers import Server

SECRET = "s3cr3t"  # noqa: S105 - of nobody

WEEK = 7 * 24 * 3600


class Opening(NamedTuple):
    """How to make stores of one API; they are closed with the test."""

    blocking: bool
    open: Callable[..., Store]


@pytest.fixture(params=["blocking", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Opening]:
    """Give each API in turn."""
    blocking = request.param == "blocking"
    with contextlib.ExitStack() as stack:

        def make(target: str, **settings: Any) -> Store:  # noqa: ANN401 - as the stores take it
            store = DynamoDBStore(target, **settings) if blocking else AsyncDynamoDBStore(target, **settings)
            stack.callback(store.close if isinstance(store, DynamoDBStore) else lambda: on_loop(store.aclose()))
            return driven(store)

        yield Opening(blocking, make)


@pytest.fixture
def store(api: Opening, dynamodb_server: Server) -> Store:
    """A store on the shared server."""
    return api.open(dynamodb_server.url, timeout=20)


@pytest.fixture(scope="module")
def dynamodb(dynamodb_server: Server) -> Any:  # noqa: ANN401 - boto3 ships no types
    """A client of boto3."""
    return boto3.client(
        "dynamodb", region_name="eu-central-1", endpoint_url=f"http://{dynamodb_server.host}:{dynamodb_server.port}"
    )


def put(store: Store, key: str, value: bytes = b"v", version: int = ABSENT, ttl: float = 30.0) -> Entry:
    """Write, and expect success."""
    entry = store.put_if_version(key, value, version, ttl)
    assert entry is not None
    assert entry.value == value
    return entry


def refusal(act: Callable[[], object], match: str) -> StoreError:
    """Expect a definite refusal, which says so and names the place once."""
    with pytest.raises(StoreError, match=match) as caught:
        act()
    assert not isinstance(caught.value, StoreUnavailable), caught.value
    assert str(caught.value).count("dynamodb://") == 1, caught.value
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


def through(proxy: FaultProxy) -> str:
    """Give the URL of the shared table behind a proxy."""
    return f"dynamodb://eu-central-1?endpoint=http://{HOST}:{proxy.port}"


def requests_of(proxy: FaultProxy, act: Callable[[], object]) -> int:
    """Count the requests that are sent meanwhile."""
    sent = list[bytes]()

    def listen(request: bytes) -> Passage:
        if request.startswith(b"POST "):
            sent.append(request)
        return PASS

    proxy.decide = listen
    act()
    proxy.decide = lambda _: PASS
    return len(sent)


def test_an_item_can_be_read_by_people_and_is_deleted_a_week_after_its_lease(store: Store, dynamodb: Any) -> None:  # noqa: ANN401 - as its client gives it
    """Text is kept as text, other bytes as bytes; a removal leaves a marker with the version and no value."""
    key = fresh()

    def item() -> dict[str, Any]:
        found: dict[str, Any] = dynamodb.get_item(TableName="caslock", Key={"key": {"S": key}})["Item"]
        found.pop("key")
        return found

    before = time.time()
    first = put(store, key, b'{"caslock":1}', ttl=7.5)
    found = item()
    assert before - 1 <= int(found.pop("expires")["N"]) - 7.5 - WEEK <= time.time() + 1
    assert found == {"value": {"S": '{"caslock":1}'}, "version": {"N": str(first.version)}}
    second = put(store, key, b"\xff", first.version)
    assert item()["value"] == {"B": b"\xff"}
    assert store.invalidate(key, second.version) is None
    assert item().keys() == {"version", "expires"}
    assert store.get(key) is None


def test_an_uncontended_cycle_is_two_requests(dynamodb_server: Server) -> None:
    """To acquire is one request, to renew is one, and to release is one; so is a refusal."""
    with (
        FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy,
        DynamoDBStore(through(proxy), timeout=20) as store,
    ):
        lock, holds = Lock(store, fresh(), auto_renew=False), list[Any]()
        for _ in range(2):
            assert requests_of(proxy, lambda: holds.append(lock.acquire())) == 1
            assert requests_of(proxy, lambda: holds[-1].extend(20)) == 1
            assert requests_of(proxy, lambda: store.put_if_version(lock.key, b"v", ABSENT, 30)) == 1
            assert requests_of(proxy, lambda: holds[-1].release()) == 1  # noqa: PLW0108 - another one each time


def test_versions_grow_also_by_a_clock_that_is_behind(
    store: Store, dynamodb_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker keeps the version, so an earlier time is refused, and the second request is above it."""
    key = fresh()
    first = put(store, key)
    store.invalidate(key, first.version)
    monkeypatch.setattr(requests, "_now", lambda: first.version - 3_600_000_000)
    second = put(store, key)
    third = put(store, key, b"3", second.version)
    assert first.version < second.version < third.version
    assert store.put_if_version(key, b"4", ABSENT, 30) == third
    store.invalidate(key, third.version)
    with FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy, DynamoDBStore(through(proxy)) as late:
        late.get(key)
        assert requests_of(proxy, lambda: put(late, key)) == 2
        found = late.get(key)
        assert found is not None
        assert found.version > third.version


def test_long_keys_have_a_digest_and_are_listed_in_full(store: Store) -> None:
    """A partition key has up to 2,048 bytes; a key that reads like a digest is none."""
    salt = fresh()
    long = f"{salt}{'钥' * (1024 - len(salt))}"
    name = requests.name_of(long)
    assert name.startswith("sha256:")
    assert len(name.encode()) < 2048
    assert requests.name_of(name) != name
    entries = {each: put(store, each, each[-1].encode()) for each in (long, name, f"{long[:-1]}匙")}
    assert {each: store.get(each) for each in entries} == entries
    assert dict(cast("ListingStore", store).list(salt)) == {each: entries[each] for each in entries if each != name}


def test_what_another_program_has_written_is_never_overwritten(store: Store, dynamodb: Any) -> None:  # noqa: ANN401 - as its client gives it
    """An item of any other form is an error, and stays."""
    other: tuple[dict[str, Any], ...] = (
        {},
        {"value": {"S": "v"}},
        {"version": {"S": "v"}},
        {"value": {"N": "1"}, "version": {"N": "1"}},
    )
    for attributes in other:
        key = fresh()
        item = {"key": {"S": key}, **attributes}
        dynamodb.put_item(TableName="caslock", Item=item)
        for act in (
            partial(store.get, key),
            partial(store.put_if_version, key, b"v", ABSENT, 30.0),
            partial(store.put_if_version, key, b"v", 2, 30.0),
            partial(store.invalidate, key, 2),
        ):
            refusal(act, "that caslock has not written")
        assert dynamodb.get_item(TableName="caslock", Key={"key": {"S": key}})["Item"] == item
        assert not list(cast("ListingStore", store).list(key))
        dynamodb.delete_item(TableName="caslock", Key={"key": {"S": key}})


def test_a_table_is_made_when_that_is_asked_for(api: Opening, dynamodb_server: Server, dynamodb: Any) -> None:  # noqa: ANN401 - as its client gives it
    """Without a table every verb says how to get one; to make it twice does nothing."""
    name = fresh("table").replace(":", "-")
    url = dynamodb_server.url.replace("/caslock", f"/{name}")
    store = api.open(url, timeout=20)
    for act in (lambda: store.get("k"), lambda: put(store, "k"), lambda: store.invalidate("k", 1)):
        refusal(act, r"ResourceNotFound.*partition key is \"key\" of type S.*create_table\(\)")
    for _ in range(2):
        if api.blocking:
            cast("DynamoDBStore", store).create_table()
        else:
            on_loop(cast("Any", store)._store.create_table())
    entry = put(store, "k")
    assert store.get("k") == entry
    told = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert told == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
    dynamodb.delete_table(TableName=name)


def test_a_table_with_another_key_is_refused(api: Opening, dynamodb_server: Server, dynamodb: Any) -> None:  # noqa: ANN401 - as its client gives it
    """The error says which key the table needs."""
    name = fresh("table").replace(":", "-")
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    store = api.open(dynamodb_server.url.replace("/caslock", f"/{name}"), timeout=20)
    for act in (lambda: store.get("k"), lambda: put(store, "k")):
        refusal(act, 'ValidationException.*partition key is "key" of type S, without a sort key')
    dynamodb.delete_table(TableName=name)


class Metadata(BaseHTTPRequestHandler):
    """The metadata service of a machine in EC2 that has a role."""

    def do_PUT(self) -> None:
        """Give a token."""
        self._say("token")

    def do_GET(self) -> None:
        """Name the role, or give its credentials."""
        keys = {"AccessKeyId": "role", "SecretAccessKey": "secret", "Token": "token"}
        until = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._say("role" if self.path.endswith("/") else json.dumps({**keys, "Expiration": until, "Code": "Success"}))

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - as it is called there
        """Say nothing."""

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


def test_the_credentials_of_a_machines_role_are_found(
    api: Opening, dynamodb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine in EC2 has them from its metadata service, which is asked with the store's default timeout too."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as service:
        Thread(target=service.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{service.server_port}/")
        try:
            assert api.open(dynamodb_server.url).get(fresh()) is None
        finally:
            service.shutdown()


def test_without_credentials_nothing_is_sent(
    api: Opening, dynamodb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where boto3 looks for them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy:
        store = api.open(through(proxy), timeout=20)
        refusal(lambda: put(store, fresh()), "without AWS credentials.*AWS_PROFILE")
        assert not proxy.accepted
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    refusal(lambda: api.open(dynamodb_server.url).get("k"), r"without AWS credentials.*\(nobody\)")


def test_another_server_at_the_endpoint_is_named(api: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server that is no DynamoDB, one without TLS, and one of another protocol are told apart."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "caslock")
    with ThreadingHTTPServer((HOST, 0), Silent) as web, foreign_port(lambda _: b"INFO {}\r\n") as other:
        thread = Thread(target=web.serve_forever)
        thread.start()
        try:
            address = f"{HOST}:{web.server_port}"
            ask = api.open(f"dynamodb://eu-central-1?endpoint=http://{address}", timeout=20).get
            refusal(lambda: ask("k"), "does not answer as DynamoDB does")
            secure = api.open(f"dynamodb://eu-central-1?endpoint=https://{address}", timeout=20).get
            refusal(lambda: secure("k"), "does not speak TLS")
            with pytest.raises(StoreUnavailable, match="what answers does not speak HTTP; check the endpoint"):
                api.open(f"dynamodb://eu-central-1?endpoint=http://{HOST}:{other}", timeout=20).get("k")
        finally:
            web.shutdown()
            thread.join()


class Silent(BaseHTTPRequestHandler):
    """A web server that knows no POST, and keeps no log."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("code", "status", "sent", "sentence"),
    [
        ("ProvisionedThroughputExceededException", 400, False, "can't serve it now"),
        ("ThrottlingException", 400, False, "can't serve it now"),
        ("RequestLimitExceeded", 400, False, "can't serve it now"),
        ("TransactionConflictException", 400, False, "can't serve it now"),
        ("InternalServerError", 500, True, "may have applied"),
        ("ServiceUnavailable", 503, True, "may have applied"),
        ("400", 400, True, "may have applied"),
        ("", 400, True, "may have applied"),
        ("AccessDeniedException", 400, None, "Allow dynamodb:GetItem and dynamodb:PutItem"),
        ("ExpiredTokenException", 400, None, "credentials have expired"),
        ("UnrecognizedClientException", 400, None, "access key or the session token is not known"),
        ("InvalidSignatureException", 400, None, "secret key does not fit"),
        ("KMSAccessDeniedException", 400, None, "has refused the request"),
    ],
)
def test_what_aws_answers_and_dynamodb_local_does_not(code: str, status: int, sent: bool | None, sentence: str) -> None:  # noqa: FBT001 - as the error has it
    """What was throttled was not applied; what failed inside of AWS may have been; all else is a refusal."""
    response = {
        "Error": {"Code": code, "Message": f"x-amz-security-token:{SECRET}" if "Signature" in code else "No."},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    failures = Failures(target_of("dynamodb://eu-central-1", None, None).location)
    error = ClientError(response, "PutItem")
    told = failures.of(error, sent=True)
    told.__cause__ = failures.shown(error)
    assert isinstance(told, StoreUnavailable) == (sent is not None)
    assert sent is None or cast("StoreUnavailable", told).sent == sent
    assert sentence in str(told)
    assert SECRET not in "".join(traceback.format_exception(told))


def test_the_key_of_a_dead_holder_is_taken_over_after_its_ttl(dynamodb_server: Server) -> None:
    """DynamoDB does not end leases in time: a lock does, once it has seen the entry for a whole ttl."""
    key, others = fresh(), fresh()
    with DynamoDBStore(dynamodb_server.url, timeout=20) as store:
        dead = Lock(store, key, ttl=0.5, auto_renew=False).acquire()
        assert dead
        began = time.monotonic()
        with DynamoDBStore(dynamodb_server.url, timeout=20) as another:
            with Lock(another, key, timeout=50) as hold:
                assert time.monotonic() - began > 0.4
                assert hold.fence > dead.fence
            with pytest.raises(LockLost):
                dead.release()

        async def take() -> None:
            assert Lock(store, others, ttl=0.5, auto_renew=False).acquire()
            async with (
                AsyncDynamoDBStore(dynamodb_server.url, timeout=20) as native,
                AsyncLock(native, others, timeout=50) as hold,
            ):
                assert hold.fence

        asyncio.run(take())


def test_a_client_of_aiobotocore_lends_its_settings(dynamodb_server: Server) -> None:
    """Region, endpoint and credentials are the client's; one for the other API is refused."""
    settings = {"region_name": "eu-central-1", "endpoint_url": f"http://{HOST}:{dynamodb_server.port}"}

    async def use() -> None:
        own = {"aws_access_key_id": "another", "aws_secret_access_key": SECRET}
        async with get_session().create_client("dynamodb", **settings, **own) as client:
            async with AsyncDynamoDBStore(client, timeout=20) as store, AsyncLock(store, fresh()) as hold:
                assert hold.fence
                assert store.traits.location == DynamoDBStore(dynamodb_server.url).traits.location
            with pytest.raises(TypeError, match="a client of aiobotocore, and a DynamoDBStore one of boto3"):
                DynamoDBStore(client)

    asyncio.run(use())
    with pytest.raises(TypeError, match="a client of aiobotocore, and a DynamoDBStore one of boto3"):
        AsyncDynamoDBStore(boto3.client("dynamodb", **settings))


def test_a_store_is_closed_while_others_use_it(api: Opening, dynamodb_server: Server) -> None:
    """Requests that are under way get their answers, and leave no connection open."""
    with FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy:
        store = api.open(through(proxy), timeout=20)
        entry = put(store, key := fresh())
        with ThreadPoolExecutor(4) as threads:
            held = list[bytes]()

            def hold(request: bytes) -> Passage:
                held.append(request)
                return Passage("hold reply", 0.3)

            proxy.decide = hold
            gets = [threads.submit(store.get, key) for _ in range(4)]
            assert until(lambda: len(held) >= 4)
            cast("Any", store).close()
            assert {get.result(50) for get in gets} == {entry}
        proxy.decide = lambda _: PASS
        assert until(lambda: not proxy.connections)


def test_a_store_for_asyncio_serves_every_loop(dynamodb_server: Server) -> None:
    """Each loop has connections of its own, which are closed before the loop ends."""
    with FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy:
        store = AsyncDynamoDBStore(through(proxy), timeout=20)
        key = fresh()

        async def write() -> Entry | None:
            return await store.put_if_version(key, b"v", ABSENT, 30)

        assert len({asyncio.run(write()) for _ in range(3)}) == 1
        assert proxy.accepted == 3
        assert until(lambda: not proxy.connections)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("dynamodb://eu-central-1", "dynamodb://eu-central-1/caslock"),
        ("dynamodb://local?endpoint=http://127.0.0.1:8000", "dynamodb://local/caslock?endpoint=http://127.0.0.1:8000"),
        ("dynamodb://us-gov-west-1/my.locks_1-a/?timeout=3", "dynamodb://us-gov-west-1/my.locks_1-a"),
        (
            "dynamodb://eu-central-1/locks?endpoint=http%3A%2F%2Flocalhost%3A8000/",
            "dynamodb://eu-central-1/locks?endpoint=http://localhost:8000",
        ),
    ],
)
def test_the_location_names_region_table_and_endpoint(url: str, location: str) -> None:
    """It is the same text however the URL is written."""
    assert connect(url).traits.location == connect_async(url).traits.location == location
    assert repr(connect(url)) == f"DynamoDBStore({location!r})"
    assert repr(connect_async(url)) == f"AsyncDynamoDBStore({location!r})"
    client = boto3.client("dynamodb", region_name="eu-central-1")
    assert DynamoDBStore(client, table="locks").traits.location == "dynamodb://eu-central-1/locks"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("dynamodb://", "a DynamoDB URL is"),
        ("dynamodb://localhost:8000/locks", "a DynamoDB URL is"),
        ("dynamodb://key:secret@eu-central-1/locks", "a DynamoDB URL is"),
        ("dynamodb://locks", "locks is no region of AWS, such as eu-central-1: a DynamoDB URL is"),
        ("dynamodb://eu-central-1/locks#f", "no fragment: write # as %23"),
        ("dynamodb://eu-central-1/locks?prefix=p", "a DynamoDB URL is"),
        ("dynamodb://eu-central-1/lo", "a table of DynamoDB has a name"),
        ("dynamodb://eu-central-1/one/two", "a table of DynamoDB has a name"),
        ("dynamodb://eu-central-1?endpoint=localhost:8000", "the endpoint of a DynamoDB is"),
        ("dynamodb://eu-central-1?endpoint=http://key%3Asecret%40localhost", "the endpoint of a DynamoDB is"),
        ("dynamodb://eu-central-1?endpoint=http://localhost:port", "the endpoint of a DynamoDB is"),
        ("dynamodb://eu-central-1?timeout=x", "the timeout of a DynamoDB URL"),
        ("dynamodb://eu-central-1?timeout=0", "timeout must be"),
        ("dynamodb://eu-central-1?timeout=1&timeout=2", "given twice"),
    ],
)
def test_errors_of_a_url_tell_what_to_write(url: str, sentence: str) -> None:
    """Nothing is connected to, and no password is shown."""
    for make in (connect, connect_async):
        with pytest.raises(ValueError, match=sentence) as caught:
            make(url)
        assert "secret" not in str(caught.value)


def test_bad_input_is_refused_before_any_request() -> None:
    """There is no server at all."""
    with pytest.raises(TypeError, match="expected a URL"):
        DynamoDBStore(cast("Any", 1))
    with pytest.raises(TypeError, match="expected a URL"):
        DynamoDBStore(boto3.client("sqs", region_name="eu-central-1"))
    with pytest.raises(ValueError, match="give the timeout once"):
        DynamoDBStore("dynamodb://eu-central-1?timeout=1", timeout=1)
    with pytest.raises(ValueError, match="give the table once"):
        DynamoDBStore("dynamodb://eu-central-1/locks", table="locks")
    with pytest.raises(TypeError, match="table must be a str"):
        DynamoDBStore("dynamodb://eu-central-1", table=cast("Any", 1))
    with refused_port() as port, DynamoDBStore(f"dynamodb://eu-central-1?endpoint=http://{HOST}:{port}") as store:
        for value, ttl, sentence in (
            (b"v" * 4097, 1.0, "4096 bytes"),
            (b"v", 0.0, "more than 0"),
            (b"v", 2e9, "at most"),
            (b"v", float("nan"), "at most"),
        ):
            for version in (ABSENT, 1):
                with pytest.raises(ValueError, match=sentence):
                    store.put_if_version("k", value, version, ttl)
        for key in ("", "k" * 1025, "\ud800"):
            with pytest.raises(ValueError, match="key"):
                store.get(key)
