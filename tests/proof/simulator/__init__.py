"""The simulator: the real protocol with a virtual clock and a scheduler that chooses every next step."""

from tests.proof.simulator.plan import Plan, drawn
from tests.proof.simulator.run import Run
from tests.proof.simulator.story import Violation

__all__ = ["Plan", "Run", "Violation", "drawn"]
