"""Single steps of renewals that travel together, at a store whose answers are written down."""

from __future__ import annotations

from typing import cast

import pytest

from caslock.errors import StoreError, StoreUnavailable
from caslock.protocol.attempt import Attempt, Retry
from caslock.protocol.lease import margin
from caslock.protocol.life import State
from caslock.protocol.record import Record, decode, encode
from caslock.protocol.renew import renew, renew_due
from caslock.protocol.writes import FREE_TTL, InFlight
from caslock.store import Entry
from tests.support.life import force
from tests.support.scripted import OURS, PATIENCE, START, TTL, Mutex, Scripted, held, lost, run

THEIRS = Entry(encode(Record("host:other", ("other.1",), TTL, "other.1.1", 9)), 9)
DUE = START + 10


def holders(script: Scripted, count: int = 2, retry: Retry = Retry()) -> list[Attempt]:
    script.batching = script
    attempts = [held(script, retry, key=f"key{number}") for number in range(count)]
    script.clock = DUE
    return attempts


def kept(attempts: list[Attempt]) -> list[Attempt]:
    alone = run(renew_due(attempts[0].runtime, attempts))
    assert not any(cast("Mutex", attempt.mutex).taken for attempt in attempts)
    return alone


def renewed(attempt: Attempt, when: float = DUE) -> bool:
    return attempt.lease.version == 6 and attempt.lease.deadline == when + TTL - margin(TTL)


def test_several_renewals_are_one_request() -> None:
    """All of them are renewed by it; one alone, or at a store that takes one at a time, has a request of its own."""
    for count, batches, verbs in ((2, True, ["put_many"]), (1, True, ["put"]), (2, False, ["put", "put"])):
        script = Scripted(Entry(OURS, 6), Entry(OURS, 6))
        attempts = holders(script, count)
        script.batching = script if batches else None
        assert kept(attempts) == []
        assert script.verbs == verbs
        assert renewed(attempts[0])
        assert attempts[-1].lease.version == 6


@pytest.mark.parametrize(("puts", "asked"), [(0, 1), (1, 2), (5, 2)])
def test_a_batch_without_an_answer_is_written_once_more(puts: int, asked: int) -> None:
    """Unless nothing is to be written again; then only the deadline ends a lease."""
    script = Scripted(*[lost()] * asked)
    attempts = holders(script, retry=Retry(1, puts))
    assert kept(attempts) == []
    assert script.verbs == ["put_many"] * asked
    for attempt in attempts:
        assert not attempt.lease.lost
        assert (attempt.lease.version, len(attempt.writes.in_flight)) == (5, asked)


def test_the_second_answer_renews_from_its_own_request() -> None:
    """The lease counts from when the write was sent that is there."""
    attempts = holders(Scripted(lost(), Entry(OURS, 6)))
    kept(attempts)
    assert all(renewed(attempt, DUE + 2.0) for attempt in attempts)


def test_a_store_that_hangs_is_not_asked_again_at_once() -> None:
    """A release that waits for these renewals waits for one request."""
    script = Scripted(lost(), Entry(OURS, 6))
    script.takes = PATIENCE
    attempts = holders(script)
    kept(attempts)
    assert script.verbs == ["put_many"]
    assert [each.lease.failure for each in attempts] == [str(lost())] * 2
    script = Scripted(lost(), lost())
    script.takes = PATIENCE
    attempt = held(script)
    with pytest.raises(StoreUnavailable):
        run(renew(attempt.runtime, attempt, None))
    assert script.verbs == ["put"]


@pytest.mark.parametrize("answer", [StoreError("refused"), ValueError("too long"), None], ids=repr)
def test_a_batch_that_is_refused_is_renewed_one_by_one(answer: Exception | None) -> None:
    """One of them is the reason: each alone shows which."""
    script = Scripted(answer)
    attempts = holders(script)
    assert kept(attempts) == attempts
    assert script.verbs == ["put_many"]
    assert not any(attempt.writes.in_flight for attempt in attempts)


def test_a_renewal_that_is_refused_alone_is_no_loss() -> None:
    """It is due again soon, and says why if the lease ends before."""
    (attempt,) = holders(Scripted(StoreError("refused")), 1)
    assert kept([attempt]) == []
    assert (attempt.lease.lost, attempt.lease.failure) == ("", "refused")
    assert attempt.lease.due == DUE + TTL / 12


