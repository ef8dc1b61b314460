"""Worker processes that share requests, for `booking.py` and `insert_once.py`.  Not an example by itself."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Self, TypeVar

import caslock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from multiprocessing.sharedctypes import Synchronized

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class WorkerFailed(Exception):  # noqa: N818 - named by the outcome
    """A worker process raised an error, or died."""


def share_out(
    title: str, total: int, names: Sequence[str], work: Callable[[str, Job, Iterator[int]], Answer], job: Job
) -> tuple[list[Answer], float]:
    """Run `work(name, job, numbers)` in one process for each name; return their answers and the seconds it took.

    `numbers` yields the numbers of the requests that the process gets, out of `total`.  A process is ready when it asks
    for the first one; all start when all are ready.  Raises `WorkerFailed`.  All processes have ended afterwards.
    """
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Value("i", 0)
    fleet: list[tuple[SpawnProcess, Connection]] = []
    try:
        with _undisturbed():
            for name in names:
                line, end = spawn.Pipe()
                process = spawn.Process(target=_be_worker, args=(name, work, job, begun, total, end))
                process.start()
                end.close()
                fleet.append((process, line))
        lines = [line for _, line in fleet]
        _receive(lines, lambda: None)  # "ready"
        start = time.monotonic()
        for line in lines:
            line.send("go")
        with _Progress(title, total) as progress:
            answers: list[Answer] = _receive(lines, lambda: progress.show(begun.get_obj().value))
        return answers, time.monotonic() - start
    finally:
        for _, line in fleet:
            line.close()  # tells a process that still works to stop
        for process, _ in fleet:
            process.join(5)
            process.kill()
            process.join()


def _be_worker(  # noqa: PLR0917 - called by multiprocessing only
    name: str,
    work: Callable[[str, Job, Iterator[int]], Answer],
    job: Job,
    begun: Synchronized[int],
    total: int,
    line: Connection,
) -> None:
    def numbers() -> Iterator[int]:
        line.send(("", "ready"))
        line.recv()
        while not line.poll():
            with begun:
                number = begun.value
                begun.value += 1
            if number >= total:
                return
            yield number

    try:
        report: tuple[str, Answer | None] = ("", work(name, job, numbers()))
    except Exception as error:  # noqa: BLE001 - the parent reports it
        report = (f"{name}: {type(error).__name__}: {error}", None)
    with suppress(OSError):  # the parent has gone
        line.send(report)


def _receive(lines: Sequence[Connection], meanwhile: Callable[[], None]) -> list[Answer]:
    """Wait for one message from each process."""
    answers: dict[Connection, Answer] = {}
    while len(answers) < len(lines):
        missing = [line for line in lines if line not in answers]
        ready = wait(missing, timeout=0.1)
        for line in missing:
            if line in ready:
                try:
                    failure, answers[line] = line.recv()
                except EOFError:
                    failure = "a process has died"
                if failure:
                    raise WorkerFailed(failure)
        meanwhile()
    return [answers[line] for line in lines]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM; processes that are started here inherit that, and end with their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Progress:
    """Progress: a bar on a terminal, otherwise a line for each quarter."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._start = time.monotonic()
        self._terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._quarters = 0

    def show(self, begun: int) -> None:
        """Show how many requests have been started."""
        begun = min(begun, self._total)
        part = begun / self._total
        text = f"{self._title:<12} {part:4.0%}  {begun:,} of {self._total:,}  {time.monotonic() - self._start:.1f} s"
        if self._terminal:
            bar = ("#" * round(30 * part)).ljust(30, ".")
            print(f"\r{text[:12]} [{bar}]{text[12:]}\x1b[K", end="", flush=True)
        elif self._quarters < int(4 * part):
            self._quarters = int(4 * part)
            print(text, flush=True)

    def __enter__(self) -> Self:
        """Start at zero."""
        self.show(0)
        return self

    def __exit__(self, *error: object) -> None:
        """End the line of the bar."""
        if self._terminal:
            print()


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def lock_store(url: str) -> str:
    """Parse the URL of a store that several processes can share."""
    try:
        if caslock.connect(url).traits.location != caslock.connect(url).traits.location:
            raise argparse.ArgumentTypeError("this store exists in one process only, and cannot be shared")
    except (ValueError, ImportError, caslock.CaslockError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return url
