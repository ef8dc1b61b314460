"""The law of this file: a fenced resource sees the fence of every touch, and takes none that is smaller than the last.

It stands for a database with ``WHERE fence <= ?``: a file under a lock of the operating system.  The counter in it is
read and written back by its users, who rely on the lock under test not to lose an update.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Late(Exception):  # noqa: N818 - named by the outcome
    """A newer holder has been here."""


class FencedCounter:
    """One counter in a file."""

    def __init__(self, path: Path) -> None:
        """Name the file."""
        self._path = path

    def read(self, fence: int) -> int:
        """Tell the count; from here on no smaller fence is taken.  Raises `Late`."""
        return self._touch(fence, None)

    def write(self, fence: int, count: int) -> None:
        """Set the count.  Raises `Late`."""
        self._touch(fence, count)

    @property
    def count(self) -> int:
        """What it says in the end."""
        try:
            return int(json.loads(self._path.read_text())[1])
        except FileNotFoundError:
            return 0

    def _touch(self, fence: int, count: int | None) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            last, standing = json.loads(os.read(file, 100) or b"[0, 0]")
            if fence < last:
                raise Late
            if fence > last or count is not None:
                standing = standing if count is None else count
                # One write of one width: a kill leaves the old line or the new one.
                os.pwrite(file, json.dumps([fence, standing]).ljust(60).encode(), 0)
            return int(standing)
        finally:
            os.close(file)
