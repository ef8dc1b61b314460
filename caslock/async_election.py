"""Elections for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.aio import AsyncHold, AsyncLock
from caslock.local.candidates import Candidates, refuse_nested
from caslock.local.settings import Own
from caslock.local.tasks import this_task
from caslock.store import AsyncStore, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager

    from caslock.protocol.record import Record


class _Candidate(AsyncLock):
    """A lock that does not re-enter."""

    async def __aenter__(self) -> AsyncHold:
        refuse_nested(self.key, this_task(), [(block.held, by) for block, by in tuple(self._blocks.items())])
        return await super().__aenter__()


class AsyncElection(Candidates[AsyncStore | Store, AsyncHold, _Candidate]):
    """One leader among all that campaign for a key, for asyncio; see `Election`.  Each task is a candidate."""

    _lock_type = _Candidate

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
