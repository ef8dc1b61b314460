"""The local queue: of all attempts of one process to acquire a key, only the first talks to the store.

Attempts queue first come, first served, over all Lock objects of one store object.  One owner at a time is inside, with
one attempt of each of its Lock objects, since an owner re-enters its own lock.  An attempt is no longer inside when
its lease is over, or when nothing refers to it.  Every call can be made again after an interrupt.
"""

from __future__ import annotations

import weakref
from threading import RLock
from typing import TYPE_CHECKING, Final

from caslock.local import linger
from caslock.protocol.contention import LONGEST_PAUSE
from caslock.protocol.hand_over import HandOver
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HAD

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt


RUN_SECONDS: Final = 0.05
"""Seconds for which tenures of one process follow each other while others want the key: then it lets them go first."""

ALONE_SECONDS: Final = 0.5
"""The same while no other process was seen to want the key: a store that is polled does not show who waits."""

SEEN_SECONDS: Final = 60.0
"""Seconds for which another process that was seen to want the key is taken to want it."""

YIELD_SECONDS: Final = 0.1
"""Seconds in which whoever comes is one of those who follow each other, or lets others go first."""

PAUSE_SHARE: Final = 0.2
"""The longest pause for others, as a share of the time before it: they poll less often the longer they have waited."""

ALONE_SHARE: Final = 0.02
"""The same while no other process was seen to want the key."""


