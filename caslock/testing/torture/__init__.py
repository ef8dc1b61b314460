"""Torture: real processes on a real store, through faults of every kind, and a judge of what they believed.

``torture(Plan(url="redis://localhost:6379/0", seconds=60)).report.passed``, or from the command line
``python -m caslock.testing.torture redis --seconds 600 --seed 1``, which starts a Redis of its own and stops, kills and
fills it; with a URL in place of ``redis``, the server is left in peace.
"""

from caslock.testing.torture.broom import sweep
from caslock.testing.torture.history import Event
from caslock.testing.torture.judge import judge
from caslock.testing.torture.plan import PREFIX, OwnServer, Plan
from caslock.testing.torture.report import Report
from caslock.testing.torture.run import Outcome, torture
from caslock.testing.torture.tenures import Judgement, Tenure, Violation

__all__ = [
    "PREFIX",
    "Event",
    "Judgement",
    "Outcome",
    "OwnServer",
    "Plan",
    "Report",
    "Tenure",
    "Violation",
    "judge",
    "sweep",
    "torture",
]
