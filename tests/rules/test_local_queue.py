"""Single steps of a local queue: who is let in, who waits and for how long, and who is to pause first."""

from __future__ import annotations

import gc
import types
from _thread import RLock
from collections.abc import Generator
from typing import cast

import pytest

from caslock.local import queue as queues
from caslock.local.queue import LocalQueue, next_look
from caslock.protocol.attempt import Attempt, FirstRecord, LockSettings, Terms
from caslock.protocol.contention import LONGEST_PAUSE, Contention
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.protocol.record import Observed, Record, opening
from caslock.protocol.runtime import Runtime
from tests.support.life import force
from tests.support.locations import present
from tests.support.scripted import PATIENCE, STAMP, START, TTL, Bell, Mutex

SOON = START + 10


@types.coroutine
def suspended(seconds: float | None) -> Generator[float | None, None, None]:
    yield seconds


class Awaited(Bell):
    """One that somebody waits for: the test says what comes first."""

    async def wait(self, timeout: float | None) -> None:
        await suspended(timeout)


class Line:
    """A queue, and the runtime of those who stand in it."""

    def __init__(self) -> None:
        self.clock = START
        self.queue = LocalQueue()
        self.patience = PATIENCE
        self.queueing: object = None
        self.watching: object = None
        self.gone: list[Attempt] = []
        self.known: list[Attempt] = []  # as its threads refer to them

    def now(self) -> float:
        return self.clock

    def event(self) -> Bell:
        return Awaited()

    def ended(self, attempt: Attempt) -> bool:
        assert self.queue._guard._is_owned()  # type: ignore[attr-defined] # whoever looks at the attempts is alone
        return attempt in self.gone

    def comes(self, name: str, owner: str = "", *, ttl: float = TTL) -> Attempt:
        """Begin an attempt of the Lock object with that name; `owner`: one that several of these share."""
        terms = Terms(cast("Runtime", self), "key", owner or name, LockSettings(ttl, owner or None))
        first = FirstRecord(STAMP, opening(owner, ttl, STAMP))
        attempt = Attempt(terms, f"{name}.{len(self.known)}", lambda: first, Mutex(), caller=None)
        self.known.append(attempt)
        return attempt

    def enters(self, attempt: Attempt) -> bool:
        return self.queue.enter(attempt, self.clock) is None

    def holds(self, name: str, owner: str = "", *, until: float = START + TTL) -> Attempt:
        attempt = self.comes(name, owner)
        assert self.enters(attempt)
        attempt.lease.began, attempt.lease.deadline = self.clock, until
        attempt.state = State.HELD
        return attempt

    def leaves(self, attempt: Attempt) -> None:
        self.queue.leave(attempt, self.clock)

    @property
    def inside(self) -> list[Attempt]:
        return self.queue.inside(self.clock)

    def has_key(self, lasts: float, *, seen: bool = False, after: float = 0.0) -> float:
        """Have one come after a while, hold the key for some time and leave; returns for how long it was to pause."""
        self.clock += after
        attempt = self.holds("one", until=NEVER)
        if seen:
            see(attempt)
        self.clock += lasts
        self.leaves(attempt)
        return attempt.turn.yields


class Turn:
    def __init__(self, line: Line, attempt: Attempt, limit: float = NEVER) -> None:
        self.attempt = attempt
        inside = line.queue.enter(attempt, line.clock, join=True)
        self._is_in = inside is None
        self._coroutine = line.queue.turn(attempt, next_look(inside, line.clock) if inside else NEVER, limit)

    def goes_on(self) -> float | str | None:
        """Look again; returns the seconds until the next look at the latest, or "in", or "out of time"."""
        if self._is_in:
            self._coroutine.close()
            return "in"
        try:
            return cast("float | None", self._coroutine.send(None))
        except StopIteration as end:
            return "in" if end.value else "out of time"

    @property
    def rung(self) -> int:
        return cast("Bell", self.attempt.turn.event).rung


def see(attempt: Attempt) -> None:
    attempt.contention = Contention(None)
    attempt.contention.meet(Observed(3, Record("them", ("theirs.1",), TTL, "theirs.1.1", None)), START)


