"""All that the protocol needs from outside: store, clock, sleep, mutex, event, renewals and runs in the background.

There is one for each store and API (`caslock.local.threads`, `caslock.local.tasks`), and the simulator has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from caslock.protocol.attempt import Attempt
    from caslock.protocol.sightings import Sightings
    from caslock.store import AsyncBatchingStore, AsyncQueueingStore, AsyncStore, AsyncWatchingStore

T = TypeVar("T")


class Event(Protocol):
    """One thread or task waits for it; any other can wake it."""

    async def wait(self, timeout: float | None) -> None:
        """Return when it has been set since it was last waited for, or after `timeout` seconds (None: never)."""

    def set(self) -> None:
        """Wake the waiter; any thread may do so, any number of times."""


class Mutex(Protocol):
    """Lets one renewal, extension or release of an attempt go on at a time."""

    def acquire(self, *, blocking: Literal[False]) -> bool:
        """Take it, if nobody has it."""

    def release(self) -> None:
        """Give it back."""

    async def __aenter__(self) -> object:
        """Wait until nobody has it, and take it."""

    async def __aexit__(self, *error: object) -> None:
        """Give it back."""


class Runtime(Protocol):
    """What runs the protocol for one store."""

    @property
    def store(self) -> AsyncStore:
        """The store; its verbs never suspend where the API blocks."""

    @property
    def home(self) -> object:
        """The store object that was given."""

    @property
    def shared(self) -> object:
        """What this process shares between all runtimes for the same store object."""

    @property
    def queueing(self) -> AsyncQueueingStore | None:
        """The same store, if waiters can queue at it."""

    @property
    def watching(self) -> AsyncWatchingStore | None:
        """The same store, if it can wait for an entry to change."""

    @property
    def batching(self) -> AsyncBatchingStore | None:
        """The same store, if it can apply several requests as one."""

    @property
    def renewing(self) -> Runtime:
        """What renews in the background: it never waits for requests of acquires and releases."""

    @property
    def quarantines(self) -> Sightings:
        """The quarantines that this process has met."""

    @property
    def patience(self) -> float:
        """Seconds in which a request may begin if it has to be over within two request timeouts."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def in_background(self, act: Callable[[float], Coroutine[object, object, object]], seconds: float) -> None:
        """Run a clean-up in the background until the store has answered it, for at most `seconds`: see `CleanUp`."""

    def start(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run what `work` returns now, beside the caller."""

    def per_loop(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that gives each event loop what `make` has made for it; all threads share one."""

    def me(self) -> object:
        """Identity of the thread or task that runs."""

    def mutex(self) -> Mutex:
        """Make a mutex for one attempt."""

    def event(self) -> Event:
        """Make an event for an attempt that waits in a local queue."""

    def ended(self, attempt: Attempt) -> bool:
        """Whether what ran and renewed the attempt has ended (an event loop that was closed)."""

    def watch(self, attempt: Attempt) -> None:
        """Renew the lease when it is due, and report its end, until the attempt is `ending`."""

    def report_loss(self, attempt: Attempt) -> None:
        """Report the loss of the attempt, once, in the background."""
