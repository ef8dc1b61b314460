"""The law of this package: the real core over a virtual clock, where the scheduler chooses all that chance would."""

from caslock.testing.simulate.plan import Plan, drawn
from caslock.testing.simulate.run import Run
from caslock.testing.simulate.story import Violation

__all__ = ["Plan", "Run", "Violation", "drawn"]