@pytest.fixture
def line() -> Line:
    """Return an empty queue."""
    return Line()


def waits(line: Line, name: str, owner: str = "", limit: float = NEVER) -> Turn:
    turn = Turn(line, line.comes(name, owner), limit)
    assert isinstance(turn.goes_on(), float)
    return turn


def test_one_is_inside_and_the_next_one_is_woken(line: Line) -> None:
    """First come, first served; who is inside is not woken again."""
    first = line.holds("first")
    assert not line.enters(line.comes("refused"))
    second, third = waits(line, "second"), waits(line, "third")
    assert (second.rung, third.rung) == (0, 0)
    line.leaves(first)
    assert line.inside == [second.attempt]
    assert (second.rung > 0, third.rung) == (True, 0)
    assert second.goes_on() == "in"
    assert not line.enters(line.comes("refused"))
    assert isinstance(third.goes_on(), float)
    assert second.attempt.turn.event is None
    line.leaves(second.attempt)
    assert third.goes_on() == "in"
    line.leaves(third.attempt)
    assert (line.inside, line.queue.waiting) == ([], [])
    assert line.enters(first)


def test_one_that_gives_up_is_not_let_in(line: Line) -> None:
    """Nor one whose event loop was closed while it waited."""
    first = line.holds("first")
    second, third, fourth = (waits(line, name) for name in ("second", "third", "fourth"))
    line.leaves(second.attempt)
    assert line.inside == [first]
    line.gone.append(third.attempt)
    line.leaves(first)
    assert line.inside == [fourth.attempt]
    assert line.queue.waiting == []


@pytest.mark.parametrize("how", ["its lease ended", "it was lost", "its loop was closed", "nothing refers to it"])
def test_an_attempt_that_is_over_keeps_nobody_out(line: Line, how: str) -> None:
    """Whoever waits gets in at once, and otherwise whoever comes."""
    for waiting in (False, True):
        holder = [line.holds("holder", until=line.clock + 10)]
        next_one = waits(line, "next") if waiting else None
        assert not line.enters(line.comes("early"))
        if how == "its lease ended":
            line.clock += 9.9
            assert line.inside == holder
            line.clock += 0.1
        elif how == "it was lost":
            holder[0].lease.lost = "as the test says"
        elif how == "its loop was closed":
            line.gone.append(holder[0])
        else:
            holder.clear()
            line.known.clear()
        late = line.comes("late")
        assert line.enters(late) is not waiting
        assert line.inside == [next_one.attempt if next_one else late]
        assert len(line.queue._inside) == 1
        for attempt in (late, *line.inside, *holder):
            line.leaves(attempt)
        assert not line.inside


def test_a_waiter_looks_again_when_a_lease_may_have_ended(line: Line) -> None:
    """At the end of the first lease of those inside, after the ttl of one that acquires, or when its time is over."""
    line.holds("holder", "we", until=START + 20)
    line.holds("another", "we", until=START + 10)
    assert Turn(line, line.comes("patient")).goes_on() == 10
    impatient = Turn(line, line.comes("impatient"), START + 4)
    assert impatient.goes_on() == 4
    line.clock += 3.5
    assert impatient.goes_on() == 0.5
    line.clock += 0.5
    assert impatient.goes_on() == "out of time"
    other = Line()
    assert other.enters(acquiring := other.comes("acquiring", ttl=7))
    assert Turn(other, other.comes("patient")).goes_on() == 7
    assert other.inside == [acquiring]


