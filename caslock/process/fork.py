"""Tells a forked child from its parent.

On Linux, the kernel clears a page of memory in every forked child (MADV_WIPEONFORK of madvise(2), Linux 4.14), whoever
forks it, before anything of the child runs.  To look at that page needs no system call.  Elsewhere Python's own hook
clears it, and a fork that does not run Python's hooks is not seen.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from threading import RLock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_WIPEONFORK: Final = 18  # of <linux/mman.h>; `mmap` does not name it


def _memory() -> tuple[mmap.mmap | bytearray, bool]:
    """Return a byte that is 0 in a forked child, and whether the kernel clears it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an older kernel
            page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.madvise(_WIPEONFORK)
            return page, True
    return bytearray(1), False


_known, _wiped = _memory()
_known[0] = 1
_generation = 1
guard: RLock = RLock()
"""Held while a process creates what it has only one of; a forked child gets a new one.

Reentrant: a signal handler may use a lock while its thread holds this.  Write ``fork.guard``: a fork rebinds it.
"""


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register hooks as `os.register_at_fork` does; do nothing where there is no fork (Windows)."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def generation() -> int:
    """Return 1 in the process that has imported caslock, and one more in a child than in its parent."""
    if not _known[0]:
        _begin()
    return _generation


def _begin() -> None:
    global _generation  # noqa: PLW0603 - one for each process
    with guard:
        if not _known[0]:  # another thread may have been first
            _generation += 1
            _known[0] = 1


def _in_child() -> None:
    global guard  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    guard = RLock()
    if not _wiped:
        _known[0] = 0


at_fork(after_in_child=_in_child)


class PerProcess(Generic[T]):
    """What each process has of its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        """Make it for a process that asks for the first time; threads that do so together may make several."""
        self._make = make
        # What a forked child inherits stays in here: it is neither used, nor closed, nor collected as garbage.
        self._processes: dict[int, T] = {}

    def here(self) -> T:
        """Return what this process has."""
        mine = generation()
        found = self._processes.get(mine)
        return self._processes.setdefault(mine, self._make()) if found is None else found

    def found(self) -> T | None:
        """Return what this process has, if it has asked for it."""
        return self._processes.get(generation())
