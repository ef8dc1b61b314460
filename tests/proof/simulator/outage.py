"""What happens outside every coroutine: to time, to the store, to a process, or too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import StoreUnavailable
from caslock.store import ABSENT
from tests.proof.simulator.story import Step
from tests.proof.simulator.waits import START, Asking, Wait

if TYPE_CHECKING:
    from tests.proof.simulator.client import Client
    from tests.proof.simulator.run import Run
    from tests.proof.simulator.runtime import Runtime


def happen(run: Run, who: str, what: str) -> None:
    """Let it happen to the time, the store, a late request or a process."""
    if who == "time":
        _pass(run, what)
    elif who == "store" and what.startswith("full "):
        run.tell("", f"the store is full for {what.removeprefix('full ')} s")
        run.store.full_until = run.now + float(what.removeprefix("full "))
    elif who == "store":
        _restart(run, forgetting=what == "forget")
    elif who.startswith("late "):
        _land(run, who)
    else:
        process = next(process for process in run.processes if process.name == who)
        if what == "kill":
            _kill(run, process)
        else:
            _stop(run, process, float(what.rpartition(" ")[2]))


def _pass(run: Run, what: str) -> None:
    moments = run.moments(every=what.startswith("stall"))
    number = int(what.rpartition(" ")[2]) - 1
    run.now = moments[min(number, len(moments) - 1)]
    run.tell("", "time passes")


def _restart(run: Run, *, forgetting: bool) -> None:
    run.tell("", "the store forgets everything" if forgetting else "the store drops all connections")
    if forgetting:
        run.judge.forgot()
        run.store.forget()
    run.store.lines.clear()
    for flow in list(run.flows.values()):
        if isinstance(flow.waits, Asking) and run.flows.get(flow.name) is flow:
            run.delay(flow)
            flow.client.silent += 1
            run.resume(flow, None, StoreUnavailable("connection lost"))


def _land(run: Run, who: str) -> None:
    late = next(late for late in run.late if late.name == who)
    run.late.remove(late)
    answer = run.apply(late.request, late.client)
    sender = who.removeprefix("late ")
    run.story.append(Step(run.now - START, sender, "lands late", late.request, answer))


def forget_dead(run: Run) -> None:
    """Drop late requests that can do nothing any more: versions don't come again."""
    entry, now = run.store.entry, run.now
    run.late = [
        late
        for late in run.late
        if late.dies > now
        and any(
            part.version == ABSENT or (lease and lease.entry.version == part.version)
            for part in late.request.parts
            for lease in (entry(part.key, now),)
        )
    ]


def _kill(run: Run, process: Runtime) -> None:
    run.tell("", f"{process.name} is killed")
    process.alive = False
    for flow in [flow for flow in run.flows.values() if flow.client.process is process]:
        run.delay(flow)
        flow.client.alive = False
        run.bury(flow)


def _stop(run: Run, process: Runtime, seconds: float) -> None:
    run.tell("", f"{process.name} is stopped for {seconds:g} s")
    process.stopped_until = run.now + seconds


def abandon(run: Run, client: Client) -> None:
    """Close the event loop of a client: its coroutines are gone, and waiters of the same process notice."""
    run.tell(client.name, "its event loop is closed")
    client.alive = False
    run.judge.abandoned(client)
    client.holding = client.attempts = ()
    client.entered.clear()
    for flow in [flow for flow in run.flows.values() if flow.client is client]:
        run.delay(flow)
        del run.flows[flow.name]
        run.current = flow
        flow.coroutine.close()
        flow.waits = Wait()
