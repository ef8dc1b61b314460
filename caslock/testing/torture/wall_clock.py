"""The law of this file: the wall clock of a process goes wrong by hours at any moment, and no lock may notice.

No clock is set but what Python code reads by `time.time` and `time.time_ns`; those on which leases are measured can't
be set by anybody.
"""

from __future__ import annotations

import time


class WallClock:
    """What `time.time` tells in this process, from now on."""

    def __init__(self) -> None:
        """Begin as right."""
        self.wrong = 0
        """Seconds by which it is ahead."""
        seconds, nanoseconds = time.time, time.time_ns
        setattr(time, "time", lambda: seconds() + self.wrong)  # noqa: B010 - a type checker holds it to be fixed
        setattr(time, "time_ns", lambda: nanoseconds() + self.wrong * 1_000_000_000)  # noqa: B010 - as above