class LocalQueue:
    """The queue of one process for one key of one store object."""

    __slots__ = (
        "__weakref__",
        "_guard",
        "_inside",
        "_left",
        "_others_until",
        "_run_began",
        "_yields",
        "_yields_until",
        "waiting",
    )

    def __init__(self) -> None:
        """Begin as free."""
        self._inside: list[weakref.ref[Attempt]] = []
        self.waiting: list[Attempt] = []
        # Held for a few instructions, and never across an await; reentrant for signal handlers and `__del__`.
        self._guard = RLock()
        self._yields = 0.0  # the longest pause of whoever comes until `_yields_until`
        self._yields_until = 0.0
        self._left = -NEVER  # when the last tenure ended; `NEVER` while others are inside, such as a successor
        self._run_began = 0.0  # since when tenures of this process have followed each other
        self._others_until = 0.0  # other processes want the key, as far as we know

    def enter_alone(self, attempt: Attempt, now: float) -> bool:
        """Go in if nobody is inside or waits, and no other process is to go first; always `leave` afterwards."""
        with self._guard:
            if self._inside or self.waiting or now < self._yields_until:
                return False
            self._inside = [weakref.ref(attempt)]
            return True

    def enter(self, attempt: Attempt, now: float, *, join: bool = False) -> list[Attempt] | None:
        """Go in and return None; else `join` the line, and return who is inside.  Always `leave` afterwards."""
        with self._guard:
            inside = self._admit(now)
            if _may_join(attempt, inside):
                self._let_in(attempt, now)
                return None
            if join:
                self._join(attempt)
            return inside

    async def turn(self, attempt: Attempt, look_at: float, limit: float, *, once: bool = False) -> bool:
        """Wait for our turn until `limit`; return whether `attempt` is inside then.  Always `leave` afterwards.

        `attempt` is already in the line, unless `once`: then wait only until a lingering key is released.  `look_at` is
        when to look again who is inside; see `next_look`.
        """
        runtime, patience, until = attempt.runtime, 0.0, min(look_at, limit)
        if once and not self._join_behind_lingering(attempt, runtime.now()):
            return False
        if linger.lingering:  # only now: who lets a key linger checks whether somebody waits
            self._end_lingering(runtime.now())
        event, now = attempt.turn.event, runtime.now()
        assert event is not None  # noqa: S101 - it is in the line
        while True:
            await event.wait(until - now)
            now, incoming = runtime.now(), attempt.turn.incoming
            first = self.waiting[:1]
            if incoming is not None and not incoming.pending and first != [attempt]:  # our first put was sent, or won't
                break
            with self._guard:
                inside, incoming = self._admit(now), attempt.turn.incoming  # which may have been named meanwhile
                if attempt not in inside:
                    if now >= limit:
                        return False
                    until = min(next_look(inside, now), limit)
                elif incoming is None or not incoming.pending:
                    break
                else:
                    # Our predecessor is to send our first put.  At our deadline we cancel that; if it has already
                    # started, we wait one request timeout for the outcome (its event loop may have ended).
                    patience = patience or min(now + attempt.lease.ttl, max(limit, now) + runtime.patience)
                    if now >= limit and incoming.take():
                        incoming.pending = False
                        return False
                    if now >= patience:
                        incoming.pending = False
                        break
                    until = patience if now >= limit else min(limit, patience)
                del inside  # a waiter must not keep an abandoned hold alive, which is renewed as long as it lives
        attempt.turn.event = None
        return True

    def name_successor(self, attempt: Attempt, now: float) -> None:
        """Choose who gets the key straight from `attempt`, which is about to be released."""
        if not self.waiting:
            return
        with self._guard:
            # Predecessors that are still being released may be inside.
            # Those of a shared owner count, because the record then has other holds than ours.
            inside = [other for other in self._admit(now) if other is attempt or other.shared or not other.ending]
            if attempt.turn.outgoing is not None or inside != [attempt] or not self.waiting:
                return
            if self._run_is_over(attempt, now):
                return
            # In this order, for an interrupt may strike in between: who is handed the key is inside.
            successor = self.waiting[0]
            self._inside = [*self._inside, weakref.ref(successor)]  # nobody follows until both have left
            successor.turn.incoming = attempt.turn.outgoing = HandOver(successor)
            del self.waiting[0]

    def leave(self, attempt: Attempt, now: float) -> None:
        """Let the next one in."""
        with self._guard:
            waited = attempt.contention is not None and attempt.contention.observed.record is not None
            if waited or attempt.woken:
                self._others_until = now + SEEN_SECONDS
            alone = not self.waiting and len(self._inside) == 1 and self._inside[0]() is attempt
            if attempt.woken:  # it is another process's turn
                self._yields, self._yields_until, self._left = RUN_SECONDS, now + YIELD_SECONDS, -NEVER
            # Where waiters queue at the store, only hand-overs keep the key from them.
            elif attempt.lease.began and not (alone and attempt.runtime.queueing is not None):
                self._end_tenure(attempt, now)
            turn = attempt.turn
            if turn.incoming is not None:
                turn.incoming.pending = False
            if alone:
                self._inside, self._left = [], min(self._left, now)  # a successor that has given up is none
                return
            self._inside = [other for other in self._inside if other() is not attempt]
            if turn.event is not None and attempt in self.waiting:
                self.waiting.remove(attempt)
            if turn.outgoing is not None:  # nothing was sent
                outgoing, turn.outgoing = turn.outgoing, None
                outgoing.settle()
            inside = self._staying(now)
            if not inside or inside[0].shared:
                self._admit(now)
            else:  # nobody may join them
                _wake(inside)

    def _join(self, attempt: Attempt) -> None:
        attempt.turn.event = attempt.runtime.event()
        self.waiting.append(attempt)

    def _join_behind_lingering(self, attempt: Attempt, now: float) -> bool:
        """Join the line if only lingering attempts are ahead; return whether that is so."""
        with self._guard:
            joins = not self.waiting and all(each in linger.lingering for each in self._admit(now))
            if joins:
                self._join(attempt)
                self._admit(now)
            return joins

    def inside(self, now: float) -> list[Attempt]:
        """Return the attempts that are inside."""
        with self._guard:
            return self._admit(now)

    def _end_lingering(self, now: float) -> None:
        for attempt in self.inside(now):
            linger.end(attempt)

    def is_wanted(self, now: float) -> bool:
        """Whether somebody waits for the key: in this process, or as far as we know in another one."""
        return bool(self.waiting) or now < self._others_until

    def _staying(self, now: float) -> list[Attempt]:
        """Return those inside that are not over, and that something else refers to."""
        return [
            attempt for other in self._inside if (attempt := other()) is not None and not self._is_over(attempt, now)
        ]

    def _admit(self, now: float) -> list[Attempt]:
        """Remove the attempts that are over, let in and wake those that may enter, and return all that are inside."""
        inside = self._staying(now)
        if len(inside) < len(self._inside):
            self._inside = [weakref.ref(attempt) for attempt in inside]
        while self.waiting:
            first = self.waiting[0]
            if first in inside or self._is_over(first, now):
                del self.waiting[0]
            elif inside:
                break
            else:
                inside.append(first)
                self._let_in(first, now)
        if inside and inside[0].shared:
            for attempt in list(self.waiting):
                if _may_join(attempt, inside):
                    inside.append(attempt)
                    self._let_in(attempt, now)
                    self.waiting.remove(attempt)
        _wake(inside)
        return inside

    def _is_over(self, attempt: Attempt, now: float) -> bool:
        """Whether an attempt needs no place any more, inside or in the line."""
        if attempt.state in HAD and (now >= attempt.lease.deadline or attempt.lease.lost):
            return True
        return attempt.runtime.ended(attempt)

    def _run_is_over(self, attempt: Attempt, now: float) -> bool:
        """Whether this process has had the key for long enough as the tenure of `attempt` began."""
        began = attempt.lease.began
        follows = began - self._left <= YIELD_SECONDS
        return follows and began - self._run_began >= (RUN_SECONDS if now < self._others_until else ALONE_SECONDS)

    def _end_tenure(self, attempt: Attempt, now: float) -> None:
        """Have the next one let other processes go first if this one has had the key for long.

        At a store that does not queue them, they learn of a release late: as they look again, or by a message.
        """
        over, began = self._run_is_over(attempt, now), attempt.lease.began
        self._yields_until = now  # a pause that was due has been made
        if over and attempt.runtime.queueing is None:
            self._yields, self._yields_until = self._pause_after(now - self._run_began, now), now + YIELD_SECONDS
        if over or began - self._left > YIELD_SECONDS:
            self._run_began = now if over else began
        self._left = NEVER if len(self._inside) > 1 else now

    def _pause_after(self, seconds: float, now: float) -> float:
        """Return the longest pause for others after having had the key for so many seconds."""
        return min(seconds * (PAUSE_SHARE if now < self._others_until else ALONE_SHARE), LONGEST_PAUSE)

    def _let_in(self, attempt: Attempt, now: float) -> None:
        # While another Lock object of its owner has the key, a pause would let nobody in.
        attempt.turn.yields = self._yields if now < self._yields_until and not self._inside else 0.0
        self._inside = [*self._inside, weakref.ref(attempt)]


def _wake(inside: list[Attempt]) -> None:
    """Wake those whose turn has come; an interrupt may have kept them from being woken, and twice does no harm."""
    for attempt in inside:
        if attempt.turn.event is not None and not attempt.turn.awaits_hand_over:
            attempt.turn.event.set()


def next_look(inside: list[Attempt], now: float) -> float:
    """Return when to look again.  Nobody reports that a lease has ended, or that an attempt was abandoned."""
    return min(each.lease.deadline if each.state in HAD else now + each.lease.ttl for each in inside)


def _may_join(attempt: Attempt, inside: list[Attempt]) -> bool:
    """Whether `attempt` re-enters what its owner holds through other Lock objects."""
    shared = attempt.shared or not inside  # an adopted hold has the private owner of another Lock object
    return shared and all(
        other.owner == attempt.owner and not other.hold_id.startswith(attempt.siblings) for other in inside
    )
