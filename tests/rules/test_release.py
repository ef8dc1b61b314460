"""Single steps of a release, a hand-over and a removal by force, at a store whose answers are written down."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import cast

import pytest

from caslock.errors import LockLost, NotAcquired, StoreError, StoreUnavailable
from caslock.protocol.attempt import Attempt, Retry
from caslock.protocol.batch import put_together, remove_together
from caslock.protocol.exchange import Sent, note_write, send
from caslock.protocol.hand_over import HandOver, hand_over
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.life import State
from caslock.protocol.limits import PASSES
from caslock.protocol.record import NOTHING, Observed, Record, decode, encode, observed_in
from caslock.protocol.release import force_release, release, release_quietly
from caslock.protocol.runtime import Event, Runtime
from caslock.protocol.withdraw import give_up, step_back, withdraw
from caslock.protocol.writes import FREE_TTL, InFlight
from caslock.store import ABSENT, WOKEN, Entry
from tests.support.life import force
from tests.support.locations import present
from tests.support.scripted import (
    OURS,
    PATIENCE,
    START,
    TTL,
    Bell,
    Mutex,
    Scripted,
    an_attempt,
    held,
    lost,
    refused,
    run,
)

OTHER = Record("host:other", ("other.1",), TTL, "other.1.1", 4, host="host", pid=8)
THEIRS = Entry(encode(OTHER), 9)
REFUSALS = (StoreError("refused"), StoreUnavailable("", sent=False))
FREED = Entry(encode(OTHER._replace(holds=())), 9)


def released(attempt: Attempt, limit: float = float("inf")) -> Lease:
    run(release(attempt.runtime, attempt, limit))
    return attempt.lease


def test_a_release_is_one_removal() -> None:
    """A second one makes no request, and no renewal begins after it."""
    script = Scripted(None)
    attempt = held(script)
    released(attempt)
    assert attempt.state is State.OVER
    script.clock = attempt.lease.deadline
    released(attempt)
    assert script.verbs == ["invalidate"]
    assert not attempt.woken


def test_a_removal_that_woke_another_process_is_noted() -> None:
    """The store says so by a version of its own."""
    attempt = held(Scripted(WOKEN))
    released(attempt)
    assert attempt.woken
    assert observed_in(WOKEN) == NOTHING


@pytest.mark.parametrize(("first", "sent"), [([refused()], False), ([lost(), refused(), refused()], True)])
def test_a_release_says_whether_it_may_have_been_applied(first: list[BaseException], *, sent: bool) -> None:
    """One whose first request got no answer does, in that call and in the next, though no connection can be opened."""
    attempt = held(Scripted(*first, *[refused() for _ in range(12)]))
    for attempt.min_hold in (0.0, 0.0, 77.0):
        with pytest.raises(StoreUnavailable) as caught:
            released(attempt)
        assert caught.value.sent is sent
        assert str(caught.value).endswith(f"expires within {max(TTL, attempt.min_hold):g} s")
    attempt.lease.max_hold, attempt.min_hold = TTL / 4, 0.0
    with pytest.raises(StoreUnavailable, match=f"expires within {TTL / 4:g} s$"):
        released(attempt)


def test_a_release_that_was_sent_after_the_lease_may_have_been_applied() -> None:
    """It began in time, but then no connection could be opened at first."""
    script = Scripted(refused(), Entry(OURS, 5), lost(), Entry(OURS, 5))
    attempt = held(script)
    script.written.append(encode(present(attempt.lease.record)))
    script.clock = attempt.lease.deadline - 1.0
    with pytest.raises(StoreUnavailable) as caught:
        released(attempt)
    assert script.verbs == ["invalidate", "get", "invalidate", "get"]
    assert not attempt.writes.releases
    assert caught.value.sent


@pytest.mark.parametrize("gone", [False, True])
def test_a_release_waits_for_the_renewal_under_way(*, gone: bool) -> None:
    """Unless the event loop of the renewal has ended."""
    script = Scripted(None)
    script.gone = gone
    attempt = held(script)
    mutex = cast("Mutex", attempt.mutex)
    mutex.taken = True
    released(attempt)
    assert mutex.waits == (not gone)
    assert not mutex.taken


@pytest.mark.parametrize("late", [False, True])
def test_the_time_of_a_release_counts_from_its_removal(*, late: bool) -> None:
    """The answer shows our hold in a co-holder's record; the lease may have ended meanwhile."""
    script = Scripted(lost(), lost(), lost())
    script.takes = 0.95 * PATIENCE
    attempt = held(script)
    lease = attempt.lease
    assert lease.record is not None
    sent = lease.deadline - 1 if late else START
    removal = note_write(attempt, lease.version, None, sent)
    attempt.writes.drop(removal.id)  # it was not applied
    script.clock = sent + script.takes
    theirs = lease.record._replace(holds=("another.1", attempt.hold_id), write="another.1.2")
    with pytest.raises(StoreUnavailable, match="no answer"):
        run(release(attempt.runtime, attempt, removed=Sent(removal, Observed(9, theirs))))
    assert script.verbs == ["put", "get"]
    assert script.clock <= sent + 3 * PATIENCE


