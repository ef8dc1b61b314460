"""The law of this file: workers are started, stopped and killed by their process id, and none outlives its crew."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from caslock import clock
from caslock.testing.torture.worker import Orders

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from caslock.testing.torture.history import History
    from caslock.testing.torture.plan import Plan

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
from caslock.testing.torture.worker import main
main()
"""


@dataclass
class Worker:
    """One process of the crew."""

    name: str
    kind: str
    process: subprocess.Popen[bytes]
    goes_on: float = 0.0
    """When it goes on, while it is stopped."""


class Crew:
    """The workers of a run."""

    def __init__(self, plan: Plan, url: str, folder: Path, history: History, *, wire: bool) -> None:
        """Begin with nobody."""
        self.workers: list[Worker] = []
        self.troubles: list[str] = []
        """What workers said that ended by themselves before their time."""
        self.until = 0.0
        self._plan, self._url, self._folder, self._wire = plan, url, folder, wire
        self._history = history
        self._dice = random.Random(f"{plan.seed} crew")  # noqa: S311 - chance need not be secret here
        self._spare: list[Worker] = []
        self._born = 0

    def __enter__(self) -> Self:
        """Have a crew."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nobody stays."""
        everybody = [*self.workers, *self._spare]
        for worker in everybody:
            with suppress(OSError):
                worker.process.kill()  # also ends who is stopped
        for worker in everybody:
            self._bury(worker)
        self.workers.clear()
        self._spare.clear()

    def gather(self, kinds: Sequence[str], seconds: float) -> float:
        """Start workers of these kinds; give the time at which they are to end, `seconds` after all are ready."""
        for _ in range(len(kinds) + 1):  # one to spare: it takes the place of one that is killed
            self._spare.append(self._born_ready())
        end = clock.now() + PATIENCE
        while not all(self._log(worker).stat().st_size for worker in self._spare) and clock.now() < end:
            time.sleep(0.01)
        self.until = clock.now() + seconds
        for kind in kinds:
            self._send(kind)
        return self.until

    def _born_ready(self) -> Worker:
        self._born += 1
        name = f"worker{self._born}"
        with (self._folder / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", TIED, str(os.getpid())],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        return Worker(name, "", process)

    def _send(self, kind: str) -> None:
        """Tell a worker what to do."""
        worker = self._spare.pop(0)
        worker.kind = kind
        self.workers.append(worker)
        orders = Orders(self._plan.to_json(), self._url, worker.name, kind, str(self._folder), self.until, self._wire)
        if worker.process.stdin is not None:
            with suppress(BrokenPipeError):
                worker.process.stdin.write(json.dumps(orders).encode() + b"\n")
                worker.process.stdin.flush()
        self._history.note("spawn", worker.name)

    def _log(self, worker: Worker) -> Path:
        return self._folder / f"{worker.name}.log"

    def stop_one(self) -> None:
        """Stop a worker for a while, unless half of them are stopped."""
        running = [worker for worker in self.workers if not worker.goes_on]
        if 2 * len(running) <= len(self.workers):
            return
        worker = self._dice.choice(running)
        longest = self._plan.longest_hold_up
        self._history.note("stop", worker.name)
        worker.process.send_signal(signal.SIGSTOP)
        worker.goes_on = clock.now() + 0.02 * (longest / 0.02) ** (self._dice.random() ** 2)

    def go_on(self, *, everybody: bool = False) -> None:
        """Let those go on whose time has come."""
        for worker in self.workers:
            if worker.goes_on and (everybody or worker.goes_on <= clock.now()):
                worker.goes_on = 0.0
                worker.process.send_signal(signal.SIGCONT)
                self._history.note("go", worker.name)

    def kill_one(self) -> None:
        """Kill a worker, and start another in its place."""
        if not self.workers:
            return
        worker = self._dice.choice(self.workers)
        self._history.note("kill", worker.name)
        worker.process.kill()
        self._bury(worker)
        self.workers.remove(worker)
        self._spare.append(self._born_ready())
        self._send(worker.kind)

    def look_after(self) -> None:
        """Bury those who have died by themselves, and keep what they have said."""
        for worker in [worker for worker in self.workers if worker.process.poll() not in (None, 0)]:
            said = self._log(worker).read_text(errors="replace").strip()
            self.troubles.append(f"{worker.name} ended by {worker.process.returncode}: {said[-MOST_SAID:]}")
            self._bury(worker)
            self.workers.remove(worker)

    def all_done(self) -> bool:
        """Whether everybody has ended."""
        return all(worker.process.poll() is not None for worker in self.workers)

    def _bury(self, worker: Worker) -> None:
        if worker.process.stdin is not None:
            with suppress(OSError):
                worker.process.stdin.close()
        worker.process.wait()
