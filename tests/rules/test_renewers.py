"""Single steps of the renewers of threads and of event loops: when they wake, what they start, and how they end."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from caslock.local import task_renewer, thread_renewer
from caslock.local.schedule import MOST_BATCHES, MOST_RENEWING, Due
from caslock.local.shared import Shared
from caslock.local.task_renewer import LoopRenewer
from caslock.local.thread_renewer import ThreadRenewer
from caslock.local.workers import LINGER
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.life import State
from caslock.protocol.runtime import Runtime
from tests.support.locations import present
from tests.support.scripted import START, Scripted, held

if TYPE_CHECKING:
    from _typeshed import TraceFunction

TTL = 120.0


class Renewing:
    made: list[Renewing]

    def __init__(self, start: object, watch: object, *, batches: bool) -> None:
        self.start, self.watch, self.batches = start, watch, batches
        self.added: list[list[Attempt]] = []
        self.made.append(self)

    def add(self, attempts: list[Attempt]) -> None:
        self.added.append(attempts)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Renewing]:
    """Return the renewals that are made from now on."""
    made: list[Renewing] = []
    monkeypatch.setattr(Renewing, "made", made, raising=False)
    for module in (task_renewer, thread_renewer):
        monkeypatch.setattr(module, "Renewals", Renewing)
    return made


def leased(due: float, shared: object = None, *, batches: bool = False) -> Attempt:
    """Return an attempt whose lease is due so many seconds after the start."""
    script = Scripted()
    attempt = held(script)
    script.shared = shared or Shared(script)  # type: ignore[attr-defined] # of a runtime
    script.batching = script if batches else None
    lease = attempt.lease
    lease.ttl, lease.due, lease.deadline = TTL, START + due, START + due + 80
    return attempt


def losses(attempt: Attempt) -> int:
    return cast("Scripted", attempt.runtime).losses


class Timer:
    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds, self.act, self.alive = seconds, act, True

    def cancel(self) -> None:
        self.alive = False


class Loop:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = START
        self.timers: list[Timer] = []
        self.closed = False
        self.ends: list[tuple[object, bool]] = []
        self.late: list[list[Attempt]] = []
        monkeypatch.setattr(task_renewer, "clock", SimpleNamespace(now=lambda: self.clock))
        monkeypatch.setattr(task_renewer, "before_the_loop_ends", self._before_the_end)
        monkeypatch.setattr(task_renewer, "warn_of_late_renewals", self.late.append)
        self.renewer = LoopRenewer(cast("asyncio.AbstractEventLoop", self))

    def _before_the_end(self, act: object, *, in_a_child: bool) -> object:
        self.ends.append((act, in_a_child))
        return self

    def call_later(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, act))
        return self.timers[-1]

    def is_closed(self) -> bool:
        return self.closed

    @property
    def waits(self) -> list[float]:
        return [timer.seconds for timer in self.timers if timer.alive]

    def ring(self) -> None:
        timer = self.timers.pop()
        self.clock += timer.seconds
        timer.act()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch, made: list[Renewing]) -> Loop:
    """Return a loop and its renewer."""
    del made
    return Loop(monkeypatch)


def test_one_timer_rings_for_the_lease_that_is_due_first(loop: Loop) -> None:
    """It is set anew only for an earlier one, and not at all for what is due never, or in a loop that has ended."""
    assert loop.ends == [(loop.renewer.end, True)]
    first, later, earlier = leased(20), leased(30), leased(10)
    loop.renewer.watch(first)
    loop.renewer.watch(later)
    assert loop.waits == [20]
    assert len(loop.timers) == 1
    loop.renewer.watch(earlier)
    assert loop.waits == [10]
    overdue = leased(-5)
    loop.renewer.watch(overdue)
    assert loop.waits == [0]
    loop.closed = True
    loop.renewer.watch(another := leased(-7))
    assert loop.waits == []
    assert loop.renewer._timer is None
    assert losses(another) == 0


def test_a_loop_without_leases_has_no_timer(loop: Loop) -> None:
    """After the last one it has none, until the next one comes."""
    attempt = leased(20)
    loop.renewer.watch(attempt)
    attempt.state = State.LEAVING
    loop.ring()
    assert loop.timers == []
    loop.renewer.watch(again := leased(40))
    assert loop.waits == [20]
    assert not again.ending


def test_what_is_due_is_renewed_by_store(loop: Loop, made: list[Renewing]) -> None:
    """Each store has one object for that as long as it lives; late renewals are told, and losses reported."""
    batching, single = Shared(object()), Shared(object())
    attempts = [leased(20, batching, batches=True), leased(20, single), leased(20, batching, batches=True)]
    for attempt in attempts:
        loop.renewer.watch(attempt)
    loop.ring()
    assert [(each.batches, each.added) for each in made] == [
        (True, [[attempts[0], attempts[2]]]),
        (False, [[attempts[1]]]),
    ]
    assert [(each.start, each.watch) for each in made] == [(loop.renewer._start, loop.renewer.watch)] * 2
    assert loop.late == [[]]
    loop.ring()
    assert sorted(map(id, loop.late[-1])) == sorted(map(id, attempts))
    more = leased(80, single)
    loop.renewer.watch(more)
    loop.ring()
    assert made[1].added == [[attempts[1]], [more]]
    assert len(made) == 2
    loop.ring()
    assert [losses(attempt) for attempt in (*attempts, more)] == [1, 1, 1, 0]
    assert attempts[0].lease.lost == "its lease ended before it was renewed"


def test_the_end_of_a_loop_ends_renewals_and_clean_ups() -> None:
    """Whatever they raise then; afterwards nothing is started, and no timer is set."""
    done: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        renewer = LoopRenewer(loop)

        async def work(name: str) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                done.append(name)
                raise RuntimeError(name)

        async def never() -> None:
            done.append("never")

        attempt = leased(1e9)
        renewer.watch(attempt)
        assert renewer._timer is not None
        for name in ("a", "b"):
            renewer._start(work(name), lambda name=name: done.append(f"{name} has ended"))  # type: ignore[misc] # its parameter has a default
        await asyncio.sleep(0)
        assert len(renewer._tasks) == 2
        await renewer.end()
        assert sorted(done[:2]) == ["a", "b"]
        await asyncio.sleep(0)
        assert sorted(done[2:]) == ["a has ended", "b has ended"]
        assert renewer._timer is None
        assert not renewer._tasks
        coroutine = never()
        renewer._start(coroutine, lambda: done.append("never"))
        assert coroutine.cr_frame is None  # closed
        renewer.watch(leased(5))
        assert renewer._timer is None
        assert renewer._is_over

    asyncio.run(main())
    assert "never" not in done


def test_a_store_has_one_task_for_all_its_clean_ups(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one after its end has a new one."""
    started: list[tuple[deque[str], Callable[[], object]]] = []
    monkeypatch.setattr(loop.renewer, "_start", lambda *job: started.append(job))
    monkeypatch.setattr(task_renewer, "run_clean_ups", lambda _runtime, queue: queue)
    here, there = (SimpleNamespace(shared=object()) for _ in range(2))
    for runtime, clean_up in ((here, "a"), (here, "b"), (there, "c")):
        loop.renewer.clean_up(cast("Runtime", runtime), clean_up)  # type: ignore[arg-type] # only passed on
    assert [list(queue) for queue, _ in started] == [["a", "b"], ["c"]]
    started[0][0].popleft()
    started[0][1]()  # the task has ended, and one has come since its last look
    assert [list(queue) for queue, _ in started[2:]] == [["b"]]
    started[2][0].clear()
    started[2][1]()
    assert len(started) == 3
    loop.renewer.clean_up(cast("Runtime", here), "d")  # type: ignore[arg-type] # as above
    assert [list(queue) for queue, _ in started[3:]] == [["d"]]


