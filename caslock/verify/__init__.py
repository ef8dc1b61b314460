"""``caslock verify``: the contract of a store, then torture, in which processes use it under faults of every kind.

A judge reads afterwards what they believed.  ``torture(Plan(url="redis://localhost:6379/0")).report.passed``
"""

from caslock.verify.history import Event
from caslock.verify.judge import Law, judge
from caslock.verify.plan import PREFIX, Plan
from caslock.verify.report import Report
from caslock.verify.run import Action, Outcome, torture
from caslock.verify.tenures import Judgement, Tenure, Violation

__all__ = [
    "PREFIX",
    "Action",
    "Event",
    "Judgement",
    "Law",
    "Outcome",
    "Plan",
    "Report",
    "Tenure",
    "Violation",
    "judge",
    "torture",
]
