"""Single steps of a hand-over to another process and of an adoption, at a store whose answers are written down."""

from __future__ import annotations

import base64
from typing import cast

import pytest

from caslock.errors import LockLost, StoreError, StoreUnavailable
from caslock.protocol.attempt import Attempt, FirstRecord, LockSettings, Retry, Terms
from caslock.protocol.lease import NEVER, margin
from caslock.protocol.life import State
from caslock.protocol.limits import PASSES
from caslock.protocol.record import KEPT, Record, Stamp, decode, encode, opening
from caslock.protocol.release import release
from caslock.protocol.renew import renew
from caslock.protocol.runtime import Runtime
from caslock.protocol.shares import HANDED
from caslock.protocol.transfer import MAX_TICKET, Adoption, Ticket, adopt, hand_over, read_ticket
from caslock.protocol.withdraw import give_up
from caslock.protocol.writes import FREE_TTL, InFlight
from caslock.store import ABSENT, Entry
from tests.support.locations import present
from tests.support.scripted import OURS, PATIENCE, START, TAKES, TTL, Mutex, Scripted, held, lost, run

TICKET = Ticket("key", f"{HANDED}first.1", 5, TTL, NEVER, 0.0)
AWAITING = Record("host:first", (TICKET.hold,), TTL, "first.1.2", 5, host="host", pid=8, note="why")
THERE = Entry(encode(AWAITING), 7)
STAMP = Stamp("", "other host", 9, "")
LATE_TTL = 7.0


def handed(attempt: Attempt) -> Ticket:
    return run(hand_over(attempt.runtime, attempt))


def an_adoption(
    script: Scripted, ticket: Ticket = TICKET, *, ttl: float = TTL, note: str = "", retry: Retry = Retry()
) -> Adoption:
    settings = LockSettings(ttl, retry=retry, note=note)
    terms, stamp = Terms(cast("Runtime", script), "key", "own", settings), STAMP._replace(note=note)
    attempt = Adoption(terms, "new.1", lambda: FirstRecord(stamp, opening("own", ttl, stamp)), Mutex(), caller=None)
    attempt.ticket, attempt.min_hold = ticket, ticket.min_hold
    return attempt


def adopted(attempt: Adoption) -> Adoption:
    run(adopt(attempt.runtime, attempt))
    return attempt


def last(script: Scripted) -> Record:
    return decode(script.written[-1])


# The ticket


@pytest.mark.parametrize("key", ["k", "room:42 \n with: spaces", "ключ", "\U0001f512" * 1024])
def test_a_ticket_is_a_short_text_for_a_url(key: str) -> None:
    """Letters, digits, ``-`` and ``_``; it says the same when it is read, whatever the key is."""
    ticket = Ticket(key, f"{HANDED}{'f' * 32}.123", 2**62, 30.0, 12.5, 0.25)
    text = str(ticket)
    assert text.replace("-", "").replace("_", "").isalnum()
    assert text.isascii()
    assert len(text) <= min(MAX_TICKET, 150 + 6 * len(key.encode()))
    assert read_ticket(text) == read_ticket(f"{text}\n") == ticket
    assert read_ticket(str(ticket._replace(max_hold=NEVER))).max_hold == NEVER


def forged(text: str) -> str:
    import zlib  # noqa: PLC0415 - for this alone

    data = text.encode()
    return base64.urlsafe_b64encode(zlib.crc32(data).to_bytes(4) + data).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "not a ticket",
        "ticket\u00e9",
        str(TICKET)[:-1],
        str(TICKET) + "A",
        str(TICKET)[:30] + "\n" + str(TICKET)[30:],
        str(TICKET)[:30] + ("A" if str(TICKET)[30] != "A" else "B") + str(TICKET)[31:],
        "A" * (MAX_TICKET + 1),
        forged("1 first.1 5 0 30.0 inf 0.0 key"),
        forged("2 first.1 5 0 30.0 inf key"),
        forged("2 first.1 five 0 30.0 inf 0.0 key"),
        forged("2 first.1 5 three 30.0 inf 0.0 key"),
        forged("2 first.1 5 0 nan inf 0.0 key"),
        forged("2 first.1 5 0 30.0 inf inf key"),
        forged("2  5 0 30.0 inf 0.0 key"),
        forged("2 first.1 5 0 30.0 inf 0.0 "),
        forged(f"2 first.1 5 0 30.0 inf 0.0 {'k' * 1025}"),
    ],
)
def test_a_text_that_is_no_ticket_is_refused(text: str) -> None:
    """Cut, mistyped, of another version, or something else: a ValueError that does not repeat all of it."""
    with pytest.raises(ValueError, match="is not a ticket of hand_over") as caught:
        read_ticket(text)
    assert len(str(caught.value)) < 120


