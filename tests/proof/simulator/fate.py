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


def _reply_fails(run: Run, flow: Flow, asking: Asking, what: str) -> None:
    """The request is applied, and its reply is lost, or slow."""
    answer = run.apply(asking.request, flow.client)
    run.note(flow, f"the reply is {what}", asking)
    if what == "slow":
        flow.waits = Answered(asking, answer)
    else:
        _unanswered(run, flow)


def _fails(run: Run, flow: Flow, asking: Asking, what: str, error: Callable[[], StoreError] | None = None) -> None:
    """The request is not applied, or (without an answer) later."""
    run.note(flow, what, asking)
    if what == "no answer":
        run.delay(flow)
    if error is None:
        _unanswered(run, flow)
    else:
        run.resume(flow, None, error())


_REQUEST: Final[dict[str, Callable[[Run, Flow, Asking], None]]] = {
    "go": _go,
    "twice": partial(_go, what="twice"),
    "slow": partial(_reply_fails, what="slow"),
    "lose reply": partial(_reply_fails, what="lost"),
    "late": partial(_fails, what="no answer"),
    "lose": partial(_fails, what="lost"),
    "refuse": partial(_fails, what="refused", error=lambda: StoreError("refused")),
    "unsent": partial(_fails, what="not sent", error=lambda: StoreUnavailable("not sent", sent=False)),
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
