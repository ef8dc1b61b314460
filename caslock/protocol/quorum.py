"""A lock at several independent stores, by the rule of Redlock: whoever holds most of their leases holds the lock.

Any two majorities have a store in common, and a store gives its lease to one owner at a time.  The rule is that of
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.  Nothing here makes a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import NotAcquired, StoreError, StoreUnavailable
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.life import HAD, HELD, RELEASING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Event


def majority(stores: int) -> int:
    """Return how many of so many stores are more than half of them."""
    return stores // 2 + 1


class Ballot:
    """The leases of one acquire, one at each store, until the lock is released.

    Each store is asked in a thread or task of its own, with an attempt of its own.  `guard` is held for a few
    instructions only.
    """

    def __init__(
        self, parts: Sequence[Attempt], guard: AbstractContextManager[object], events: Sequence[Event]
    ) -> None:
        """Begin with nothing sent; `parts` are the attempts, and `events` wake those who wait for the answers."""
        self.guard: AbstractContextManager[object] = guard
        self.parts: list[Attempt] = list(parts)
        self.unasked: set[Attempt] = set(parts)  # nothing has been sent for them
        self.pending: set[Attempt] = set(parts)  # they wait for an answer: to be granted or refused, or released
        self.granted: set[Attempt] = set()  # those of `parts` that have had a lease
        self.errors: dict[Attempt, BaseException] = {}  # why there is no lease, or what its release has raised
        self.is_open: bool = True  # a lease that is granted may still join
        self.won: bool = False  # a majority was held at one moment, and the acquire has returned
        self.in_time: bool = False  # it still was when its release began
        self.events: Sequence[Event] = events

    @property
    def needed(self) -> int:
        """How many leases are a majority."""
        return majority(len(self.parts))

    @property
    def spare(self) -> int:
        """How many stores the others can do without."""
        return len(self.parts) - self.needed

    def stood(self, part: Attempt) -> bool:
        """Whether the lease was never lost: it stands, or stood until its release."""
        return part in self.granted and not part.lease.lost

    def counts(self, part: Attempt) -> bool:
        """Whether there is a lease that is not known to be lost."""
        return part.state in HAD and self.stood(part)

    @property
    def held(self) -> list[Attempt]:
        """The attempts whose leases count."""
        return [part for part in self.parts if self.counts(part)]

    @property
    def deadline(self) -> float:
        """When fewer than a majority of the leases will be left, if nothing renews them."""
        ends = sorted([part.lease.deadline for part in self.held], reverse=True)
        return ends[self.needed - 1] if len(ends) >= self.needed else -NEVER

    def begin(self, part: Attempt) -> bool:
        """Note that a request is about to be sent; False: send none, because nobody waits for it any more."""
        with self.guard:
            begins = part in self.unasked and self.is_open
            if part in self.unasked and not begins:
                self._give_up(part, NotAcquired("not asked"))
            self.unasked.discard(part)
            return begins

    def give_up_unasked(self) -> None:
        """Give up on what could not be sent yet: an earlier request is not answered, or no thread is free."""
        with self.guard:
            for part in self.unasked:
                self._give_up(part, StoreUnavailable("earlier requests have not been answered", sent=False))
            self.unasked.clear()

    def _give_up(self, part: Attempt, error: BaseException) -> None:
        self.pending.discard(part)
        self.errors[part] = error

    def join(self, part: Attempt, now: float) -> bool:
        """Count a lease that was granted; False: it comes too late and has to be given back."""
        with self.guard:
            if not self.is_open or (self.won and now >= self.deadline):  # lost is lost
                return False
            part.state = HELD
            self.granted.add(part)
            self.pending.discard(part)
            self.errors.pop(part, None)
        self.tell()
        return True

    def end(self, part: Attempt, error: BaseException | None) -> None:
        """Note that an acquire has failed, or that a release has ended."""
        with self.guard:
            self.pending.discard(part)
            self.errors.pop(part, None)
            if error is not None:
                self.errors[part] = error
        self.tell()

    def tell(self) -> None:
        """Wake those who wait for answers."""
        for event in tuple(self.events):
            event.set()

    def is_decided(self, now: float) -> bool:
        """Whether a majority is held, or can no longer be had."""
        return now < self.deadline or len(self.held) + len(self.pending) < self.needed

    def win(self, now: float) -> bool:
        """Whether a majority of leases stands at this moment, and the lock is held."""
        with self.guard:
            self.won = self.is_open and now < self.deadline
            return self.won

    @property
    def vacant(self) -> list[int]:
        """The indexes of the stores where we have no lease, and have not asked for one."""
        return [index for index, part in enumerate(self.parts) if not (part in self.pending or self.counts(part))]

    def replace(self, index: int, part: Attempt) -> bool:
        """Ask a vacant store again with `part`.  Returns False if it must not be asked (any more).

        To `part`, what is left there of an earlier lease is dead: its hold id has the same nonce.
        """
        with self.guard:
            asks = self.is_open and self.won and index in self.vacant
            if asks:
                before, self.parts[index] = self.parts[index], part
                self.granted.discard(before)
                self.errors.pop(before, None)
                self.unasked.add(part)
                self.pending.add(part)
            return asks

    def close(self) -> list[Attempt]:
        """Let no lease join any more, and return those to be released; after an interrupt call it again.

        From now on nothing is renewed.
        """
        with self.guard:
            for part in self.parts:
                part.begin_release()
            self.is_open = False  # last: after an interrupt it is open, and closed once more
            leaving = [part for part in self.parts if part.state in RELEASING]
            self.pending.update(leaving)
            return leaving

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.pending <= self.unasked

    @property
    def is_free(self) -> bool:
        """Whether others can have a majority, as far as it depends on us, or no answer is to come."""
        return len(self.held) <= self.spare or self.pending.isdisjoint(self.held)

    @property
    def is_released(self) -> bool:
        """Whether the release has begun, and others can have a majority."""
        return not self.is_open and len(self.held) <= self.spare

    @property
    def failed(self) -> dict[Attempt, BaseException]:
        """The errors of the stores that failed, by attempt."""
        return {part: self.errors[part] for part in self.parts if isinstance(self.errors.get(part), StoreError)}

    @property
    def enough_stood(self) -> bool:
        """Whether a majority of the leases stood until they were released."""
        return sum(map(self.stood, self.parts)) >= self.needed


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
        assert self.ballot is not None  # noqa: S101 - only what was held is lost
        parts, whys = self.ballot.parts, dict[str, str]()
        for part in parts:
            lease, over = part.lease, self.ballot.counts(part) and part.runtime.now() >= part.lease.deadline
            if lease.lost or over:
                whys[part.runtime.store.traits.location] = lease.lost or lease.end(missing)
        if len(whys) == len(parts) and len(set(whys.values())) == 1:
            return next(iter(whys.values()))
        left = sum(self.ballot.stood(part) and part.runtime.store.traits.location not in whys for part in parts)
        reasons = "; ".join(why if where in why else f"at {where}, {why}" for where, why in whys.items())
        return f"{left} of its {len(parts)} leases stood, and it needs {majority(len(parts))}: {reasons}"
