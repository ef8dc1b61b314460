"""The blocking API of elections: `Election`, its terms, and who watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from caslock.blocking import Hold, Lock
from caslock.local.candidates import Candidates
from caslock.local.settings import Own
from caslock.local.workers import run
from caslock.protocol.record import Record
from caslock.store import Store

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from caslock.local.changes import Changes


class Election(Candidates[Store, Hold, Lock]):
    """One leader among all who campaign for a key, while the leader's lease lasts.

    Thread-safe and reusable: each thread that calls `lead` is a candidate, and those of one object exclude each other.
    """

    _lock_type = Lock

    def lead(self, timeout: float | Own | None = Own.TIMEOUT) -> AbstractContextManager[Hold, None]:
        """Campaign, and lead in the block: ``with election.lead() as term``.  Leaving the block resigns.

        `timeout`: seconds to wait, instead of the election's own.  `term` is a `Hold`, and `Hold.fence` numbers it.
        Entering raises `NotAcquired` if somebody else led until the timeout, `StoreUnavailable` or `OutcomeUnknown` if
        the store did not answer.  A thread that already leads re-enters its term, without a request; leaving the outer
        block resigns, and raises `LockLost` if the term was lost: look at ``term.lost``, or call
        ``term.ensure_held()``, before each step.
        """
        return self._lock._with_timeout(timeout)

    def leader(self) -> Record | None:
        """Return who leads now, with its note and the fence of its term; None if nobody does.  Sends a request."""
        return run(self._leader())

    def watch(self) -> Watch:
        """Iterate over the leaders: the present one at once (None if nobody leads), then each change.

        A change is a new term, or that nobody leads; a renewal is none.  The store says when the key has changed, if
        it can; otherwise all watchers of a key in this process together look once a second, and so they do while
        nobody leads.  The first leader told may be as old as five seconds, and a term between two looks is not seen.

        If the store does not answer, the last known leader counts until it does; the log has one WARNING for each such
        time.  Before the first answer nothing is told.  A request that is refused raises `StoreError`; the next one may
        succeed.  A watcher holds no lock and leaves nothing behind; each thread needs its own.
        """
        return Watch(self._changes())


class Watch(Iterator[Record | None]):
    """What `Election.watch` returns: an iterator that another thread can close."""

    def __init__(self, changes: Changes) -> None:
        """See `Election.watch`."""
        self._changes = changes

    def __next__(self) -> Record | None:
        """Wait for the next change."""
        change = run(self._changes.next())
        if change is None:
            raise StopIteration
        return change.leader

    def close(self) -> None:
        """End the iteration, from any thread or a signal handler; returns at once.

        The thread that iterates ends at once if it sleeps, and otherwise when its request to the store has ended: after
        5 s and one request timeout at most.
        """
        self._changes.close()
