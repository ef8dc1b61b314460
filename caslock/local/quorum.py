"""The state of one QuorumLock object, for both APIs: one acquire at each store, in parallel, and the majority rule.

At each store it is an ordinary acquire of the protocol: one try, with its retries, its clean-up and its renewals.  It
runs in a thread or task of its own, which goes on when the lock has enough answers and returns.
"""

from __future__ import annotations

import random
import weakref
from functools import partial
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, cast

from caslock.errors import CaslockError, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.local import vote
from caslock.local.lane import Lane
from caslock.local.lock_state import LockState
from caslock.protocol import renew
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HELD, LEAVING, OVER, UNSETTLED, WITHDRAWING
from caslock.protocol.quorum import Ballot, QuorumLease
from caslock.store import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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


class Side(NamedTuple):
    """What one event loop, or all threads together, have of a lock: a loop that stops keeps nothing from the others."""

    number: int
    """A part of the hold ids at the stores: to each side, the leases of the others are not its own."""
    lanes: dict[Runtime, Lane]


def _new_side(numbers: Iterator[int], nodes: Iterable[Runtime]) -> Side:
    return Side(next(numbers), {node: Lane() for node in nodes})


class QuorumState(LockState):
    """The state of one QuorumLock object.  Its attempt and lease are those of the lock; each store has its own."""

    __slots__ = ("__weakref__", "_events", "_nodes", "_side")

    def __init__(self, runtime: Runtime, key: str, settings: LockSettings, nodes: Sequence[Runtime]) -> None:
        super().__init__(runtime, key, settings)
        self._nodes = tuple(nodes)

    def _begin(self) -> None:
        self._events: list[Event] = []  # of those who wait for answers
        self._side: Callable[[], Side] = self.runtime.per_loop(partial(_new_side, count(1), self._nodes))
        super()._begin()

    def _attempt(self, kind: type[Attempt] | None = None) -> Attempt:
        attempt = super()._attempt(kind)
        lease = attempt.lease
        attempt.lease = QuorumLease(lease.ttl, lease.max_hold, lease.auto_renew)
        return attempt

    def _siblings(self, side: Side) -> str:
        """Return the beginning of the hold ids at the stores: see `Attempt.siblings`."""
        return f"{self._nonce}.{side.number}."

    def _part(self, node: Runtime, hold_id: str, attempt: Attempt) -> Attempt:
        """Return an acquire at one store."""
        lease = attempt.lease
        began, now = lease.began, node.now()
        rest = lease.max_hold - (now - began if began else 0.0)
        ttl = max(min(lease.ttl, rest), 0.0)
        settings = self.settings._replace(ttl=ttl, max_hold=rest)
        terms = self._terms._replace(runtime=node, settings=settings)
        part = Attempt(terms, hold_id, self._stamps, node.mutex(), attempt.caller)
        part.limit = now  # it is one try
        part.lease.on_loss.append(_weakly(QuorumState._check_majority, self, attempt))
        part.after_renewal = _weakly(QuorumState._fill, self, attempt)
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
            # When contenders have split the leases, one of them has to be first next time by more than a round takes.
            splits = splits + 1 if any(part.lease.fence for part in ballot.parts) else 0
            if splits and attempt.terms.settings.poll is None:
                pause += random.uniform(0.0, (now - before) * 2 ** min(splits, 6))  # noqa: S311 - no secret
            await self.runtime.sleep(max(0.0, min(pause, limit - now)))
            now = self.runtime.now()
        return True

    async def _ballot(self, attempt: Attempt) -> Ballot:
        """Ask all stores at once, and go on as soon as a majority has granted a lease, or can't any more."""
        now, side = self.runtime.now, self._side()
        hold_id = f"{self._siblings(side)}{next(self._numbers)}"
        parts = [self._part(node, hold_id, attempt) for node in self._nodes]
        cast("QuorumLease", attempt.lease).ballot = ballot = Ballot(parts, RLock(), self._events)
        patience = now() + self.runtime.store.traits.request_timeout
        for part in parts:
            side.lanes[part.runtime].do(part, partial(vote.ask, weakref.ref(ballot)))
        if not await self._until(lambda: ballot.is_decided(now()), patience):
            ballot.give_up_unasked()
            if not await self._until(lambda: ballot.is_decided(now()), patience + 2 * self.runtime.patience):
                for part in tuple(ballot.pending):
                    ballot.errors[part] = OutcomeUnknown("no answer in time")
        if ballot.win(now()):
            attempt.lease.record = next((part.lease.record for part in ballot.held), None)
            attempt.lease.began = now()
            return ballot
        await self._give_back(ballot)
        self._judge(attempt, ballot)
        return ballot

    def _judge(self, attempt: Attempt, ballot: Ballot) -> None:
        """Raise an error if too few stores can serve us; else note who holds the key."""
        for error in tuple(ballot.errors.values()):
            if not isinstance(error, CaslockError):
                raise error
        failed = ballot.failed
        if len(failed) > ballot.spare:
            unknown = sum(isinstance(error, OutcomeUnknown) for error in failed.values())
            rest = f"A request that may still be applied expires within {attempt.lease.ttl:g} s after that"
            rest = rest if unknown else "Nothing was left behind"
            failure = self._too_few(attempt, "acquire", failed, rest)
            if unknown > ballot.spare:
                raise attempt.concerns(OutcomeUnknown(str(failure))) from failure.__cause__
            raise failure
        for part in ballot.parts:
            met = part.contention
            if met is not None:
                attempt.contend().meet(met.observed, self.runtime.now())
                return

    def _too_few(
        self, attempt: Attempt, action: str, failed: Mapping[Attempt, BaseException], outcome: str
    ) -> StoreError:
        """Return an error that says which stores have failed, and why; `outcome` says what is certain now."""
        reasons: list[str] = []
        for part, error in failed.items():
            location = part.runtime.store.traits.location
            text = str(error.__cause__ if isinstance(error.__cause__, StoreError) else error)
            reasons.append(text if location in text else f"{location}: {text}")
        no_answer = any(isinstance(error, StoreUnavailable) for error in failed.values())
        kind = "did not answer" if no_answer else "refused"
        few = f"{len(failed)} of {len(self._nodes)} stores {kind}: {'; '.join(reasons)}"
        message = f"could not {action} lock {self.key!r}, because {few}. {outcome}"
        failure = StoreUnavailable(message) if no_answer else StoreError(message)
        failure.__cause__ = next(iter(failed.values()), None)
        return attempt.concerns(failure)

    async def _until(self, done: Callable[[], bool], limit: float) -> bool:
        """Wait until `done()` is true.  Returns False if it is not at the moment `limit`."""
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
        for part in ballot.close():
            self._side().lanes[part.runtime].do(part, partial(vote.leave, ballot))
        now, traits = self.runtime.now(), self.runtime.store.traits
        if not await self._until(lambda: ballot.is_idle, now + GRACE):
            await self._until(lambda: ballot.is_free, now + 3 * traits.request_timeout)

    async def _withdraw(self, attempt: Attempt, error: BaseException) -> None:
        """Leave nothing of a failed or interrupted acquire behind."""
        attempt.state = WITHDRAWING
        ballot = cast("QuorumLease", attempt.lease).ballot
        if ballot is not None and (ballot.is_open or ballot.held):
            await self._give_back(ballot)
            if ballot.held:
                where = ", ".join(part.runtime.store.traits.location for part in ballot.held)
                error.add_note(
                    f"The lease of {self.key!r} at {where} is released in the background; "
                    f"it expires within {attempt.lease.ttl:g} s."
                )
        attempt.state = OVER

    async def finish_release(self, hold: Holding, limit: float, removed: Observed | Sent | None) -> None:
        """See `LockState.finish_release`; each store has its own limit."""
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
        lost = not (ballot.in_time and ballot.enough_stood)
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
            silent = {part: StoreUnavailable("no answer in time") for part in ballot.held if part in ballot.pending}
            raise self._too_few(attempt, "release", ballot.failed | silent, ends)

    # Renewal

    def _watch(self, attempt: Attempt) -> None:
        """Each lease is watched by itself; report a loss that came before there was a hold."""
        self._check_majority(attempt)

    def _check_majority(self, attempt: Attempt) -> None:
        """After the loss of one lease, report the loss of the lock if no majority is left."""
        lease = cast("QuorumLease", attempt.lease)
        ballot = cast("Ballot", lease.ballot)
        if lease.lost or not (attempt.state is HELD and ballot.is_open) or self.runtime.now() < lease.deadline:
            return
        for part in ballot.parts:
            part.begin_release()  # the others are not renewed any more
            part.lease.reported = True
        attempt.lose(lease.end("renewed"))

    def _fill(self, attempt: Attempt) -> None:
        """After the renewal of a lease, ask the stores again that hold none of ours: in the loop that has acquired."""
        ballot = cast("Ballot", cast("QuorumLease", attempt.lease).ballot)
        if attempt.lease.lost or self.runtime.now() >= ballot.deadline:
            return
        side = self._side()
        if ballot.parts[0].siblings != self._siblings(side):  # it is extended in another event loop, which may end
            return
        hold_id = f"{self._siblings(side)}{next(self._numbers)}"
        for index in ballot.vacant:
            part = self._part(self._nodes[index], hold_id, attempt)
            if part.lease.ttl and ballot.replace(index, part):
                side.lanes[part.runtime].do(part, partial(vote.ask, weakref.ref(ballot)))

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
        lease.ttl = before if ttl is None else ttl  # also of what is asked for meanwhile
        held = ballot.held
        answers: dict[int, BaseException | None] = {}  # by place in `held`
        for number, part in enumerate(held):
            answer = partial(answers.__setitem__, number)
            part.runtime.start(partial(vote.extend, weakref.ref(ballot), part, ttl, answer))

        def extended() -> int:
            return list(answers.values()).count(None)

        def enough() -> bool:
            return extended() >= ballot.needed or len(answers) == len(held)

        now, traits = self.runtime.now(), self.runtime.store.traits
        if not await self._until(lambda: len(answers) == len(held), now + GRACE):
            await self._until(enough, now + 3 * traits.request_timeout)
        if extended() < ballot.needed:
            lease.ttl = before
            renew.check(attempt, self.runtime.now())
            silent = StoreUnavailable("no answer in time")
            said = {part: answers.get(number, silent) for number, part in enumerate(held)}
            none = StoreUnavailable("there is no lease")
            said |= {part: none for part in ballot.parts if part not in said}
            failed = {part: error for part, error in said.items() if error is not None}
            for error in failed.values():
                if not isinstance(error, (CaslockError, ValueError)):
                    raise error
            raise self._too_few(attempt, "extend", failed, "Its deadline is no later than before")
        self._fill(attempt)


def _weakly(method: Callable[[QuorumState, Attempt], None], state: QuorumState, attempt: Attempt) -> Callable[[], None]:
    """Return what calls a method with `attempt` if both are still there: a lease must not keep its lock alive.

    Not by `weakref.WeakMethod`: several weak references with callbacks to one object can crash Python 3.11, if the
    garbage collector runs just as that object ends.
    """
    known_state, known_attempt = weakref.ref(state), weakref.ref(attempt)

    def call() -> None:
        if (state := known_state()) and (attempt := known_attempt()):
            method(state, attempt)

    return call
