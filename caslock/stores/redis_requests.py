"""The law of this file: a key holds ``<version>:<value>``, and goes only when its version lies in the past.

A new version is max(the server's TIME in microseconds, the standing version + 1).  So versions grow without a counter:

- a put lets its key expire only after the server's clock has passed the version just written;
- an invalidate that comes earlier, because the clock stepped back, leaves the marker ``<version>!gone`` until then;
- what is put where nothing stands takes the TIME, which is larger than every version that ever stood there.

(A step back while *nothing* stands can't be seen, nor a failover to a clock that is behind: let the clocks slew, as
chrony and ntpd do once they run.)

Any other string is foreign: an entry of version `FOREIGN`, which no request matches.  A foreign string that begins as
ours do (``5:hello``) can't be told apart: it reads as a value and a version, and is safe only as long as nobody asks
for just that version.

Beside a key that somebody waits for stands a sorted set of tickets, one for each who waits, with the time when that
wait ends.  Who waits blocks on a list of tokens, and has the put that follows in the server's hands already; a removal
takes one ticket and leaves one token, which wakes who has blocked longest.  A token that nobody takes is gone in a
second.  A ticket counts until its wait ends, and is gone when the next one is taken, or a minute later.  The names of
both hold a byte that is not UTF-8: no lock's key is ever called so.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from redis.crc import key_slot

from caslock.store import ABSENT, MAX_VALUE, WOKEN, Entry
from caslock.stores.redis_wire import Reply, arguments, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.store import Put, Removal
    from caslock.stores.redis_server import Server

FOREIGN: Final = -1
"""The version of an entry that caslock did not write."""

_OURS: Final = re.compile(rb"([1-9][0-9]{0,15})(:|!gone\Z)")
_LAST_VERSION: Final = 2**53 - 2  # Lua counts in doubles; the microseconds get there in the year 2255
_LONGEST_KEY: Final = 1024
_LONGEST_TTL: Final = 100 * 365 * 86400
_LONGEST_WAIT: Final = 60.0
_LATER: Final = 150  # ms that a ticket outlives its wait: Redis may be 100 late in ending one
_LONGEST_TICKET: Final = b"%d" % (_LONGEST_WAIT * 1000 + _LATER)


class Script:
    """A Lua script, as the beginning of a command."""

    def __init__(self, text: bytes) -> None:
        """Name it by its digest."""
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        self.by_digest = arguments(b"EVALSHA", digest)
        self.in_full = arguments(b"EVAL", text)


# A script that ends in an error has changed nothing: it checks first, and its first write is the last that can fail.
# What has to do with waking goes by pcall: it may fail, and costs no more than time.
_NEXT: Final = b"""\
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function put(key, standing, ttl, value)
  local version = math.max(now, standing + 1)
  -- A key is over when the clock, in whole milliseconds, is past PXAT: so the next TIME is past the version as well.
  -- That outlasts the ttl only where the clock has stepped back, and by no more than the step.
  local last = math.max(math.floor(now / 1000) + ttl, math.floor(version / 1000) + 1)
  redis.call('SET', key, string.format('%.0f:', version) .. value, 'PXAT', string.format('%.0f', last))
  return version
end
"""
_STANDING: Final = b"""\
local function matched(raw, expected)
  local standing = '0'
  if expected ~= '0' then standing = string.match(raw or '', '^(%d+):')
  elseif raw then standing = string.match(raw, '^([1-9]%d*)!gone$') end
  if not standing or expected ~= '0' and standing ~= expected or tonumber(standing) > 9007199254740990 then return end
  return standing
end
"""
_REMOVE: Final = b"""\
local function remove(key, version, waiters, tokens)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  if now > tonumber(version) then redis.call('DEL', key)
  else redis.call('SET', key, version .. '!gone', 'PXAT', string.format('%.0f', math.floor(version / 1000) + 1)) end
  if not waiters then return 0 end
  local ticket = redis.pcall('ZPOPMIN', waiters)
  if not ticket[1] then return 0 end
  if tonumber(ticket[2]) < now / 1000 then
    redis.pcall('ZREMRANGEBYSCORE', waiters, '-inf', string.format('%.0f', now / 1000))
    ticket = redis.pcall('ZPOPMIN', waiters)
    if not ticket[1] then return 0 end
  end
  redis.pcall('RPUSH', tokens, '1')
  redis.pcall('PEXPIRE', tokens, '1000')
  return -1
