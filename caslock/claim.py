"""The law of this file: a claim is believed only from a record that was seen to stand, and never longer than its lease.

A claim decides and remembers; it asks nobody.  What it may write over, what it would leave behind and how long it may
believe are functions of what stands and of what it has sent.

Three facts carry the proof.  Each write bears a mark of its own (`Record.write`), so an answer tells which of several
requests has landed.  Versions never repeat, so a late request that expects a version which has passed does nothing.
Only a late put that expects *absence* can come back from the dead, and a free record keeps it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from caslock.errors import LockLost
from caslock.record import FORM, MAX_HOLDS, Record, Stamp
from caslock.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

FREE_TTL: Final = 60.0
"""Seconds that a free record stands: longer than any lost packet lives."""

NEVER: Final = float("inf")


class Retry(NamedTuple):
    """How many more times a read or a write is sent that got no answer.

    Once usually does it; many make an avalanche.
    """

    get: int = 1
    put: int = 1


Standing = tuple[int, Record | None]
"""What stands: its version (`ABSENT`: nothing) and its record."""

NOBODY: Final[Standing] = (ABSENT, None)


class Event(Protocol):
    """Something that one thread or task waits for."""

    @property
    def alive(self) -> bool:
        """Whether who waits for it can still be woken."""
        ...

    async def wait(self, timeout: float | None) -> None:
        """Return when it has been set since it was last waited for, or after `timeout` seconds (None: never)."""
        ...

    def set(self) -> None:
        """Wake who waits; any thread may do it, and again."""
        ...


class Mutex(Protocol):
    """Lets one renewal, extension or release of a claim go on at a time."""

    def acquire(self, *, blocking: Literal[False]) -> bool:
        """Take it, if nobody has it."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...

    async def __aenter__(self) -> object:
        """Wait until nobody has it, and take it."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""
        ...


First = tuple[Stamp, tuple[str, str, str]]
"""What a claim's records say for people, and `opening`."""


class Visit(Protocol):
    """Something that is to happen later."""

    def cancel(self) -> None:
        """Have it not happen."""
        ...


class Send(NamedTuple):
    """A write that is under way, or got no answer: it may stand, or land yet."""

    expected: int
    at: float
    lease: float


class Terms(NamedTuple):
    """What all claims of a Lock object have in common."""

    key: str
    owner: str
    ttl: float
    """Seconds of every lease."""
    auto_renew: bool
    max_hold: float
    """Seconds after which it is renewed no more."""
    retry: Retry
    shared: bool
    """Whether other Lock objects may have the same owner."""
    ended: Callable[[Claim], bool]
    """Tells whether what ran a claim is no more (an event loop that was closed)."""