@pytest.mark.parametrize("answer", [None, lost()])
def test_a_release_after_the_lease_is_a_loss(answer: StoreUnavailable | None) -> None:
    """Another owner may have held the key, whatever the store answers; it is asked once."""
    script = Scripted(answer)
    attempt = held(script)
    script.clock = attempt.lease.deadline
    with pytest.raises(LockLost, match="its lease ended before it was released"):
        released(attempt)
    assert script.verbs == ["invalidate"]
    assert script.losses == 1
    assert attempt.lease.record is not None
    assert (attempt.state is State.OVER) is (answer is None)  # else its record remains to be released


def test_a_release_that_is_interrupted_at_a_loss_finds_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else the caller would never hear of it."""
    attempt = held(Scripted(THEIRS, THEIRS))

    def interrupted(_attempt: Attempt, _why: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "lose", interrupted)
        with pytest.raises(KeyboardInterrupt):
            released(attempt)
    with pytest.raises(LockLost, match="it is held by host:other"):
        released(attempt)


def test_a_release_without_an_answer_can_be_called_again() -> None:
    """It was sent in time, so whatever is there later, or if there is no answer again, it is no loss."""
    script = Scripted(lost(), lost(), lost(), lost(), THEIRS)
    attempt = held(script)
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as raised:
            released(attempt)
        assert str(raised.value).count("call release() again") == 1
        assert attempt.state is State.UNSETTLED
        assert attempt.writes.releases
        script.clock = attempt.lease.deadline
    released(attempt)
    assert attempt.state is State.OVER
    assert script.losses == 0


def test_a_first_put_that_may_be_late_is_kept_out_wherever_the_key_is_free() -> None:
    """The hand-over got no answer, and nothing is there: a free record takes the place of nothing."""
    script = Scripted(lost(), None, Entry(OURS, 8))
    attempt = held(script)
    attempt.writes.in_flight["mine.1.9"] = InFlight(ABSENT, START, TTL)
    attempt.turn.outgoing = HandOver(an_attempt(script))
    released(attempt)
    assert script.verbs == ["put", "get", "put"]
    assert decode(script.written[-1]).free


def test_a_record_that_keeps_changing_is_written_until_the_limit() -> None:
    """Many co-holders are leaving at once: each try may be the one."""
    script = Scripted()
    attempt = held(script)
    record = present(attempt.lease.record)
    both = encode(record._replace(holds=("other.1", *record.holds), write="other.1.1", fence=5))
    script.answers = [Entry(both, 7 + number) for number in range(99)]
    with pytest.raises(StoreUnavailable, match="its record kept changing until the deadline"):
        withdrawn(attempt, START + 40)
    assert len(script.asked) == 20


def withdrawn(attempt: Attempt, limit: float) -> Observed:
    start = Observed(attempt.lease.version, attempt.lease.record)
    return run(withdraw(attempt.runtime, attempt, start, limit))


def test_a_release_without_an_answer_is_no_loss_though_another_has_the_key_by_then() -> None:
    """It was applied in time, and then another owner took the key."""
    script = Scripted(lost(), THEIRS)
    released(held(script))
    assert script.verbs == ["invalidate", "get"]


@pytest.mark.parametrize(
    ("error", "late"), [(KeyboardInterrupt, False), (KeyboardInterrupt, True), (StoreError, False)]
)
@pytest.mark.parametrize("answer", [None, THEIRS])
def test_an_interrupted_release_was_made_if_it_was_sent_in_time(
    answer: Entry | None, error: type[BaseException], *, late: bool
) -> None:
    """It is finished by another call, which finds nothing, or somebody else; one that was refused was not made."""
    script = Scripted(error("refused"), answer)
    attempt = held(script)
    script.clock += TTL * late
    with pytest.raises(error, match="refused"):
        released(attempt)
    script.clock = attempt.lease.deadline
    with pytest.raises(LockLost) if late or error is StoreError else contextlib.nullcontext():
        released(attempt)


def test_the_release_of_what_was_lost_is_tried_once() -> None:
    """Its lease would last: it was taken away, so nobody waits for the answer."""
    script = Scripted(lost())
    attempt = held(script)
    attempt.lose("it was taken away")
    with pytest.raises(LockLost, match="it was taken away"):
        released(attempt)
    assert script.verbs == ["invalidate"]


@pytest.mark.parametrize(
    ("late", "there", "why"),
    [
        (False, NOTHING, "its record is no longer at scripted"),
        (False, Observed(9, OTHER), "it is held by host:other"),
        (True, NOTHING, "its lease ended before it was released"),
        (True, Observed(9, OTHER), "it is held by host:other"),
    ],
)
def test_a_release_says_why_it_was_lost(there: Observed, why: str, *, late: bool) -> None:
    """By what was there, or by its end, if nothing was there then."""
    script = Scripted()
    attempt = held(script)
    if late:
        script.clock = attempt.lease.deadline
    with pytest.raises(LockLost, match=why):
        run(release(attempt.runtime, attempt, removed=there))


@pytest.mark.parametrize(("limit", "asked"), [(float("inf"), 2), (1.0, 1), (100.0, 2)])
def test_a_release_lasts_two_request_timeouts_longer_than_its_first_request(limit: float, asked: int) -> None:
    """After a failure no request begins later than that, nor at the caller's limit."""
    script = Scripted(lost(), lost(), lost(), lost())
    script.takes = PATIENCE
    with pytest.raises(StoreUnavailable):
        released(held(script), START + limit)
    assert len(script.asked) == asked


