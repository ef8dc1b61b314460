"""The state of one QuorumLock object, for both APIs: an acquire at each store, side by side, and their votes counted.

At each store it is an ordinary acquire of the protocol: one try, with its retries, its clean-up and its renewals.  It
runs in a thread or task of its own, which goes on when the lock has enough answers and returns.
"""

from __future__ import annotations

import random
import weakref
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final, NoReturn, cast

from caslock.errors import CaslockError, LockLost, NotAcquired, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.local.lock_state import LockState
from caslock.local.reports import warn_of_missing_vote
from caslock.protocol import acquire, release, renew, withdraw
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HELD, LEAVING, OVER, UNSETTLED, WITHDRAWING
from caslock.protocol.quorum import Ballot, QuorumLease, Stage, Vote
from caslock.protocol.writes import FREE_TTL
from caslock.store import Traits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from caslock.local.hold import Holding
    from caslock.local.shared import Shared
    from caslock.protocol.attempt import LockSettings
    from caslock.protocol.exchange import Sent
    from caslock.protocol.record import Observed
    from caslock.protocol.runtime import Event, Runtime

GRACE: Final = 0.02
"""Seconds for which a release waits for the stores that it could do without."""


class Place:
    """The stores of a QuorumLock as one place: where it is, for errors and observers.  It keeps no entries."""

    def __init__(self, all_traits: Sequence[Traits]) -> None:
        self.traits: Traits = Traits(
            location=f"a quorum of {', '.join(traits.location for traits in all_traits)}",
            fences=False,
            request_timeout=max(traits.request_timeout for traits in all_traits),
        )

    def _refuse(self, *_: object) -> NoReturn:
        message = f"{self.traits.location} keeps no entries: ask one of its stores"
        raise StoreError(message)

    get: Callable[..., NoReturn] = _refuse
    put_if_version: Callable[..., NoReturn] = _refuse
    invalidate: Callable[..., NoReturn] = _refuse


_places: weakref.WeakValueDictionary[frozenset[Shared], Place] = weakref.WeakValueDictionary()


def place_of(nodes: Sequence[Runtime]) -> Place:
    """Return the one place of these stores in this process, in whatever order they are given."""
    shared = frozenset(cast("Shared", node.shared) for node in nodes)
    return _places.get(shared) or _places.setdefault(shared, Place([node.store.traits for node in nodes]))


