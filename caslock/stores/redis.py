"""The law of this file: a key holds ``<version>:<value>``, and goes only when its version lies in the past.

A new version is max(the server's TIME in microseconds, the standing version + 1).  So versions grow without a counter:

- a put lets its key expire only after the server's clock has passed the version just written;
- an invalidate that comes earlier, because the clock stepped back, leaves the marker ``<version>!gone`` until then;
- what is put where nothing stands takes the TIME, which is larger than every version that ever stood there.

(A step back while *nothing* stands can't be seen, nor a failover to a clock that is behind: let the clocks slew, as
chrony and ntpd do once they run.)

Any other string is foreign: an entry of version `FOREIGN`, which no request matches.  A foreign string that begins as
ours do (``5:hello``) can't be told apart: it reads as a value and a version, and is safe only as long as nobody asks
for just that version.  Needs Redis 6.2 or newer, Valkey, or a server that speaks as they do; and redis-py 6.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import math
import os
import re
import time
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from caslock.errors import StoreError, StoreUnavailable
from caslock.store import ABSENT, MAX_VALUE, Entry, Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

FOREIGN: Final = -1
"""The version of an entry that caslock did not write."""

# Both scripts write once, and last: a script that ends in an error has changed nothing.
_PUT: Final = b"""\
local raw = redis.call('GET', KEYS[1])
local standing = '0'
if ARGV[1] ~= '0' then standing = string.match(raw or '', '^(%d+):')
elseif raw then standing = string.match(raw, '^([1-9]%d*)!gone$') end
if not standing or ARGV[1] ~= '0' and standing ~= ARGV[1] or tonumber(standing) > 9007199254740990 then return raw end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local version = math.max(now, standing + 1)
-- A key is over when the clock, in whole milliseconds, is past PXAT: so the next TIME is past the version as well.
-- That outlasts the ttl only where the clock has stepped back, and by no more than the step.
local last = math.max(math.floor(now / 1000) + ARGV[2], math.floor(version / 1000) + 1)
redis.call('SET', KEYS[1], string.format('%.0f:', version) .. ARGV[3], 'PXAT', string.format('%.0f', last))
return version
"""
_INVALIDATE: Final = b"""\
local raw = redis.call('GET', KEYS[1])
if not raw or string.match(raw, '^(%d+):') ~= ARGV[1] then return raw end
local clock = redis.call('TIME')
if clock[1] * 1000000 + clock[2] > tonumber(ARGV[1]) then redis.call('DEL', KEYS[1]) return 0 end
local last = string.format('%.0f', math.floor(ARGV[1] / 1000) + 1)
redis.call('SET', KEYS[1], ARGV[1] .. '!gone', 'PXAT', last)
return 0
"""
_DIGEST: Final = {text: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode() for text in (_PUT, _INVALIDATE)}

_OURS: Final = re.compile(rb"([1-9][0-9]{0,15})(:|!gone\Z)")
_LAST_VERSION: Final = 2**53 - 2  # Lua counts in doubles; the microseconds get there in the year 2255
_LONGEST_KEY: Final = 1024
_LONGEST_TTL: Final = 100 * 365 * 86400
_TIMEOUT: Final = 2.0  # seconds, where the client sets none
_MOST_IDLE: Final = 32  # connections kept; where more threads ask at once, more are opened, and closed afterwards
_RESTED: Final = 1.0  # seconds after which an idle connection is looked at before it is used

_TOO_LATE: Final = (TimeoutError, exceptions.TimeoutError)
_TRY_AGAIN: Final = (exceptions.TryAgainError, exceptions.ClusterDownError)
_REFUSED: Final = (exceptions.ResponseError, exceptions.AuthenticationError, exceptions.AuthorizationError)
_ADVICE: Final = {
    "OutOfMemory": "Free memory or raise its maxmemory; releases still work.",
    "ReadOnly": "Connect to the primary, not to a replica.",
    "Authentication": "Check the user and the password.",
    "NoPermission": "Grant the user eval, evalsha, get, set, del and time (and wait, with replicas) on these keys.",
    "WRONGTYPE": "Another program keeps something else than a string under this key: use another key, or a prefix.",
    "MovedError": "It is a node of a Redis Cluster, which this store does not serve.",
    "NOREPLICAS": "Bring its replicas back, or lower its min-replicas-to-write.",
}

_T = TypeVar("_T")
_Untyped: TypeAlias = Any  # redis-py: its two APIs are used by one code here, and share no type


class RedisStore:
    """A `Store` on one Redis primary, for code that blocks; safe to share between threads and across a fork."""

    def __init__(self, client: redis.Redis, *, prefix: str = "", replicas: int = 0) -> None:
        """Keep the entries where `client` points to, over connections of our own that never retry.

        `client` is standalone, or of ``Sentinel.master_for``; a timeout that it does not set is 2 s.  `prefix` stands
        before every key.  With `replicas` = n, an answer counts only when n replicas have acknowledged, within half the
        socket timeout, what its connection has written; else it is `StoreUnavailable`, while the write stands on the
        primary.  (WAIT makes it less likely that a failover loses a lock; it is no guarantee.)
        Raises TypeError for a client that can't be served and ValueError for a bad argument, before anything is sent.
        """
        self._server = _Server(_pool(client, redis.Redis), Retry(NoBackoff(), 0), prefix, replicas)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """Open ``redis://``, ``rediss://`` or ``unix://``, with redis-py's query parameters (``?socket_timeout=1``)."""
        return _from_url(lambda: cls(redis.Redis.from_url(url), prefix=prefix, replicas=replicas))

    @property
    def traits(self) -> Traits:
        """Versions only grow, so they are fences; Redis ends leases by itself."""
        return self._server.traits

    def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return _finish(self._server.ask(self._server.get(key)))

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        return _finish(self._server.ask(self._server.put(key, value, version, ttl)))

    def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return _finish(self._server.ask(self._server.invalidate(key, version)))

    def close(self) -> None:
        """Close the idle connections; the next request opens one again."""
        _finish(self._server.close())

    def __repr__(self) -> str:
        """Show the place."""
        return f"RedisStore({self._server.traits.place!r})"


