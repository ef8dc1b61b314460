"""Looks at all keys twice a second, past all faults, and writes down what is there, for the judge."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Self

from caslock.errors import StoreError
from caslock.local import clock
from caslock.protocol.record import decode
from caslock.verify import locations
from caslock.verify.history import History

if TYPE_CHECKING:
    from pathlib import Path

    from caslock.verify.plan import Plan

EVERY: Final = 0.5
"""Seconds between two looks."""

LATE: Final = 0.05
"""Seconds from which on a late awakening is worth a note."""

SLOW: Final = 0.25
"""Seconds after which an answer is too old to tell anything."""


FOREVER: Final = 1e9
"""Seconds for which a record may be there where the store ends no lease: a lock takes it over after its ttl."""

PATIENCE: Final = 10.0
"""Seconds in which its last request ends."""


class Monitor:
    """A thread that looks, over a connection of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._store = locations.open_direct(plan)
        self._history = History(folder / "monitor.history")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caslock-verify-monitor", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join(PATIENCE)
        locations.close(self._store)
        self._history.close()

    def _run(self) -> None:
        while not self._wait():
            for key in self._plan.all_names():
                if self._over.is_set():  # each look may take as long as a request
                    return
                self._look(key)

    def _wait(self) -> bool:
        """Sleep until the next look; tells whether it is over, and notes by how much the machine woke us late."""
        began = clock.now()
        over = self._over.wait(EVERY)
        late = clock.now() - began - EVERY
        if late > LATE:
            self._history.note("lag", until=late)
        return over

    def _look(self, key: str) -> None:
        asked = clock.now()
        try:
            entry = self._store.get(key)
        except StoreError:
            return
        if clock.now() - asked >= SLOW:
            return
        if entry is None:
            self._history.note("clear", "", key, at=asked)
        else:
            record, traits = decode(entry.value), self._store.traits
            self._history.note(
                "seen", "", key, record.owner, " ".join(record.holds), fence=entry.version, at=asked,
                until=record.ttl + traits.expiry_lag if traits.expires else FOREVER, note=str(record),
            )  # fmt: skip
