"""How an acquire waits while another owner holds the key, at a store whose answers are written down."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import pytest
from tenacity.wait import wait_fixed

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.acquire import _yield, acquire
from caslock.protocol.record import KEPT, Record, encode
from caslock.store import ABSENT, Entry
from tests.support.scripted import OURS, PATIENCE, START, Scripted, an_attempt, lost, run

if TYPE_CHECKING:
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime

OTHER = Record("host:other", ("other.1",), 3.0, "other.1.1", 4)
MINE = Entry(OURS, 20)


def theirs(ttl: float = 3.0, quarantine: float = 0.0) -> Entry:
    """Write the record of a holder."""
    return Entry(encode(OTHER._replace(ttl=ttl, quarantine=quarantine)), 9)


def acquired(script: Scripted, timeout: float | None, poll: float | None = 20.0, ttl: float = 30.0) -> bool:
    """Acquire."""
    attempt = an_attempt(script, ttl=ttl)
    return tried(script, attempt, timeout, poll)


def tried(script: Scripted, attempt: Attempt, timeout: float | None, poll: float | None) -> bool:
    """Acquire with an attempt of one's own."""
    settings = attempt.terms.settings._replace(poll=None if poll is None else wait_fixed(poll))
    attempt.terms = attempt.terms._replace(settings=settings)
    return cast("bool", run(acquire(cast("Runtime", script), attempt, timeout)))


def test_a_wait_ends_with_the_lease_and_not_before() -> None:
    """Each version's lease is waited for once: if its record is still there then, pauses are what they are."""
    script = Scripted(theirs(), theirs(), MINE)
    assert acquired(script, None)
    # The first answer comes after 2 s; 3 s later the lease is over; the next comes 2 s later, and a pause of 20 s.
    assert script.asked == [("put", 0.0), ("put", 5.0), ("put", 27.0)]


def test_a_wait_ends_with_its_timeout() -> None:
    """The last look is at the limit."""
    script = Scripted(theirs(100.0), theirs(100.0))
    assert not acquired(script, 10.0)
    assert script.asked == [("put", 0.0), ("put", 10.0)]


def test_a_foreign_value_has_no_lease_that_could_end() -> None:
    """It is looked at again after each pause."""
    script = Scripted(Entry(b"what is this?", 9), MINE)
    assert acquired(script, None)
    assert script.asked == [("put", 0.0), ("put", 22.0)]


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
    """Neither the end of a lease nor a release into a free record does."""
    script = Scripted(theirs(), theirs(), theirs(), MINE)
    script.queueing = script
    assert acquired(script, None, ttl=60.0)
    assert script.verbs == ["put", "wait", "wait", "put"]  # the lease is over at 5 s, which the last wait has reached
    script = Scripted(theirs(), None, theirs(), theirs(), MINE)
    script.watching = script
    assert acquired(script, None, None)
    assert script.verbs == ["put", "watch", "put", "put", "put"]
    script = Scripted(theirs(quarantine=5.0), MINE)
    script.queueing = script
    assert acquired(script, None)
    assert script.verbs == ["put", "put"]


def test_a_wait_at_the_store_without_an_answer_is_followed_by_a_look() -> None:
    """Unless it is too late for that; what was not sent is never too late."""
    script = Scripted(theirs(100.0), lost(), MINE)
    script.queueing = script
    attempt = an_attempt(script)
    assert tried(script, attempt, None, 1.5)
    assert script.asked == [("put", 0.0), ("wait", 2.0), ("put", 5.5)]  # after the pause that was asked for
    assert attempt.writes.may_land(ABSENT)
    script = Scripted(theirs(100.0), StoreError("refused"))
    script.queueing = script
    attempt = an_attempt(script)
    with pytest.raises(StoreError, match="refused"):
        tried(script, attempt, None, 1.0)
    assert not attempt.writes.may_land(ABSENT)
    for error, raises in ((lost(), True), (StoreUnavailable("not sent", sent=False), False)):
        script = Scripted(theirs(100.0), error, theirs(100.0))
        script.queueing = script
        attempt = an_attempt(script)
        attempt.limit = START - PATIENCE + 3.0  # the last start is 3 s after the first
        if raises:
            with pytest.raises(StoreUnavailable, match="no answer"):
                tried(script, attempt, 5.0, 1.0)
            assert script.verbs == ["put", "wait"]
        else:
            assert not tried(script, attempt, 5.0, 1.0)


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


def test_one_that_may_not_watch_looks_again_after_a_pause() -> None:
    """The server refuses that to this client, and nothing else."""
    script = Sleeping(theirs(100.0), StoreError("no right to watch"), MINE)
    script.watching = script
    assert acquired(script, None, None)
    assert script.verbs == ["put", "watch", "put"]
    assert len(script.slept) == 1


def test_answers_too_slow_for_any_lease_are_no_other_holder() -> None:
    """But where another one took the key meanwhile, that is what it is: busy."""
    script = Scripted(Entry(OURS, 20), theirs(100.0))
    script.takes = 20.0
    assert not acquired(script, 0.0)
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
        script = Sleeping()
        attempt = an_attempt(script)
        attempt.turn.yields = yields
        run(_yield(cast("Runtime", script), attempt, START + left))
        assert script.slept == slept
        assert attempt.turn.yields == next_one


class Sleeping(Scripted):
    """Notes its pauses."""

    def __init__(self, *answers: Entry | BaseException | None) -> None:
        super().__init__(*answers)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


def test_what_is_woken_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its process has had the key just now: before its first put, and after each wait at the store."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    script = Sleeping(theirs(100.0), None, MINE)
    script.watching = script
    attempt = an_attempt(script)
    attempt.turn.yields = 4.0
    assert tried(script, attempt, None, None)
    assert script.verbs == ["put", "watch", "put"]
    assert script.slept == [4.0, 2.0]


def test_a_key_that_is_kept_wakes_nobody() -> None:
    """Its record ends by itself, as a lease does."""
    kept = Entry(encode(OTHER._replace(holds=(KEPT,))), 9)
    script = Scripted(kept, MINE)
    script.queueing = script
    assert acquired(script, None)
    assert script.verbs == ["put", "put"]


def test_a_version_is_watched_once() -> None:
    """If it is there all the same, the wait may have ended for no reason: a pause comes first."""
    script = Sleeping(theirs(100.0), None, theirs(100.0), MINE)
    script.watching = script
    assert acquired(script, None, None)
    assert script.verbs == ["put", "watch", "put", "put"]
    assert len(script.slept) == 1


def test_a_free_key_is_not_written_to_after_the_last_start() -> None:
    """The first request took too long: another one would exceed the bound."""
    for late, verbs in ((True, ["put"]), (False, ["put", "put"])):
        script = Scripted(Entry(encode(OTHER._replace(holds=())), 9), MINE)
        attempt = an_attempt(script)
        attempt.limit = START - PATIENCE + (1.0 if late else 3.0)  # the last start
        assert tried(script, attempt, 0.0, 1.0) is not late
        assert script.verbs == verbs


def test_a_lease_that_is_taken_away_before_it_is_returned_is_forgotten() -> None:
    """It was ours, but half over when we learned of it, so it had to be renewed."""
    script = Scripted(lost(), MINE, theirs())
    script.takes = 10.0
    attempt = an_attempt(script)
    assert not tried(script, attempt, 0.0, 1.0)
    assert script.verbs == ["put", "get", "put"]
    assert attempt.lease.record is None
