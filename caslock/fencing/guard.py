"""A guard in memory, for tests, and for what lives in the memory of one process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from caslock.errors import StaleFence
from caslock.fencing.fence import checked

if TYPE_CHECKING:
    from collections.abc import Iterator


class FenceGuard:
    """Remembers the largest fence of each resource, and refuses smaller ones.

    Thread-safe.  It forgets everything with its process, and keeps one number for each name that it was ever given.
    """

    def __init__(self) -> None:
        """Begin with no resource seen."""
        self._mutex = threading.Lock()
        self._seen: dict[str, int] = {}

    @contextmanager
    def admit(self, resource: str, fence: int) -> Iterator[None]:
        """Let the block write to `resource`, and let no other block of this guard run meanwhile.

        The check and the write have to be one step: between them, a later holder could write.  So write inside the
        block.  Do not await there, and do not enter a block of the same guard: the thread would wait for itself.

        Args:
            resource: a name for what is written; it is not looked up anywhere.
            fence: `Hold.fence` of the writer.

        Raises:
            StaleFence: a larger fence was seen for `resource`; the block does not run.
            ValueError, TypeError: `fence` is not a positive int.

        """
        checked(fence)
        with self._mutex:
            seen = self._seen.get(resource, 0)
            if fence < seen:
                raise StaleFence(resource, fence, seen)
            self._seen[resource] = fence
            yield

    def seen(self, resource: str) -> int:
        """Return the largest fence that was admitted for `resource`; 0: none."""
        return self._seen.get(resource, 0)