def test_what_is_not_a_text_is_refused() -> None:
    """Bytes, for instance."""
    with pytest.raises(TypeError, match="must be a str, as hand_over"):
        read_ticket(b"ticket")  # type: ignore[arg-type] # the mistake


# The hand-over


def test_a_hand_over_is_one_put_with_a_whole_lease() -> None:
    """The hold id of the ticket is in place of ours; the tenure has the same fence."""
    script = Scripted(Entry(OURS, 7))
    attempt = held(script)
    script.clock = START + 8
    ticket = handed(attempt)
    assert script.verbs == ["put"]
    assert ticket == Ticket("key", f"{HANDED}mine.1", 5, TTL, NEVER, 0.0)
    record = last(script)
    assert (record.holds, record.ttl, record.fence, record.quarantine) == ((ticket.hold,), TTL, 5, 0.0)
    assert (record.owner, record.handed_over) == ("me", True)
    assert attempt.lease.deadline == START + 8 + TTL - margin(TTL)


@pytest.mark.parametrize("landed", [True, False])
def test_a_hand_over_without_an_answer_is_read_before_it_is_repeated(*, landed: bool) -> None:
    """As any write: the record shows whether it was handed over, and what was there is still there otherwise."""
    script = Scripted()
    attempt = held(script)
    before = Entry(encode(present(attempt.lease.record)), 5)
    script.answers = [lost(), *([] if landed else [before]), Entry(OURS, 7)]
    ticket = handed(attempt)
    assert (ticket.hold, ticket.fence) == (f"{HANDED}mine.1", 5)
    assert script.verbs == ["put", "get"] if landed else ["put", "get", "put"]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("then", ["renew", "release"])
def test_a_hand_over_without_an_answer_is_taken_back(then: str, *, landed: bool) -> None:
    """The hold goes on: its next renewal writes our own id again, and a release removes whatever is there."""
    script = Scripted(lost(), lost(), lost())
    attempt = held(script)
    with pytest.raises(StoreUnavailable):
        handed(attempt)
    assert not attempt.ending
    there = Entry(script.written[-1], 7)
    answers: list[Entry | BaseException | None] = [there] if landed else []
    if then == "renew":
        script.answers = [*answers, Entry(OURS, 8)]
        run(renew(attempt.runtime, attempt, None))
        assert last(script).holds == (attempt.hold_id,)
        assert (last(script).fence, attempt.lease.version) == (5, 8)
    else:
        script.answers = [*answers, None]
        run(release(attempt.runtime, attempt))
        assert script.verbs[-1] == "invalidate"
        assert attempt.ending
    assert not attempt.lease.lost
    assert not script.answers


def test_a_hand_over_that_is_refused_changes_nothing() -> None:
    """The hold goes on, and the error is the store's."""
    script = Scripted(StoreError("out of memory"))
    attempt = held(script)
    with pytest.raises(StoreError, match="out of memory"):
        handed(attempt)
    assert attempt.lease.lost == ""
    assert not attempt.ending


@pytest.mark.parametrize("what", ["another", "nothing", "the deadline"])
def test_what_was_lost_is_not_handed_over(what: str) -> None:
    """Somebody else holds the key, nobody does, or the answer came after the lease."""
    other = Record("host:other", ("other.1",), TTL, "other.1.1", 9)
    script = Scripted({"another": Entry(encode(other), 9), "nothing": None}.get(what, Entry(OURS, 7)))
    attempt = held(script)
    if what == "the deadline":
        script.clock = attempt.lease.deadline - TAKES / 2
    with pytest.raises(LockLost):
        handed(attempt)
    assert script.losses == 1


def test_other_holds_of_a_named_owner_stay() -> None:
    """A co-holder has renewed meanwhile: once more, at its version; its lease is not made shorter."""
    script = Scripted()
    attempt = held(script)
    both = present(attempt.lease.record)._replace(
        holds=("theirs.1", attempt.hold_id), ttl=90.0, write="theirs.1.1", fence=5
    )
    script.answers = [Entry(encode(both), 6), Entry(OURS, 7)]
    ticket = handed(attempt)
    assert (last(script).holds, last(script).ttl) == (("theirs.1", ticket.hold), 90.0)
    assert ticket.ttl == TTL


