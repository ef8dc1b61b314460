"""What a scene knows about a lock library: only what its users can call."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from benchmarks.children import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

T = TypeVar("T")


class Way(NamedTuple):
    """The address that a client uses: that of the server, or of a proxy."""

    host: str
    port: int
    folder: Path


class Grip(NamedTuple):
    """One lock object of a client."""

    acquire: Callable[[float], object]  # seconds to wait, 0: one try; held if what it returns is true
    release: Callable[[], object]
    body: AbstractContextManager[object] | None = None  # what a `with` statement takes
    mine: Callable[[], bool] | None = None  # what the library offers to ask "do I still hold it?"
    told: Callable[[], bool] | None = None  # whether it has reported a loss without being asked
    fence: Callable[[], int] | None = None  # the fencing number of what is held


class AsyncGrip(NamedTuple):
    """The same for asyncio."""

    acquire: Callable[[float], Awaitable[object]]
    release: Callable[[], Awaitable[object]]
    mine: Callable[[], Awaitable[bool]] | None = None
    told: Callable[[], bool] | None = None
    fence: Callable[[], int] | None = None


Make: TypeAlias = "Callable[[str], Grip]"
AsyncMake: TypeAlias = "Callable[[str], AsyncGrip]"


@dataclass(frozen=True)
class Subject:
    """A lock library at one place, used with the settings its README shows."""

    name: str
    place: str
    open: Callable[[Way, float], Make]
    """Given the address and the lease in seconds: opens a client, and gives what makes a lock on a key."""
    not_yours: tuple[str, ...] = ()
    """The names of its errors that say "this lock is not, or no longer, yours"."""
    unshared: str = ""
    """Why two threads may not share one lock object, if the client's manual says so."""

    @property
    def label(self) -> str:
        """Its row in the table."""
        return f"{self.name}, {self.place}"


@dataclass(frozen=True)
class AsyncSubject:
    """The same for asyncio; `open` and what it gives are called in the running loop."""

    name: str
    place: str
    open: Callable[[Way, float], AsyncMake]
    not_yours: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its row in the table."""
        return f"{self.name}, {self.place}, asyncio"


class Report(NamedTuple):
    """What one call told the client."""

    result: bool | None  # None: it raised
    error: str  # the name of its class
    words: str
    seconds: float

    @property
    def raised(self) -> bool:
        """Whether it ended in an error."""
        return self.result is None

    def __str__(self) -> str:
        """Give the text for a footnote."""
        what = f"raised {self.words}" if self.raised else f"returned {self.words}"
        return f"{what} after {self.seconds:.1f} s"


def attempt(call: Callable[[], object]) -> Report:
    """Make a call, and record what the caller is told."""
    start = time.monotonic()
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 - the libraries raise what they like, and that is the finding
        took, name, words = time.monotonic() - start, type(error).__name__, one_line(error)[:100]
        # pottery's error for "not yours" also carries the answers that it did not get; then it does not say that.
        carried = ", ".join(sorted({type(inner).__name__ for inner in getattr(error, "redis_errors", None) or ()}))
        return (
            Report(None, f"{name} with {carried}", f"{name} with {carried}", took)
            if carried
            else Report(None, name, words, took)
        )
    words = repr(value) if value is None or isinstance(value, bool) else type(value).__name__
    return Report(bool(value), "", words, time.monotonic() - start)


class Loop:
    """An event loop in a thread, so that a scene is the same code for blocking and for asyncio libraries."""

    def __init__(self) -> None:
        """Begin to run."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Awaitable[T]) -> T:
        """Run it there in a task of its own, and wait for the result."""

        async def whole() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()

    def bridge(self, subject: AsyncSubject, way: Way, lease: float) -> Make:
        """Make the locks of a subject usable by blocking code."""

        async def opened() -> AsyncMake:  # it must run in the loop
            return subject.open(way, lease)

        opens = self.run(opened())

        def make(key: str) -> Grip:
            async def made() -> AsyncGrip:  # as above
                return opens(key)

            grip = self.run(made())
            mine = grip.mine
            return Grip(
                acquire=lambda wait: self.run(grip.acquire(wait)),
                release=lambda: self.run(grip.release()),
                mine=None if mine is None else lambda: self.run(mine()),
                told=grip.told,
                fence=grip.fence,
            )

        return make