def test_a_release_in_the_background_tells_what_is_left() -> None:
    """A loss with an answer has released it; one without has to be tried again."""
    script = Scripted(THEIRS)
    run(release_quietly(cast("Runtime", script), held(script), START + 100))
    script = Scripted(lost())
    attempt = held(script)
    script.clock = attempt.lease.deadline
    with pytest.raises(StoreUnavailable, match="scripted://"):
        run(release_quietly(attempt.runtime, attempt, START + 100))


def forced(script: Scripted) -> Record | None:
    return run(force_release(cast("Runtime", script), an_attempt(script)))


@pytest.mark.parametrize("there", [None, FREED])
def test_nobody_is_not_released_by_force(there: Entry | None) -> None:
    """Where nobody holds the key, `force_release` reads, and writes nothing."""
    script = Scripted(there)
    assert forced(script) is None
    assert script.verbs == ["get"]


def test_a_free_record_takes_the_place_of_what_is_released_by_force() -> None:
    """Whoever held the key is told, with its fence."""
    script = Scripted(THEIRS, Entry(OURS, 10))
    assert forced(script) == OTHER
    written = decode(script.written[0])
    assert written.free
    assert written.ttl == FREE_TTL
    assert forced(Scripted(Entry(encode(OTHER._replace(fence=None)), 9), Entry(OURS, 10))) == OTHER._replace(fence=9)


