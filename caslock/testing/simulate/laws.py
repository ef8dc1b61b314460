"""The law of this file: the promises of a lock, each checked as soon as it could be broken.

1. Beliefs of different owners never overlap, and who believes stands.  (Clocks within the margin only.)
2. Fences grow from tenure to tenure, as the store saw them, and each tenure has one.
3. No acquire reports a failure while its own hold stands, and none of it stands later (unless the error says so).
4. No hold succeeds twice, and none stands again after its release.  (Where a lease ends before its holder leaves,
   what it kept out may come in: a lost put that expects absence.  It blocks the key for a lease, and no more.)
5. Nobody's hold is removed by another, but by the end of its lease.
6. Every record has a ttl.
7. Loss is told: by the keeper at the deadline, and at the release; and nothing else is told as a loss.
8. Whoever was promised the key is told once the release is over.
9. When the faults are over, every process gets the key within a lease, and no turnstile keeps anybody.

Of clocks at other rates than the margin covers, 2 to 9 are promised, not 1.  A store that forgets is not promised to
exclude those who held before (1), nor to remember what has failed (3, 4); they are told of the loss by what they ask
the store next, if somebody else stands there then (7).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from caslock.errors import LockLost, told
from caslock.store import ABSENT
from caslock.testing.simulate.story import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.claim import Claim
    from caslock.hold import Holding
    from caslock.record import Record
    from caslock.testing.simulate.client import Client, NamedLockState
    from caslock.testing.simulate.run import Run
    from caslock.testing.simulate.store import Lease, Request


class Judge:
    """Watches one run."""

    def __init__(self, run: Run) -> None:
        """Begin with nothing seen."""
        self._run = run
        self._trusts = run.plan.trusts_clocks
        self.settled: dict[str, tuple[str, str]] = {}  # by hold: its key, and why it must not stand
        self.breaks: dict[str, int | None] = {}  # by the id of the hand that breaks: the tenure that it has broken
        self.broken: dict[str, bool] = {}  # holds, and whether they had been told to hold
        self.succeeded: set[str] = set()
        self.unsure: set[str] = set()  # holds of which somebody was told that they may come yet
        self.excused: set[str] = set()  # holds that the store was allowed to forget
        self.fences: dict[str, dict[int, int]] = {}  # by key and tenure
        self.leaving: dict[Client, tuple[int, list[tuple[bool, Lease | None]]]] = {}  # what stood as a release began
        self.releases: dict[object, int] = {}  # under way, by turnstile

    def sent(self, request: Request) -> None:
        """Check what is about to be applied."""
        if request.verb in {"put", "wait"} and not all(
            part.ttl > 0 and math.isfinite(part.ttl) for part in request.parts
        ):
            self._run.violate("a record without a ttl")

    def changed(self) -> None:
        """Check what a request has done."""
        store = self._run.store
        for key in store.unguarded:  # a lost put is kept out only while those who know of it leave in good order
            self.settled = {hold: (place, why) for hold, (place, why) in self.settled.items() if place != key}
        store.unguarded.clear()
        changes = store.changes
        for key, before, after, sender in changes:
            holds = after.record.holds if after else ()
            if before is not None and not (after and self._breaks(before, after)):
                for hold in before.record.holds:
                    if hold not in holds and not hold.startswith(sender.prefixes):
                        self._run.violate(f"{sender.name} has removed {hold}, which stood under {key!r}")
            for hold in holds:
                if hold in self.settled:
                    self._run.violate(f"{hold} stands, which {self.settled[hold][1]}")
        changes.clear()

    def _breaks(self, before: Lease, after: Lease) -> bool:
        """Whether that was a break, which takes away one tenure and no other."""
        hand = after.record.write.rpartition(".")[0]
        if hand not in self.breaks:
            return False
        if before.record.holds:
            tenure = self.breaks[hand] = self.breaks[hand] or before.tenure
            if tenure != before.tenure:
                self._run.violate(f"a break has taken the key from {', '.join(before.record.holds)}, who came after")
            self.broken.update({hold: hold in self.succeeded for hold in before.record.holds})
        return True

    def broke(self, state: NamedLockState, broken: Record | None) -> None:
        """Check a break that is over: none of those who held it comes back (but who had not been told tries on)."""
        for hold in broken.holds if broken else ():
            if self.broken.get(hold):
                self._settle(hold, state.key, "was broken")

    def beliefs(self) -> None:
        """Check that who believes stands, and so that nobody else believes."""
        if not self._trusts:
            return
        run = self._run
        for client in run.clients:
            for hold in client.holding:
                claim = hold.claim
                if hold.lost or not client.process.alive or claim.hold in self.excused or claim.hold in self.broken:
                    continue
                lease = run.store.standing(hold.key, run.now)
                if lease is None or claim.hold not in lease.record.holds or lease.record.owner != claim.owner:
                    instead = "nothing stands" if lease is None else f"{', '.join(lease.record.holds) or 'nobody'} does"
                    run.violate(f"{client.name} believes that it holds {hold.key!r}, but {instead}")

    def acquired(self, client: Client, holds: Sequence[Holding]) -> None:
        """Check a success."""
        run = self._run
        for hold in holds:
            claim = hold.claim
            run.tell(client.name, f"holds {hold.key!r}, fence {short(hold.fence)}", hold)
            if (claim.hold in self.succeeded) != (len(claim.levels) > 1):
                run.violate(f"{claim.hold} succeeds for a second time")
            self.succeeded.add(claim.hold)
            known = self.fences.setdefault(hold.key, {})
            tenure = run.store.tenure_of.get(claim.version)
            if tenure is None:
                run.violate(f"{claim.hold} holds by a version that has never stood")
            for other, fence in known.items():
                if (other == tenure) != (fence == hold.fence) or (other < tenure) != (fence < hold.fence):
                    story = f"fence {short(hold.fence)} in tenure {tenure}, {short(fence)} in tenure {other}"
                    run.violate(story)
            known[tenure] = hold.fence

    def failed(self, client: Client, error: BaseException) -> None:
        """Check a failure."""
        run = self._run
        flow = run.current
        self.unsure.update(claim.hold for claim in client.attempts if _tells(error, claim))
        unsure = (flow.deferred and flow.blind) or flow.spoiled > 1
        sure = [] if unsure else [claim for claim in client.attempts if claim.hold not in self.unsure]
        run.tell(client.name, f"{type(error).__name__}{'' if len(sure) == len(client.attempts) else ', unsure'}")
        for claim in sure:
            if not flow.deferred or self._kept_out(claim):
                self._settle(claim.hold, claim.key, f"{client.name} was told to have failed")

    def undone(self, claim: Claim, error: BaseException) -> None:
        """Take note of what the error says that an acquire has ended with."""
        if _tells(error, claim):
            self.unsure.add(claim.hold)

    def _kept_out(self, claim: Claim) -> bool:
        """Whether no late request of a claim can land: else its caller is told, unless a cancellation hides that."""
        lease = self._run.store.standing(claim.key, self._run.now)
        return not claim.may_land(ABSENT) or (lease is not None and lease.record.free)

    def _settle(self, hold: str, key: str, why: str) -> None:
        if hold in self.excused:
            return
        self.settled[hold] = key, why
        lease = self._run.store.standing(key, self._run.now)
        if lease is not None and hold in lease.record.holds:
            self._run.violate(f"{hold} stands, which {why}")

    def leaves(self, client: Client, holds: Sequence[Holding]) -> None:
        """Take note of what stands as a release begins."""
        run = self._run
        self.leaving[client] = (
            client.silent,
            [(bool(hold.claim.lost), run.store.standing(hold.key, run.now)) for hold in holds],
        )
        run.tell(client.name, "releases", *holds)

    def left(
        self, client: Client, holds: Sequence[Holding], error: BaseException | None, *, again: bool = False
    ) -> None:
        """Check the end of a release."""
        run = self._run
        silent, before = self.leaving.pop(client)
        run.tell(client.name, f"{type(error).__name__} at the release" if error else "has released")
        for hold, (lost, lease) in zip(holds, before, strict=True):
            name = hold.claim.hold
            stood = lease is not None and name in lease.record.holds
            # Who could not release at once may have been followed by another thread or task of the same Lock object.
            at_once = isinstance(error, LockLost) and len(holds) == 1 and not again
            if at_once and stood and not lost and not self._may_be_lost(hold):
                run.violate(f"{client.name} was told that it had lost {hold.key!r}, which it had not")
            if error is not None:
                continue
            after = run.store.standing(hold.key, run.now)
            entered = bool(hold.claim.levels)  # still, by another level: this release has asked nobody
            others = not entered and lease is not None and name not in lease.record.holds
            if lost or (others and silent == client.silent and after and lease and after.tenure == lease.tenure):
                run.violate(f"{client.name} was not told that it had lost {hold.key!r}")
            if not entered and name not in run.store.expired:  # else nothing has kept out its own lost put, if any
                self._settle(name, hold.key, f"{client.name} has released")

    def _may_be_lost(self, hold: Holding) -> bool:
        """Whether its lease has ended, by any clock, or was broken or forgotten."""
        name, world = hold.claim.hold, hold.world
        over = world.now() >= hold.claim.deadline or name in self._run.store.expired
        return over or name in self.broken or name in self.excused

    def misses(self, client: Client, error: BaseException) -> None:
        """Check what a body was told."""
        run = self._run
        run.tell(client.name, f"{type(error).__name__} in the body")
        if not isinstance(error, LockLost) or any(self._may_be_lost(hold) for hold in client.holding):
            return
        leases = [run.store.standing(hold.key, run.now) for hold in client.holding]
        if all(
            lease and hold.claim.hold in lease.record.holds and lease.tenure == run.store.tenure_of[hold.claim.version]
            for lease, hold in zip(leases, client.holding, strict=True)
        ):
            run.violate(f"{client.name} was told that it had lost what it holds")

    def kept(self, claim: Claim) -> None:
        """Check that a keeper that comes no more has told why."""
        if not claim.ending and not claim.told:
            self._run.violate(f"the loss of {claim.hold} was not told")

    def releasing(self, state: NamedLockState) -> None:
        """Take note of a release that begins."""
        self.releases[state.turnstile] = self.releases.get(state.turnstile, 0) + 1

    def released(self, state: NamedLockState) -> None:
        """Check that the heir of a release that is over knows."""
        self.releases[state.turnstile] -= 1
        if self.releases[state.turnstile]:
            return
        for other in self._run.states:
            for claim in other.claims.values() if other.turnstile is state.turnstile else ():
                if claim.promised and claim.event is not None:  # else it has lost patience
                    self._run.violate(f"{claim.hold} is promised {claim.key!r} by nobody")

    def forgot(self) -> None:
        """Excuse all that stood."""
        attempts = [claim for client in self._run.clients for claim in client.attempts]
        self.excused |= {claim.hold for claim in (*self._run.claims(), *attempts)} | set(self.settled)
        self.settled.clear()

    def ended(self) -> None:
        """Check the turnstiles when all programs are over."""
        run = self._run
        for state in run.states:
            world = state.process
            if world.alive and all(client.alive for client in run.clients if client.process is world):
                inside = [claim.hold for claim in state.turnstile.inside(world.now())]
                if inside or state.turnstile.is_awaited:
                    run.violate(f"{inside or 'somebody'} is in the turnstile of {world.name} for ever")


def _tells(error: BaseException, claim: Claim) -> bool:
    """Whether an error says that more of the claim may come."""
    return repr(claim.key) in told(error)
