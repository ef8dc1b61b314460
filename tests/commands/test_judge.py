"""The parts of ``caslock verify``, one by one: above all its judge, on histories that are made up."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from caslock import Lock
from caslock.testing.drive import driven
from caslock.testing.proxy import PASS, FaultProxy, Passage
from caslock.verify import PREFIX, Event, Judgement, Plan, judge
from caslock.verify.counter import FencedCounter, StaleFence
from caslock.verify.delays import SLACK
from caslock.verify.history import History, What, read
from caslock.verify.locations import close, open_store, server_of, through, with_timeout
from caslock.verify.worker import fault_writer
from tests.proof.torture import LAWS
from tests.proof.torture.etcd_leases import RESTARTED
from tests.support.command_line import python

ORPHAN = {"orphaned record"}


class Script:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 100.0

    def event(
        self, what: What, who: str, hold: str = "", *, fence: int = 0, until: float = 0.0, note: str = ""
    ) -> Script:
        self.now += 0.1
        self.events.append(Event(self.now, what, who, "key", hold.partition(".")[0], hold, fence, until, note))
        return self

    def later(self, seconds: float) -> Script:
        self.now += seconds
        return self

    def copy(self) -> Script:
        """Return a copy of the history so far, to be continued in another way."""
        return copy.deepcopy(self)

    def got(self, who: str, hold: str, fence: int, until: float = 130.0) -> Script:
        return self.event("got", who, hold, fence=fence, until=until)

    def released(self, who: str, hold: str, note: str = "ok") -> Script:
        return self.event("leave", who, hold).event("left", who, hold, note=note)

    def forced(self, hold: str) -> Script:
        return self.event("break", "c").event("broke", "c", note=hold)

    def failed(self, who: str, hold: str) -> Script:
        """Somebody tries to acquire, and does not learn what has become of it."""
        return self.event("try", who, hold).event("failed", who, hold, note="unknown")

    def seen(self, hold: str, fence: int, lease: float = 2.0) -> Script:
        return self.event("seen", "", hold, fence=fence, until=lease)

    def section(self, who: str, hold: str, fence: int) -> Script:
        return self.event("try", who).got(who, hold, fence, self.now + 30).released(who, hold)

    def judged(self, *, fences: bool = True, embedded: bool = False) -> Judgement:
        events = list(self.events)
        random.Random(1).shuffle(events)
        return judge(events, fences=fences, embedded=embedded, laws=LAWS)

    def broken(self, *, fences: bool = True, embedded: bool = False) -> set[str]:
        return {violation.law for violation in self.judged(fences=fences, embedded=embedded).violations}


def test_a_good_history_breaks_no_law() -> None:
    """One after the other, with growing fences; a lost lease is reported; what is unknown stays unknown."""
    script = Script().section("a", "A.1", 1).section("b", "B.1", 2).section("a", "A.2", 3)
    script.event("try", "c").event("failed", "c", note="unknown").event("try", "c").event("none", "c")
    script.event("try", "a").got("a", "A.3", 4, script.now + 0.3)
    script.event("stop", "a").event("try", "b").event("go", "a")
    script.got("b", "B.2", 5, script.now + 30)  # after the deadline of A.3
    script.event("late", "a", "A.3", fence=4, note="write").event("reported", "a", "A.3").event("leave", "a", "A.3")
    script.event("left", "a", "A.3", note="lost").released("b", "B.2")
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
    script = Script().got("a", "A.1", 1).forced("A.1").got("b", "B.1", 2)
    slots = [each._replace(key="key#1") if each.what == "got" else each for each in script.events]
    assert "overlap" not in {violation.law for violation in judge(slots).violations}


def test_an_overlap_is_found() -> None:
    """Two owners who believe at the same time break the first law, also when others held it between them."""
    script = Script().got("a", "A.1", 1).section("b", "B.1", 2)
    assert "overlap" in script.broken()
    long_ago = Script().got("a", "A.1", 1).got("a", "A.2", 2, 100.25).got("a", "A.3", 3, 100.35)
    assert "overlap" not in long_ago.broken()
    assert "overlap" in long_ago.got("b", "B.1", 4).broken()


def test_a_belief_is_taken_for_no_longer_than_it_was_proved() -> None:
    """It ends at the deadline that was last seen, at the release, at the loss, or when the hold is dropped."""
    ends: list[What] = ["leave", "reported", "dropped", "at"]
    for end in ends:
        assert Script().got("a", "A.1", 1).event(end, "a", "A.1").got("b", "B.1", 2).broken() == set(), end
    extended = Script().got("a", "A.1", 1).event("extend", "a", "A.1", until=100.25)
    assert extended.got("b", "B.1", 2).broken() == set()
    renewed = Script().got("a", "A.1", 1, 100.15).event("at", "a", "A.1", until=130)
    assert "overlap" in renewed.got("b", "B.1", 2).broken()


@pytest.mark.parametrize(("ends", "fence", "broken"), [(130, 5, set()), (130, 9, {"two fences"}), (100.15, 9, set())])
def test_holds_of_one_owner_are_one_tenure_with_one_fence(ends: float, fence: int, broken: set[str]) -> None:
    """They do not overlap with each other; only a later tenure has a larger fence."""
    script = Script().got("a", "x:owner.1", 5, ends).got("b", "x:owner.2", fence)
    script.events = [event._replace(owner="x:owner") for event in script.events]
    assert script.broken() == broken


def test_a_fence_inversion_is_found() -> None:
    """A later tenure has a larger fence, whoever has it."""
    assert Script().section("a", "A.1", 2).section("b", "B.1", 1).broken() == {"fence inversion"}
    for who, hold in (("b", "B.1"), ("a", "A.2")):
        assert Script().section("a", "A.1", 2).section(who, hold, 2).broken() == {"fence twice"}
    far = Script().section("a", "A.1", 9).section("b", "B.1", 1).section("b", "B.2", 2)
    assert [violation.law for violation in far.judged().violations] == ["fence inversion"] * 2


def test_an_unreported_loss_is_found() -> None:
    """A clean release although another held the key meanwhile hides a loss, and so does a wait that was in vain."""
    hidden = Script().got("a", "A.1", 1, 100.15).section("b", "B.1", 2).released("a", "A.1")
    assert hidden.broken() == {"unreported loss"}
    assert Script().got("a", "A.1", 1).event("unreported", "a", "A.1").broken() == {"unreported loss"}
    back = Script().got("a", "A.1", 1).event("reported", "a", "A.1").event("at", "a", "A.1", until=130)
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
    script = Script().event("try", "a").got("a", "A.1", 2).forced("A.1").section("b", "B.1", 3)
    assert script.copy().event("reported", "a", "A.1").released("a", "A.1", "lost").broken() == set()
    assert script.copy().released("a", "A.1").broken() == {"unreported loss"}
    assert script.copy().released("a", "A.1", "blind").broken() == set()
    assert script.copy().section("d", "D.1", 2).broken() == {"fence inversion"}
    assert Script().got("a", "A.1", 2).forced("X.1").section("b", "B.1", 3).broken() == {"overlap"}


def test_nothing_shows_a_force_release_once_a_lease_has_ended() -> None:
    """If the next holder has died, nothing is there, and the holder that lost the key can't know."""
    script = Script().event("try", "a").got("a", "A.1", 2).forced("A.1")
    script.got("b", "B.1", 3, script.now + 0.2).event("stop", "b").event("go", "b")
    assert script.released("a", "A.1").broken() == set()


