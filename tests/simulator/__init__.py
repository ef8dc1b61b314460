"""The simulator: the real protocol with a virtual clock and a scheduler that chooses every next step."""

from tests.simulator.plan import Plan, drawn
from tests.simulator.run import Run
from tests.simulator.story import Violation

__all__ = ["Plan", "Run", "Violation", "drawn"]
