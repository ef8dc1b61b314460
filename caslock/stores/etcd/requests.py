"""The verbs as requests to etcd, and how its answers are read: pure functions, for both APIs.

A verb (see `caslock.stores.shared.verbs`) yields the requests of one packet, and is sent their answers.

An entry is a key of etcd, its version the key's mod revision.  Each put has a lease of its own, whose id is chosen
here, so that one packet can grant the lease and use it.  As no other key has that lease, to revoke it is to remove the
entry if it is still the one of that put, and leaves nothing of the lease behind.
"""

from __future__ import annotations

import math
import os
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from caslock.errors import StoreUnavailable
from caslock.store import MAX_KEY, Entry, check_key, check_put
from caslock.stores.etcd.wire import Call, Reply
from caslock.stores.shared.connections import remember
from caslock.stores.shared.verbs import Page

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")

Verb: TypeAlias = "Generator[list[Call], list[Reply], T]"

LONGEST_TTL: Final = 9_000_000_000
"""Seconds; etcd's own limit."""

_LAST_VERSION: Final = (1 << 63) - 1
_NEVER: Final = -1  # a mod revision that no key has
_PAGE: Final = 500
_NO_LEASE: Final = "requested lease not found"
_HAS_LEASE: Final = "lease already exists"


class Refused(Exception):  # noqa: N818 - named by the outcome
    """The server has answered with an error."""

    def __init__(self, reply: Reply) -> None:
        """Keep the answer."""
        super().__init__(reply.message)
        self.reply = reply


class Verbs:
    """The verbs of one store."""

    def __init__(self, prefix: str) -> None:
        """Put `prefix` before each key."""
        self._prefix = prefix.encode()
        self._leases: dict[tuple[bytes, int], str] = {}  # by name and version

    def name(self, key: str) -> bytes:
        """Return the name of a key in etcd: any bytes will do."""
        return self._prefix + check_key(key)

    def get(self, key: str) -> Verb[Entry | None]:
        """Read, from the leader."""
        (found,) = yield [_range(self.name(key))]
        return _entry(_sound(found))

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Verb[Entry | None]:
        """Grant a lease and write, in one packet; a lease that is not used is revoked."""
        name = self.name(key)
        check_put(value, ttl, LONGEST_TTL)
        lease = str((int.from_bytes(os.urandom(8), "big") >> 1) or 1)
        write = {"request_put": {"key": _text(name), "value": _text(value), "lease": lease}}
        granted, done = yield [Call("/v3/lease/grant", {"ID": lease, "TTL": math.ceil(ttl)}), _if(name, version, write)]
        if granted.refused and granted.message != _HAS_LEASE:  # else a copy of this packet was faster
            raise Refused(granted)
        if done.body.get("succeeded"):
            self._leases.pop((name, version), None)  # it has no key any more, and ends by itself
            return self._written(name, Entry(value, int(done.body["header"]["revision"])), lease)
        there = {} if done.refused else _there(done)
        entry = _entry(there)
        if entry is not None and there["kvs"][0].get("lease") == lease:  # as above
            return self._written(name, entry, lease)
        with suppress(StoreUnavailable):  # the lease ends by itself
            yield [_revoke(lease)]
        _sound(done)
        return entry

    def remove(self, key: str, version: int) -> Verb[Entry | None]:
        """Revoke the lease and look, in one packet; without that lease, remove in a transaction."""
        name = self.name(key)
        lease = self._leases.pop((name, version), None)
        if lease is not None:
            revoked, found = yield [_revoke(lease), _range(name)]
            if revoked.refused and revoked.message != _NO_LEASE:
                self._leases[name, version] = lease
                raise Refused(revoked)
            entry = _entry(_sound(found))
            if entry is not None and not revoked.refused:
                gone = int(revoked.body["header"]["revision"])
                if int(found.body["kvs"][0]["create_revision"]) > gone:  # somebody has put it after the removal
                    return None
            if entry is None or entry.version != version:
                return entry
        (done,) = yield [_if(name, version, {"request_delete_range": {"key": _text(name)}})]
        if _sound(done).get("succeeded"):
            return None
        return _entry(_there(done))

    def look(self, key: str, compacted: int) -> Verb[tuple[int, Entry | None]]:
        """Read the entry, and tell from which revision on a watch sees all that follows."""
        (found,) = yield [_range(self.name(key))]
        return max(int(_sound(found)["header"]["revision"]) + 1, compacted), _entry(found.body)

    def watch(self, key: str, revision: int) -> Call:
        """Return the request that reports each change of a key from `revision` on."""
        start = str(min(revision, _LAST_VERSION))
        return Call("/v3/watch", {"create_request": {"key": _text(self.name(key)), "start_revision": start}})

    def page(self, prefix: str, after: bytes | None) -> Verb[Page]:
        """See `ListingStore.list`, 500 at a time; `after` is the name of the last."""
        begin = self._prefix + prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1]) if begin else b"\0"  # no UTF-8 ends with 255; 0: all that follow
        asked = {"key": _text(after + b"\0" if after else begin or b"\0"), "range_end": _text(end), "limit": _PAGE}
        (found,) = yield [Call("/v3/kv/range", asked)]
        kvs = _sound(found).get("kvs", [])
        pairs = [(key, _one(kv)) for kv in kvs if (key := self._key(b64decode(kv["key"])))]
        return Page(pairs, b64decode(kvs[-1]["key"]) if found.body.get("more") else None)

    def _key(self, name: bytes) -> str:
        """Return the key of a name; "" for a name that another program has made, which no key has."""
        key = name[len(self._prefix) :].decode(errors="replace")
        return key if len(key) <= MAX_KEY and self._prefix + key.encode() == name else ""

    def _written(self, name: bytes, entry: Entry, lease: str) -> Entry:
        remember(self._leases, (name, entry.version), lease)
        return entry


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def _range(name: bytes) -> Call:
    return Call("/v3/kv/range", {"key": _text(name)})


def _revoke(lease: str) -> Call:
    return Call("/v3/lease/revoke", {"ID": lease})


def _if(name: bytes, version: int, act: dict[str, Any]) -> Call:
    """Act if `version` is there (0: if nothing is), and else read."""
    expected = str(version if 0 <= version <= _LAST_VERSION else _NEVER)
    compare = {"key": _text(name), "target": "MOD", "result": "EQUAL", "mod_revision": expected}
    look = {"request_range": {"key": _text(name)}}
    return Call("/v3/kv/txn", {"compare": [compare], "success": [act], "failure": [look]})


def _sound(reply: Reply) -> dict[str, Any]:
    if reply.refused:
        raise Refused(reply)
    return reply.body


def _there(done: Reply) -> dict[str, Any]:
    """Return what a transaction that did not act has read."""
    found: dict[str, Any] = done.body["responses"][0]["response_range"]
    return found


def _entry(found: dict[str, Any]) -> Entry | None:
    """Read a range of one key."""
    kvs = found.get("kvs")
    return _one(kvs[0]) if kvs else None


def _one(kv: dict[str, Any]) -> Entry:
    return Entry(b64decode(kv.get("value", "")), int(kv["mod_revision"]))
