"""Turns an error of ZooKeeper or of the connection into one of caslock's, whose text shows no secret."""

from __future__ import annotations

import ssl
from typing import Final

from kazoo import exceptions

from caslock.connections import reason
from caslock.errors import StoreError, StoreUnavailable

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


def of_connecting(location: str, error: Exception) -> StoreError:
    """Say why there is no connection."""
    if isinstance(error, exceptions.AuthFailedError):
        return of_answer(location, error)
    told = "TLS: " + reason(error) if isinstance(error, ssl.SSLError) else reason(error)
    hint = (
        f": {_HINT}" if isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLError | TimeoutError) else ""
    )
    return StoreUnavailable(f"{location} is unreachable ({told}){hint}", sent=False)


def of_asking(location: str, error: Exception) -> StoreUnavailable:
    """Say why there is no answer."""
    return StoreUnavailable(f"{location} gave no answer, and may have applied the request ({reason(error)})")


def of_answer(location: str, error: Exception) -> StoreError:
    """Say what a server has refused."""
    name = type(error).__name__.removesuffix("Error")
    if isinstance(error, _NOT_NOW):
        return StoreUnavailable(f"{location} has not answered the request ({name})")
    advice = next((advice for kind, advice in _ADVICE.items() if isinstance(error, kind)), "")
    return StoreError(f"{location} has refused the request ({name}). {advice}".rstrip())