def test_a_renewal_behind_a_shorter_extension_is_due_again_within_it() -> None:
    """The extension waits for its answer, and the lease is believed to be shorter already."""
    (attempt,) = holders(Scripted(), 1)
    attempt.lease.asked, attempt.lease.deadline = 0.6, DUE + 0.2
    cast("Mutex", attempt.mutex).taken = True
    assert run(renew_due(attempt.runtime, [attempt])) == []
    assert attempt.lease.due == pytest.approx(DUE + 0.6 / 12)


def test_an_interrupted_batch_may_land() -> None:
    """The interrupt is passed on, and nobody keeps a mutex."""
    attempts = holders(Scripted(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(renew_due(attempts[0].runtime, attempts))
    assert all(attempt.writes.in_flight and not cast("Mutex", attempt.mutex).taken for attempt in attempts)


def test_an_extension_counts_once_it_was_accepted() -> None:
    """A ttl that the store refuses is not that of later renewals, and a renewal makes no other of an extension."""
    script = Scripted(ValueError("too long"), Entry(OURS, 6), Entry(OURS, 7), Entry(OURS, 8))
    attempt = held(script)
    with pytest.raises(ValueError, match="too long"):
        run(renew(attempt.runtime, attempt, 3600.0))
    for ttl, after in ((None, TTL), (60.0, 60.0), (None, 60.0)):
        run(renew(attempt.runtime, attempt, ttl))
        assert attempt.lease.ttl == after
        assert decode(script.written[-1]).ttl == after


def test_one_loss_is_that_one_alone() -> None:
    """The others were not written because of it, and are written again without it."""
    script = Scripted(THEIRS, Entry(OURS, 6))
    attempts = holders(script)
    record = attempts[1].lease.record
    assert record is not None
    script.mixed = [THEIRS, Entry(encode(record), 5)]
    assert kept(attempts) == []
    assert script.verbs == ["put_many", "put_many"]
    assert attempts[0].lease.lost.startswith("it is held by host:other")
    assert renewed(attempts[1], DUE + 2.0)
    assert len(script.written) == 3


def test_a_lease_that_is_over_is_left_out() -> None:
    """It is reported, and the others are renewed."""
    script = Scripted(Entry(OURS, 6))
    attempts = holders(script)
    attempts[0].lease.deadline = DUE
    kept(attempts)
    assert attempts[0].lease.lost == "its lease ended before it was renewed"
    assert renewed(attempts[1])
    assert len(script.written) == 1


def test_what_is_being_released_is_not_renewed() -> None:
    """Nothing is sent for it, and its end is no loss."""
    for count in (1, 2):
        script = Scripted()
        attempts = holders(script, count)
        for attempt in attempts:
            attempt.state = State.LEAVING
            attempt.lease.deadline = DUE
        kept(attempts)
        for attempt in attempts:
            force(attempt, State.HELD)
            attempt.lease.record = None
        kept(attempts)
        assert script.asked == []
        assert script.losses == 0


def test_what_is_being_extended_is_not_renewed() -> None:
    """Nothing waits for the answer to the extension, and nothing undoes it."""
    script = Scripted()
    attempts = holders(script)
    for attempt in attempts:
        cast("Mutex", attempt.mutex).taken = True
    assert run(renew_due(attempts[0].runtime, attempts)) == []
    assert script.asked == []


def test_a_renewal_forgets_what_can_land_no_more() -> None:
    """A hold may live longer than its first put."""
    (attempt,) = holders(Scripted(Entry(OURS, 6)), 1)
    attempt.writes.in_flight["mine.1.99"] = InFlight(3, DUE - FREE_TTL, TTL)
    kept([attempt])
    assert attempt.writes.in_flight == {}


def test_a_record_without_our_hold_is_lost() -> None:
    """Even if it has our owner and our fence."""
    theirs = Entry(encode(Record("me", ("other.1",), TTL, "other.1.1", 5)), 9)
    script = Scripted(theirs)
    (attempt,) = holders(script, 1)
    kept([attempt])
    assert attempt.lease.lost
