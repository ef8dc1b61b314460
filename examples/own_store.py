"""A store of your own in 40 lines, tested by the contract of `caslock.testing`.

A store has three methods, each of which returns the entry that is under the key after the call; see `caslock.Store`.  A
lock needs nothing else.  If pytest is installed, this file runs the whole contract on its store, and its exit status is
that of pytest.
"""

# ruff: noqa: D102 - the methods are documented at `caslock.Store`

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

LAST = ""  # the row of the last version; no key is empty


class FileStore:
    """All entries in one JSON file, for the processes of one machine, and for a few hundred locks at most.

    Use a new file after a restart of the machine, which starts its clock again.  Not for Windows: it has no flock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).resolve()
        self.traits = caslock.Traits(location=f"file://{self._path}")

    def get(self, key: str) -> Entry | None:
        with self._rows() as rows:
            return observed(rows, key)

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        with self._rows() as rows:
            if version == (rows[key][0] if key in rows else ABSENT):
                rows[LAST] = (rows[LAST][0] + 1, math.inf, "")
                rows[key] = (rows[LAST][0], time.monotonic() + ttl, value.hex())
            return observed(rows, key)

    def invalidate(self, key: str, version: int) -> Entry | None:
        with self._rows() as rows:
            if key in rows and rows[key][0] == version:
                del rows[key]
            return observed(rows, key)

    @contextmanager
    def _rows(self) -> Iterator[dict[str, tuple[int, float, str]]]:
        try:
            with self._path.with_suffix(".lock").open("wb") as turn:  # one thread or process at a time
                fcntl.flock(turn, fcntl.LOCK_EX)
                try:
                    old = json.loads(self._path.read_bytes()) if self._path.exists() else {}
                    rows = {key: row for key, row in old.items() if row[1] > time.monotonic()}
                    rows.setdefault(LAST, (time.time_ns() // 1000, math.inf, ""))  # grows even if the file is deleted
                    yield rows
                    if rows != old:
                        new = self._path.with_suffix(".new")
                        new.write_text(json.dumps(rows))
                        new.replace(self._path)  # all or nothing, even if the process is killed
                finally:
                    fcntl.flock(turn, fcntl.LOCK_UN)  # closing is not enough: a forked child may have the file open
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error
        except ValueError as error:
            raise StoreError(f"{self._path} is damaged: {error}") from error


def observed(rows: dict[str, tuple[int, float, str]], key: str) -> Entry | None:
    """Return the entry under the key."""
    return Entry(bytes.fromhex(rows[key][2]), rows[key][0]) if key in rows else None


if find_spec("pytest"):
    import pytest

    from caslock.testing import StoreContract

    class TestFileStore(StoreContract):
        """The contract of a store."""

        @pytest.fixture
        def store(self, tmp_path: Path) -> FileStore:
            """Return a new store."""
            return FileStore(tmp_path / "locks.json")

        @pytest.fixture
        def another_store(self, tmp_path: Path) -> FileStore:
            """Return another store on the same file."""
            return FileStore(tmp_path / "locks.json")

        @pytest.fixture
        def caslock_server(self) -> None:
            """Say that there is no server that could fail; otherwise return a `caslock.testing.StoreServer`."""


def main() -> int:
    """Use a lock, then run the contract."""
    with tempfile.TemporaryDirectory(prefix="caslock-own-store-") as folder:
        path = Path(folder, "locks.json")
        mine, yours = (caslock.Lock(FileStore(path), "room:42", timeout=0) for _ in range(2))
        with mine as hold:
            print(f"I hold room:42, fence {hold.fence}. Can you acquire it? {'Yes' if yours.acquire() else 'No'}.")
        with yours as hold:
            print(f"Now you hold it, fence {hold.fence}.")
    if not find_spec("pytest"):
        print("Install pytest to run the contract of the store as well.")
        return 0
    alone = ["-c", os.devnull, "--rootdir", str(Path(__file__).parent), "-p", "no:cacheprovider"]
    return pytest.main([*alone, "-q", __file__, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