def test_a_hold_released_by_force_may_end_normally_if_another_may_have_held() -> None:
    """Whoever takes the free record, and whose lease then ends, leaves nothing that could show the `force_release`."""
    start = Script().event("try", "a", until=3.0).got("a", "A.1", 2, 103).forced("A.1")
    tried = start.copy().event("try", "w/1")
    late = tried.copy().later(0.5).got("w/1", "B.1", 3, 100.7)
    killed = tried.copy().event("kill", "w").later(0.5)
    alarmed = tried.copy().event("alarm", "w/1").later(0.5)
    rolled_back = tried.copy().event("failed", "w/1", "B.1", note="unknown").later(0.5)
    busy = tried.copy().later(0.5).event("none", "w/1", "B.1").section("b", "C.1", 4)
    early = Script().event("try", "w/1")
    early.events += start.events
    acquired = tried.copy().got("w/1", "B.1", 3, 101)
    slept = acquired.copy().event("leave", "w/1", "B.1").later(0.5).event("left", "w/1", "B.1", note="ok")
    blind = acquired.copy().released("w/1", "B.1", "blind")
    for number, script in enumerate((late, killed, alarmed, rolled_back, busy, early, slept, blind)):
        script.now = max(script.now, 101.0)
        assert script.released("a", "A.1").broken() == set(), number
    slow = start.copy().event("leave", "a", "A.1").event("try", "w/1").event("kill", "w").later(0.5)
    assert slow.event("left", "a", "A.1", note="ok").broken() == set()
    long_after = start.copy().later(70).released("a", "A.1")
    assert long_after.broken() == set()  # a free record ends as well