def test_a_shared_owner_re_enters_through_other_lock_objects(line: Line) -> None:
    """Neither through the same one, nor as another owner, nor as a private one; past all who wait."""
    first = line.holds("first")
    ours = waits(line, "a", "we")
    stranger, also_ours = waits(line, "stranger", "they"), waits(line, "b", "we")
    line.leaves(first)
    assert line.inside == [ours.attempt, also_ours.attempt]
    assert line.queue.waiting == [stranger.attempt]
    assert ours.goes_on() == also_ours.goes_on() == "in"
    assert [line.enters(line.comes(*who)) for who in (("c",), ("c", "they"), ("a", "we"), ("b", "we"))] == [False] * 4
    third = line.comes("c", "we")
    assert line.enters(third)
    assert len(line.inside) == 3
    for attempt in (ours.attempt, also_ours.attempt):
        line.leaves(attempt)
        assert stranger.rung == 0
    line.leaves(third)
    assert stranger.goes_on() == "in"


def test_a_waiter_joins_its_owner_once_its_own_lock_object_is_free(line: Line) -> None:
    """Another thread has held the key through that object, and the owner still has it through another one."""
    first = line.holds("one", "shared")
    line.holds("two", "shared")
    waiting = waits(line, "one", "shared")
    line.leaves(first)
    assert waiting.rung == 1
    assert waiting.goes_on() == "in"


def test_a_waiter_joins_its_owner_as_the_one_before_that_leaves(line: Line) -> None:
    """A private owner has handed the key over, to one of a named owner, of which another one waits."""
    first = line.holds("first")
    waits(line, "two", "shared")
    waiting = waits(line, "three", "shared")
    line.queue.name_successor(first, line.clock)
    line.leaves(first)
    assert waiting.rung == 1
    assert waiting.goes_on() == "in"


def test_who_is_named_successor_as_it_looks_awaits_the_hand_over(line: Line) -> None:
    """The releaser sends its first put, so it sends none itself."""
    first = line.holds("first")
    second = waits(line, "second")

    class Late:
        """The guard, which is taken by the releaser first."""

        def __init__(self, guard: RLock) -> None:
            self._guard = guard

        def __enter__(self) -> None:
            line.queue._guard = self._guard
            line.queue.name_successor(first, line.clock)
            self._guard.acquire()

        def __exit__(self, *_: object) -> None:
            self._guard.release()

    line.queue._guard = cast("RLock", Late(line.queue._guard))
    assert isinstance(second.goes_on(), float)
    outgoing = present(first.turn.outgoing)
    assert outgoing.take()
    outgoing.settle()
    assert second.goes_on() == "in"


@pytest.mark.parametrize("how", ["dropped", "its event loop has ended"])
def test_an_abandoned_one_lets_the_next_one_in_as_another_leaves(line: Line, how: str) -> None:
    """It was inside beside the one that leaves, which had handed the key over to it."""
    first = line.holds("first")
    second = waits(line, "second")
    third = waits(line, "third")
    line.queue.name_successor(first, line.clock)
    if how == "dropped":
        line.known.remove(second.attempt)
        second._coroutine.close()
    else:
        line.gone.append(second.attempt)
    first.turn.outgoing = None  # which has ended
    del second
    gc.collect()
    line.leaves(first)
    assert third.rung == 1
    assert third.goes_on() == "in"


def test_a_waiter_of_the_same_owner_joins_one_that_came_without_waiting(line: Line) -> None:
    """Each look lets in who may join those that are inside by now."""
    stranger = line.holds("stranger", until=SOON)
    ours = waits(line, "a", "we")
    stranger.lease.deadline = START
    also_ours = line.comes("b", "we")
    assert line.enters(also_ours)
    assert line.inside == [ours.attempt, also_ours]
    assert ours.goes_on() == "in"


def test_the_first_in_line_is_the_successor(line: Line) -> None:
    """One at a time; both are inside until both have left, and the successor waits for its predecessor."""
    first = line.holds("first")
    line.queue.name_successor(first, START)
    assert first.turn.outgoing is None
    second, third = waits(line, "second"), waits(line, "third")
    line.queue.name_successor(first, START)
    outgoing = first.turn.outgoing
    assert outgoing is not None
    assert outgoing is second.attempt.turn.incoming
    assert outgoing.successor is second.attempt
    assert line.queue.waiting == [third.attempt]
    assert line.inside == [first, second.attempt]
    line.queue.name_successor(first, START)
    assert first.turn.outgoing is outgoing
    assert isinstance(second.goes_on(), float)
    assert second.rung == 0
    outgoing.settle()
    assert second.goes_on() == "in"
    line.leaves(first)
    assert not outgoing.pending
    assert isinstance(third.goes_on(), float)
    line.leaves(second.attempt)
    assert third.goes_on() == "in"


