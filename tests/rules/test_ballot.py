"""Single steps of a ballot: what each does to the lease of a store, always under the guard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import pytest

from caslock.errors import NotAcquired, StoreUnavailable
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import ASKING, HAD, HELD, LEAVING, OVER, UNSETTLED, State
from caslock.protocol.quorum import Ballot, QuorumLease
from caslock.protocol.runtime import Event
from tests.support.life import force
from tests.support.scripted import Bell, Scripted, an_attempt

END = 10.0
"""When all leases end."""


class Guard:
    taken = False

    def __enter__(self) -> None:
        self.taken = True

    def __exit__(self, *error: object) -> None:
        self.taken = False


class Guarded(set[Attempt]):
    """Attempts that nobody changes without the guard."""

    def __init__(self, parts: Sequence[Attempt], guard: Guard) -> None:
        super().__init__(parts)
        self._guard = guard

    def add(self, part: Attempt) -> None:
        assert self._guard.taken
        super().add(part)

    def discard(self, part: object) -> None:
        assert self._guard.taken
        super().discard(part)

    def update(self, *parts: Iterable[Attempt]) -> None:
        assert self._guard.taken
        super().update(*parts)


def attempt(number: int, *, now: float = 0.0) -> Attempt:
    script = Scripted()
    script.clock = now
    script.traits = script.traits._replace(location=f"memory://{number}")
    attempt = an_attempt(script, ttl=10.0)
    attempt.lease.deadline = END
    return attempt


UNASKED = "nothing was sent"
Q, A, H, L, U, O = UNASKED, ASKING, HELD, LEAVING, UNSETTLED, OVER  # noqa: E741


def ballot(*states: State | str, now: float = 0.0) -> tuple[Ballot, Bell]:
    """Return a ballot whose stores are in these states; one that is OVER has refused."""
    guard, bell = Guard(), Bell()
    parts = [attempt(number, now=now) for number in range(len(states))]
    made = Ballot(parts, guard, cast("Sequence[Event]", [bell]))
    assert (made.is_open, made.won, made.in_time) == (True, False, False)
    for part, state in zip(parts, states, strict=True):
        force(part, state if isinstance(state, State) else ASKING)
    of_state = dict(zip(parts, states, strict=True))
    made.unasked = Guarded([part for part in parts if of_state[part] is Q], guard)
    made.pending = Guarded([part for part in parts if of_state[part] in {Q, A, L}], guard)
    made.granted = Guarded([part for part in parts if of_state[part] in HAD], guard)
    made.errors = {part: NotAcquired() for part in parts if of_state[part] is O}
    return made, bell


def test_a_request_begins_once_and_not_after_the_end() -> None:
    """One that nobody waits for any more is over before it was sent."""
    made, _ = ballot(Q, A, Q)
    assert [made.begin(part) for part in made.parts] == [True, False, True]
    assert (made.unasked, made.pending, made.errors) == (set(), set(made.parts), {})
    made, _ = ballot(Q, A, H)
    made.is_open = False
    assert [made.begin(part) for part in made.parts] == [False] * 3
    assert (made.unasked, made.pending) == (set(), {made.parts[1]})
    assert [type(made.errors.get(part)) for part in made.parts] == [NotAcquired, type(None), type(None)]


def test_a_lease_joins_while_the_lock_is_held() -> None:
    """Not at the moment of its end, nor after it was closed."""
    for won, now, is_open, joins in ((False, 99.0, True, True), (True, 9.9, True, True), (True, END, True, False)):
        made, bell = ballot(H, H, A)
        made.won, made.is_open = won, is_open
        late = made.parts[2]
        assert made.join(late, now) is joins
        assert (late.state is HELD, late in made.granted, late not in made.pending, bell.rung) == (joins,) * 4
    closed, _ = ballot(H, H, A)
    closed.is_open = False
    assert not closed.join(closed.parts[2], 0.0)


def test_a_majority_wins_before_its_end() -> None:
    """And only while the ballot is open."""
    made, _ = ballot(H, H, A)
    assert [made.win(now) for now in (9.9, END)] == [True, False]
    made.is_open = False
    assert not made.win(0.0)


def test_what_is_closed_is_to_be_released() -> None:
    """Also what got no answer to an earlier release; a request that is under way is not."""
    made, _ = ballot(H, A, U, O)
    first, asked, third, _ = made.parts
    for _ in range(2):
        assert made.close() == [first, third]
        assert [part.state for part in made.parts] == [LEAVING, ASKING, UNSETTLED, OVER]
        assert made.pending == {first, asked, third}
        assert not made.is_open


def test_what_is_closed_by_halves_is_open() -> None:
    """After an interrupt it is closed once more, and all leases are named."""

    class Once:
        """An attempt that is interrupted as it is told that it ends, the first time."""

        state = LEAVING

        def __init__(self) -> None:
            self.told = 0

        def begin_release(self) -> None:
            self.told += 1
            if self.told == 1:
                raise KeyboardInterrupt

    made, _ = ballot(H, H, H)
    made.parts[1] = cast("Attempt", Once())
    with pytest.raises(KeyboardInterrupt):
        made.close()
    assert made.is_open
    assert made.close() == made.parts
    assert not made.is_open


def test_an_end_is_told() -> None:
    """With its error, if there is one."""
    made, bell = ballot(L, L, A)
    error = StoreUnavailable("down")
    made.end(made.parts[0], error)
    made.end(made.parts[1], None)
    assert made.errors == {made.parts[0]: error}
    assert made.failed == {made.parts[0]: error}
    assert made.pending == {made.parts[2]}
    assert bell.rung == 2
    made.end(made.parts[2], NotAcquired())
    assert list(made.errors) == [made.parts[0], made.parts[2]]
    assert made.failed == {made.parts[0]: error}
    made.end(made.parts[0], None)  # once more, with success
    assert list(made.errors) == [made.parts[2]]
    assert made.join(made.parts[2], 0.0)
    assert not made.errors


def test_only_what_was_not_sent_is_given_up() -> None:
    """It says so."""
    made, _ = ballot(Q, A, H)
    made.give_up_unasked()
    ((part, error),) = made.errors.items()
    assert part is made.parts[0]
    assert isinstance(error, StoreUnavailable)
    assert error.sent is False
    assert (made.unasked, made.pending) == (set(), {made.parts[1]})


@pytest.mark.parametrize(
    ("state", "is_open", "won", "replaced"),
    [
        (O, True, True, True),
        (H, True, True, False),
        (A, True, True, False),
        (O, False, True, False),
        (O, True, False, False),
    ],
)
def test_a_store_is_asked_again_if_it_has_no_lease_of_ours(
    state: State, *, is_open: bool, won: bool, replaced: bool
) -> None:
    """While the lock is held."""
    made, _ = ballot(state, H, H)
    made.is_open, made.won = is_open, won
    assert made.vacant == ([0] if state is O else [])
    again = attempt(0)
    assert made.replace(0, again) is replaced
    assert (made.parts[0] is again, again in made.unasked, again in made.pending) == (replaced,) * 3


def test_a_store_whose_lease_is_lost_is_vacant() -> None:
    """Whatever is left of it; and nothing of it is remembered once the store is asked again."""
    made, _ = ballot(H, H, U)
    made.won = True
    lost = made.parts[2]
    lost.lease.lost = "it was taken away"
    made.errors[lost] = StoreUnavailable("down")
    assert made.vacant == [2]
    assert made.replace(2, attempt(2))
    assert lost not in made.granted
    assert not made.errors


def test_a_store_that_was_never_asked_is_vacant() -> None:
    """As one that no thread was free for."""
    made, _ = ballot(Q, H, H)
    made.won = True
    made.give_up_unasked()
    assert made.vacant == [0]


def test_a_ballot_is_decided_free_and_released_by_majorities() -> None:
    """Of three, and of five."""
    for states, now, decided in (
        ((H, H, A), 9.9, True),
        ((H, H, A), END, False),
        ((H, A, O), 0.0, False),
        ((H, O, O), 0.0, True),
        ((Q, A, O), 0.0, False),
    ):
        assert ballot(*states)[0].is_decided(now) is decided, states
    several: list[tuple[tuple[State, ...], bool]] = [
        ((L, O, O), True),
        ((L, U, O), False),
        ((L, L, O), False),
        ((U, U, U), True),
        ((U, U, O, O, L), False),
        ((U, L, O, O, O), True),
    ]
    for of_it, free in several:
        assert ballot(*of_it)[0].is_free is free, of_it
    for states, is_open, released in (((O, O, U), False, True), ((O, U, L), False, False), ((O, O, H), True, False)):
        made, _ = ballot(*states)
        made.is_open = is_open
        assert made.is_released is released, states


def test_a_ballot_is_idle_if_nothing_is_under_way() -> None:
    """What was not sent is not."""
    for states, idle in (((Q, H, O), True), ((Q, A, O), False), ((L, H, H), False), ((U, U, H), True)):
        assert ballot(*states)[0].is_idle is idle, states


def test_a_lease_stood_until_it_was_released_or_lost() -> None:
    """One that was never granted does not count."""
    made, _ = ballot(H, L, O, A)
    assert [made.stood(part) for part in made.parts] == [True, True, False, False]
    assert made.held == made.parts[:2]
    force(made.parts[1], OVER)
    assert [made.stood(part) for part in made.parts] == [True, True, False, False]
    assert made.held == made.parts[:1]
    assert not made.enough_stood
    made.granted |= set(made.parts)
    assert made.enough_stood
    made.parts[0].lease.lost = made.parts[1].lease.lost = "it was taken away"
    assert made.held == []
    assert not made.enough_stood


def test_a_quorum_lasts_as_long_as_a_majority_of_its_leases() -> None:
    """It ends with the third largest deadline of five, and earlier when leases are lost."""
    lease = QuorumLease(10.0, NEVER, auto_renew=True)
    assert lease.deadline == -NEVER
    lease.ballot, _ = ballot(H, H, H, H, A)
    for part, deadline in zip(lease.ballot.parts, (3.0, 9.0, 5.0, 7.0, 99.0), strict=True):
        part.lease.deadline = deadline
    assert lease.deadline == 5.0
    for lost, ends in ((1, 3.0), (3, -NEVER)):
        lease.ballot.parts[lost].lease.lost = "taken away"
        assert lease.deadline == ends


def test_the_loss_of_a_quorum_says_why_each_lease_has_ended() -> None:
    """With its location, unless that is said; all for one reason need no location."""
    lease = QuorumLease(10.0, NEVER, auto_renew=True)
    lease.ballot, _ = ballot(H, H, H, now=END)
    assert lease.end("renewed") == "its lease ended before it was renewed"
    first, second, third = (part.lease for part in lease.ballot.parts)
    first.lost = "it is no longer at memory://0"
    assert lease.end("renewed") == (
        "0 of its 3 leases stood, and it needs 2: it is no longer at memory://0; "
        "at memory://1, its lease ended before it was renewed; at memory://2, its lease ended before it was renewed"
    )
    second.deadline = third.deadline = END + 1
    assert lease.end("renewed") == "2 of its 3 leases stood, and it needs 2: it is no longer at memory://0"
    lease.ballot.granted.remove(lease.ballot.parts[1])
    second.deadline = 0.0
    assert lease.end("renewed") == "1 of its 3 leases stood, and it needs 2: it is no longer at memory://0"
    third.lost = "it was taken"
    assert lease.end("renewed") == (
        "0 of its 3 leases stood, and it needs 2: it is no longer at memory://0; at memory://2, it was taken"
    )
