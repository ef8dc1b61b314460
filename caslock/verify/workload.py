"""Decides by dice what a client does next: which keys it acquires, how, and what it does while it holds them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import tenacity

if TYPE_CHECKING:
    from tenacity.wait import WaitBaseT

    from caslock.verify.plan import Plan

MOST_WRONG: Final = 6 * 3600
"""Seconds by which a wall clock is wrong at the most."""


@dataclass(frozen=True)
class Operation:
    """One acquire, and what its holder does."""

    keys: tuple[str, ...]
    ttl: float
    timeout: float
    stay: float
    """Seconds inside."""
    poll: WaitBaseT | None = None
    owner: str | None = None
    """A name that several processes share."""
    writes: bool = False
    """Whether it takes the write side of a read-write lock."""
    auto_renew: bool = True
    max_hold: float | None = None
    extend: float | None = None
    """To that many seconds, in the middle."""
    reenter: bool = False
    with_block: bool = False
    """Whether a ``with`` statement acquires and releases."""
    look_first: bool = False
    """Whether the holder looks at `lost` before it writes."""
    wait_for_loss: bool = False
    """Whether the holder waits to be told of a loss."""
    fork: bool = False
    interrupt: float | None = None
    """Seconds until a signal or a cancellation."""
    retry_release: bool = True
    """Whether it calls release again after no answer."""
    force_release: bool = False
    """Take the key away from whoever holds it, and do nothing else."""
    clock_error: int | None = None
    """Seconds by which the wall clock of the process is wrong from now on."""


class Workload:
    """The dice of one client."""

    def __init__(self, plan: Plan, who: str) -> None:
        """Seed them."""
        self._dice = random.Random(f"{plan.seed} {who}")  # noqa: S311 - chance need not be secret here
        self._plan = plan
        self._keys, self._several_keys = plan.names(), plan.several_names()
        self._shared_keys = frozenset(plan.shared_names())

    def next(self, *, forks: bool, interrupts: bool) -> Operation:
        """Give the next operation of a client that takes one key, or now and then two."""
        dice, loud = self._dice, not self._plan.quiet
        shortest, longest = self._plan.ttls
        ttl = shortest * (longest / shortest) ** (dice.random() ** 3)  # most are short: more happens in a run
        all_keys = self._keys + sorted(self._shared_keys)
        keys = tuple(dice.sample(all_keys, 2 if self._hits(0.08) and len(all_keys) > 1 else 1))
        shared = keys[0] in self._shared_keys
        auto_renew = not self._hits(0.3)
        # Who does not renew stays too long quite often: late releases are what breaks locks in the field.
        weights = (70, 20, 10) if auto_renew else (40, 20, 40)
        stay = dice.choices((dice.uniform(0, 0.01), dice.uniform(0.01, 0.1), dice.uniform(0.3, 1.7) * ttl), weights)[0]
        max_hold = None
        if auto_renew and self._hits(0.06):
            max_hold, stay = dice.uniform(0.3, 1.5) * ttl, dice.uniform(0.5, 2.0) * ttl
        force_release = self._hits(0.015)
        return Operation(
            keys=keys,
            ttl=ttl,
            timeout=dice.choice((0.0, 0.5, 0.5, 5.0)),
            stay=stay,
            poll=tenacity.wait_random(0.001, 0.05) if self._hits(0.6) else None,
            owner=f"{keys[0]}:owner" if len(keys) == 1 and not shared and self._hits(0.06) else None,
            writes=self._hits(0.3),
            auto_renew=auto_renew,
            max_hold=max_hold,
            extend=dice.uniform(shortest, longest) if self._hits(0.1) else None,
            reenter=not shared and self._hits(0.05),
            with_block=self._hits(0.4),
            look_first=self._hits(0.5),
            wait_for_loss=self._hits(0.3),
            fork=forks and loud and self._hits(0.01),
            interrupt=dice.uniform(0, 0.05) if interrupts and loud and not force_release and self._hits(0.1) else None,
            retry_release=self._hits(0.8),
            force_release=force_release,
            clock_error=dice.randint(-MOST_WRONG, MOST_WRONG) if loud and self._hits(0.01) else None,
        )

    def several(self, left: float) -> Operation:
        """Give one that takes one to three keys for a moment, and waits for them; the run has `left` seconds."""
        dice, ttl = self._dice, self._plan.several_ttl
        return Operation(
            keys=tuple(dice.sample(self._several_keys, min(dice.choice((1, 2, 2, 2, 3)), len(self._several_keys)))),
            ttl=ttl,
            timeout=min(1.5 * ttl, left + 1.0),
            stay=dice.uniform(0, 0.02),
            poll=tenacity.wait_random(0.001, 0.05) if self._hits(0.5) else None,
        )

    def rest(self) -> float:
        """Seconds between two operations."""
        return self._dice.uniform(0.5, 3.0) if self._hits(0.03) else self._dice.uniform(0, 0.02)

    def _hits(self, odds: float) -> bool:
        return self._dice.random() < odds