def test_nobody_succeeds_one_of_several_holders(line: Line) -> None:
    """While an owner has other holds, the record stays; one that is only being released does not count."""
    first, also_ours = line.holds("a", "we"), line.holds("b", "we")
    waiting = waits(line, "stranger")
    line.queue.name_successor(first, START)
    also_ours.state = State.LEAVING
    line.queue.name_successor(first, START)
    assert first.turn.outgoing is None
    line.leaves(also_ours)
    line.queue.name_successor(also_ours, START)
    assert also_ours.turn.outgoing is None
    line.queue.name_successor(first, START)
    assert first.turn.outgoing is not None
    waiting.attempt.lease.deadline = NEVER
    force(waiting.attempt, State.LEAVING)
    first.state = State.LEAVING
    last = waits(line, "last")
    line.queue.name_successor(waiting.attempt, START)
    assert waiting.attempt.turn.outgoing is None  # a shared owner's record has other holds
    line.leaves(first)
    line.queue.name_successor(waiting.attempt, START)
    assert waiting.attempt.turn.outgoing is last.attempt.turn.incoming is not None


def test_a_predecessor_that_is_being_released_does_not_stop_a_hand_over(line: Line) -> None:
    """It has passed the key on, and waits for an answer; one that is not being released has not."""
    first = line.holds("first")
    second, third = waits(line, "second"), waits(line, "third")
    line.queue.name_successor(first, START)
    line.queue.name_successor(second.attempt, START)
    assert second.attempt.turn.outgoing is None
    first.state = State.LEAVING
    line.queue.name_successor(second.attempt, START)
    assert second.attempt.turn.outgoing is third.attempt.turn.incoming is not None


def test_a_successor_withdraws_at_its_deadline(line: Line) -> None:
    """Unless its predecessor sends its put at that moment: then it waits for the answer, and goes on without it."""
    for sends in (False, True):
        first = line.holds("first", until=NEVER)
        began = line.clock
        second = Turn(line, line.comes("second"), began + 20)
        assert second.goes_on() == 20
        line.queue.name_successor(first, began)
        assert second.goes_on() == 20
        line.clock = began + 1
        assert second.goes_on() == 19  # woken for no reason
        if sends:
            assert first.turn.outgoing is not None
            assert first.turn.outgoing.take()
        line.clock = began + 20
        if sends:
            assert second.goes_on() == PATIENCE
            line.clock += PATIENCE - 1
            assert second.goes_on() == 1
            line.clock += 1
        assert second.goes_on() == ("in" if sends else "out of time")
        assert not second.attempt.turn.awaits_hand_over
        for attempt in (first, second.attempt):
            line.leaves(attempt)
        assert not line.inside
        line.clock += 1


@pytest.mark.parametrize(("limit", "seconds"), [(NEVER, TTL), (START + 40, TTL), (START + 26, 26)])
def test_a_successor_does_not_wait_longer_than_its_lease_would_last(line: Line, limit: float, seconds: float) -> None:
    """The put in its name counts from before it was sent; a predecessor whose loop was closed sends none."""
    first = line.holds("first", until=NEVER)
    second = Turn(line, line.comes("second"), limit)
    second.goes_on()
    line.queue.name_successor(first, START)
    assert second.goes_on() == seconds
    line.clock += 20
    assert second.goes_on() == seconds - 20
    if limit != START + 26:
        line.clock = START + TTL
        assert second.goes_on() == "in"
        assert not second.attempt.turn.awaits_hand_over


