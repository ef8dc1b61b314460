"""How an acquire waits while another owner holds the key, at a store whose answers are written down."""

from __future__ import annotations

import random

import pytest
from tenacity.wait import wait_fixed

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.acquire import _yield, acquire
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.record import KEPT, Record, encode
from caslock.store import ABSENT, Entry
from tests.support.scripted import OURS, PATIENCE, START, Scripted, an_attempt, lost, run

OTHER = Record("host:other", ("other.1",), 3.0, "other.1.1", 4)
MINE = Entry(OURS, 20)


def theirs(ttl: float = 3.0, quarantine: float = 0.0) -> Entry:
    return Entry(encode(OTHER._replace(ttl=ttl, quarantine=quarantine)), 9)


def acquired(script: Scripted, timeout: float | None, poll: float | None = 20.0, ttl: float = 30.0) -> bool:
    attempt = an_attempt(script, ttl=ttl)
    return tried(attempt, timeout, poll)


def tried(attempt: Attempt, timeout: float | None, poll: float | None) -> bool:
    settings = attempt.terms.settings._replace(poll=None if poll is None else wait_fixed(poll))
    attempt.terms = attempt.terms._replace(settings=settings)
    return run(acquire(attempt.runtime, attempt, timeout))


def test_a_wait_ends_with_the_lease_and_not_before() -> None:
    """Each version's lease is waited for once: if its record is still there then, pauses are what they are."""
    script = Scripted(theirs(), theirs(), MINE)
    assert acquired(script, None)
    # The first answer comes after 2 s; 3 s later the lease is over; the next comes 2 s later, and a pause of 20 s.
    assert script.asked == [("put", 0.0), ("put", 5.0), ("put", 27.0)]


@pytest.mark.parametrize(
    ("lease", "timeout", "poll", "ttl", "seconds"),
    [
        (100.0, None, None, 30.0, 5.0),
        (100.0, None, 3.0, 30.0, 3.0),
        (100.0, None, 20.0, 30.0, 5.0),
        (100.0, None, None, 9.0, 3.0),
        (4.0, None, None, 30.0, 3.9),
        (100.0, 6.0, None, 30.0, 3.9),
    ],
)
def test_a_wait_at_the_store_is_bounded(
    lease: float, timeout: float | None, poll: float | None, ttl: float, seconds: float
) -> None:
    """By the longest wait, the user's pauses, a third of the ttl, the end of the lease and the limit."""
    script = Scripted(theirs(lease), MINE)
    script.queueing = script
    assert acquired(script, timeout, poll, ttl)
    assert script.waited == [pytest.approx(seconds)]
    assert script.verbs == ["put", "wait"]


def test_what_wakes_nobody_is_not_waited_for_at_the_store() -> None:
    """Neither the end of a lease does, nor that of a record that is kept, nor a release into a free record."""
    script = Scripted(theirs(), theirs(), theirs(), MINE)
    script.queueing = script
    assert acquired(script, None, ttl=60.0)
    assert script.verbs == ["put", "wait", "wait", "put"]  # the lease is over at 5 s, which the last wait has reached
    script = Scripted(theirs(), None, theirs(), theirs(), MINE)
    script.watching = script
    assert acquired(script, None, None)
    assert script.verbs == ["put", "watch", "put", "put", "put"]
    for holder in (theirs(quarantine=5.0), Entry(encode(OTHER._replace(holds=(KEPT,))), 9)):
        script = Scripted(holder, MINE)
        script.queueing = script
        assert acquired(script, None)
        assert script.verbs == ["put", "put"]


def test_a_wait_at_the_store_without_an_answer_is_followed_by_a_look() -> None:
    """Unless it is too late for that; what was not sent is never too late."""
    script = Scripted(theirs(100.0), lost(), MINE)
    script.queueing = script
    attempt = an_attempt(script)
    assert tried(attempt, None, 1.5)
    assert script.asked == [("put", 0.0), ("wait", 2.0), ("put", 5.5)]  # after the pause that was asked for
    assert attempt.writes.may_land(ABSENT)
    script = Scripted(theirs(100.0), StoreError("refused"))
    script.queueing = script
    attempt = an_attempt(script)
    with pytest.raises(StoreError, match="refused"):
        tried(attempt, None, 1.0)
    assert not attempt.writes.may_land(ABSENT)
    for error, raises in ((lost(), True), (StoreUnavailable("not sent", sent=False), False)):
        script = Scripted(theirs(100.0), error, theirs(100.0))
        script.queueing = script
        attempt = an_attempt(script)
        attempt.limit = START - PATIENCE + 3.0  # the last start is 3 s after the first
        if raises:
            with pytest.raises(StoreUnavailable, match="no answer"):
                tried(attempt, 5.0, 1.0)
            assert script.verbs == ["put", "wait"]
        else:
            assert not tried(attempt, 5.0, 1.0)


def test_a_version_is_watched_until_the_lease_ends() -> None:
    """For the longest wait, a third of the lease, or most of what is left of the time; then it is looked at."""
    for lease, timeout, seconds in ((100.0, None, 5.0), (9.0, None, 3.0), (100.0, 5.0, 2.9), (100.0, 2.5, 0.4)):
        script = Scripted(theirs(lease), None, MINE)
        script.watching = script
        assert acquired(script, timeout, None)
        assert script.waited == [pytest.approx(seconds)]
        assert script.verbs == ["put", "watch", "put"]
    script = Scripted(Entry(b"what is this?", 9), None, MINE)
    script.watching = script
    assert acquired(script, None, None)
    assert script.verbs == ["put", "watch", "put"]


