"""Files, each with its fence in a file next to it.

``room.json`` has ``room.json.fence`` with the largest fence, in decimal digits, and ``room.json.lock``, which is empty,
and locked by `flock` during a write.  Never delete these two.  Needs a local file system, and Linux or macOS.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caslock.errors import StaleFence
from caslock.fencing.fence import checked

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAUSE: Final = 0.01  # seconds between two looks at a lock that another writer has


def write_file(path: str | os.PathLike[str], content: bytes, *, fence: int, timeout: float = 5.0) -> None:
    """Replace the content of a file, or create it, unless it was written with a larger fence.

    Readers see the old or the new content, never a part.  Once this returns, the content is on the disk.  A crash in
    the middle may leave the fence written and the content as it was; then write again.

    Args:
        path: the file; its directory must exist.  A symbolic link stands for the file that it leads to.
        content: the whole new content.
        fence: `Hold.fence` of the writer.
        timeout: seconds to wait while others write to this file.

    Raises:
        StaleFence: the file has a larger fence; nothing was written.
        TimeoutError: another writer was at it for `timeout` seconds.
        OSError: as the operating system raises it.
        NotImplementedError: there is no `flock`, as on Windows.
        ValueError, TypeError: `fence` is not a positive int, `content` is not bytes, `path` is a directory or another
            kind of special file, or the fence file has something else in it.

    """
    checked(fence)
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(f"content must be bytes, not {type(content).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(f"{target} is not a regular file")
    beside = _beside(target, ".fence")
    with _locked(_beside(target, ".lock"), timeout):
        seen = _fence_in(beside)
        if fence < seen:
            raise StaleFence(str(target), fence, seen)
        if fence > seen:  # first: should we crash now, an earlier holder is refused already
            _replace(beside, b"%d\n" % fence)
        _replace(target, content)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


def _fence_in(path: Path) -> int:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return 0
    if not text.strip().isdigit():
        raise ValueError(f"{path} must contain a fence, and nothing else")
    return int(text)


def _replace(path: Path, content: bytes) -> None:
    new = _beside(path, ".new")  # the same for all, because they take turns: what a crash has left is overwritten
    with new.open("wb") as file:
        if path.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def _locked(path: Path, timeout: float) -> Iterator[None]:
    try:
        import fcntl  # noqa: PLC0415 - Windows has none
    except ModuleNotFoundError:
        raise NotImplementedError("write_file needs flock, which this system does not have") from None
    with path.open("ab") as file:
        ends = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= ends:
                    raise TimeoutError(f"{path}: another writer has had the file for {timeout:g} s") from None
                time.sleep(_PAUSE)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has a copy of the descriptor
