"""The law of this file: leaving a `with` body gives back what entering it took, in whatever thread or task it ends.

A generator that is closed elsewhere, or a fixture, ends its body in another task than it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Bodies(Generic[T]):
    """The bodies of one lock that have been entered and not left."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: list[tuple[object, T]] = []

    def enter(self, me: object, held: T) -> None:
        """Begin a body in the thread or task `me`."""
        self._open.append((me, held))

    def newest(self, me: Callable[[], object]) -> T | None:
        """What the newest body of `me` holds; that of somebody else where `me` has begun none."""
        bodies = tuple(self._open)
        if len(bodies) == 1:
            return bodies[0][1]
        this = me()
        mine = [held for by, held in bodies if by is this] or [held for _, held in bodies]
        return mine[-1] if mine else None

    def has(self, held: T) -> bool:
        """Whether a body has not been left."""
        return any(body[1] is held for body in tuple(self._open))

    def left(self, held: T) -> None:
        """Forget a body."""
        for body in tuple(self._open):
            if body[1] is held:
                self._open.remove(body)  # in one step, for another thread may be entering its own
