"""What all stores have besides their verbs: ``with`` and ``async with`` close them, and they can't be copied."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

if TYPE_CHECKING:
    from types import TracebackType

    from caslock.store import Traits


class AsyncClosing:
    """A store for asyncio that ``async with`` closes."""

    __slots__ = ()

    _instead: ClassVar = "send the URL and call caslock.connect(url) in the other process"
    """What to do in place of a copy, or why there can't be one."""

    traits: Traits
    """Where the store keeps its entries, and what it promises about them."""

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Make a store of a URL; see the class."""
        return cls(url)  # type: ignore[call-arg] # a store that takes more, or something else, has its own

    @abstractmethod
    async def aclose(self) -> None:
        """Close the idle connections of the running loop; a later request opens one again."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.traits.location!r})"

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
