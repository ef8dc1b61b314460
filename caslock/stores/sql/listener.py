"""A connection to PostgreSQL that hears of changes of keys, for all waiters of one store.

A waiter has this session listen to the channel of its key, and share the advisory lock of the key: by that, whoever
changes the key knows that somebody waits, and notifies (see `statements`).  Only then does it look whether the entry is
still there, and it is notified of any change that this misses.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from caslock.stores.sql.connections import is_direct
from caslock.stores.sql.statements import CHANNEL
from caslock.stores.sql.wait import Channel, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_KEYS: Final = 50
"""Keys that one connection waits for.  Unless it is set otherwise, a server has room for 64 locks for each session."""

_NO_TABLE: Final = b"42P01"


class Listener:
    """The connection.  None of its methods waits for the server; they must not be called side by side."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - psycopg's generic class
        """Take a connection that nobody else uses."""
        self._connection = connection  # else it would be collected, and closed
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self.descriptor: int = self._pgconn.socket
        self.is_direct: bool = is_direct(connection)
        """Whether the session is its own; only then can it listen."""
        self.problem: BaseException | None = None
        """Why nothing more can be heard."""
        self.reader: Any = None
        """Stands for the thread that reads; for asyncio, the event loop that does."""
        self.sleeping: list[Callable[[], object]] = []
        """What wakes each of those who wait until something was read."""
        self.users: set[Wait] = set()
        """The waits from their beginning until they need the connection no more: it may not be closed meanwhile."""
        self._waits = set[Wait]()  # those that have not ended
        self._channels: dict[int, Channel] = {}
        self._to_ask: deque[Wait | Channel] = deque()  # a wait to begin, or a channel that nobody waits for any more
        self._asked: Wait | Channel | None = None
        self._rows: list[bytes | None] = []  # the first value of each row that the answer had until now

    @property
    def is_behind(self) -> bool:
        """Whether nobody waits, and the server has not heard of that yet."""
        return bool(self._to_ask) and not (self._waits or self.problem)

    def begin(self, wait: Wait) -> bool:
        """Begin to wait; False: too many keys are waited for.  `end` and `leave` have to follow."""
        if wait.channel.place not in self._channels and len(self._channels) >= MOST_KEYS:
            return False
        wait.listener = self
        self.users.add(wait)
        self._waits.add(wait)
        wait.channel = self._channels.setdefault(wait.channel.place, wait.channel)
        wait.channel.waits += 1
        wait.seen = wait.channel.changes  # any further one ends the wait
        return True

    def look(self, wait: Wait, *, shares: bool) -> None:
        """Ask whether the entry is there, and before that, if need be, share the channel."""
        wait.there, wait.shares = None, shares
        self._to_ask.append(wait)
        self._ask()

    def end(self, wait: Wait) -> None:
        """Wait no more; nothing happens if the wait has ended before."""
        if wait not in self._waits:
            return
        self._waits.discard(wait)
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
        while self._asked and not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is not None:
                self._rows += _values(result)
                continue
            self._answered()
            self._ask()
        while notification := self._pgconn.notifies():
            channel = self._channels.get(int(notification.relname.decode().removeprefix(CHANNEL)))
            if channel is not None:
                channel.changes += 1

    def fail(self, problem: BaseException) -> None:
        """Hear nothing more, because of the first problem, and wake everybody, also whoever waits at the socket."""
        self.problem = self.problem or problem
        if self._pgconn.status == ConnStatus.OK:  # else libpq has closed the socket, and its number may be another's
            end = socket.socket(fileno=self.descriptor)
            with suppress(OSError):  # the server has ended the connection
                end.shutdown(socket.SHUT_RDWR)
            end.detach()
        self.wake()

    def close(self) -> None:
        """Close the connection for good, unless somebody needs it still."""
        if not self.users:
            self._pgconn.finish()

    def _answered(self) -> None:
        asked, rows = self._asked, self._rows
        self._asked, self._rows = None, []
        if isinstance(asked, Wait):
            if asked.shares:
                asked.channel.heard = True
                asked.channel.shared = asked.channel.shared or rows[0] == b"t"
            # Without the lock, somebody writes the key at this moment.
            asked.there = rows[-1] == b"t" and (asked.channel.shared or not asked.shares)

    def _ask(self) -> None:
        """Send what is to be asked next, unless an answer is still to come."""
        while self._asked is None and self._to_ask and self.problem is None:
            asked = self._to_ask.popleft()
            if isinstance(asked, Wait):
                begin = asked.channel.begin() if asked.shares and not asked.channel.shared else ""
                text = begin + asked.look
            elif asked.waits or self._channels.get(asked.place) is not asked:
                continue  # somebody waits again
            else:
                del self._channels[asked.place]
                if not asked.heard:
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
