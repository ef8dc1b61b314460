"""A reentrant mutex for `with` blocks that an interrupt never leaves locked."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info[:2] != (3, 14):
    Mutex = threading.RLock
else:

    class Mutex(type(threading.RLock())):
        """Python 3.14 can raise an interrupt between the `__enter__` of an RLock and the block (python/cpython#148874).

        Not so after an `__enter__` that is written in Python.  The `__exit__` stays that of the RLock: before its own
        code runs, no interrupt is raised.
        """

        __slots__ = ()

        def __enter__(self) -> bool:
            """Take it."""
            taken = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > taken:
                    self.release()
                raise
