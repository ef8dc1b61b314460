"""The law of this file: whoever asks a run to end gets what Ctrl-C gets: everything cleaned up."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextlib.contextmanager
def interruptible(struck: list[int]) -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does, once; note in `struck` which it was."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for each in numbers:  # once is enough: what cleans up now is not to be interrupted
            signal.signal(each, signal.SIG_IGN)
        struck.append(number)
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as by nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
