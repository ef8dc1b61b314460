"""The clock that deadlines are measured on: nobody can set it, and it runs while the machine is suspended.

Linux stops ``CLOCK_MONOTONIC`` during suspend but not ``CLOCK_BOOTTIME`` (clock_gettime(2)); a lease goes on at the
store meanwhile, so a lock must use the latter.  Elsewhere the monotonic clock is the best there is (PEP 418).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since some fixed moment; never compare it with another machine's."""