def test_a_hold_released_by_force_is_lost_while_something_is_there() -> None:
    """The free record does, and so does what came after it; who was killed long before has taken neither."""
    for before in ("", "kill", "alarm"):
        script = Script()
        if before:
            script.event("try", "w/1").event("kill" if before == "kill" else "alarm", "w/1").later(2.0)
        script.event("try", "a", until=3.0).got("a", "A.1", 2, script.now + 3).forced("A.1")
        assert script.copy().released("a", "A.1").broken() == {"unreported loss"}, before
        script.event("try", "b").got("b", "B.1", 3, script.now + 30)
        assert script.released("a", "A.1").broken() == {"unreported loss"}, before


def test_a_forgotten_holder_may_release_normally() -> None:
    """Also if it did not look at its deadline for a while: it was renewed all the same."""
    script = Script().event("try", "a", until=3.0).got("a", "A.1", 2, 100.5).later(1.0)
    script.event("down", "").event("up", "").section("b", "B.1", 3)
    assert script.released("a", "A.1").broken() == set()


@pytest.mark.parametrize("end", ["broke", "kill"])
def test_a_force_release_without_an_answer_may_have_hit_any_holder(end: What) -> None:
    """Without an answer, or if its process is killed, any holder at that time may have lost, and no later one."""
    script = Script().got("a", "A.1", 1).event("break", "c/1")
    script.event(end, "c" if end == "kill" else "c/1", note="unknown").section("b", "B.1", 2)
    assert script.broken() == set()
    assert script.got("c", "C.1", 3).section("d", "D.1", 4).broken() == {"overlap"}


def test_a_hold_is_not_renewed_after_it_was_released_by_force_or_forgotten() -> None:
    """A belief that grows longer than the last lease before that was renewed where nothing of it stood."""
    held = Script().event("try", "a", until=2.0).got("a", "A.1", 2, 102.1)
    extended = held.copy().event("extend", "a", "A.1", until=104.0)
    ends: list[Callable[[Script], Script]] = [
        lambda script: script.forced("A.1"),
        lambda script: script.event("down", "").event("up", ""),
    ]
    for end in ends:
        assert end(held.copy()).event("at", "a", "A.1", until=102.2).broken() == set()
        assert end(held.copy()).event("at", "a", "A.1", until=103.0).broken() == {"unreported loss"}
        assert end(extended.copy()).event("at", "a", "A.1", until=104.0).broken() == set()


def test_a_belief_that_outlasts_max_hold_is_found() -> None:
    """It is counted from the return of the acquire."""
    script = Script().event("try", "a").event("got", "a", "A.1", fence=1, until=103, note="5.0")
    assert script.copy().event("at", "a", "A.1", until=105).broken() == set()
    assert script.event("at", "a", "A.1", until=110).broken() == {"max_hold"}


def test_an_extension_near_the_end_of_max_hold_shortens_the_belief() -> None:
    """It is not carried past `max_hold`, so from its call on the belief may end there."""
    for max_hold, broken in (("0.25", set[str]()), ("", {"overlap"})):
        script = Script().event("try", "a").event("got", "a", "A.1", fence=1, until=100.6, note=max_hold)
        script.event("extend", "a", "A.1", until=103).got("b", "B.1", 2)
        assert script.broken() == broken


