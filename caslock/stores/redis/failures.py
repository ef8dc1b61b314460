"""What an error of redis-py or of the server means: which of caslock's errors, in words that show no secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from redis import exceptions

from caslock.connections import reason
from caslock.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOO_LATE: Final = (TimeoutError, exceptions.TimeoutError)
"""The server was too slow.  Any other error that ends a connection has probably ended all others."""

FAILOVER: Final = (exceptions.ReadOnlyError, exceptions.BusyLoadingError)
"""Replies after which no open connection is used again: another server may be the primary."""

_NOT_NOW: Final = (exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.BusyLoadingError)
_REFUSED: Final = (exceptions.ResponseError, exceptions.AuthenticationError, exceptions.AuthorizationError)
_OTHER: Final = re.compile(r"""(?:got "|Protocol Error: b['"])(.)""")  # the first byte of a reply
_SCRIPT: Final = re.compile(  # where Redis 7, or Redis 6, has refused in our script
    r" script: [0-9a-f]{40}, on @user_script:\d+\.?|Error running script \(call to f_[0-9a-f]{40}\): @user_script:\d+: "
)
_NO_PASSWORD: Final = re.compile("NOAUTH|Authentication required|HELLO must be called with the client already")
_ADVICE: Final = {
    "OutOfMemory": "Free memory or raise its maxmemory; releases still work.",
    "ReadOnly": "Connect to the primary, not to a replica.",
    "Authentication": "Check the user and the password.",
    "NoPermission": (
        "Grant the user eval, evalsha, get, set, del and time (and wait, with replicas) on these keys; to be woken: "
        "blpop, rpush, zadd, zcard, zpopmin, zremrangebyscore and pexpire on all names that begin so."
    ),
    "WRONGTYPE": "Another program keeps something else than a string under this key: use another key, or a prefix.",
    "MovedError": "It is a node of a Redis Cluster: make the store of a RedisCluster.",
    "NOREPLICAS": "Bring its replicas back, or lower its min-replicas-to-write.",
}


class Failures:
    """Makes the errors of one store."""

    def __init__(self, location: str, secrets: Iterable[str]) -> None:
        """`secrets` are never shown."""
        self._location = location
        self._secrets = sorted(set(secrets) - {""}, key=len, reverse=True)

    def cannot_wait(self) -> StoreUnavailable:
        """Say that a put can't wait now."""
        return StoreUnavailable(f"{self._location} can't be waited at now. Sleep, then put.", sent=False)

    def too_few(self, replicas: int, acknowledged: object) -> StoreUnavailable:
        """Say that fewer replicas have acknowledged a request than were to."""
        told = f"{replicas} replicas were to acknowledge it, not {self._masked(str(acknowledged))}"
        error = StoreUnavailable(f"{self._location} may have applied the request: {told}. Check them.")
        error.__cause__ = acknowledged if isinstance(acknowledged, Exception) else None
        return error

    def of(self, error: BaseException, *, sent: bool = True) -> StoreError:
        """Tell which outcome an error means, and remove every secret from that error."""
        for step in _chain(error):
            if isinstance(step, exceptions.RedisError):
                step.args = tuple(self._masked(part) if isinstance(part, str) else part for part in step.args)
        # redis-py wraps what the server answers to an asyncio handshake on a unix socket in a ConnectionError.
        reply = error.__cause__ if isinstance(error.__cause__, exceptions.RedisError) else error
        text = f"{type(reply).__name__}: {_SCRIPT.sub('', str(reply)) or 'it took too long'}"
        failed: StoreError
        if isinstance(reply, _NOT_NOW) or str(reply).startswith(("BUSY ", "UNBLOCKED ")):
            told = f"{self._location} can't serve it now ({text}). Try again later."
            failed = StoreUnavailable(told, sent=False)
        elif isinstance(reply, _REFUSED) and _NO_PASSWORD.search(text):
            failed = StoreError(f"{self._location} has refused the request (it needs a password). Give it one.")
        elif isinstance(reply, _REFUSED):
            say = next((say for word, say in _ADVICE.items() if word in text), "Check its configuration and its log.")
            failed = StoreError(f"{self._location} has refused the request ({text}). {say}")
        elif sent:
            say = f"gave no answer, and may have applied the request ({text}). Read before you try again."
            failed = StoreUnavailable(f"{self._location} {say}", sent=True)
        else:
            say = f"is unreachable ({self._masked(_reason(reply))}){self._hint(reply, text)}"
            failed = StoreUnavailable(f"{self._location} {say}", sent=False)
        failed.__cause__ = error
        return failed

    def _hint(self, error: BaseException, text: str) -> str:
        """Say what to do about a connection that could not be opened, where the port or the URL is probably wrong."""
        if other := _OTHER.search(text):
            kind = {"E": "memcached", "<": "HTTP", "H": "HTTP"}.get(other[1], "something else")
            return f": this port speaks {kind}, and not Redis; check host and port"
        if "WRONG_VERSION_NUMBER" in text:
            return ": this port does not speak TLS; use redis:// there, or Redis' tls-port"
        if self._location.startswith("rediss"):
            return (
                ": check that this port speaks TLS; a plain one needs redis://" if isinstance(error, TOO_LATE) else ""
            )
        if re.search("reset by peer|Connection lost|closed by", text):
            return ": check that this port is not for TLS; such a one needs rediss://"
        return ""

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return re.sub(r",? with args beginning with.*", "", text, flags=re.DOTALL)  # how Redis repeats a refused AUTH


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