def test_a_record_that_keeps_changing_is_not_handed_over() -> None:
    """It gives up after so many tries, and the hold goes on."""
    script = Scripted()
    attempt = held(script)
    theirs = present(attempt.lease.record)._replace(holds=("theirs.1", attempt.hold_id), fence=5)
    script.takes = 0.0
    script.answers = [Entry(encode(theirs._replace(write=f"theirs.1.{n}")), 10 + n) for n in range(PASSES)]
    with pytest.raises(StoreUnavailable, match="kept changing"):
        handed(attempt)
    assert attempt.state is State.HELD


def test_a_lost_create_is_kept_out_by_who_adopts() -> None:
    """The record says for how long it may still arrive, so the adopter's release leaves a free record."""
    script = Scripted(Entry(OURS, 7))
    attempt = held(script)
    attempt.writes.in_flight["mine.1.0"] = InFlight(ABSENT, START - 1, TTL)
    handed(attempt)
    assert last(script).quarantine == FREE_TTL - 1
    there = Entry(script.written[-1], 7)
    script.answers = [there, Entry(OURS, 8), Entry(OURS, 9)]
    adopter = adopted(an_adoption(script, TICKET._replace(hold=attempt.handed)))
    adopter.state = State.HELD
    run(release(adopter.runtime, adopter))
    assert last(script).free
    assert last(script).quarantine > FREE_TTL / 2


@pytest.mark.parametrize(("max_hold", "ttl"), [(100.0, TTL), (40.0, 16.0)])
def test_max_hold_goes_on(max_hold: float, ttl: float) -> None:
    """The time under way counts as the whole lease of the ticket; that is shorter if little is left."""
    script = Scripted(Entry(OURS, 7))
    attempt = held(script)
    attempt.lease.max_hold = max_hold
    script.clock = START + 8
    ticket = handed(attempt)
    assert last(script).ttl == ttl
    assert ticket.max_hold == max_hold - 8 - TAKES - ttl
    assert ticket.ttl == TTL
    assert len(script.watched) == (ttl < TTL)  # the hold ends sooner, should this get no answer


def test_min_hold_goes_on() -> None:
    """What is left of it is in the ticket."""
    script = Scripted(Entry(OURS, 7))
    attempt = held(script)
    attempt.min_hold = 60.0
    assert handed(attempt).min_hold == 60.0 - TAKES
    attempt.min_hold = 1.0
    script.answers = [Entry(OURS, 8)]
    assert handed(attempt).min_hold == 0.0


# The adoption


def test_an_adoption_is_a_read_and_a_put_at_the_version_that_was_seen() -> None:
    """Our hold id is in place of the ticket's; owner, fence, beginning and note stay; host and process are ours."""
    script = Scripted(THERE, Entry(OURS, 8))
    attempt = adopted(an_adoption(script))
    assert script.verbs == ["get", "put"]
    assert last(script) == AWAITING._replace(holds=("new.1",), write="new.1.1", host="other host", pid=9)
    assert (attempt.owner, attempt.lease.fence, attempt.lease.version) == ("host:first", 5, 8)
    assert attempt.lease.deadline == START + TAKES + TTL - margin(TTL)


def test_an_adopter_has_settings_of_its_own() -> None:
    """Its ttl and its note."""
    script = Scripted(THERE, Entry(OURS, 8))
    adopted(an_adoption(script, ttl=LATE_TTL, note="mine"))
    assert (last(script).ttl, last(script).note) == (LATE_TTL, "mine")


def test_an_adopter_leaves_the_other_holds_of_the_owner() -> None:
    """And makes their leases no shorter."""
    both = AWAITING._replace(holds=("theirs.1", TICKET.hold))
    script = Scripted(Entry(encode(both), 7), Entry(OURS, 8))
    adopted(an_adoption(script, ttl=LATE_TTL))
    assert (last(script).holds, last(script).ttl) == (("theirs.1", "new.1"), TTL)


@pytest.mark.parametrize(("ttl", "renewals"), [(TTL, 0), (3.9, 1)])
def test_an_adoption_without_an_answer_is_settled_by_reading(ttl: float, renewals: int) -> None:
    """A lease of which less than half is left then is renewed first."""
    script = Scripted(THERE, lost(), Entry(OURS, 8), Entry(OURS, 9))
    script.takes = 1.0
    attempt = adopted(an_adoption(script, ttl=ttl))
    assert script.verbs == ["get", "put", "get"] + ["put"] * renewals
    assert last(script).holds == ("new.1",)
    assert (attempt.lease.version, attempt.lease.fence) == (8 + renewals, 5)
    assert attempt.lease.deadline == START + 1 + 2 * renewals + ttl - margin(ttl)