class Claim:
    """One acquire call's claim to a key, from its first put until its last release.

    What most claims never need stands on the class: a claim is made for every acquire.
    """

    lease: float  # of the write that is sent now
    record: Record | None = None  # where we last saw ourselves stand
    version = ABSENT
    fence = 0
    began = 0.0
    deadline = -NEVER  # until then, and no longer, we believe that we hold the key
    due = NEVER  # when to renew, or where no renewal is due any more, the deadline
    rival: Record | None = None  # who stood in the way
    rival_version = ABSENT
    rival_fence = 0  # of the tenure in which we have begun to pause
    crowd: frozenset[tuple[str, int]] = frozenset()  # the processes that had the key while we paused
    rival_seen = 0.0  # when that version was first seen to stand
    lost = ""  # why, once it is lost
    ending = False  # a release has begun: no more renewals
    unanswered = False  # a write went without an answer
    left_in_time = False  # and it was a release, sent before the deadline
    woke = False  # its release has woken somebody who waits at the store
    polite = False  # this process has woken somebody at the store, or had the key for long: others go first
    told = False  # of its loss
    settled = True  # nothing of it can stand that nobody knows of: a clean-up has come to its end
    writes = 0
    event: Event | None = None  # what wakes it in the queue of its process
    promised = False  # who holds the key before us, in this process, writes our first put
    heir: Claim | None = None  # the claim that we have promised that
    given: Standing | None = None  # what stood after a first put that was sent for us
    parted: Standing | None = None  # what stood after a removal that was sent for us
    pause: Callable[[], float] | None = None  # gives the seconds before the next try
    visit: Visit | None = None  # of its keeper

    def __init__(
        self,
        terms: Terms,
        hold: str,
        first: First,
        mutex: Mutex,
        by: object,
    ) -> None:
        """Begin with nothing sent.

        Args:
            terms: what all claims of a Lock object have in common.
            hold: ``<nonce of the Lock object>.<number>``: the proof that a record is this attempt's.
            first: what its records say for people, and how the first one is written.
            mutex: lets one renewal, extension or release at a time.
            by: the thread or task that acquires.

        """
        self.key, self.owner, self.ttl, self.auto_renew, self.max_hold, self.retry, self.shared, self.ended = terms
        self.lease = self.ttl
        self.hold = hold
        self.stamp, self._opening = first
        self.mutex = mutex
        self.by = by
        self.on_loss: list[Callable[[], object]] = []
        self.levels: list[object] = []  # the open holds, by re-entry; the newest is the last
        self.sends: dict[str, Send] = {}  # by their mark

    @property
    def siblings(self) -> str:
        """What the hold ids of the same Lock object begin with."""
        return self.hold[: self.hold.index(".") + 1]

    def mark(self) -> str:
        """What tells our next write from all other writes."""
        self.writes += 1
        return f"{self.hold}.{self.writes}"

    def wrote(self, record: Record, first: int) -> bool:
        """Whether `record` is one of our writes after number `first`."""
        hold, _, number = record.write.rpartition(".")
        return hold == self.hold and int(number) > first

    def first(self, now: float, expected: int = ABSENT) -> tuple[Record, bytes]:
        """Give the put that begins a tenure where nothing is to stay, as `bid` and `request.sent` have it."""
        self.writes += 1
        hold = self.hold
        write = f"{hold}.{self.writes}"
        lease = self.ttl
        self.sends[write] = _new(Send, (expected, now, lease))
        record = _new(Record, (self.owner, (hold,), lease, write, None, 0.0, *self.stamp, FORM))
        before, between, after = self._opening
        return record, f"{before}{hold}{between}{write}{after}".encode()

    def stands_in(self, record: Record | None) -> bool:
        """Whether this very attempt is among the holds."""
        return record is not None and self.hold in record.holds

    def others(self, record: Record) -> tuple[str, ...]:
        """The owner's holds that other Lock objects have.

        A Lock object has one live hold at a time: all the other ids that begin with its nonce are dead, or echoes of
        requests that arrived late.
        """
        if record.holds == (self.hold,):
            return ()
        siblings = self.siblings
        return tuple([hold for hold in record.holds if not hold.startswith(siblings)])

    def may_take(self, record: Record | None) -> bool:
        """Whether what stands is ours to write over."""
        if record is None or record.free:
            return True
        return not record.foreign and record.owner == self.owner and len(self.others(record)) < MAX_HOLDS

    def bid(self, standing: Record | None, version: int) -> Record:
        """What we would have stand in place of `standing`, which we may take."""
        if standing is None:
            return self._tenure(0.0)
        if standing.free:
            return self._tenure(standing.ttl)
        others = self.others(standing)
        if not others and not self.stands_in(standing):
            return self._tenure(FREE_TTL)  # over an echo, whose claim may have sent more than this
        # A lease is never made shorter than what another hold of this owner may believe.
        ttl = max(self.lease, standing.ttl) if others else self.lease
        holds = (*others, self.hold)
        late = standing.late if set(standing.holds) <= set(holds) else FREE_TTL  # an echo among them is dropped
        return standing._replace(holds=holds, ttl=ttl, write=self.mark(), fence=fence_of(standing, version), late=late)

    def _tenure(self, late: float) -> Record:
        """Begin a tenure: its fence will be the version."""
        holds = (self.hold,)
        return Record(self.owner, holds, self.lease, self.mark(), None, late, *self.stamp)

    def stand(self, record: Record, version: int, now: float) -> None:
        """Take note that we stand in `record`: the one place where belief grows."""
        fence = version if record.fence is None else record.fence  # as `fence_of` has it
        if fence != self.fence:  # another tenure than one that an acquire has told nobody of yet
            self.began, self.fence = now, fence
        self.record, self.version = record, version
        landed = self.sends.pop(record.write, None)
        if landed is None:  # another hold of our owner has written it: our lease is no shorter for that
            return
        end = landed.at + landed.lease  # the ttl counts from before the request, and from that which has landed
        self.deadline = end - margin(landed.lease)
        renews = self.auto_renew and end < self.began + self.max_hold
        self.due = landed.at + landed.lease / 3 if renews else self.deadline

    def fall(self) -> None:
        """Take note that we do not stand, or stand no more, while still trying: a later success is another tenure."""
        self.record, self.version, self.fence, self.began, self.deadline = None, ABSENT, 0, 0.0, -NEVER

    def meet(self, rival: Record | None, version: int, now: float) -> None:
        """Take note of who stands in the way."""
        if version != self.rival_version:
            self.rival_version, self.rival_seen = version, now
        self.rival = rival

    def may_land(self, version: int) -> bool:
        """Whether a write of ours that expects `version` is still under way."""
        # A copy, for whoever hands over to us takes note of its answer in its own thread.
        return bool(self.sends) and any(send.expected == version for send in list(self.sends.values()))

    def forget_dead(self, now: float) -> None:
        """Drop the writes that are too old to be still under way."""
        if self.sends:
            self.sends = {mark: send for mark, send in self.sends.items() if send.at > now - FREE_TTL}

    def farewell(self, standing: Record, version: int, now: float) -> Record | None:
        """What to leave behind: others' holds or a free record as they stand, else a free record or nothing."""
        others = self.others(standing) if self.stands_in(standing) else standing.holds
        if standing.free:
            return standing._replace(write=self.mark())
        lost_put = self.may_land(ABSENT)
        if others:
            late = FREE_TTL if lost_put else standing.late
            return standing._replace(holds=others, write=self.mark(), fence=fence_of(standing, version), late=late)
        rest = FREE_TTL if lost_put else standing.late - (now - (self.began or now))
        return self.free(rest) if rest > 0 else None

    def leaves_nothing(self, now: float) -> bool:
        """Whether it stands, and its release is a removal."""
        record = self.record
        if record is not None and record.holds == (self.hold,) and not record.late and not self.sends:
            return True  # as `farewell` has it, in fewer steps
        return record is not None and self.farewell(record, self.version, now) is None

    def free(self, ttl: float) -> Record:
        """Nobody holds the key, and for `ttl` seconds nothing that expects absence can land."""
        return Record(self.owner, (), ttl, self.mark(), None, 0.0, *self.stamp)

    def lose(self, why: str) -> LockLost:
        """Lost is lost, for every level of re-entry, until a new acquire with a new hold id."""
        self.lost = self.lost or why
        self.due = -NEVER  # whoever keeps it has to tell
        return LockLost(f"lock {self.key!r} was lost: {self.lost}")


_new = tuple.__new__  # half the time of a NamedTuple's own


def margin(lease: float) -> float:
    """How much earlier than the store we end a lease: clocks drift (1 % + 2 ms, as Redlock has it)."""
    return min(0.01 * lease + 0.002, lease / 2)


def fence_of(record: Record, version: int) -> int:
    """Give the fencing number of the tenure that a record belongs to."""
    return version if record.fence is None else record.fence
