"""Stores in memory for tests of code that locks: leases are lost, keys are busy, and requests fail when a test says so.

Both are a `FaultyStore` as well, for tests that plan the fault of a single request.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from caslock.blocking import Hold, Lock
from caslock.errors import CaslockError, NotAcquired, NotHeld
from caslock.local import clock
from caslock.local.hold import Holding
from caslock.local.queue import LocalQueue
from caslock.local.shared import shared_of
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from caslock.testing.faults import AsyncFaultyStore, FaultyStore

if TYPE_CHECKING:
    from caslock.aio import AsyncHold
    from caslock.protocol.attempt import Attempt

_NOTE: Final = "another holder, as the test has planned"
_PATIENCE: Final = 5.0  # seconds for an `on_lost` to return
_AGAIN: Final = 0.05  # seconds until a lease is ended again, that a renewal under way has made longer
_TRIES: Final = 10


class _ForTests:
    """What both have in common: other holders, in the same memory."""

    memory: MemoryStore
    """Where the entries are.  Its own requests never fail."""
    _others: list[Hold]

    def make_busy(self, key: str) -> Hold:
        """Let another owner hold `key`, until its hold is released, which is returned: ``with`` does that.

        Raises `NotAcquired` if the key is held already; to take it away from its holder, use `lose`.
        """
        other = self._acquired(key)
        if other is None:
            raise NotAcquired(f"{key!r} is held already: take it away from its holder by lose(hold)")
        return other

    def lose(self, held: Hold | AsyncHold | str) -> Hold:
        """End the lease of a hold, and let another owner hold the key, as after a pause longer than the lease.

        The holder learns of it in all the usual ways, at once.  A blocking one has learned of it when this returns: its
        ``on_lost`` has been called.  A task that holds an `AsyncLock` learns of it while it next waits: ``on_lost`` is
        called and the ``async with`` block cancelled.  In either case ``hold.lost`` is True when this returns.

        Returns the hold of the other owner, which has the larger fence.  It is held until it is released.

        Args:
            held: a hold, or the key that a lock of this store holds, where the test cannot get at the hold.

        Raises:
            LockLost, NotHeld: the hold has ended, or no lock of this store holds the key.
            TimeoutError: the ``on_lost`` of a blocking holder has not returned within 5 s.
            ValueError, TypeError: it is the hold of another store, or no hold, such as a `MultiHold`.

        """
        attempts = self._holding(held) if isinstance(held, str) else [self._attempt_of(held)]
        key = attempts[0].key
        for _ in range(_TRIES):
            Lock(self.memory, key).force_release()
            other = self._acquired(key)
            if other is not None:
                for attempt in attempts:
                    _end_lease(attempt)
                return other
        raise NotAcquired(f"{key!r} was acquired by others each time that it was taken away")

    def end(self) -> None:
        """Release what the other owners still hold."""
        for other in self._others:
            if other._is_open:
                with suppress(CaslockError):
                    other.release()

    def _attempt_of(self, hold: Hold | AsyncHold) -> Attempt:
        if not isinstance(hold, Holding):
            raise TypeError(f"expected the hold of one key, not {type(hold).__name__}; a MultiHold has them by key")
        if hold._attempt.runtime.home is not self:
            raise ValueError(f"this hold of {hold.key!r} is of another store")
        hold.ensure_held()
        return hold._attempt

    def _holding(self, key: str) -> list[Attempt]:
        inside = shared_of(self).of_key(key, LocalQueue).inside(clock.now())
        attempts = [attempt for attempt in inside if attempt.levels and not attempt.ending]
        if not attempts:
            raise NotHeld(f"no lock of this store holds {key!r}")
        return attempts

    def _acquired(self, key: str) -> Hold | None:
        other = Lock(self.memory, key, note=_NOTE).acquire(timeout=0)
        if other is not None:
            self._others.append(other)
        return other


def _end_lease(attempt: Attempt) -> None:
    """Let a lease end now; whoever waits for its end to report the loss is woken."""
    lease, task = attempt.lease, attempt.caller

    def end() -> None:
        lease.deadline = lease.due = min(lease.deadline, clock.now())
        attempt.runtime.watch(attempt)

    if isinstance(task, asyncio.Task):
        lease.deadline = min(lease.deadline, clock.now())
        task.get_loop().call_soon_threadsafe(end)
        return
    told = threading.Event()
    lease.on_loss.insert(0, told.set)  # they are called from the last to the first
    for _ in range(round(_PATIENCE / _AGAIN)):
        end()
        if told.wait(_AGAIN):
            return
    raise TimeoutError(f"the on_lost callback of lock {attempt.key!r} has not returned within {_PATIENCE:g} s")


class StoreForTests(_ForTests, FaultyStore):
    """A store in memory for `Lock`, with other holders and failures that a test asks for.

    ``with`` releases what the other holders still hold.
    """

    def __init__(self, memory: MemoryStore | None = None) -> None:
        """Use the entries of `memory`; None: a new one."""
        self.memory: MemoryStore = MemoryStore() if memory is None else memory
        """The store below, which has no faults."""
        self._others = []
        super().__init__(self.memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        self.close()


class AsyncStoreForTests(_ForTests, AsyncFaultyStore):
    """The same for `AsyncLock`, with ``async with``.  `make_busy` and `lose` are not awaited."""

    def __init__(self, memory: MemoryStore | None = None) -> None:
        """Use the entries of `memory`; None: a new one."""
        self.memory: MemoryStore = MemoryStore() if memory is None else memory
        """The store below, which has no faults."""
        self._others = []
        super().__init__(AsyncMemoryStore(self.memory))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.end()
        await self.aclose()
