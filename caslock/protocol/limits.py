"""How often and for how long the protocol asks a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from caslock.protocol.runtime import Runtime

PASSES: Final = 8
"""How many times one call tries while the record keeps changing."""

LONGEST_WAIT: Final = 5.0
"""Seconds of the longest wait at a store, which bounds the cost of a lost wake-up."""


def last_start(runtime: Runtime, limit: float) -> float:
    """Return the moment from which no request begins, so that all are over two request timeouts after `limit`."""
    return limit + runtime.patience


def last_start_of_three(runtime: Runtime, began: float) -> float:
    """Return the moment from which no request begins, so that all are over three request timeouts after `began`."""
    return began + runtime.store.traits.request_timeout + runtime.patience
