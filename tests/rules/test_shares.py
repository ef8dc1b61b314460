"""Which shares of a record are sound, and for how long one process knows that a beat has stood still."""

from __future__ import annotations

from typing import Any

import pytest

from caslock import ReadWriteLock, Semaphore, StoreError
from caslock.protocol.lease import margin
from caslock.protocol.record import Record, encode
from caslock.protocol.shares import HANDED, MAX_PERMITS, SHARED, WAITS, WRITES, Seen, Share, as_json, shares_in
from caslock.protocol.writes import InFlight
from caslock.store import ABSENT, MAX_VALUE, Entry
from caslock.stores.memory import MemoryStore
from tests.support.scripted import run

OURS, THEIRS = Share("a.1", 0, 3, 7, 10.0), Share("b.1", 1, 4, 8, 10.0)


def record(*shares: Share) -> Record:
    return Record("", tuple(each.hold for each in shares), 10.0, form=SHARED, permits=2, shares=shares)


def fields(**changed: Any) -> list[Any]:  # noqa: ANN401 - any field may be wrong
    """Return a share as it is stored, with some fields changed."""
    return list(OURS._replace(ttl=10_000, still=0)._replace(**changed))


@pytest.mark.parametrize(("permits", "slots"), [(0, 3), (1, 1), (2, 2)])
def test_a_slot_is_one_of_those_that_there_are(permits: int, slots: int) -> None:
    """A read-write lock has three, a semaphore as many as permits."""
    assert [share.slot for share in shares_in([fields(slot=slots - 1)], permits)] == [slots - 1]
    with pytest.raises(ValueError, match=OURS.hold):
        shares_in([fields(slot=slots)], permits)


@pytest.mark.parametrize(
    "changed",
    [{"beat": -1}, {"slot": -1}, {"fence": -1}, {"ttl": 0}, {"still": -1}, {"pid": -1}, {"note": None}],
    ids=str,
)
def test_what_caslock_does_not_write_is_no_share(changed: dict[str, object]) -> None:
    """Numbers are whole and not negative, a lease is longer than nothing, and texts are texts."""
    with pytest.raises(ValueError, match=OURS.hold):
        shares_in([fields(**changed)], 2)


@pytest.mark.parametrize(
    ("permits", "rows"),
    [
        (2, []),
        (2, [fields(), fields(slot=1)]),
        (2, [fields(), fields(hold="b.1")]),
        (2, [fields(beat=True)]),
        (2, [fields(note="\ud800")]),
    ],
    ids=["none", "one hold twice", "one slot twice", "no number", "no text"],
)
def test_what_no_writer_leaves_is_refused(permits: int, rows: list[list[Any]]) -> None:
    """Such a record is foreign: it is held, and never written over."""
    with pytest.raises(ValueError):  # noqa: PT011 - the record is read as foreign, whatever the error says
        shares_in(rows, permits)


def test_what_does_not_fit_goes_without_what_is_for_people() -> None:
    """First the notes, then hosts and pids as well; and where that is not enough, the error says what to do."""
    noted = [OURS._replace(hold=f"{number}.1", since="s", host="h", pid=1, note=1000 * "n") for number in range(9)]
    assert b'"n' in as_json(0, tuple(noted[:2]), '"ttl":1')
    few = as_json(0, tuple(noted), '"ttl":1')
    assert b'"n' not in few
    assert few.count(b'"h"') == 9
    hosts = [each._replace(host=1000 * "h") for each in noted]
    assert b'"h' not in as_json(0, tuple(hosts), '"ttl":1')
    many = tuple(OURS._replace(hold=f"{number:200}") for number in range(60))
    with pytest.raises(StoreError, match=f"a record of 60 holds takes more than {MAX_VALUE} bytes: use several keys"):
        as_json(0, many, '"ttl":1')


def test_the_longest_numbers_have_room() -> None:
    """Nobody loses a lease because the numbers of others have become longer, or because they are handed over."""
    longest = Share(
        f"{HANDED}{'f' * 16}.{10**7 - 1}", MAX_PERMITS - 1, 10**6 - 1, 2**63 - 1, 86400.0, 86399.0,
        "2026-11-27T23:25:33Z", "host", 12345, "note",
    )  # fmt: skip
    shares = tuple(longest._replace(slot=slot) for slot in range(MAX_PERMITS))
    record = Record(
        "", tuple(share.hold for share in shares), 86400.0, f"{longest.hold}.{longest.beat}", None, 1 / 3,
        form=SHARED, quarantine_id=f"{longest.hold}.{longest.beat}", permits=MAX_PERMITS, shares=shares,
    )  # fmt: skip
    assert MAX_VALUE - 200 < len(encode(record)) <= MAX_VALUE


def test_a_share_is_over_a_margin_after_its_lease() -> None:
    """What it has stood still for already counts; the clocks of others may be a little slower."""
    seen, still = Seen(), OURS._replace(still=4.0, since="noon", host="h", pid=7)
    assert str(still) == "pid 7 on h since noon"
    seen.look((1, record(still)), 100.0, 100.0, ABSENT)
    assert seen.over(still, 101.0) == 100.0 + 10.0 + margin(10.0) - 4.0


