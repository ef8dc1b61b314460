"""Turns an error of Hazelcast's client into one of caslock's, whose text shows no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hazelcast.errors import (
    AccessControlError,
    AuthenticationError,
    ClientNotAllowedInClusterError,
    HazelcastSerializationError,
    NativeOutOfMemoryError,
    SecurityError,
    SplitBrainProtectionError,
    TargetDisconnectedError,
)

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures

if TYPE_CHECKING:
    from caslock.stores.hazelcast.target import Target

_DENIED: Final = (AuthenticationError, ClientNotAllowedInClusterError)
_REFUSED: Final = (AccessControlError, HazelcastSerializationError, NativeOutOfMemoryError, SecurityError)


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def __init__(self, target: Target) -> None:
        """Note what a client that is denied has to check."""
        super().__init__(target.location)
        self._check = f"check the name of the cluster ({target.cluster}), the user and the password"

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        if isinstance(error, SplitBrainProtectionError):
            why = "lacks members: its split-brain protection refuses requests"
            return StoreUnavailable(f"{self._location} {why}", sent=sent)
        if isinstance(error, _DENIED):
            return StoreError(f"{self._location} has refused the client: {self._check}")
        if isinstance(error, _REFUSED):
            return self.refused(_reason(error))
        return self.unanswered(_reason(error)) if sent else self.unreachable(_reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, TargetDisconnectedError) and str(error) == type(error).__name__:
        return "the connection was closed: is it a Hazelcast without TLS? check the host and port"
    return reason(error).splitlines()[0][:200]