end
"""
# A ticket is taken by the script that puts, for that is known to every server where somebody has found a key taken.
# A token in a list of this wait alone ends it at once: in the common list, another would take it.
_TICKET: Final = b"""\
if KEYS[2] then
  local clock = redis.call('TIME')
  local now = math.floor(clock[1] * 1000 + clock[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))  -- frees, so the rest may take memory
  local raw = redis.call('GET', KEYS[1])
  -- Where others wait, one of them has just been woken, and writes next.
  if (not raw or string.match(raw, '^[1-9]%d*!gone$')) and redis.call('ZCARD', KEYS[2]) == 0 then
    redis.call('RPUSH', KEYS[4], '1')
    redis.call('PEXPIRE', KEYS[4], '1000')
    return 0
  end
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[1]), ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])  -- as long as the longest wait: so nobody has to ask what it is
  return 1
end
"""
_PUT: Final = Script(_TICKET + b"""\
local raw
if ARGV[4] then raw = redis.call('GET', KEYS[1]) end  -- most who have waited find that somebody stands there still
if ARGV[1] == '0' and not raw then  -- the sunny path; with the TIME for its version, a key outlasts that by its ttl
  local clock = redis.call('TIME')
  local version = clock[1] .. string.format('%06d', clock[2])
  local written = redis.pcall('SET', KEYS[1], version .. ':' .. ARGV[3], 'NX', 'PX', ARGV[2])
  if written and written.ok then return tonumber(version) end
end
raw = raw or redis.call('GET', KEYS[1])
local standing = '0'
if ARGV[1] ~= '0' then standing = string.match(raw or '', '^(%d+):')
elseif raw then standing = string.match(raw, '^([1-9]%d*)!gone$') end
if not standing or ARGV[1] ~= '0' and standing ~= ARGV[1] or tonumber(standing) > 9007199254740990 then return raw end
""" + _NEXT + b"""\
return put(KEYS[1], standing, ARGV[2], ARGV[3])
""")  # fmt: skip
_PUT_MANY: Final = Script(_STANDING + b"""\
local raws, standings, all = {}, {}, true
for i, key in ipairs(KEYS) do
  raws[i] = redis.call('GET', key)
  standings[i] = matched(raws[i], ARGV[3 * i - 2])
  all = all and standings[i]
end
if not all then return raws end
""" + _NEXT + b"""\
for i, key in ipairs(KEYS) do raws[i] = put(key, standings[i], ARGV[3 * i - 1], ARGV[3 * i]) end
return raws
""")  # fmt: skip
_INVALIDATE: Final = Script(b"""\
local raw = redis.call('GET', KEYS[1])
if not raw or string.match(raw, '^(%d+):') ~= ARGV[1] then return raw end
""" + _REMOVE + b"""\
return remove(KEYS[1], ARGV[1], KEYS[2], KEYS[3])
""")  # fmt: skip
# Three names for each: the key, and the two beside it, or the key again where it can have none.
_INVALIDATE_MANY: Final = Script(b"""\
local raws = {}
for i, version in ipairs(ARGV) do raws[i] = redis.call('GET', KEYS[3 * i - 2]) end
""" + _REMOVE + b"""\
for i, version in ipairs(ARGV) do
  local key, waiters = KEYS[3 * i - 2], KEYS[3 * i - 1]
  if raws[i] and string.match(raws[i], '^(%d+):') == version then
    raws[i] = remove(key, version, waiters ~= key and waiters, KEYS[3 * i])
  end
