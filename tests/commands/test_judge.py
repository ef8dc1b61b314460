"""The parts of ``caslock verify``, one by one: above all its judge, on histories that are made up."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from caslock import Lock
from caslock.testing.drive import driven
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.verify import PREFIX, Event, Judgement, Plan, judge
from caslock.verify.counter import FencedCounter, StaleFence
from caslock.verify.delays import SLACK
from caslock.verify.history import History, read
from caslock.verify.locations import close, open_store, server_of, through, with_timeout
from caslock.verify.worker import fault_writer
from tests.proof.torture import LAWS
from tests.proof.torture.etcd_leases import RESTARTED

if TYPE_CHECKING:
    from pathlib import Path

    from caslock.verify.history import What

ORPHAN = {"orphaned record"}


class Script:
    """A made-up history, written in the order of time."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 100.0

    def event(
        self, what: What, who: str, hold: str = "", *, fence: int = 0, until: float = 0.0, note: str = ""
    ) -> Script:
        """Something happens, a tenth of a second after the last."""
        self.now += 0.1
        self.events.append(Event(self.now, what, who, "key", hold.partition(".")[0], hold, fence, until, note))
        return self

    def later(self, seconds: float) -> Script:
        """Nothing happens for a while."""
        self.now += seconds
        return self

    def copy(self) -> Script:
        """Return a copy of the history so far, to be continued in another way."""
        other = Script()
        other.events, other.now = list(self.events), self.now
        return other

    def section(self, who: str, hold: str, fence: int) -> Script:
        """Somebody acquires, holds for a while, and releases."""
        self.event("try", who).event("got", who, hold, fence=fence, until=self.now + 30)
        return self.event("leave", who, hold).event("left", who, hold, note="ok")

    def judged(self, *, fences: bool = True, embedded: bool = False) -> Judgement:
        """Shuffle the events, and check them."""
        events = list(self.events)
        random.Random(1).shuffle(events)
        return judge(events, fences=fences, embedded=embedded, laws=LAWS)

    def broken(self, *, fences: bool = True, embedded: bool = False) -> set[str]:
        """Name the laws that were broken."""
        return {violation.law for violation in self.judged(fences=fences, embedded=embedded).violations}


def test_a_good_history_breaks_no_law() -> None:
    """One after the other, with growing fences; a lost lease is reported; what is unknown stays unknown."""
    script = Script().section("a", "A.1", 1).section("b", "B.1", 2).section("a", "A.2", 3)
    script.event("try", "c").event("failed", "c", note="unknown").event("try", "c").event("none", "c")
    script.event("try", "a").event("got", "a", "A.3", fence=4, until=script.now + 0.3)
    script.event("stop", "a").event("try", "b").event("go", "a")
    script.event("got", "b", "B.2", fence=5, until=script.now + 30)  # after the deadline of A.3
    script.event("late", "a", "A.3", fence=4, note="write").event("reported", "a", "A.3").event("leave", "a", "A.3")
    script.event("left", "a", "A.3", note="lost").event("leave", "b", "B.2").event("left", "b", "B.2", note="ok")
    found = script.judged()
    assert found.violations == []
    assert (found.counts["got"], found.counts["late writes"], found.counts["failed unknown"]) == (5, 1, 1)
    assert len(found.tenures) == 5


def test_what_several_hold_is_judged_by_slots_and_sides() -> None:
    """Slots may overlap, and so may readers; two in one slot may not, nor a reader and a writer."""

    def overlap(*parts: str) -> bool:
        events = [
            Event(100.0 + number, "got", name, f"caslock-verify:x:{part}", name, f"{name}.1", number + 1, 130.0)
            for number, (name, part) in enumerate(zip("abc", parts, strict=False))
        ]
        return {violation.law for violation in judge(events).violations} == {"overlap"}

    assert not overlap("pool0#0", "pool0#1")
    assert overlap("pool0#0", "pool0#1", "pool0#0")
    assert not overlap("page0#0", "page0#0")
    assert overlap("page0#0", "page0#1")
    assert overlap("page0#1", "page0#0")
    assert overlap("page0#1", "page0#1")
    assert not overlap("page0#1", "page1#0")


def test_force_release_ends_all_slots() -> None:
    """What was taken away from the key is no longer believed in, whatever slot it has."""
    script = Script()
    script.event("got", "a", "A.1", fence=1, until=130).event("break", "c").event("broke", "c", note="A.1")
    script.event("got", "b", "B.1", fence=2, until=130)
    slots = [each._replace(key="key#1") if each.what == "got" else each for each in script.events]
    assert "overlap" not in {violation.law for violation in judge(slots).violations}