def test_a_refused_removal_by_force_says_who_holds_the_key() -> None:
    """And why the store refuses."""
    with pytest.raises(StoreError, match=re.escape(f"read-only; it is held by {OTHER}")):
        forced(Scripted(THEIRS, StoreError("read-only.")))


def test_a_removal_by_force_without_an_answer_does_not_say_who_holds_the_key() -> None:
    """It may have been applied."""
    with pytest.raises(StoreUnavailable) as caught:
        forced(Scripted(THEIRS, *[lost() for _ in range(9)]))
    assert "held by" not in str(caught.value)


def test_force_is_not_used_twice() -> None:
    """When a request was lost, the next holder is spared; a renewal of the same one is not."""
    next_one = Entry(encode(OTHER._replace(holds=("other.2",), fence=12)), 12)
    script = Scripted(THEIRS, lost(), next_one)
    assert forced(script) == OTHER
    assert len(script.written) == 1
    assert forced(Scripted(THEIRS, lost(), None)) == OTHER
    script = Scripted(THEIRS, Entry(THEIRS.value, 10), Entry(OURS, 11))
    assert forced(script) == OTHER
    assert len(script.written) == 2


def test_force_gives_up_in_time() -> None:
    """No request begins later than two request timeouts after the first."""
    script = Scripted(lost(), lost(), lost())
    script.takes = PATIENCE
    with pytest.raises(StoreUnavailable):
        run(force_release(cast("Runtime", script), an_attempt(script, Retry(5, 5))))
    assert script.verbs == ["get", "get"]


def test_a_record_that_keeps_changing_is_not_released() -> None:
    """After as many tries, that is an error."""
    script = Scripted(*(Entry(THEIRS.value, 9 + number) for number in range(PASSES + 1)))
    with pytest.raises(StoreUnavailable, match="its record kept changing; gave up after 8 tries"):
        forced(script)


def test_what_caslock_did_not_write_is_not_released() -> None:
    """It is held by somebody that caslock does not know."""
    with pytest.raises(StoreError, match="is held by an unknown owner"):
        forced(Scripted(Entry(b"what is this?", 9)))


class Handing:
    def __init__(self, *answers: Entry | BaseException | None) -> None:
        self.script = Scripted(*answers)
        self.holder = held(self.script)
        self.successor = an_attempt(self.script, ttl=20.0)
        self.event = Bell()
        self.successor.turn.event = cast("Event", self.event)
        self.outgoing = HandOver(self.successor)

    def go(self, limit: float = 100.0) -> Observed:
        coroutine = hand_over(self.holder.runtime, self.holder, self.outgoing, START + limit)
        return run(coroutine)

    def kept(self) -> bool:
        """Whether what it returns is the holder's own record, and no request is in flight."""
        ours = Observed(self.holder.lease.version, self.holder.lease.record)
        return self.go() == ours and not self.script.asked and not self.successor.writes.in_flight


def test_a_hand_over_is_one_put() -> None:
    """The answer shows the successor's record, whose put is in flight until the successor has seen it."""
    handing = Handing(Entry(OURS, 6))
    observed = handing.go()
    record = present(observed.record)
    assert handing.successor.is_in(record)
    assert (observed.version, record.ttl) == (6, 20.0)  # its own
    assert handing.script.verbs == ["put"]
    assert handing.successor.writes.may_land(5)
    assert handing.outgoing.pending


def test_a_release_hands_over_once() -> None:
    """Its successor has the answer, and nothing is left of it."""
    handing = Handing(Entry(OURS, 6))
    handing.holder.turn.outgoing = handing.outgoing
    handing.successor.hold_id = "mine.2"
    released(handing.holder)
    assert handing.script.verbs == ["put"]
    assert present(handing.outgoing.outcome).version == 6
    assert handing.holder.turn.outgoing is None


def test_a_hand_over_after_the_lease_is_no_release_in_time() -> None:
    """Whatever has become of it."""
    for answer in (Entry(OURS, 6), THEIRS, None, StoreError("refused"), lost()):
        handing = Handing(answer, THEIRS)
        handing.script.clock = handing.holder.lease.deadline
        handing.go()
        assert not handing.holder.writes.releases


