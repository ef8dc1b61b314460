"""The law of this file: many tasks of one event loop that take locks, let go of them, and are cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from caslock import clock
from caslock.aio import AsyncHold, AsyncLock, AsyncMultiHold, AsyncMultiLock
from caslock.errors import CaslockError, NotAcquired, StoreError, StoreUnavailable
from caslock.testing.torture.moves import Move, Moves
from caslock.testing.torture.threads import PATIENCE, RELEASES
from caslock.testing.torture.witness import Scene, Witness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.store import AsyncStore, Store
    from caslock.testing.torture.plan import Plan


class AsyncClient:
    """One task, and those that it cancels."""

    def __init__(self, plan: Plan, scene: Scene, store: AsyncStore | Store, who: str) -> None:
        """Begin with nothing."""
        self._scene, self._store, self._who = scene, store, who
        self._moves = Moves(plan, who)

    async def live(self) -> None:
        """Make one move after the other."""
        while clock.now() < self._scene.until:
            move = self._moves.next(forks=False, interrupts=True)
            witness = Witness(self._scene, self._who)
            witness.shifts(move.shift)
            make = self._break if move.breaks else self._both if move.both else self._one
            task = asyncio.ensure_future(make(move, witness))
            if move.interrupt is not None:
                asyncio.get_running_loop().call_later(move.interrupt, task.cancel)
            with suppress(asyncio.CancelledError):
                await task
            witness.drops(alarmed=task.cancelled())
            del task  # its traceback knows the holds
            await asyncio.sleep(self._moves.rest())

    async def _break(self, move: Move, witness: Witness) -> None:
        key = move.keys[0]
        witness.breaks(key)
        try:
            witness.broke(key, await AsyncLock(self._store, key).break_())
        except StoreError as error:
            witness.broke(key, error)

    async def _one(self, move: Move, witness: Witness) -> None:
        lock = AsyncLock(
            self._store, move.keys[0], ttl=move.ttl, owner=move.owner, auto_renew=move.auto_renew,
            max_hold=move.max_hold, on_lost=witness.hears, timeout=move.timeout, poll=move.poll,
        )  # fmt: skip
        witness.tries(lock, move)
        hold: AsyncHold | None = None
        try:
            if move.body:
                with suppress(NotAcquired):
                    async with lock as hold:
                        try:
                            witness.got(hold, move)
                            await self._inside(move, witness, [hold])
                        finally:  # whatever ends the body, what comes next is the release
                            witness.leaves(hold)
                    witness.left(hold, None)
            else:
                hold = await lock.acquire(timeout=move.timeout)
        except CaslockError as error:
            if hold is None:
                witness.failed(lock, error, private=move.owner is None)
            else:
                witness.leaves(hold)
                witness.left(hold, error)
                if isinstance(error, StoreUnavailable) and move.persist:
                    await self._release(witness, hold)
            return
        if hold is None:
            witness.failed(lock, None, private=move.owner is None)
        elif not move.body:
            witness.got(hold, move)
            await self._inside(move, witness, [hold])
            await self._leave(move, witness, hold)

    async def _both(self, move: Move, witness: Witness) -> None:
        locks = [
            AsyncLock(
                self._store, key, ttl=move.ttl, auto_renew=move.auto_renew, max_hold=move.max_hold,
                on_lost=witness.hears, poll=move.poll,
            )
            for key in move.keys
        ]  # fmt: skip
        multi = AsyncMultiLock(locks, timeout=move.timeout)
        for lock in locks:
            witness.tries(lock, move)
        trouble: CaslockError | None = None
        try:
            holds = await multi.acquire()
        except CaslockError as error:
            holds, trouble = None, error
        if holds is None:
            for lock in locks:
                # One key may be free of us for certain while another is not.
                witness.failed(lock, trouble, private=trouble is None)
            return
        for hold in holds:
            witness.got(hold, move)
        await self._inside(move, witness, holds)
        await self._leave_all(witness, holds)

    async def _leave_all(self, witness: Witness, holds: AsyncMultiHold) -> None:
        for hold in holds:
            witness.leaves(hold)
        try:
            await holds.release()
        except CaslockError:
            for hold in holds:
                witness.left(hold, StopIteration())  # which of them was in trouble is not told
        else:
            for hold in holds:
                witness.left(hold, None)

    async def _inside(self, move: Move, witness: Witness, holds: Iterable[AsyncHold]) -> None:
        """Do what a holder does."""
        holds = list(holds)
        counts = [witness.touch(hold) for hold in holds]
        end = clock.now() + move.stay
        half = clock.now() + move.stay / 2
        extend = move.extend
        while clock.now() < end:
            await asyncio.sleep(max(0.0, min(0.05, end - clock.now())))
            for hold in holds:
                if not witness.looks(hold):
                    await self._wait_to_be_told(move, witness, hold)
                    end = 0.0
            if extend and clock.now() > half:
                witness.extends(holds[0], extend)
                with suppress(CaslockError):
                    await holds[0].extend(extend)
                witness.looks(holds[0])
                extend = None
        for hold, count in zip(holds, counts, strict=True):
            if count is None or move.owner is not None or (move.careful and hold.lost):
                continue
            witness.add(hold, count)

    async def _wait_to_be_told(self, move: Move, witness: Witness, hold: AsyncHold) -> None:
        if not move.patient or hold.claim.hold in witness.told:
            return
        for _ in range(PATIENCE):
            await asyncio.sleep(0.1)
            if hold.claim.hold in witness.told or not hold.lost:
                return
        witness.untold(hold)

    async def _leave(self, move: Move, witness: Witness, hold: AsyncHold) -> None:
        witness.leaves(hold)
        try:
            await hold.release()
        except CaslockError as error:
            witness.left(hold, error)
            if isinstance(error, StoreUnavailable) and move.persist:
                await self._release(witness, hold)
        else:
            witness.left(hold, None)

    async def _release(self, witness: Witness, hold: AsyncHold) -> None:
        """Release again, after no answer."""
        for attempt in range(RELEASES):
            await asyncio.sleep(0.01 * attempt)
            try:
                await hold.release()
            except StoreUnavailable:
                continue
            except CaslockError as error:
                witness.left(hold, error)
            else:
                witness.left(hold, None)
            return
