"""What can happen to a coroutine that is stopped, each by its name (see `plan.FAULTS`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from caslock.errors import StoreError, StoreUnavailable
from tests.proof.simulator.outage import abandon
from tests.proof.simulator.waits import Answered, Asking, Cancelled, Lined

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.store import Entry
    from tests.proof.simulator.run import Run
    from tests.proof.simulator.runtime import Flow

STRIKES: Final = 2
"""How often a thread or task is interrupted in one call, at the most: in it, and as it waits for its clean-up."""

_FAULTS: Final = {"get": ("lose", "slow", "refuse", "unsent"), "wait": ("late", "lose reply", "slow", "unsent")}
_WRITE: Final = ("lose", "lose reply", "late", "twice", "slow", "refuse", "unsent")


def faults(flow: Flow) -> tuple[str, ...]:
    """Name what may go wrong with what a flow waits for."""
    waits = flow.waits
    found: tuple[str, ...] = ()
    if isinstance(waits, Lined):
        found = ("late", "slow", "woken for nothing")
    elif isinstance(waits, Answered):
        found = ("lose",)
    elif isinstance(waits, Asking):
        found = _FAULTS.get(waits.request.verb, _WRITE)
    if flow.interruptible and flow.struck < STRIKES:
        found += ("cancel",)
        if not flow.client.process.threads:
            found += ("abandon",)
    return found


def befall(run: Run, flow: Flow, what: str) -> None:
    """Let it happen."""
    if what == "cancel":
        _cancel(run, flow)
    elif what == "abandon":
        abandon(run, flow.client)
    elif isinstance(flow.waits, Lined):
        _in_line(run, flow, flow.waits, what)
    elif isinstance(flow.waits, Answered):
        _reply(run, flow, flow.waits, what)
    elif isinstance(flow.waits, Asking):
        _REQUEST[what](run, flow, flow.waits)
    else:
        run.resume(flow, None)


def _go(run: Run, flow: Flow, asking: Asking, what: str = "go") -> None:
    request = asking.request
    if request.verb == "wait":
        until = flow.client.process.now() + request.timeout
        waiter = run.store.line_up(request.parts[0].key, run.now, until)
        if waiter is not None:
            run.note(flow, "waits in line", asking)
            flow.waits = Lined(asking, waiter)
            return
    answer = run.apply(request, flow.client)
    if what == "twice":  # the copy comes at once: nothing below repeats a request after its answer
        answer = run.apply(request, flow.client)
    run.note(flow, "refused: full" if answer is None else what, asking, answer=answer)
    _answer(run, flow, answer)


def _slow(run: Run, flow: Flow, asking: Asking) -> None:
    answer = run.apply(asking.request, flow.client)
    run.note(flow, "the reply is slow", asking)
    flow.waits = Answered(asking, answer)


def _lose_reply(run: Run, flow: Flow, asking: Asking) -> None:
    run.apply(asking.request, flow.client)
    run.note(flow, "the reply is lost", asking)
    _unanswered(run, flow)


def _late(run: Run, flow: Flow, asking: Asking) -> None:
    run.note(flow, "no answer", asking)
    run.delay(flow)
    _unanswered(run, flow)


def _lose(run: Run, flow: Flow, asking: Asking) -> None:
    run.note(flow, "lost", asking)
    _unanswered(run, flow)


def _refuse(run: Run, flow: Flow, asking: Asking) -> None:
    run.note(flow, "refused", asking)
    run.resume(flow, None, StoreError("refused"))


def _unsent(run: Run, flow: Flow, asking: Asking) -> None:
    run.note(flow, "not sent", asking)
    run.resume(flow, None, StoreUnavailable("not sent", sent=False))


_REQUEST: Final[dict[str, Callable[[Run, Flow, Asking], None]]] = {
    "go": _go,
    "twice": partial(_go, what="twice"),
    "slow": _slow,
    "lose reply": _lose_reply,
    "late": _late,
    "lose": _lose,
    "refuse": _refuse,
    "unsent": _unsent,
}


def _answer(run: Run, flow: Flow, answer: Sequence[Entry | None] | None) -> None:
    run.resume(flow, answer, StoreError("out of memory") if answer is None else None)


def _unanswered(run: Run, flow: Flow) -> None:
    flow.client.silent += 1
    run.resume(flow, None, StoreUnavailable("no answer"))


def _reply(run: Run, flow: Flow, answered: Answered, what: str) -> None:
    if what == "lose":
        run.note(flow, "the reply is lost", answered)
        _unanswered(run, flow)
    else:
        run.note(flow, "the reply comes", answered, answer=answered.answer)
        _answer(run, flow, answered.answer)


def _in_line(run: Run, flow: Flow, lined: Lined, what: str) -> None:
    if what == "late":  # the store does not notice: a dead waiter uses up a wake-up
        run.note(flow, "the connection is lost", lined)
        run.delay(flow)
        _unanswered(run, flow)
        return
    how = (
        "is woken"
        if lined.waiter.woken
        else "woken for nothing"
        if lined.waiter.until > flow.client.process.now()
        else "has waited long enough"
    )
    run.store.step_out(lined.waiter)
    answer = run.apply(lined.request, flow.client)
    if what == "slow":
        run.note(flow, f"{how}, the reply is slow", lined)
        flow.waits = Answered(lined, answer)
        return
    run.note(flow, how, lined, answer=answer)
    _answer(run, flow, answer)


def _cancel(run: Run, flow: Flow) -> None:
    flow.struck += 1
    run.tell(flow.name, "interrupted" if flow.client.process.threads else "cancelled")
    if isinstance(flow.waits, Lined):
        run.store.step_out(flow.waits.waiter)
    run.delay(flow)  # what it has sent may land, at once or later, or never
    flow.client.silent += 1
    run.resume(flow, None, Cancelled())
