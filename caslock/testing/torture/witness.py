"""The law of this file: what one client writes down of its holds, the same for threads and for asyncio.

A belief is written down smaller than it is: it begins when the acquire has returned, and ends when the release is
called or at the deadline that was last seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from caslock import clock
from caslock.errors import CaslockError, LockLost, OutcomeUnknown, StoreError, StoreUnavailable
from caslock.record import decode
from caslock.testing.torture.resource import FencedCounter, Late

if TYPE_CHECKING:
    from pathlib import Path

    from caslock.aio import AsyncLock
    from caslock.blocking import Lock
    from caslock.hold import Holding
    from caslock.record import Record
    from caslock.store import Store
    from caslock.testing.torture.history import History, What
    from caslock.testing.torture.moves import Move
    from caslock.testing.torture.trouble import Troubled
    from caslock.testing.torture.wall_clock import WallClock


class Scene(NamedTuple):
    """What the clients of one process share."""

    history: History
    troubled: Troubled
    direct: Store
    """The store past all faults."""
    folder: Path
    until: float
    wall: WallClock


class Witness:
    """What one client writes down."""

    def __init__(self, scene: Scene, who: str) -> None:
        """Begin with nothing."""
        self._scene, self._who = scene, who
        self._asked = dict[str, int]()
        self._broken_at = 0.0
        self.told = set[str]()
        """Hold ids whose loss `on_lost` has told."""
        self.open: dict[str, Holding] = {}
        """The holds that somebody believes in, by hold id."""

    def tries(self, lock: Lock | AsyncLock, move: Move) -> None:
        """An acquire is about to be called."""
        self._asked[lock.key] = self._scene.troubled.unanswered[lock.key]
        ttl = lock._state.ttl  # noqa: SLF001 - of a lock that has served before, another than that of the move
        self._scene.history.note("try", self._who, lock.key, lock.owner, until=ttl, note=f"timeout {move.timeout:g}")

    def got(self, hold: Holding, move: Move) -> None:
        """It returned a hold."""
        until = self._until(hold)
        self.open[hold.claim.hold] = hold
        self._note("got", hold, fence=hold.fence, until=until, note=f"{move.max_hold or ''}")

    def failed(self, lock: Lock | AsyncLock, error: BaseException | None, *, private: bool) -> None:
        """It returned None, or raised: then nothing of it may stand, unless it says that it does not know."""
        hold = lock._state.newest  # noqa: SLF001 - only the lock knows the id of an acquire that has failed
        if error is None:
            sure = self._scene.troubled.unanswered[lock.key] == self._asked[lock.key]
            self._scene.history.note("none", self._who, lock.key, lock.owner, hold)
        else:
            sure = isinstance(error, StoreUnavailable) and not isinstance(error, OutcomeUnknown)
            word = "unknown" if isinstance(error, OutcomeUnknown) else "sure" if sure else type(error).__name__
            self._scene.history.note("failed", self._who, lock.key, lock.owner, hold, note=word)
        if sure and private:
            try:
                entry = self._scene.direct.get(lock.key)
            except StoreError:
                return
            record = decode(entry.value) if entry else None
            if record is not None and hold in record.holds:
                self._scene.history.note(
                    "stands", self._who, lock.key, lock.owner, hold, fence=int(error is not None), note=str(record)
                )

    def looks(self, hold: Holding) -> bool:
        """Look whether it is held still."""
        until = self._until(hold)
        self._note("at", hold, until=until)
        return bool(until)

    def breaks(self, key: str) -> None:
        """A key is about to be taken away from whoever holds it."""
        self._broken_at = clock.now()
        self._scene.history.note("break", self._who, key)

    def broke(self, key: str, broken: Record | StoreError | None) -> None:
        """It was taken away from the holds of `broken`, or from nobody (None), or nobody knows from whom (an error)."""
        owner, holds = "", "unknown"
        if not isinstance(broken, StoreError):
            owner, holds = (broken.owner, " ".join(broken.holds)) if broken else ("", "")
        self._scene.history.note("broke", self._who, key, owner, until=self._broken_at, note=holds)

    def shifts(self, wrong: int | None) -> None:
        """Set the wall clock of the process wrong by so many seconds."""
        if wrong is not None:
            self._scene.wall.wrong = wrong
            self._scene.history.note("clock", self._who, note=f"{wrong:+} s")

    def extends(self, hold: Holding, ttl: float) -> None:
        """An extension is about to be called; its lease counts from later than now."""
        self._note("extend", hold, until=clock.now() + 0.98 * ttl - 0.003)

    def hears(self, hold: Holding) -> None:
        """Be told of a loss by `on_lost`."""
        self.told.add(hold.claim.hold)
        self._note("told", hold, note="on_lost")

    def untold(self, hold: Holding) -> None:
        """Have waited to be told in vain."""
        self._note("untold", hold)

    def leaves(self, hold: Holding) -> None:
        """A release is about to be called."""
        if hold.claim.hold in self.open:
            self._asked[hold.key] = self._scene.troubled.unanswered[hold.key]
            self._note("leave", hold)  # first: an alarm may ring between
            self.open.pop(hold.claim.hold, None)

    def left(self, hold: Holding, error: BaseException | None) -> None:
        """The release is over; one that gave no answer at first can't tell who came after it."""
        if error is None:
            sure = self._scene.troubled.unanswered[hold.key] == self._asked[hold.key]
            note = "ok" if sure else "blind"
        elif isinstance(error, CaslockError):
            note = "lost" if isinstance(error, LockLost) else "unanswered"
        else:
            note = "unknown"
        self._note("left", hold, note=note)

    def drops(self, *, alarmed: bool = True) -> None:
        """Whatever was held is in nobody's hands now."""
        if alarmed:
            self._scene.history.note("alarm", self._who)
        for hold in list(self.open.values()):
            self._note("dropped", hold)
        self.open.clear()

    def child(self, hold: Holding, what: str) -> None:
        """Tell what a forked child saw."""
        self._note("child", hold, note=what)

    def touch(self, hold: Holding) -> int | None:
        """Read the guarded counter; None: the resource has refused our fence."""
        try:
            return self._counter(hold.key).read(hold.fence)
        except Late:
            self._note("late", hold, fence=hold.fence)
            return None

    def add(self, hold: Holding, count: int) -> None:
        """Write the counter back, one larger."""
        self._note("adding", hold, fence=hold.fence)
        try:
            self._counter(hold.key).write(hold.fence, count + 1)
        except Late:
            self._note("late", hold, fence=hold.fence, note="write")
        else:
            self._note("added", hold, fence=hold.fence)

    def _counter(self, key: str) -> FencedCounter:
        return FencedCounter(self._scene.folder / f"{key.rpartition(':')[2]}.counter")

    def _until(self, hold: Holding) -> float:
        now = clock.now()  # before it looks: so the deadline comes out early, if anything
        rest = hold.remaining()
        return now + rest if rest > 0 else 0.0

    def _note(self, what: What, hold: Holding, *, fence: int = 0, until: float = 0.0, note: str = "") -> None:
        claim = hold.claim
        self._scene.history.note(
            what, self._who, claim.key, claim.owner, claim.hold, fence=fence, until=until, note=note
        )