class AsyncRedisStore:
    """The same for asyncio.  The connections belong to the running loop: `aclose` the store before the loop ends."""

    def __init__(self, client: redis.asyncio.Redis, *, prefix: str = "", replicas: int = 0) -> None:
        """See `RedisStore`; `client` is a ``redis.asyncio.Redis``."""
        pool = _pool(client, redis.asyncio.Redis)
        self._server = _Server(pool, AsyncRetry(NoBackoff(), 0), prefix, replicas, awaits=True)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "", replicas: int = 0) -> Self:
        """See `RedisStore.from_url`."""
        return _from_url(lambda: cls(redis.asyncio.Redis.from_url(url), prefix=prefix, replicas=replicas))

    @property
    def traits(self) -> Traits:
        """See `RedisStore.traits`."""
        return self._server.traits

    async def get(self, key: str) -> Entry | None:
        """See `Store.get`."""
        return await self._server.ask(self._server.get(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """See `Store.put_if_version`; a `ttl` of more than 100 years is a ValueError."""
        return await self._server.ask(self._server.put(key, value, version, ttl))

    async def invalidate(self, key: str, version: int) -> Entry | None:
        """See `Store.invalidate`."""
        return await self._server.ask(self._server.invalidate(key, version))

    async def aclose(self) -> None:
        """Close the idle connections of the running loop; the next request opens one again."""
        await self._server.close()

    def __repr__(self) -> str:
        """Show the place."""
        return f"AsyncRedisStore({self._server.traits.place!r})"


class _Request(NamedTuple):
    """One verb, ready to be sent."""

    command: tuple[bytes, ...]
    in_full: tuple[bytes, ...] = ()
    """The same with the script itself, for a server that does not know its digest."""
    value: bytes = b""
    """What stands where the reply is a version."""


class _Idle(NamedTuple):
    """The connections of one process, and one event loop, that wait to be used: the last used is on top."""

    pid: int
    new: Callable[[], _Untyped]
    sentinel: _Untyped
    # With the time of their last use.  Append and pop are atomic: there is no lock that a fork could copy in use.
    stack: list[tuple[_Untyped, float | None]]


class _Server:
    """What is said to one Redis primary, how its answers are read, and the connections that carry both.

    Written once for both APIs: a blocking connection has done its work when it returns, one of asyncio is awaited.
    """

    def __init__(self, pool: _Untyped, retry: object, prefix: str, replicas: int, *, awaits: bool = False) -> None:
        if replicas < 0:
            raise ValueError(f"replicas must be 0 or more, not {replicas}")
        self._pool, self._retry, self._prefix, self._replicas, self._awaits = pool, retry, prefix, replicas, awaits
        self._idle: dict[_Untyped, _Idle] = {}
        self._inherited: list[object] = []
        idle = self._new_idle()
        place = _place(pool, idle.new(), prefix)  # not connected, but an unknown setting is refused here
        self.traits = Traits(place, fences=True, expires=True)
        pools = [pool, *(client.connection_pool for client in idle.sentinel.sentinels)] if idle.sentinel else [pool]
        names = ("password", "username", "ssl_password")
        secrets = {str(each.connection_kwargs.get(name) or "") for each in pools for name in names} - {""}
        self._secrets = sorted(secrets, key=len, reverse=True)
        settings = _settings(pool, retry)
        self.timeout: float = settings["socket_timeout"]
        self._connect_timeout: float = (settings["socket_connect_timeout"] + self.timeout) * len(pools)
        self._within = asyncio.timeout if awaits else _unlimited
        wait = (b"WAIT", b"%d" % replicas, b"%d" % math.ceil(self.timeout * 500))  # ms: half the timeout
        self._wait = _packed(wait) if replicas else b""

    def get(self, key: str) -> _Request:
        return _Request((b"GET", self._name(key)))

    def put(self, key: str, value: bytes, version: int, ttl: float) -> _Request:
        if not 0 < ttl <= _LONGEST_TTL:
            raise ValueError(f"ttl must be more than 0 and at most {_LONGEST_TTL} seconds (100 years), not {ttl!r}")
        if len(value) > MAX_VALUE:
            raise ValueError(f"a value must be at most {MAX_VALUE} bytes, not {len(value)}")
        expected = b"0" if version == ABSENT else _expected(version)
        return self._script(_PUT, key, expected, b"%d" % math.ceil(ttl * 1000), value)

    def invalidate(self, key: str, version: int) -> _Request:
        return self._script(_INVALIDATE, key, _expected(version))

    def _script(self, text: bytes, key: str, *arguments: bytes) -> _Request:
        tail = (b"1", self._name(key), *arguments)
        return _Request((b"EVALSHA", _DIGEST[text], *tail), (b"EVAL", text, *tail), arguments[-1])

    def _name(self, key: str) -> bytes:
        if not 1 <= len(key) <= _LONGEST_KEY:
            raise ValueError(f"a key must have 1 to {_LONGEST_KEY} characters, not {len(key)}")
        try:
            return (self._prefix + key).encode()
        except UnicodeEncodeError:
            raise ValueError(f"a key must be text that UTF-8 can hold, without lone surrogates: {key!r}") from None

    async def ask(self, request: _Request) -> Entry | None:
        idle = self._here()
        sent = False
        connection, since = _take(idle)
        try:
            if since is None or (time.monotonic() - since > _RESTED and not await self._quiet(connection)):
                await self._hang_up(connection)
                async with self._within(self._connect_timeout):
                    await _done(connection.connect())
            sent = True
            replies = await self._exchange(connection, request.command)
            if isinstance(replies[0], exceptions.NoScriptError):
                replies = await self._exchange(connection, request.in_full)
        except Exception as error:  # whatever it is, no answer came, and the request may have been applied
            await self._hang_up(connection)
            if not isinstance(error, _TOO_LATE):  # a restart or a failover: the others are dead as well
                await self._drop(idle)
            raise self._failure(error, sent=sent) from error
        except BaseException:  # the answer may still come: nobody must read it
            await self._hang_up(connection)
            raise
        if len(idle.stack) < _MOST_IDLE:
            idle.stack.append((connection, time.monotonic()))
        else:
            await self._hang_up(connection)
        return self._answer(request, replies)

    async def close(self) -> None:
        idle = self._here()
        await self._drop(idle)
        for client in idle.sentinel.sentinels if idle.sentinel else ():
            await _done(client.aclose() if self._awaits else client.close())

    async def _drop(self, idle: _Idle) -> None:
        while idle.stack:
            await self._hang_up(_take(idle)[0])

    async def _hang_up(self, connection: _Untyped) -> None:
        await _done(connection.disconnect(nowait=True) if self._awaits else connection.disconnect())

    def _here(self) -> _Idle:
        loop, pid = asyncio.get_running_loop() if self._awaits else None, os.getpid()
        idle = self._idle.get(loop)
        if idle is None or idle.pid != pid:
            for old, other in list(self._idle.items()):
                if other.pid != pid:  # the sockets are the parent's: never touched, nor closed by the garbage collector
                    self._inherited.append(other)
                if other.pid != pid or old.is_closed():
                    self._idle.pop(old, None)
            idle = self._idle[loop] = self._new_idle()
        return idle

    def _new_idle(self) -> _Idle:
        pool, settings, sentinel = self._pool, _settings(self._pool, self._retry), None
        if hasattr(pool, "sentinel_manager"):
            sentinel = copy.copy(pool.sentinel_manager)
            sentinel.sentinels = [_asking_once(client, self._retry) for client in sentinel.sentinels]
            settings["connection_pool"] = _Primary(sentinel, pool.service_name)
        if self._awaits:
            settings["socket_timeout"] = None  # ours is around it: in redis-py's, Python 3.11 can lose a cancellation
        return _Idle(os.getpid(), partial(pool.connection_class, **settings), sentinel, [])

    async def _exchange(self, connection: _Untyped, command: tuple[bytes, ...]) -> list[_Untyped]:
        """Send one packet and read all its replies; an error that the server has sent is a reply."""
        replies: list[_Untyped] = []
        async with self._within(self.timeout):
            await _done(connection.send_packed_command([_packed(command) + self._wait], check_health=False))
            for _ in range(2 if self._wait else 1):
                try:
                    replies.append(await _done(connection.read_response()))
                except exceptions.ReadOnlyError:  # a failover: this connection must not be used again
                    raise
                except exceptions.ResponseError as error:
                    replies.append(error)
        return replies

    async def _quiet(self, connection: _Untyped) -> bool:
        """Whether the connection is open and holds nothing that we did not ask for."""
        try:
            for _ in range(2 if self._awaits else 0):  # the loop hears of a close in its next turn but one
                await asyncio.sleep(0)
            return not await _done((getattr(connection, "can_read", None) or connection.can_read_destructive)())
        except (exceptions.RedisError, OSError):
            return False

    def _answer(self, request: _Request, replies: list[_Untyped]) -> Entry | None:
        reply, acknowledged = replies[0], replies[-1]
        if isinstance(reply, Exception):
            raise self._failure(reply, sent=True) from reply
        if self._wait and not (isinstance(acknowledged, int) and acknowledged >= self._replicas):
            cause = acknowledged if isinstance(acknowledged, Exception) else None
            told = f"{self._replicas} replicas were to acknowledge it, not {self._masked(str(acknowledged))}"
            raise StoreUnavailable(f"{self.traits.place} may have applied the request: {told}. Check them.") from cause
        if isinstance(reply, int):
            return Entry(request.value, reply) if reply else None
        return _entry(reply)

    def _failure(self, error: Exception, *, sent: bool) -> StoreError:
        """Tell which outcome an error of the client means, and blot every secret out of that error."""
        step: BaseException | None = error
        while step is not None:
            if isinstance(step, exceptions.RedisError):
                step.args = tuple(self._masked(part) if isinstance(part, str) else part for part in step.args)
            step = step.__cause__ or step.__context__
        # redis-py wraps what the server answers to an asyncio handshake on a unix socket in a ConnectionError.
        reply = error.__cause__ if isinstance(error.__cause__, exceptions.RedisError) else error
        text = f"{type(reply).__name__}: {str(reply) or 'it took too long'}"
        if isinstance(reply, _REFUSED) and not isinstance(reply, _TRY_AGAIN) and not str(reply).startswith("BUSY "):
            advice = next(
                (say for word, say in _ADVICE.items() if word in text), "Check its configuration and its log."
            )
            return StoreError(f"{self.traits.place} has refused the request ({text}). {advice}")
        if sent:
            say = f"gave no answer, and may have applied the request ({text}). Read before you try again."
        else:
            say = f"can't be reached ({text}). Check that it runs, and that this host may connect to it."
        return StoreUnavailable(f"{self.traits.place} {say}", sent=sent)

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return re.sub(r",? with args beginning with.*", "", text, flags=re.DOTALL)  # so is a refused AUTH echoed


class _Primary:
    """All that a Sentinel connection of redis-py asks of its pool: where the primary is, whenever it connects."""

    is_master = True
    check_connection = False

    def __init__(self, sentinel: _Untyped, service_name: str) -> None:
        self.service_name = service_name
        self.get_master_address = partial(sentinel.discover_master, service_name)


def _finish(call: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine whose connections block, so that it never has to wait."""
    try:
        call.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("a blocking connection has suspended: please report this")


def _unlimited(_: float) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()  # a blocking connection has its own timeout


async def _done(result: _Untyped) -> _Untyped:
    return await result if isinstance(result, CoroutineType) else result


def _take(idle: _Idle) -> tuple[_Untyped, float | None]:
    """Take a connection, and since when it has been idle; a new one (None) is not connected yet."""
    try:
        return idle.stack.pop()
    except IndexError:
        return idle.new(), None


def _packed(command: tuple[bytes, ...]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in command])


def _expected(version: int) -> bytes:
    return b"%d" % version if 0 < version <= _LAST_VERSION else b"-"  # which no entry begins with


def _entry(raw: bytes | None) -> Entry | None:
    if raw is None:
        return None
    ours = _OURS.match(raw)
    if not ours or int(ours[1]) > _LAST_VERSION:
        return Entry(raw, FOREIGN)
    return Entry(raw[ours.end() :], int(ours[1])) if ours[2] == b":" else None


def _pool(client: _Untyped, kind: _Untyped) -> _Untyped:
    """Give the pool of a client that can be served; only its settings are used."""
    if not isinstance(client, kind):
        needed, given = (f"{each.__module__}.{each.__qualname__}" for each in (kind, type(client)))
        why = ": this store does not serve a Redis Cluster" if "Cluster" in given else ""
        raise TypeError(f"the client must be a {needed}, not a {given}{why}")
    if not getattr(client.connection_pool, "is_master", True):
        raise TypeError("the client must be of Sentinel.master_for, not of its replicas: a lock lives on the primary")
    return client.connection_pool


def _settings(pool: _Untyped, retry: object) -> dict[str, _Untyped]:
    """Give the settings of a pool's connections without its retries, its pings and what can stretch a timeout."""
    left_out = ("retry_", "health_check_", "maint", "oss_cluster_", "orig_")
    settings = {name: setting for name, setting in pool.connection_kwargs.items() if not name.startswith(left_out)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        settings[name] = settings.get(name) or _TIMEOUT
    return settings | {"retry": retry, "decode_responses": False}


def _asking_once(client: _Untyped, retry: object) -> _Untyped:
    pool = client.connection_pool
    return type(client).from_pool(type(pool)(connection_class=pool.connection_class, **_settings(pool, retry)))


def _place(pool: _Untyped, link: _Untyped, prefix: str) -> str:
    """Name the server and the part of its keys that is ours: what differs in either is another place."""
    query = [f"prefix={prefix}"] if prefix else []
    if hasattr(pool, "sentinel_manager"):
        settings = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        hosts = ",".join(sorted(f"{setting.get('host')}:{setting.get('port')}" for setting in settings))
        where = f"redis+sentinel://{hosts}/{pool.service_name}/{link.db or 0}"
    elif path := getattr(link, "path", None):
        where = f"unix://{path}"
        query.insert(0, f"db={link.db or 0}")
    else:
        scheme = "rediss" if isinstance(link, (redis.SSLConnection, redis.asyncio.SSLConnection)) else "redis"
        where = f"{scheme}://{f'[{link.host}]' if ':' in link.host else link.host}:{link.port}/{link.db or 0}"
    return f"{where}?{'&'.join(query)}" if query else where


def _from_url(build: Callable[[], _T]) -> _T:
    try:
        return build()
    except (ValueError, TypeError, exceptions.RedisError):
        raise ValueError(
            "this Redis URL can't be read: percent-encode what is reserved in a password, and check the options"
        ) from None  # for the cause may quote a part of a password
