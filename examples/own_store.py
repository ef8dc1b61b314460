"""A store of one's own in 40 lines, put to the test by the proof kit.

A store is three verbs on one versioned key, each of which answers with the entry that stands after it: see
`caslock.Store`.  An object with them is all that a lock needs.  Where pytest is installed, this file runs the whole
contract on its store, and its exit status is that of pytest.
"""

# ruff: noqa: D102, D107 - what the methods of a store do stands at `caslock.Store`

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import caslock
from caslock import ABSENT, Entry, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST = ""  # no key is empty: here stands the last version


class FileStore:
    """All entries in one JSON file, for the processes of one machine, and for a few hundred locks at most.

    Use a new file after a restart of the machine, which starts its clock again.  Not for Windows: it has no flock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).resolve()
        self.traits = caslock.Traits(place=f"file://{self._path}")

    def get(self, key: str) -> Entry | None:
        with self._rows() as rows:
            return standing(rows, key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        with self._rows() as rows:
            if version == (rows[key][0] if key in rows else ABSENT):
                rows[LAST] = (rows[LAST][0] + 1, math.inf, "")
                rows[key] = (rows[LAST][0], time.monotonic() + ttl, value.hex())
            return standing(rows, key)

    def invalidate(self, key: str, version: int) -> Entry | None:
        with self._rows() as rows:
            if key in rows and rows[key][0] == version:
                del rows[key]
            return standing(rows, key)

    @contextmanager
    def _rows(self) -> Iterator[dict[str, tuple[int, float, str]]]:
        try:
            with self._path.with_suffix(".lock").open("wb") as turn:  # one opening at a time, of threads and processes
                fcntl.flock(turn, fcntl.LOCK_EX)
                try:
                    old = json.loads(self._path.read_bytes()) if self._path.exists() else {}
                    rows = {key: row for key, row in old.items() if row[1] > time.monotonic()}
                    rows.setdefault(LAST, (time.time_ns() // 1000, math.inf, ""))  # grows, should the file be deleted
                    yield rows
                    if rows != old:
                        new = self._path.with_suffix(".new")
                        new.write_text(json.dumps(rows))
                        new.replace(self._path)  # all or nothing, even if we are killed now
                finally:
                    fcntl.flock(turn, fcntl.LOCK_UN)  # closing is not enough: a forked child may have it open too
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error
        except ValueError as error:
            raise StoreError(f"{self._path} is damaged: {error}") from error


def standing(rows: dict[str, tuple[int, float, str]], key: str) -> Entry | None:
    """Give the entry that stands under the key."""
    return Entry(bytes.fromhex(rows[key][2]), rows[key][0]) if key in rows else None


if find_spec("pytest"):
    import pytest

    from caslock.testing import StoreContract

    class TestFileStore(StoreContract):
        """The whole contract of a store."""

        @pytest.fixture
        def store(self, tmp_path: Path) -> FileStore:
            """Give a new store."""
            return FileStore(tmp_path / "locks.json")

        @pytest.fixture
        def another_store(self, tmp_path: Path) -> FileStore:
            """Give another client of the same file."""
            return FileStore(tmp_path / "locks.json")


def main() -> int:
    """Lock something, then run the contract."""
    with tempfile.TemporaryDirectory(prefix="caslock-own-store-") as folder:
        path = Path(folder, "locks.json")
        mine, yours = (caslock.Lock(FileStore(path), "room:42", timeout=0) for _ in range(2))
        with mine as hold:
            print(f"I hold room:42, fence {hold.fence}. Do you get it? {'Yes' if yours.acquire() else 'No'}.")
        with yours as hold:
            print(f"Now you hold it, fence {hold.fence}.")
    if not find_spec("pytest"):
        print("Install pytest, and this file also puts the store to the test.")
        return 0
    alone = ["-c", os.devnull, "--rootdir", str(Path(__file__).parent), "-p", "no:cacheprovider"]  # no settings around
    return pytest.main([*alone, "-q", __file__, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
