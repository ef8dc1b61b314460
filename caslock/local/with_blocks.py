"""The ``with`` blocks of one lock that have been entered and not left.

Leaving a block gives back what entering it took, whatever thread or task it ends in: a generator that is closed
elsewhere, or a fixture, ends its block in another task than it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from caslock.errors import LockLost, NotHeld, with_notes

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class WithBlocks(dict[T, object]):
    """What each open block holds, and the thread or task that has entered it."""

    def newest(self, me: Callable[[], object]) -> T:
        """What the newest block of `me` holds; if it has none, the newest of all; raises `NotHeld` if there is none."""
        blocks = tuple(self.items())
        if len(blocks) == 1:
            return blocks[0][0]
        if not blocks:
            message = "no with block of this lock is open"
            raise NotHeld(message)
        this = me()
        mine = [held for held, by in blocks if by is this] or [held for held, _ in blocks]
        return mine[-1]


def add_release_error(error: BaseException, trouble: BaseException) -> None:
    """Add what a release has raised to the error of its block, as a note, unless both are the same loss."""
    text = with_notes(trouble)
    if not (isinstance(error, LockLost) and (str(error), error.location) == (text, getattr(trouble, "location", None))):
        error.add_note(text)
