"""The simulator in small portions: some seeds, and the first states of each scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.proof.simulator import chance, quorum, semaphore
from tests.proof.simulator.explore import Bounds, explore
from tests.proof.simulator.scenes import SCENES

PORTION: Final = 20
"""Seeds of one portion: about a third of a second."""

STATES: Final = 500
"""States of each scene."""


@pytest.mark.parametrize("simulate", [chance.simulate, semaphore.simulate, quorum.simulate])
@pytest.mark.parametrize("first", range(0, 300, PORTION))
def test_no_seed_breaks_a_law(first: int, simulate: Callable[[int], int]) -> None:
    """Whatever chance does, each law holds."""
    for seed in range(first, first + PORTION):
        simulate(seed)


@pytest.mark.parametrize("name", SCENES)
def test_no_state_breaks_a_law(name: str) -> None:
    """The states with the fewest faults break no law."""
    explore(SCENES[name], Bounds(faults=1, states=STATES))