def test_an_orphaned_record_is_found_while_it_is_there() -> None:
    """A record whose owner has gone ends with its lease; one that nobody renews does, whoever has it."""
    script = Script().event("try", "w/1", "A.1").got("w/1", "A.1", 1)
    there = script.copy().later(9.0).seen("A.1", 1)
    assert there.broken() == set()
    assert there.copy().later(2.5 + SLACK).seen("A.1", 1).broken() == ORPHAN
    assert there.copy().later(2.5 + SLACK).seen("A.1", 2).broken() == set()
    ends: list[tuple[What, str]] = [("left", "w/1"), ("dropped", "w/1"), ("alarm", "w/1"), ("kill", "w")]
    for what, who in ends:
        gone = script.copy().event(what, who, "A.1" if what in ("left", "dropped") else "")
        assert gone.copy().later(2.5).seen("A.1", 2).broken() == set(), what
        assert gone.copy().later(2.5 + SLACK).seen("A.1", 2).broken() == ORPHAN, what
        assert gone.event("try", "w/2", "A.2").later(2.5 + SLACK).seen("A.1", 2).broken() == set(), what
    failed = Script().event("try", "w/1", "A.1").event("none", "w/1", "A.1").later(2.5 + SLACK)
    assert failed.seen("A.1", 2).broken() == ORPHAN


def test_a_look_that_finds_the_record_of_a_later_try_is_no_orphan() -> None:
    """A look has the time when it began: a key that the owner acquires meanwhile seems to be there before that."""
    gone = Script().event("try", "w/1", "A.1").got("w/1", "A.1", 1).event("left", "w/1", "A.1")
    seen = gone.later(2.5 + SLACK).seen("A.2", 2)
    assert seen.copy().event("try", "w/1", "A.2").broken() == set()
    assert seen.copy().event("try", "w/1", "B.1").broken() == ORPHAN
    assert seen.later(0.2).event("try", "w/1", "A.2").broken() == ORPHAN


def test_what_lands_late_is_no_orphan_for_one_lease() -> None:
    """A put that was held or doubled lands when the fault says, or when the proxy or the server goes on."""
    gone = Script().failed("w/1", "A.1")
    for stop in ("", "worker", "server"):
        script = gone.copy().event("fault", "w", "A.1", until=4.0, note="duplicate").later(3.0)
        if stop == "worker":
            script.event("stop", "w").later(2.0).event("go", "w")
        elif stop == "server":
            script.event("freeze", "").later(2.0).event("thaw", "")
        for seconds, broken in ((2.5, set[str]()), (4.5 + SLACK, ORPHAN)):
            assert script.copy().later(seconds).seen("A.1", 2).broken() == broken, (stop, seconds)
    held = gone.copy().event("fault", "", "A.1", until=1.0, note="hold request").later(2.0 + SLACK)
    for arrives, broken in ((True, set[str]()), (False, ORPHAN)):
        sent = held.copy().event("arrives", "", "A.1", note="hold request") if arrives else held.copy()
        assert sent.later(1.0).seen("A.1", 2, 1.5).broken() == broken


def test_a_put_lands_late_while_a_stopped_worker_has_the_lock_of_the_database() -> None:
    """Without a server, the requests of all workers wait for one that is stopped for long; with one, they do not."""
    for seconds, excused in ((0.7, False), (4.0, True)):
        gone = Script().event("try", "w/1", "A.1").event("stop", "other").event("failed", "w/1", "A.1", note="unknown")
        landed = gone.later(seconds).event("go", "other").later(2.0 + SLACK - seconds).seen("A.1", 2, 1.0)
        assert landed.broken(embedded=True) == (set() if excused else ORPHAN), seconds
        assert landed.broken() == ORPHAN
        assert landed.later(4.0 + SLACK).seen("A.1", 3, 1.0).broken(embedded=True) == ORPHAN


