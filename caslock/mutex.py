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

        It looks for signals whenever a function of C returns.  So none does here: an operator takes the mutex.  The
        `__exit__` stays that of the RLock.
        """

        __slots__ = ()
        __pos__ = type(threading.RLock()).acquire

        def __enter__(self) -> bool:
            """Take it."""
            return +self
