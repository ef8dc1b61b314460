"""Passes a key to the next in the local queue in one request: the release of one attempt is the put of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.exchange import answered, note_write, read, unanswered
from caslock.protocol.limits import PASSES
from caslock.protocol.record import Observed

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.writes import Write


class HandOver:
    """The first put of an attempt, the successor, which the attempt before it is to send in place of its own release.

    Either the releaser sends that put or the successor withdraws, whoever calls `take` first.
    """

    __slots__ = ("_offer", "outcome", "pending", "successor")

    def __init__(self, successor: Attempt) -> None:
        self.successor: Attempt = successor
        self.pending: bool = True  # the successor has to wait
        self.outcome: Observed | None = None  # what an answered put has shown
        self._offer: list[None] = [None]  # pop() succeeds for exactly one caller

    def take(self) -> bool:
        """Take it: the releaser to send, or the successor to withdraw.  Returns whether the caller was the first."""
        try:
            self._offer.pop()
        except IndexError:
            return False
        return True

    def settle(self, outcome: Observed | None = None) -> None:
        """Tell the successor what the put has shown (None: unknown, or nothing was sent)."""
        if self.pending and outcome is not None:
            self.outcome = outcome
        self.pending = False
        self.successor.wake()


async def hand_over(runtime: Runtime, attempt: Attempt, outgoing: HandOver, limit: float) -> Observed:
    """Put the first record of the successor at the version that is ours; returns what is there then.

    To the successor it is a put like its own.  If it gets no answer, the successor learns of that at once, and asks the
    store itself while we settle our own release.  If it is refused because others have changed a record that we share,
    it is put again at the version that is there.  Else, or if it could not be sent, the successor learns of that after
    our release, because our record is there until then.
    """
    lease, successor = attempt.lease, outgoing.successor
    assert lease.record is not None  # noqa: S101 - only a holder hands over
    there = Observed(lease.version, lease.record)
    for number in range(PASSES):
        write = _first_put(attempt, outgoing, there, taken=number > 0)
        if write is None:
            break
        release = attempt.writes.next_id()
        attempt.note_release(release, write.at)
        try:
            entry = await runtime.store.put_if_version(successor.key, write.value, write.expected, write.ttl)
        except (StoreError, ValueError) as error:
            unanswered(attempt, release, error)
            unanswered(successor, write.id, error)
            if not isinstance(error, StoreUnavailable):
                break  # the successor gets this error itself when it retries
            if error.sent:
                outgoing.settle()
            if runtime.now() >= limit:
                raise
            return await read(runtime, attempt, limit)
        there = answered(successor, write, entry)
        if write.is_applied(entry):
            break
        attempt.writes.drop(release)
        if not attempt.is_in(there.record):
            break
    return there


def _first_put(attempt: Attempt, outgoing: HandOver, there: Observed, *, taken: bool) -> Write | None:
    """Note and return the put that hands over what is there; None: it must not, or nobody waits for it."""
    successor, (version, record), now = outgoing.successor, there, attempt.runtime.now()
    rest = attempt.remainder(record, version, now)
    fits = rest is None or rest.free or (rest.shares and successor.may_take(rest))
    if not (outgoing.pending and fits and (taken or outgoing.take())):
        return None
    if rest is None:
        write = successor.first(now, version)
    else:
        write = note_write(successor, version, successor.next_record(rest, version), now)
    # Order matters: we record the write, then look whether the successor withdraws; it says so, and then reads the
    # writes.  So at least one of us sees the other.
    if successor.ending or not outgoing.pending:
        successor.writes.drop(write.id)
        return None
    return write
