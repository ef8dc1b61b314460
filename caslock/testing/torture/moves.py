"""The law of this file: what a client does next comes from its own dice, and from nothing else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import tenacity

if TYPE_CHECKING:
    from tenacity.wait import WaitBaseT

    from caslock.testing.torture.plan import Plan

MOST_WRONG: Final = 6 * 3600
"""Seconds by which a wall clock is wrong at the most."""


class Move(NamedTuple):
    """One acquire, and what its holder does."""

    keys: tuple[str, ...]
    ttl: float
    timeout: float
    owner: str | None  # a name that several processes share
    auto_renew: bool
    stay: float  # seconds inside
    extend: float | None  # to that many seconds, in the middle
    reenter: bool
    body: bool  # by a `with` statement
    careful: bool  # asks `ensure_held` before it writes
    patient: bool  # waits to be told of a loss
    fork: bool
    interrupt: float | None  # seconds until an alarm or a cancellation
    poll: WaitBaseT | None
    persist: bool  # calls release again after no answer
    max_hold: float | None
    breaks: bool  # takes the key away from whoever holds it, and does nothing else
    shift: int | None  # seconds by which the wall clock of the process is wrong from now on

    @property
    def both(self) -> bool:
        """Whether it takes several keys."""
        return len(self.keys) > 1


class Moves:
    """The dice of one client."""

    def __init__(self, plan: Plan, who: str) -> None:
        """Seed them."""
        self._dice = random.Random(f"{plan.seed} {who}")  # noqa: S311 - chance need not be secret here
        self._keys = plan.names()
        self._ttls = plan.ttls
        self._quiet = plan.quiet

    def next(self, *, forks: bool, interrupts: bool) -> Move:
        """Throw."""
        dice = self._dice
        shortest, longest = self._ttls
        ttl = shortest * (longest / shortest) ** (dice.random() ** 3)  # most are short: more happens in a run
        keys = tuple(dice.sample(self._keys, 2 if self._hits(0.08) and len(self._keys) > 1 else 1))
        auto_renew = not self._hits(0.3)
        # Who does not renew stays too long quite often: late releases are what breaks locks in the field.
        weights = (70, 20, 10) if auto_renew else (40, 20, 40)
        stay = dice.choices((dice.uniform(0, 0.01), dice.uniform(0.01, 0.1), dice.uniform(0.3, 1.7) * ttl), weights)[0]
        max_hold = None
        if auto_renew and self._hits(0.06):
            max_hold, stay = dice.uniform(0.3, 1.5) * ttl, dice.uniform(0.5, 2.0) * ttl
        breaks = self._hits(0.015)
        interrupts = interrupts and not self._quiet and not breaks
        return Move(
            keys=keys,
            ttl=ttl,
            timeout=dice.choice((0.0, 0.5, 0.5, 5.0)),
            owner=f"{keys[0]}:owner" if len(keys) == 1 and self._hits(0.06) else None,
            auto_renew=auto_renew,
            stay=stay,
            extend=dice.uniform(*self._ttls) if self._hits(0.1) else None,
            reenter=self._hits(0.05),
            body=self._hits(0.4),
            careful=self._hits(0.5),
            patient=self._hits(0.3),
            fork=forks and not self._quiet and self._hits(0.01),
            interrupt=dice.uniform(0, 0.05) if interrupts and self._hits(0.1) else None,
            poll=tenacity.wait_random(0.001, 0.05) if self._hits(0.6) else None,  # else as it comes
            persist=self._hits(0.8),
            max_hold=max_hold,
            breaks=breaks,
            shift=dice.randint(-MOST_WRONG, MOST_WRONG) if not self._quiet and self._hits(0.01) else None,
        )

    def rest(self) -> float:
        """Seconds between two moves."""
        return self._dice.uniform(0, 0.02)

    def _hits(self, odds: float) -> bool:
        return self._dice.random() < odds