def test_a_loss_in_a_loop_that_is_closed_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be told there."""
    warned: list[Attempt] = []
    monkeypatch.setattr(task_renewer, "warn_of_loss", warned.append)
    attempt = leased(20)

    async def main() -> None:
        attempt.caller = asyncio.current_task()

    asyncio.run(main())
    for _ in range(2):
        task_renewer.report_loss(attempt)
        assert warned == [attempt]


class Alarm:
    """A condition for which nobody waits: the test says what happens meanwhile."""

    def __init__(self) -> None:
        self.notified = 0
        self.waits: list[float] = []
        self.meanwhile: list[Callable[[], object]] = []

    def notify(self) -> None:
        self.notified += 1

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.meanwhile:
            self.meanwhile.pop(0)()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the clock of the renewing thread, which `now.at` sets; there is no such thread yet."""
    now = SimpleNamespace(at=START)
    monkeypatch.setattr(thread_renewer, "clock", SimpleNamespace(now=lambda: now.at))
    thread_renewer._renewer = None  # or monkeypatch would later restore one whose thread has ended
    monkeypatch.setattr(thread_renewer, "_renewer", None)
    return now


def running() -> tuple[ThreadRenewer, Alarm]:
    """Make a renewer for all leases from now on, whose thread seems to run."""
    thread_renewer._renewer = renewer = ThreadRenewer()
    renewer._alarm = alarm = Alarm()  # type: ignore[assignment] # of a test
    renewer.is_running = True
    return renewer, alarm