def test_a_hand_over_that_leaves_a_quarantine_goes_on_with_it() -> None:
    """The successor takes over the free record that a release would have left."""
    handing = Handing(Entry(OURS, 6))
    lease = handing.holder.lease
    lease.record = present(lease.record)._replace(quarantine=50.0, quarantine_id="other.1.1")
    record = present(handing.go().record)
    assert (record.quarantine, record.ttl, record.fence) == (50.0, 20.0, None)
    assert handing.successor.writes.may_land(5)


def test_a_hand_over_that_nobody_waits_for_is_not_sent() -> None:
    """The successor has withdrawn, or is about to, or others hold the key with us."""
    handing = Handing()
    handing.outgoing.pending = False
    assert handing.kept()
    assert handing.outgoing.take(), "nothing was taken"
    handing = Handing()
    assert handing.outgoing.take()
    assert not handing.outgoing.take()
    assert handing.kept()
    handing = Handing()
    lease = handing.holder.lease
    lease.record = present(lease.record)._replace(holds=("other.1", "mine.1"))
    assert handing.kept()
    assert handing.outgoing.take(), "nothing was taken"
    handing = Handing()
    force(handing.successor, State.LEAVING)
    assert handing.kept()


def test_a_successor_that_withdraws_at_this_moment_gets_no_put() -> None:
    """It says that it has gone before it looks; we note the put before we look."""

    class Late(HandOver):
        __slots__ = ()

        def take(self) -> bool:
            self.pending = False
            return True

    handing = Handing()
    handing.outgoing = Late(handing.successor)
    assert handing.kept()


@pytest.mark.parametrize("sent", [True, False])
def test_a_hand_over_without_an_answer_is_told_at_once_if_it_was_sent(*, sent: bool) -> None:
    """The successor reads what has become of it, while we settle our release; else it is woken only after that."""
    handing = Handing(StoreUnavailable("no answer", sent=sent), THEIRS)
    assert handing.go().version == 9
    assert handing.script.verbs == ["put", "get"]
    assert bool(handing.successor.writes.in_flight) is handing.successor.writes.may_land(5) is sent
    assert bool(handing.holder.writes.releases) is sent
    assert handing.outgoing.pending is not sent
    assert handing.event.rung == sent


def test_a_hand_over_without_an_answer_ends_in_time() -> None:
    """Nothing is read at or after the limit."""
    handing = Handing(lost(), THEIRS)
    with pytest.raises(StoreUnavailable):
        handing.go(limit=2.0)
    assert handing.script.verbs == ["put"]


def test_a_hand_over_that_is_refused_leaves_the_key_to_be_released() -> None:
    """The refusal concerns the successor alone, which gets it when it asks."""
    for error in (StoreError("refused"), ValueError("a ttl that is too long")):
        handing = Handing(error)
        assert handing.go().version == 5
        assert not handing.successor.writes.in_flight
        assert handing.outgoing.pending


def test_an_interrupted_hand_over_may_land() -> None:
    """Both have a request without an answer."""
    handing = Handing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        handing.go()
    assert handing.successor.writes.may_land(5)
    assert handing.holder.writes.releases


def test_a_hand_over_is_settled_once() -> None:
    """What it has shown counts as long as it is pending; the successor is woken each time."""
    handing = Handing()
    shown = Observed(6, OTHER)
    handing.outgoing.settle(shown)
    handing.outgoing.settle(NOTHING)
    assert (handing.outgoing.outcome, handing.outgoing.pending, handing.event.rung) == (shown, False, 2)
    handing = Handing()
    handing.outgoing.outcome = shown
    handing.outgoing.settle()
    assert handing.outgoing.outcome == shown
    handing.successor.turn.event = None
    handing.outgoing.settle()


def a_batch(*answers: Entry | BaseException | None) -> tuple[Scripted, list[Attempt]]:
    script = Scripted(*answers)
    script.batching = script
    return script, [held(script), held(script)]