def test_an_overlap_is_found() -> None:
    """Two owners who believe at the same time break the first law, also when others held it between them."""
    script = Script().event("got", "a", "A.1", fence=1, until=130).section("b", "B.1", 2)
    assert "overlap" in script.broken()
    long_ago = Script().event("got", "a", "A.1", fence=1, until=130)
    long_ago.event("got", "a", "A.2", fence=2, until=100.25).event("got", "a", "A.3", fence=3, until=100.35)
    assert "overlap" not in long_ago.broken()
    assert "overlap" in long_ago.event("got", "b", "B.1", fence=4, until=130).broken()


def test_a_belief_is_taken_for_no_longer_than_it_was_proved() -> None:
    """It ends at the deadline that was last seen, at the release, at the loss, or when the hold is dropped."""
    ends: list[What] = ["leave", "reported", "dropped", "at"]
    for end in ends:
        script = Script().event("got", "a", "A.1", fence=1, until=130)
        script.event(end, "a", "A.1").event("got", "b", "B.1", fence=2, until=130)
        assert script.broken() == set(), end
    extended = Script().event("got", "a", "A.1", fence=1, until=130).event("extend", "a", "A.1", until=100.25)
    assert extended.event("got", "b", "B.1", fence=2, until=130).broken() == set()
    renewed = Script().event("got", "a", "A.1", fence=1, until=100.15).event("at", "a", "A.1", until=130)
    assert "overlap" in renewed.event("got", "b", "B.1", fence=2, until=130).broken()


def test_an_owner_does_not_overlap_with_itself() -> None:
    """Holds of one explicit owner are one tenure, with one fence; holds of a private owner are not."""
    script = Script().event("got", "a", "x:owner.1", fence=1, until=130)
    script.events[-1] = script.events[-1]._replace(owner="x:owner")
    script.event("got", "b", "x:owner.2", fence=1, until=130)
    script.events[-1] = script.events[-1]._replace(owner="x:owner")
    assert script.broken() == set()
    assert Script().section("a", "A.1", 1).section("a", "A.2", 1).broken() == {"fence twice"}


def test_one_owner_does_not_believe_in_two_fences() -> None:
    """A hold of the same owner joins its tenure; only a later tenure has a larger fence."""
    for ends, broken in ((130.0, {"two fences"}), (100.15, set[str]())):
        script = Script().event("got", "a", "x:owner.1", fence=5, until=ends)
        script.event("got", "b", "x:owner.2", fence=9, until=130)
        script.events = [event._replace(owner="x:owner") for event in script.events]
        assert script.broken() == broken


def test_a_fence_inversion_is_found() -> None:
    """A later tenure has a larger fence, whoever has it."""
    assert Script().section("a", "A.1", 2).section("b", "B.1", 1).broken() == {"fence inversion"}
    assert Script().section("a", "A.1", 2).section("b", "B.1", 2).broken() == {"fence twice"}
    far = Script().section("a", "A.1", 9).section("b", "B.1", 1).section("b", "B.2", 2)
    assert [violation.law for violation in far.judged().violations] == ["fence inversion"] * 2


def test_an_unreported_loss_is_found() -> None:
    """A clean release although another held the key meanwhile hides a loss, and so does a wait that was in vain."""
    script = Script().event("got", "a", "A.1", fence=1, until=100.15).section("b", "B.1", 2)
    script.event("leave", "a", "A.1").event("left", "a", "A.1", note="ok")
    assert script.broken() == {"unreported loss"}
    assert Script().event("got", "a", "A.1", fence=1, until=130).event("unreported", "a", "A.1").broken() == {
        "unreported loss"
    }
    back = (
        Script()
        .event("got", "a", "A.1", fence=1, until=130)
        .event("reported", "a", "A.1")
        .event("at", "a", "A.1", until=130)
    )
    assert back.broken() == {"loss taken back"}


def test_a_second_success_of_one_hold_id_is_found() -> None:
    """One acquire succeeds once."""
    assert "second success" in Script().section("a", "A.1", 1).section("a", "A.1", 2).broken()


def test_a_false_failure_is_found() -> None:
    """A failed acquire must not have a record, unless the network has sent its request once more since."""
    script = Script().event("try", "a").event("failed", "a", note="sure").event("stands", "a", "A.1", fence=1)
    assert script.broken() == {"false failure"}
    assert script.event("fault", "", "A.1", note="duplicate").broken() == set()


def test_a_holder_learns_of_a_force_release() -> None:
    """From the call of `force_release` on, nobody relies on the hold; its holder learns; the next fence grows."""
    script = Script().event("try", "a").event("got", "a", "A.1", fence=2, until=130)
    script.event("break", "c").event("broke", "c", note="A.1").section("b", "B.1", 3)
    lost = script.copy().event("reported", "a", "A.1").event("leave", "a", "A.1").event("left", "a", "A.1", note="lost")
    assert lost.broken() == set()
    assert script.copy().event("leave", "a", "A.1").event("left", "a", "A.1", note="ok").broken() == {"unreported loss"}
    assert script.copy().event("leave", "a", "A.1").event("left", "a", "A.1", note="blind").broken() == set()
    assert script.copy().section("d", "D.1", 2).broken() == {"fence inversion"}
    other = Script().event("got", "a", "A.1", fence=2, until=130).event("break", "c").event("broke", "c", note="X.1")
    assert other.section("b", "B.1", 3).broken() == {"overlap"}


