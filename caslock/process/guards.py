"""What is done about an exception, an interrupt or a cancellation before it is raised further."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class on_failure:  # noqa: N801 - as `contextlib.suppress`
    """Calls a function if the block raises anything, an interrupt or a cancellation included.

    Connections are closed by it: an answer that is still to come would be read as the answer to the next request.
    """

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._act()
