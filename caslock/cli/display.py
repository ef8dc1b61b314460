"""The law of this file: progress goes to standard error, so that the report can be piped; a terminal sees it live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY: Final = 5.0
"""Seconds between two plain lines."""


class Display(Protocol):
    """Shows how far it is."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(self, *error: object) -> None:
        """Leave the screen as it is read best."""

    def phase(self, name: str, total: float | None) -> None:
        """Begin something that takes `total` steps or seconds."""

    def at(self, done: float, what: str) -> None:
        """Show how much is done."""


class Plain:
    """Lines, for files, pipes and plain terminals."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._said = time.monotonic()
        self._name = ""

    def __enter__(self) -> Self:
        """See `Display`."""
        return self

    def __exit__(self, *error: object) -> None:
        """See `Display`."""

    def phase(self, name: str, total: float | None) -> None:
        """See `Display`."""
        self._name = name
        self._say(f"{name}{f', {total:g} s' if total else ''} ...")

    def at(self, done: float, what: str) -> None:
        """See `Display`."""
        if time.monotonic() - self._said >= EVERY:
            self._say(f"{self._name}: {done:.0f}, {what}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class Live:
    """A bar, by rich."""

    def __init__(self) -> None:
        """Raises ModuleNotFoundError where rich is not installed."""
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
        )
        self._progress: Progress = Progress(*columns, console=Console(stderr=True))
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """See `Display`."""
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """See `Display`."""
        self._progress.stop()

    def phase(self, name: str, total: float | None) -> None:
        """See `Display`."""
        if self._task is not None:
            self._progress.update(self._task, total=1, completed=1)
        self._task = self._progress.add_task(name, total=total, what="")

    def at(self, done: float, what: str) -> None:
        """See `Display`."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, what=what)


def display() -> Display:
    """Give the best there is."""
    if sys.stderr.isatty():
        try:
            return Live()
        except ModuleNotFoundError:
            pass
    return Plain()
