"""What a coroutine is stopped at, and when it can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from caslock.protocol.transfer import Ticket
    from caslock.store import Entry
    from tests.proof.simulator.runtime import Event, Mutex
    from tests.proof.simulator.store import Request, Waiter

START: Final = 1e6
"""Clocks begin here, so that a moment is never taken for a number of seconds."""

NEVER: Final = float("inf")


class Cancelled(BaseException):
    """Takes the place of `asyncio.CancelledError` and `KeyboardInterrupt`."""


class Wait:
    """What a coroutine is stopped at."""

    __slots__ = ("until",)

    def __init__(self, until: float = NEVER) -> None:
        """Wait at most until a moment of the client's own clock."""
        self.until = until

    def __await__(self) -> Generator[Wait, object, object]:
        return (yield self)

    def ready(self, now: float) -> bool:
        return self.until <= now


class _Running(Wait):
    def ready(self, now: float) -> bool:
        del now
        return False


RUNS: Final = _Running()
"""What a coroutine is stopped at while it runs."""


class Asking(Wait):
    """A request is on its way."""

    __slots__ = ("request",)

    def __init__(self, request: Request) -> None:
        self.until = NEVER
        self.request = request

    def ready(self, now: float) -> bool:
        del now
        return True


class Answered(Asking):
    """An answer is on its way."""

    __slots__ = ("answer",)

    def __init__(self, asking: Asking, answer: Sequence[Entry | None] | None) -> None:
        super().__init__(asking.request)
        self.answer = answer


class Lined(Asking):
    """Waits in line at the store."""

    __slots__ = ("waiter",)

    def __init__(self, asking: Asking, waiter: Waiter) -> None:
        super().__init__(asking.request)
        self.until = waiter.until
        self.waiter = waiter

    def ready(self, now: float) -> bool:
        return self.waiter.woken or self.until <= now


class Listening(Wait):
    __slots__ = ("event",)

    def __init__(self, event: Event, until: float) -> None:
        self.until = until
        self.event = event

    def ready(self, now: float) -> bool:
        return self.event.flag or self.until <= now


class Posted(Wait):
    __slots__ = ("keys", "tickets")

    def __init__(self, tickets: list[Ticket], keys: Sequence[str], until: float) -> None:
        self.until = until
        self.tickets = tickets
        self.keys = keys

    @property
    def newest(self) -> Ticket | None:
        """The newest ticket of these keys, used or not."""
        return next((ticket for ticket in reversed(self.tickets) if ticket.key in self.keys), None)

    def ready(self, now: float) -> bool:
        return self.newest is not None or self.until <= now


class Blocked(Wait):
    __slots__ = ("mutex",)

    def __init__(self, mutex: Mutex) -> None:
        self.until = NEVER
        self.mutex = mutex

    def ready(self, now: float) -> bool:
        del now
        return not self.mutex.taken
