"""The rules that a run must keep: the promises of a lock, each checked as soon as it could be broken.

1. The beliefs of different owners never overlap, and the record of whoever believes is at the store.  (Only while
   clocks are within the margin.)
2. Fences grow from tenure to tenure, in the order of the store, and each tenure has one.
3. An acquire that reports a failure has no record at the store, and gets none later (unless the error says so).
4. No hold succeeds twice, and none has a record again after its release.  (If a lease ends before its holder releases,
   what it kept out may arrive: a lost put that expects absence.  It blocks the key for one lease, and no longer.)
5. Nobody's hold is removed by another owner, except by the end of its lease.
6. Every record has a ttl.
7. A loss is reported: by the renewer at the deadline, and by the release.  Nothing else is reported as a loss.
8. An attempt that was promised the key is told once the release is over.
9. After the faults, every process can acquire the key within a lease (a minute more where a `min_hold` also keeps out
   late requests), and no local queue is blocked.
10. The last extension wins: no later renewal of that hold writes a shorter lease.
11. No contenders wait for each other until a lease ends while all of them are alive, and none waits in a local queue
    for nobody.
12. Within the `min_hold` of an acquire that has succeeded, nobody else gets the key, and it is not free: except after
    the end of the lease or of the holder's event loop, a `force_release`, or an error of the release.
13. A lease that is renewed does not end for want of renewals while all is well: there is time for one after the last
    fault, unless hardly anything of the lease was left then.
14. Keys that nobody holds are acquired by two requests for each, or for all where the store takes them together,
    whatever records are there.
15. A quarantine ends: once a process has written a record with one, none that it writes later makes it longer.

16. A ticket gives its hold to one adopter, with the same fence.  Who has handed a hold over has no record of it any
    more, and nobody but an adopter removes it.

With clocks that differ by more than the margin, 2 to 9 are promised, and not 1.  A store that forgets is not promised
to exclude earlier holders (1), nor to remember what has failed (3, 4).  Those holders learn of their loss by their next
request, if another owner has a record then (7).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

from caslock.errors import LockLost, with_notes
from caslock.local import linger
from caslock.protocol.life import State
from caslock.protocol.shares import HANDED
from tests.proof.simulator.deadlock import deadlocked, forgotten
from tests.proof.simulator.store import read
from tests.proof.simulator.story import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Record
    from caslock.protocol.transfer import Ticket
    from caslock.store import Put
    from tests.proof.simulator.client import Client, NamedLockState
    from tests.proof.simulator.run import Run
    from tests.proof.simulator.runtime import Runtime
    from tests.proof.simulator.store import Lease, Request


SOON: Final = 0.02
"""Seconds of our own pauses between two tries."""


class Judge:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._trusts = run.plan.trusts_clocks
        self.settled: dict[str, tuple[str, str]] = {}  # by hold: its key, and why it must not have a record
        self.breaks: dict[str, int | None] = {}  # by the attempt of a `force_release`: the tenure that it has ended
        self.broken: dict[str, bool] = {}  # holds, and whether their client knew that it held
        self.succeeded: set[str] = set()
        self.unsure: set[str] = set()  # holds whose client was told that their request may still be applied
        self.given_up: set[str] = set()  # holds whose acquire was undone
        self.excused: set[str] = set()  # holds that the store was allowed to forget
        self.fences: dict[str, dict[int, int]] = {}  # by key and tenure
        self.handed: set[str] = set()  # holds of tickets that were given away
        self.used: dict[str, str] = {}  # by the hold of a ticket: who has adopted it
        self.leaving: dict[
            Client, tuple[int, list[tuple[bool, Lease | None]]]
        ] = {}  # what was at the store as a release began
        self.releases: dict[object, int] = {}  # under way, by local queue
        self.extended: dict[str, float] = {}  # by hold: the ttl of its last extension
        self.least: dict[str, tuple[Holding, float]] = {}  # by key: the newest hold, and until when it is kept
        self.asked: Counter[Client] = Counter()  # requests until the first success
        self.holders: set[Client] = set()  # who has succeeded
        # When a process has made a record with a quarantine for a key; who has sent a write, and when its quarantine is
        # to end there; and when those of each process and key end, by their ids.
        self.made: dict[tuple[Runtime, str, Record], float] = {}
        self.quarantined: dict[tuple[str, str], tuple[Runtime, float]] = {}
        self.quarantines: dict[tuple[Runtime, str, str], float] = {}

    def sent(self, request: Request, client: Client) -> None:
        """Check what is about to be applied."""
        if client not in self.holders:
            self.asked[client] += 1
        if request.verb in {"put", "wait"} and not all(
            part.ttl > 0 and math.isfinite(part.ttl) for part in request.parts
        ):
            self._run.violate("a record without a ttl")

    def changed(self) -> None:
        """Check what a request has done."""
        store = self._run.store
        for key in store.unguarded:  # a lost put is kept out only if those that know of it release in time
            self.settled = {hold: (location, why) for hold, (location, why) in self.settled.items() if location != key}
        store.unguarded.clear()
        changes = store.changes
        for key, before, after, sender in changes:
            holds = after.record.holds if after else ()
            if before is not None and not (after and self._breaks(key, before, after)):
                for hold in before.record.holds:
                    if hold not in holds and not self._may_remove(sender, hold, holds):
                        self._run.violate(f"{sender.name} has removed {hold}, which was under {key!r}")
            for hold in holds:
                if hold in self.settled:
                    self._run.violate(f"{hold} has a record, which {self.settled[hold][1]}")
            self._keeps(key, after)
            if after is not None and after.record.quarantine:
                self._ends(key, after.record)
        changes.clear()

    def _may_remove(self, sender: Client, hold: str, holds: Sequence[str]) -> bool:
        """Whether that is its own, or that of a ticket that it adopts."""
        if hold in self.handed:
            return any(other.startswith(sender.prefixes) for other in holds)
        return hold.removeprefix(HANDED).startswith(sender.prefixes)

    def _ends(self, key: str, record: Record) -> None:
        """Check that a quarantine is not made longer by a process that has written it before."""
        process, ends = self.quarantined[key, record.write]
        known = self.quarantines.setdefault((process, key, record.quarantine_id), ends)
        if ends > known + 1e-6:
            self._run.violate(f"the quarantine of {key!r} is made longer by {ends - known:.3f} s")

    def _keeps(self, key: str, after: Lease | None) -> None:
        """Check that a key does not become free, nor somebody else's, before its `min_hold` is over."""
        hold, until = self.least.get(key, (None, 0.0))
        if hold is None or self._run.now >= until:
            return
        name, lease = hold._attempt.hold_id, hold._attempt.lease
        names = {name, HANDED + name}  # both, while it is being handed over
        if after is not None and (after.record.kept or not names.isdisjoint(after.record.holds)):
            return
        over = lease.record is not None and hold._state.runtime.now() >= lease.deadline  # it was not released in time
        if not (over or names & self._run.store.expired or name in self.excused):
            whose = ", ".join(after.record.holds) if after is not None else ""
            self._run.violate(f"{key!r} is {whose or 'free'} before the min_hold of {name} is over")

    def _breaks(self, key: str, before: Lease, after: Lease) -> bool:
        """Whether that was a `force_release`, which takes away one tenure and no other."""
        hand = after.record.write.rpartition(".")[0]
        if hand not in self.breaks:
            return False
        self.least.pop(key, None)
        if before.record.holds:
            tenure = self.breaks[hand] = self.breaks[hand] or before.tenure
            if tenure != before.tenure:
                self._run.violate(
                    f"a force_release has taken the key from {', '.join(before.record.holds)}, who came after"
                )
            self.broken.update({hold: hold in self.succeeded for hold in before.record.holds})
        return True

    def broke(self, state: NamedLockState, broken: Record | None) -> None:
        """Check a `force_release` that is over: no holder comes back (one that did not know of its hold tries on)."""
        for hold in broken.holds if broken else ():
            if self.broken.get(hold):
                self._settle(hold, state.key, "was released by force")

    def beliefs(self) -> None:
        """Check that whoever believes has the record at the store, and so that nobody else believes."""
        if not self._trusts:
            return
        run = self._run
        for client in run.clients:
            for hold in client.holding:
                attempt = hold._attempt
                forgiven = attempt.hold_id in self.excused or attempt.hold_id in self.broken
                if hold.lost or not client.process.alive or forgiven:
                    continue
                lease = run.store.observed(hold.key, run.now)
                ours = {attempt.hold_id, HANDED + attempt.hold_id}  # both, while it is being handed over
                if lease is None or ours.isdisjoint(lease.record.holds) or lease.record.owner != attempt.owner:
                    instead = (
                        "nothing is there" if lease is None else f"{', '.join(lease.record.holds) or 'nobody'} does"
                    )
                    run.violate(f"{client.name} believes that it holds {hold.key!r}, but {instead}")

    def acquired(self, client: Client, holds: Sequence[Holding]) -> None:
        run = self._run
        self.holders.add(client)
        for hold in holds:
            attempt = hold._attempt
            run.tell(client.name, f"holds {hold.key!r}, fence {short(hold.fence)}")
            again = len(attempt.levels) > 1 or attempt.kept_until > 0  # then it was resumed
            if (attempt.hold_id in self.succeeded) != again:
                run.violate(f"{attempt.hold_id} succeeds for a second time")
            self.succeeded.add(attempt.hold_id)
            self._is_to_keep(client, hold)
            known = self.fences.setdefault(hold.key, {})
            tenure = run.store.tenure_of.get(attempt.lease.version)
            if tenure is None:
                run.violate(f"{attempt.hold_id} holds by a version that was never written")
            for other, fence in known.items():
                if (other == tenure) != (fence == hold.fence) or (other < tenure) != (fence < hold.fence):
                    story = f"fence {short(hold.fence)} in tenure {tenure}, {short(fence)} in tenure {other}"
                    run.violate(story)
            known[tenure] = hold.fence

    def handed_over(self, client: Client, ticket: Ticket) -> None:
        """Note a hand-over: nothing of the hold is this client's any more."""
        self._run.tell(client.name, f"has handed over {ticket.key!r}")
        self.handed.add(ticket.hold)
        self.least.pop(ticket.key, None)  # it ends with its lease, if nobody adopts it
        self._settle(ticket.hold.removeprefix(HANDED), ticket.key, f"{client.name} has handed over")

    def adopted(self, client: Client, hold: Holding, ticket: Ticket) -> None:
        """Check an adoption that has succeeded."""
        used = self.used.setdefault(ticket.hold, hold._attempt.hold_id)
        if used != hold._attempt.hold_id:
            self._run.violate(f"{used} and {hold._attempt.hold_id} have used one ticket")
        if hold.fence != ticket.fence:
            self._run.violate(f"{client.name} has adopted {ticket.key!r} with another fence")
        self.acquired(client, (hold,))

    def not_adopted(self, client: Client, error: BaseException) -> None:
        """Check an adoption that has failed; where it was told that the ticket is used, nothing of it is left."""
        self.failed(client, error)
        if isinstance(error, LockLost) and not hasattr(error, "__notes__"):
            for attempt in client.attempts:
                self._settle(attempt.hold_id, attempt.key, f"{client.name} was told that it can't adopt")

    def _is_to_keep(self, client: Client, hold: Holding) -> None:
        """Note until when a key is to be kept after an acquire, or a release, that has succeeded."""
        attempt = hold._attempt
        if attempt.min_hold and self._trusts and attempt.hold_id not in self.broken:
            self.least[hold.key] = hold, client.process.real(attempt.lease.began + attempt.min_hold)

    def not_released(self, hold: Holding) -> None:
        """Note a release that has failed: its record may end by itself, or another of its Lock object may follow."""
        if hold.key in self.least and self.least[hold.key][0]._attempt is hold._attempt:
            del self.least[hold.key]

    def abandoned(self, client: Client) -> None:
        """Note that an event loop has ended: its Lock objects know that its holds are lost, and may acquire again."""
        self.least = {key: kept for key, kept in self.least.items() if kept[0]._attempt.caller is not client}

    def failed(self, client: Client, error: BaseException) -> None:
        run = self._run
        flow = run.current
        self.unsure.update(attempt.hold_id for attempt in client.attempts if _tells(error, attempt))
        sure = [] if flow.unfinished else [attempt for attempt in client.attempts if attempt.hold_id not in self.unsure]
        run.tell(client.name, f"{type(error).__name__}{'' if len(sure) == len(client.attempts) else ', unsure'}")
        for attempt in sure:
            if attempt.hold_id not in self.given_up:
                self._settle(attempt.hold_id, attempt.key, f"{client.name} was told to have failed")

    def undone(self, attempt: Attempt, error: BaseException) -> None:
        """Note that an acquire has been undone, unless the error says that more of it may come."""
        if _tells(error, attempt):
            self.unsure.add(attempt.hold_id)
        elif attempt.state is State.OVER:
            self.given_up.add(attempt.hold_id)
            client = cast("Client", attempt.caller)
            self._settle(attempt.hold_id, attempt.key, f"{client.name} was told to have failed")

    def _settle(self, hold: str, key: str, why: str) -> None:
        if hold in self.excused:
            return
        self.settled[hold] = key, why
        lease = self._run.store.observed(key, self._run.now)
        if lease is not None and hold in lease.record.holds:
            self._run.violate(f"{hold} has a record, which {why}")

    def leaves(self, client: Client, holds: Sequence[Holding]) -> None:
        """Note what is there as a release begins."""
        run = self._run
        self.leaving[client] = (
            client.silent,
            [(bool(hold._attempt.lease.lost), run.store.observed(hold.key, run.now)) for hold in holds],
        )
        run.tell(client.name, "releases")

    def left(
        self, client: Client, holds: Sequence[Holding], error: BaseException | None, *, again: bool = False
    ) -> None:
        """Check the end of a release."""
        run = self._run
        silent, before = self.leaving.pop(client)
        run.tell(client.name, f"{type(error).__name__} at the release" if error else "has released")
        for hold, (lost, lease) in zip(holds, before, strict=True):
            name = hold._attempt.hold_id
            names = {name, HANDED + name}  # after a hand-over that got no answer
            stood = lease is not None and not names.isdisjoint(lease.record.holds)
            # After a failed release another thread or task of the same Lock object may have followed.
            at_once = isinstance(error, LockLost) and len(holds) == 1 and not again
            if at_once and stood and not lost and not self._may_be_lost(hold):
                run.violate(f"{client.name} was told that it had lost {hold.key!r}, which it had not")
            if at_once and not hold._attempt.lease.reported:
                run.violate(f"the loss of {name} was told to who has released it, and to nobody else")
            if error is not None:
                continue
            after = run.store.observed(hold.key, run.now)
            if after is not None and after.record.kept:  # else an earlier release of it has failed
                self._is_to_keep(client, hold)
            entered = bool(hold._attempt.levels)  # still, by another level: this release made no request
            others = not entered and lease is not None and not stood
            if lost or (others and silent == client.silent and after and lease and after.tenure == lease.tenure):
                run.violate(f"{client.name} was not told that it had lost {hold.key!r}")
            if not entered and name not in run.store.expired:  # else its own lost put, if any, may have landed
                self._settle(name, hold.key, f"{client.name} has released")

    def lingers(self, client: Client, hold: Holding) -> None:
        """Check a release that has kept the key."""
        del self.leaving[client]
        self._run.tell(client.name, f"has released {hold.key!r}, which lingers")
        begun = any(flow.finishes and flow.client is client for flow in self._run.flows.values())
        if hold._attempt in linger.lingering and hold._state._queue.waiting and not begun:
            self._run.violate(f"{hold.key!r} lingers although somebody of its process waits for it")

    def gave_up(self, attempt: Attempt) -> None:
        """Note the release of what has lingered."""
        if attempt.state is State.OVER and attempt.hold_id not in self._run.store.expired:
            self._settle(attempt.hold_id, attempt.key, "has lingered, and was released")

    def _may_be_lost(self, hold: Holding) -> bool:
        """Whether its lease has ended, by any clock, or it was released by force or forgotten."""
        name, runtime = hold._attempt.hold_id, hold._state.runtime
        over = runtime.now() >= hold._attempt.lease.deadline or name in self._run.store.expired
        return over or name in self.broken or name in self.excused

    def misses(self, client: Client, error: BaseException) -> None:
        """Check what a block was told."""
        run = self._run
        run.tell(client.name, f"{type(error).__name__} in the block")
        if not isinstance(error, LockLost) or any(self._may_be_lost(hold) for hold in client.holding):
            return
        leases = [run.store.observed(hold.key, run.now) for hold in client.holding]
        if all(
            lease
            and hold._attempt.hold_id in lease.record.holds
            and lease.tenure == run.store.tenure_of[hold._attempt.lease.version]
            for lease, hold in zip(leases, client.holding, strict=True)
        ):
            run.violate(f"{client.name} was told that it had lost what it holds")

    def kept(self, attempt: Attempt) -> None:
        """Check that a renewer that has stopped has reported a loss."""
        if not attempt.ending and not attempt.lease.reported:
            self._run.violate(f"the loss of {attempt.hold_id} was not told")

    def lost(self, attempt: Attempt) -> None:
        """Check that a lease which has ended without a renewal could not have been renewed."""
        run, lease = self._run, attempt.lease
        if attempt.ending or "before it was renewed" not in lease.lost:
            return
        process = cast("Client", attempt.caller).process
        troubled = max(run.troubled, process.stopped_until, run.store.full_until)
        # A renewal that has failed is tried again after a 60th of the lease at most, or half of what is left of it.
        if run.now - troubled > lease.ttl / 60 / process.rate + SOON:
            run.violate(f"the lease of {attempt.hold_id} has ended though nothing kept it from being renewed")

    def puts(self, puts: Sequence[Put]) -> None:
        """Check what is about to be sent: a renewal does not undo an extension."""
        client = self._run.current.client
        for put in puts:
            record = read(put.value)
            if record.quarantine:
                # A record that is sent again, after no answer, is the same but for its write id.
                same = client.process, put.key, record._replace(write="")
                made = self.made.setdefault(same, client.process.now())
                self.quarantined[put.key, record.write] = client.process, made + record.quarantine
            hold = record.write.rpartition(".")[0]  # whose renewal it is: a co-holder may not know of the extension yet
            renews = not self._run.current.interruptible and hold in record.holds
            if renews and record.ttl < self.extended.get(hold, 0.0):
                self._run.violate(f"a renewal has undone the extension of {hold}")

    def releasing(self, state: NamedLockState) -> None:
        self.releases[state.local_queue] = self.releases.get(state.local_queue, 0) + 1

    def released(self, state: NamedLockState, *, over: bool = True) -> None:
        """Check that the successor of a release that is over has learned the outcome."""
        self.releases[state.local_queue] -= 1
        if self.releases[state.local_queue] or not over:
            return
        for other in self._run.states:
            for attempt in other.attempts.values() if other.local_queue is state.local_queue else ():
                if attempt.turn.awaits_hand_over and attempt.turn.event is not None:  # else it has stopped waiting
                    self._run.violate(f"{attempt.hold_id} is promised {attempt.key!r} by nobody")

    def waits(self) -> None:
        """Check that each waiter waits for one that can go on without waiting for it in turn."""
        found = deadlocked(self._run)
        if found:
            for client, renewers in found.items():
                names = " and ".join(sorted(renewer.name for renewer in renewers))
                self._run.tell(client.name, f"waits for {names}")
            self._run.violate("contenders wait for each other: nobody can move before a lease ends")
        attempt = forgotten(self._run)
        if attempt is not None:
            self._run.violate(f"{attempt.hold_id} waits in its process for {attempt.key!r}, which nobody keeps from it")

    def forgot(self) -> None:
        """Excuse all records that were there."""
        attempts = [attempt for client in self._run.clients for attempt in client.attempts]
        self.excused |= {attempt.hold_id for attempt in (*self._run.attempts(), *attempts)} | set(self.settled)
        self.settled.clear()
        self.least.clear()

    def ended(self) -> None:
        """Check the local queues when all programs are over."""
        run = self._run
        for state in run.states:
            runtime = state.process
            if runtime.alive and all(client.alive for client in run.clients if client.process is runtime):
                inside = [attempt.hold_id for attempt in state.local_queue.inside(runtime.now())]
                if inside or state.local_queue.waiting:
                    run.violate(f"{inside or 'somebody'} is in the local queue of {runtime.name} for ever")


def _tells(error: BaseException | None, attempt: Attempt) -> bool:
    """Whether an error, or one that it has interrupted, says that more of the attempt may come."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if repr(attempt.key) in with_notes(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
