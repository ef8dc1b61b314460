"""What is asked of Redis, and how its replies are read: pure functions, for both APIs.

A key holds ``<version>:<value>``.  A new version is max(the server's TIME in microseconds, the version there + 1).  So
versions grow without a counter, because a key goes only when its version lies in the past:

- a put lets its key expire only after the server's clock has passed the version just written;
- a removal that comes earlier, because the clock stepped back, leaves the marker ``<version>!gone`` until then;
- what is put where nothing is takes the TIME, which is larger than every version that was ever there.

A step back while *nothing* is there goes unnoticed, and so does a failover to a clock that is behind: let the clocks
slew, as chrony and ntpd do once they run.  A lower bound in a key of its own would cost each put a read and a write
more and each slot of a Cluster another key, and it would be lost with the data.

Any other string is foreign: an entry of version `FOREIGN`, which no request matches.  A foreign string that has our
form (``5:hello``) can't be told apart: it reads as a value and a version.

Waiting: next to a key that somebody waits for is a sorted set of tickets, one for each waiter, with the time when that
wait ends.  A waiter sends three commands at once: take a ticket, block on a list of tokens (BLPOP), put.  A removal
takes one ticket and leaves one token, which wakes the waiter that has blocked longest.  A token that nobody takes
expires after a second; an old ticket is removed when the next one is taken, or a minute later.

Watching: next to a key that somebody watches is a stream with its last change, which a put in place of an entry and a
removal replace if it is there.  A watcher blocks on it (XREAD), and it lives for a minute after the last one has begun.

The names of all three contain a byte that is not UTF-8, so they are never the name of a lock's key.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from functools import lru_cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from redis.crc import key_slot

from caslock.store import ABSENT, MAX_KEY, WOKEN, Entry, check_key, check_put
from caslock.stores.redis.wire import Reply, invalid_reply, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import Put, Removal
    from caslock.stores.redis.failures import Failures

T_co = TypeVar("T_co", covariant=True)

FOREIGN: Final = -1
"""The version of an entry that caslock did not write."""

LAST_VERSION: Final = 2**53 - 2
"""The largest: Lua counts in doubles.  The microseconds get there in the year 2255."""

_OURS: Final = re.compile(rb"([1-9][0-9]{0,15})(:|!gone\Z)")
_RUN: Final = re.compile(rb"run_id:([0-9a-f]{40})")
_GLOB: Final = re.compile(rb"([\\*?\[\]])")
_LONGEST_TTL: Final = 100 * 365 * 86400
_LONGEST_WAIT: Final = 60.0
_LEAST_WAIT: Final = 0.002  # Redis 6.2 treats 1 ms as no timeout at all
_LATER: Final = 150  # ms that a ticket outlives its wait: Redis may be 100 late in ending one
_LONGEST_TICKET: Final = b"%d" % (_LONGEST_WAIT * 1000 + _LATER)
_SCANNED: Final = b"1000"  # names that one SCAN looks at
_NAMES: Final = 1024  # to make those of a key anew for each request made acquire and release slower
_ASKING: Final = packed((b"ASKING",))


class Script:
    """A Lua script of a store."""

    def __init__(self, name: str, package: str = "caslock.stores.redis") -> None:
        """Read its file, and name it by its digest."""
        self.text: bytes = files(package).joinpath(name).read_bytes()
        self.digest: bytes = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


_PUT: Final = Script("put.lua")
_REMOVE: Final = Script("remove.lua")
_TICKET: Final = Script("ticket.lua")
_WATCH: Final = Script("watch.lua")


class Names(NamedTuple):
    """What a key is called at the server, and what is next to it; all the same where there can be nothing."""

    key: bytes
    waiters: bytes
    tokens: bytes
    changes: bytes


class Request(NamedTuple, Generic[T_co]):
    """One verb, ready to be sent."""

    command: tuple[bytes, ...]
    name: bytes
    """A stored key, to find the node by."""
    read: Callable[[Reply], T_co]
    """Makes the verb's answer of the server's."""
    script: Script | None = None
    """What the command names by its digest."""
    before: bytes = b""
    """Commands that are sent before it."""
    replies: int = 1
    """How many come back; that to the command is the last."""
    seconds: float = 0.0
    """How long the server may wait after the first reply."""
    each: int = 1
    """How many names a script gets for each key."""

    def in_full(self) -> Request[T_co]:
        """Return the same with the script itself, for a server that does not know its digest."""
        if self.script is None:
            return self
        return self._replace(command=(b"EVAL", self.script.text, *self.command[2:]), script=None)

    def asking(self) -> Request[T_co]:
        """Return the same for a node that is about to get the slot; it does not wait."""
        return self._replace(before=_ASKING, replies=2, seconds=0.0)

    def alone(self) -> Request[T_co]:
        """Return the same without what is next to the keys: it wakes nobody.

        It can be served while the slot moves, and where the user may not touch those names.
        """
        if self.each == 1:
            return self
        rest = 3 + int(self.command[2])
        names = [name for name in self.command[3 : rest : self.each] for _ in range(self.each)]
        return self._replace(command=(*self.command[:3], *names, *self.command[rest:]))


class Requests:
    """The verbs of a store as requests; they check their arguments, so a bad one is never sent."""

    def __init__(self, prefix: str, failures: Failures, *, cluster: bool) -> None:
        """`prefix` is put before every key."""
        self._prefix, self._failures, self._cluster = prefix.encode(), failures, cluster
        self._names = lru_cache(_NAMES)(partial(_names, self._prefix, cluster=cluster))

    def get(self, key: str) -> Request[Entry | None]:
        """Read."""
        name = self.name(key)
        return Request((b"GET", name), name, _entry_there)

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Request[Entry | None]:
        """Write."""
        name, _, _, changes = self._names(key)
        expected, ms = checked_put(value, version, ttl)
        told = name if version == ABSENT else changes  # nobody watches what is not there
        command = (b"EVALSHA", _PUT.digest, b"2", name, told, expected, ms, value)
        return _new(Request, (command, name, partial(_entry, value), _PUT, b"", 1, 0.0, 2))

    def invalidate(self, key: str, version: int) -> Request[Entry | None]:
        """Remove."""
        (name, waiters, tokens, changes), expected = self._names(key), checked_version(version)
        command = (b"EVALSHA", _REMOVE.digest, b"4", name, waiters, tokens, changes, expected)
        return _new(Request, (command, name, _entry_there, _REMOVE, b"", 1, 0.0, 4))

    def put_when_absent(self, key: str, value: bytes, ttl: float, timeout: float) -> Request[Entry | None]:
        """Wait, and write; raises ``StoreUnavailable(sent=False)`` for a key that can have no waiters."""
        name, waiters, tokens, _ = names = self._names(key)
        expected, ms = checked_put(value, ABSENT, ttl)
        seconds = self._checked_wait(names, timeout)
        nonce = os.urandom(9).hex().encode()
        own = b"%b:%b" % (tokens, nonce)
        lasts = b"%d" % math.ceil(seconds * 1000 + _LATER)
        # The scripts are sent in full: their replies come too late to be answered with them.
        ticket = packed((b"EVAL", _TICKET.text, b"3", name, waiters, own, lasts, nonce, _LONGEST_TICKET))
        block = packed((b"BLPOP", own, tokens, b"%.3f" % seconds))
        put = (b"EVAL", _PUT.text, b"2", name, name, expected, ms, value)
        return Request(put, name, partial(_entry, value), before=ticket + block, replies=3, seconds=seconds)

    def wait_while(self, key: str, version: int, timeout: float) -> Request[Entry | None]:
        """Wait for a change, and read; raises as `put_when_absent`, also for a version that no change follows."""
        name, _, _, changes = names = self._names(key)
        seconds = self._checked_wait(names, timeout)
        watched = checked_version(version)
        if watched == b"-":
            raise self._failures.cannot_wait()
        watch = packed((b"EVAL", _WATCH.text, b"2", name, changes, watched, _LONGEST_TICKET))
        ms = b"%d" % math.ceil(seconds * 1000)
        block = packed((b"XREAD", b"COUNT", b"1", b"BLOCK", ms, b"STREAMS", changes, watched + b"-0"))
        # A Cluster redirects by the last answer.
        return self.get(key)._replace(before=watch + block, replies=3, seconds=seconds)

    def _checked_wait(self, names: Names, timeout: float) -> float:
        """Return for how many seconds the server may wait."""
        if not timeout > 0:
            raise ValueError(f"timeout must be greater than 0 seconds, not {timeout!r}")
        if names.waiters == names.key:
            raise self._failures.cannot_wait()
        return max(min(timeout, _LONGEST_WAIT), _LEAST_WAIT)

    def put_many(self, puts: Sequence[Put]) -> Request[Sequence[Entry | None]] | None:
        """Write all or none; None: they are on several nodes."""
        names = self._distinct([put.key for put in puts])
        told = [each.key if put.version == ABSENT else each.changes for each, put in zip(names, puts, strict=True)]
        keys = [part for each, beside in zip(names, told, strict=True) for part in (each.key, beside)]
        given = [part for put in puts for part in (*checked_put(put.value, put.version, put.ttl), put.value)]
        return self._many(_PUT, names, keys, given, [put.value for put in puts])

    def invalidate_many(self, removals: Sequence[Removal]) -> Request[Sequence[Entry | None]] | None:
        """Remove each; None as for `put_many`."""
        names = self._distinct([removal.key for removal in removals])
        given = [checked_version(removal.version) for removal in removals]
        return self._many(_REMOVE, names, [part for each in names for part in each], given, [b""] * len(names))

    def scan(self, prefix: str, cursor: bytes) -> Request[tuple[bytes, set[str]]]:
        """Look for keys of one node that begin with `prefix`, from a cursor on; give the next one, empty at the end."""
        pattern = _GLOB.sub(rb"\\\1", self._prefix + (check_key(prefix) if prefix else b"")) + b"*"
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCANNED, b"TYPE", b"string")
        return Request(command, b"", self._scanned)

    def _scanned(self, reply: Reply) -> tuple[bytes, set[str]]:
        match reply:
            case [bytes(cursor), list(names)]:
                return b"" if cursor == b"0" else cursor, {key for key in map(self._key, names) if key}
        raise invalid_reply(reply)

    def _key(self, name: Reply) -> str:
        """Return the key of a stored name; empty: it is another program's, or stands next to a key."""
        try:
            key = name.removeprefix(self._prefix).decode() if isinstance(name, bytes) else ""
        except UnicodeDecodeError:
            return ""
        return key if len(key) <= MAX_KEY else ""

    def _many(
        self, script: Script, names: list[Names], keys: list[bytes], given: list[bytes], values: list[bytes]
    ) -> Request[Sequence[Entry | None]] | None:
        if self._cluster and len({key_slot(each.key) for each in names}) > 1:
            return None
        command = (b"EVALSHA", script.digest, b"%d" % len(keys), *keys, *given)
        name = names[0].key if names else b""
        each = len(keys) // max(len(names), 1)
        return Request(command, name, partial(_entries, values), script, each=each)

    def _distinct(self, keys: list[str]) -> list[Names]:
        if len(set(keys)) < len(keys):
            raise ValueError("the keys of one request must be distinct")
        return [self._names(key) for key in keys]

    def name(self, key: str) -> bytes:
        """Return the bytes of the whole name of a key; raises ValueError for one that can be no key."""
        return self._names(key).key