def test_a_beat_has_stood_still_for_as_long_as_anybody_has_seen() -> None:
    """What others have seen counts if it is longer; a beat that moves begins anew."""
    seen = Seen()
    seen.look((1, record(OURS)), 10.0, 10.0, ABSENT)
    assert seen.still(OURS, 12.0) == 2.0
    longer = OURS._replace(still=5.0)
    seen.look((2, record(longer)), 13.0, 13.0, ABSENT)
    assert seen.still(longer, 14.0) == 6.0
    shorter = OURS._replace(still=1.0)
    seen.look((3, record(shorter)), 15.0, 15.0, ABSENT)
    assert seen.still(shorter, 15.0) == 7.0
    moved = OURS._replace(beat=4)
    seen.look((4, record(moved)), 16.0, 16.0, ABSENT)
    assert seen.still(moved, 17.0) == 1.0


def test_an_answer_that_comes_late_tells_nothing() -> None:
    """Where versions are ordered: not an older version, nor one from before the key was free, nor "it is free"."""
    seen, newest = Seen(), record(OURS, THEIRS)
    seen.look((5, newest), 1.0, 0.0, ABSENT)
    for version, there, gone in (4, record(OURS), ABSENT), (ABSENT, None, 4):
        seen.look((version, there), 2.0, 0.5, gone)
        assert seen.newest == (5, newest)
    seen.look((ABSENT, None), 3.0, 0.5, 5)
    seen.look((5, newest), 4.0, 0.5, ABSENT)
    assert seen.newest[1] is None
    seen.look((6, newest), 5.0, 0.5, ABSENT)
    assert seen.newest == (6, newest)
    seen.ordered = False
    seen.look((2, record(OURS)), 6.0, 0.5, ABSENT)
    assert seen.newest == (2, record(OURS))


def test_versions_may_go_back() -> None:
    """A replica that lags has become the primary: the answer to a later request counts."""
    seen = Seen()
    seen.look((5, record(OURS, THEIRS)), 1.0, 0.0, ABSENT)
    seen.look((4, record(OURS)), 2.0, 1.0, ABSENT)
    assert seen.newest == (4, record(OURS))


def begun(lock: Any) -> Any:  # noqa: ANN401 - any lock that several may hold, and its attempt
    lock._state.begun()
    return lock._state._attempt()


def test_the_first_record_is_the_same_as_any_other() -> None:
    """The bytes of a first put are those of its record, and it is in flight under the id in the record."""
    store, note = MemoryStore(), 'a "note" of \u00fcs'
    several = ReadWriteLock(store, "k", ttl=0.0101)
    for lock in (Semaphore(store, "k", permits=MAX_PERMITS, note=note), several.read, several.write):
        attempt = begun(lock)
        write = attempt.first(7.0)
        later = attempt.next_record(None, ABSENT)
        shares = (later.shares[0]._replace(beat=1),)
        assert write.record == later._replace(write=write.id, shares=shares)
        assert write.value == encode(write.record)
        assert attempt.writes.in_flight == {write.id: InFlight(ABSENT, 7.0, attempt.lease.ttl)}


def test_a_full_semaphore_is_asked_again_when_the_first_share_is_over() -> None:
    """Whoever lets others be first does so once; a put of ours that may yet land is undone beside the others."""
    attempt = begun(Semaphore(MemoryStore(), "k", permits=2))
    full = record(OURS, THEIRS._replace(ttl=20.0, fence=None))
    attempt.contend().meet(attempt.see(Entry(encode(full), 9), attempt.runtime.now()), 0.0)
    assert attempt.ends(attempt.contend()) == attempt.seen.over(full.shares[0], attempt.runtime.now())
    attempt.turn.yields = 0.001
    assert (run(attempt.pause(0.0)), attempt.turn.yields) == (None, 0.0)
    assert [share.fence for share in attempt.remainder(full, 9, attempt.runtime.now()).shares] == [OURS.fence, 9]


def test_a_waiting_writer_says_so_again_after_a_third_of_its_share() -> None:
    """Once it is said, that is remembered by the write; nothing is said when the acquire has no time left."""
    writer, now = begun(ReadWriteLock(MemoryStore(), "k").write), 7.0
    said = writer.announcement(record(OURS)._replace(permits=0), 9)
    assert writer._says_again(said) is None
    writer.writes.in_flight[said.write] = InFlight(9, now, 9.0)
    assert writer._says_again(said) == now + said.shares[-1].ttl / 3
    assert writer.announcement(said, 9) is not None
    writes, waits = OURS._replace(slot=WRITES), THEIRS._replace(slot=WAITS)
    assert writer.announcement(record(writes, waits)._replace(permits=0), 9) is None
    writer.limit = writer.runtime.now()
    assert writer.announcement(record(OURS)._replace(permits=0), 9) is None


def test_a_write_that_is_sent_again_moves_its_own_beat_only() -> None:
    """The beats of others are theirs: one that we moved would keep a dead holder's place."""
    attempt = begun(Semaphore(MemoryStore(), "k", permits=2))
    ours = OURS._replace(hold=attempt.hold_id)
    again = attempt.sent_again(record(ours, THEIRS))
    assert [share.beat for share in again.shares] == [attempt.writes.count, THEIRS.beat]