def test_nothing_shows_a_force_release_once_a_lease_has_ended() -> None:
    """If the next holder has died, nothing is there, and the holder that lost the key can't know."""
    script = Script().event("try", "a").event("got", "a", "A.1", fence=2, until=130)
    script.event("break", "c").event("broke", "c", note="A.1")
    script.event("got", "b", "B.1", fence=3, until=script.now + 0.2).event("stop", "b").event("go", "b")
    assert script.event("leave", "a", "A.1").event("left", "a", "A.1", note="ok").broken() == set()


def test_a_hold_released_by_force_may_end_normally_if_another_may_have_held() -> None:
    """Whoever takes the free record, and whose lease then ends, leaves nothing that could show the `force_release`."""
    start = Script().event("try", "a", until=3.0).event("got", "a", "A.1", fence=2, until=103)
    start.event("break", "c").event("broke", "c", note="A.1")
    late = start.copy().event("try", "w/1").later(0.5).event("got", "w/1", "B.1", fence=3, until=100.7)
    killed = start.copy().event("try", "w/1").event("kill", "w").later(0.5)
    alarmed = start.copy().event("try", "w/1").event("alarm", "w/1").later(0.5)
    rolled_back = start.copy().event("try", "w/1").event("failed", "w/1", "B.1", note="unknown").later(0.5)
    busy = start.copy().event("try", "w/1").later(0.5).event("none", "w/1", "B.1").section("b", "C.1", 4)
    early = Script().event("try", "w/1")
    early.events += start.events
    slept = start.copy().event("try", "w/1").event("got", "w/1", "B.1", fence=3, until=101).event("leave", "w/1", "B.1")
    slept.later(0.5).event("left", "w/1", "B.1", note="ok")
    blind = start.copy().event("try", "w/1").event("got", "w/1", "B.1", fence=3, until=101).event("leave", "w/1", "B.1")
    blind.event("left", "w/1", "B.1", note="blind")
    for number, script in enumerate((late, killed, alarmed, rolled_back, busy, early, slept, blind)):
        script.now = max(script.now, 101.0)
        assert script.event("leave", "a", "A.1").event("left", "a", "A.1", note="ok").broken() == set(), number
    slow = start.copy().event("leave", "a", "A.1").event("try", "w/1").event("kill", "w").later(0.5)
    assert slow.event("left", "a", "A.1", note="ok").broken() == set()
    long_after = start.copy().later(70).event("leave", "a", "A.1").event("left", "a", "A.1", note="ok")
    assert long_after.broken() == set()  # a free record ends as well


def test_a_hold_released_by_force_is_lost_while_something_is_there() -> None:
    """The free record does, and so does what came after it; who was killed long before has taken neither."""
    for before in ("", "kill", "alarm"):
        script = Script()
        if before:
            script.event("try", "w/1").event("kill" if before == "kill" else "alarm", "w/1").later(2.0)
        script.event("try", "a", until=3.0).event("got", "a", "A.1", fence=2, until=script.now + 3)
        script.event("break", "c").event("broke", "c", note="A.1")
        alone = script.copy().event("leave", "a", "A.1").event("left", "a", "A.1", note="ok")
        assert alone.broken() == {"unreported loss"}, before
        script.event("try", "b").event("got", "b", "B.1", fence=3, until=script.now + 30)
        script.event("leave", "a", "A.1").event("left", "a", "A.1", note="ok")
        assert script.broken() == {"unreported loss"}, before


def test_a_forgotten_holder_may_release_normally() -> None:
    """Also if it did not look at its deadline for a while: it was renewed all the same."""
    script = Script().event("try", "a", until=3.0).event("got", "a", "A.1", fence=2, until=100.5).later(1.0)
    script.event("down", "").event("up", "").section("b", "B.1", 3)
    assert script.event("leave", "a", "A.1").event("left", "a", "A.1", note="ok").broken() == set()


@pytest.mark.parametrize("end", ["broke", "kill"])
def test_a_force_release_without_an_answer_may_have_hit_any_holder(end: What) -> None:
    """Without an answer, or if its process is killed, any holder at that time may have lost, and no later one."""
    script = Script().event("got", "a", "A.1", fence=1, until=130).event("break", "c/1")
    script.event(end, "c" if end == "kill" else "c/1", note="unknown").section("b", "B.1", 2)
    assert script.broken() == set()
    assert script.event("got", "c", "C.1", fence=3, until=130).section("d", "D.1", 4).broken() == {"overlap"}


