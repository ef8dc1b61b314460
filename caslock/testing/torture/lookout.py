"""The law of this file: what stands at the store is looked at past all faults, and written down for the judge."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Self

from caslock import clock
from caslock.errors import StoreError
from caslock.record import decode
from caslock.testing.torture import places
from caslock.testing.torture.history import History
from caslock.testing.torture.ttl_view import ttl_view

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from caslock.testing.torture.plan import Plan

EVERY: Final = 0.5
"""Seconds between two looks."""

SLOW: Final = 0.25
"""Seconds after which an answer is too old to tell anything."""


class Lookout:
    """A thread that looks at all keys twice a second, over a connection of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Begin with nothing seen."""
        self._plan = plan
        self._store = places.open_direct(plan)
        self._history = History(folder / "lookout.history")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_out, name="caslock-torture-lookout", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()
        places.close(self._store)
        self._history.close()

    def _look_out(self) -> None:
        with ttl_view(self._plan) as stands_forever:
            while not self._over.wait(EVERY):
                for key in self._plan.names():
                    self._look(key, stands_forever)

    def _look(self, key: str, stands_forever: Callable[[str], bool]) -> None:
        if stands_forever(key):
            self._history.note("forever", "", key)
        asked = clock.now()
        try:
            entry = self._store.get(key)
        except StoreError:
            return
        if entry is not None and clock.now() - asked < SLOW:
            record = decode(entry.value)
            self._history.note(
                "seen", "", key, record.owner, " ".join(record.holds), fence=entry.version, at=asked,
                until=record.ttl + self._store.traits.overstay, note=str(record),
            )  # fmt: skip
