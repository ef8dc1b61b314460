"""What `caslock doctor` finds."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple


class Severity(IntEnum):
    """How bad a finding is."""

    note = 0
    """To be known."""
    warning = 1
    """Locks can be lost where something else goes wrong, too."""
    danger = 2
    """Locks can be lost, or can't be had, while everything works."""


STATUS: Final = {Severity.note: 0, Severity.warning: 1, Severity.danger: 3}
"""Exit status of `caslock doctor`, by the worst finding."""


class Finding(NamedTuple):
    """One thing that matters for locks."""

    severity: Severity
    what: str
    means: str
    """What can happen."""
    cure: str = ""
    """What to set."""

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.severity.name}: {self.what}: {self.means}{f'. {self.cure}' if self.cure else ''}"

    def to_dict(self) -> dict[str, str]:
        """Give it as plain data."""
        return {"severity": self.severity.name, "what": self.what, "means": self.means, "cure": self.cure}


note: Final = partial(Finding, Severity.note)
warning: Final = partial(Finding, Severity.warning)
danger: Final = partial(Finding, Severity.danger)

FULL: Final = 0.9
"""The share of a server's memory from which on it counts as nearly full."""


def clock(told: float, asked: float, answered: float) -> list[Finding]:
    """Compare the time a server gave, good to about a second, with ours: it was read between these two."""
    offset = told - min(max(told, asked), answered)
    if abs(offset) < 2:  # noqa: PLR2004 - memcached tells whole seconds
        return []
    ahead = f"the server's clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours"
    return [
        warning(
            ahead, "if it is wrong and is set, leases may end early, and fences go back", "Let it follow NTP slowly"
        )
    ]
