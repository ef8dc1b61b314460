"""The law of this file: a run starts clients and troubles them, ends when it has said it would, and leaves nothing."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from caslock import clock
from caslock.errors import StoreError
from caslock.record import decode
from caslock.testing.proxy import FaultProxy, chance
from caslock.testing.torture import places
from caslock.testing.torture.broom import sweep
from caslock.testing.torture.crew import Crew
from caslock.testing.torture.history import Event, History, read
from caslock.testing.torture.judge import judge
from caslock.testing.torture.lookout import Lookout
from caslock.testing.torture.report import Report, report
from caslock.testing.torture.resource import FencedCounter
from caslock.testing.torture.squeeze import squeezed
from caslock.testing.torture.worker import odds, teller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.store import Store
    from caslock.testing.torture.plan import OwnServer, Plan
    from caslock.testing.torture.tenures import Judgement

LEEWAY: Final = 6.0
"""Seconds after which a worker that should have told by itself that it hangs is told of."""

TICK: Final = 0.02


class Outcome(NamedTuple):
    """All that a run gives."""

    report: Report
    judgement: Judgement
    events: list[Event]


def torture(
    plan: Plan,
    *,
    server: OwnServer | None = None,
    watch: Callable[[float, int], object] = lambda _seconds, _requests: None,
) -> Outcome:
    """Torture a store, and judge what happened; `server` is stopped, and killed as the plan says, where it is given.

    `watch` hears twice a second how many seconds are over, and how many requests were made where that is known.
    Raises `StoreError` when the store can't be reached in the beginning, and ValueError where processes can't share it.
    """
    direct = reach(plan)
    with tempfile.TemporaryDirectory(prefix="caslock-torture-") as name, contextlib.ExitStack() as stack:
        stack.callback(places.close, direct)
        stack.callback(sweep, direct, plan, plan.names())
        run = _Run(plan, direct, Path(name), server, watch)
        return run.go()


def reach(plan: Plan) -> Store:
    """Make the plan's store, past all faults, and ask it once; raises as `torture` does."""
    if plan.url.startswith("memory:"):
        raise ValueError("memory:// lives in one process: there is nothing to torture with several")
    direct = places.open_direct(plan)
    try:
        direct.get(plan.names()[0])  # is anybody there?
    except BaseException:
        places.close(direct)
        raise
    return direct


