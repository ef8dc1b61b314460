"""The controlling terminal: only its foreground process group may read it, and gets its Ctrl-C and Ctrl-Z."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Terminal:
    """The terminal of this process, if it has one.  Whatever goes wrong with it, it may be gone: that is no error."""

    def __init__(self) -> None:
        """Open it."""
        try:
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._file = -1

    def foreground(self) -> int:
        """Tell which process group is in the foreground; -1 without a terminal."""
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return -1

    def is_ours(self) -> bool:
        """Tell whether our own group is in the foreground."""
        return self.foreground() == os.getpgrp()

    def give(self, group: int) -> bool:
        """Put a group in the foreground, if that is ours to give; tells whether it is there."""
        if self.is_ours():
            self._set(group)
        return self.foreground() == group

    def take_back(self) -> None:
        """Put our own group in the foreground again."""
        # The kernel stops a group in the background that does so, unless it blocks SIGTTOU.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            self._set(os.getpgrp())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _set(self, group: int) -> None:
        with suppress(OSError):
            os.tcsetpgrp(self._file, group)
