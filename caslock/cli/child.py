"""A command in a process group of its own: its terminal, its signals, and its end.

The command behaves as if the shell had started it: it is in the foreground of the terminal if caslock was, Ctrl-C and
Ctrl-Z reach it, and signals that caslock receives are passed on to the whole group.  In a pipeline, another program may
need the terminal, such as a pager: then the command is put in the foreground only if it asks for the terminal.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import stat
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from caslock.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_IGNORED_BY_PYTHON: Final = [signal.SIGPIPE, signal.SIGXFSZ]
_WANTS_TERMINAL: Final = (signal.SIGTTIN, signal.SIGTTOU)
_LOOK: Final = 0.02  # seconds between two looks at a group that was told to end


class Child:
    """A command that runs.  One thread makes it and waits for it; another one may end it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], held: Callable[[], bool]) -> None:
        """Start it; `held` tells whether it may go on after a stop.  Raises OSError if it can't be started."""
        self._held = held
        self._terminal = Terminal()
        self._ending = threading.Lock()
        self._is_ended = self._suspended = self._continued = False
        # A signal that comes just before `waitpid` would not be handled before its end: so `wait` sleeps at a pipe.
        self._wakes, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # whoever has started us may have blocked it
        self.group: int = _spawn(command, environment)
        self.in_foreground: bool = self._give()
        """Whether the terminal was given to the command: its Ctrl-C goes to that, and not to us."""

    def wait(self) -> int:
        """Return its exit status when it has ended; negative: the signal that ended it."""
        while True:
            found, status = os.waitpid(self.group, os.WUNTRACED | os.WNOHANG)
            if not found:
                select.select([self._wakes], [], [])
                os.read(self._wakes, 4096)
            elif os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            else:
                break
        if self.in_foreground:
            self._terminal.take_back()
        return os.waitstatus_to_exitcode(status)

    @property
    def is_at_terminal(self) -> bool:
        """Whether Ctrl-C goes to the command, or to us and all that is in a pipeline with us."""
        return self.in_foreground or self._terminal.is_ours()

    def pass_on(self, number: int) -> None:
        """Pass a signal on to the whole group; to be called by a signal handler."""
        if number == signal.SIGCONT:
            self._continued = True
            if self._suspended:  # `_suspend` continues it, if it may
                return
            self.in_foreground = self._give()
        self._send(number)

    def end(self, grace: float) -> None:
        """Ask the whole group to end, and kill what is left of it after `grace` seconds; the second call waits only."""
        with self._ending:
            if self._is_ended:
                return
            self._is_ended = True
            ends = time.monotonic() + grace
            self._send(signal.SIGTERM)
            self._send(signal.SIGCONT)  # a stopped process can't end before
            while self._is_there() and time.monotonic() < ends:
                time.sleep(_LOOK)
            if self._is_there():
                self._send(signal.SIGKILL)

    def _stopped(self, number: int) -> None:
        if number in _WANTS_TERMINAL and self._terminal.give(self.group):
            self.in_foreground = True  # it was faster than we, or `fg` has brought us to the foreground since
            self._send(signal.SIGCONT)
        elif number in _WANTS_TERMINAL or self._terminal.foreground() == self.group or self._terminal.is_ours():
            self._suspend(signal.SIGTSTP if number == signal.SIGSTOP else number)
        # Else somebody has stopped the command only, and may continue it; the lock is kept meanwhile.

    def _suspend(self, number: int) -> None:
        """Stop as well, so that the shell takes the terminal, and go on with the command if its lock is still held."""
        if self.in_foreground:
            self._terminal.take_back()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._suspended, self._continued = True, False
        os.kill(0, number)  # to the whole job, as the terminal does; here time passes
        time.sleep(_LOOK)  # if another thread has got the SIGCONT, Python handles it a moment later
        signal.signal(signal.SIGTSTP, before)
        if not self._held():
            return  # the loss ends it
        self._suspended = False
        if number in _WANTS_TERMINAL and not self._continued:
            self._send(signal.SIGHUP)  # nobody can bring us to the foreground: the kernel ends such a group so
        self.in_foreground = self._give()
        self._send(signal.SIGCONT)

    def _give(self) -> bool:
        return self._terminal.foreground() == self.group if _in_pipeline() else self._terminal.give(self.group)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def _is_there(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except OSError:
            return False
        return True


def _in_pipeline() -> bool:
    for stream in range(3):
        with suppress(OSError):  # it is closed
            if stat.S_ISFIFO(os.fstat(stream).st_mode):
                return True
    return False


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> int:
    def spawn(*arguments: str) -> int:
        return os.posix_spawnp(arguments[0], arguments, environment, setpgroup=0, setsigdef=_IGNORED_BY_PYTHON)

    try:
        return spawn(*command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return spawn("/bin/sh", shutil.which(command[0]) or command[0], *command[1:])  # a script without a first line
