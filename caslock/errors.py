"""The law of this file: one error for each outcome, and never two meanings in one error.

Held by another is `NotAcquired`; the store can't be reached is `StoreUnavailable`; a request that may or may not have
been applied, and could not be settled, is `OutcomeUnknown`.
"""

from __future__ import annotations


class CaslockError(Exception):
    """Any error that caslock raises on purpose, except ValueError and TypeError for bad arguments."""


class NotAcquired(CaslockError, TimeoutError):  # noqa: N818 - named by the outcome, as the field does (LockNotHeld ...)
    """Somebody else held the lock for as long as we were willing to wait."""


class LockLost(CaslockError):  # noqa: N818 - named by the outcome
    """The lease ended, or was taken away, while we still counted on it."""


class NotHeld(CaslockError, RuntimeError):  # noqa: N818 - named by the outcome
    """A release, renewal or question about a lock that this thread or task does not hold."""


class StoreError(CaslockError):
    """The store has refused the request for certain (rights, read-only, out of memory, wrong type under the key)."""


class StoreUnavailable(StoreError):  # noqa: N818 - named by the outcome
    """No answer, or an answer that says "try again".

    Raised by a store: the request may have been applied, unless `sent` is False.
    Raised by a lock's acquire: the lock is not held, and no late request of ours can take it any more (else it is
    `OutcomeUnknown`).
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        """Say what happened; `sent` is False only where the request certainly never left this process."""
        super().__init__(message)
        self.sent = sent


class OutcomeUnknown(StoreUnavailable):
    """The request may have been applied, and that could not be found out or prevented; the lease is the bound.

    A kind of `StoreUnavailable`, so catch it first where the difference matters.
    """


def told(error: BaseException) -> str:
    """Give all that an error says, its notes too."""
    return " ".join([str(error) or repr(error), *getattr(error, "__notes__", ())])
