"""Has SIGTERM and SIGHUP end a run as Ctrl-C does, with everything cleaned up."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from types import FrameType


class Interrupts:
    """In its ``with`` block the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt; the others are ignored."""

    def __init__(self) -> None:
        self._received = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Begin to listen."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as by nohup
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._end) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        """Listen no more."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as signal.signal gave it

    def check(self) -> None:
        """Raise KeyboardInterrupt again if a signal was received.

        Python drops an exception that a signal handler raises inside a finalizer or a weak reference's callback.
        """
        if self._received:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """The exit code of a program that was ended by the signal."""
        return 128 + (self._received or signal.SIGINT)

    def _end(self, number: int, _frame: FrameType | None) -> NoReturn:
        for each in self._before:  # a second signal must not interrupt the clean-up
            signal.signal(each, signal.SIG_IGN)
        self._received = number
        raise KeyboardInterrupt