end
return raws
""")  # fmt: skip

_GET_HEAD: Final = b"*2\r\n" + arguments(b"GET")
_PUT_HEAD: Final = b"*7\r\n" + _PUT.by_digest + arguments(b"1")
_INVALIDATE_HEAD: Final = b"*7\r\n" + _INVALIDATE.by_digest + arguments(b"3")
_INVALIDATE_ALONE: Final = b"*5\r\n" + _INVALIDATE.by_digest + arguments(b"1")
_ASKING: Final = packed(b"ASKING")


class Request:
    """One verb, ready to be sent."""

    replies = 1
    """How many come back; the last one is the answer."""
    alone: Request | None = None
    """The same with one key: it can be served while the slot moves, and wakes nobody."""

    def __init__(self, packet: bytes, name: bytes, script: Script | None, values: Sequence[bytes] = ()) -> None:
        """`values` stand where the replies are versions; `name` is a key's, to find its node by."""
        self.packet, self.name, self.script, self.values = packet, name, script, values

    def in_full(self) -> Request:
        """Give the same with the script itself, for a server that does not know its digest."""
        if self.script is None:
            return self
        return self._with(self.packet.replace(self.script.by_digest, self.script.in_full, 1), self.replies)

    def asking(self) -> Request:
        """Give the same for a node that is about to get the slot."""
        return self._with(_ASKING + self.packet, self.replies + 1)

    def _with(self, packet: bytes, replies: int) -> Request:
        other = Request(packet, self.name, self.script, self.values)
        other.replies, other.alone = replies, self.alone
        return other


class Wait(NamedTuple):
    """A put that waits."""

    packet: bytes
    """What takes a ticket, blocks for a token and puts: three replies."""
    ticket: Request
    """For a server that did not know its script: any connection may take it while ours blocks."""
    put: Request
    """For a server that did not know its script, or a node that sends us elsewhere."""
    seconds: float


class Requests:
    """The verbs of a store as requests; they check their arguments, so a bad one is never sent."""

    def __init__(self, prefix: str, *, cluster: bool) -> None:
        """`prefix` stands before every key."""
        self._prefix, self._cluster = prefix.encode(), cluster

    def get(self, key: str) -> Request:
        """Read."""
        name = self._name(key)
        return Request(b"%b$%d\r\n%b\r\n" % (_GET_HEAD, len(name), name), name, None)

    def put(self, key: str, value: bytes, version: int, ttl: float) -> Request:
        """Write."""
        name = self._name(key)
        expected, ms = _checked(value, version, ttl)
        packet = b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
            *(_PUT_HEAD, len(name), name, len(expected), expected),
            *(len(ms), ms, len(value), value),
        )
        return Request(packet, name, _PUT, (value,))

    def invalidate(self, key: str, version: int) -> Request:
        """Remove."""
        name, expected = self._name(key), _expected(version)
        beside = self._beside(name) if self._cluster else name
        alone = None
        if self._cluster:
            tail = arguments(name, expected)
            alone = Request(_INVALIDATE_ALONE + tail, name, _INVALIDATE)
            if not beside:
                return alone
        size = len(beside)
        packet = b"%b$%d\r\n%b\r\n$%d\r\n%b\xffwaiters\r\n$%d\r\n%b\xfftokens\r\n$%d\r\n%b\r\n" % (
            *(_INVALIDATE_HEAD, len(name), name, size + 8, beside, size + 7, beside),
            *(len(expected), expected),
        )
        request = Request(packet, name, _INVALIDATE)
        if alone:
            request.alone = alone
        return request

    def put_when_free(self, key: str, value: bytes, ttl: float, timeout: float) -> Wait | None:
        """Wait, and write; None: there can be no names beside this key."""
        name = self._name(key)
        expected, ms = _checked(value, ABSENT, ttl)
        if not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, not {timeout!r}")
        seconds = max(min(timeout, _LONGEST_WAIT), 0.001)
        beside = self._beside(name)
        if not beside:
            return None
        nonce = os.urandom(9).hex().encode()
        waiters, tokens, own = (beside + b"\xff" + each for each in (b"waiters", b"tokens", b"token:" + nonce))
        taken = (b"4", name, waiters, tokens, own, b"%d" % math.ceil(seconds * 1000 + _LATER), nonce, _LONGEST_TICKET)
        ticket = Request(b"*10\r\n" + _PUT.by_digest + arguments(*taken), name, _PUT)
        written = (b"1", name, expected, ms, value, b"looks")
        put = Request(b"*8\r\n" + _PUT.by_digest + arguments(*written), name, _PUT, (value,))
        block = packed(b"BLPOP", own, tokens, b"%.3f" % seconds)
        return Wait(ticket.packet + block + put.packet, ticket, put, seconds)

    def put_many(self, puts: Sequence[Put]) -> Request | None:
        """Write all or none; None: they live on several nodes, or there are none."""
        names = self._names([put.key for put in puts])
        rules = [_checked(put.value, put.version, put.ttl) for put in puts]
        given = [part for rule, put in zip(rules, puts, strict=True) for part in (*rule, put.value)]
        return self._many(_PUT_MANY, names, names, given, [put.value for put in puts])

    def invalidate_many(self, removals: Sequence[Removal]) -> Request | None:
        """Remove each; None: as `put_many`."""
        names = self._names([removal.key for removal in removals])
        keys = []
        for name in names:
            beside = self._beside(name)
            keys += [name, beside + b"\xffwaiters", beside + b"\xfftokens"] if beside else [name] * 3
        given = [_expected(removal.version) for removal in removals]
        return self._many(_INVALIDATE_MANY, names, keys, given, [b""] * len(names))

    def _many(
        self, script: Script, names: list[bytes], keys: list[bytes], given: list[bytes], values: list[bytes]
    ) -> Request | None:
        if not names or (self._cluster and len({key_slot(name) for name in names}) > 1):
            return None
        tail = arguments(b"%d" % len(keys), *keys, *given)
        return Request(b"*%d\r\n%b%b" % (3 + len(keys) + len(given), script.by_digest, tail), names[0], script, values)

    def _names(self, keys: list[str]) -> list[bytes]:
        if len(set(keys)) < len(keys):
            raise ValueError("of the keys of one request none may come twice")
        return [self._name(key) for key in keys]

    def _name(self, key: str) -> bytes:
        if not 1 <= len(key) <= _LONGEST_KEY:
            raise ValueError(f"a key must have 1 to {_LONGEST_KEY} characters, not {len(key)}")
        try:
            return self._prefix + key.encode()
        except UnicodeEncodeError:
            raise ValueError(f"a key must be text that UTF-8 can hold, without lone surrogates: {key!r}") from None

    def _beside(self, name: bytes) -> bytes:
        """Give what a name in the same slot may begin with; empty where there is none."""
        if not self._cluster:
            return name
        start = name.find(b"{")
        if start >= 0 and name.find(b"}", start + 1) > start + 1:
            return name  # it has a hash tag, and hands it on
        return b"" if b"}" in name else b"{%b}" % name