def test_a_hold_is_not_renewed_after_it_was_released_by_force_or_forgotten() -> None:
    """A belief that grows longer than the last lease before that was renewed where nothing of it stood."""
    stories: list[tuple[tuple[What, str, str], ...]] = [
        (("break", "c", ""), ("broke", "c", "A.1")),
        (("down", "", ""), ("up", "", "")),
    ]
    for story in stories:
        script = Script().event("try", "a", until=2.0).event("got", "a", "A.1", fence=2, until=102.1)
        for what, who, note in story:
            script.event(what, who, note=note)
        assert script.copy().event("at", "a", "A.1", until=102.2).broken() == set()
        assert script.copy().event("at", "a", "A.1", until=103.0).broken() == {"unreported loss"}
        extended = Script().event("try", "a", until=2.0).event("got", "a", "A.1", fence=2, until=102.1)
        extended.event("extend", "a", "A.1", until=104.0)
        for what, who, note in story:
            extended.event(what, who, note=note)
        assert extended.event("at", "a", "A.1", until=104.0).broken() == set()


def test_a_belief_that_outlasts_max_hold_is_found() -> None:
    """It is counted from the return of the acquire."""
    script = Script().event("try", "a").event("got", "a", "A.1", fence=1, until=103, note="5.0")
    assert script.copy().event("at", "a", "A.1", until=105).broken() == set()
    assert script.event("at", "a", "A.1", until=110).broken() == {"max_hold"}


def test_an_extension_near_the_end_of_max_hold_shortens_the_belief() -> None:
    """It is not carried past `max_hold`, so from its call on the belief may end there."""
    for max_hold, broken in (("0.25", set[str]()), ("", {"overlap"})):
        script = Script().event("try", "a").event("got", "a", "A.1", fence=1, until=100.6, note=max_hold)
        script.event("extend", "a", "A.1", until=103).event("got", "b", "B.1", fence=2, until=130)
        assert script.broken() == broken


def test_an_orphaned_record_is_found_while_it_is_there() -> None:
    """A record whose owner has gone ends with its lease; one that nobody renews does, whoever has it."""
    script = Script().event("try", "w/1", "A.1").event("got", "w/1", "A.1", fence=1, until=130)
    there = script.copy().later(9.0).event("seen", "", "A.1", fence=1, until=2.0)
    assert there.broken() == set()
    not_renewed = there.copy().later(2.5 + SLACK).event("seen", "", "A.1", fence=1, until=2.0)
    assert not_renewed.broken() == ORPHAN
    assert there.copy().later(2.5 + SLACK).event("seen", "", "A.1", fence=2, until=2.0).broken() == set()
    ends: list[tuple[What, str]] = [("left", "w/1"), ("dropped", "w/1"), ("alarm", "w/1"), ("kill", "w")]
    for what, who in ends:
        gone = script.copy().event(what, who, "A.1" if what in ("left", "dropped") else "")
        assert gone.copy().later(2.5).event("seen", "", "A.1", fence=2, until=2.0).broken() == set(), what
        assert gone.copy().later(2.5 + SLACK).event("seen", "", "A.1", fence=2, until=2.0).broken() == {
            "orphaned record"
        }, what
        back = gone.event("try", "w/2", "A.2").later(2.5 + SLACK)
        assert back.event("seen", "", "A.1", fence=2, until=2.0).broken() == set(), what
    failed = Script().event("try", "w/1", "A.1").event("none", "w/1", "A.1").later(2.5 + SLACK)
    assert failed.event("seen", "", "A.1", fence=2, until=2.0).broken() == ORPHAN


def test_a_look_that_finds_the_record_of_a_later_try_is_no_orphan() -> None:
    """A look has the time when it began: a key that the owner acquires meanwhile seems to be there before that."""
    gone = (
        Script().event("try", "w/1", "A.1").event("got", "w/1", "A.1", fence=1, until=130).event("left", "w/1", "A.1")
    )
    seen = gone.later(2.5 + SLACK).event("seen", "", "A.2", fence=2, until=2.0)
    assert seen.copy().event("try", "w/1", "A.2").broken() == set()
    assert seen.copy().event("try", "w/1", "B.1").broken() == ORPHAN
    assert seen.later(0.2).event("try", "w/1", "A.2").broken() == ORPHAN


