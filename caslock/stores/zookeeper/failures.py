"""Turns an error of ZooKeeper or of the connection into one of caslock's, whose text shows no secret."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from kazoo import exceptions

from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures

if TYPE_CHECKING:
    from caslock.errors import StoreError

MOVED: Final[tuple[type[Exception], ...]] = (
    exceptions.NoNodeError,
    exceptions.NodeExistsError,
    exceptions.BadVersionError,
)
"""Another entry is there than the request expects."""

_NOT_NOW: Final = (
    exceptions.SessionExpiredError,
    exceptions.SessionMovedError,
    exceptions.ConnectionLoss,
    exceptions.OperationTimeoutError,
    exceptions.SystemZookeeperError,
    exceptions.RuntimeInconsistency,
    exceptions.DataInconsistency,
)
_ADVICE: Final = {
    exceptions.NoAuthError: "Check the user and the password: another one may have made the znodes.",
    exceptions.AuthFailedError: "Check the user and the password.",
    exceptions.UnimplementedError: "It needs ZooKeeper 3.4 or newer.",
    exceptions.NotReadOnlyCallError: "Connect to servers that are not read-only.",
    exceptions.QuotaExceededError: "Raise the quota of the path.",
}
_HINT: Final = "does it have a quorum, room for another connection (maxClientCnxns), and the same setting of TLS?"


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        if isinstance(error, exceptions.ZookeeperError):
            return self._of_answer(error)
        if sent:
            return self.unanswered(reason(error))
        closed = isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLError | TimeoutError)
        why = "TLS: " + reason(error) if isinstance(error, ssl.SSLError) else reason(error)
        return self.unreachable(why, f": {_HINT}" if closed else "")

    def _of_answer(self, error: exceptions.ZookeeperError) -> StoreError:
        name = type(error).__name__.removesuffix("Error")
        if isinstance(error, _NOT_NOW):
            return self.unanswered(name)
        advice = next((advice for kind, advice in _ADVICE.items() if isinstance(error, kind)), "")
        return self.refused(name, advice)
