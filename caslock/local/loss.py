"""Reports a lost lease: a WARNING in the log, and the user's `on_lost`, whose own failures are logged as ERRORs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

from caslock.protocol.withdraw import location_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt

H = TypeVar("H", bound="Holding")


def warn_of_loss(attempt: Attempt) -> None:
    """Log that a lease was lost, where, and why."""
    location = location_of(attempt.runtime)
    where = "" if location in attempt.lease.lost else f" at {location}"
    _logger().warning("lock %r%s was lost: %s", attempt.key, where, attempt.lease.lost)


def call_on_lost(on_lost: Callable[[H], object], hold: H) -> None:
    """Call the user's `on_lost`; no caller could catch its exception, so that is logged, with its traceback.

    SystemExit and the like are left to what runs this thread or event loop.
    """
    try:
        result = on_lost(hold)
    except Exception:  # noqa: BLE001 - a callback may raise whatever it likes
        _logger().exception("the on_lost callback of lock %r raised an exception", hold.key)
        return
    if isinstance(result, Coroutine):  # of an `async def` in a functools.partial, for example
        result.close()
        _logger().error("on_lost of lock %r returned a coroutine, which was not run: use a plain function", hold.key)


def _logger() -> logging.Logger:
    import logging  # noqa: PLC0415 - it takes longer to import than all of caslock, and is seldom needed

    return logging.getLogger("caslock")