def answer(server: Server, request: Request, reply: Reply) -> Entry | None:
    """Tell what stands after one verb, or raise what an error of the server means."""
    if isinstance(reply, int):
        if reply > 0:
            return Entry(request.values[0], reply)
        return WOKEN if reply else None
    if isinstance(reply, Exception):
        raise server.failure(reply) from reply
    return _entry(reply)


def answers(server: Server, request: Request, reply: Reply) -> list[Entry | None]:
    """Tell what stands after one verb on several keys, or raise what an error of the server means."""
    if isinstance(reply, Exception):
        raise server.failure(reply) from reply
    replies = reply if isinstance(reply, list) else []
    found: list[Entry | None] = []
    for value, each in zip(request.values, replies, strict=True):
        if isinstance(each, int):
            found.append(Entry(value, each) if each > 0 else WOKEN if each else None)
        else:
            found.append(_entry(each))
    return found


def _checked(value: bytes, version: int, ttl: float) -> tuple[bytes, bytes]:
    if not 0 < ttl <= _LONGEST_TTL:
        raise ValueError(f"ttl must be more than 0 and at most {_LONGEST_TTL} seconds (100 years), not {ttl!r}")
    if len(value) > MAX_VALUE:
        raise ValueError(f"a value must be at most {MAX_VALUE} bytes, not {len(value)}")
    return b"0" if version == ABSENT else _expected(version), b"%d" % math.ceil(ttl * 1000)


def _expected(version: int) -> bytes:
    return b"%d" % version if 0 < version <= _LAST_VERSION else b"-"  # which no entry begins with


def _entry(raw: Reply) -> Entry | None:
    if not isinstance(raw, bytes):
        return None
    ours = _OURS.match(raw)
    if not ours or int(ours[1]) > _LAST_VERSION:
        return Entry(raw, FOREIGN)
    return Entry(raw[ours.end() :], int(ours[1])) if ours[2] == b":" else None
