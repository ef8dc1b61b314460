"""Elections for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.aio import AsyncHold, AsyncLock
from caslock.local.candidates import Candidates
from caslock.local.settings import Own
from caslock.store import AsyncStore, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager

    from caslock.protocol.record import Record


class AsyncElection(Candidates[AsyncStore | Store, AsyncHold, AsyncLock]):
    """One leader among all that campaign for a key, for asyncio; see `Election`.  Each task is a candidate."""

    _lock_type = AsyncLock

    def lead(self, timeout: float | Own | None = Own.TIMEOUT) -> AbstractAsyncContextManager[AsyncHold, None]:
        """Campaign, and lead in the block: ``async with election.lead() as term``; see `Election.lead`.

        If the term is lost, the block is cancelled (as by `asyncio.timeout`) and raises `LockLost`.
        """
        return self._lock._with_timeout(timeout)

    async def leader(self) -> Record | None:
        """Who leads now; see `Election.leader`."""
        return await self._leader()

    async def watch(self) -> AsyncGenerator[Record | None, None]:
        """Iterate over the leaders; see `Election.watch`.  To end a watcher that waits, cancel its task."""
        changes = self._changes()
        while change := await changes.next():
            yield change.leader
