"""The verbs as requests to JetStream, and how its answers are read: pure functions, for both APIs.

An entry is the only message of its subject, and its version the sequence of that message in the stream.  Every write is
a publish with the sequence that the last message of the subject must have.  A removal is such a publish as well: of a
*marker*, which the server drops after a second.  JetStream can also delete a message by its sequence, but it does not
do that under the lock under which it compares and writes: of 20,000 deletes that raced with a write over the same
message of nats-server 2.12.15, 10 succeeded together with that write.

While there is a marker, a put that expects no entry has to expect the marker.  The store remembers the markers that it
has seen.  If another process has left one, the put is refused, and takes two further requests.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from caslock.store import ABSENT, MAX_KEY, Entry, check_key, check_put
from caslock.stores.nats.wire import Ask, Message, NotNatsError, headers_of
from caslock.stores.shared.connections import remember
from caslock.stores.shared.verbs import Page

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

T = TypeVar("T")

Verb: TypeAlias = "Generator[Ask, Message, T]"

LONGEST_TTL: Final = 7_000_000_000
"""Seconds; the server counts nanoseconds since 1970 in 63 bits."""

_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_TTL: Final = "Nats-TTL"
_OPERATION: Final = "KV-Operation"
_KEY: Final = "Caslock-Key"
_MARKER: Final = 1
"""Seconds for which a marker stays: the least that the server takes."""
_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_LAST_VERSION: Final = (1 << 63) - 1

_LONGEST_NAME: Final = 1000  # bytes: a server reads lines of up to 4096
_KEPT: Final = 900
_DIGEST: Final = "=-"  # what separates the beginning of a long name from its digest; no other name has it
_OTHER: Final = re.compile("[^A-Za-z0-9/_-]")

NO_STREAM: Final = 10059
_NO_MESSAGE, _WRONG_SEQUENCE, _IN_FLIGHT = 10037, 10071, 10164
_NONE_THERE: Final = "wrong last sequence: 0"


class RefusedError(Exception):
    """The server has answered with an error; `code` is JetStream's own number of it."""

    def __init__(self, message: str, code: int = 0, status: int = 0) -> None:
        """Keep the answer; `status` is like those of HTTP."""
        super().__init__(message)
        self.code: int = code
        self.status: int = status


class Found(NamedTuple):
    """What a subject has: no message, an entry, or a marker."""

    entry: Entry | None
    sequence: int
    """0: there is no message."""


class _Marker(NamedTuple):
    sequence: int
    ends: float


