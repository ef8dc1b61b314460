"""Turns an error of etcd or of the connection into one of caslock's, whose text shows no secret."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

import h11

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.etcd.requests import Refused
from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures
from caslock.stores.shared.links import tls_refused

if TYPE_CHECKING:
    from caslock.stores.etcd.wire import Reply

NOT_HERE: Final = ("no leader", "not supported for learner", "too many requests")
"""This member has refused to try, so nothing was applied; another one may do it."""

NO_TOKEN: Final = (
    "invalid auth token",
    "user name is empty",
    "revision of auth store is old",
    "revision in header is old",
)
"""The server refuses the token; it has to be asked for a new one."""

_NOT_NOW: Final = ("requested lease not found", "unhealthy cluster", "not capable")
# Of gRPC: cancelled, unknown, deadline exceeded, aborted, internal, unavailable, data loss.
_NO_ANSWER: Final = frozenset({1, 2, 4, 10, 13, 14, 15})
_ADVICE: Final = {
    "invalid user ID or password": "Check the user and the password.",
    "user name is empty": "Name a user: etcd://user:password@host.",
    "authentication is not enabled": "Leave user and password out of the URL, or enable authentication.",
    "permission denied": "Grant the user readwrite on the prefix of the locks.",
    "database space exceeded": "Compact and defragment it, then disarm its alarm: etcdctl alarm disarm.",
}
_OTHER: Final = "Is it an etcd, 3.4 or newer, with its gRPC gateway enabled? Check the host and port"
_PLAIN: Final = "Without TLS, begin the URL with etcd://"
_IS_PLAIN: Final = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
)
_CUT: Final = ("UNEXPECTED_EOF_WHILE_READING", "SSL_ERROR_EOF")


class TooOld(Exception):  # noqa: N818 - named by what it says
    """The server is no etcd, or one of an unknown version."""


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        return self._of_reply(error.reply) if isinstance(error, Refused) else self._of_connection(error, sent=sent)

    def _of_reply(self, reply: Reply) -> StoreError:
        said, code = reply.message, reply.body.get("code")
        if any(each in said for each in (*NOT_HERE, *_NOT_NOW)):
            return self.not_now(said)
        if code in _NO_ANSWER or reply.status in (502, 503, 504):
            return StoreUnavailable(f"{self._location} may have applied the request ({said})")
        advice = next((advice for words, advice in _ADVICE.items() if words in said), "")
        return self.refused(said, advice)

    def _of_connection(self, error: BaseException, *, sent: bool) -> StoreError:
        if not sent:
            if isinstance(error, ssl.SSLError) and error.reason in _IS_PLAIN:
                return StoreError(f"{self._location} does not speak TLS. {_PLAIN}.")
            if isinstance(error, ssl.SSLError) and error.reason and error.reason not in _CUT:
                return tls_refused(self._location, error)
            if isinstance(error, ConnectionResetError | ssl.SSLError):
                tls = self._location.startswith("etcds")
                hint = f"Does it speak TLS? {_PLAIN}" if tls else f"{_OTHER}; for TLS, begin the URL with etcds://"
                return StoreUnavailable(f"{self._location} has closed the connection. {hint}.", sent=False)
            if isinstance(error, TooOld | h11.RemoteProtocolError | ValueError):
                return StoreError(f"{self._location} does not answer as etcd does ({error}). {_OTHER}.")
            return self.unreachable(reason(error))
        return self.unanswered(reason(error))