def test_a_hand_over_of_before_does_not_matter(line: Line) -> None:
    """An attempt of a MultiLock that has stepped back, and waits again, awaits nothing."""
    first = line.holds("first", until=START + 100)
    second = waits(line, "second")
    line.queue.name_successor(first, START)
    line.leaves(second.attempt)
    again = Turn(line, second.attempt)
    assert again.goes_on() == 100
    third = waits(line, "third")
    outgoing = first.turn.outgoing
    line.queue.name_successor(first, START)  # its release got no answer, and is called again
    assert first.turn.outgoing is outgoing
    assert third.attempt.turn.incoming is None


def test_a_successor_that_has_waited_too_long_withdraws_at_once(line: Line) -> None:
    """Its deadline was over before it was named."""
    first = line.holds("first", until=NEVER)
    second = Turn(line, line.comes("second"), START + 1)
    second.goes_on()
    line.clock += 2
    line.queue.name_successor(first, line.clock)
    assert first.turn.outgoing is not None
    assert first.turn.outgoing.take()
    assert second.goes_on() == PATIENCE


def test_one_that_leaves_sends_nothing_for_its_successor_and_awaits_nothing(line: Line) -> None:
    """Whatever was agreed, and not begun, is over."""
    first = line.holds("first")
    second, third = waits(line, "second"), waits(line, "third")
    line.queue.name_successor(first, START)
    incoming = second.attempt.turn.incoming
    assert incoming is not None
    line.leaves(first)
    assert (first.turn.outgoing, incoming.pending) == (None, False)
    assert second.goes_on() == "in"
    line.queue.name_successor(second.attempt, START)
    assert third.attempt.turn.incoming is not None
    line.leaves(third.attempt)
    assert not third.attempt.turn.incoming.pending
    assert line.inside == [second.attempt]


def passes_on(
    line: Line, times: int, *, each: float = 0.0, seen: bool = False, holder: Attempt | None = None
) -> tuple[int, float]:
    """Have the key handed over until it is not any more; returns how often, and for how long the next one pauses."""
    holder = holder or line.holds("first", until=NEVER)
    if seen:
        see(holder)
    for number in range(times):
        next_one = waits(line, f"number {number}")
        line.queue.name_successor(holder, line.clock)
        if holder.turn.outgoing is None:
            line.leaves(holder)
            return number, next_one.attempt.turn.yields
        holder.turn.outgoing.settle()
        force(holder, State.LEAVING)
        line.leaves(holder)
        holder = next_one.attempt
        assert next_one.goes_on() == "in"
        holder.state = State.HELD
        holder.lease.began, holder.lease.deadline = line.clock, NEVER
        line.clock += each
    return times, -1.0


@pytest.mark.parametrize(
    ("seen", "each", "times", "pause"),
    [
        (False, 0.25, 3, 0.015),  # one that has the key half a second after the first is the last; a fiftieth of it all
        (False, 20.0, 2, LONGEST_PAUSE),
        (True, 0.03125, 3, 0.01875),  # another process was seen: 50 ms, and a pause of a fifth of all that
        (True, 20.0, 2, LONGEST_PAUSE),
    ],
)
def test_hand_overs_end_after_a_while(line: Line, *, seen: bool, each: float, times: int, pause: float) -> None:
    """The longer they have lasted, the longer the next one pauses: ten times as long if another process was seen."""
    number, found = passes_on(line, 10, each=each, seen=seen)
    assert number == times
    assert found == pytest.approx(pause)
    (holder,) = line.inside
    holder.lease.began = line.clock
    after = waits(line, "after")
    line.leaves(holder)
    assert after.attempt.turn.yields == 0  # one pause is made


def test_a_successor_that_wakes_late_goes_on_with_the_run(line: Line) -> None:
    """However long its thread takes to run: else a busy process could keep the key for itself for ever."""
    first = line.holds("first", until=NEVER)
    second = waits(line, "second")
    line.queue.name_successor(first, line.clock)
    force(first, State.LEAVING)
    line.leaves(first)
    line.clock += 10.0
    late = second.attempt
    late.state, late.lease.began, late.lease.deadline = State.HELD, line.clock, NEVER
    third = waits(line, "third")
    line.queue.name_successor(late, line.clock)
    assert third.attempt.turn.incoming is None
    line.leaves(late)
    assert third.attempt.turn.yields == pytest.approx(0.2)


