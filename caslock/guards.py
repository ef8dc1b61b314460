"""What is done about an exception, an interrupt or a cancellation before it is raised further."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


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


class undoing:  # noqa: N801 - as above
    """Awaits a clean-up if the block raises anything, unless its coroutine is closed: then nothing can be awaited.

    The clean-up is given the exception, and may raise another one in its place.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[BaseException], Awaitable[object]]) -> None:
        self._undo = undo

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            await self._undo(error)


async def failure_of(work: Awaitable[object]) -> BaseException | None:
    """Await `work`, and return what it raises, an interrupt or a cancellation included; None: nothing."""
    try:
        await work
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the caller decides
        return error
    return None