def test_an_adoption_whose_answers_are_too_slow_is_no_loss() -> None:
    """There is no time to renew it: it raises StoreUnavailable, and not LockLost."""
    attempt = an_adoption(Scripted(THERE, lost(), Entry(OURS, 8)), ttl=3 * TAKES)
    with pytest.raises(StoreUnavailable, match="answers too slowly for a ttl of 6 s"):
        adopted(attempt)


NOT_THERE = {
    "nothing": (None, "nobody holds it .* belongs to another store, or the store has lost its hold"),
    "foreign": (b"something else", "belongs to another store .* is held by an unknown owner"),
    "free": (AWAITING._replace(holds=()), "nobody holds it"),
    "adopted": (
        AWAITING._replace(holds=("other.1",)),
        "the ticket was used before: at .* the lock is held by host:first",
    ),
    "kept": (AWAITING._replace(holds=(KEPT,)), "was used before: .* held by nobody: .* has released it"),
    "later": (
        AWAITING._replace(holds=("other.1",), fence=6),
        "has expired, or belongs to another store: .* is held by",
    ),
    "same id, later": (AWAITING._replace(fence=6), "has expired, or belongs to another store"),
    "earlier": (AWAITING._replace(holds=("other.1",), fence=4), "belongs to another store than scripted://"),
}


@pytest.mark.parametrize("what", NOT_THERE)
@pytest.mark.parametrize("when", ["at once", "meanwhile"])
def test_a_ticket_that_is_no_good_says_what_has_become_of_it(what: str, when: str) -> None:
    """Used, too late, or of another store: LockLost, and nothing is changed at the store."""
    record, why = NOT_THERE[what]
    there = None if record is None else Entry(encode(record) if isinstance(record, Record) else record, 9)
    script = Scripted(*([THERE] if when == "meanwhile" else []), there)
    attempt = an_adoption(script)
    with pytest.raises(LockLost, match=why) as caught:
        adopted(attempt)
    assert str(caught.value) == f"could not adopt lock 'key': {caught.value.reason}"
    run(give_up(attempt.runtime, attempt, caught.value))
    assert script.verbs == (["get", "put"] if when == "meanwhile" else ["get"])
    assert attempt.state is State.OVER


def test_a_record_that_keeps_changing_is_not_adopted() -> None:
    """Co-holders of the owner renew all the time: no answer that is good for long, and the ticket is as before."""
    script = Scripted(THERE)
    script.takes = 0.0
    script.answers += [Entry(encode(AWAITING._replace(write=f"theirs.1.{n}")), 10 + n) for n in range(PASSES)]
    with pytest.raises(StoreUnavailable, match="kept changing"):
        adopted(an_adoption(script))


@pytest.mark.parametrize("landed", [False, True])
def test_an_adoption_that_fails_leaves_the_ticket_or_nothing(*, landed: bool) -> None:
    """What its unanswered put has done is removed, or kept from being done: then the ticket can be used again."""
    script = Scripted(THERE, lost(), lost(), lost())
    attempt = an_adoption(script, ttl=LATE_TTL, note="mine", retry=Retry(1, 0))
    with pytest.raises(StoreUnavailable) as caught:
        adopted(attempt)
    assert script.clock <= START + 2 * PATIENCE
    script.clock = START
    script.answers = [Entry(script.written[-1], 8), None] if landed else [THERE, Entry(OURS, 9)]
    with pytest.raises(StoreUnavailable, match="could not adopt lock 'key': no answer; adopt again"):
        run(give_up(attempt.runtime, attempt, caught.value))
    assert script.verbs[-2:] == ["get", "invalidate" if landed else "put"]
    if landed:
        return
    assert last(script)._replace(write="") == AWAITING._replace(write="")
    again = an_adoption(script)
    script.answers = [Entry(script.written[-1], 9), Entry(OURS, 10)]
    assert adopted(again).lease.fence == 5


def test_an_adopted_hold_is_released_into_a_record_that_is_kept() -> None:
    """Where a `min_hold` goes on."""
    script = Scripted(THERE, Entry(OURS, 8), Entry(OURS, 9))
    attempt = adopted(an_adoption(script, TICKET._replace(min_hold=50.0)))
    attempt.state = State.HELD
    assert not attempt.releases_by_removal(script.clock)
    run(release(attempt.runtime, attempt))
    assert last(script).kept
    assert last(script).ttl == pytest.approx(50.0, abs=1)


def test_a_private_owner_does_not_enter_what_was_handed_over() -> None:
    """Its record has the same owner as before, but another process has the hold, or will have."""
    attempt = held(Scripted())
    record = AWAITING._replace(owner="me")
    assert not attempt.may_take(record)
    assert not attempt.may_take(record._replace(holds=("new.1",)))
    attempt.shared = True
    assert attempt.may_take(record)
