"""Tells what happens to the locks of this process: to observers (for metrics and traces), and to the log.

The logger ``caslock`` has a WARNING for each lost lease and forced release, and for failed renewals (at most one in ten
seconds for each store), an INFO for each long wait (see `log_long_waits`), and a DEBUG for each acquire and release.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
"""As in `logging`, which takes longer to import than all of caslock, and may never be needed."""


class LockEvent(NamedTuple):
    """What has happened to one lock."""

    key: str
    """The key of the lock; of a `MultiLock`, one of its keys."""
    owner: str
    """Who acquires or holds it: ``host:random`` unless the lock was given an ``owner``."""
    location: str
    """Of the store; without its password."""
    fence: int | None
    """None if the key is not held, or the store has no fences."""
    seconds: float
    """What it measures depends on the event: see `Observer`."""
    reason: str = ""
    """Why the lease was lost, the key could not be acquired, or a renewal failed; or that the release failed."""


class Observer:
    """Is told what happens to all locks of this process, once it was given to `observe`.  Subclass it.

    The methods are called where it happens: by the thread or task that acquires or releases, or by one that renews
    leases.  They must return at once, and must not use the lock.  An exception is logged as an ERROR, and does not
    concern the lock.
    """

    def waited(self, event: LockEvent) -> None:
        """An acquire had to wait for ``seconds``, as the key was in use; `acquired` or `busy` follows."""

    def acquired(self, event: LockEvent) -> None:
        """A key was acquired, ``seconds`` after the call.  A re-entry is no event."""

    def adopted(self, event: LockEvent) -> None:
        """A hold was taken over from the process that has handed it over, ``seconds`` after the call."""

    def busy(self, event: LockEvent) -> None:
        """A key was not acquired, as somebody else held it for all of the timeout, ``seconds``."""

    def renewed(self, event: LockEvent) -> None:
        """A lease was renewed in the background, and lasts for ``seconds`` from now."""

    def renewal_failed(self, event: LockEvent) -> None:
        """A renewal in the background has failed; it is repeated while the lease lasts, for ``seconds`` from now."""

    def lost(self, event: LockEvent) -> None:
        """A lease was lost, ``seconds`` after the key was acquired.  Each loss is told once."""

    def released(self, event: LockEvent) -> None:
        """A key was released by its holder, ``seconds`` after it was acquired; told once, even if that failed."""

    def handed_over(self, event: LockEvent) -> None:
        """A hold was handed over, ``seconds`` after the key was acquired: it is not this process's any more."""


NAMES: Final = tuple([name for name in vars(Observer) if not name.startswith("_")])

_observers: list[Observer] = []
_long_wait = 10.0
_logger: logging.Logger | None = None


def observe(observer: Observer) -> Callable[[], None]:
    """Tell `observer` from now on what happens to the locks of this process; returns a function that ends that.

    An observer that is given twice is told once.  Raises TypeError if it lacks a method of `Observer`.
    """
    missing = [name for name in NAMES if not callable(getattr(observer, name, None))]
    if missing or isinstance(observer, type):
        kind = f"the class {observer.__name__}" if isinstance(observer, type) else type(observer).__name__
        raise TypeError(
            f"expected an instance of a subclass of caslock.Observer, not {kind}"
            + (f", which lacks {', '.join(missing)}" if missing else "")
        )
    if not any(each is observer for each in _observers):
        _observers.append(observer)
    return lambda: _forget(observer)


def _forget(observer: Observer) -> None:
    _observers[:] = [each for each in _observers if each is not observer]


def log_long_waits(seconds: float) -> None:
    """Log an INFO whenever an acquire has waited more than `seconds`, successful or not; 10 until this is called."""
    global _long_wait  # noqa: PLW0603 - a setting of the process, as the logger is
    if isinstance(seconds, bool) or not seconds >= 0:
        raise ValueError(f"seconds must be 0 or more, not {seconds!r}")
    _long_wait = seconds


def listens() -> bool:
    """Whether an observer, or the log at a level below WARNING, wants to know of anything."""
    logger = _logger or ("logging" in sys.modules and _log())
    return bool(_observers) or bool(logger and logger.isEnabledFor(INFO))


def _log() -> logging.Logger:
    global _logger  # noqa: PLW0603 - looking it up takes ten times as long
    if _logger is None:
        import logging  # noqa: PLC0415 - see `WARNING`

        _logger = logging.getLogger("caslock")
    return _logger


def tell(name: str, event: LockEvent) -> None:
    """Tell the observers, and the log."""
    for observer in tuple(_observers):
        try:
            getattr(observer, name)(event)
        except Exception:  # noqa: BLE001 - an observer may raise whatever it likes
            log_error(f"the observer {type(observer).__name__} raised an exception")
    if name in _TEXTS and "logging" in sys.modules and (name != "waited" or event.seconds > _long_wait):
        level, text = _TEXTS[name]
        failed = f": {event.reason}" if event.reason else ""
        _log().log(level, text + "%s", event.key, event.location, event.seconds, failed)


_TEXTS: Final = {
    "acquired": (DEBUG, "lock %r at %s was acquired after %.4f s"),
    "released": (DEBUG, "lock %r at %s was released after %.4f s"),
    "adopted": (DEBUG, "lock %r at %s was adopted after %.4f s"),
    "handed_over": (DEBUG, "lock %r at %s was handed over after %.4f s"),
    "waited": (INFO, "waited for lock %r at %s for %.4f s"),
}


def warn(text: str) -> None:
    """Log a WARNING."""
    _log().warning("%s", text)


def log_error(text: str) -> None:
    """Log an ERROR, with the traceback of the exception that is handled, if any."""
    _log().error("%s", text, exc_info=sys.exc_info()[0] is not None)
