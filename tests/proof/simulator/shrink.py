"""Shortens a run that fails.

A replay makes the recorded choices in order, leaves out what cannot happen any more, and continues without faults.  Any
choice can therefore be taken out, and most can be: those that are left explain the failure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.proof.simulator.run import Run
from tests.proof.simulator.story import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.proof.simulator.plan import ClientPlan, Plan
    from tests.proof.simulator.story import Choice

MOST_REPLAYS = 3000


def replay(plan: Plan, choices: Sequence[Choice]) -> Violation | None:
    """Take the same choices again, then no more faults; returns the violation, if it comes to one."""
    run = Run(plan)
    try:
        for who, what in choices:
            if run.can(who, what):
                run.do(who, what)
        run.finish()
    except Violation as violation:
        return violation
    finally:
        run.close()
    return None


class _Shrinker:
    def __init__(self, violation: Violation) -> None:
        self.best = violation
        self._kind = kind_of(violation)
        self._left = MOST_REPLAYS

    def try_(self, plan: Plan, choices: Sequence[Choice]) -> bool:
        """Whether that breaks the same law, with no longer a story: then it is the best from now on."""
        self._left -= 1
        found = replay(plan, choices) if self._left > 0 else None
        if found is None or kind_of(found) != self._kind or len(found.story) > len(self.best.story):
            return False
        found.choices = tuple(choices)
        self.best = found
        return True

    def shorten(self) -> bool:
        """Take out choices, in ever smaller pieces."""
        began = len(self.best.choices)
        size = began
        while size:
            start = 0
            while start < len(self.best.choices):
                choices = self.best.choices
                if not self.try_(self.best.plan, choices[:start] + choices[start + size :]):
                    start += size
            size //= 2
        return len(self.best.choices) < began

    def simplify(self) -> bool:
        return any(self.try_(plan, self.best.choices) for plan in _simpler(self.best.plan))


def shrunk(violation: Violation) -> Violation:
    """Find the shortest story that breaks the same law; it is never longer than the one given."""
    shrinker = _Shrinker(violation)
    while shrinker.shorten() | shrinker.simplify():
        pass
    return shrinker.best


def kind_of(violation: Violation) -> str:
    """Name the law that was broken, whoever broke it."""
    return re.sub(r"\b[A-Z]\w*\.\d+|\b[A-H]('\d+)?\b|'[klmn]'|\d+", "", violation.law)


def _simpler(plan: Plan) -> Iterator[Plan]:
    clients = plan.clients
    for number, client in enumerate(clients):
        before, after = clients[:number], clients[number + 1 :]
        if len(clients) > 1:
            yield plan._replace(clients=before + after)
        for simple in _simpler_client(client):
            yield plan._replace(clients=(*before, simple, *after))
        if client.owner is not None:  # without an owner, because clients may share a Lock object
            yield plan._replace(clients=tuple(other._replace(owner=None) for other in clients))
    plain = plan._replace(early=0.0, rates=(1.0,) * len(plan.rates), threads=(False,) * len(plan.threads))
    for simple_plan in (plain, plan._replace(queueing=False), plan._replace(batching=False)):
        if simple_plan != plan:
            yield simple_plan


def _simpler_client(client: ClientPlan) -> Iterator[ClientPlan]:
    rounds = client.rounds
    for number, round_ in enumerate(rounds):
        before, after = rounds[:number], rounds[number + 1 :]
        if len(rounds) > 1:
            yield client._replace(rounds=before + after)
        for simple in (round_._replace(body=round_.body[:-1]), round_._replace(pause=0.0)):
            if simple != round_:
                yield client._replace(rounds=(*before, simple, *after))
    if len(client.keys) > 1:
        yield client._replace(keys=client.keys[:1])
