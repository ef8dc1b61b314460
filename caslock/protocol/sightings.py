"""What this process has seen at the stores, and until when it holds, by this process's own clock: none is shared."""

from __future__ import annotations

from typing import Final, NamedTuple

MOST: Final = 10_000
"""The most places that a process remembers.  It begins with another one only when it can forget one of them."""

REMEMBERED: Final = 60.0
"""Seconds for which an end is remembered in any case: whoever uses or awaits a key looks far more often."""


class Sighting(NamedTuple):
    """What was seen, and when it is over at the latest."""

    mark: int | str
    over: float


class Sightings:
    """What was last seen at each place.  It outlives the Lock objects that saw it."""

    __slots__ = ("_looked", "_seen")

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._seen: dict[tuple[str, str], Sighting] = {}
        self._looked = -REMEMBERED  # when it has looked for what can be forgotten

    def see(self, place: tuple[str, str], mark: int | str, over: float, now: float) -> float:
        """Note that `mark` is seen and is over at the moment `over` at the latest.

        Returns the earliest such moment that was noted while the same mark was seen.
        """
        seen = self._seen.get(place)
        if seen is not None and seen.mark == mark:
            if seen.over <= over:
                return seen.over
        elif seen is None and len(self._seen) >= MOST and not self._make_room(now):
            return over
        self._seen[place] = Sighting(mark, over)
        return over

    def get(self, place: tuple[str, str]) -> Sighting | None:
        """Return what was seen there last."""
        return self._seen.get(place)

    def forget(self, place: tuple[str, str]) -> None:
        """Note that it is no longer there."""
        self._seen.pop(place, None)

    def _make_room(self, now: float) -> bool:
        if now >= self._looked + 1.0:  # not for each of many keys: it takes a millisecond
            self._looked = now
            for place, seen in list(self._seen.items()):
                if seen.over + REMEMBERED <= now:
                    self._seen.pop(place, None)
        return len(self._seen) < MOST


OF_QUARANTINES: Final = Sightings()
"""The quarantines that this process has met, by the location of the store and `Record.quarantine_id`."""