class QuorumState(LockState):
    """The state of one QuorumLock object.  Its attempt and lease are those of the lock; the votes have their own."""

    __slots__ = ("_asked", "_events", "_nodes")

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings, nodes: Sequence[Runtime]) -> None:
        super().__init__(runtime, key, settings)
        self._nodes = tuple(nodes)

    def _begin(self) -> None:
        # The newest vote of each store.  Weakly, for a vote that an interrupt leaves behind must not be renewed.
        self._asked: weakref.WeakValueDictionary[int, Vote] = weakref.WeakValueDictionary()
        self._events: list[Event] = []  # of those who wait for votes
        super()._begin()

    def _attempt(self, kind: type[Attempt] | None = None) -> Attempt:
        attempt = super()._attempt(kind)
        lease = attempt.lease
        attempt.lease = QuorumLease(lease.ttl, lease.max_hold, lease.auto_renew)
        return attempt

    def _part(self, node: Runtime, hold: str, attempt: Attempt) -> Attempt:
        """Return an acquire at one store."""
        lease = attempt.lease
        began, now = lease.began, node.now()
        rest = lease.max_hold - (now - began if began else 0.0)
        ttl = max(min(lease.ttl, rest), 0.0)
        settings = self.settings._replace(ttl=ttl, max_hold=rest)
        terms = self._terms._replace(runtime=node, settings=settings)
        part = Attempt(terms, hold, self._stamps, node.mutex(), attempt.caller)
        part.limit = now  # it is one try
        part.after_renewal = partial(self._fill, attempt)
        return part

    # Acquire

    def begin_put(self, hold: Holding) -> None:
        """There is no single put: each store is asked."""

    def begin_removal(self, hold: Holding) -> None:
        """There is no single removal."""

    async def _ask(self, attempt: Attempt, timeout: float | None, first: object) -> bool:
        """Try until a majority of leases is held, or `timeout` seconds have passed."""
        del first
        began = now = self.runtime.now()
        limit = NEVER if timeout is None else began + timeout
        splits = 0
        while not (ballot := await self._ballot(attempt)).won:
            before, now = now, self.runtime.now()
            if now >= limit:
                return False
            pause = attempt.contend().pause()
            # When contenders have split the votes, one of them has to be first next time by more than a round takes.
            splits = splits + 1 if any(vote.attempt.lease.fence for vote in ballot.votes) else 0
            if splits and attempt.terms.settings.poll is None:
                pause += random.uniform(0.0, (now - before) * 2 ** min(splits, 6))  # noqa: S311 - no secret
            await self.runtime.sleep(max(0.0, min(pause, limit - now)))
            now = self.runtime.now()
        return True

    async def _ballot(self, attempt: Attempt) -> Ballot:
        """Ask all stores at once, and go on as soon as a majority has granted a lease, or can't any more."""
        now = self.runtime.now
        hold = f"{self._nonce}.{next(self._numbers)}"
        parts = [self._part(node, hold, attempt) for node in self._nodes]
        cast("QuorumLease", attempt.lease).ballot = ballot = Ballot(parts, RLock(), self._events)
        patience = now() + self.runtime.store.traits.request_timeout
        for index, vote in enumerate(ballot.votes):
            self._begin_vote(index, attempt, ballot, vote)
        if not await self._until(lambda: ballot.is_decided(now()), patience):
            ballot.drop_queued()
            if not await self._until(lambda: ballot.is_decided(now()), patience + 2 * self.runtime.patience):
                for vote in ballot.votes:
                    if vote.stage is Stage.ASKED:
                        vote.error = OutcomeUnknown("no answer in time")
        if ballot.win(now()):
            part = next(vote.attempt for vote in ballot.votes if vote.counts)
            attempt.lease.record, attempt.lease.began = part.lease.record, now()
            return ballot
        await self._give_back(ballot)
        self._judge(attempt, ballot)
        return ballot

    def _begin_vote(self, index: int, attempt: Attempt, ballot: Ballot, vote: Vote, before: Vote | None = None) -> None:
        """Ask one store, but not before it has answered what this lock has sent it earlier."""
        earlier = self._asked.get(index, vote)
        if earlier is not before and not (earlier.is_idle or earlier.attempt.runtime.ended(earlier.attempt)):
            earlier.then[:] = [partial(self._begin_vote, index, attempt, ballot, vote, before)]
            if earlier.is_idle:  # it has ended at this very moment, and may not have seen that
                self._go_on(earlier)
        elif ballot.is_open or before is not None:
            self._asked[index] = vote
            vote.attempt.runtime.start(partial(self._vote, attempt, ballot, vote, before))

    @staticmethod
    def _go_on(vote: Vote) -> None:
        """Ask the store again, if that has waited for the end of this vote."""
        try:
            then = vote.then.pop()  # in one step: one thread takes it
        except IndexError:
            return
        then()

    async def _vote(self, attempt: Attempt, ballot: Ballot, vote: Vote, before: Vote | None = None) -> None:
        """Ask one store; `before` is its lost vote, of which nothing must be left."""
        if before is not None:
            await self._leave(ballot, before)
            if before.stage is not Stage.OVER:
                ballot.end(vote, before.error)
        if not ballot.begin(vote):
            return
        failure = await _failure_of(self._take(attempt, ballot, vote))
        if failure is not None:
            failure = await _failure_of(withdraw.give_up(vote.attempt.runtime, vote.attempt, failure)) or failure
        if failure is None:
            ballot.tell()
        else:
            ballot.end(vote, failure)  # raised where the votes are counted
            if isinstance(failure, StoreError):
                warn_of_missing_vote(vote.attempt, failure)
        self._go_on(vote)

    async def _take(self, attempt: Attempt, ballot: Ballot, vote: Vote) -> None:
        part = vote.attempt
        if not await acquire.acquire(part.runtime, part, 0.0):
            raise NotAcquired("held by another")
        part.lease.on_loss.append(partial(self._part_lost, attempt, ballot))
        if not ballot.join(vote, part.runtime.now()):
            raise NotAcquired("too late")
        part.runtime.watch(part)

    def _judge(self, attempt: Attempt, ballot: Ballot) -> None:
        """Raise an error if too few stores can serve us; else note who holds the key."""
        for vote in ballot.votes:
            if vote.error is not None and not isinstance(vote.error, CaslockError):
                raise vote.error
        failed = ballot.failed
        if len(failed) > ballot.spare:
            unknown = sum(isinstance(vote.error, OutcomeUnknown) for vote in failed)
            rest = f"A request that may still be applied expires within {attempt.lease.ttl:g} s after that"
            rest = rest if unknown else "Nothing was left behind"
            error = self._too_few(f"could not acquire lock {self.key!r}", failed, rest)
            if unknown > ballot.spare:
                raise OutcomeUnknown(str(error)) from error.__cause__
            raise error
        for vote in ballot.votes:
            met = vote.attempt.contention
            if met is not None:
                attempt.contend().meet(met.observed, self.runtime.now())
                return

    def _too_few(self, what: str, failed: Sequence[Vote], rest: str) -> StoreError:
        """Return an error that says which stores have failed, and why."""
        reasons: list[str] = []
        errors = [vote.error or StoreUnavailable("no answer in time") for vote in failed]
        for vote, error in zip(failed, errors, strict=True):
            location = vote.attempt.runtime.store.traits.location
            text = str(error.__cause__ if isinstance(error.__cause__, StoreError) else error)
            reasons.append(text if location in text else f"{location}: {text}")
        no_answer = any(isinstance(error, StoreUnavailable) for error in errors)
        kind = "did not answer" if no_answer else "refused"
        message = f"{what}, because {len(failed)} of {len(self._nodes)} stores {kind}: {'; '.join(reasons)}. {rest}"
        failure = StoreUnavailable(message) if no_answer else StoreError(message)
        failure.__cause__ = next(iter(errors), None)
        return failure

    async def _until(self, done: Callable[[], bool], limit: float) -> bool:
        """Wait until the votes are `done`; False: they were not at the moment `limit`."""
        event = self.runtime.event()
        self._events.append(event)
        try:
            while not done():
                left = limit - self.runtime.now()
                if left <= 0:
                    return False
                await event.wait(left)
            return True
        finally:
            self._events.remove(event)

    # Release

    async def _give_back(self, ballot: Ballot) -> None:
        """Release what is held everywhere; return when others can have a majority, or no answer is to come."""
        for vote in ballot.close():
            vote.attempt.runtime.start(partial(self._leave, ballot, vote))
        now, traits = self.runtime.now(), self.runtime.store.traits
        if not await self._until(lambda: ballot.is_idle, now + GRACE):
            await self._until(lambda: ballot.is_free, now + 3 * traits.request_timeout)

    async def _leave(self, ballot: Ballot, vote: Vote) -> None:
        """Release one lease; if there is no answer, go on in the background."""
        if not ballot.leave(vote):
            return
        part = vote.attempt
        failure = await _failure_of(release.release(part.runtime, part))
        stage = Stage.OVER if failure is None or isinstance(failure, LockLost) else Stage.HELD
        if part.state is not OVER:
            part.runtime.in_background(partial(release.release_quietly, part.runtime, part), FREE_TTL)
        ballot.end(vote, failure, stage=stage)
        self._go_on(vote)

    async def _withdraw(self, attempt: Attempt, error: BaseException) -> None:
        """Leave nothing of a failed or interrupted acquire behind."""
        attempt.state = WITHDRAWING
        ballot = cast("QuorumLease", attempt.lease).ballot
        if ballot is not None and (ballot.is_open or ballot.count(Stage.LEAVING)):
            await self._give_back(ballot)
            left = [vote for vote in ballot.votes if vote.stage in {Stage.HELD, Stage.LEAVING}]
            if left:
                where = ", ".join(vote.attempt.runtime.store.traits.location for vote in left)
                error.add_note(
                    f"The lease of {self.key!r} at {where} is released in the background; "
                    f"it expires within {attempt.lease.ttl:g} s."
                )
        attempt.state = OVER

    async def leave(self, hold: Holding, limit: float, removed: Observed | Sent | None) -> None:
        """See `LockState.leave`; each store has its own limit."""
        del limit, removed
        if not self._leave_level(hold):
            return
        attempt = hold._attempt
        lease = cast("QuorumLease", attempt.lease)
        ballot = cast("Ballot", lease.ballot)
        with ballot.guard:  # another thread may release it as well, or have done so
            if attempt.state is not OVER:
                attempt.state = LEAVING
            if ballot.is_open:
                ballot.in_time = not lease.lost and self.runtime.now() < lease.deadline
        await self._give_back(ballot)
        lost = not ballot.in_time or ballot.kept < ballot.needed
        loss = attempt.lose(lease.end("released")) if lost else None
        with ballot.guard:
            if attempt.state is not OVER:
                attempt.state = LEAVING  # from UNSETTLED, if the release of another thread got no answer
                attempt.state = OVER if ballot.is_released or lost else UNSETTLED
        self._end(hold)
        if loss is not None:
            raise loss
        if not ballot.is_released:
            ends = f"Call release() again; otherwise its leases expire within {lease.ttl:g} s"
            failed = [vote for vote in ballot.votes if vote in ballot.failed or vote.stage is Stage.LEAVING]
            raise self._too_few(f"could not release lock {self.key!r}", failed, ends)

    # Renewal

    def _watch(self, attempt: Attempt) -> None:
        """Each lease is watched by itself; tell what was lost before there was a hold."""
        self._part_lost(attempt, cast("Ballot", cast("QuorumLease", attempt.lease).ballot))

    def _part_lost(self, attempt: Attempt, ballot: Ballot) -> None:
        """After the loss of one lease, try to win it back; if no majority is left, tell the loss of the lock."""
        lease = attempt.lease
        if not (attempt.state is HELD and ballot.is_open):
            return
        if self.runtime.now() < lease.deadline:
            if lease.auto_renew:
                self._fill(attempt)
            return
        for vote in ballot.votes:
            vote.attempt.begin_release()  # the others are not renewed any more
            vote.attempt.lease.reported = True
        attempt.lose(lease.end("renewed"))

    def _fill(self, attempt: Attempt) -> None:
        """Ask the stores again that have no lease of ours: after the loss of one, and each renewal of another one."""
        ballot = cast("Ballot", cast("QuorumLease", attempt.lease).ballot)
        if attempt.lease.lost or self.runtime.now() >= ballot.deadline:
            return
        hold = f"{self._nonce}.{next(self._numbers)}"
        for index, node in enumerate(self._nodes):
            if ballot.votes[index].stage is Stage.OVER or ballot.votes[index].attempt.lease.lost:
                part = self._part(node, hold, attempt)
                before = ballot.replace(index, part) if part.lease.ttl else None
                if before is not None:
                    self._begin_vote(index, attempt, ballot, ballot.votes[index], before)

    async def hand_over(self, hold: Holding) -> str:
        """Refuse: no ticket could be taken at all the stores at once."""
        del hold
        message = f"a hold of a QuorumLock is not handed over: {self.key!r} has a lease at each of its stores"
        raise RuntimeError(message)

    async def renew(self, attempt: Attempt, ttl: float | None) -> None:
        """Replace the leases; raises `StoreUnavailable` unless a majority was replaced."""
        renew.check(attempt, self.runtime.now())
        lease = cast("QuorumLease", attempt.lease)
        ballot, before = cast("Ballot", lease.ballot), lease.ttl
        lease.ttl = before if ttl is None else ttl  # also of what is won back meanwhile
        held = [vote for vote in ballot.votes if vote.counts]
        answered: list[Vote] = []
        for vote in held:
            vote.attempt.runtime.start(partial(self._extend, ballot, vote, ttl, answered))

        def enough() -> bool:
            return extended() >= ballot.needed or len(answered) == len(held)

        def extended() -> int:
            return sum(vote.error is None for vote in answered)

        now, traits = self.runtime.now(), self.runtime.store.traits
        if not await self._until(lambda: len(answered) == len(held), now + GRACE):
            await self._until(enough, now + 3 * traits.request_timeout)
        if extended() < ballot.needed:
            lease.ttl = before
            renew.check(attempt, self.runtime.now())
            failed = [vote for vote in held if vote not in answered or vote.error is not None]
            raise self._too_few(f"could not extend lock {self.key!r}", failed, "The hold lasts no longer than before")
        self._fill(attempt)

    async def _extend(self, ballot: Ballot, vote: Vote, ttl: float | None, answered: list[Vote]) -> None:
        """Replace one lease."""
        part = vote.attempt
        vote.error = None
        try:
            await renew.renew(part.runtime, part, ttl)
        except (CaslockError, ValueError) as error:
            vote.error = error
        finally:
            answered.append(vote)
            ballot.tell()


async def _failure_of(work: Awaitable[object]) -> BaseException | None:
    """Await `work`, and return what it raises, an interrupt or a cancellation included; None: nothing."""
    try:
        await work
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the caller decides
        return error
    return None
