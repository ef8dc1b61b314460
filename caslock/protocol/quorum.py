"""A lock at several independent stores, by the rule of Redlock: whoever holds most of their leases holds the lock.

Any two majorities have a store in common, and a store gives its lease to one owner at a time.  The rule is that of
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.  Nothing here makes a request.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from caslock.errors import NotAcquired, StoreError, StoreUnavailable
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.life import HELD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Event


def majority(stores: int) -> int:
    """Return how many of so many stores are more than half of them."""
    return stores // 2 + 1


class Stage(Enum):
    """How far one store is with one acquire of a QuorumLock."""

    QUEUED = "nothing has been sent"
    ASKED = "its answer has not come, or is being undone"
    HELD = "it has granted a lease, which is to be released"
    LEAVING = "the lease is being released"
    OVER = "nothing is to be done any more"


class Vote:
    """What one store says to one acquire."""

    __slots__ = ("__weakref__", "attempt", "begun", "error", "stage", "then")

    def __init__(self, attempt: Attempt) -> None:
        """Begin with nothing sent; `attempt` is the acquire at that store."""
        self.attempt: Attempt = attempt
        self.stage: Stage = Stage.QUEUED
        self.begun: bool = False  # its release, by the thread or task that makes it
        self.then: list[Callable[[], object]] = []  # what asks the store again, once nothing is under way
        self.error: BaseException | None = None  # why there is no lease, or what its release has raised

    @property
    def granted(self) -> bool:
        """Whether there is a lease."""
        return self.stage in _GRANTED

    @property
    def kept(self) -> bool:
        """Whether there is a lease, or it stood until it was released: no other owner can have had it."""
        return self.granted or (self.stage is Stage.OVER and self.error is None)

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.stage not in _BUSY

    @property
    def counts(self) -> bool:
        """Whether there is a lease that is not known to be lost."""
        return self.stage in _GRANTED and not self.attempt.lease.lost


_GRANTED: Final = frozenset({Stage.HELD, Stage.LEAVING})
_BUSY: Final = frozenset({Stage.ASKED, Stage.LEAVING})


class Ballot:
    """The votes of all stores in one acquire, until the lock is released.

    Each vote has a thread or task of its own; `guard` is held for a few instructions only.
    """

    __slots__ = ("events", "guard", "in_time", "is_open", "votes", "won")

    def __init__(
        self, attempts: Sequence[Attempt], guard: AbstractContextManager[object], events: Sequence[Event]
    ) -> None:
        """Begin with nothing sent; `events` wake those who wait for the votes."""
        self.guard: AbstractContextManager[object] = guard
        self.votes: list[Vote] = [Vote(attempt) for attempt in attempts]
        self.is_open: bool = True  # a lease that is granted may still join
        self.won: bool = False  # a majority was had at one moment, and the acquire has returned
        self.in_time: bool = False  # it still was when its release began
        self.events: Sequence[Event] = events

    @property
    def needed(self) -> int:
        """How many leases are a majority."""
        return majority(len(self.votes))

    @property
    def spare(self) -> int:
        """How many stores the others can do without."""
        return len(self.votes) - self.needed

    @property
    def deadline(self) -> float:
        """When fewer than a majority of the leases will be left, if nothing renews them."""
        ends = sorted((vote.attempt.lease.deadline for vote in self.votes if vote.counts), reverse=True)
        return ends[self.needed - 1] if len(ends) >= self.needed else -NEVER

    def begin(self, vote: Vote) -> bool:
        """Note that a request is about to be sent; False: send none, because nobody waits for it any more."""
        with self.guard:
            begins = vote.stage is Stage.QUEUED and self.is_open
            if begins:
                vote.stage = Stage.ASKED
            elif vote.stage is Stage.QUEUED:
                vote.stage, vote.error = Stage.OVER, NotAcquired("not asked")
            return begins

    def join(self, vote: Vote, now: float) -> bool:
        """Count a lease that was granted; False: it comes too late and has to be given back."""
        with self.guard:
            if not self.is_open or (self.won and now >= self.deadline):  # lost is lost
                return False
            vote.stage = Stage.HELD
            vote.attempt.state = HELD
            return True

    def win(self, now: float) -> bool:
        """Whether a majority of leases stands at this moment, and the lock is held."""
        with self.guard:
            self.won = self.is_open and now < self.deadline
            return self.won

    def close(self) -> list[Vote]:
        """Let no lease join any more, and return those whose release has not begun; after an interrupt call it again.

        From now on nothing is renewed.
        """
        with self.guard:
            for vote in self.votes:
                vote.attempt.begin_release()
                if vote.stage is Stage.HELD:
                    vote.stage = Stage.LEAVING
            self.is_open = False  # last: after an interrupt it is open, and closed once more
            return [vote for vote in self.votes if vote.stage is Stage.LEAVING and not vote.begun]

    def leave(self, vote: Vote) -> bool:
        """Note that a release begins; False: another thread makes it, or it is over."""
        with self.guard:
            begins = vote.stage is Stage.LEAVING and not vote.begun
            vote.begun = vote.begun or begins
            return begins

    def end(self, vote: Vote, error: BaseException | None, *, stage: Stage = Stage.OVER) -> None:
        """Note how a request has ended, and wake those who wait for it."""
        with self.guard:
            vote.error, vote.stage, vote.begun = error, stage, False
        self.tell()

    def tell(self) -> None:
        """Wake those who wait for the votes."""
        for event in tuple(self.events):
            event.set()

    def drop_queued(self) -> None:
        """Give up on what could not be sent yet: an earlier request is not answered, or no thread is free."""
        with self.guard:
            for vote in self.votes:
                if vote.stage is Stage.QUEUED:
                    vote.stage = Stage.OVER
                    vote.error = StoreUnavailable("earlier requests have not been answered", sent=False)

    def replace(self, index: int, attempt: Attempt) -> Vote | None:
        """Ask a store again that has no lease of ours, and return its vote till now; None: there is nothing to ask."""
        with self.guard:
            vote = self.votes[index]
            lost = vote.stage is Stage.HELD and vote.attempt.lease.lost
            if not (self.is_open and self.won and (lost or vote.stage is Stage.OVER)):
                return None
            if lost:
                vote.stage = Stage.LEAVING
            self.votes[index] = Vote(attempt)
            return vote

    def count(self, *stages: Stage) -> int:
        """Return how many votes are at one of these stages."""
        return sum(vote.stage in stages for vote in self.votes)

    def is_decided(self, now: float) -> bool:
        """Whether a majority is had, or can no longer be had."""
        pending = self.count(Stage.QUEUED, Stage.ASKED)
        held = sum(vote.counts for vote in self.votes)
        return now < self.deadline or held + pending < self.needed

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return all(vote.is_idle for vote in self.votes)

    @property
    def is_free(self) -> bool:
        """Whether others can have a majority, as far as it depends on us, or no answer is to come."""
        return self.count(Stage.LEAVING, Stage.HELD) <= self.spare or not self.count(Stage.LEAVING)

    @property
    def is_released(self) -> bool:
        """Whether the release has begun, and others can have a majority."""
        return not self.is_open and self.count(Stage.LEAVING, Stage.HELD) <= self.spare

    @property
    def failed(self) -> list[Vote]:
        """The votes of the stores that could not serve us."""
        return [vote for vote in self.votes if isinstance(vote.error, StoreError)]

    @property
    def kept(self) -> int:
        """How many leases there are, or stood until they were released."""
        return sum(vote.kept for vote in self.votes)


class QuorumLease(Lease):
    """The lease of a QuorumLock: it lasts for as long as a majority of the stores' leases."""

    __slots__ = ("ballot",)

    def __init__(self, ttl: float, max_hold: float, auto_renew: bool) -> None:  # noqa: FBT001 - as `Lease`
        """Begin as not held; see `Lease`."""
        self.ballot: Ballot | None = None
        super().__init__(ttl, max_hold, auto_renew)

    @property
    def deadline(self) -> float:
        """We believe that we hold the lock until then: it follows from the leases."""
        return -NEVER if self.ballot is None else self.ballot.deadline

    @deadline.setter
    def deadline(self, value: float) -> None:
        """Ignore it."""

    def end(self, missing: str) -> str:
        """Return why the lock is lost: why the leases that are lost have ended."""
        votes = [] if self.ballot is None else self.ballot.votes
        whys: dict[str, str] = {}
        left = 0
        for vote in votes:
            lease = vote.attempt.lease
            if vote.granted and vote.attempt.runtime.now() >= lease.deadline:
                whys[vote.attempt.runtime.store.traits.location] = lease.lost or lease.end(missing)
            elif lease.lost:
                whys[vote.attempt.runtime.store.traits.location] = lease.lost
            else:
                left += vote.kept
        if len(whys) == len(votes) and len(set(whys.values())) == 1:
            return next(iter(whys.values()))
        reasons = "; ".join(why if where in why else f"at {where}, {why}" for where, why in whys.items())
        return f"{left} of its {len(votes)} leases stood, and it needs {majority(len(votes))}: {reasons}"