def removed(attempts: list[Attempt]) -> dict[Attempt, Observed]:
    return run(remove_together(attempts[0].runtime, attempts))


@pytest.mark.parametrize(
    ("record", "answer", "left"),
    [
        *((record, answer, 1) for record in ("none", "free") for answer in (lost(), KeyboardInterrupt())),
        *((record, answer, 0) for record in ("none", "free") for answer in (*REFUSALS, THEIRS)),
        ("free", Entry(OURS, 6), 1),
        *(("own", answer, 0) for answer in (lost(), *REFUSALS, THEIRS, Entry(OURS, 6))),
    ],
    ids=repr,
)
def test_what_may_have_left(record: str, answer: Entry | BaseException, left: int) -> None:
    """A write without our hold id counts unless it was certainly refused; one with it is no release."""
    script = Scripted(answer)
    attempt = held(script)
    written = {"none": None, "free": attempt.free_record(START), "own": attempt.lease.record}[record]
    with contextlib.suppress(StoreError, KeyboardInterrupt):
        run(send(attempt.runtime, attempt, note_write(attempt, 5, written, script.now())))
    assert len(attempt.writes.releases) == left


GONE = Entry(b"", ABSENT)


@pytest.mark.parametrize("gone", [False, True])
def test_a_batch_of_releases_is_one_request(*, gone: bool) -> None:
    """Each has left in time, after its renewal; unless the event loop of that has ended."""
    script, attempts = a_batch(GONE)
    script.gone = gone
    for attempt in attempts:
        cast("Mutex", attempt.mutex).taken = True
    assert removed(attempts) == dict.fromkeys(attempts, NOTHING)
    assert all(attempt.ending and attempt.writes.releases for attempt in attempts)
    assert [cast("Mutex", attempt.mutex).waits for attempt in attempts] == [not gone] * 2


def test_no_renewal_begins_while_a_batch_of_releases_waits_for_another() -> None:
    """All are ending before the first wait, or the waits could add up to one request timeout for each key."""
    _, attempts = a_batch(GONE)
    seen: list[list[bool]] = []

    class Seeing(Mutex):
        async def __aenter__(self) -> None:
            seen.append([attempt.ending for attempt in attempts])
            await super().__aenter__()

    attempts[0].mutex = Seeing()
    removed(attempts)
    assert seen == [[True, True]]


def test_a_batch_of_releases_has_only_removals() -> None:
    """What has to leave a free record is released alone; so is the only one that is left."""
    script, attempts = a_batch(GONE)
    attempts[0].writes.in_flight["mine.1.9"] = InFlight(ABSENT, START, TTL)
    assert removed(attempts) == {}
    assert script.asked == []
    script, attempts = a_batch(GONE)
    script.batching = None
    assert removed(attempts) == {}


