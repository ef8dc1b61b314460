"""The stopwatch of the testing kit."""

from caslock.testing.stopwatch import Stopwatch

__all__ = ["Stopwatch"]
