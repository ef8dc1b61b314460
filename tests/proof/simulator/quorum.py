"""QuorumLocks in the simulator: several stores, each of which fails by itself, and the rule of majorities.

The stores share one virtual store, in which the keys of each have a name of their own.  What happens at one store is
what happens to a Lock there, by the same code; so of the laws (see `laws`) only these are different:

1. Of different owners no more than one believes, and it has most of the leases.  (Only while clocks are within the
   margin.)
7. Whoever is told of a loss at a release has lost the lock, or may have; it was also told to `on_lost`.
9. After the faults, every process can have the key.

Entries are not forgotten: with two leases of three stores, one of which forgets, another owner may have a majority.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from caslock.errors import LockLost
from caslock.local.quorum import QuorumState
from caslock.store import Traits
from tests.proof.simulator.chance import played
from tests.proof.simulator.client import NamedLockState
from tests.proof.simulator.laws import Judge
from tests.proof.simulator.plan import FAULTS, ClientPlan, Plan, steady, steady_run
from tests.proof.simulator.run import Run
from tests.proof.simulator.runtime import Flow, Runtime
from tests.proof.simulator.waits import Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt
    from caslock.store import Entry
    from tests.proof.simulator.client import Client

STORES: Final = 3

KEY: Final = "k"


class Node(Runtime):
    """One of the stores, as one process sees it."""

    def __init__(self, process: Runtime, number: int, plan: Plan) -> None:
        """Share the clock and the fate of `process`."""
        super().__init__(process.run, 0, threads=process.threads, rate=process.rate, plan=plan)
        self.name = f"{process.name}, store {number}"
        self.traits = Traits(f"simulated://{number}")
        self._number = number

    async def get(self, key: str) -> Entry | None:
        return await super().get(self._own(key))

    async def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return await super().put_if_version(self._own(key), value, version, ttl)

    async def invalidate(self, key: str, version: int) -> Entry | None:
        return await super().invalidate(self._own(key), version)

    def keep(self, attempt: Attempt, due: float) -> Flow:
        """Start the visits of its renewer, in the name of whoever runs."""
        client = self.run.current.client
        return self.run.start(Flow(client.next_name(), client, self.visits(attempt, due), Wait(), interruptible=False))

    def _own(self, key: str) -> str:
        return f"{key}@{self._number}"


class NamedQuorumState(NamedLockState, QuorumState):
    """The real one, but for its name, which chance would make."""


class QuorumJudge(Judge):
    def beliefs(self) -> None:
        """Check that not two owners believe."""
        if not self._trusts:
            return
        believers = [
            hold
            for client in self._run.clients
            for hold in client.holding
            if client.process.alive and not hold.lost and client.process.now() < hold._attempt.lease.deadline
        ]
        if len({hold._attempt.owner for hold in believers}) > 1:
            names = " and ".join(sorted(hold._attempt.hold_id for hold in believers))
            self._run.violate(f"{names} believe that they hold the lock")
        there = [self._run.store.observed(f"{KEY}@{number}", self._run.now) for number in range(STORES)]
        owners = [lease.record.owner for lease in there if lease is not None and lease.record.holds]
        for hold in believers:
            if owners.count(hold._attempt.owner) <= STORES // 2:
                self._run.violate(
                    f"{hold._attempt.hold_id} believes with the leases of {', '.join(owners) or 'nobody'}"
                )

    def acquired(self, client: Client, holds: Sequence[Holding]) -> None:
        self.holders.add(client)
        for hold in holds:
            self._run.tell(client.name, "holds the lock")
            self.succeeded.add(hold._attempt.hold_id)

    def lost(self, attempt: Attempt) -> None:
        """Check it as that of a Lock, unless some of its leases have ended with ``max_hold``."""
        if "max_hold" not in attempt.lease.lost:
            super().lost(attempt)

    def failed(self, client: Client, error: BaseException) -> None:
        self._run.tell(client.name, type(error).__name__)

    def leaves(self, client: Client, holds: Sequence[Holding]) -> None:
        del holds
        self._run.tell(client.name, "releases")

    def left(
        self, client: Client, holds: Sequence[Holding], error: BaseException | None, *, again: bool = False
    ) -> None:
        """Check the end of a release."""
        del again
        self._run.tell(client.name, f"{type(error).__name__} at the release" if error else "has released")
        for hold in holds:
            if isinstance(error, LockLost) and not hold._attempt.lease.reported:
                self._run.violate(
                    f"the loss of {hold._attempt.hold_id} was told to who has released it, and to nobody else"
                )

    def misses(self, client: Client, error: BaseException) -> None:
        """Note what a block was told."""
        self._run.tell(client.name, f"{type(error).__name__} in the block")


class QuorumRun(Run):
    judge_type = QuorumJudge

    def __init__(self, plan: Plan) -> None:
        self._nodes: dict[Runtime, list[Node]] = {}
        super().__init__(plan)

    def _new_lock(self, name: str, process: Runtime, key: str, plan: ClientPlan) -> NamedLockState:
        if process not in self._nodes:
            self._nodes[process] = [Node(process, number, self.plan) for number in range(STORES)]
        return NamedQuorumState(name, process, key, plan, self._poll, self._nodes[process])

    def _enough(self, keys: tuple[str, ...]) -> int:
        """Return how many requests may be needed: see `Run`."""
        return super()._enough(keys) * STORES

    def do(self, who: str, what: str) -> None:
        super().do(who, what)
        for nodes in self._nodes.values():
            for node in nodes:
                node.forget_ending()


def drawn(seed: int) -> Plan:
    """Draw a plan: 2 to 4 clients in 1 to 3 processes, 2 to 4 rounds each."""
    chance = random.Random(f"quorum {seed}")
    count = chance.choice((2, 2, 3, 4))
    processes = chance.choice((1, 2, 2, 3))
    clients = tuple(
        steady(
            ClientPlan(name, number % processes, name, (KEY,), chance.choice((1.0, 3.0, 10.0)), None, ()),
            chance,
            ("", "", "extend", "enter", "leave"),
            (0.0, 0.5, 5.0, 40.0),
        )
        for number, name in enumerate("ABCD"[:count])
    )
    faults = FAULTS - {"forget", "full", "woken for nothing"}
    plan = Plan(clients, (), (), queueing=False, batching=False, seed=seed, faults=faults)
    return steady_run(plan, chance, processes, (0.02, 0.1, 0.3))


def simulate(seed: int) -> int:
    """Run one seed; returns the number of steps, raises `Violation` with the story."""
    return played(QuorumRun(drawn(seed)), seed)
