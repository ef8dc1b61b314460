"""The law of this file: a forked child is another process than its parent, even where it has the same pid.

The kernel empties a page of memory in each forked child (MADV_WIPEONFORK of madvise(2), Linux 4.14), whoever forks it,
and before anything of it runs: to look there costs no system call.  Where the kernel can't, another pid tells.  Either
way Python's hook does so too, for a pid may come again, and in a container all are 1.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from typing import Final

_WIPEONFORK: Final = 18  # of <linux/mman.h>; `mmap` does not name it


def _memory() -> tuple[mmap.mmap | bytearray, bool]:
    """Give a byte that a child finds to be 0, and whether the kernel sees to that."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an older kernel
            page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.madvise(_WIPEONFORK)
            return page, True
    return bytearray(1), False


_known, _wiped = _memory()
_known[0] = 1
_pid = os.getpid()
_generation = _forking = 1
_guard = threading.RLock()  # a signal handler may use a lock while its thread is in here


def generation() -> int:
    """Count this process and those that it was forked from, up to the one that has imported caslock."""
    if not _known[0] or not (_wiped or _pid == os.getpid()):
        _begin()
    return _generation


def _begin() -> None:
    global _generation, _pid
    with _guard:
        before = _generation
        if not _known[0] or _pid != os.getpid():
            _generation, _pid = before + 1, os.getpid()
            _known[0] = 1


def _before_fork() -> None:
    global _forking  # noqa: PLW0603 - as above
    _forking = _generation


def _in_child() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it at this moment
    _guard = threading.RLock()
    if _generation == _forking:  # else it is known: another hook has used caslock before this one has run
        _known[0] = 0
    generation()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
