"""Turns an error of redis-py or of the server into one of caslock's, whose text shows no secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from redis import exceptions

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TOO_LATE: Final = (TimeoutError, exceptions.TimeoutError)
"""The server was too slow.  Any other error that ends a connection has probably ended all others."""

FAILOVER: Final = (exceptions.ReadOnlyError, exceptions.BusyLoadingError)
"""Replies after which no open connection is used again: another server may be the primary."""

_NOT_NOW: Final = (exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.BusyLoadingError)
_REFUSED: Final = (exceptions.ResponseError, exceptions.AuthenticationError, exceptions.AuthorizationError)
_SCRIPT: Final = re.compile(r" script: [0-9a-f]{40}, on @user_script:\d+\.?")  # where it has refused in our script
_NO_PASSWORD: Final = re.compile("NOAUTH|Authentication required|HELLO must be called with the client already")
NO_RIGHTS: Final = "NoPermission|ACL failure in script|The user executing the script can't"
ADVICE: Final = {
    "OutOfMemory": "Free memory, or raise the server's maxmemory",
    "ReadOnly": "Connect to the primary, not to a replica",
    "Authentication|WRONGPASS": "Check the user and the password",
    NO_RIGHTS: (
        "Grant the user eval, evalsha, get, set, del and time on the keys (and wait, with replicas). To be woken, "
        "it also needs blpop, pexpire, rpush, xadd, xread, zadd, zcard, zpopmin, zremrangebyscore on names with a key "
        "in them. A database other than 0 needs select, and to list keys needs scan"
    ),
    "WRONGTYPE": "Another program stores a value of another type under this key; use another key or a prefix",
    "MovedError": "This is a node of a Redis Cluster; create the store from a RedisCluster client",
    "cluster support disabled": "This server is not part of a Redis Cluster; use a URL that names one server",
    "NOREPLICAS": "Bring the replicas back, or lower min-replicas-to-write",
}


_HINTS: Final = {  # what to do about a connection that could not be opened, by its error ("TLS" where it is to be used)
    "No master found": "check the name; are these Sentinels, and do they need ?sentinel_password=?",
    r"""(got "|Protocol Error: b['"])E""": "that port speaks memcached, not Redis; check the host and port",
    r"""(got "|Protocol Error: b['"])[H<]""": "that port speaks HTTP, not Redis; check the host and port",
    r"""(got "|Protocol Error: b['"])\\x15""": "that port speaks TLS; use {0}s://",
    r"(?i)protocol error": "that port speaks another protocol, not Redis; check the host and port",
    "CERTIFICATE_VERIFY_FAILED": "name the file of its authority by ?ssl_ca_certs=",
    "WRONG_VERSION_NUMBER": "that port does not speak TLS; use {0}://, or the server's tls-port",
    r"^TLS .*(Timeout|UNEXPECTED_EOF|reset by peer|closed by|:\d+\.$)": "does that port speak TLS? if not, use {0}://",
    "^(?!TLS ).*(reset by peer|Connection lost|closed by)": (
        "if that port requires TLS, use {0}s://; else check the host and port"
    ),
}


class Dialect(NamedTuple):
    """What a store calls itself in URLs and errors, and what it advises."""

    scheme: str
    """The scheme of its URLs; with an "s", over TLS."""
    advice: Mapping[str, str]
    """What to do about a refusal, by a pattern of its text."""


REDIS: Final = Dialect("redis", ADVICE)
"""That of Redis."""


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def __init__(self, location: str, secrets: Iterable[str], dialect: Dialect) -> None:
        """`secrets` are never shown."""
        super().__init__(location, secrets)
        self._scheme, self._advice = dialect

    def too_few(self, replicas: int, acknowledged: object) -> StoreUnavailable:
        """Say that fewer replicas have acknowledged a request than were to."""
        too_few = f"only {self.masked(str(acknowledged))} of {replicas} replicas acknowledged it"
        error = StoreUnavailable(f"{self._location} may have applied the request, but {too_few}")
        error.__cause__ = acknowledged if isinstance(acknowledged, Exception) else None
        return error

    def of(self, error: BaseException, *, sent: bool) -> StoreError:
        """Return what an error means, and remove every secret from that error."""
        for step in _chain(error):
            if isinstance(step, exceptions.RedisError):
                step.args = tuple(self.masked(part) if isinstance(part, str) else part for part in step.args)
        return super().of(error, sent=sent)

    def masked(self, text: str) -> str:
        """Return a text without the secrets, and without what Redis repeats of an AUTH that it refuses."""
        return re.sub(r",? with args beginning with.*", "", super().masked(text), flags=re.DOTALL)

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        # redis-py wraps what the server answers to an asyncio handshake on a unix socket in a ConnectionError.
        reply = error.__cause__ if isinstance(error.__cause__, exceptions.RedisError) else error
        text = f"{type(reply).__name__}: {_SCRIPT.sub('', str(reply)) or 'it took too long'}"
        if isinstance(reply, _NOT_NOW) or str(reply).startswith(("BUSY ", "UNBLOCKED ")):
            return self.not_now(text)
        if isinstance(reply, _REFUSED):
            if _NO_PASSWORD.search(text):
                return StoreError(f"{self._location} requires a password: put it in the URL or the client")
            return self.refused(text, f"{_found(self._advice, text) or 'Check its configuration and its log'}.")
        if sent:
            return self.unanswered(text)
        tls = "TLS " * self._location.startswith(f"{self._scheme}s")
        hint = _found(_HINTS, tls + text).format(self._scheme)
        return self.unreachable(self.masked(_reason(reply)), hint and f": {hint}")


def _found(table: Mapping[str, str], text: str) -> str:
    return next((say for pattern, say in table.items() if re.search(pattern, text)), "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """Say why a connection could not be opened: redis-py puts the host before that, and its own words around it."""
    if isinstance(error, TOO_LATE):
        return reason(TimeoutError())
    step = next((step for step in _chain(error) if isinstance(step, OSError)), None)
    if step is not None and str(error).startswith("Error "):
        return reason(step)
    return reason(error).partition(" : ")[0]  # the rest are the Sentinels' clients and their settings
