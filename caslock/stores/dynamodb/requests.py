"""What is sent to DynamoDB, and what its replies mean.  Nothing here does any I/O.

A get is one GetItem, and a write one conditional PutItem, whose refusal brings the item that is there.

A removal leaves a marker: an item with a version and without a value.  So the versions of a key grow across removals:

- A write over an entry has the larger of the wall clock in microseconds, and one more than the version before.
- A write over nothing, or over a marker, has the wall clock, and is accepted only if that is larger than the version of
  the marker.  If it is not, because this clock is behind another, the refusal brings the marker, and a second request
  has its version and one more.

Every item has the time at which DynamoDB may delete it, a week after its lease or its removal (the attribute for
DynamoDB's "time to live").  By then a clock has passed its version, unless two clocks differ by a week.
"""

from __future__ import annotations

import time
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, Entry, check_key, check_put
from caslock.stores.shared.verbs import Page

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    Item = Mapping[str, Mapping[str, Any]]

T = TypeVar("T")

KEY: Final = "key"
"""The attribute that is the partition key."""

EXPIRES: Final = "expires"
"""The attribute from which DynamoDB's "time to live" takes when it may delete an item."""

KEPT: Final = 7 * 24 * 3600
"""Seconds for which an item is kept after its lease, or after its removal."""

_LONGEST_TTL: Final = 10**9
_LONGEST_NAME: Final = 2048  # bytes of a partition key
_DIGEST: Final = "sha256:"  # how a name begins that is not the key itself
_HEAD: Final = 100  # characters of the key that follow a digest, to be read by people

# What must be true for a write.  Both use the same names, because DynamoDB refuses one that is not used.
_IS_THERE: Final = "attribute_exists(#key) AND attribute_exists(#value) AND #version = :version"
_IS_FREE: Final = "attribute_not_exists(#key) OR (attribute_not_exists(#value) AND #version < :version)"

_PAUSE: Final = 0.5  # seconds between two looks at a table that is being made
_LOOKS: Final = 240

_NOT_EMPTY: Final = {"ReturnConsumedCapacity": "TOTAL"}
"""Has DynamoDB tell something in any case: an empty reply is one that was cut short."""


class Request(NamedTuple):
    """A call of the client."""

    method: str
    arguments: dict[str, Any]
    refused_by: str = ""
    """The code of the error that is a reply, and not a failure."""
    pause: float = 0.0
    """Seconds to wait before it is sent."""


class Reply(NamedTuple):
    """What came of it."""

    body: Mapping[str, Any]
    accepted: bool
    """False: the condition of a write was not met, and the body has the item that is there."""


Verb: TypeAlias = "Generator[Request, Reply, T]"


class Verbs:
    """The requests about one table."""

    def __init__(self, table: str, location: str) -> None:
        self._table = table
        self._location = location

    def get(self, key: str) -> Verb[Entry | None]:
        """Read the entry, from the primary."""
        found = yield self._request("get_item", Key={KEY: {"S": name_of(key)}}, ConsistentRead=True, **_NOT_EMPTY)
        return self._entry(found.body.get("Item"))

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """Write, if that version is there; see the docstring of the module."""
        check_key(key)
        check_put(value, ttl, _LONGEST_TTL)
        if version != ABSENT:
            new = max(_now(), version + 1)
            done = yield self._write(key, new, ttl, _IS_THERE, version, value=value)
            return Entry(value, new) if done.accepted else self._entry(done.body.get("Item"))
        new = _now()
        for _ in range(2):
            done = yield self._write(key, new, ttl, _IS_FREE, new, value=value)
            if done.accepted:
                return Entry(value, new)
            there = done.body.get("Item")
            found = self._entry(there)
            if found is not None or not there:
                return found
            new = max(_now(), int(there["version"]["N"]) + 1)
        return None

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """Write a marker over the entry, with the same version."""
        done = yield self._write(key, version, 0, _IS_THERE, version)
        return None if done.accepted else self._entry(done.body.get("Item"))

    def page(self, prefix: str, after: Item | None) -> Verb[Page]:
        """See `ListingStore.list`: it reads the whole table; `after` is the last item."""
        begin = {"ExclusiveStartKey": after} if after else {}
        found = yield self._request("scan", ConsistentRead=True, **begin)
        pairs = list[tuple[str, Entry]]()
        for item in found.body.get("Items", ()):
            key = str(item.get("full_key", item[KEY]).get("S", ""))
            with suppress(StoreError):  # of another program
                entry = self._entry(item)
                pairs += [(key, entry)] if entry and key.startswith(prefix) else []
        return Page(pairs, found.body.get("LastEvaluatedKey"))

    def creation(self) -> Verb[None]:
        """Make the table, wait until it can be used, and have it delete what is older than `KEPT`."""
        keys = {
            "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        }
        made = self._request("create_table", BillingMode="PAY_PER_REQUEST", **keys)
        yield made._replace(refused_by="ResourceInUseException")  # there is one
        look = self._request("describe_table")._replace(refused_by="ResourceNotFoundException")
        for _ in range(_LOOKS):
            found = yield look
            if found.accepted and found.body["Table"]["TableStatus"] in ("ACTIVE", "UPDATING"):
                break
            look = look._replace(pause=_PAUSE)
        else:
            raise StoreUnavailable(f"{self._location} is still being made. Try again later.", sent=False)
        ttl = self._request("update_time_to_live", TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRES})
        yield ttl._replace(refused_by="ValidationException")  # it is enabled

    def _write(
        self, key: str, version: int, ttl: float, condition: str, compared: int, *, value: bytes | None = None
    ) -> Request:
        name = name_of(key)
        item = {KEY: {"S": name}, "version": _number(version), EXPIRES: _number(int(time.time() + ttl) + KEPT)}
        if value is not None:
            item["value"] = _attribute(value)
        if name != key:
            item["full_key"] = {"S": key}
        write = self._request(
            "put_item",
            Item=item,
            ConditionExpression=condition,
            ExpressionAttributeNames={"#key": KEY, "#value": "value", "#version": "version"},
            ExpressionAttributeValues={":version": _number(compared)},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **_NOT_EMPTY,
        )
        return write._replace(refused_by="ConditionalCheckFailedException")

    def _request(self, method: str, **arguments: object) -> Request:
        return Request(method, {"TableName": self._table, **arguments})

    def _entry(self, item: Item | None) -> Entry | None:
        """Read an item; None for a marker."""
        if not item:
            return None
        try:
            version = int(item["version"]["N"])
            ((kind, value),) = item.get("value", {"": None}).items()
        except (KeyError, ValueError):
            kind, version, value = "other", ABSENT, None
        if kind == "S":
            return Entry(str(value).encode(), version)
        if kind == "B":
            return Entry(bytes(value), version)
        if kind:
            raise StoreError(f"{self._location} has an item under this key that caslock has not written")
        return None


def name_of(key: str) -> str:
    """Name the item of a key: itself, or if that is too long, a digest and its beginning."""
    raw = check_key(key)
    if len(raw) <= _LONGEST_NAME and not key.startswith(_DIGEST):
        return key
    return f"{_DIGEST}{sha256(raw).hexdigest()}:{key[:_HEAD]}"


def _now() -> int:
    """Tell the wall clock in microseconds."""
    return time.time_ns() // 1000


def _number(number: int) -> dict[str, str]:
    return {"N": str(number)}


def _attribute(value: bytes) -> dict[str, Any]:
    """Keep what is text as text, so that people can read it."""
    try:
        return {"S": value.decode()}
    except UnicodeDecodeError:
        return {"B": value}
