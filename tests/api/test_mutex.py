"""An interrupt never leaves a mutex locked, wherever it strikes."""

from __future__ import annotations

import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from caslock.mutex import Mutex

if TYPE_CHECKING:
    from types import FrameType


def test_an_interrupt_leaves_no_mutex_locked() -> None:
    """Nor unlocks one that is held outside; on Python 3.14, a plain RLock can stay locked."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(1000):
            mutex, outer = Mutex(), Mutex()
            with outer:
                with pytest.raises(KeyboardInterrupt):
                    strike(mutex, outer)
                assert is_free(mutex)
                assert not is_free(outer)
            assert is_free(outer)
    finally:
        signal.signal(signal.SIGALRM, before)


def strike(mutex: threading.RLock, outer: threading.RLock) -> None:
    """Take and give back, until the interrupt comes."""
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-5))
    while True:
        with mutex, outer, mutex:
            pass


def is_free(mutex: threading.RLock) -> bool:
    """Ask another thread, as this one may take it again."""
    free: list[bool] = []

    def ask() -> None:
        if mutex.acquire(blocking=False):
            mutex.release()
            free.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return bool(free)