class Verbs:
    """The verbs of one store."""

    def __init__(self, bucket: str) -> None:
        """Name the subjects of the bucket."""
        self.stream: str = f"KV_{bucket}"
        self._subjects = f"$KV.{bucket}."
        self._changes = f"$CASLOCK.{bucket}."
        self._markers: dict[str, _Marker] = {}

    def settings(self, replicas: int) -> dict[str, Any]:
        """Return the settings of a new bucket: those of every bucket, with ttls for single entries."""
        return {
            "name": self.stream,
            "description": "locks of caslock",
            "subjects": [f"{self._subjects}>"],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "allow_msg_ttl": True,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "republish": {"src": f"{self._subjects}>", "dest": f"{self._changes}>", "headers_only": True},
        }

    def subject(self, key: str) -> str:
        """Name the subject of a key: no two keys share one, and a long one ends with a digest."""
        raw = check_key(key)
        name = _text(raw)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_KEPT]}{_DIGEST}{sha256(raw).hexdigest()}"
        return self._subjects + name

    def get(self, key: str) -> Verb[Entry | None]:
        """Read, from the leader."""
        return (yield from self._look(self.subject(key))).entry

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """Publish the entry, and if that is refused, look."""
        subject = self.subject(key)
        check_put(value, ttl, LONGEST_TTL)
        headers = {_TTL: f"{math.ceil(ttl)}s"} | ({_KEY: _text(key.encode())} if _DIGEST in subject else {})
        return (yield from self._write(subject, version, value, headers)).entry

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """Publish a marker, and if that is refused, look."""
        return (yield from self._write(self.subject(key), version, b"", {_OPERATION: "DEL", _TTL: f"{_MARKER}s"})).entry

    def page(self, prefix: str, after: int | None) -> Verb[Page]:
        """See `ListingStore.list`: one message, the first behind the sequence `after`."""
        first = (after or 0) + 1
        message = _message(
            (yield Ask.api(f"STREAM.MSG.GET.{self.stream}", seq=first, next_by_subj=f"{self._subjects}>"))
        )
        if message is None:
            return Page((), None)
        key, found = self._key(message), _found(message)
        pairs = [(key, found.entry)] if found.entry and key and key.startswith(prefix) else []
        return Page(pairs, found.sequence)

    def about(self) -> Verb[dict[str, Any] | None]:
        """Return the settings and the state of the bucket; None: there is none."""
        try:
            return sound((yield Ask.api(f"STREAM.INFO.{self.stream}")))
        except RefusedError as refused:
            if refused.code != NO_STREAM:
                raise
            return None

    def tells(self, settings: Mapping[str, Any]) -> bool:
        """Tell whether a bucket with these settings publishes what it has stored."""
        return bool((settings.get("republish") or {}).get("dest") == f"{self._changes}>")

    def changes(self, key: str) -> str:
        """Name the subject under which the server tells what it has stored for a key."""
        return self.subject(key).replace(self._subjects, self._changes, 1)

    def changed(self, key: str, version: int, change: Message) -> bool:
        """Tell whether a message of that subject ends a version; a marker is expected by the put that follows."""
        sequence = int(change.headers.get("Nats-Sequence", "0"))
        if sequence > version and _is_marker(change.headers):
            self._remember(self.subject(key), Found(None, sequence))
        return sequence > version

    def _write(self, subject: str, version: int, body: bytes, headers: Mapping[str, str]) -> Verb[Found]:
        removes = _OPERATION in headers
        expected = self._expected(subject, version, removes=removes)
        if expected is None:
            return (yield from self._look(subject))
        pause = 0.0
        while True:
            answer = yield Ask(subject, body, {_EXPECTED: str(expected), **headers}, pause)
            try:
                written = int(sound(answer)["seq"])
            except RefusedError as refused:
                if refused.code not in (_WRONG_SEQUENCE, _IN_FLIGHT):
                    raise
                if version == ABSENT and expected and str(refused) == _NONE_THERE:  # the marker has gone
                    self._markers.pop(subject, None)
                    expected = ABSENT
                    continue
            else:
                if removes:
                    return self._remember(subject, Found(None, written))
                self._markers.pop(subject, None)
                return Found(Entry(body, written), written)
            found = yield from self._look(subject)
            there = ABSENT if found.entry is None else found.entry.version
            if there != version:
                return found
            if expected == found.sequence:  # another write is on its way to the other replicas
                pause = min(2 * pause + _PAUSE, _LONGEST_PAUSE)
            expected = found.sequence

    def _expected(self, subject: str, version: int, *, removes: bool) -> int | None:
        """Return the sequence that a write has to find; None: it can't find any."""
        known = self._markers.get(subject)
        marker = known.sequence if known and known.ends >= monotonic() else ABSENT  # one that may still be there
        if version == ABSENT:
            return None if removes else marker
        return version if 0 < version <= _LAST_VERSION and version != marker else None

    def _look(self, subject: str) -> Verb[Found]:
        answer = yield Ask.api(f"STREAM.MSG.GET.{self.stream}", last_by_subj=subject)
        message = _message(answer)
        return self._remember(subject, Found(None, 0) if message is None else _found(message))

    def _remember(self, subject: str, found: Found) -> Found:
        self._markers.pop(subject, None)
        if found.entry is None and found.sequence:
            remember(self._markers, subject, _Marker(found.sequence, monotonic() + _MARKER))
        return found

    def _key(self, message: Mapping[str, Any]) -> str:
        """Return the key of a message; "" for one that another program has written, and that no key has."""
        subject = str(message["subject"])
        name = _headers(message).get(_KEY) or subject.removeprefix(self._subjects)
        key = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), name.encode()).decode(
            errors="replace"
        )
        return key if 0 < len(key) <= MAX_KEY and self.subject(key) == subject else ""


def sound(answer: Message) -> dict[str, Any]:
    """Read an answer; raises RefusedError for an error."""
    if answer.status:
        nobody = "no responders: there is no such stream, or it has no leader at this moment"
        raise RefusedError(nobody if answer.status == "503" else f"status {answer.status}", status=int(answer.status))
    found = answer.json()
    error = found.get("error")
    if isinstance(error, dict):
        raise RefusedError(str(error.get("description")), int(error.get("err_code") or 0), int(error.get("code") or 0))
    return found


def _message(answer: Message) -> dict[str, Any] | None:
    """Read the answer to a look; None: there is no message."""
    try:
        message = sound(answer)["message"]
    except RefusedError as refused:
        if refused.code not in (_NO_MESSAGE, NO_STREAM):
            raise
        return None
    if not isinstance(message, dict):
        raise NotNatsError("its answer has no message")
    return message


def _found(message: Mapping[str, Any]) -> Found:
    headers, sequence = _headers(message), int(message["seq"])
    if _is_marker(headers):
        return Found(None, sequence)
    return Found(Entry(b64decode(message.get("data", "")), sequence), sequence)


def _headers(message: Mapping[str, Any]) -> dict[str, str]:
    return headers_of(b64decode(message.get("hdrs", "")))[1]


def _is_marker(headers: Mapping[str, str]) -> bool:
    return headers.get(_OPERATION, "PUT") != "PUT" or "Nats-Marker-Reason" in headers


def _text(raw: bytes) -> str:
    """Write bytes as a name that every tool for buckets takes."""
    return _OTHER.sub(lambda found: f"={ord(found[0]):02X}", raw.decode("latin-1"))
