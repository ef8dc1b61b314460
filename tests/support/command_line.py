"""Starts ``caslock`` as its users do: as a process, also at a terminal; and other programs in Python."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
CASLOCK = [sys.executable, "-m", "caslock"]


def environment(store: str = "", **more: str) -> dict[str, str]:
    """Return that of a command, with the store of its locks."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("CASLOCK_")}
    ours = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::ResourceWarning", "PYTHONFAULTHANDLER": "1"}
    return plain | ours | {"CASLOCK_STORE": store} | more


def python(*arguments: str, cwd: Path = ROOT, **more: str) -> tuple[int, str, str]:
    """Run a Python program to its end: exit status, output and errors; `more` is in its environment."""
    command, env = [sys.executable, *arguments], environment(**more)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout, done.stderr


def start(
    *arguments: str,
    store: str = "",
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    cwd: Path | None = None,
    **more: str,
) -> subprocess.Popen[str]:
    """Start ``caslock`` in a session of its own, without a terminal; `more` is in its environment."""
    return subprocess.Popen(
        [*CASLOCK, *arguments],
        cwd=cwd,
        env=environment(store, **more),
        preexec_fn=_hear_all,  # noqa: PLW1509 - it only sets signals
        text=True,
        start_new_session=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def _hear_all() -> None:
    """Undo what `nohup`, or `&` in a script, has done to the tests: a signal that was ignored stays ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def finished(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    """Wait for its end: exit status, output and errors; one that has not ended by then says what its threads do."""
    with process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            raise AssertionError("\n".join(("it has not ended", *process.communicate()))) from None
    assert "Traceback" not in errors, errors
    return process.returncode, output, errors


def caslock(*arguments: str, store: str = "") -> tuple[int, str, str]:
    """Run ``caslock`` to its end: exit status, output and errors."""
    return finished(start(*arguments, store=store))


def line(process: subprocess.Popen[str]) -> str:
    """Wait for the next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


class AtTerminal:
    """A program that is the leader of a session with a terminal, which we type at and read."""

    def __init__(self, *command: str, env: Mapping[str, str]) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            _hear_all()
            os.execvpe(command[0], command, dict(env))  # noqa: S606 - it needs no shell
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)  # it hangs up
        if self.pid:
            os.waitpid(self.pid, 0)

    def type(self, text: str, shows: str = "") -> str:
        """Type at the terminal, and wait for what it shows then, if any; 0x03 is Ctrl-C, and 0x1a is Ctrl-Z."""
        os.write(self._file, text.encode())
        return self.read_until(shows) if shows else ""

    def read_until(self, text: str, seconds: float = 120) -> str:
        """Wait until `text` is shown, and give all that was, since the last time and up to it."""
        ends = time.monotonic() + seconds
        while text.encode() not in self._read:
            ready, _, _ = select.select([self._file], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"{text!r} was not shown, but {self._read!r}"
            try:
                self._read += os.read(self._file, 4096)
            except OSError:  # as Linux says that nobody has the terminal open any more
                raise AssertionError(f"it has ended without {text!r}, but with {self._read!r}") from None
        before, found, self._read = self._read.partition(text.encode())
        return (before + found).decode()

    def foreground(self) -> int:
        """Tell the process group in the foreground."""
        return os.tcgetpgrp(self._file)

    def status(self) -> int:
        """Wait for its end: exit status; negative: the signal that ended it."""
        ends = time.monotonic() + 120
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < ends, f"it does not end, and has shown {self._read!r}"
            if select.select([self._file], [], [], 0.02)[0]:  # a full terminal would keep it from ending
                try:
                    self._read += os.read(self._file, 4096)
                except OSError:
                    time.sleep(0.01)
