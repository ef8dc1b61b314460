"""Semaphores and read-write locks in the simulator: several hold one key, each with a share of its record.

Some clients take it together with Locks of the keys before and after it.  Most laws are those of a Lock (see `laws`);
these are different:

1. No more than `permits` believe, each with a slot of its own, and the share of each is at the store.  (Only while
   clocks are within the margin.)  Of a read-write lock, nobody believes beside a writer.
2. Fences grow from one admission to the next, in the order of the store.
5. Nobody's share is removed while its holder believes, nor that of a ticket before its lease is over.
6. No reader is admitted while a writer waits in the record.

Entries are not forgotten: a semaphore, as a Lock, excludes only those that the store remembers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, cast

from caslock.local.read_write import ReadWriteState
from caslock.local.semaphore import SemaphoreState
from caslock.protocol.shared_attempt import ReadWriteAttempt
from caslock.protocol.shares import HANDED, READS, WAITS, WRITES, with_fences
from caslock.store import ABSENT
from tests.proof.simulator.chance import played
from tests.proof.simulator.client import NamedLockState
from tests.proof.simulator.deadlock import forgotten
from tests.proof.simulator.laws import Judge
from tests.proof.simulator.plan import FAULTS, ClientPlan, Plan, handing, steady, steady_run
from tests.proof.simulator.run import Run
from tests.proof.simulator.story import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.shared_attempt import SharedAttempt
    from caslock.protocol.shares import Share
    from caslock.protocol.transfer import Ticket
    from tests.proof.simulator.client import Client
    from tests.proof.simulator.runtime import Runtime
    from tests.proof.simulator.store import Lease

KEY: Final = "k"

AROUND: Final = (("j", KEY), (KEY, "l"), ("j", KEY, "l"))
"""Keys that a client takes together with it."""

MIXED: Final = 0.3
"""How many of the plans have such clients."""


class NamedSemaphoreState(NamedLockState, SemaphoreState):
    """The real one, but for its name, which chance would make."""


class NamedReadWriteState(NamedLockState, ReadWriteState):
    """The real one, but for its name, which chance would make."""


class SemaphoreJudge(Judge):
    def __init__(self, run: SemaphoreRun) -> None:
        super().__init__(run)
        self._permits = run.permits
        self._there: dict[str, Share] = {}  # by hold: the shares of holders in the record that was written last
        self._beats: dict[str, tuple[int, float]] = {}  # by hold: its last beat, and when that was written
        self._admitted: dict[str, int] = {}  # by hold: the version of the write that has admitted it

    def beliefs(self) -> None:
        """Check that no more than `permits` believe, each in a slot of its own, and each with a share."""
        if not self._trusts:
            return
        run = self._run
        slots, alone = dict[int, str](), dict[str, str]()
        for name, hold in self._believed().items():
            lease = run.store.observed(hold.key, run.now)
            # While it is being handed over, it has the one or the other.
            if lease is None or {name, HANDED + name}.isdisjoint(lease.record.holds):
                run.violate(f"{name} believes, and has no share")
            if hold.key != KEY:
                if alone.setdefault(hold.key, name) != name:
                    run.violate(f"{name} believes beside {alone[hold.key]}")
                continue
            attempt = cast("SharedAttempt", hold._attempt)
            # A writer that wants to read from now on minds no readers, whether it has got the answer or not.
            slot = attempt.role if isinstance(attempt, ReadWriteAttempt) else attempt.slot
            if not 0 <= slot < (self._permits or WAITS):
                run.violate(f"{name} has slot {slot}")
            if slot in slots if self._permits else WRITES in slots or (slot == WRITES and slots):
                run.violate(f"{name} has slot {slot}, beside {slots}")
            slots[slot] = name
            if hold.fence != self._admitted[name]:
                first = short(self._admitted[name])
                run.violate(f"{name} has fence {short(hold.fence)}, and was admitted by {first}")

    def _believed(self) -> dict[str, Holding]:
        """Return the holds that somebody believes in, by name; one that was entered twice counts once."""
        living = [client for client in self._run.clients if client.process.alive]
        return {hold._attempt.hold_id: hold for client in living for hold in client.holding if not hold.lost}

    def changed(self) -> None:
        """Check what a request has done."""
        store = self._run.store
        for key in store.unguarded:
            self.settled = {hold: (location, why) for hold, (location, why) in self.settled.items() if location != key}
        store.unguarded.clear()
        for key, before, after, _ in store.changes:
            if key == KEY:
                there, self._there = self._there, {}
                # Where nothing was before, a record has expired, unless the store ends none.
                there = there if before is not None or not store.expires else {}
                if after is not None:
                    self._written(after, there)
                self._keeps_tickets([there[hold] for hold in there.keys() - self._there.keys()])
            if after is not None and after.record.quarantine:
                self._ends(key, after.record)
        store.changes.clear()

    def _written(self, after: Lease, there: dict[str, Share]) -> None:
        """Check a record that was written; `there`: who held before."""
        shares = with_fences(after.record.shares, after.entry.version)
        if self._permits and len(shares) > self._permits:
            self._run.violate(f"{len(shares)} shares are recorded")
        self._there = {share.hold: share for share in shares if self._is_in(share)}
        if not self._permits and len(self._there) > 1 and any(share.slot == WRITES for share in shares):
            self._run.violate(f"a writer is recorded beside others: {shares}")
        gone = [there[hold] for hold in there.keys() - self._there.keys()]
        for share in shares:
            if self._beats.get(share.hold, (ABSENT, 0.0))[0] != share.beat:
                self._beats[share.hold] = share.beat, self._run.now
            if share.hold in self._there.keys() - there.keys():
                before = next((each for each in gone if (each.slot, each.fence) == (share.slot, share.fence)), None)
                # What changes hands has been admitted before.
                self._admitted[share.hold] = self._admitted[before.hold] if before else after.entry.version
                if not self._permits and share.slot == READS and not all(map(self._is_in, shares)):
                    self._run.violate(f"{share.hold} may read although a writer waits")
            if share.hold in self.settled:
                self._run.violate(f"{share.hold} has a record, which {self.settled[share.hold][1]}")

    def _keeps_tickets(self, gone: list[Share]) -> None:
        """Check that nobody but an adopter removes the share of a ticket before its lease is over."""
        for share in gone:
            taken = any((each.slot, each.fence) == (share.slot, share.fence) for each in self._there.values())
            if share.hold in self.handed and not taken and self._run.now < self._beats[share.hold][1] + share.ttl:
                self._run.violate(f"{share.hold} is removed, which awaits adoption")

    def _is_in(self, share: Share) -> bool:
        """Whether a share is that of a holder."""
        return bool(self._permits) or share.slot != WAITS

    def acquired(self, client: Client, holds: Sequence[Holding]) -> None:
        run = self._run
        self.changed()
        self.holders.add(client)
        for hold in holds:
            name = hold._attempt.hold_id
            slot = f"slot {cast('SharedAttempt', hold._attempt).slot}" if hold.key == KEY else hold.key
            run.tell(client.name, f"holds {slot}, fence {short(hold.fence)}")
            if (name in self.succeeded) != (len(hold._attempt.levels) > 1):
                run.violate(f"{name} succeeds for a second time")
            self.succeeded.add(name)

    def adopted(self, client: Client, hold: Holding, ticket: Ticket) -> None:
        """Check an adoption that has succeeded."""
        self._run.tell(client.name, f"has adopted {ticket.key!r}")
        super().adopted(client, hold, ticket)

    def waits(self) -> None:
        """Check that nobody waits in its process for nobody; with Locks beside it, that nobody waits in a circle."""
        if any(state.key != KEY for state in self._run.states):
            super().waits()
            return
        attempt = forgotten(self._run)
        if attempt is not None:
            self._run.violate(f"{attempt.hold_id} waits in its process, where nobody keeps it from asking")


class SemaphoreRun(Run):
    judge_type = SemaphoreJudge

    def __init__(self, plan: Plan) -> None:
        self.permits = plan.seed % 4  # 0: a read-write lock
        super().__init__(plan)

    def _new_lock(self, name: str, process: Runtime, key: str, plan: ClientPlan) -> NamedLockState:
        if key != KEY:
            return super()._new_lock(name, process, key, plan)
        if self.permits:
            return NamedSemaphoreState(name, process, key, plan, self._poll, self.permits)
        role = READS if name in {"A", "C", "D", "F"} else WRITES
        state, other = (
            NamedReadWriteState(f"{name}{side}", process, key, plan, self._poll, 0, role ^ side) for side in range(2)
        )
        state.other, other.other = other, state
        return state


def drawn(seed: int) -> Plan:
    """Draw a plan: 2 to 6 clients in 1 to 3 processes, 2 to 4 rounds each, of which some share a Semaphore object."""
    chance = random.Random(f"semaphore {seed}")
    count, processes = chance.choice((2, 3, 4, 6)), chance.choice((1, 2, 2, 3))
    ttls = [chance.choice((1.0, 3.0, 10.0)) for _ in range(count)]
    locks = ["ABCDEF"[number if chance.random() < 0.6 else number % processes] for number in range(count)]
    clients = tuple(
        steady(
            ClientPlan(name, number % processes, locks[number], (KEY,), ttls["ABCDEF".index(locks[number])], None, ()),
            chance,
            ("", "", "extend", "enter", "leave", "downgrade"),
            (0.0, 0.5, 5.0, 40.0, None),
        )
        for number, name in enumerate("ABCDEF"[:count])
    )
    if chance.random() < MIXED:
        clients = tuple([_mixed(each, chance) for each in clients])
    plan = Plan(clients, (), (), seed=seed, faults=FAULTS - {"forget", "woken for nothing"})
    odds = {"queueing": 0.5, "watching": 0.5, "batching": 0.5, "expires": 0.8}
    plan = steady_run(plan, chance, processes, (0.0, 0.02, 0.1, 0.3), **odds)
    return handing(plan, random.Random(f"hand over {seed}")) if seed % 4 else plan  # no read-write lock


def _mixed(plan: ClientPlan, chance: random.Random) -> ClientPlan:
    """Add Locks; whoever then entered a semaphore again would wait for itself."""
    keys = chance.choice(((KEY,), *AROUND))
    rounds = tuple(
        each._replace(body=tuple(stay._replace(does="") if stay.does == "enter" else stay for stay in each.body))
        for each in plan.rounds
    )
    return plan._replace(keys=keys, rounds=rounds)


def simulate(seed: int) -> int:
    """Run one seed; returns the number of steps, raises `Violation` with the story."""
    return played(SemaphoreRun(drawn(seed)), seed)