def test_the_thread_sleeps_until_something_is_due(now: SimpleNamespace) -> None:
    """It is woken only by a lease that is due before, and ends some time after the last one."""
    renewer, alarm = running()
    first = leased(20)
    thread_renewer.watch(first)
    assert alarm.notified == 1  # the thread has not looked yet
    alarm.meanwhile = [
        lambda: thread_renewer.watch(earlier),
        lambda: thread_renewer.watch(later),
        lambda: setattr(now, "at", START + 10),
    ]
    earlier, later = leased(10), leased(30)
    assert renewer._next() == Due([], [earlier], [])
    assert alarm.waits == [20, 10, 10]
    assert alarm.notified == 2
    for attempt in (first, earlier, later):
        attempt.state = State.LEAVING
    alarm.waits.clear()
    now.at = START + 1000
    again = leased(1020)

    def begin() -> None:
        thread_renewer.watch(again)
        now.at += LINGER

    def end() -> None:
        again.state, now.at = State.LEAVING, START + 1020

    alarm.meanwhile = [begin, end]
    assert renewer._next() is None
    assert alarm.waits == [LINGER, 20 - LINGER, LINGER, LINGER]
    assert alarm.notified == 2
    assert thread_renewer._renewer is None
    thread_renewer._renewer = other = ThreadRenewer()
    assert renewer._next() is None
    assert thread_renewer._renewer is other


def test_short_holds_wake_the_thread_once_in_the_time_of_a_renewal(now: SimpleNamespace) -> None:
    """They are gone when it looks, but it looks again when the first of them would have been due."""
    renewer, alarm = running()

    def hold_shortly() -> None:
        for _ in range(10):
            thread_renewer.watch(leased(now.at - START + LINGER / 2))

    def hold_when_it_was_due() -> None:
        now.at += LINGER / 2
        hold_shortly()

    alarm.meanwhile = [hold_shortly, hold_shortly, hold_when_it_was_due, hold_shortly]
    assert renewer._next() is None
    assert alarm.waits[:5] == [LINGER, LINGER / 2, LINGER / 2, LINGER, LINGER / 2]
    assert alarm.notified == 2