def test_what_lands_late_is_no_orphan_for_one_lease() -> None:
    """A put that was held or doubled lands when the fault says, or when the proxy or the server goes on."""
    gone = Script().event("try", "w/1", "A.1").event("failed", "w/1", "A.1", note="unknown")
    for stop in ("", "worker", "server"):
        script = gone.copy().event("fault", "w", "A.1", until=4.0, note="duplicate").later(3.0)
        if stop == "worker":
            script.event("stop", "w").later(2.0).event("go", "w")
        elif stop == "server":
            script.event("freeze", "").later(2.0).event("thaw", "")
        for seconds, broken in ((2.5, set[str]()), (4.5 + SLACK, ORPHAN)):
            late = script.copy().later(seconds).event("seen", "", "A.1", fence=2, until=2.0)
            assert late.broken() == broken, (stop, seconds)
    held = gone.copy().event("fault", "", "A.1", until=1.0, note="hold request").later(2.0 + SLACK)
    for arrives, broken in ((True, set[str]()), (False, ORPHAN)):
        sent = held.copy().event("arrives", "", "A.1", note="hold request") if arrives else held.copy()
        assert sent.later(1.0).event("seen", "", "A.1", fence=2, until=1.5).broken() == broken


def test_a_put_lands_late_while_a_stopped_worker_has_the_lock_of_the_database() -> None:
    """Without a server, the requests of all workers wait for one that is stopped for long; with one, they do not."""
    for seconds, excused in ((0.7, False), (4.0, True)):
        gone = Script().event("try", "w/1", "A.1").event("stop", "other").event("failed", "w/1", "A.1", note="unknown")
        gone.later(seconds).event("go", "other").later(2.0 + SLACK - seconds)
        landed = gone.event("seen", "", "A.1", fence=2, until=1.0)
        assert landed.broken(embedded=True) == (set() if excused else ORPHAN), seconds
        assert landed.broken() == ORPHAN
        assert landed.later(4.0 + SLACK).event("seen", "", "A.1", fence=3, until=1.0).broken(embedded=True) == ORPHAN


def test_a_record_may_last_for_one_more_lease_after_a_restart_of_etcd() -> None:
    """Etcd begins its leases anew: what was there before has one lease from then on, and no more; a stop gives none."""
    for note, excused in ((RESTARTED, True), ("etcd", False)):
        gone = Script().event("try", "w/1", "A.1").event("failed", "w/1", "A.1", note="unknown")
        gone.event("seen", "", "A.1", fence=2, until=2.0).event("freeze", "", note=note).later(4).event("thaw", "")
        for seconds, broken in ((1.5, not excused), (2.5 + SLACK, True)):
            late = gone.copy().later(seconds).event("seen", "", "A.1", fence=2, until=2.0)
            assert late.broken() == (ORPHAN if broken else set()), (note, seconds)
        twice = gone.copy().later(1.5).event("seen", "", "A.1", fence=2, until=2.0)
        assert twice.later(3 + SLACK).event("seen", "", "A.1", fence=2, until=2.0).broken() == ORPHAN
        unseen = Script().event("try", "w/1", "A.1").event("failed", "w/1", "A.1", note="unknown")
        unseen.later(4).event("freeze", "", note=note).later(4).event("thaw", "").later(1.5)
        assert unseen.event("seen", "", "A.1", fence=2, until=2.0).broken() == (set() if excused else ORPHAN), note
        new = gone.copy().event("seen", "", "A.1", fence=3, until=2.0).later(2.5 + SLACK)
        assert new.event("seen", "", "A.1", fence=3, until=2.0).broken() == ORPHAN


def test_without_fences_all_other_laws_hold() -> None:
    """Fences that shrink or come again are no violation then; overlaps and unreported losses still are."""
    shrinks = Script().section("a", "A.1", 9).section("b", "B.1", 5).section("c", "C.1", 5)
    assert shrinks.broken(fences=False) == set()
    assert shrinks.broken() == {"fence inversion"}
    overlap = Script().event("got", "a", "A.1", fence=9, until=130).section("b", "B.1", 5)
    assert overlap.copy().broken(fences=False) == {"overlap"}
    lost = Script().event("got", "a", "A.1", fence=9, until=100.15).event("try", "b")
    lost.event("got", "b", "B.1", fence=5, until=130).event("leave", "a", "A.1").event("left", "a", "A.1", note="ok")
    assert lost.broken(fences=False) == {"unreported loss"}


def test_an_orphan_that_landed_late_is_distinguished_from_one_that_outlives_its_lease() -> None:
    """Whether it was written before its owner went, or long after, can be seen; a busy machine excuses neither."""
    gone = Script().event("try", "w/1", "A.1").event("failed", "w/1", "A.1", note="unknown").later(0.5)
    late = gone.copy().event("clear", "").later(2.0).event("clear", "").later(1.5 + SLACK)
    late.event("seen", "", "A.1", fence=2, until=0.8)
    assert "was written more than 2.7" in told(late)
    assert "applies late what was given up" in told(late)
    observed = gone.copy().event("seen", "", "A.1", fence=2, until=0.8).later(3.5 + SLACK)
    assert "without a renewal" in told(observed.event("seen", "", "A.1", fence=2, until=0.8))
    unseen = gone.copy().later(3.5 + SLACK).event("lag", "", until=1.5).event("seen", "", "A.1", fence=2, until=0.8)
    assert "was not seen; the machine was late by 1.5 s meanwhile" in told(unseen)