def _names(prefix: bytes, key: str, *, cluster: bool) -> Names:
    """Return the name of a key, and what is next to it in its slot; raises ValueError for what can be no key."""
    name = prefix + check_key(key)
    start = name.find(b"{")
    if not cluster or (start >= 0 and name.find(b"}", start + 1) > start + 1):  # they share the hash tag, if need be
        beside = name
    elif b"}" in name:
        return Names(name, name, name, name)
    else:
        beside = b"{%b}" % name
    return Names(name, beside + b"\xffwaiters", beside + b"\xfftokens", beside + b"\xffchanges")


def who(database: int) -> Request[str | None]:
    """Ask a server for its run id; None: it does not say."""

    def read(reply: Reply) -> str | None:
        found = _RUN.search(reply) if isinstance(reply, bytes) else None
        return f"redis:{found[1].decode()}/{database}" if found else None

    return Request((b"INFO", b"server"), b"", read)


def _entries(values: list[bytes], reply: Reply) -> list[Entry | None]:
    """Read what is under each key after a verb."""
    replies = reply if isinstance(reply, list) else [reply]
    if len(replies) != len(values):
        raise invalid_reply(reply)
    return [_entry(value, each) for value, each in zip(values, replies, strict=True)]


def _entry(value: bytes, reply: Reply) -> Entry | None:
    """Read what is under a key after a verb; `value` was written if the reply is a version."""
    if isinstance(reply, int):
        if reply > 0:
            return _new(Entry, (value, reply))
        return WOKEN if reply else None
    if reply is None:
        return None
    if not isinstance(reply, bytes):
        raise invalid_reply(reply)
    ours = _OURS.match(reply)
    if not ours or int(ours[1]) > LAST_VERSION:
        return Entry(reply, FOREIGN)
    return Entry(reply[ours.end() :], int(ours[1])) if ours[2] == b":" else None


_new: Final = tuple.__new__  # takes half the time of a NamedTuple's own
_entry_there: Final = partial(_entry, b"")


def checked_put(value: bytes, version: int, ttl: float) -> tuple[bytes, bytes]:
    """Return the expected version and the ttl in ms as arguments of a script; raises ValueError for bad ones."""
    check_put(value, ttl, _LONGEST_TTL)
    return b"0" if version == ABSENT else checked_version(version), b"%d" % math.ceil(ttl * 1000)


def checked_version(version: int) -> bytes:
    """Return an expected version as an argument of a script; "-" stands for one that no entry has."""
    return b"%d" % version if 0 < version <= LAST_VERSION else b"-"  # which no entry begins with
