"""One request and its answer, at a store whose answers are written down: what is asked again, and until when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.protocol.attempt import Attempt, Retry
from caslock.protocol.clean_up import FIRST_PAUSE, CleanUp, run_clean_ups
from caslock.protocol.exchange import read, write_surely
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import LONGEST_WAIT
from caslock.protocol.record import NOTHING, Observed
from caslock.protocol.renew import renew_due
from caslock.protocol.runtime import Runtime
from caslock.store import ABSENT, Entry
from tests.support.locations import present
from tests.support.scripted import OURS, PATIENCE, START, TAKES, TTL, Scripted, an_attempt, held, lost, refused, run


def a_write(script: Scripted, limit: float, retry: Retry = Retry()) -> tuple[Attempt, Callable[[], Observed]]:
    attempt = an_attempt(script, retry)
    record = attempt.first(START).record
    return attempt, lambda: run(write_surely(attempt.runtime, attempt, ABSENT, record, START + limit))


def test_a_read_is_repeated_as_often_as_it_may_be() -> None:
    """`retry.get` times, each after a short pause, and not at or after the limit."""
    for times, limit, asks in ((0, 100.0, 1), (1, 100.0, 2), (3, 100.0, 4), (3, TAKES, 1), (3, 2 * TAKES + 0.01, 2)):
        script = Scripted(lost(), lost(), lost(), lost())
        attempt = an_attempt(script, Retry(times, 1))
        with pytest.raises(StoreUnavailable):
            run(read(attempt.runtime, attempt, START + limit))
        assert len(script.asked) == asks, (times, limit)
    script = Scripted(lost(), None)
    assert run(read(cast("Runtime", script), an_attempt(script), NEVER)) == NOTHING


def test_a_write_without_an_answer_is_read_before_it_is_repeated() -> None:
    """What is there decides: it was applied, or somebody else was first, or it is written again."""
    other = Entry(b"something else", 7)
    script = Scripted(lost(), other)
    _, write = a_write(script, 100.0)
    observed = write()
    assert (observed.version, script.verbs) == (7, ["put", "get"])
    for retry, verbs in ((Retry(1, 0), ["put", "get"]), (Retry(1, 1), ["put", "get", "put", "get"])):
        script = Scripted(lost(), None, lost(), None)
        attempt, write = a_write(script, 100.0, retry)
        with pytest.raises(StoreUnavailable):
            write()
        assert script.verbs == verbs
        assert len(attempt.writes.in_flight) == verbs.count("put"), "each has an id of its own, and may land"
    _, write = a_write(Scripted(lost(), None, lost(), other), 100.0)
    assert write().version == 7


@pytest.mark.parametrize(
    ("answers", "sent"),
    [
        ([lost(), refused(), refused(), refused()], True),
        ([refused(), None, lost(), None], True),
        ([refused(), refused(), refused()], False),
    ],
)
def test_a_write_without_an_answer_may_have_been_applied(answers: list[StoreUnavailable | None], *, sent: bool) -> None:
    """Unless no connection could be opened, neither at first nor at last."""
    _, write = a_write(Scripted(*answers), 100.0)
    with pytest.raises(StoreUnavailable) as caught:
        write()
    assert caught.value.sent is sent


@pytest.mark.parametrize(("limit", "verbs"), [(1, 1), (2, 2), (3, 3), (4, 4)])
def test_no_request_of_a_write_begins_at_its_limit(limit: int, verbs: int) -> None:
    """After each failure, the limit is looked at before anything else is sent."""
    script = Scripted(lost(), None, lost(), None)
    _, write = a_write(script, limit * TAKES)
    with pytest.raises(StoreUnavailable):
        write()
    assert script.verbs == ["put", "get", "put", "get"][:verbs]


@pytest.mark.parametrize("error", [StoreError("refused"), StoreUnavailable("not sent", sent=False), ValueError("bad")])
def test_what_was_certainly_not_applied_is_not_in_flight(error: Exception) -> None:
    """A refusal ends a write at once; what was not sent is read and sent again, and leaves nothing that may land."""
    attempt, write = a_write(Scripted(error, None, error, None), 100.0)
    with pytest.raises(type(error)):
        write()
    assert attempt.writes.in_flight == {}


def test_a_renewal_without_an_answer_is_due_again_soon() -> None:
    """After a twelfth of its ttl or half of what is left, but not at once; at its deadline at the latest."""
    for passed, due in ((10.0, 12.5), (27.0, 27.0 + (TTL - 0.302 - 27.0) / 2), (29.0, 29.5), (29.5, TTL - 0.302)):
        script = Scripted(lost(), lost(), lost(), lost())
        attempt = held(script)
        script.clock += passed
        assert run(renew_due(attempt.runtime, [attempt])) == []
        assert attempt.lease.due == pytest.approx(START + due)
        assert not attempt.lease.lost


def test_two_holds_of_one_key_are_not_renewed_in_one_request() -> None:
    """The second one is left to be renewed alone."""
    script = Scripted(None, None)
    one, other = held(script), held(script)
    assert run(renew_due(one.runtime, [one, other])) == [other]


def test_an_answer_after_the_deadline_revives_nothing() -> None:
    """The renewal was applied, but its lease was over, and may have been reported, before that was known."""
    script = Scripted(Entry(OURS, 6))
    attempt = held(script)
    script.clock = attempt.lease.deadline - 1.0
    run(renew_due(attempt.runtime, [attempt]))
    assert attempt.lease.lost == "its lease ended before it was renewed"
    assert attempt.lease.version == 5
    assert script.losses == 1


def calls_of_settling(script: Scripted, *answers: BaseException | None) -> list[tuple[float, float]]:
    """Settle in the background, and return when each try was made, and the limit that it was given."""
    made: list[tuple[float, float]] = []
    left = list(answers)

    async def settle(limit: float) -> None:
        made.append((script.now() - START, limit - script.now()))
        answer = left.pop(0) if left else lost()
        if answer is not None:
            raise answer

    run(run_clean_ups(cast("Runtime", script), deque([CleanUp(settle, START + 20.0)])))
    return made


def test_what_gets_no_answer_is_settled_later() -> None:
    """With pauses that double, up to the longest wait, and no longer than it has to be."""
    made = calls_of_settling(Scripted())
    assert [when for when, _ in made] == [0.25, 0.75, 1.75, 3.75, 7.75, 12.75, 17.75]
    assert (FIRST_PAUSE, LONGEST_WAIT) == (0.25, 5.0)
    assert {limit for _, limit in made} == {PATIENCE}


@pytest.mark.parametrize("answer", [None, StoreError("refused"), ValueError("refused"), LockLost("it is over")])
def test_any_answer_settles_it(answer: Exception | None) -> None:
    """A refusal is an answer, too."""
    assert len(calls_of_settling(Scripted(), lost(), lost(), answer)) == 3


def test_one_clean_up_asks_for_all_until_the_store_answers() -> None:
    """Many acquires that got no answer do not multiply the requests to a store that hangs; then all are cleaned up."""
    script, tried, hangs = Scripted(), list[tuple[int, float]](), 3

    def clean_up(number: int) -> CleanUp:
        async def settle(_limit: float) -> None:
            tried.append((number, script.now() - START))
            if len(tried) <= hangs:
                raise lost()

        return CleanUp(settle, START + (1.0 if number == 4 else 20.0))

    run(run_clean_ups(cast("Runtime", script), deque(map(clean_up, range(5)))))
    assert tried == [(0, 0.25), (1, 0.75), (2, 1.75), (3, 3.75), (0, 3.75), (1, 3.75), (2, 3.75)]


def test_the_pauses_begin_anew_after_an_answer() -> None:
    """If the store then hangs again."""
    script, tried = Scripted(), list[float]()
    answers = [lost(), lost(), None, lost(), None]

    async def settle(_limit: float) -> None:
        tried.append(script.now() - START)
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    run(run_clean_ups(cast("Runtime", script), deque([CleanUp(settle, START + 60.0)] * 2)))
    assert tried == [0.25, 0.75, 1.75, 1.75, 2.0]


def test_a_record_that_is_seen_has_the_fence_of_its_tenure() -> None:
    """The first record's version; later ones have it written in; where nothing is, there is none."""
    record = present(held(Scripted()).first(START).record)
    assert Observed(7, record).fence == 7
    assert Observed(9, record._replace(fence=7)).fence == 7
    assert NOTHING.fence == 0
