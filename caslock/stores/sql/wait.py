"""A wait for a change of one key in PostgreSQL, and what all those who wait for that key share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.stores.sql.statements import CHANNEL, look_at
from caslock.stores.sql.table import place_of

if TYPE_CHECKING:
    from caslock.stores.sql.listener import Listener


class Channel:
    """What is known of one key."""

    def __init__(self, place: int) -> None:
        """Nobody waits yet."""
        self.place = place
        self.waits = 0
        """How many wait for the key."""
        self.changes: int = 0
        """How many notifications of a change have come."""
        self.heard = False
        """Whether the session listens to the channel."""
        self.shared = False
        """Whether it has the lock, too."""

    def begin(self) -> str:
        """Return the statements that make it shared.  The lock counts from the end of a transaction of its own."""
        share = f"SELECT pg_try_advisory_lock_shared({self.place})"
        return f'BEGIN; LISTEN "{CHANNEL}{self.place}"; {share}; COMMIT; '

    def end(self) -> str:
        """Return the statements that undo this."""
        unlock = f"; SELECT pg_advisory_unlock_shared({self.place})" if self.shared else ""
        return f'UNLISTEN "{CHANNEL}{self.place}"{unlock}'


class Wait:
    """One wait for one key."""

    def __init__(self, name: bytes, version: int) -> None:
        """It begins with `Listener.begin`."""
        self.channel: Channel = Channel(place_of(name))
        self.look: str = look_at(name, version)
        self.listener: Listener | None = None
        """Where it has begun, for the clean-up after an interrupt."""
        self.shares: bool = False
        """Whether the channel is to be shared before the session looks."""
        self.there: bool | None = None
        """Whether the entry was there; None: there is no answer yet."""
        self.seen: int = 0
        """How many notifications had come when it began."""

    @property
    def over(self) -> bool:
        """Whether a notification has come since it began."""
        return self.channel.changes != self.seen
