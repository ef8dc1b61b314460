"""Runs each measurement in a process of its own, which is ended after a time limit.

Threads, caches and crashes of one candidate therefore do not affect the figures of another, and a library that hangs
costs one measurement.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

T = TypeVar("T")

_fork = multiprocessing.get_context("fork")  # the parent has no threads


class Failed(RuntimeError):  # noqa: N818 - named by its outcome
    """The child raised, died or took too long; the text is one line for a table."""


class Child(Generic[T]):
    """A forked process that runs `act`, which gets a pipe to the parent."""

    def __init__(self, act: Callable[[Connection], T]) -> None:
        """Fork, and start."""
        self.pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_run, args=(act, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        """Give the process, which ends with the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()
        self.pipe.close()

    def say(self, message: object) -> None:
        """Send it a message."""
        try:
            self.pipe.send(message)
        except OSError as error:
            raise Failed("it died") from error

    def hear(self, limit: float) -> object:
        """Receive its next message within `limit` seconds; raises `Failed`."""
        try:
            if not self.pipe.poll(limit):
                raise Failed(f"no answer within {limit:g} s")
            word: object = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise Failed("it died") from error
        if isinstance(word, _Trouble):
            raise Failed(word.line)
        return word

    def result(self, limit: float) -> T:
        """Receive what `act` has returned; raises `Failed`."""
        word = self.hear(limit)
        if not isinstance(word, _Result):
            raise Failed(f"it sent {word!r} instead of a result")
        value: T = word.value
        return value


def in_child(act: Callable[[], T], limit: float) -> T:
    """Run `act` in a process of its own; raises `Failed`."""
    with Child[T](lambda _: act()) as child:
        return child.result(limit)


def one_line(error: BaseException) -> str:
    """Shorten an error for a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:160] if text else type(error).__name__


class _Result(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


class _Trouble:
    def __init__(self, line: str) -> None:
        self.line = line


def _run(act: Callable[[Connection], T], pipe: Connection) -> None:
    logging.disable()  # some candidates write a line for each try
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for the rest of this process
    try:
        pipe.send(_Result(act(pipe)))
    except BaseException as error:  # noqa: BLE001 - any error is a result
        pipe.send(_Trouble(one_line(error)))
    finally:
        os._exit(0)  # without waiting for any thread
