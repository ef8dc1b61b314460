"""Runs torture: starts clients, disturbs them, ends within the time that the plan gives, and has the judge look."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock.errors import StoreError
from caslock.local import clock
from caslock.protocol.record import decode
from caslock.store import ABSENT
from caslock.testing.proxy import FaultProxy, chance
from caslock.verify import locations
from caslock.verify.cleanup import remove_keys
from caslock.verify.counter import FencedCounter
from caslock.verify.history import Event, History, read
from caslock.verify.judge import judge
from caslock.verify.monitor import Monitor
from caslock.verify.processes import Processes
from caslock.verify.report import Report, report
from caslock.verify.worker import fault_writer, odds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from caslock.store import Store
    from caslock.verify.judge import Law
    from caslock.verify.plan import Plan
    from caslock.verify.tenures import Judgement

LEEWAY: Final = 6.0
"""Seconds after which a worker that should have told by itself that it hangs is told of."""

TICK: Final = 0.02


class Outcome(NamedTuple):
    """All that a run gives."""

    report: Report
    """For people."""
    judgement: Judgement
    """For programs."""
    events: list[Event]
    """What the clients have noted, and what was done to them."""


class Action(NamedTuple):
    """What is done again and again during a run."""

    every: float
    """Seconds between two times, on the average; 0: never."""
    act: Callable[[], object]
    """Does it."""


def torture(
    plan: Plan,
    *,
    disturb: Callable[[Run], Iterator[Action]] | None = None,
    laws: Sequence[type[Law]] = (),
    watch: Callable[[float, int], object] = lambda _seconds, _requests: None,
) -> Outcome:
    """Torture a store, and judge what happened.

    `disturb` gives what is done besides, and `laws` are checked besides those of `judge`.  `watch` hears twice a second
    how many seconds are over, and how many requests were made where that is known.
    Raises `StoreError` when the store can't be reached in the beginning, and ValueError where processes can't share it.
    """
    direct = locations.reach(plan)
    with tempfile.TemporaryDirectory(prefix="caslock-torture-") as name, contextlib.ExitStack() as stack:
        stack.callback(locations.close, direct)
        stack.callback(remove_keys, direct, plan, plan.all_names())
        return Run(plan, direct, Path(name), disturb, watch).run(laws)


class Run:
    """One run."""

    def __init__(
        self,
        plan: Plan,
        direct: Store,
        folder: Path,
        disturb: Callable[[Run], Iterator[Action]] | None,
        watch: Callable[[float, int], object],
    ) -> None:
        """Prepare it; `direct` is the store past all faults."""
        self.plan = plan
        self.dice: random.Random = random.Random(f"{plan.seed} run")  # noqa: S311 - chance need not be secret here
        self._direct, self._folder, self._disturb_more, self._watch = direct, folder, disturb, watch
        self._history = History(folder / "run.history")
        self.note: Callable[..., None] = self._history.note
        self._proxy: FaultProxy | None = None

    def run(self, laws: Sequence[type[Law]]) -> Outcome:
        """Run it to its end, and judge it."""
        plan, began = self.plan, clock.now()
        with Monitor(plan, self._folder), self._proxied() as url:
            self._processes = Processes(plan, url, self._folder, self._history, proxied=self._proxy is not None)
            with self._processes as processes:
                kind = "threads" if locations.blocks(plan) else "tasks"
                self._disturb(processes.start([kind] * plan.workers + ["tasks"], plan.seconds))
                self._finish()
            if self._proxy is not None:
                self._proxy.settle(plan.longest_delay + 1.0)
            self._look_at_the_end()
        self._history.close()
        events = sorted(read(self._folder))
        judgement = judge(
            events, fences=self._direct.traits.fences, embedded=locations.server_of(plan) is None, laws=laws
        )
        for death in processes.deaths:
            judgement.violate("worker died", clock.now(), "", death)
        if self._proxy is not None and not judgement.requests:  # a store whose verbs could not be counted
            judgement.requests = self._proxy.requests
        seconds = clock.now() - began
        return Outcome(report(self._direct.traits, plan.seed, seconds, judgement, events), judgement, events)

    def sleep(self, seconds: float) -> None:
        """Let time pass, while stopped workers continue when their time has come."""
        end = clock.now() + seconds
        while clock.now() < end:
            self._processes.continue_stopped()
            time.sleep(TICK)

    @contextlib.contextmanager
    def _proxied(self) -> Iterator[str]:
        """Give the URL that leads through the proxy, where there can be one."""
        plan = self.plan
        address = locations.server_of(plan)
        if address is None:
            yield plan.url
            return
        decide = chance(plan.seed, plan.longest_delay, odds(plan.faults))
        told, arrived = (fault_writer(self._history, what=what) for what in ("fault", "arrives"))
        with FaultProxy(*address, decide, told=told, arrived=arrived) as proxy:
            self._proxy = proxy
            timeout = plan.answer_timeout or min(0.3, max(0.15, plan.ttls[0] / 2))
            yield locations.through(plan.url, proxy.port, timeout)

    def _disturb(self, until: float) -> None:
        """Stop and kill until the time is over; everything comes at its own pace."""
        actions = [action for action in self._actions(until) if action.every > 0]
        due = [clock.now() + action.every * self.dice.random() for action in actions]
        while (now := clock.now()) < until:
            self._processes.continue_stopped()
            for number, action in enumerate(actions):
                if due[number] <= now:
                    due[number] = now + action.every * self.dice.uniform(0.5, 1.5)
                    action.act()
            time.sleep(TICK)

    def _actions(self, until: float) -> Iterator[Action]:
        plan = self.plan

        def show() -> None:
            self._watch(clock.now() - until + plan.seconds, self._proxy.requests if self._proxy else 0)

        yield Action(0.5, show)
        yield Action(0.5, self._processes.collect_dead)
        yield Action(1 / plan.pauses if plan.pauses else 0.0, self._processes.stop_one)
        yield Action(plan.kill_every, self._processes.kill_one)
        if self._disturb_more is not None:
            yield from self._disturb_more(self)

    def _finish(self) -> None:
        """Let all clients come to an end."""
        processes = self._processes
        processes.continue_stopped(everybody=True)
        patience = self.plan.grace + LEEWAY
        end = clock.now() + patience
        while clock.now() < end and not processes.all_done():
            time.sleep(TICK)
        for process in processes.running:
            if process.child.poll() is None:
                self.note("hung", process.name, note=f"{process.name} has not ended within {patience:g} s")
                self.note("kill", process.name, note="did not end")
        processes.collect_dead()

    def _look_at_the_end(self) -> None:
        """Write down which keys are not free in the end, and what the counters say."""
        plan = self.plan
        longest = max(plan.ttls[1], plan.several_ttl if plan.several else 0.0)
        patience = longest + self._direct.traits.expiry_lag + 1.0
        held, seen = plan.all_names(), dict[str, tuple[int, float]]()
        for key in held:  # from now on, where a store ends no lease
            self._is_held(key, seen)
        end, is_last = clock.now() + patience, False
        while held and not is_last:
            is_last = clock.now() >= end  # it looks once more, however long a look takes
            held = [key for key in held if self._is_held(key, seen)]
            time.sleep(0.05 if held else 0)
        for key in held:
            self.note("orphan", "", key, note=f"held for more than {patience:.3g} s after the end")
        for part in [part for key in plan.all_names() for part in plan.parts(key)]:
            self.note("counter", "", part, fence=FencedCounter(self._folder, part).count)

    def _is_held(self, key: str, seen: dict[str, tuple[int, float]]) -> bool:
        """Whether nobody could acquire a key; `seen` is which version was first seen when, as a lock observes it."""
        try:
            entry = self._direct.get(key)
        except StoreError:
            return True
        if entry is None or decode(entry.value).free:
            return False
        if self._direct.traits.expires:
            return True
        if seen.get(key, (ABSENT, 0.0))[0] != entry.version:
            seen[key] = entry.version, clock.now()
        return clock.now() < seen[key][1] + decode(entry.value).ttl
