"""Semaphores, read-write locks and QuorumLocks under a scheduler that loses and delays requests, and kills callers."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from caslock.local.quorum import QuorumState
from caslock.local.shared_queue import SharedQueue
from caslock.protocol import quorum, shared_attempt
from caslock.protocol.attempt import Attempt
from caslock.protocol.life import State
from caslock.protocol.quorum import Ballot
from caslock.protocol.record import Observed, Record
from caslock.protocol.shared_attempt import ReadWriteAttempt, SharedAttempt
from caslock.protocol.shared_transfer import SharedAdoption
from caslock.protocol.shares import Seen, Share
from caslock.store import ABSENT, Entry
from tests.proof.altered import rewritten
from tests.proof.simulator import Run, Violation
from tests.proof.simulator import quorum as quorum_locks
from tests.proof.simulator import semaphore as semaphores
from tests.proof.simulator.chance import played
from tests.proof.simulator.story import text

# They open nothing: what is collected as garbage meanwhile was left by a test before them.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

SEEDS = int(os.environ.get("CASLOCK_SEEDS", "10000"))
OF_SEMAPHORES, OF_QUORUMS = SEEDS // 20, SEEDS // 40


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize(
    ("simulate", "seeds"),
    [(semaphores.simulate, OF_SEMAPHORES), (quorum_locks.simulate, OF_QUORUMS)],
    ids=["semaphores", "quorums"],
)
def test_no_interleaving_of_faults_breaks_a_law(simulate: Callable[[int], int], seeds: int, part: int) -> None:
    """Random plans, each with its own faults."""
    steps = sum(simulate(seed) for seed in range(part, seeds, 2))
    assert steps > 50 * seeds


def of_semaphores(seed: int) -> Run:
    return semaphores.SemaphoreRun(semaphores.drawn(seed))


def of_quorums(seed: int) -> Run:
    return quorum_locks.QuorumRun(quorum_locks.drawn(seed))


@pytest.mark.parametrize(
    ("begin", "seeds", "more"),
    [
        (of_semaphores, 400, ("slot 2", "wants to read", "has handed over", "has adopted")),
        (of_quorums, 150, ("holds the lock",)),
    ],
    ids=["semaphores", "quorums"],
)
def test_the_runs_have_what_they_are_about(begin: Callable[[int], Run], seeds: int, more: tuple[str, ...]) -> None:
    """Keys are held, waited for, lost and handed over; holders die; votes are split."""
    stories, events = "", ("LockLost", "NotAcquired", "StoreUnavailable", "is killed", "interrupted", "lands late")
    for seed in range(seeds):
        played(run := begin(seed), seed)
        stories += text(run.story)
        if all(stories.count(what) > 5 for what in (*events, *more)):
            return
    pytest.fail(f"too rare: {[what for what in (*events, *more) if stories.count(what) <= 5]}")


_see = SharedAttempt.see


def all_leave(self: SharedAttempt, observed: Record | None, version: int, now: float) -> Record | None:
    return Attempt.remainder(self, observed and observed._replace(holds=(self.hold_id,)), version, now)


def without_fences(shares: tuple[Share, ...], version: int) -> tuple[Share, ...]:
    """Let the version of the last write be the fence of whoever was admitted last."""
    del version
    return tuple(shares)


def the_last_write(
    self: SharedAttempt, entry: Entry | None, asked: float, record: Record | None = None, gone: int = ABSENT
) -> Observed:
    """Take the last write for one's own, whoever has sent it."""
    observed = _see(self, entry, asked, record, gone)
    if observed.record is None or not self.is_in(observed.record) or not self.writes.in_flight:
        return observed
    return observed._replace(record=observed.record._replace(write=list(self.writes.in_flight)[-1]))


def nobody_follows(self: SharedQueue, attempt: object, now: float) -> None:
    del now
    self._inside = [other for other in self._inside if other() is not attempt]


PLACES = "all(share.slot == beside"

WRONG_SEMAPHORES = [
    rewritten(SharedAttempt, "_has_place", "<", "<=", name="one more than there are permits"),
    rewritten(Seen, "over", "since + share.ttl", "since + share.ttl / 2", name="a share is over too soon"),
    rewritten(SharedAttempt, "_with_ours", "beat=self", "beat=own.beat or self", name="renewals move no beat on"),
    rewritten(
        SharedAttempt, "_place", "not in taken", "== len(taken)", name="slots are numbered by how many there are"
    ),
    (SharedAttempt, "remainder", all_leave),
    (shared_attempt, "with_fences", without_fences),
    (SharedAttempt, "see", the_last_write),
    (SharedQueue, "leave", nobody_follows),
    rewritten(ReadWriteAttempt, "_has_place", PLACES, "all(share.slot in (beside, WAITS)", name="readers first"),
    rewritten(ReadWriteAttempt, "_has_place", PLACES, "all(share.slot in (beside, READS)", name="beside readers"),
    (ReadWriteAttempt, "holds_by", Attempt.is_in),
    rewritten(
        ReadWriteAttempt,
        "next_record",
        "self.role)",
        "WRITES if self.lease.record else self.role)",
        name="readers write",
    ),
    (SharedAttempt, "as_handed", Attempt.as_handed),
    rewritten(SharedAdoption, "may_take", "self.is_in(record)", "True", name="a hold that is not there is adopted"),
    rewritten(SharedAttempt, "_with_ours", "own is None or each.hold != own.hold", "True", name="tickets stay"),
    rewritten(SharedAttempt, "_others_in", "if share", "if '~' not in share.hold and share", name="tickets are dead"),
]


def the_longest_lease(self: Ballot) -> float:
    return max((part.lease.deadline for part in self.held), default=-float("inf"))


async def give_nothing_back(self: QuorumState, ballot: Ballot) -> None:
    """Keep the leases of a lost vote, and of a released lock."""
    del self
    for part in ballot.close():
        part.state = State.HELD


def lose_in_silence(self: QuorumState, *_: object) -> None:
    del self


WRONG_QUORUMS = [
    rewritten(quorum, "majority", "// 2 + 1", "// 2", name="half is a majority"),
    (Ballot, "deadline", property(the_longest_lease)),
    (QuorumState, "_give_back", give_nothing_back),
    (QuorumState, "_check_majority", lose_in_silence),
]


def id_of(mutant: object) -> str:
    return str(getattr(getattr(mutant, "fget", mutant), "__name__", ""))


@pytest.mark.parametrize(("owner", "name", "mutant"), [*WRONG_SEMAPHORES, *WRONG_QUORUMS], ids=id_of)
def test_a_rule_that_is_taken_out_is_missed(
    owner: object, name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is noticed within the seeds that CI runs; one needs twice as many, for few seeds in a thousand show it."""
    monkeypatch.setattr(owner, name, mutant)
    of_quorums = (owner, name, mutant) in WRONG_QUORUMS
    simulate, seeds = (quorum_locks.simulate, OF_QUORUMS) if of_quorums else (semaphores.simulate, OF_SEMAPHORES)
    with pytest.raises(Violation):
        sum(map(simulate, range((2 if mutant is the_last_write else 1) * seeds)))
