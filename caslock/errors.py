"""The errors of caslock: one for each outcome.

Their texts are for logs: they name hosts, processes and stores.  A program reads the attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caslock.protocol.record import Record


class CaslockError(Exception):
    """The base of all errors of caslock, except ValueError and TypeError for bad arguments."""

    key: str | None = None
    """The key; None if the error is about several keys, or comes from a store that was used without a lock."""
    location: str | None = None
    """The store of that key, as a URL without a password."""


class NotAcquired(CaslockError, TimeoutError):  # noqa: N818 - named by the outcome, as the field does (LockNotHeld ...)
    """The key did not become free within the timeout: another owner held it, or it was kept after a release."""

    holder: Record | None = None
    """Who held the key when it was looked at last; None if it changed hands all the time, or nobody had it yet."""
    waited: float | None = None
    """Seconds."""


class LockLost(CaslockError):  # noqa: N818 - named by the outcome
    """The lease ended, or was taken away, before the hold was released; or a ticket could not be adopted."""

    reason: str = ""
    """Why: the part of the text after the key."""


class NotHeld(CaslockError, RuntimeError):  # noqa: N818 - named by the outcome
    """The lock is not held by this thread or task, or this hold was already released."""


class StoreError(CaslockError):
    """The store refused the request (access rights, read-only, out of memory, another type under the key).

    The error of the client library is in its chain of `__cause__`s.
    """


class StoreUnavailable(StoreError):  # noqa: N818 - named by the outcome
    """There was no answer, or one that says "try again".

    From a store: the request may have been applied, unless `sent` is False.
    From an acquire of a lock: the lock is not held, and none of its requests can acquire the key later.  Where that is
    not certain, the error is `OutcomeUnknown`.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        """Make the error; `sent` is False only if the request certainly never left this process."""
        super().__init__(message)
        self.sent = sent
        """False only if the request certainly never left this process."""


class OutcomeUnknown(StoreUnavailable):
    """A request may have been applied, or may still be, and the store did not answer in time to say which.

    Its effect ends with the lease that it asked for.  A subclass of `StoreUnavailable`: catch it first.
    """


class StaleFence(CaslockError):  # noqa: N818 - named by the outcome
    """The protected resource refused a write, because a later holder of the lock has already written to it.

    Nothing of the write was applied.  The holder has lost its lock, whether it has learned so or not.  Raised by the
    guards in `caslock.fencing`, never by a lock.
    """

    def __init__(self, resource: str, fence: int, seen: int) -> None:
        """Name the resource, the fence of the write, and the larger one that the resource has seen."""
        super().__init__(resource, fence, seen)  # as pickle calls it
        self.resource = resource
        """What refused the write."""
        self.fence = fence
        """The fence of the write."""
        self.seen = seen
        """The larger one that the resource has seen."""

    def __str__(self) -> str:
        return (
            f"{self.resource} refused the write with fence {self.fence}: "
            f"a later holder has already written with fence {self.seen}"
        )


def with_notes(error: BaseException) -> str:
    """Return the text of an error with its notes."""
    return " ".join([str(error) or repr(error), *getattr(error, "__notes__", ())])