def told(script: Script) -> str:
    """Return the text of the only violation."""
    (violation,) = script.judged().violations
    assert violation.law == "orphaned record"
    return violation.text


def test_what_a_busy_machine_makes_late_is_no_orphan() -> None:
    """By as much as its processes were woken late, as measured in the run, a record may be there for longer."""
    gone = Script().event("try", "w/1", "A.1").event("failed", "w/1", "A.1", note="unknown")
    for lag, broken in ((0.0, ORPHAN), (1.0, ORPHAN), (2.0, set[str]())):
        script = gone.copy().later(3.0).event("lag", "", until=lag).later(1.4)  # 4.4 s, of which 0.8 are its lease
        assert script.event("seen", "", "A.1", fence=2, until=0.0).broken() == broken, lag


class WatchedScript(Script):
    """A made-up history of several keys, with looks at the store."""

    def tries(self, who: str, *keys: str, lease: float = 6.0) -> WatchedScript:
        """A client tries to acquire keys; the owner is named after the client and the key."""
        for key in keys:
            self.now += 0.01
            self.events.append(Event(self.now, "try", who, f"x:{key}", f"{who}:{key}", until=lease))
        return self

    def ends(self, what: What, who: str, *keys: str) -> WatchedScript:
        """A client holds them, or has failed, or releases them."""
        for key in keys:
            owner = f"{who}:{key}"
            self.now += 0.01
            self.events.append(
                Event(self.now, what, who, f"x:{key}", owner, f"{owner}.1", int(100 * self.now), self.now + 6)
            )
        return self

    def looks(self, seconds: float, stands: dict[str, str]) -> WatchedScript:
        """The store is looked at for a while: the owner of each key."""
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            for key, who in stands.items():
                owner = f"{who}:{key}" if who else ""
                what: What = "seen" if who else "clear"
                hold = f"{owner}.1" if who else ""
                self.events.append(
                    Event(self.now, what, "", f"x:{key}", owner, hold, fence=int(self.now * 10), until=60)
                )
        return self


FREE, LONG, SOON = {"several1": ""}, SLACK + 3.0, SLACK + 1.0
"""A waiter for a lease of 6 s notices within 2 s, and `SLACK`, that a key is free."""


def test_a_wait_for_a_key_that_nobody_has_is_found() -> None:
    """A waiter for a key that is free at each look has it soon, or gives up."""
    assert WatchedScript().tries("a/1", "several1").looks(LONG, FREE).broken() == {"stuck wait"}
    assert WatchedScript().tries("a/1", "several1").looks(SOON, FREE).ends("got", "a/1", "several1").broken() == set()
    assert WatchedScript().tries("a/1", "several1").looks(SOON, FREE).ends("none", "a/1", "several1").broken() == set()
    assert WatchedScript().tries("a/1", "0").looks(LONG, {"0": ""}).broken() == set(), "its requests may have faults"


def test_a_wait_is_no_violation_while_somebody_else_gets_the_key() -> None:
    """A key that is taken again and again is no violation, however long one waiter waits."""
    script = WatchedScript().tries("a/1", "several1")
    for who in ("b/1", "b/2", "b/3", "b/4"):
        script.tries(who, "several1").looks(SOON / 2, FREE).ends("got", who, "several1").ends("leave", who, "several1")
    assert script.broken() == set()


def test_contenders_that_wait_for_each_other_are_found() -> None:
    """Each of two holds the key that the other waits for; a third one waits for both."""
    script = (
        WatchedScript()
        .tries("a/1", "several1", "several2")
        .tries("b/1", "several1", "several2")
        .tries("c/1", "several1")
    )
    stands = {"several1": "a/1", "several2": "b/1"}
    found = script.looks(LONG + 1, stands).judged()
    assert {violation.law for violation in found.violations} == {"stuck wait"}
    assert {violation.text.split()[0] for violation in found.violations} == {"a/1", "b/1", "c/1"}


def test_a_wait_for_a_holder_is_no_violation() -> None:
    """A holder may take its time, and so may all that wait for somebody that waits for it."""
    stands = {"several1": "a/1", "several2": "b/1"}
    script = WatchedScript().tries("b/1", "several2").ends("got", "b/1", "several2")
    script.tries("a/1", "several1", "several2").tries("c/1", "several1").looks(4 * LONG, stands)
    assert script.broken() == set()