def test_a_successor_that_gives_up_ends_the_run(line: Line) -> None:
    """Whoever comes more than 0.1 s later begins a new one."""
    first = line.holds("first")
    second = waits(line, "second")
    line.queue.name_successor(first, line.clock)
    line.leaves(first)
    line.leaves(second.attempt)
    assert line.has_key(1.0, after=1.0) == 0
    assert line.has_key(0.0) == 0
    line.leaves(first)  # once more, as a release that got no answer does: when nobody is inside
    assert [line.has_key(0.1, seen=True, after=1.0), line.has_key(0.0)] == [0, 0]


def test_one_that_joins_its_owner_pauses_for_nobody(line: Line) -> None:
    """The owner has the key meanwhile."""
    line.holds("holder", "shared")
    line.queue._yields, line.queue._yields_until = 0.3, NEVER
    joins = line.comes("joins", "shared")
    assert line.enters(joins)
    assert joins.turn.yields == 0


def test_a_process_lets_others_go_first_while_they_want_the_key(line: Line) -> None:
    """Once it has had it for 50 ms: for a fifth of that time, if it comes within 0.1 s; and that is bounded."""
    assert line.has_key(2.0, seen=True) == 0
    assert line.has_key(0.5) == 0
    assert line.has_key(0.0) == LONGEST_PAUSE
    assert line.has_key(0.25) == 0
    assert line.has_key(0.0) == 0
    assert line.has_key(0.0, after=0.09) == pytest.approx(0.05)
    assert line.has_key(0.25, after=0.125) == 0
    assert line.has_key(0.25) == 0
    assert line.has_key(0.0, after=0.125) == 0  # those who come so late are not of the same run


def test_one_that_saw_the_key_free_has_seen_nobody(line: Line) -> None:
    """It has asked the store, and nobody had the key: no process is let go first."""
    holder = line.holds("holder")
    holder.contention = Contention(None)
    line.clock += 0.25
    line.leaves(holder)
    assert line.has_key(0.0) == 0


@pytest.mark.parametrize("queues_there", [True, False])
def test_only_where_no_waiter_queues_at_the_store_does_the_next_one_pause(line: Line, *, queues_there: bool) -> None:
    """There, a release gives the key to whoever is first in that queue."""
    line.queueing = line if queues_there else None
    line.has_key(2.0, seen=True)
    holder = line.holds("holder", until=NEVER)
    after = waits(line, "after")
    line.clock += 0.5
    line.leaves(holder)
    assert (after.attempt.turn.yields == 0) is queues_there


def test_a_process_that_sees_nobody_pauses_now_and_then(line: Line) -> None:
    """For a moment after each half second in which it had the key again and again; a gap begins anew."""
    some = pytest.approx(0.6875 / 50)  # four tenures, and the three gaps between them
    assert [line.has_key(0.125, after=0.0625) for _ in range(8)] == [0, 0, 0, 0, some, 0, 0, 0]
    assert line.has_key(0.125, after=0.125) == 0
    assert [line.has_key(0.125, after=0.0625) for _ in range(4)] == [0, 0, 0, some]
    line.has_key(0.0, seen=True)
    line.clock += 60.0  # 60 s after it was seen, another process wants the key no more
    assert [line.has_key(0.125, after=0.0625) for _ in range(5)] == [0, 0, 0, 0, some]


@pytest.mark.parametrize("queues_there", [True, False])
def test_a_process_that_has_woken_another_lets_it_go_first(line: Line, *, queues_there: bool) -> None:
    """For 0.1 s whoever comes queues behind it, however short the tenure was."""
    line.queueing = line if queues_there else None
    holder = line.holds("holder")
    holder.woken = True
    line.leaves(holder)
    assert not line.queue.enter_alone(holder, line.clock)
    assert line.has_key(1.0, after=0.09) == queues.RUN_SECONDS
    assert line.has_key(1.0) == 0  # and a new run has begun
    assert line.has_key(1.0, after=0.125) == 0
