"""What the errors of a client, of a server or of a connection mean: the same words for the same outcome at every store.

No text of an error shows a secret, and the original error is its ``__cause__``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from caslock.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable


class Failures(ABC):
    """Makes the errors of one store."""

    def __init__(self, location: str, secrets: Iterable[str | None] = ()) -> None:
        """`location` has no secret; `secrets` are never shown."""
        self._location = location
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def of(self, error: BaseException, *, sent: bool) -> StoreError:
        """Return what an error means; `sent` is False while nothing of the verb has been sent."""
        if isinstance(error, StoreError):
            return error
        failed = self._of(error, sent=sent)
        failed.__cause__ = error
        return failed

    @abstractmethod
    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        """Return what any other error means."""

    def masked(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def unreachable(self, why: str, hint: str = "") -> StoreUnavailable:
        """Return the error for a connection that could not be made."""
        return StoreUnavailable(f"{self._location} is unreachable ({why}){hint}", sent=False)

    def unanswered(self, why: str) -> StoreUnavailable:
        """Return the error for a request that got no answer."""
        return StoreUnavailable(f"{self._location} gave no usable answer, and may have applied the request ({why})")

    def not_now(self, why: str) -> StoreUnavailable:
        """Return the error for a request that the server has refused, but may serve later."""
        return StoreUnavailable(f"{self._location} can't serve the request now ({why}). Try again later.", sent=False)

    def refused(self, why: str, advice: str = "") -> StoreError:
        """Return the error for a request that the server has refused for good."""
        return StoreError(f"{self._location} has refused the request ({why}). {advice}".rstrip())

    def cannot_wait(self, why: str = "") -> StoreUnavailable:
        """Return the error for a wait that nobody could end."""
        return StoreUnavailable(f"{self._location} can't serve another waiter now{why and f': {why}'}", sent=False)