@pytest.mark.parametrize("excuse", ["kill", "stop", "freeze", "lag", "blind"])
def test_a_client_that_cannot_go_on_is_excused(excuse: str) -> None:
    """A client that was killed leaves a lease behind; one that is stopped, and the server, do nothing."""
    script = WatchedScript().tries("a/1", "several1", "several2").tries("b/1", "several2")
    stands = {"several1": "a/1", "several2": "b/1"}
    if excuse == "kill":
        script.event("kill", "b")
        script.looks(LONG, stands)
    else:
        script.looks(SOON, stands)
        if excuse == "stop":
            script.event("stop", "b").later(LONG).event("go", "b")
        elif excuse == "freeze":
            script.event("freeze", "").later(1.0).event("thaw", "")
        elif excuse == "lag":
            script.event("lag", "", until=SOON)
        else:
            script.later(LONG)
        script.looks(SOON / 2 if excuse == "stop" else SOON, stands)
    assert script.broken() == set()
    if excuse != "kill":
        assert script.looks(2 * LONG, stands).broken() == {"stuck wait"}


def test_a_lease_that_a_stopped_memcached_has_shortened_is_excused() -> None:
    """By no more than the stop, and only if it was written as the server went on."""

    def story(*, kind: str = "memcached", write: float = -0.1, early: float = 2.9) -> Script:
        """Stop for 3 s, write a lease of 6 s so much later, and let somebody else in so much before its end."""
        stop = [Event(100.0, "freeze", note=kind), Event(103.0, "thaw")]
        write += 103.0
        until = write + 5.9
        a = [
            Event(write, "try", "a", "key", "A", until=6.0),
            Event(write + 0.2, "got", "a", "key", "A", "A.1", 1, until),
        ]
        b = Event(until - early, "got", "b", "key", "B", "B.1", 2, write + 30)
        script = Script()
        script.events = [*stop, *a, b]
        return script

    assert story().broken() == set()
    assert story().judged().counts["shortened"] == 1
    assert story(kind="redis").broken() == {"overlap"}
    assert story(early=3.1).broken() == {"overlap"}
    for write in (-5.0, 0.3):
        assert story(write=write).broken() == {"overlap"}, write


def test_a_renewal_in_time_ends_what_a_stop_of_memcached_excuses() -> None:
    """What was written once more after the server went on lasts for its whole lease."""
    for renewed, broken in ((False, set[str]()), (True, {"overlap"})):
        script = Script()
        script.events = [
            Event(100.0, "freeze", note="memcached"), Event(103.0, "thaw"),
            Event(102.9, "try", "a", "key", "A", until=6.0), Event(103.1, "got", "a", "key", "A", "A.1", 1, 108.8),
        ]  # fmt: skip
        if renewed:
            script.events.append(Event(104.6, "at", "a", "key", "A", "A.1", until=110.4))
        script.events.append(Event(108.0, "got", "b", "key", "B", "B.1", 2, 130.0))
        assert script.broken() == broken


def test_an_announced_loss_is_no_violation() -> None:
    """What a server forgets that was killed is lost; from then on the laws hold again, and fences all the time."""
    script = Script().event("got", "a", "A.1", fence=1, until=130).event("try", "c").event("down", "").event("up", "")
    script.section("b", "B.1", 2).event("got", "c", "C.1", fence=3, until=130).section("d", "D.1", 4)
    assert script.broken() == set()
    assert script.section("a", "A.2", 3).broken() == {"fence inversion"}
    again = Script().event("down", "").event("up", "").event("try", "a").event("got", "a", "A.1", fence=1, until=130)
    assert "overlap" in again.section("b", "B.1", 2).broken()


def test_a_record_that_never_ends_is_found() -> None:
    """Records without a ttl, records that outlive the end, forked children that hold, and updates that are lost."""
    assert Script().event("forever", "").broken() == {"no ttl"}
    assert Script().event("orphan", "").broken() == ORPHAN
    assert Script().event("child", "a", "A.1", note="held").broken() == {"fork"}
    assert Script().event("child", "a", "A.1", note="inert").broken() == set()
    for count, broken in ((0, True), (1, False), (2, False), (3, True)):
        script = Script().event("adding", "a", "A.1").event("added", "a", "A.1").event("adding", "b", "B.1")
        script.event("adding", "c", "C.1").event("late", "c", "C.1", note="write")
        assert script.event("counter", "", fence=count).broken() == ({"lost update"} if broken else set()), count


def test_a_fenced_counter_refuses_a_late_client(tmp_path: Path) -> None:
    """From the first touch with a larger fence on, the smaller one neither reads nor writes."""
    counter = FencedCounter(tmp_path, "a:key")
    assert counter.count == 0
    assert counter.read(7) == 0
    counter.write(7, 1)
    assert counter.read(8) == 1
    for touch in (lambda: counter.read(7), lambda: counter.write(7, 2)):
        with pytest.raises(StaleFence):
            touch()
    assert counter.count == 1