def test_a_record_may_last_for_one_more_lease_after_a_restart_of_etcd() -> None:
    """Etcd begins its leases anew: what was there before has one lease from then on, and no more; a stop gives none."""
    for note, excused in ((RESTARTED, True), ("etcd", False)):
        once = set() if excused else ORPHAN
        gone = Script().failed("w/1", "A.1").seen("A.1", 2).event("freeze", "", note=note).later(4).event("thaw", "")
        soon = gone.copy().later(1.5).seen("A.1", 2)
        assert soon.broken() == once, note
        assert soon.later(3 + SLACK).seen("A.1", 2).broken() == ORPHAN
        assert gone.copy().later(2.5 + SLACK).seen("A.1", 2).broken() == ORPHAN
        unseen = Script().failed("w/1", "A.1").later(4).event("freeze", "", note=note).later(4).event("thaw", "")
        assert unseen.later(1.5).seen("A.1", 2).broken() == once, note
        assert gone.seen("A.1", 3).later(2.5 + SLACK).seen("A.1", 3).broken() == ORPHAN


def test_without_fences_all_other_laws_hold() -> None:
    """Fences that shrink or come again are no violation then; overlaps and unreported losses still are."""
    shrinks = Script().section("a", "A.1", 9).section("b", "B.1", 5).section("c", "C.1", 5)
    assert shrinks.broken(fences=False) == set()
    assert shrinks.broken() == {"fence inversion"}
    assert Script().got("a", "A.1", 9).section("b", "B.1", 5).broken(fences=False) == {"overlap"}
    lost = Script().got("a", "A.1", 9, 100.15).event("try", "b").got("b", "B.1", 5).released("a", "A.1")
    assert lost.broken(fences=False) == {"unreported loss"}


def test_an_orphan_that_landed_late_is_distinguished_from_one_that_outlives_its_lease() -> None:
    """Whether it was written before its owner went, or long after, can be seen; a busy machine excuses neither."""
    gone = Script().failed("w/1", "A.1").later(0.5)
    late = gone.copy().event("clear", "").later(2.0).event("clear", "").later(1.5 + SLACK).seen("A.1", 2, 0.8)
    assert "was written more than 2.7" in told(late)
    assert "applies late what was given up" in told(late)
    observed = gone.copy().seen("A.1", 2, 0.8).later(3.5 + SLACK)
    assert "without a renewal" in told(observed.seen("A.1", 2, 0.8))
    unseen = gone.copy().later(3.5 + SLACK).event("lag", "", until=1.5).seen("A.1", 2, 0.8)
    assert "was not seen; the machine was late by 1.5 s meanwhile" in told(unseen)


def told(script: Script) -> str:
    (violation,) = script.judged().violations
    assert violation.law == "orphaned record"
    return violation.text


def test_what_a_busy_machine_makes_late_is_no_orphan() -> None:
    """By as much as its processes were woken late, as measured in the run, a record may be there for longer."""
    gone = Script().failed("w/1", "A.1")
    for lag, broken in ((0.0, ORPHAN), (1.0, ORPHAN), (2.0, set[str]())):
        script = gone.copy().later(3.0).event("lag", "", until=lag).later(1.4)  # 4.4 s, of which 0.8 are its lease
        assert script.seen("A.1", 2, 0.0).broken() == broken, lag


class WatchedScript(Script):
    """A made-up history of several keys, with looks at the store."""

    def note(self, what: What, who: str, key: str, after: float, until: float, *, hold: str = "") -> None:
        """Something happens so much later; the owner is named after the client and the key."""
        self.now += after
        owner = f"{hold or who}:{key}" if hold or who else ""
        hold = f"{owner}.1" if hold else ""
        self.events.append(Event(self.now, what, who, f"x:{key}", owner, hold, int(100 * self.now), until))

    def tries(self, who: str, *keys: str) -> WatchedScript:
        for key in keys:
            self.note("try", who, key, 0.01, 6.0)
        return self

    def ends(self, what: What, who: str, key: str) -> WatchedScript:
        """A client holds a key, or has failed, or releases it."""
        self.note(what, who, key, 0.01, self.now + 6, hold=who)
        return self

    def looks(self, seconds: float, stands: dict[str, str]) -> WatchedScript:
        """The store is looked at for a while: the owner of each key."""
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            for key, who in stands.items():
                self.note("seen" if who else "clear", "", key, 0.0, 60.0, hold=who)
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
    script = WatchedScript().tries("a/1", "several1", "several2").tries("b/1", "several1", "several2")
    stands = {"several1": "a/1", "several2": "b/1"}
    found = script.tries("c/1", "several1").looks(LONG + 1, stands).judged()
    assert {violation.law for violation in found.violations} == {"stuck wait"}
    assert {violation.text.split()[0] for violation in found.violations} == {"a/1", "b/1", "c/1"}


