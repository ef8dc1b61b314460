"""A connection to PostgreSQL that hears of changes of keys, for all waiters of one store.

A waiter has this session listen to the channel of its key, and share the advisory lock of the key: by that, whoever
changes the key knows that somebody waits, and notifies (see `table`).  Only then does it look whether the entry is
still there, so whatever that look misses is told later.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus

from caslock.stores.sql.table import CHANNEL, look_at, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_KEYS: Final = 50
"""Keys that one connection waits for; a server has room for 64 locks for each session, unless it is told otherwise."""

_NO_TABLE: Final = b"42P01"


class Channel:
    """What is known of one key."""

    def __init__(self, place: int) -> None:
        """Nobody waits yet."""
        self.place = place
        self.waits = 0
        """How many wait for the key."""
        self.told = 0
        """How often a change was told."""
        self.shared = False
        """Whether the session listens to the channel and has the lock."""

    def begin(self) -> str:
        """Give the statements that make it shared.  The lock counts from the end of a transaction of its own."""
        share = f"SELECT pg_try_advisory_lock_shared({self.place})"
        return f'BEGIN; LISTEN "{CHANNEL}{self.place}"; {share}; COMMIT; '

    def end(self) -> str:
        """Give the statements that undo this."""
        return f'UNLISTEN "{CHANNEL}{self.place}"; SELECT pg_advisory_unlock_shared({self.place})'


class Wait:
    """One wait for one key."""

    def __init__(self, channel: Channel, name: bytes, version: int) -> None:
        """Whatever the channel is told from now on ends it."""
        self.channel = channel
        self.look = look_at(name, version)
        self.shares = False
        """Whether the channel is to be shared before the session looks."""
        self.there: bool | None = None
        """Whether the entry was there; None: there is no answer yet."""
        self._told = channel.told

    @property
    def over(self) -> bool:
        """Whether a change was told."""
        return self.channel.told != self._told


class Listener:
    """The connection.  None of its methods waits for the server; they must not be called side by side."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - psycopg's generic class
        """Take a connection that nobody else uses."""
        self._connection = connection  # else it would be collected, and closed
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self.descriptor: int = self._pgconn.socket
        self.is_direct: bool | None = None
        """Whether the session is our own; None: there is no answer yet."""
        self.problem: BaseException | None = None
        """Why nothing more can be heard."""
        self.reading = threading.Lock()
        """Had by the thread that reads."""
        self.sleeping: list[Callable[[], object]] = []
        """What wakes each of those who wait until something was read."""
        self._channels: dict[int, Channel] = {}
        self._to_ask: deque[Wait | Channel] = deque()  # a wait to begin, or a channel that nobody waits for any more
        self._asked: Wait | Channel | None = None
        self._rows: list[bytes | None] = []  # the first value of each row that the answer had until now
        # A pooler has told libpq a process that is not the server's.
        self._pgconn.send_query(f"SELECT pg_backend_pid() = {self._pgconn.backend_pid}".encode())
        self._pgconn.flush()

    @property
    def waits(self) -> bool:
        """Whether anybody waits."""
        return any(channel.waits for channel in self._channels.values())

    @property
    def is_behind(self) -> bool:
        """Whether nobody waits, and the server was not told so yet."""
        return bool(self._to_ask) and not (self.waits or self.problem)

    def begin(self, name: bytes, version: int) -> Wait | None:
        """Begin to wait; None: too many keys are waited for.  `end` has to follow."""
        place = place_of(name)
        channel = self._channels.get(place)
        if channel is None:
            if len(self._channels) >= MOST_KEYS:
                return None
            channel = self._channels[place] = Channel(place)
        channel.waits += 1
        return Wait(channel, name, version)

    def look(self, wait: Wait, *, shares: bool) -> None:
        """Ask whether the entry is there, and before that, if need be, share the channel."""
        wait.there, wait.shares = None, shares
        self._to_ask.append(wait)
        self._ask()

    def end(self, wait: Wait) -> None:
        """Wait no more."""
        channel = wait.channel
        channel.waits -= 1
        if not (channel.waits or self.problem):
            self._to_ask.append(channel)
            self._ask()

    def wake(self) -> None:
        """Wake everybody, to see what was read."""
        for wake in tuple(self.sleeping):
            wake()

    def read(self) -> None:
        """Take in what the server has sent; raises psycopg's errors, after which it is useless."""
        self._pgconn.consume_input()
        while (self._asked or self.is_direct is None) and not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is not None:
                self._rows += _values(result)
                continue
            self._answered()
            self._ask()
        while notification := self._pgconn.notifies():
            channel = self._channels.get(int(notification.relname.decode().removeprefix(CHANNEL)))
            if channel is not None:
                channel.told += 1

    def close(self) -> None:
        """Close the connection for good."""
        self._pgconn.finish()

    def _answered(self) -> None:
        asked, rows = self._asked, self._rows
        self._asked, self._rows = None, []
        if isinstance(asked, Wait):
            if asked.shares:
                asked.channel.shared = asked.channel.shared or rows[0] == b"t"
            # Without the lock, somebody writes the key at this moment.
            asked.there = rows[-1] == b"t" and (asked.channel.shared or not asked.shares)
        elif asked is None:
            self.is_direct = rows == [b"t"]

    def _ask(self) -> None:
        """Send what is to be asked next, unless an answer is still to come."""
        while self._asked is None and self.is_direct and self._to_ask and self.problem is None:
            asked = self._to_ask.popleft()
            if isinstance(asked, Wait):
                begin = asked.channel.begin() if asked.shares and not asked.channel.shared else ""
                text = begin + asked.look
            elif asked.waits or self._channels.get(asked.place) is not asked:
                continue  # somebody waits again
            else:
                del self._channels[asked.place]
                if not asked.shared:
                    continue
                text = asked.end()
            self._asked = asked
            self._pgconn.send_query(text.encode())
            self._pgconn.flush()


def _values(result: Any) -> Iterator[bytes | None]:  # noqa: ANN401 - psycopg's result of libpq
    if result.status == ExecStatus.TUPLES_OK:
        yield result.get_value(0, 0) if result.ntuples else None
    elif result.status != ExecStatus.COMMAND_OK:
        if result.error_field(DiagnosticField.SQLSTATE) != _NO_TABLE:
            raise error_from_result(result)
        yield None  # and so no entry
