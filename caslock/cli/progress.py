"""Says on standard error how far a run is, so that the report can be piped."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final, Self

EVERY: Final = 5.0
"""Seconds between two lines where there is no terminal."""


class Progress:
    """One line, written anew again and again, on a terminal; else a line now and then."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._said = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the line."""
        if self._terminal and self._phase:
            self._write("\n")

    def phase(self, name: str, expected: str) -> None:
        """Begin something; `expected` says how long it may take."""
        self._phase = name
        self._say(f"{name}: {expected} ...")

    def at(self, done: str) -> None:
        """Say how much is done."""
        if self._terminal or time.monotonic() - self._said >= EVERY:
            self._say(f"{self._phase}: {done}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r\x1b[K{line[:width]}" if self._terminal else f"{line}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
