"""`DynamoDBStore` and `AsyncDynamoDBStore` against DynamoDB Local: what the contract does not ask."""

from __future__ import annotations

import json
import time
import traceback
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import boto3
import pytest
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from caslock import AsyncLock, StoreUnavailable
from caslock.store import ABSENT
from caslock.stores.dynamodb import AsyncDynamoDBStore, DynamoDBStore, requests
from caslock.stores.dynamodb.failures import Failures
from caslock.stores.dynamodb.target import target_of
from caslock.testing.drive import on_loop
from caslock.testing.proxy import FaultProxy, foreign_port
from caslock.testing.steps import again
from tests.stores import opening
from tests.stores.opening import SECRET, Opened, Opening, apis, expect_refused, expect_requests, put, store_on
from tests.support.locations import fresh
from tests.support.loops import in_a_loop
from tests.support.servers import HOST, Server

WEEK = 7 * 24 * 3600

Client = Any  # of boto3, which ships no types

api = apis(DynamoDBStore, AsyncDynamoDBStore)
store = store_on("dynamodb_server")


@pytest.fixture(scope="module")
def dynamodb(dynamodb_server: Server) -> Client:
    """A client of boto3."""
    return boto3.client(
        "dynamodb", region_name="eu-central-1", endpoint_url=f"http://{dynamodb_server.host}:{dynamodb_server.port}"
    )


def is_request(packet: bytes) -> bool:
    """Whether a request begins with it: what it carries may follow in another one."""
    return packet.startswith(b"POST ")


PLACE = "dynamodb://"

refusal = partial(opening.refusal, place=PLACE)


def through(proxy: FaultProxy) -> str:
    return f"dynamodb://eu-central-1?endpoint=http://{HOST}:{proxy.port}"


def test_an_item_can_be_read_by_people_and_is_deleted_a_week_after_its_lease(store: Opened, dynamodb: Client) -> None:
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


