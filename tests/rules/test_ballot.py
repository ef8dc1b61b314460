"""Single steps of a ballot: what each does to a vote at each stage, always under the guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from caslock.errors import NotAcquired, StoreUnavailable
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.life import HELD, LEAVING
from caslock.protocol.quorum import Ballot, QuorumLease, Stage, Vote
from caslock.protocol.runtime import Event
from tests.support.scripted import Bell, Scripted, an_attempt

END = 10.0
"""When all leases end."""


class Guard:
    taken = False

    def __enter__(self) -> None:
        self.taken = True

    def __exit__(self, *error: object) -> None:
        self.taken = False


class Guarded(Vote):
    """A vote that nobody looks at without the guard, unless the test does."""

    guard: Guard | None = None

    @property
    def stage(self) -> Stage:
        assert self.guard is None or self.guard.taken
        return self._stage

    @stage.setter
    def stage(self, value: Stage) -> None:
        assert self.guard is None or self.guard.taken
        self._stage = value


def attempt(number: int, *, now: float = 0.0) -> Attempt:
    script = Scripted()
    script.clock = now
    script.traits = script.traits._replace(location=f"memory://{number}")
    attempt = an_attempt(script, ttl=10.0)
    attempt.lease.deadline = END
    attempt.state = HELD
    return attempt


def ballot(*stages: Stage, now: float = 0.0) -> tuple[Ballot, Guard, Bell]:
    guard, bell = Guard(), Bell()
    attempts = [attempt(number, now=now) for number in range(len(stages))]
    made = Ballot(attempts, guard, cast("Sequence[Event]", [bell]))
    assert (made.is_open, made.won, made.in_time) == (True, False, False)
    made.votes = [Guarded(each) for each in attempts]
    for vote, stage in zip(made.votes, stages, strict=True):
        vote.stage = stage
    return made, guard, bell


def watch(made: Ballot, guard: Guard | None) -> None:
    """Have every look at a stage need the guard from now on; None: no longer."""
    for vote in made.votes:
        vote.guard = guard  # type: ignore[attr-defined] # of a Guarded


def stages(made: Ballot) -> list[Stage]:
    watch(made, None)
    return [vote.stage for vote in made.votes]


Q, A, H, L, O = Stage.QUEUED, Stage.ASKED, Stage.HELD, Stage.LEAVING, Stage.OVER  # noqa: E741


def test_a_request_begins_once_and_not_after_the_end() -> None:
    """One that nobody waits for any more is over before it was sent."""
    made, guard, _ = ballot(Q, A, Q)
    watch(made, guard)
    assert [made.begin(vote) for vote in made.votes] == [True, False, True]
    assert stages(made) == [A, A, A]
    made, guard, _ = ballot(Q, A, H)
    made.is_open = False
    watch(made, guard)
    assert [made.begin(vote) for vote in made.votes] == [False] * 3
    assert stages(made) == [O, A, H]
    assert isinstance(made.votes[0].error, NotAcquired)
    assert made.votes[1].error is None


def test_a_lease_joins_while_the_lock_is_held() -> None:
    """Not at the moment of its end, nor after it was closed."""
    for won, now, is_open, joins in ((False, 99.0, True, True), (True, 9.9, True, True), (True, END, True, False)):
        made, guard, _ = ballot(H, H, A)
        made.won, made.is_open = won, is_open
        watch(made, guard)
        assert made.join(made.votes[2], now) is joins
        assert stages(made)[2] is (H if joins else A)
    closed, _, _ = ballot(H, H, A)
    closed.is_open = False
    assert not closed.join(closed.votes[2], 0.0)


def test_a_majority_wins_before_its_end() -> None:
    """And only while the ballot is open."""
    made, guard, _ = ballot(H, H, A)
    watch(made, guard)
    assert [made.win(now) for now in (9.9, END)] == [True, False]
    made.is_open = False
    assert not made.win(0.0)


def test_what_is_closed_is_released_once() -> None:
    """By one thread; after an interrupt it is named again, until somebody has begun."""
    made, guard, _ = ballot(H, A, H)
    watch(made, guard)
    leaving = made.close()
    assert leaving == [made.votes[0], made.votes[2]]
    assert {vote.attempt.state for vote in made.votes} == {LEAVING}
    assert not made.is_open
    assert made.leave(leaving[0])
    assert not made.leave(leaving[0])
    assert leaving[0].begun
    assert not made.leave(made.votes[1])
    assert not made.votes[1].begun
    assert made.close() == [leaving[1]]
    assert stages(made) == [L, A, L]


def test_what_is_closed_by_halves_is_open() -> None:
    """After an interrupt it is closed once more, and all leases are named."""

    class Once:
        """An attempt that is interrupted as it is told that it ends, the first time."""

        def __init__(self, lease: Lease) -> None:
            self.lease = lease
            self.told = 0

        def begin_release(self) -> None:
            self.told += 1
            if self.told == 1:
                raise KeyboardInterrupt

    made, _, _ = ballot(H, H, H)
    made.votes[1].attempt = cast("Attempt", Once(made.votes[1].attempt.lease))
    with pytest.raises(KeyboardInterrupt):
        made.close()
    assert made.is_open
    assert made.close() == made.votes
    assert not made.is_open


def test_an_end_is_told() -> None:
    """With its error, and where the vote is then; another release may begin."""
    made, guard, bell = ballot(L, H, H)
    watch(made, guard)
    error = StoreUnavailable("down")
    made.votes[0].begun = True
    made.end(made.votes[0], error, stage=H)
    assert (made.votes[0].error, made.votes[0].begun, bell.rung) == (error, False, 1)
    made.end(made.votes[1], None)
    assert stages(made) == [H, O, H]
    assert bell.rung == 2
    assert made.kept == 3
    made.votes[1].error = NotAcquired()
    assert made.kept == 2
    made, _, _ = ballot(Q, A, O)
    assert made.kept == 1


def test_only_what_was_not_sent_is_dropped() -> None:
    """It says so."""
    made, guard, _ = ballot(Q, A, H)
    watch(made, guard)
    made.drop_queued()
    assert stages(made) == [O, A, H]
    error = made.votes[0].error
    assert isinstance(error, StoreUnavailable)
    assert error.sent is False
    assert made.votes[1].error is None


@pytest.mark.parametrize(
    ("stage", "lost", "is_open", "won", "replaced"),
    [
        (O, False, True, True, True),
        (H, True, True, True, True),
        (H, False, True, True, False),
        (L, True, True, True, False),
        (A, True, True, True, False),
        (O, False, False, True, False),
        (O, False, True, False, False),
    ],
)
def test_a_store_is_asked_again_if_it_has_no_lease_of_ours(
    stage: Stage, *, lost: bool, is_open: bool, won: bool, replaced: bool
) -> None:
    """While the lock is held: what is left of a lost lease is released first."""
    made, guard, _ = ballot(stage, H, H)
    made.is_open, made.won = is_open, won
    before = made.votes[0]
    before.attempt.lease.lost = "taken" if lost else ""
    watch(made, guard)
    again = attempt(0)
    assert made.replace(0, again) is (before if replaced else None)
    assert (made.votes[0].attempt is again) is replaced
    before.guard = None  # type: ignore[attr-defined] # of a Guarded
    assert before.stage is (L if replaced and lost else stage)


def test_a_ballot_is_decided_free_and_released_by_majorities() -> None:
    """Of three, and of five."""
    for votes, now, decided in (
        ((H, H, A), 9.9, True),
        ((H, H, A), END, False),
        ((H, A, O), 0.0, False),
        ((H, O, O), 0.0, True),
        ((Q, A, O), 0.0, False),
    ):
        assert ballot(*votes)[0].is_decided(now) is decided, votes
    several: list[tuple[tuple[Stage, ...], bool, bool]] = [
        ((L, O, O), True, False),
        ((L, H, O), False, False),
        ((L, L, O), False, False),
        ((H, H, H), True, True),
        ((H, H, O, O, L), False, False),
        ((H, L, O, O, O), True, False),
    ]
    for stages_of_it, free, idle in several:
        made, _, _ = ballot(*stages_of_it)
        assert (made.is_free, made.is_idle) == (free, idle), stages_of_it
    for votes, is_open, released in (((O, O, H), False, True), ((O, H, L), False, False), ((O, O, H), True, False)):
        made, _, _ = ballot(*votes)
        made.is_open = is_open
        assert made.is_released is released, votes


def test_a_quorum_lasts_as_long_as_a_majority_of_its_leases() -> None:
    """It ends with the third largest deadline of five, and earlier when leases are lost."""
    lease = QuorumLease(10.0, NEVER, auto_renew=True)
    assert lease.deadline == -NEVER
    lease.ballot, _, _ = ballot(H, H, H, H, A)
    for vote, deadline in zip(lease.ballot.votes, (3.0, 9.0, 5.0, 7.0, 99.0), strict=True):
        vote.attempt.lease.deadline = deadline
    assert lease.deadline == 5.0
    for lost, ends in ((1, 3.0), (3, -NEVER)):
        lease.ballot.votes[lost].attempt.lease.lost = "taken away"
        assert lease.deadline == ends


def test_the_loss_of_a_quorum_says_why_each_lease_has_ended() -> None:
    """With its location, unless that is said; all for one reason need no location."""
    lease = QuorumLease(10.0, NEVER, auto_renew=True)
    lease.ballot, _, _ = ballot(H, H, H, now=END)
    assert lease.end("renewed") == "its lease ended before it was renewed"
    first, second, third = (vote.attempt.lease for vote in lease.ballot.votes)
    first.lost = "it is no longer at memory://0"
    assert lease.end("renewed") == (
        "0 of its 3 leases stood, and it needs 2: it is no longer at memory://0; "
        "at memory://1, its lease ended before it was renewed; at memory://2, its lease ended before it was renewed"
    )
    second.deadline = third.deadline = END + 1
    assert lease.end("renewed") == "2 of its 3 leases stood, and it needs 2: it is no longer at memory://0"
    lease.ballot.votes[1].stage = O
    lease.ballot.votes[1].error = NotAcquired()
    second.deadline = 0.0
    assert lease.end("renewed") == "1 of its 3 leases stood, and it needs 2: it is no longer at memory://0"
    third.lost = "it was taken"
    assert lease.end("renewed") == (
        "0 of its 3 leases stood, and it needs 2: it is no longer at memory://0; at memory://2, it was taken"
    )
    assert QuorumLease(10.0, NEVER, auto_renew=True).end("renewed") == "0 of its 0 leases stood, and it needs 1: "
