"""Reports a lost lease: a WARNING in the log, and the user's `on_lost`, whose own failures are logged as ERRORs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

from caslock.local.log import log_error, warn
from caslock.protocol.withdraw import location_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.local.hold import Holding
    from caslock.protocol.attempt import Attempt

H = TypeVar("H", bound="Holding")


def warn_of_loss(attempt: Attempt) -> None:
    """Log that a lease was lost, where, and why."""
    location = location_of(attempt.runtime)
    where = "" if location in attempt.lease.lost else f" at {location}"
    warn(f"lock {attempt.key!r}{where} was lost: {attempt.lease.lost}")


def call_on_lost(on_lost: Callable[[H], object], hold: H) -> None:
    """Call the user's `on_lost`; no caller could catch its exception, so that is logged, with its traceback.

    SystemExit and the like are left to what runs this thread or event loop.
    """
    try:
        result = on_lost(hold)
    except Exception:  # noqa: BLE001 - a callback may raise whatever it likes
        log_error(f"the on_lost callback of lock {hold.key!r} raised an exception")
        return
    if isinstance(result, Coroutine):  # of an `async def` in a functools.partial, for example
        result.close()
        log_error(f"on_lost of lock {hold.key!r} returned a coroutine, which was not run: use a plain function")