@pytest.mark.parametrize(("takes", "puts"), [(1.4, 1), (1.6, 2)])
def test_an_answer_that_took_half_the_lease_is_renewed_first(takes: float, puts: int) -> None:
    """Once: if the answer to that is as slow, what is left of the lease is enough."""
    script = Scripted(MINE, MINE)
    script.takes = takes
    assert acquired(script, None, ttl=3.0)
    assert script.verbs == ["put"] * puts


def test_answers_that_outlast_every_lease_are_an_error() -> None:
    """It is not said that somebody else holds the key."""
    script = Scripted(MINE, None)  # it has ended when it is to be renewed
    script.takes = 4.0
    attempt = an_attempt(script, ttl=3.0)
    attempt.limit = START
    with pytest.raises(StoreUnavailable, match="answers too slowly for a ttl of 3 s"):
        tried(attempt, 0.0, None)
    assert script.verbs == ["put", "put"]


def test_a_yield_is_half_as_long_each_time_and_ends_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, or without time, nobody pauses."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    for yields, left, slept, next_one in (
        (4.0, 100.0, [4.0], 2.0),
        (4.0, 0.5, [0.5], 2.0),
        (4.0, 0.0, [], 4.0),
        (4.0, -1.0, [], 4.0),
        (0.0, 100.0, [], 0.0),
    ):
        script = Scripted()
        attempt = an_attempt(script)
        attempt.turn.yields = yields
        run(_yield(attempt.runtime, attempt, START + left))
        assert script.slept == slept
        assert attempt.turn.yields == next_one


def test_what_is_woken_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its process has had the key just now: before its first put, and after each wait at the store."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    script = Scripted(theirs(100.0), None, MINE)
    script.watching = script
    attempt = an_attempt(script)
    attempt.turn.yields = 4.0
    assert tried(attempt, None, None)
    assert script.verbs == ["put", "watch", "put"]
    assert script.slept == [4.0, 2.0]


@pytest.mark.parametrize(
    ("answer", "then"), [(StoreError("no right to watch"), [MINE]), (None, [theirs(100.0), MINE])], ids=repr
)
def test_a_version_is_watched_once(answer: StoreError | None, then: list[Entry]) -> None:
    """After a wait that is refused to this client, or has ended for no reason, a pause comes first."""
    script = Scripted(theirs(100.0), answer, *then)
    script.watching = script
    assert acquired(script, None, None)
    assert script.verbs == ["put", "watch", *["put"] * len(then)]
    assert len(script.slept) == 1


def test_a_free_key_is_not_written_to_after_the_last_start() -> None:
    """The first request took too long: another one would exceed the bound."""
    for late, verbs in ((True, ["put"]), (False, ["put", "put"])):
        script = Scripted(Entry(encode(OTHER._replace(holds=())), 9), MINE)
        attempt = an_attempt(script)
        attempt.limit = START - PATIENCE + (1.0 if late else 3.0)  # the last start
        assert tried(attempt, 0.0, 1.0) is not late
        assert script.verbs == verbs


def test_a_lease_that_is_taken_away_before_it_is_returned_is_forgotten() -> None:
    """It was ours, but half over when we learned of it, so it had to be renewed."""
    script = Scripted(lost(), MINE, theirs())
    script.takes = 10.0
    attempt = an_attempt(script)
    assert not tried(attempt, 0.0, 1.0)
    assert script.verbs == ["put", "get", "put"]
    assert attempt.lease.record is None


class OneOfSeveral(Attempt):
    """It may take the key from whoever holds it for 3 s, and not from others."""

    __slots__ = ()
    queues = False
    reads_first = True

    def may_take(self, record: Record | None) -> bool:
        return record is not None and record.ttl == OTHER.ttl


@pytest.mark.parametrize(
    ("takes", "limit", "pauses"),
    [(0.06, NEVER, [0.12, 0.12]), (3.0, NEVER, [0.5, 0.5]), (3.0, 6.05, [0.05]), (1.0, 0.0, [])],
)
def test_an_acquire_that_loses_again_lets_others_write_first(
    takes: float, limit: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For up to twice as long as its request took, and not past its limit: a release frees a place without a pause."""
    monkeypatch.setattr(random, "uniform", lambda least, most: least + most)
    script = Scripted(theirs(), theirs(), theirs(), MINE)
    script.takes = takes
    attempt = an_attempt(script)
    attempt.__class__, attempt.limit = OneOfSeveral, START + limit
    assert tried(attempt, None, None)
    assert script.slept == pytest.approx(pauses)


def test_who_reads_that_there_is_a_place_lets_others_write_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those whose blocks are shorter than a request keep another one from its release."""
    monkeypatch.setattr(random, "uniform", lambda least, most: least + most)
    script = Scripted(theirs(ttl=100.0), theirs(), MINE)
    script.takes = 0.06
    attempt = an_attempt(script)
    attempt.__class__ = OneOfSeveral
    assert tried(attempt, None, None)
    assert script.verbs == ["put", "get", "put"]
    assert script.slept[1:] == pytest.approx([0.12])  # after the pause of who waits