class _Run:
    """One run."""

    def __init__(
        self,
        plan: Plan,
        direct: Store,
        folder: Path,
        server: OwnServer | None,
        watch: Callable[[float, int], object],
    ) -> None:
        self._plan, self._direct, self._folder, self._server, self._watch = plan, direct, folder, server, watch
        self._dice = random.Random(f"{plan.seed} run")  # noqa: S311 - chance need not be secret here
        self._history = History(folder / "run.history")
        self._proxy: FaultProxy | None = None

    def go(self) -> Outcome:
        """Run it."""
        plan = self._plan
        began = clock.now()
        with Lookout(plan, self._folder):
            with self._way() as url:
                crew = Crew(plan, url, self._folder, self._history, wire=self._proxy is not None)
                with crew:
                    kind = "threads" if places.blocks(plan) else "tasks"
                    self._trouble(crew, crew.gather([kind] * plan.workers + ["tasks"], plan.seconds))
                    self._finish(crew)
                if self._proxy is not None:
                    self._proxy.settle(plan.longest_hold_up + 1.0)
            self._end()
        self._history.close()
        events = list(read(self._folder))
        found = judge(events)
        for trouble in crew.troubles:
            found.break_("worker died", clock.now(), "", trouble)
        if self._proxy is not None and not found.requests:  # a store whose verbs could not be counted
            found.requests = self._proxy.requests
        return Outcome(report(self._direct.traits.place, plan.seed, clock.now() - began, found, events), found, events)

    @contextlib.contextmanager
    def _way(self) -> Iterator[str]:
        """Give the URL that leads through the proxy, where there can be one."""
        plan = self._plan
        address = places.server_of(plan)
        if address is None:
            yield plan.url
            return
        decide = chance(plan.seed, plan.longest_hold_up, odds(plan.faults))
        with FaultProxy(*address, decide, told=teller(self._history)) as proxy:
            self._proxy = proxy
            yield places.through(plan.url, proxy.port, min(0.3, max(0.15, plan.ttls[0] / 2)))

    def _trouble(self, crew: Crew, until: float) -> None:
        """Stop, kill and restart until the time is over; everything comes at its own pace."""
        paces = [pace for pace in self._paces(crew, until) if pace[0] > 0]
        due = [clock.now() + pace * self._dice.random() for pace, _ in paces]
        while (now := clock.now()) < until:
            crew.go_on()
            for number, (pace, act) in enumerate(paces):
                if due[number] <= now:
                    due[number] = now + pace * self._dice.uniform(0.5, 1.5)
                    act()
            time.sleep(TICK)

    def _paces(self, crew: Crew, until: float) -> Iterator[tuple[float, Callable[[], object]]]:
        """Give what is done, and every how many seconds; 0: never."""
        plan, server = self._plan, self._server

        def tell() -> None:
            self._watch(clock.now() - until + plan.seconds, self._proxy.requests if self._proxy else 0)

        yield 0.5, tell
        yield 0.5, crew.look_after
        yield 1 / plan.pauses if plan.pauses else 0.0, crew.stop_one
        yield plan.kill_every, crew.kill_one
        if server is not None:
            yield plan.server_pause_every, lambda: self._freeze(crew, server)
            yield plan.restart_every, lambda: self._restart(server)
            yield plan.squeeze_every, lambda: self._squeeze(crew)

    def _freeze(self, crew: Crew, server: OwnServer) -> None:
        self._history.note("freeze")
        try:
            server.pause()
            self._sleep(crew, self._dice.uniform(0.02, self._plan.ttls[1]))
        finally:  # an interrupt must not leave it stopped
            server.resume()
            self._history.note("thaw")

    def _restart(self, server: OwnServer) -> None:
        self._history.note("down")
        server.restart()
        self._history.note("up")

    def _squeeze(self, crew: Crew) -> None:
        self._history.note("squeeze")
        with squeezed(self._plan):
            self._sleep(crew, self._dice.uniform(0.02, self._plan.ttls[1]))

    def _finish(self, crew: Crew) -> None:
        """Let all clients come to an end."""
        crew.go_on(everybody=True)
        patience = self._plan.grace + LEEWAY
        end = clock.now() + patience
        while clock.now() < end and not crew.all_done():
            time.sleep(TICK)
        for worker in crew.workers:
            if worker.process.poll() is None:
                self._history.note("hung", worker.name, note=f"{worker.name} has not ended within {patience:g} s")
                self._history.note("kill", worker.name, note="did not end")
        crew.look_after()

    def _sleep(self, crew: Crew, seconds: float) -> None:
        end = clock.now() + seconds
        while clock.now() < end:
            crew.go_on()
            time.sleep(TICK)

    def _end(self) -> None:
        """See to it that all keys are free in the end, and what the counters say."""
        plan = self._plan
        patience = plan.ttls[1] + self._direct.traits.overstay + 1.0
        end = clock.now() + patience
        held = plan.names()
        while held and clock.now() < end:
            held = [key for key in held if self._stands(key)]
            time.sleep(0.05 if held else 0)
        for key in held:
            self._history.note("ghost", "", key, note=f"held for more than {patience:.3g} s after the end")
        for key in plan.names():
            count = FencedCounter(self._folder / f"{key.rpartition(':')[2]}.counter").count
            self._history.note("counter", "", key, fence=count)

    def _stands(self, key: str) -> bool:
        try:
            entry = self._direct.get(key)
        except StoreError:
            return True
        return entry is not None and not decode(entry.value).free
