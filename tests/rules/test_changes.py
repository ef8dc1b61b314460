"""Who watches an election, on virtual time: what is told and when, and what that costs the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import cast

import pytest

from caslock import Entry, StoreError, StoreUnavailable
from caslock.local.changes import PAUSE, WOKEN_PAUSE, Change, Changes, Looks
from caslock.local.hold import Holding
from caslock.local.lock_state import LockState
from caslock.protocol.attempt import LockSettings
from caslock.protocol.record import Record, encode
from caslock.protocol.runtime import Runtime
from caslock.store import ABSENT
from tests.rules.herds.virtual_time import ROUND_TRIP, Process, Server, Timeline, Waits, pause

SOON = 10 * ROUND_TRIP
"""Seconds of a few requests."""


class Site(Process):
    """A process that notes when it asks, and whose store fails as the test says."""

    def __init__(self, timeline: Timeline, server: Server, waits: Waits) -> None:
        super().__init__(timeline, server, waits)
        self.asked: list[tuple[str, float]] = []
        self.fails: Callable[[str], Exception | None] = lambda _verb: None
        self.takes = 0.0  # seconds more, of a get

    async def get(self, key: str) -> Entry | None:
        self._ask_for("get")
        entry = await super().get(key)
        takes, self.takes = self.takes, 0.0
        await pause(self._timeline, takes)
        return entry

    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        self._ask_for("wait")
        await super().wait_while(key, version, timeout)

    def _ask_for(self, verb: str) -> None:
        self.asked.append((verb, self.now()))
        if error := self.fails(verb):
            raise error


class Early(Site):
    async def wait_while(self, key: str, version: int, timeout: float) -> None:
        del key, version, timeout
        self._ask_for("wait")


class Scene:
    """One key, the processes that use it, and what their watchers are told: when, and the owner who leads then."""

    def __init__(self, waits: Waits = "polled", site: type[Site] = Site) -> None:
        self.timeline = Timeline()
        self.server = Server(self.timeline)
        self.site = site(self.timeline, self.server, waits)
        self.shared = Looks()
        self.began = self.timeline.now
        self.told: dict[str, list[tuple[float, str]]] = {}
        self.ends: dict[str, float] = {}

    @property
    def passed(self) -> float:
        return self.timeline.now - self.began

    def state(self, name: str, *, ttl: float = 1000.0, min_hold: float = 0.0) -> LockState:
        """Make a lock of a process of its own, whose requests are not noted."""
        process = Process(self.timeline, self.server, "polled")
        settings = LockSettings(ttl, min_hold=min_hold, note=name)
        return LockState(cast("Runtime", process), "key", settings)

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        def run() -> None:
            act()

        self.timeline.at(self.began + seconds, run)

    def go(self, seconds: float, coroutine: Coroutine[object, object, object]) -> None:
        self.at(seconds, lambda: self.timeline.start(coroutine))

    async def lead(self, name: str, seconds: float, *, ttl: float = 1000.0, min_hold: float = 0.0) -> None:
        state = self.state(name, ttl=ttl, min_hold=min_hold)
        hold = await state.acquire(state.begin(Holding), None)
        await pause(self.timeline, seconds)
        await state.release(hold)

    def watch(self, name: str, since: float = 0.0, until: float = 100.0, works: float = 0.0) -> None:
        """Watch from one moment to another, and work for some seconds on each change that is told."""
        state = LockState(cast("Runtime", self.site), "key", LockSettings(1.0))
        changes = Changes(state, lambda: self.shared)
        told = self.told[name] = []

        async def run() -> None:
            change: Change | bool | None = True
            while change is not None:
                try:
                    change = await changes.next()
                except StoreError as error:
                    told.append((self.passed, str(error)))
                else:
                    if change is not None:
                        told.append((self.passed, change.leader.note if change.leader else ""))
                await pause(self.timeline, works)
            self.ends[name] = self.passed

        self.go(since, run())
        self.at(until, changes.close)

    def play(self) -> None:
        assert self.timeline.run(1_000_000)

    @property
    def looks(self) -> list[float]:
        return [moment - self.began for verb, moment in self.site.asked if verb == "get"]

    @property
    def gaps(self) -> list[float]:
        return [round(after - before, 6) for before, after in pairwise(self.looks)]

    def names(self, watcher: str) -> list[str]:
        return [name for _, name in self.told[watcher]]


def test_many_watchers_make_one_request_a_second_together() -> None:
    """Each is told each change, in the second in which it comes."""
    scene = Scene()
    for number in range(20):
        scene.watch(f"w{number}", until=20)
    scene.go(5.5, scene.lead("ann", 3))
    scene.play()
    assert len(scene.looks) <= 20 + 1
    assert min(scene.gaps) >= PAUSE
    assert len({tuple(told) for told in scene.told.values()}) == 1
    (first, nobody), (second, ann), (third, again) = scene.told["w0"]
    assert (nobody, ann, again) == ("", "ann", "")
    assert first <= SOON
    assert 5.5 < second <= 5.5 + PAUSE + SOON
    assert 8.5 < third <= 8.5 + PAUSE + SOON


@pytest.mark.parametrize(("waits", "looks"), [("polled", 5), ("watching", 1)])
def test_who_comes_later_is_told_at_once_what_others_have_seen(waits: Waits, looks: int) -> None:
    """That takes no request, also if the last look is some seconds old: the store would say what has changed since."""
    scene = Scene(waits)
    scene.go(0, scene.lead("ann", 50))
    scene.watch("first", since=1, until=5.75)
    scene.watch("second", since=4.5, until=5.75)
    scene.play()
    assert scene.told["second"] == [(4.5, "ann")]
    assert len(scene.looks) == looks


def test_what_nobody_has_watched_for_a_while_is_not_told() -> None:
    """Who comes then looks first, or waits for the one who does; so does one who was busy with a change for long."""
    scene = Scene()
    scene.go(0, scene.lead("ann", 20))
    scene.go(1, scene.lead("bob", 20))
    scene.watch("before", since=2, until=19.5)
    scene.watch("slow", since=2, until=80, works=35)
    scene.at(21.9, lambda: setattr(scene.site, "takes", 0.5))
    scene.watch("after", since=22, until=24)
    scene.watch("and another", since=22.2, until=24)
    scene.play()
    assert scene.names("before") == ["ann"]
    assert scene.names("after") == scene.names("and another") == ["bob"]
    assert scene.names("slow") == ["ann", "bob", ""]
    assert scene.told["slow"][1][0] == pytest.approx(37, abs=PAUSE)


def test_a_store_that_wakes_is_asked_only_when_something_has_changed() -> None:
    """A release is told at once; without news there is one look each five seconds, and renewals are none."""
    scene = Scene("watching")
    state = scene.state("ann", ttl=40.0)
    hold = state.begin(Holding)

    async def lead() -> None:
        await state.acquire(hold, None)
        for _ in range(3):
            await pause(scene.timeline, 12)
            await state.renew(hold._attempt, None)
        await pause(scene.timeline, 4.25)
        await state.release(hold)

    scene.go(0, lead())
    scene.watch("watcher", since=0.5, until=40.5)
    scene.play()
    (_, ann), (told, nobody) = scene.told["watcher"]
    assert (ann, nobody) == ("ann", "")
    assert 40.25 < told <= 40.25 + SOON
    assert len(scene.looks) <= 1 + 40 / 5 + 3 + 1


def test_the_end_of_the_lease_of_a_dead_leader_is_seen_though_it_wakes_nobody() -> None:
    """The wait at the store is not longer than the lease that was seen."""
    scene = Scene("watching")
    state = scene.state("ann", ttl=3.0)
    scene.watch("watcher", until=20)
    scene.go(0.5, state.acquire(state.begin(Holding), None))
    scene.play()
    (_, nobody), (_, ann), (end, again) = scene.told["watcher"]
    assert (nobody, ann, again) == ("", "ann", "")
    assert 3.5 < end < 3.5 + PAUSE + 2 * scene.site.traits.expiry_lag


def test_a_free_record_is_led_by_nobody() -> None:
    """It only keeps a late request from the key."""
    scene = Scene()
    scene.server.put(encode(Record(owner="ann", holds=(), ttl=60.0, note="ann")), ABSENT, 1000.0)
    scene.watch("watcher", until=3)
    scene.play()
    assert scene.names("watcher") == [""]


def test_one_waits_at_the_store_for_all() -> None:
    """For five seconds at a time, also if the lease that was seen should have ended by now."""
    scene = Scene("watching")
    lasting = Record(owner="ann", holds=("1",), ttl=2.0, note="ann")
    scene.server.put(encode(lasting), ABSENT, 1000.0)
    for number in range(3):
        scene.watch(f"w{number}", until=50)
    scene.play()
    assert all(scene.names(f"w{number}") == ["ann"] for number in range(3))
    first, *waits = (moment - scene.began for verb, moment in scene.site.asked if verb == "wait")
    assert waits[0] - first == pytest.approx(2, abs=PAUSE)
    assert [after - before for before, after in pairwise(waits)] == pytest.approx([5.0] * 9, abs=0.1)


def test_a_store_that_wakes_for_no_reason_is_asked_once_a_second() -> None:
    """Nothing has changed, so the next look has to wait."""
    scene = Scene("watching", Early)
    scene.go(0, scene.lead("ann", 50))
    scene.watch("watcher", since=1, until=21)
    scene.play()
    assert min(scene.gaps[1:]) >= PAUSE


def test_a_lease_of_a_few_milliseconds_costs_ten_looks_a_second() -> None:
    """It is renewed all the time, and each renewal wakes."""
    scene = Scene("watching")
    state = scene.state("ann")
    hold = state.begin(Holding)

    async def lead() -> None:
        await state.acquire(hold, None)
        for _ in range(1000):
            await pause(scene.timeline, 0.005)
            await state.renew(hold._attempt, None)

    scene.go(0, lead())
    scene.watch("watcher", since=1, until=5)
    scene.play()
    assert min(scene.gaps) >= WOKEN_PAUSE
    assert scene.names("watcher") == ["ann"]


@pytest.mark.parametrize("sent", [True, False])
def test_a_store_that_can_wake_nobody_now_is_polled(*, sent: bool) -> None:
    """With the request for the wait that failed, that is no more than one request a second."""
    scene = Scene("watching")
    scene.site.fails = lambda verb: StoreUnavailable("no", sent=sent) if verb == "wait" else None
    scene.go(0, scene.lead("ann", 10.5))
    scene.watch("watcher", since=1, until=21)
    scene.play()
    assert len(scene.site.asked) <= 21
    (_, ann), (told, nobody) = scene.told["watcher"]
    assert (ann, nobody) == ("ann", "")
    assert told <= 10.5 + 2 * PAUSE + SOON


def test_an_outage_ends_no_watch(caplog: pytest.LogCaptureFixture) -> None:
    """The last leader counts until the store answers; the log says so once for each outage."""
    scene = Scene("watching")
    scene.site.fails = lambda _verb: (
        StoreUnavailable("the network is down") if 5 < scene.passed < 10 or 20 < scene.passed < 25 else None
    )
    scene.go(0, scene.lead("ann", 7))
    scene.watch("watcher", since=1, until=30)
    scene.watch("late", since=8, until=30)
    scene.watch("last", since=22, until=30)
    with caplog.at_level(logging.WARNING, "caslock"):
        scene.play()
    assert scene.names("watcher") == ["ann", ""]
    assert scene.names("late") == scene.names("last") == [""]
    for name, answers in ("watcher", 10), ("late", 10), ("last", 25):
        assert answers <= scene.told[name][-1][0] <= answers + PAUSE + SOON
    assert [record.message for record in caplog.records] == [
        "who leads 'key' can't be seen until the store answers again: the network is down"
    ] * 2
    assert min(scene.gaps) >= PAUSE
    assert [verb for verb, moment in scene.site.asked if 8 < moment - scene.began < 9.9] == ["get"] * 2


def test_a_refusal_is_raised_and_nobody_stops() -> None:
    """Each watcher is told of it by a look of its own."""
    scene = Scene()
    scene.site.fails = lambda _verb: StoreError("no access") if 3 < scene.passed < 6 else None
    for name in ("one", "two"):
        scene.watch(name, until=20)
    scene.go(7, scene.lead("ann", 100))
    scene.play()
    told = [scene.names(name) for name in ("one", "two")]
    assert sum(names.count("no access") for names in told) == 3
    assert all("no access" in names for names in told)
    assert [[name for name in names if name != "no access"] for names in told] == [["", "ann"]] * 2
    assert min(scene.gaps) >= PAUSE


def test_when_the_one_that_looks_is_closed_another_goes_on_at_the_same_pace() -> None:
    """It ends at once if it sleeps."""
    scene = Scene()
    scene.watch("first", until=5.5)
    scene.watch("second", since=0.5, until=20)
    scene.go(8, scene.lead("ann", 100))
    scene.play()
    assert scene.ends == {"first": 5.5, "second": 20}
    assert scene.names("first") == [""]
    assert scene.names("second") == ["", "ann"]
    assert scene.told["second"][1][0] <= 8 + PAUSE + SOON
    assert min(scene.gaps) >= PAUSE
    assert max(scene.gaps) <= PAUSE + SOON


def test_one_that_stops_in_the_middle_is_replaced() -> None:
    """As in an event loop that was closed: nobody says so, but its turn ends by itself."""
    scene = Scene()
    state = LockState(cast("Runtime", scene.site), "key", LockSettings(1.0))
    abandoned = (watcher := Changes(state, lambda: scene.shared)).next()
    scene.at(0, lambda: abandoned.send(None))
    scene.watch("watcher", since=0.5, until=20)
    scene.play()
    ((told, nobody),) = scene.told["watcher"]
    assert nobody == ""
    assert told <= 2 * scene.site.traits.request_timeout + PAUSE + SOON
    abandoned.close()
    assert (looks := Looks()).enter(watcher, 0.0, 5.0)
    assert (looks.is_current(4.9), looks.is_current(5.0)) == (True, False)


def test_a_late_answer_is_not_believed() -> None:
    """Whoever has looked for so long that another one looks may have seen an older leader."""
    scene = Scene()
    scene.site.takes = 30.0
    scene.go(0, scene.lead("ann", 10))
    scene.watch("slow", since=1, until=50)
    scene.watch("other", since=1.5, until=50)
    scene.play()
    assert scene.names("other") == ["ann", ""]
    assert scene.names("slow") == [""]


def test_a_new_term_is_told_though_the_same_candidate_leads() -> None:
    """And a key that is kept after its release is led by nobody."""
    scene = Scene()
    state = scene.state("ann")

    async def lead_twice() -> None:
        for _ in range(2):
            hold = await state.acquire(state.begin(Holding), None)
            await pause(scene.timeline, 5.5)
            await state.release(hold)

    scene.go(0, lead_twice())
    scene.go(20, scene.lead("kept", 3, min_hold=30))
    scene.watch("watcher", since=1, until=40)
    scene.play()
    assert scene.names("watcher") == ["ann", "ann", "", "kept", ""]
    assert scene.told["watcher"][-1][0] <= 23 + PAUSE + SOON