def test_versions_grow_also_by_a_clock_that_is_behind(
    store: Opened, dynamodb_server: Server, monkeypatch: pytest.MonkeyPatch
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
        found = expect_requests(2, proxy, lambda: put(late, key), is_request)
        assert late.get(key) == found
        assert found.version > third.version
        refused = expect_requests(1, proxy, lambda: late.put_if_version(key, b"v", ABSENT, 30), is_request)
        assert refused == found


def test_long_keys_have_a_digest_and_are_listed_in_full(store: Opened) -> None:
    """A partition key has up to 2,048 bytes; a key that reads like a digest is none."""
    salt = fresh()
    long = f"{salt}{'钥' * (1024 - len(salt))}"
    name = requests.name_of(long)
    assert name.startswith("sha256:")
    assert len(name.encode()) < 2048
    assert requests.name_of(name) != name
    entries = {each: put(store, each, each[-1].encode()) for each in (long, name, f"{long[:-1]}匙")}
    assert {each: store.get(each) for each in entries} == entries
    assert dict(store.list(salt)) == {each: entries[each] for each in entries if each != name}


def test_what_another_program_has_written_is_never_overwritten(store: Opened, dynamodb: Client) -> None:
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
        expect_refused(store, key, "that caslock has not written", place=PLACE)
        assert dynamodb.get_item(TableName="caslock", Key={"key": {"S": key}})["Item"] == item
        assert not list(store.list(key))
        dynamodb.delete_item(TableName="caslock", Key={"key": {"S": key}})


def test_a_table_is_made_when_that_is_asked_for(api: Opening, dynamodb_server: Server, dynamodb: Client) -> None:
    """Without a table every verb says how to get one; to make it twice does nothing."""
    name = fresh("table").replace(":", "-")
    url = dynamodb_server.url.replace("/caslock", f"/{name}")
    store = api.open(url)
    told = r"ResourceNotFound.*partition key is \"key\" of type S.*create_table\(\)"
    expect_refused(store, "k", told, place=PLACE)
    for _ in range(2):
        if api.blocking:
            cast("DynamoDBStore", store).create_table()
        else:
            on_loop(cast("Any", store)._store.create_table())
    entry = put(store, "k")
    assert store.get("k") == entry
    described = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert described == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
    dynamodb.delete_table(TableName=name)


def test_a_table_with_another_key_is_refused(api: Opening, dynamodb_server: Server, dynamodb: Client) -> None:
    """The error says which key the table needs."""
    name = fresh("table").replace(":", "-")
    dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    store = api.open(dynamodb_server.url.replace("/caslock", f"/{name}"))
    told = 'ValidationException.*partition key is "key" of type S, without a sort key'
    expect_refused(store, "k", told, place=PLACE)
    dynamodb.delete_table(TableName=name)


@pytest.fixture
def without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have nothing that names credentials; more may be set by what this gives."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


class Metadata(BaseHTTPRequestHandler):
    """The metadata service of a machine in EC2 that has a role."""

    def do_PUT(self) -> None:
        self._say("token")

    def do_GET(self) -> None:
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
    api: Opening, dynamodb_server: Server, without_credentials: pytest.MonkeyPatch
) -> None:
    """A machine in EC2 has them from its metadata service, which is asked with the store's default timeout too."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as service:
        Thread(target=service.serve_forever, daemon=True).start()
        without_credentials.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{service.server_port}/")
        try:
            store = api.open(dynamodb_server.url)
            assert again(lambda: store.get(fresh())) is None
        finally:
            service.shutdown()


def test_without_credentials_nothing_is_sent(
    api: Opening, dynamodb_server: Server, without_credentials: pytest.MonkeyPatch
) -> None:
    """The error says where boto3 looks for them."""
    without_credentials.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with FaultProxy(dynamodb_server.host, dynamodb_server.port) as proxy:
        store = api.open(through(proxy))
        refusal(lambda: put(store, fresh()), "without AWS credentials.*AWS_PROFILE")
        assert not proxy.accepted
    without_credentials.setenv("AWS_PROFILE", "nobody")
    refusal(lambda: api.open(dynamodb_server.url).get("k"), r"without AWS credentials.*\(nobody\)")


def test_another_server_at_the_endpoint_is_named(api: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server that is no DynamoDB, one without TLS, and one of another protocol are told apart."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "caslock")
    web = b"HTTP/1.1 501 Unsupported method ('POST')\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno"
    with foreign_port(lambda _: web) as port, foreign_port(lambda _: b"INFO {}\r\n") as other:

        def ask(endpoint: str) -> object:
            return api.open(f"dynamodb://eu-central-1?endpoint={endpoint}").get("k")

        refusal(partial(ask, f"http://{HOST}:{port}"), "does not answer as DynamoDB does")
        refusal(partial(ask, f"https://{HOST}:{port}"), "does not speak TLS")
        with pytest.raises(StoreUnavailable, match="what answers does not speak HTTP; check the endpoint"):
            ask(f"http://{HOST}:{other}")


@pytest.mark.parametrize(
    ("code", "status", "sent", "sentence"),
    [
        ("ProvisionedThroughputExceededException", 400, False, "can't serve the request now"),
        ("ThrottlingException", 400, False, "can't serve the request now"),
        ("RequestLimitExceeded", 400, False, "can't serve the request now"),
        ("TransactionConflictException", 400, False, "can't serve the request now"),
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


@in_a_loop
async def test_a_client_of_aiobotocore_lends_its_settings(dynamodb_server: Server) -> None:
    """Region, endpoint and credentials are the client's; one for the other API is refused."""
    settings = {"region_name": "eu-central-1", "endpoint_url": f"http://{HOST}:{dynamodb_server.port}"}
    own = {"aws_access_key_id": "another", "aws_secret_access_key": SECRET}
    async with get_session().create_client("dynamodb", **settings, **own) as client:
        async with AsyncDynamoDBStore(client, timeout=20) as store, AsyncLock(store, fresh()) as hold:
            assert hold.fence
            assert store.traits.location == DynamoDBStore(dynamodb_server.url).traits.location
        with pytest.raises(TypeError, match="a client of aiobotocore, and a DynamoDBStore one of boto3"):
            DynamoDBStore(client)
    with pytest.raises(TypeError, match="a client of aiobotocore, and a DynamoDBStore one of boto3"):
        AsyncDynamoDBStore(boto3.client("dynamodb", **settings))


def test_a_table_is_named_once_and_a_client_is_one_of_dynamodb() -> None:
    """By the URL or beside it; a client has no table of its own."""
    client = boto3.client("dynamodb", region_name="eu-central-1")
    assert DynamoDBStore(client, table="locks").traits.location == "dynamodb://eu-central-1/locks"
    with pytest.raises(ValueError, match="give the table once"):
        DynamoDBStore("dynamodb://eu-central-1/locks", table="locks")
    with pytest.raises(TypeError, match="table must be a str"):
        DynamoDBStore("dynamodb://eu-central-1", table=cast("Any", 1))
    with pytest.raises(TypeError, match="expected a URL"):
        DynamoDBStore(boto3.client("sqs", region_name="eu-central-1"))
