"""The worker processes of a run: started, stopped, killed, and ended with the run."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from caslock.local import clock
from caslock.verify.worker import Orders, Place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from caslock.verify.history import History
    from caslock.verify.plan import Plan

_ERROR: Final = re.compile(r"^(?:\w+\.)*[A-Z]\w*(?:: .*)?$", re.MULTILINE)
"""The line of a traceback that names an error.  The tracebacks of several threads may be mixed."""

_CRASH: Final = re.compile(r"^Fatal Python error: .*|^Current thread 0x.*\n((?:  File .*\n)*)", re.MULTILINE)
"""What `faulthandler` says of a crash, and the calls of the thread that it happened in, most recent call first."""

MOST_SAID: Final = 1_000
"""Characters of a dead worker's last words."""

PATIENCE: Final = 20.0
"""Seconds that a worker may take to be ready."""

# Has Linux kill the worker when the thread that started it ends, even by kill -9.  Elsewhere its input tells it.
TIED: Final = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
from caslock.verify.worker import main
main()
"""


@dataclass
class Process:
    """One worker."""

    name: str
    child: subprocess.Popen[bytes]
    kind: str = ""
    continues: float = 0.0
    """When it continues, while it is stopped."""


class Processes:
    """The workers of a run.  Leave the ``with`` block, and none is left."""

    def __init__(self, plan: Plan, url: str, folder: Path, history: History, *, proxied: bool) -> None:
        self.running: list[Process] = []
        self.deaths: list[str] = []
        """What workers said that ended by themselves before their time."""
        self._spare: list[Process] = []
        self._until = 0.0
        self._plan, self._url, self._folder, self._proxied = plan, url, folder, proxied
        self._history = history
        self._dice = random.Random(f"{plan.seed} processes")  # noqa: S311 - chance need not be secret here
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all."""
        everybody = [*self.running, *self._spare]
        for process in everybody:
            process.child.kill()  # also ends one that is stopped
        for process in everybody:
            _reap(process)

    def start(self, kinds: Sequence[str], seconds: float) -> float:
        """Start workers of these kinds; give the time at which they are to end, `seconds` after all are ready."""
        for _ in range(len(kinds) + 1):  # one to spare: it takes the place of one that is killed
            self._prepare()
        end = clock.now() + PATIENCE
        while not all(self._log(process).stat().st_size for process in self._spare) and clock.now() < end:
            time.sleep(0.01)
        self._until = clock.now() + seconds
        for kind in kinds:
            self._give_orders(kind)
        return self._until

    def _prepare(self) -> None:
        """Start a worker, which waits for orders."""
        self._started += 1
        name = f"worker{self._started}"
        with (self._folder / f"{name}.log").open("wb") as output:
            child = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-X", "faulthandler", "-c", TIED, str(os.getpid())],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        process = Process(name, child)
        self._spare.append(process)
        _tell(process, Place(self._plan.to_json(), self._url, name, str(self._folder), self._proxied))

    def _give_orders(self, kind: str) -> None:
        process = self._spare.pop(0)
        process.kind = kind
        self.running.append(process)
        _tell(process, Orders(kind, self._until))
        self._history.note("spawn", process.name)

    def _log(self, process: Process) -> Path:
        return self._folder / f"{process.name}.log"

    def stop_one(self) -> None:
        """Stop a worker for a while, unless half of them are stopped."""
        awake = [process for process in self.running if not process.continues]
        if 2 * len(awake) <= len(self.running):
            return
        process = self._dice.choice(awake)
        self._history.note("stop", process.name)
        process.child.send_signal(signal.SIGSTOP)
        longest = self._plan.longest_delay
        process.continues = clock.now() + 0.02 * (longest / 0.02) ** (self._dice.random() ** 2)

    def continue_stopped(self, *, everybody: bool = False) -> None:
        """Let those continue whose time has come."""
        for process in self.running:
            if process.continues and (everybody or process.continues <= clock.now()):
                process.continues = 0.0
                process.child.send_signal(signal.SIGCONT)
                self._history.note("go", process.name)

    def kill_one(self) -> None:
        """Kill a worker, and start another in its place."""
        if not self.running:
            return
        process = self._dice.choice(self.running)
        self._history.note("kill", process.name)
        process.child.kill()
        _reap(process)
        self.running.remove(process)
        self._prepare()
        self._give_orders(process.kind)

    def collect_dead(self) -> None:
        """Keep what those have said that have died by themselves."""
        for process in [process for process in self.running if process.child.poll() not in (None, 0)]:
            said = last_words(self._log(process).read_text(errors="replace"))
            code = process.child.returncode
            how = f"with status {code}" if code > 0 else f"by signal {-code}"
            self.deaths.append(f"{process.name} ended {how}: {said}")
            _reap(process)
            self.running.remove(process)

    def all_done(self) -> bool:
        """Whether all have ended."""
        return all(process.child.poll() is not None for process in self.running)


def last_words(said: str) -> str:
    """Give the lines that name an error, and say where a crash was; else the last line of all that was said."""
    errors = list(dict.fromkeys(_ERROR.findall(said)))
    for crash in _CRASH.finditer(said):
        errors += [line.strip() for line in (crash[1] or crash[0]).splitlines()]
    return "; ".join(errors or said.strip().splitlines()[-1:])[:MOST_SAID]


def _tell(process: Process, message: object) -> None:
    if process.child.stdin is not None:
        with suppress(BrokenPipeError):
            process.child.stdin.write(json.dumps(message).encode() + b"\n")
            process.child.stdin.flush()


def _reap(process: Process) -> None:
    if process.child.stdin is not None:
        with suppress(OSError):
            process.child.stdin.close()
    process.child.wait()
