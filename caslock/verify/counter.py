"""A resource that is guarded by fences, as a database is by ``WHERE fence <= ?``: a counter in a locked file.

Its users read the count and write it back, and rely on the lock under test not to lose an update.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class StaleFence(Exception):  # noqa: N818 - named by the outcome
    """A newer holder has touched the resource already."""


class FencedCounter:
    """One counter in a file."""

    def __init__(self, folder: Path, key: str) -> None:
        """Name the file after the last part of `key`."""
        self._path = folder / f"{key.rpartition(':')[2]}.counter"

    def read(self, fence: int) -> int:
        """Tell the count; from here on no smaller fence is taken.  Raises `StaleFence`."""
        return self._touch(fence, None)

    def write(self, fence: int, count: int) -> None:
        """Set the count.  Raises `StaleFence`."""
        self._touch(fence, count)

    @property
    def count(self) -> int:
        """The count in the end."""
        try:
            return _parse(self._path.read_bytes())[1]
        except FileNotFoundError:
            return 0

    def _touch(self, fence: int, count: int | None) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            last, current = _parse(os.read(file, 100))
            if fence < last:
                raise StaleFence
            if fence > last or count is not None:
                current = current if count is None else count
                # One write of one width: a kill leaves the old line or the new one.
                os.pwrite(file, json.dumps([fence, current]).ljust(60).encode(), 0)
            return current
        finally:
            os.close(file)


def _parse(line: bytes) -> tuple[int, int]:
    """The last fence and the count.  The file is empty when its creator was killed before it wrote."""
    fence, count = json.loads(line or b"[0, 0]")
    return int(fence), int(count)
