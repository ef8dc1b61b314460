"""One request and its answer, at a store whose answers are written down: what is asked again, and until when."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, cast

import pytest

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.protocol.attempt import Attempt, Retry
from caslock.protocol.clean_up import FIRST_PAUSE, CleanUp, run_clean_ups
from caslock.protocol.contention import Contention
from caslock.protocol.exchange import RETRY_PAUSE, note_write, read, write_surely
from caslock.protocol.exchange import send as write_once
from caslock.protocol.lease import NEVER
from caslock.protocol.limits import LONGEST_WAIT
from caslock.protocol.record import NOTHING, Observed, Record
from caslock.protocol.renew import renew_due
from caslock.store import ABSENT, WOKEN, Entry
from tests.support.scripted import OURS, PATIENCE, STAMP, START, TAKES, TTL, Scripted, an_attempt, held, lost, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.protocol.runtime import Runtime


def a_write(script: Scripted, limit: float, retry: Retry = Retry()) -> tuple[Attempt, Callable[[], object]]:
    """Begin to write the record of an attempt."""
    attempt = an_attempt(script, retry)
    record = attempt.first(START).record
    return attempt, lambda: run(write_surely(cast("Runtime", script), attempt, ABSENT, record, START + limit))


def test_a_read_is_repeated_as_often_as_it_may_be() -> None:
    """`retry.get` times, each after a short pause, and not at or after the limit."""
    for times, limit, asks in ((0, 100.0, 1), (1, 100.0, 2), (3, 100.0, 4), (3, TAKES, 1), (3, 2 * TAKES + 0.01, 2)):
        script = Scripted(lost(), lost(), lost(), lost())
        attempt = an_attempt(script, Retry(times, 1))
        with pytest.raises(StoreUnavailable):
            run(read(cast("Runtime", script), attempt, START + limit))
        assert len(script.asked) == asks, (times, limit)
    script = Scripted(lost(), None)
    assert run(read(cast("Runtime", script), an_attempt(script), NEVER)) == NOTHING


def test_a_pause_between_two_tries_stays_within_the_limit() -> None:
    """No try begins where the longest pause might have ended after the limit."""
    script = Scripted(lost(), lost(), lost())
    with pytest.raises(StoreUnavailable):
        run(read(cast("Runtime", script), an_attempt(script, Retry(5, 1)), START + 2 * TAKES + RETRY_PAUSE))
    assert len(script.asked) == 2


def test_a_write_without_an_answer_is_read_before_it_is_repeated() -> None:
    """What is there decides: it was applied, or somebody else was first, or it is written again."""
    other = Entry(b"something else", 7)
    script = Scripted(lost(), other)
    _, write = a_write(script, 100.0)
    observed = cast("Observed", write())
    assert (observed.version, script.verbs) == (7, ["put", "get"])
    for retry, verbs in ((Retry(1, 0), ["put", "get"]), (Retry(1, 1), ["put", "get", "put", "get"])):
        script = Scripted(lost(), None, lost(), None)
        attempt, write = a_write(script, 100.0, retry)
        with pytest.raises(StoreUnavailable):
            write()
        assert script.verbs == verbs
        assert len(attempt.writes.in_flight) == verbs.count("put"), "each has an id of its own, and may land"
    script = Scripted(lost(), None, lost(), other)
    _, write = a_write(script, 100.0)
    assert cast("Observed", write()).version == 7


def test_a_write_that_may_have_been_applied_does_not_fail_as_one_that_was_never_sent() -> None:
    """It got no answer, and then no connection can be opened."""
    refused = [StoreUnavailable("connection refused", sent=False) for _ in range(3)]
    for answers, was_sent in (([lost(), *refused], True), (refused, False)):
        _, write = a_write(Scripted(*answers), 100.0)
        with pytest.raises(StoreUnavailable) as caught:
            write()
        assert caught.value.sent == was_sent


def test_a_write_that_was_sent_at_last_may_have_been_applied() -> None:
    """At first no connection could be opened."""
    script = Scripted(StoreUnavailable("connection refused", sent=False), None, lost(), None)
    _, write = a_write(script, 100.0)
    with pytest.raises(StoreUnavailable) as caught:
        write()
    assert caught.value.sent


def test_a_removal_that_woke_another_process_was_applied() -> None:
    """The store says so by an entry without a version; any other entry shows that it was not."""
    for answer, timely in ((None, 1), (WOKEN, 1), (Entry(b"theirs", 9), 0)):
        script = Scripted(answer)
        attempt = held(script)
        run(write_once(cast("Runtime", script), attempt, note_write(attempt, attempt.lease.version, None, START)))
        assert len(attempt.writes.releases) == timely


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
    script = Scripted(error, None, error, None)
    attempt, write = a_write(script, 100.0)
    with pytest.raises(type(error)):
        write()
    assert attempt.writes.in_flight == {}


def test_an_interrupted_write_may_land() -> None:
    """Nobody knows what has become of it."""
    script = Scripted(KeyboardInterrupt())
    attempt, write = a_write(script, 100.0)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert attempt.writes.may_land(ABSENT)


def test_our_own_pauses_double_up_to_half_a_second() -> None:
    """The longest that each can be: 5 ms, and 1 ms more for each process that had the key, doubled each time."""
    for crowd, first in ((1, 0.006), (3, 0.008)):
        longest = [0.0] * 9
        for _ in range(400):
            contention, first_pause = Contention(None), 0.0
            for pid in range(1, crowd + 1):
                record = Record("owner", ("hold",), TTL, "write", pid, 0.0, *STAMP._replace(pid=pid))
                contention.meet(Observed(pid, record), START)
                first_pause = contention.pause()
            others = [contention.pause() for _ in longest[1:]]
            longest = [*map(max, longest, [first_pause, *others])]
        for number, long in enumerate(longest):
            most = min(0.5, first * 2**number)
            assert 0.9 * most < long <= most, number


def test_a_renewal_without_an_answer_is_due_again_soon() -> None:
    """After a twelfth of its ttl or half of what is left, but not at once; at its deadline at the latest."""
    for passed, due in ((10.0, 12.5), (27.0, 27.0 + (TTL - 0.302 - 27.0) / 2), (29.0, 29.5), (29.5, TTL - 0.302)):
        script = Scripted(lost(), lost(), lost(), lost())
        attempt = held(script)
        script.clock += passed
        assert run(renew_due(cast("Runtime", script), [attempt])) == []
        assert attempt.lease.due == pytest.approx(START + due)
        assert not attempt.lease.lost


def test_two_holds_of_one_key_are_not_renewed_in_one_request() -> None:
    """The second one is left to be renewed alone."""
    script = Scripted(None, None)
    one, other = held(script), held(script)
    assert run(renew_due(cast("Runtime", script), [one, other])) == [other]


def test_an_answer_after_the_deadline_revives_nothing() -> None:
    """The renewal was applied, but its lease was over, and may have been reported, before that was known."""
    script = Scripted(Entry(OURS, 6))
    attempt = held(script)
    script.clock = attempt.lease.deadline - 1.0
    run(renew_due(cast("Runtime", script), [attempt]))
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
    record = held(Scripted()).first(START).record
    assert record is not None
    assert Observed(7, record).fence == 7
    assert Observed(9, record._replace(fence=7)).fence == 7
    assert NOTHING.fence == 0
