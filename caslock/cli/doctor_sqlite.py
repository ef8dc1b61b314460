"""What the place and the settings of an SQLite file mean for locks."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caslock.cli.finding import danger, note, warning
from caslock.cli.which_store import path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding

NETWORK: Final = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse.sshfs", "virtiofs", "vboxsf")
"""How the names of file systems begin that several machines can share."""

_LITTLE: Final = 10_000_000  # bytes


def examine(location: str) -> Iterator[Finding]:
    """Look at the file that a store's location names."""
    path = path_of(location)
    with closing(sqlite3.connect(path)) as connection:
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal != "wal":
        yield warning(f"journal_mode is {journal}", "requests take longer", "Remove the file once no process uses it")
    kind = file_system(path, Path("/proc/self/mounts"))
    if kind.startswith(NETWORK):
        means = "its file locks do not hold: two processes can get one lock"
        yield danger(f"it is on {kind}, a network file system", means, "Use a local disk, or a server such as Redis")
    if os.name == "posix" and path.stat().st_mode & 0o022:
        yield warning("others may write to the file", "they can take locks away", "chmod go-w")
    if shutil.disk_usage(path.parent).free < _LITTLE:
        yield warning("its disk is nearly full", "a full disk refuses locks, and renewals", "Make room")
    yield note("one file serves one host", "processes on other hosts need a server")


def file_system(path: Path, mounts: Path) -> str:
    """Name the kind of the file system of a path; nothing where the system does not tell."""
    try:
        lines = [line.split(" ") for line in mounts.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return ""
    folders = {str(folder) for folder in path.parents}
    at = [(point, kind) for _, point, kind, *_ in lines if point.replace("\\040", " ") in folders]
    return max(reversed(at), key=lambda each: len(each[0]), default=("", ""))[1]
