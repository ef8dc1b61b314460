"""The law of this file: one thread that takes locks and lets go of them, until its time is over."""

from __future__ import annotations

import os
import signal
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from caslock import clock
from caslock.blocking import Hold, Lock, MultiHold, MultiLock
from caslock.errors import CaslockError, NotAcquired, StoreError, StoreUnavailable
from caslock.testing.torture.moves import Move, Moves
from caslock.testing.torture.witness import Scene, Witness

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from caslock.store import Store
    from caslock.testing.torture.plan import Plan

PATIENCE: Final = 60
"""Tenths of a second, without pauses of the process, in which a loss is to be told."""

RELEASES: Final = 8


class Alarm(BaseException):
    """What a signal handler raises, at a random moment."""


class Client:
    """One thread."""

    def __init__(self, plan: Plan, scene: Scene, store: Store, who: str, *, main: bool) -> None:
        """Begin with no lock."""
        self._scene, self._store, self._main = scene, store, main
        self._moves = Moves(plan, who)
        self._witness = Witness(scene, who)
        self._armed = False
        self._locks = dict[tuple[object, ...], Lock]()

    def live(self) -> None:
        """Make one move after the other."""
        if self._main:
            signal.signal(signal.SIGALRM, self._ring)
        while clock.now() < self._scene.until:
            move = self._moves.next(forks=True, interrupts=self._main)
            self._witness.shifts(move.shift)
            try:
                self._make(move)
            except Alarm:  # whatever was in our hands has fallen
                self._armed = False
                self._locks.clear()
                self._witness.drops()
            time.sleep(self._moves.rest())

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            raise Alarm

    def _make(self, move: Move) -> None:
        make = self._break if move.breaks else self._both if move.both else self._one
        if move.interrupt is None:
            make(move)
            return
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, move.interrupt + 1e-4)
            make(move)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _lock(self, move: Move) -> Lock:
        """Make a lock, or take one that has served before."""
        kind = (move.keys, round(move.ttl), move.owner, move.auto_renew, move.max_hold)
        if kind not in self._locks:
            if len(self._locks) > 10:  # noqa: PLR2004 - so that most are used again, and some are new
                self._locks.clear()
            self._locks[kind] = Lock(
                self._store, move.keys[0], ttl=move.ttl, owner=move.owner, auto_renew=move.auto_renew,
                max_hold=move.max_hold, on_lost=self._witness.hears, timeout=move.timeout, poll=move.poll,
            )  # fmt: skip
        return self._locks[kind]

    def _break(self, move: Move) -> None:
        key = move.keys[0]
        self._witness.breaks(key)
        try:
            self._witness.broke(key, Lock(self._store, key).break_())
        except StoreError as error:
            self._witness.broke(key, error)

    def _one(self, move: Move) -> None:
        lock, witness = self._lock(move), self._witness
        witness.tries(lock, move)
        hold: Hold | None = None
        try:
            if move.body:
                with suppress(NotAcquired):
                    with lock as hold:
                        try:
                            witness.got(hold, move)
                            self._inside(move, lock, [hold])
                        finally:  # whatever ends the body, what comes next is the release
                            witness.leaves(hold)
                    witness.left(hold, None)
            else:
                hold = lock.acquire(timeout=move.timeout)
        except CaslockError as error:
            if hold is None:
                witness.failed(lock, error, private=move.owner is None)
            else:
                witness.leaves(hold)
                witness.left(hold, error)
                if isinstance(error, StoreUnavailable) and move.persist:
                    self._release(hold)
            return
        if hold is None:
            witness.failed(lock, None, private=move.owner is None)
        elif not move.body:
            witness.got(hold, move)
            self._inside(move, lock, [hold])
            self._leave(move, hold)

    def _both(self, move: Move) -> None:
        witness = self._witness
        locks = [
            Lock(
                self._store, key, ttl=move.ttl, auto_renew=move.auto_renew, max_hold=move.max_hold,
                on_lost=witness.hears, poll=move.poll,
            )
            for key in move.keys
        ]  # fmt: skip
        multi = MultiLock(locks, timeout=move.timeout)
        for lock in locks:
            witness.tries(lock, move)
        trouble: CaslockError | None = None
        try:
            holds = multi.acquire()
        except CaslockError as error:
            holds, trouble = None, error
        if holds is None:
            for lock in locks:
                # One key may be free of us for certain while another is not.
                witness.failed(lock, trouble, private=trouble is None)
            return
        for hold in holds:
            witness.got(hold, move)
        self._inside(move, None, holds)
        for hold in holds:
            witness.leaves(hold)
        trouble = self._all_left(holds)
        for hold in holds:  # which of them was in trouble is not told
            witness.left(hold, None if trouble is None else StopIteration())

    def _all_left(self, holds: MultiHold) -> CaslockError | None:
        first: CaslockError | None = None
        for attempt in range(RELEASES):
            time.sleep(0.01 * attempt)
            try:
                holds.release()
            except StoreUnavailable as error:
                first = first or error
            except CaslockError as error:
                return error
            else:
                break
        return first

    def _inside(self, move: Move, lock: Lock | None, holds: Iterable[Hold]) -> None:
        """Do what a holder does."""
        witness, holds = self._witness, list(holds)
        counts = [witness.touch(hold) for hold in holds]
        if move.fork:
            self._fork(holds[0])
        end = clock.now() + move.stay
        half = clock.now() + move.stay / 2
        extend, reenter = move.extend, move.reenter and lock is not None
        while clock.now() < end:
            time.sleep(max(0.0, min(0.05, end - clock.now())))
            for hold in holds:
                if not witness.looks(hold):
                    self._wait_to_be_told(move, hold)
                    end = 0.0
            if extend and clock.now() > half:
                self._extend(holds[0], extend)
                extend = None
            if reenter and lock is not None:
                reenter = False
                with suppress(CaslockError), lock:
                    pass
        for hold, count in zip(holds, counts, strict=True):
            if count is None or move.owner is not None:  # an owner of several holds must guard it by other means
                continue
            if move.careful and hold.lost:
                continue
            witness.add(hold, count)

    def _extend(self, hold: Hold, ttl: float) -> None:
        self._witness.extends(hold, ttl)
        with suppress(CaslockError):
            hold.extend(ttl)
        self._witness.looks(hold)

    def _wait_to_be_told(self, move: Move, hold: Hold) -> None:
        if not move.patient or hold.claim.hold in self._witness.told:
            return
        for _ in range(PATIENCE):
            time.sleep(0.1)
            if hold.claim.hold in self._witness.told or not hold.lost:
                return
        self._witness.untold(hold)

    def _leave(self, move: Move, hold: Hold) -> None:
        self._witness.leaves(hold)
        try:
            hold.release()
        except CaslockError as error:
            self._witness.left(hold, error)
            if isinstance(error, StoreUnavailable) and move.persist:
                self._release(hold)
        else:
            self._witness.left(hold, None)

    def _release(self, hold: Hold) -> None:
        """Release again, after no answer."""
        for attempt in range(RELEASES):
            time.sleep(0.01 * attempt)
            try:
                hold.release()
            except StoreUnavailable:
                continue
            except CaslockError as error:
                self._witness.left(hold, error)
            else:
                self._witness.left(hold, None)
            return

    def _fork(self, hold: Hold) -> None:
        """Have a child that finds the hold inert, and frees nothing by letting go of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, 10)
                inert = hold.lost and hold.remaining() == 0
                hold.release()
                self._witness.child(hold, "inert" if inert else "held")
            except BaseException as error:  # noqa: BLE001 - told to the judge
                self._witness.child(hold, f"raised {error!r}")
            finally:
                os._exit(0)
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.002)
        if status:
            self._witness.child(hold, f"ended by {os.waitstatus_to_exitcode(status)}")
