"""One client (thread or task) that acquires and releases locks until the end of the run."""

from __future__ import annotations

import os
import signal
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from caslock.errors import CaslockError, NotAcquired, StoreError, StoreUnavailable
from caslock.local import clock
from caslock.testing.drive import done
from caslock.verify.apis import AnyLock
from caslock.verify.recorder import Recorder, hold_id
from caslock.verify.workload import Operation, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from caslock.store import AsyncStore, Store
    from caslock.verify.apis import AnyHold, AnyMultiHold, Api
    from caslock.verify.plan import Plan
    from caslock.verify.recorder import Shared

PATIENCE: Final = 60
"""Tenths of a second, without pauses of the process, in which a loss has to be reported."""

RELEASES: Final = 8
"""How often a release without an answer is called again."""

MOST_LOCKS: Final = 10
"""Lock objects that a thread keeps, so that most are used again, and some are new."""


class Client:
    """One client."""

    def __init__(
        self,
        plan: Plan,
        shared: Shared,
        api: Api,
        store: Store | AsyncStore,
        who: str,
        *,
        interrupts: bool = False,
        several: bool = False,
    ) -> None:
        """Begin with no lock; `interrupts`: it may be interrupted; `several`: it takes several keys at once."""
        self._shared, self._api, self._store = shared, api, store
        self._interrupts, self._several = interrupts, several
        self._workload = Workload(plan, who)
        self._recorder = Recorder(shared, who)
        self._locks = dict[tuple[object, ...], AnyLock]()

    async def live(self) -> None:
        """Perform one operation after the other."""
        workload, recorder = self._workload, self._recorder
        while (left := self._shared.until - clock.now()) > 0:
            if self._several:
                operation = workload.several(left)
            else:
                operation = workload.next(forks=self._api.threads, interrupts=self._interrupts)
            recorder.sets_clock(operation.clock_error)
            interrupted = await self._api.interrupt(operation.interrupt, self._perform(operation))
            if interrupted or not self._api.threads:  # a task's holds are its own
                self._locks.clear()
            recorder.drops(interrupted=interrupted)
            await self._api.sleep(workload.rest())

    async def _perform(self, operation: Operation) -> None:
        if operation.force_release:
            await self._force_release(operation.keys[0])
        elif len(operation.keys) > 1:
            await self._take_several(operation)
        else:
            await self._take_one(operation)

    async def _force_release(self, key: str) -> None:
        self._recorder.forces(key)
        try:
            self._recorder.forced(key, await done(self._api.whole(self._store, key).force_release()))
        except StoreError as error:
            self._recorder.forced(key, error)

    def _lock(self, operation: Operation, key: str) -> AnyLock:
        return self._api.lock(
            self._store, key, writes=operation.writes, ttl=operation.ttl, owner=operation.owner,
            auto_renew=operation.auto_renew, max_hold=operation.max_hold, on_lost=self._recorder.on_lost,
            timeout=operation.timeout, poll=operation.poll,
        )  # fmt: skip

    def _kept_lock(self, operation: Operation) -> AnyLock:
        """Make a lock, or take one that has served before."""
        kind = (
            operation.keys, round(operation.ttl), operation.owner, operation.writes, operation.auto_renew,
            operation.max_hold,
        )  # fmt: skip
        if kind not in self._locks:
            if len(self._locks) > MOST_LOCKS:
                self._locks.clear()
            self._locks[kind] = self._lock(operation, operation.keys[0])
        return self._locks[kind]

    async def _take_one(self, operation: Operation) -> None:
        lock, recorder = self._kept_lock(operation), self._recorder
        private = operation.owner is None
        recorder.tries(lock, operation)
        hold: AnyHold | None = None
        try:
            if operation.with_block:
                with suppress(NotAcquired):
                    async with self._api.with_block(lock) as hold:
                        try:
                            recorder.got(hold, operation)
                            await self._inside(operation, lock, [hold])
                        finally:  # whatever ends the block, what comes next is the release
                            recorder.leaves(hold)
                    recorder.left(hold, None)
            else:
                hold = await done(lock.acquire(timeout=operation.timeout))
        except CaslockError as error:
            if hold is None:
                recorder.failed(lock, error, private=private)
            else:
                recorder.leaves(hold)
                await self._release_failed(operation, hold, error)
            return
        if hold is None:
            recorder.failed(lock, None, private=private)
        elif not operation.with_block:
            recorder.got(hold, operation)
            await self._inside(operation, lock, [hold])
            recorder.leaves(hold)
            try:
                await done(hold.release())
            except CaslockError as error:
                await self._release_failed(operation, hold, error)
            else:
                recorder.left(hold, None)

    async def _release_failed(self, operation: Operation, hold: AnyHold, error: CaslockError) -> None:
        self._recorder.left(hold, error)
        if isinstance(error, StoreUnavailable) and operation.retry_release:
            last = await self._release(hold)
            if not isinstance(last, StoreUnavailable):
                self._recorder.left(hold, last)

    async def _release(self, holds: AnyHold | AnyMultiHold) -> CaslockError | None:
        """Call release again and again while there is no answer; give the last error."""
        last: CaslockError | None = None
        for attempt in range(RELEASES):
            await self._api.sleep(0.01 * attempt)
            try:
                await done(holds.release())
            except StoreUnavailable as error:
                last = error
            except CaslockError as error:
                return error
            else:
                return None
        return last

    async def _take_several(self, operation: Operation) -> None:
        recorder = self._recorder
        locks = [self._lock(operation, key) for key in operation.keys]
        multi_lock = self._api.multi_lock(locks, operation.timeout)
        for lock in locks:
            recorder.tries(lock, operation)
        trouble: CaslockError | None = None
        holds: AnyMultiHold | None = None
        try:
            holds = await done(multi_lock.acquire())
        except CaslockError as error:
            trouble = error
        if holds is None:
            for lock in locks:  # after an error one key may be free of us for certain while another is not
                recorder.failed(lock, trouble, private=trouble is None)
            return
        for hold in holds:
            recorder.got(hold, operation)
        await self._inside(operation, None, holds)
        for hold in holds:
            recorder.leaves(hold)
        trouble = None
        try:
            await done(holds.release())
        except CaslockError as error:
            trouble = error
            if isinstance(error, StoreUnavailable):
                await self._release(holds)
        for hold in holds:
            recorder.left(hold, None, unknown=trouble is not None)  # which of them was in trouble is not told

    async def _inside(self, operation: Operation, lock: AnyLock | None, several: Iterable[AnyHold]) -> None:
        """Do what a holder does."""
        recorder, holds = self._recorder, list(several)
        counts = [recorder.read(hold) for hold in holds]
        if operation.fork:
            self._fork(holds[0])
        end = clock.now() + operation.stay
        half = clock.now() + operation.stay / 2
        extend, reenter = operation.extend, operation.reenter
        while clock.now() < end:
            await self._api.sleep(max(0.0, min(0.05, end - clock.now())))
            for hold in holds:
                if not recorder.looks(hold):
                    await self._wait_for_loss(operation, hold)
                    end = 0.0
            if extend and clock.now() > half:
                recorder.extends(holds[0], extend)
                with suppress(CaslockError):
                    await done(holds[0].extend(extend))
                recorder.looks(holds[0])
                extend = None
            if reenter and lock is not None:
                reenter = False
                with suppress(CaslockError):
                    async with self._api.with_block(lock):
                        pass
        for hold, count in zip(holds, counts, strict=True):
            # An owner of several holds must guard the counter by other means.
            if count is not None and operation.owner is None and not (operation.look_first and hold.lost):
                recorder.add(hold, count)

    async def _wait_for_loss(self, operation: Operation, hold: AnyHold) -> None:
        if not operation.wait_for_loss or hold_id(hold) in self._recorder.reported:
            return
        for _ in range(PATIENCE):
            await self._api.sleep(0.1)
            if hold_id(hold) in self._recorder.reported or not hold.lost:
                return
        self._recorder.unreported(hold)

    def _fork(self, hold: AnyHold) -> None:
        """Have a child that finds the hold inert, and frees nothing by releasing it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, 10)
                inert = hold.lost and hold.remaining() == 0
                hold.release()
                self._recorder.child(hold, "inert" if inert else "held")
            except BaseException as error:  # noqa: BLE001 - told to the judge
                self._recorder.child(hold, f"raised {error!r}")
            finally:
                os._exit(0)
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.002)
        if status:
            self._recorder.child(hold, f"ended by {os.waitstatus_to_exitcode(status)}")
