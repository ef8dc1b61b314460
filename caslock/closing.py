"""How stores and their connections are closed: stores by ``with`` and ``async with``, connections by any failure."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType


class on_failure:  # noqa: N801 - as `contextlib.suppress`
    """Calls a function if the block raises anything, an interrupt and a cancellation included.

    A connection is closed so, because an answer that is still to come would be read as that of the next request.
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
    """Awaits a clean-up if the block raises anything; not if its coroutine is closed, for then nothing can be awaited.

    The clean-up gets what the block has raised, and may raise another error in its place.
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
    """Await `work`, and return what it raises, an interrupt and a cancellation included; None: nothing."""
    try:
        await work
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the caller decides
        return error
    return None


class AsyncClosing:
    """A store for asyncio that ``async with`` closes."""

    __slots__ = ()

    _instead: ClassVar = "send the URL and call caslock.connect(url) in the other process"
    """What to do in place of a copy, or why there can't be one."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the idle connections of the running loop; a later request opens one again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, because connections belong to one object of one process."""
        raise TypeError(f"{type(self).__name__} can't be copied or pickled: {self._instead}")


class Closing(AsyncClosing):
    """A store for blocking code that ``with`` closes, and ``async with`` where it serves asyncio."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Close the idle connections; a later request opens one again."""

    async def aclose(self) -> None:
        """Do what `close` does, in a worker thread."""
        from asyncio import to_thread  # noqa: PLC0415 - whoever awaits this has imported it, nobody else need

        await to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
