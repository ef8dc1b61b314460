"""Turns an error of NATS or of the connection into one of caslock's, whose text shows no secret."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.nats.requests import RefusedError
from caslock.stores.nats.wire import NotNatsError
from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures
from caslock.stores.shared.links import tls_refused

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNAVAILABLE: Final = 503
_NOT_APPLIED: Final = (0, 10005, 10008)  # no responders; too few servers for a bucket; JetStream has no leader
_OFFLINE: Final = "peer offline"  # it may come back, or has only just started
_FULL: Final = ("maximum bytes", "maximum messages", "maximum number", "resource limits", "insufficient")
_BUSY: Final = (
    "maximum connections",
    "maximum account",
    "authentication timeout",
    "shutdown",
    "stale",
    "slow consumer",
)
_RIGHTS: Final = (
    "The user needs to publish to $KV.<bucket>.> and $JS.API.>, and to subscribe to _INBOX.> and $CASLOCK.<bucket>.>"
)
_OTHER: Final = "Is it a NATS server? Check the host and port"


class ServerError(Exception):
    """The server has said -ERR."""


class UnsuitableError(Exception):
    """The server, or its bucket, can't keep locks."""


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        return self._refused(error, sent=sent) or self._failed(error, sent=sent)

    def _refused(self, error: BaseException, *, sent: bool) -> StoreError | None:
        """Tell what the server has said; None: nothing."""
        if isinstance(error, RefusedError):
            return self._answered(error, sent=sent)
        if isinstance(error, ServerError):
            return self._said(error, sent=sent)
        if isinstance(error, UnsuitableError):
            return StoreError(f"{self._location} can't keep locks: {error}.")
        if isinstance(error, NotNatsError) and not sent:
            return StoreError(f"{self._location} does not answer as NATS does ({error}). {_OTHER}.")
        return None

    def _answered(self, error: RefusedError, *, sent: bool) -> StoreError:
        if any(word in str(error) for word in _FULL):
            return StoreError(f"{self._location} is full ({error}). Raise its limits, or those of the account.")
        if error.status == _UNAVAILABLE or _OFFLINE in str(error):
            maybe = sent and error.code not in _NOT_APPLIED
            what = "may have applied the request" if maybe else "can't serve the request now"
            return StoreUnavailable(f"{self._location} {what} ({error}). Try again later.", sent=maybe)
        return self.refused(str(error))

    def _said(self, error: ServerError, *, sent: bool) -> StoreError:
        said = str(error).lower()
        if "permissions violation" in said:
            return self.refused(str(error), f"{_RIGHTS}.")
        if not sent and not any(word in said for word in _BUSY):
            return StoreError(f"{self._location} has refused the connection ({error}). Check user and password.")
        return StoreUnavailable(f"{self._location} has closed the connection ({error})", sent=sent)

    def _failed(self, error: BaseException, *, sent: bool) -> StoreError:
        """Tell what became of the connection."""
        if sent:
            return self.unanswered(reason(error))
        if isinstance(error, ssl.SSLError) and error.reason and "EOF" not in error.reason:
            return tls_refused(self._location, error)
        if isinstance(error, ConnectionResetError | ssl.SSLError):
            return StoreUnavailable(f"{self._location} has closed the connection. {_OTHER}.", sent=False)
        return self.unreachable(reason(error))


def check_server(info: Mapping[str, object], *, tls: bool) -> None:
    """Raise UnsuitableError unless the server that has said who it is can be spoken to, and can end entries."""
    version = str(info.get("version", ""))
    numbers = [int(number) for number in version.split(".")[:2] if number.isdigit()]
    if "server_id" not in info:
        raise NotNatsError("it does not say who it is")
    if tls and not (info.get("tls_required") or info.get("tls_available")):
        raise UnsuitableError("it does not speak TLS. Without TLS, begin the URL with nats://")
    if not tls and info.get("tls_required"):
        raise UnsuitableError("it wants TLS. Begin the URL with natss://")
    if tuple(numbers) < (2, 11):
        raise UnsuitableError(f"it is version {version or 'unknown'}, and only 2.11 and newer end single entries")


def check_jetstream(info: Mapping[str, object], refused: RefusedError) -> Exception:
    """Return the reason for which nothing is known of the bucket."""
    if refused.status == _UNAVAILABLE and not refused.code and not info.get("jetstream"):
        return UnsuitableError("it has no JetStream: start it with -js")
    return refused


def check_stream(config: Mapping[str, object], stream: str) -> None:
    """Raise UnsuitableError unless the bucket has the settings that locks need."""
    if not config.get("allow_msg_ttl"):
        raise UnsuitableError(f"its bucket does not end single entries: set allow_msg_ttl of the stream {stream}")
    if config.get("max_msgs_per_subject") != 1:
        raise UnsuitableError(f"its bucket keeps a history: set max_msgs_per_subject of the stream {stream} to 1")
    if config.get("discard") != "new" and any(_limit(config, name) for name in ("max_msgs", "max_bytes")):
        raise UnsuitableError(f'its bucket drops entries when it is full: set discard of the stream {stream} to "new"')
    if _limit(config, "max_age"):
        raise UnsuitableError(f"its bucket drops entries by their age: set max_age of the stream {stream} to 0")
    if config.get("retention", "limits") != "limits" or config.get("mirror") or config.get("sources"):
        raise UnsuitableError(f"the stream {stream} is a queue, or gets entries from another stream")


def _limit(config: Mapping[str, object], name: str) -> bool:
    value = config.get(name, 0)
    return isinstance(value, int) and value > 0