def test_what_is_added_while_the_thread_looks_is_seen_by_it_or_wakes_it(now: SimpleNamespace) -> None:
    """Nobody relies on a look that may have missed it."""
    renewer, alarm = running()
    schedule, added = renewer._schedule, leased(20)

    class Looking:
        """A schedule that another thread adds to just after a look."""

        looks = 0
        next = property(lambda _: schedule.next)
        add = schedule.add

        def __len__(self) -> int:
            return len(schedule)

        def look(self, moment: float) -> Due:
            due = schedule.look(moment)
            if self.looks == 0:
                thread_renewer.watch(added)
            self.looks += 1
            return due

    renewer._schedule = Looking()  # type: ignore[assignment] # of a test
    alarm.meanwhile = [lambda: setattr(now, "at", START + 20)]
    assert renewer._next() == Due([], [added], [])
    assert (alarm.waits, alarm.notified) == ([20], 1)


def test_the_thread_may_end_at_any_step_of_a_watch(now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is started then, and knows the lease."""
    monkeypatch.setattr(thread_renewer, "start", lambda _target, _name: threading.current_thread())
    assert now.at == START

    def watch_while_it_ends(step: int) -> bool:
        thread_renewer._renewer = ThreadRenewer()
        left = step

        def traced(frame: FrameType, event: str, _argument: object) -> TraceFunction:
            nonlocal left
            frame.f_trace_opcodes = True
            left -= event == "opcode" and frame.f_code is thread_renewer.watch.__code__
            if not left and not thread_renewer._guard._is_owned():  # type: ignore[attr-defined] # as below
                thread_renewer._renewer = None
            return traced

        attempt, before = leased(20), sys.gettrace()
        sys.settrace(traced)
        try:
            thread_renewer.watch(attempt)
        finally:
            sys.settrace(before)
        renewer = present(cast("ThreadRenewer | None", thread_renewer._renewer))
        assert (renewer.is_running, len(renewer._schedule)) == (True, 1)
        return left <= 0

    assert sum(map(watch_while_it_ends, range(1, 40))) > 20


def test_the_thread_is_started_with_the_first_lease(now: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the next one if it could not be started; as long as it runs, all leases are its own."""
    started: list[Callable[[], None]] = []
    warned: list[str] = []
    refused = [True]

    def start(target: Callable[[], None], name: str) -> object:
        assert name == "caslock-renewer"
        assert thread_renewer._guard._is_owned()  # type: ignore[attr-defined] # of the class in C
        started.append(target)
        return None if refused[0] else threading.current_thread()

    monkeypatch.setattr(thread_renewer, "start", start)
    monkeypatch.setattr(thread_renewer, "warn", warned.append)
    first = leased(20)
    thread_renewer.watch(first)
    (warning,) = warned
    assert "lock 'key' will be lost in 100 s" in warning
    renewer = present(thread_renewer._renewer)
    assert len(renewer._schedule) == 1
    refused[0] = False
    attempts = [leased(20), leased(20)]
    for attempt in attempts:
        thread_renewer.watch(attempt)
    assert (len(started), len(warned)) == (2, 1)
    assert thread_renewer._renewer is renewer
    assert len(renewer._schedule) == 3
    assert now.at == START
    renewer.is_running, renewer._wakes, refused[0] = False, NEVER, True
    monkeypatch.setattr(threading, "main_thread", threading.Thread)
    thread_renewer.watch(first)
    assert len(warned) == 1  # at interpreter exit


def test_the_thread_goes_on_whatever_is_wrong_with_one_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one raises is reported, and a moment later the others are looked at."""
    renewer, acted = ThreadRenewer(), list[Due]()
    dues = [Due([], [], []), Due([], [], []), None]
    monkeypatch.setattr(renewer, "_next", lambda: dues.pop(0))
    slept: list[float] = []
    monkeypatch.setattr(thread_renewer, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)

    def act(due: Due) -> None:
        acted.append(due)
        if len(acted) == 1:
            raise RuntimeError("of one lease")

    monkeypatch.setattr(thread_renewer, "_act", act)
    renewer.run()
    assert len(acted) == 2
    assert len(slept) == 1
    assert 0 < slept[0] < 1


def test_the_thread_keeps_no_hold_alive_while_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody refers to any more is not renewed again."""
    renewer, held = ThreadRenewer(), [leased(20)]
    reference, alive = weakref.ref(held[0]), list[bool]()

    def next_due() -> Due | None:
        if held:
            return Due([], [held.pop()], [])
        gc.collect()
        alive.append(reference() is not None)
        return None

    monkeypatch.setattr(renewer, "_next", next_due)
    monkeypatch.setattr(thread_renewer, "_act", lambda _due: None)
    renewer.run()
    assert alive == [False]


class Doing:
    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.jobs: list[Callable[[], object]] = []

    def do(self, job: Callable[[], object]) -> None:
        self.jobs.append(job)


def test_requests_and_callbacks_have_threads_of_each_store(
    made: list[Renewing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that knows the deadlines neither asks a store, nor logs, nor calls anybody."""
    monkeypatch.setattr(thread_renewer, "Workers", Doing)
    warned: list[list[Attempt]] = []
    monkeypatch.setattr(thread_renewer, "warn_of_late_renewals", warned.append)
    here, there = Shared(object()), Shared(object())
    attempts = [leased(20, here, batches=True), leased(20, here, batches=True), leased(20, there)]
    attempts[0].lease.deadline = START
    thread_renewer._act(Due(attempts[:1], attempts, attempts))
    assert [losses(attempt) for attempt in attempts] == [1, 0, 0]
    assert [(each.batches, each.added) for each in made] == [(True, [attempts[:2]]), (False, [attempts[2:]])]
    tellers = [cast("Doing", parts._parts["on_lost"]) for parts in (here, there)]
    assert warned == []
    for workers in tellers:
        (job,) = workers.jobs
        job()
    assert warned == [attempts[:2], attempts[2:]]
    done: list[str] = []

    async def work() -> None:
        done.append("worked")
        raise KeyError

    cast("Callable[[Coroutine[object, object, None], Callable[[], object]], None]", made[0].start)(
        work(), lambda: done.append("done")
    )
    (threads,) = [cell for cell in _cells(made[0].start) if isinstance(cell, Doing)]
    assert threads.most == MOST_RENEWING + MOST_BATCHES
    with pytest.raises(KeyError):
        threads.jobs[0]()
    assert done == ["worked", "done"]


def _cells(function: object) -> list[object]:
    return [cell.cell_contents for cell in function.__closure__]  # type: ignore[attr-defined] # of a function


def test_a_loss_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one job, whoever notices it, also after an interrupt; two that tell it at one time call nobody twice."""

    def interrupted(_threads: Doing, _job: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(thread_renewer, "Workers", Doing)
    warned: list[Attempt] = []
    monkeypatch.setattr(thread_renewer, "warn_of_loss", warned.append)
    parts, called = Shared(object()), list[str]()
    attempt = leased(20, parts)
    attempt.lease.on_loss[:] = [lambda: called.append("user"), lambda: called.append("block")]
    with monkeypatch.context() as patch:
        patch.setattr(Doing, "do", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread_renewer.report_loss(attempt)
    for _ in range(2):
        thread_renewer.report_loss(attempt)
    (job,) = cast("Doing", parts._parts["on_lost"]).jobs
    tell = attempt.lease.tell

    class Guarded:
        def tell(self) -> object:
            assert thread_renewer._guard._is_owned()  # type: ignore[attr-defined] # of the class in C
            return tell()

    attempt.lease = Guarded()  # type: ignore[assignment] # as above
    for _ in range(2):
        job()
    assert (warned, called) == ([attempt], ["block", "user"])


def test_a_forked_child_has_a_guard_and_a_renewer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its parent may be in use at this moment."""
    guard = thread_renewer._guard
    monkeypatch.setattr(thread_renewer, "_guard", guard)
    thread_renewer._renewer = ThreadRenewer()
    thread_renewer._forget_parent()
    assert thread_renewer._guard is not guard
    assert thread_renewer._renewer is None