def test_a_counter_whose_creator_was_killed_is_at_zero(tmp_path: Path) -> None:
    """A client that is killed after it made the file and before it wrote leaves an empty one."""
    (tmp_path / "key.counter").touch()
    counter = FencedCounter(tmp_path, "a:key")
    assert counter.count == 0
    counter.write(7, 1)
    assert counter.count == 1


def test_a_history_survives_its_writer(tmp_path: Path) -> None:
    """A line that was cut off is left out; all others are read as they were written."""
    history = History(tmp_path / "a.history")
    history.note("got", "w/1", "key", "owner", "hold", fence=3, until=7.5, note="é")
    history.close()
    with (tmp_path / "a.history").open("ab") as file:
        file.write(b'[1.0, "got"')
    (event,) = read(tmp_path)
    assert event[1:] == ("got", "w/1", "key", "owner", "hold", 3, 7.5, "é")


def test_a_history_that_is_cut_short_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has too much to report says so in its last line, which counts as a violation."""
    monkeypatch.setattr("caslock.verify.history.MOST", 3)
    history = History(tmp_path / "a.history")
    for _ in range(5):
        history.note("clock", "w")
    history.close()
    events = list(read(tmp_path))
    assert [event.what for event in events] == ["clock", "clock", "cut"]
    assert [violation.law for violation in judge(events).violations] == ["history cut short"]


def test_a_plan_travels_as_json() -> None:
    """What a worker reads is what was meant; its keys are of this run alone."""
    plan = Plan(url="redis://h/0", ttls=(0.5, 1.0), seed=9)
    assert Plan.from_json(plan.to_json()) == plan
    assert len({*plan.all_names(), *Plan().all_names()}) == 2 * len(plan.all_names())
    assert all(key.startswith(PREFIX) for key in plan.all_names())


SERVERS = ("redis", "memcached", "postgresql", "mysql", "etcd", "zookeeper", "hazelcast", "nats", "dynamodb")


@pytest.mark.long
@pytest.mark.parametrize("name", SERVERS)
def test_a_fault_is_that_of_a_hold(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whatever a store makes of a record in its requests, a late one is known as that of its hold."""
    plan = Plan(url=request.getfixturevalue(f"{name}_server").url)
    history, server, requests = History(tmp_path / "1.history"), server_of(plan), list[bytes]()
    assert server

    def listen(sent: bytes) -> Passage:
        requests.append(sent)
        return PASS

    with FaultProxy(*server, listen) as proxy:
        store = open_store(plan, through(plan.url, proxy.port, 5.0))
        with Lock(driven(store), plan.names()[0], ttl=9):
            record = driven(store).get(plan.names()[0])
        close(store)
    assert record
    for sent in requests:
        fault_writer(history)(sent, Passage("hold request", 2.0))
    history.close()
    holds = " ".join(json.loads(record.value)["holds"])
    assert holds in {event.hold for event in read(tmp_path)}


def test_a_url_leads_through_the_proxy() -> None:
    """User, password, database and options stay; host and port are the proxy's, and the timeouts short."""
    assert through("redis://u:p%40@h:1/3?protocol=3&socket_timeout=9", 77, 0.2) == (
        "redis://u:p%40@127.0.0.1:77/3?protocol=3&socket_timeout=0.2&socket_connect_timeout=0.2"
    )
    assert through("memcached://h?prefix=x", 77, 0.25) == "memcached://127.0.0.1:77?prefix=x&timeout=0.25"


def test_the_contract_is_patient_with_a_busy_server() -> None:
    """The timeouts that a URL does not set are long."""
    assert with_timeout("memcached://h", 30) == "memcached://h?timeout=30"
    assert with_timeout("redis://h?socket_timeout=9", 30) == "redis://h?socket_timeout=9&socket_connect_timeout=30"
    assert with_timeout("etcd://a:1,b:2?timeout=3", 30) == "etcd://a:1,b:2?timeout=3"
    assert with_timeout("sqlite:////tmp/x.db", 30) == "sqlite:////tmp/x.db"
    assert with_timeout("postgresql+psycopg://h?", 30) == "postgresql+psycopg://h?&timeout=30"


def test_a_wall_clock_goes_wrong() -> None:
    """By as much as was said, in that process; the clocks of leases go on."""
    script = (
        "import time\nfrom caslock.local import clock\nfrom caslock.verify.recorder import WallClock\n"
        "wall, before, lease = WallClock(), time.time(), clock.now()\nwall.error = -7200\n"
        "print(round(time.time() - before), round(time.time_ns() / 1e9 - before), round(clock.now() - lease))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-7200", "-7200", "0"]