@pytest.mark.parametrize("late", ["over", "lost", ""])
@pytest.mark.parametrize("answer", [lost(), StoreError("refused"), KeyboardInterrupt(), THEIRS, GONE], ids=repr)
def test_what_a_batch_of_releases_has_shown(answer: Entry | BaseException, late: str) -> None:
    """A release that was sent in time, and may have been applied, was made in time."""
    script, attempts = a_batch(answer)
    if late == "over":
        script.clock = attempts[0].lease.deadline
    elif late == "lost":
        for attempt in attempts:
            attempt.lose("it was lost")
    if isinstance(answer, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            removed(attempts)
    else:
        assert len(removed(attempts)) == (0 if isinstance(answer, Exception) else 2)
    applied = not late and answer is not THEIRS and type(answer) is not StoreError
    assert [bool(attempt.writes.releases) for attempt in attempts] == [applied, applied]


def test_a_batch_of_first_puts() -> None:
    """All or none; after no answer each may land, and has to ask by itself."""
    script = Scripted(Entry(OURS, 6))
    attempts = [an_attempt(script)]
    assert run(put_together(attempts[0].runtime, attempts, {})) is None
    assert script.asked == []
    for answer, in_flight, known in ((lost(), 1, 0), (StoreError("refused"), 0, 0), (None, 0, None), (THEIRS, 0, 1)):
        script = Scripted(answer)
        script.batching = script
        attempts = [an_attempt(script)]
        answers = run(put_together(attempts[0].runtime, attempts, {}))
        assert (None if answers is None else len(answers)) == known
        assert len(attempts[0].writes.in_flight) == in_flight
    script = Scripted(ValueError("a ttl that is too long"))
    script.batching = script
    attempts = [an_attempt(script)]
    with pytest.raises(ValueError, match="too long"):
        run(put_together(attempts[0].runtime, attempts, {}))
    assert not attempts[0].writes.in_flight


def given_up(script: Scripted, error: BaseException, *, in_flight: int | None = ABSENT) -> tuple[Attempt, str]:
    """Give up an attempt with a write in flight, and return what is raised, or else the notes of the error."""
    attempt = an_attempt(script)
    if in_flight is not None:
        attempt.first(START, in_flight)
    try:
        run(give_up(attempt.runtime, attempt, error))
    except StoreError as raised:
        return attempt, f"{type(raised).__name__}: {raised}"
    return attempt, " ".join(getattr(error, "__notes__", []))


def test_what_has_sent_nothing_leaves_nothing() -> None:
    """The error says so, and keeps its kind."""
    script = Scripted()
    for error, said in (
        (lost(), "StoreUnavailable: could not acquire lock 'key': no answer; nothing was left behind"),
        (StoreError("refused."), "StoreError: could not acquire lock 'key': refused; nothing was left behind"),
        (NotAcquired("busy"), ""),
        (KeyboardInterrupt(), ""),
    ):
        assert given_up(script, error, in_flight=None)[1] == said
    assert script.asked == []


def test_a_put_that_may_land_is_kept_out_by_a_free_record() -> None:
    """Then nothing is left behind."""
    script = Scripted(None, Entry(OURS, 7))
    attempt, said = given_up(script, lost())
    assert said.startswith("StoreUnavailable: could not acquire")
    assert attempt.state is State.OVER
    assert attempt.ending
    assert decode(script.written[0]).free
    script = Scripted(THEIRS)
    assert given_up(script, lost(), in_flight=5)[1].startswith("StoreUnavailable: could not acquire")
    assert script.verbs == ["get"], "the version that it expects has passed"


def test_a_put_that_waits_behind_another_owner_is_told() -> None:
    """It can't be kept out, so the outcome is unknown; where the key was busy, that is a note."""
    wording = "could not acquire lock 'key', and a request may still be applied at scripted:// once host:other"
    attempt, said = given_up(Scripted(THEIRS), lost())
    assert said.startswith(f"OutcomeUnknown: {wording}")
    assert said.endswith("within 30 s after that")
    assert attempt.state is State.OVER
    for error in (NotAcquired("busy"), KeyboardInterrupt(), StoreError("refused")):
        assert given_up(Scripted(THEIRS), error)[1].startswith(wording)


def test_a_clean_up_without_an_answer_goes_on_in_the_background() -> None:
    """For as long as a packet lives."""
    for error in (lost(), NotAcquired("busy")):
        script = Scripted(lost(), lost())
        attempt, said = given_up(script, error)
        assert said.startswith("OutcomeUnknown: ")
        assert "while this process runs" in said
        assert script.background == [FREE_TTL]
        assert attempt.state is State.OVER
    for other in (KeyboardInterrupt(), StoreError("refused")):
        said = given_up(Scripted(lost(), lost()), other)[1]
        assert said.startswith("could not acquire lock 'key', and a request may still be applied")
        assert "while this process runs" in said


def test_a_clean_up_names_the_place_once_and_what_was_said() -> None:
    """Also if nothing was said."""
    at = "could not acquire lock 'key', and a request may still be applied at scripted:// "
    for error, answers, wording in (
        (lost(), [lost(), lost()], f"{at}(no answer); caslock keeps trying"),
        (lost(), [StoreUnavailable("scripted:// hangs")] * 2, f"{at[:-15]}(scripted:// hangs); caslock keeps trying"),
        (NotAcquired("busy"), [StoreError("no access")], f"{at}and cannot be undone (no access); it"),
        (
            NotAcquired("busy"),
            [StoreError("scripted:// says no")],
            f"{at[:-15]}and cannot be undone (scripted:// says no)",
        ),
    ):
        assert wording in given_up(Scripted(*answers), error)[1]
    for interrupt, said in ((KeyboardInterrupt(), "no answer in time"), (KeyboardInterrupt("Ctrl-C"), "Ctrl-C")):
        attempt = an_attempt(Scripted())
        attempt.first(START)
        attempt.limit = START - 10 * PATIENCE
        run(give_up(attempt.runtime, attempt, interrupt))
        assert f"{at}({said}); caslock keeps trying" in interrupt.__notes__[0]


def test_a_failed_acquire_keeps_no_key() -> None:
    """Nobody has relied on its `min_hold`; what is known of it need not be read."""
    script = Scripted(None)
    attempt = held(script)
    force(attempt, State.ASKING)  # it was about to be held
    attempt.min_hold = 60.0
    run(give_up(attempt.runtime, attempt, KeyboardInterrupt()))
    assert script.verbs == ["invalidate"]
    assert attempt.state is State.OVER


def test_a_free_record_that_was_not_written_is_written_again() -> None:
    """Somebody else has been there and gone meanwhile: the late put could still arrive."""
    script = Scripted(None, None, Entry(OURS, 7))
    attempt, said = given_up(script, lost())
    assert script.verbs == ["get", "put", "put"]
    assert said.endswith("nothing was left behind")
    assert attempt.state is State.OVER


def test_a_clean_up_that_is_refused_ends_there() -> None:
    """The lease is all that is left to end it."""
    for error, refusal in itertools.product(
        (lost(), NotAcquired("busy")), (StoreError("refused"), ValueError("refused"))
    ):
        script = Scripted(refusal)
        attempt, said = given_up(script, error)
        assert said.startswith("OutcomeUnknown: ")
        assert said.endswith("cannot be undone (refused); it expires within 30 s after that")
        assert script.background == []
        assert attempt.state is State.OVER


@pytest.mark.parametrize(
    ("error", "limit", "asked"),
    [
        (lost(), START - PATIENCE, 0),
        (NotAcquired("busy"), START - PATIENCE, 1),
        (KeyboardInterrupt(), START - PATIENCE, 0),
        (KeyboardInterrupt(), START + 2 * PATIENCE, 2),
    ],
    ids=repr,
)
def test_a_clean_up_begins_no_request_too_late(error: BaseException, limit: float, asked: int) -> None:
    """A hanging store is not asked once more, one that has answered is; the time is over with an interrupt."""
    script = Scripted(lost(), lost(), lost(), lost())
    script.takes = PATIENCE / 2
    attempt = an_attempt(script, Retry(5, 5))
    attempt.first(START)
    attempt.limit = limit
    with contextlib.suppress(StoreError):
        run(give_up(attempt.runtime, attempt, error))
    assert len(script.asked) == asked
    assert script.background == [FREE_TTL]


def test_an_attempt_that_steps_back_can_try_again() -> None:
    """Nothing of it is there or may land, and it has to queue like any other."""
    script = Scripted(None, Entry(OURS, 7))
    attempt = an_attempt(script)
    turn = attempt.turn
    turn.incoming, turn.yields = HandOver(attempt), 1.0
    attempt.lease.deadline = START
    run(step_back(attempt.runtime, attempt))
    assert script.asked == []
    assert [turn.incoming, turn.yields] == [None, 0.0]
    attempt.first(START)
    attempt.lease.deadline = START + TTL
    run(step_back(attempt.runtime, attempt))
    assert script.verbs == ["get", "put"]
    assert attempt.lease.deadline == -NEVER
    assert not attempt.writes.releases  # which would tell that a later tenure was released in time