def test_a_wait_for_a_holder_is_no_violation() -> None:
    """A holder may take its time, and so may all that wait for somebody that waits for it."""
    stands = {"several1": "a/1", "several2": "b/1"}
    script = WatchedScript().tries("b/1", "several2").ends("got", "b/1", "several2")
    script.tries("a/1", "several1", "several2").tries("c/1", "several1").looks(4 * LONG, stands)
    assert script.broken() == set()


EXCUSES: dict[str, Callable[[Script], Script]] = {
    "stop": lambda script: script.event("stop", "b").later(LONG).event("go", "b"),
    "freeze": lambda script: script.event("freeze", "").later(1.0).event("thaw", ""),
    "lag": lambda script: script.event("lag", "", until=SOON),
    "blind": lambda script: script.later(LONG),
}


@pytest.mark.parametrize("excuse", EXCUSES)
def test_a_client_that_cannot_go_on_is_excused(excuse: str) -> None:
    """A client that is stopped, and the server, do nothing meanwhile, and no longer."""
    stands = {"several1": "a/1", "several2": "b/1"}
    script = WatchedScript().tries("a/1", "several1", "several2").tries("b/1", "several2").looks(SOON, stands)
    EXCUSES[excuse](script)
    assert script.looks(SOON / 2 if excuse == "stop" else SOON, stands).broken() == set()
    assert script.looks(2 * LONG, stands).broken() == {"stuck wait"}


def test_a_client_that_was_killed_leaves_a_lease_behind() -> None:
    """Whoever waits for it waits for no longer than that."""
    script = WatchedScript().tries("a/1", "several1", "several2").tries("b/1", "several2")
    script.event("kill", "b")
    assert script.looks(LONG, {"several1": "a/1", "several2": "b/1"}).broken() == set()


def stopped_for_three_seconds(kind: str = "memcached", *, write: float, early: float, renewed: bool = False) -> Script:
    """Write a lease of 6 s so long after the stop; somebody else acquires so long before its end."""
    write += 103.0
    until = write + 5.9
    script = Script()
    script.events = [
        Event(100.0, "freeze", note=kind),
        Event(103.0, "thaw"),
        Event(write, "try", "a", "key", "A", until=6.0),
        Event(write + 0.2, "got", "a", "key", "A", "A.1", 1, until),
        *([Event(104.6, "at", "a", "key", "A", "A.1", until=110.4)] if renewed else []),
        Event(until - early, "got", "b", "key", "B", "B.1", 2, 134.0),
    ]
    return script


def test_a_lease_that_a_stopped_memcached_has_shortened_is_excused() -> None:
    """By no more than the stop, and only if it was written as the server went on, and not once more since."""
    story = stopped_for_three_seconds
    assert story(write=-0.1, early=2.9).broken() == set()
    assert story(write=-0.1, early=2.9).judged().counts["shortened"] == 1
    assert story("redis", write=-0.1, early=2.9).broken() == {"overlap"}
    assert story(write=-0.1, early=3.1).broken() == {"overlap"}
    assert story(write=-5.0, early=2.9).broken() == {"overlap"}
    assert story(write=0.3, early=2.9).broken() == {"overlap"}
    assert story(write=-0.1, early=0.8).broken() == set()
    assert story(write=-0.1, early=0.8, renewed=True).broken() == {"overlap"}


def test_an_announced_loss_is_no_violation() -> None:
    """What a server forgets that was killed is lost; from then on the laws hold again, and fences all the time."""
    script = Script().got("a", "A.1", 1).event("try", "c").event("down", "").event("up", "")
    script.section("b", "B.1", 2).got("c", "C.1", 3).section("d", "D.1", 4)
    assert script.broken() == set()
    assert script.section("a", "A.2", 3).broken() == {"fence inversion"}
    again = Script().event("down", "").event("up", "").event("try", "a").got("a", "A.1", 1)
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
    assert python("-c", script) == (0, "-7200 -7200 0\n", "")
