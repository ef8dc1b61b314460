"""Planted bugs in the protocol: the real code without one of its precautions.

Bugs that other tests plant are in their files; the table takes them from there.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace

from caslock.errors import StoreUnavailable
from caslock.local.hold import Holding
from caslock.local.lock_state import LockState
from caslock.protocol import exchange as request
from caslock.protocol import transfer
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER
from caslock.protocol.record import NOTHING, Observed, Record
from caslock.protocol.runtime import Runtime
from caslock.store import ABSENT, Entry
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memcached.connection import Connection as MemcachedConnection
from caslock.stores.memcached.requests import name_of
from caslock.stores.memory import MemoryStore
from caslock.stores.redis.sockets import Connection, Sockets
from tests.support import protocol_functions as protocol

WRITE_SURELY, RENEW, REMOVE_TOGETHER = request.write_surely, protocol.renew, protocol.remove_together
BEGIN, NEXT_RECORD, GIVE_UP = LockState._begin, Attempt.next_record, Sockets.give_up
HANG_UP, CONNECT = MemcachedConnection.close, MemcachedStore._open


class LooksBeforeItRemoves(MemoryStore):
    """Reads and removes in two steps."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        observed = self.get(key)
        if observed is None or observed.version != version:
            return observed
        time.sleep(0.05)
        observed = self.get(key)
        return super().invalidate(key, observed.version if observed else ABSENT)


async def renew_or_create(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Write the record again where it is gone."""
    observed, lease = await request.read(runtime, attempt, NEVER), attempt.lease
    if observed.record is None and lease.record is not None:
        lease.version, lease.record = ABSENT, lease.record._replace(fence=lease.fence)
    await RENEW(runtime, attempt, ttl)


async def check_before_only(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Revive a lease by a renewal that is answered after its end."""
    lease = attempt.lease
    deadline, lease.deadline = lease.deadline, max(lease.deadline, runtime.now() + 1.0)
    try:
        await RENEW(runtime, attempt, ttl)
    finally:
        lease.deadline = max(lease.deadline, deadline)


async def enter_again(
    runtime: Runtime, attempt: Attempt, expected: int, record: Record | None, limit: float
) -> Observed:
    """Take the own record, found after no answer, for a hold to re-enter."""
    try:
        return await request.send(runtime, attempt, request.note_write(attempt, expected, record, runtime.now()))
    except StoreUnavailable:
        observed = await request.read(runtime, attempt, limit)
    if record is None or not attempt.is_in(observed.record):
        return await WRITE_SURELY(runtime, attempt, expected, record, limit)
    deeper = attempt.next_record(observed.record, observed.version)
    deeper = deeper._replace(holds=(*deeper.holds, f"{attempt.hold_id}+"))
    return await WRITE_SURELY(runtime, attempt, observed.version, deeper, limit)


async def leave_at_no_answer(runtime: Runtime, attempts: Sequence[Attempt]) -> dict[Attempt, Observed]:
    """Take a missing answer to a batch of releases for "all are gone"."""
    removed = await REMOVE_TOGETHER(runtime, attempts)
    return {attempt: NOTHING for attempt in attempts if attempt.writes.releases} | removed


def fence_by_chance(self: Attempt, observed: Record | None, version: int) -> Record:
    """Draw a fence for each tenure, as one draws an id."""
    record = NEXT_RECORD(self, observed, version)
    return record if record.fence is not None else record._replace(fence=random.randrange(1, 2**53))


async def hand_over_and_renew(hold: Holding) -> str:
    """Give the ticket away, and go on as the holder for the renewer."""
    attempt = hold._attempt
    async with attempt.mutex:
        ticket = await transfer.hand_over(attempt.runtime, attempt)
    attempt.lease.due = attempt.runtime.now()
    attempt.runtime.watch(attempt)
    return str(ticket)


def never_forked(self: LockState) -> None:
    """Keep the identity, and all holds, in a forked child."""
    if not self.generation:
        BEGIN(self)


def remove_any_version(self: MemcachedStore, key: str, version: int) -> Entry | None:
    """Send ``md`` without the cas id."""
    del version
    name = name_of(key, self._prefix)
    return self._ask(lambda _origin: b"md %b\r\nmg %b v c\r\nmn\r\n" % (name, name)).entry


TTL_AS_ASKED = SimpleNamespace(ceil=lambda seconds: math.ceil(seconds) - 2, inf=math.inf)
"""A module `math` for a memcached store that takes away the two seconds that it adds to an exptime."""


def origin_of_zero(self: MemcachedStore, ends: float) -> MemcachedConnection:
    """Take the cas id alone for the version."""
    connection = CONNECT(self, ends)
    connection.origin = 0
    return connection


def interrupted() -> bool:
    """Whether something that is no plain error is being handled."""
    return not isinstance(sys.exception(), Exception | None)


def open_and_keep(self: MemcachedStore, ends: float) -> MemcachedConnection:
    """Close a connection after plain errors only: the next request uses an interrupted one."""
    connection = CONNECT(self, ends)

    def close() -> None:
        self._idle.keep(connection) if interrupted() else HANG_UP(connection)

    connection.close = close  # type: ignore[method-assign] # a mutant
    return connection


def give_back_interrupted(self: Sockets, connection: Connection) -> None:
    """Close a connection after plain errors only: the next request uses an interrupted one."""
    self.keep(connection) if interrupted() else GIVE_UP(self, connection)
