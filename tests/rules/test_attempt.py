"""What an attempt decides and remembers, without any store: its records, its writes, its lease, whom it waits for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest
from tenacity.wait import wait_fixed, wait_incrementing

from caslock.protocol.attempt import Attempt, FirstRecord, LockSettings, Terms
from caslock.protocol.contention import Contention
from caslock.protocol.lease import NEVER, Lease, margin
from caslock.protocol.record import KEPT, MAX_HOLDS, Observed, Record, Stamp, decode, encode, opening
from caslock.protocol.runtime import Mutex, Runtime
from caslock.protocol.writes import FREE_TTL, InFlight, Writes
from caslock.store import ABSENT, Traits
from tests.support.locations import present
from tests.support.scripted import START, Scripted

OWNER, TTL, NOW = 'own "ü" %s {} \\', 30.0, START
STAMP = Stamp("2026-01-01T00:00:00+00:00", "host", 7, '100 % "ü" {}')


def attempt(hold_id: str = "mine.2", ttl: float = TTL) -> Attempt:
    terms = Terms(cast("Runtime", Scripted()), "key", OWNER, LockSettings(ttl, OWNER))
    return Attempt(
        terms, hold_id, lambda: FirstRecord(STAMP, opening(OWNER, ttl, STAMP)), cast("Mutex", None), caller=None
    )


def record(*holds: str, owner: str = OWNER, ttl: float = TTL, quarantine: float = 0.0) -> Record:
    quarantine_id = "other.1.1" if quarantine else ""
    return Record(owner, holds, ttl, "other.1.1", None, quarantine, *STAMP, quarantine_id=quarantine_id)


def test_the_first_record_is_the_same_as_any_other() -> None:
    """The bytes of a first put are those of its record, and it is in flight under the id in the record."""
    one = attempt()
    write = one.first(NOW, 5)
    written = present(write.record)
    assert write.value == encode(written)
    assert decode(write.value) == written == record("mine.2")._replace(write="mine.2.1")
    assert one.writes.in_flight == {"mine.2.1": InFlight(5, NOW, TTL)}
    assert one.next_record(None, ABSENT) == written._replace(write="mine.2.2")


def test_a_co_holders_lease_is_never_made_shorter() -> None:
    """A re-entry asks for the longer of both leases, one beside nobody for its own."""
    beside = attempt(ttl=10.0).next_record(record("other.1"), 9)
    assert (beside.holds, beside.ttl, beside.fence) == (("other.1", "mine.2"), TTL, 9)
    assert attempt(ttl=60.0).next_record(record("other.1"), 9).ttl == 60.0
    alone = attempt(ttl=10.0).next_record(record("mine.2"), 9)
    assert (alone.holds, alone.ttl, alone.fence) == (("mine.2",), 10.0, 9)


def test_a_hold_of_the_same_lock_is_dropped_and_leaves_a_quarantine() -> None:
    """An id that only a late write can have added is not kept: whoever sent it may have sent others."""
    mixed = attempt().next_record(record("other.1", "mine.1", "mine.2"), 9)
    assert (mixed.holds, mixed.quarantine) == (("other.1", "mine.2"), FREE_TTL)
    known = attempt().next_record(record("other.1", "mine.2", quarantine=3.0), 9)
    assert known.quarantine == 3.0
    late = attempt().next_record(record("mine.1"), 9)
    assert (late.holds, late.fence, late.quarantine) == (("mine.2",), None, FREE_TTL)


def test_a_tenure_over_a_free_record_keeps_its_quarantine() -> None:
    """The free record was there to keep a late put out: for as long, a release writes one again."""
    one = attempt()
    taken = one.next_record(record(ttl=50.0, quarantine=50.0), 9)
    assert (taken.holds, taken.fence, taken.quarantine) == (("mine.2",), None, 50.0)
    one.holds_with(taken, 10, NOW)
    for passed, left in ((0.0, 50.0), (20.0, 30.0), (49.5, 0.5)):
        rest = present(one.remainder(taken, 10, NOW + passed))
        assert rest.free
        assert (rest.ttl, rest.quarantine, rest.quarantine_id, rest.owner) == (left, left, "other.1.1", OWNER)
        assert not one.releases_by_removal(NOW + passed)
    assert one.remainder(taken, 10, NOW + 50.0) is None
    assert one.releases_by_removal(NOW + 50.0)


def test_a_process_that_has_met_a_quarantine_knows_when_it_ends() -> None:
    """Whatever a later record says, and also while nobody holds the key; another quarantine has an end of its own."""
    one = attempt()
    told = cast("Scripted", one.runtime)
    free = record(ttl=50.0, quarantine=50.0)
    assert one.next_record(free, 9).quarantine == 50.0
    told.clock += 20.0
    assert one.next_record(free, 9).quarantine == 30.0
    assert one.next_record(record("other.1", "mine.2", quarantine=60.0), 9).quarantine == 30.0
    told.clock += 40.0
    assert one.next_record(free, 9).quarantine == 0.0
    assert one.next_record(free._replace(quarantine_id="other.9.1"), 9).quarantine == 50.0


def test_a_quarantine_at_one_store_says_nothing_of_another() -> None:
    """A QuorumLock sends writes of one id to all of its stores."""
    one, other = attempt(), attempt()
    here, there = cast("Scripted", one.runtime), cast("Scripted", other.runtime)
    there.quarantines, there.traits = here.quarantines, Traits("elsewhere://")
    free = record(ttl=50.0, quarantine=50.0)
    one.next_record(free, 9)
    there.clock += 20.0
    assert other.next_record(free, 9).quarantine == 50.0


def test_a_lost_put_is_kept_out_from_when_it_was_sent() -> None:
    """It dies a minute after that, and a quarantine that lasts longer covers it."""
    one = attempt()
    one.writes.in_flight["mine.2.9"] = InFlight(ABSENT, NOW - 20.0, TTL)
    rest = present(one.remainder(record("mine.2"), 9, NOW))
    assert rest.quarantine == rest.ttl == FREE_TTL - 20.0
    assert rest.quarantine_id == rest.write
    longer = present(one.remainder(record("mine.2", quarantine=45.0), 9, NOW))
    assert (longer.quarantine, longer.quarantine_id) == (45.0, "other.1.1")


def test_a_release_beside_others_keeps_their_holds() -> None:
    """The tenure goes on with its fence; while our first put may be late, it has a quarantine."""
    one = attempt()
    both = record("other.1", "mine.2", quarantine=4.0)
    rest = one.remainder(both, 9, NOW)
    assert rest == both._replace(holds=("other.1",), write="mine.2.1", fence=9)
    one.writes.in_flight["mine.2.9"] = InFlight(ABSENT, NOW, TTL)
    beside = present(one.remainder(both, 9, NOW))
    assert beside.quarantine == FREE_TTL
    assert not one.releases_by_removal(NOW)


def test_only_a_clean_hold_is_removed() -> None:
    """A removal needs that no put of ours may be late, and nobody else holds the key."""
    one = attempt()
    assert not one.releases_by_removal(NOW)
    first = one.first(NOW)
    assert first.record is not None
    one.lease.believe(first.record, 9, one.writes.in_flight[first.id], NOW)
    assert not one.releases_by_removal(NOW), "its put may be applied twice"
    one.writes.drop(first.id)
    assert one.releases_by_removal(NOW)


def test_who_may_be_written_over() -> None:
    """Nobody and our own owner, up to as many holds as a record takes; never what is not ours to read."""
    one = attempt()
    assert one.may_take(None)
    assert one.may_take(record(owner="host:other"))
    assert one.may_take(record("other.1"))
    assert not one.may_take(record("other.1", owner="host:other"))
    assert not one.may_take(record("other.1")._replace(form=0))
    assert one.may_take(record(*(f"other{n}.1" for n in range(MAX_HOLDS - 1))))
    assert not one.may_take(record(*(f"other{n}.1" for n in range(MAX_HOLDS))))


def test_a_write_is_in_flight_for_as_long_as_a_packet_lives() -> None:
    """Its reply, or the longest life of a packet, ends it."""
    writes = Writes("mine.2")
    writes.in_flight["mine.2.1"] = InFlight(5, NOW, TTL)
    writes.in_flight["mine.2.2"] = InFlight(6, NOW + 1, TTL)
    writes.forget_dead(NOW + FREE_TTL - 0.5)
    assert writes.may_land(5)
    assert not writes.may_land(7)
    writes.forget_dead(NOW + FREE_TTL)
    assert not writes.may_land(5)
    assert writes.may_land(6)
    writes.drop("mine.2.2")
    assert not writes.may_land(6)


def test_a_lease_is_shorter_than_at_the_store() -> None:
    """Clocks drift by 1 % and 2 ms; of a very short lease, half is left."""
    assert margin(30.0) == pytest.approx(0.302)
    assert margin(0.002) == 0.001


def believed(*, auto_renew: bool = True, max_hold: float = NEVER) -> Lease:
    lease = Lease(TTL, max_hold, auto_renew=auto_renew)
    lease.believe(record("mine.2"), 9, InFlight(ABSENT, NOW, TTL), NOW)
    return lease


def test_a_lease_is_renewed_after_a_third() -> None:
    """Unless it is not renewed at all, or reaches its max_hold: then its end is what comes next."""
    assert believed().due == NOW + TTL / 3
    assert believed(max_hold=TTL + 1).due == NOW + TTL / 3
    ends = believed().deadline
    assert ends == NOW + TTL - margin(TTL)
    assert believed(max_hold=TTL).due == believed(auto_renew=False).due == ends


def test_a_renewal_asks_for_no_more_than_max_hold() -> None:
    """A shorter lease is believed, and renewed, from now on, a longer one later, and none at the end of max_hold."""
    lease = believed(max_hold=70.0)
    deadline = lease.deadline
    assert lease.ask(None, NOW + 20)
    assert (lease.asked, lease.deadline) == (TTL, deadline)
    assert lease.ask(60.0, NOW + 20)
    assert (lease.asked, lease.deadline) == (50.0, deadline)
    assert lease.ask(4.0, NOW + 20)
    assert (lease.asked, lease.deadline, lease.due) == (4.0, NOW + 24 - margin(4.0), NOW + TTL / 3)
    assert lease.ask(1.0, NOW + 5)
    assert (lease.deadline, lease.due) == (NOW + 6 - margin(1.0), NOW + 5 + 1 / 3)
    assert not lease.ask(None, NOW + 70)
    assert not lease.ask(None, NOW + 71)


def test_the_end_of_a_lease_says_why() -> None:
    """It was not renewed in time, or not at all, or max_hold was reached."""
    assert believed().end("renewed") == "its lease ended before it was renewed"
    assert believed(auto_renew=False).end("released") == "its lease ended (auto_renew is off)"
    assert believed(max_hold=TTL).end("renewed") == "its max_hold of 30 s was reached"
    slow = believed(max_hold=TTL)
    slow.began += 5
    assert slow.end("renewed") == "its max_hold of 30 s was reached"
    assert believed(max_hold=TTL + 0.5).end("renewed") == "its lease ended before it was renewed"


def test_what_is_forgotten_is_not_held() -> None:
    """A later success is another tenure."""
    lease = believed()
    assert lease.fence == 9
    lease.forget()
    assert (lease.record, lease.version, lease.fence, lease.deadline) == (None, ABSENT, 0, -NEVER)
    lease.believe(record("mine.2"), 12, None, NOW + 3)
    assert (lease.fence, lease.began, lease.deadline) == (12, NOW + 3, -NEVER)


def test_a_loss_is_told_once_and_to_the_blocks_first() -> None:
    """The callbacks that were added last come first, and none comes twice."""
    lease = believed()
    calls: list[Callable[[], object]] = [list, dict]
    lease.on_loss += calls
    assert lease.tell() == [dict, list]
    assert lease.tell() is None


def test_a_version_is_watched_again_only_after_a_pause() -> None:
    """A wait at the store may end for no reason; with pauses of the user, there is none."""
    own, users = Contention(None), Contention(wait_fixed(1.0))
    assert [own.watches(version) for version in (5, 5, 5, 6, 6, ABSENT, 6)] == [
        True, False, True, True, False, False, True,
    ]  # fmt: skip
    assert not users.watches(5)


def test_what_has_never_held_keeps_no_key() -> None:
    """Also just after the start of the machine, when its clock says less than `min_hold`."""
    attempt_, observed = attempt(), record("mine.2")
    attempt_.min_hold = 60.0
    assert attempt_.remainder(observed, 5, 1.0) is None
    attempt_.lease.began = 1.0
    assert attempt_.remainder(None, 0, 2.0) is None  # it has lost the key
    kept = present(attempt_.remainder(observed._replace(quarantine=100.0, quarantine_id="other.1.1"), 5, 2.0))
    assert (kept.holds, kept.quarantine, kept.ttl) == ((KEPT,), 0.0, 100.0)


def test_the_first_version_of_a_store_is_a_fence() -> None:
    """The tenure begins with it."""
    lease = Lease(TTL, NEVER, auto_renew=True)
    lease.believe(record("mine.2"), 1, InFlight(ABSENT, NOW, TTL), NOW)
    assert (lease.fence, lease.began) == (1, NOW)


def test_pauses_begin_anew_with_each_tenure(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are longer the more processes had the key; the pauses of the user go on as they are."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    own = Contention(None)
    assert own.pause() == pytest.approx(0.005)
    for version, pid, pause in ((5, 1, 0.006), (5, 1, 0.012), (6, 2, 0.007), (7, 1, 0.007), (7, 1, 0.014)):
        own.meet(Observed(version, record("other.1")._replace(pid=pid)), NOW)
        assert own.pause() == pytest.approx(pause)
    users = Contention(wait_incrementing(1.0, 1.0))
    for version, pause in ((5, 1.0), (6, 2.0), (6, 3.0)):
        users.meet(Observed(version, record("other.1")), NOW)
        assert users.pause() == pause
