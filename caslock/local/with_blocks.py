"""The ``with`` blocks of one lock that have been entered and not left.

Leaving a block gives back what entering it took, whatever thread or task it ends in: a generator that is closed
elsewhere, or a fixture, ends its block in another task than it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from caslock.errors import NotHeld

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class WithBlocks(list[tuple[object, T]]):
    """The thread or task that has entered each open block, and what the block holds."""

    def newest(self, me: Callable[[], object]) -> T:
        """What the newest block of `me` holds; if it has none, the newest of all; raises `NotHeld` if there is none."""
        blocks = tuple(self)
        if len(blocks) == 1:
            return blocks[0][1]
        if not blocks:
            message = "no with block of this lock is open"
            raise NotHeld(message)
        this = me()
        mine = [held for by, held in blocks if by is this] or [held for _, held in blocks]
        return mine[-1]

    def has(self, held: T) -> bool:
        """Whether a block has not been left."""
        return any(block[1] is held for block in tuple(self))

    def leave(self, held: T) -> None:
        """Forget a block."""
        for block in tuple(self):
            if block[1] is held:
                self.remove(block)  # in one step, because another thread may be entering its own
