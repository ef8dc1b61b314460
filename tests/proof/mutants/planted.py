"""Planted bugs in the protocol: the real code without one of its precautions.

Bugs that other tests plant are in their files; the table takes them from there.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
import textwrap
import time
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING

from caslock.errors import CaslockError, StoreError, StoreUnavailable
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiAcquire
from caslock.protocol import exchange as request
from caslock.protocol import transfer
from caslock.protocol.attempt import Attempt
from caslock.protocol.lease import NEVER, Lease
from caslock.protocol.record import NOTHING, Observed
from caslock.protocol.transfer import Adoption
from caslock.store import ABSENT, Entry
from caslock.stores.memcached import MemcachedStore
from caslock.stores.memcached.connection import Connection as MemcachedConnection
from caslock.stores.memcached.requests import name_of, parse
from caslock.stores.memory import MemoryStore
from caslock.stores.redis.sockets import Connection, Sockets
from tests.support import protocol_functions as protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.local.hold import Holding
    from caslock.protocol.record import Record
    from caslock.protocol.runtime import Runtime
    from caslock.protocol.writes import InFlight, Write

WRITE_SURELY, ROLL_BACK = request.write_surely, MultiAcquire._roll_back
RENEW, RELEASE, REMOVE_TOGETHER, SETTLE = protocol.renew, protocol.release, protocol.remove_together, request.settle
BEGIN = LockState._begin
ASK, BELIEVE = Lease.ask, Lease.believe
NEXT_RECORD, MAY_TAKE, CLAIM = Attempt.next_record, Attempt.may_take, LockState._attempt
ADOPTABLE = Adoption.may_take
HANG_UP, CONNECT = MemcachedConnection.close, MemcachedStore._open
GIVE_UP = Sockets.give_up


class LooksBeforeItRemoves(MemoryStore):
    """Reads and removes in two steps."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        observed = self.get(key)
        if observed is None or observed.version != version:
            return observed
        time.sleep(0.05)
        observed = self.get(key)
        return super().invalidate(key, observed.version if observed else ABSENT)


class RenewsForEver(MemoryStore):
    """Forgets the ttl of what is written over an entry."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        return super().put_if_version(key, value, version, ttl if version == ABSENT else NEVER)


def altered(function: Callable[..., object], words: str, instead: str, name: str = "") -> FunctionType:
    """Compile a function of a module once more, with `instead` in place of `words` in its source.

    It keeps the name of its file, by which the simulator knows in which lines threads race; `name` is for the ids of
    tests.
    """
    assert isinstance(function, FunctionType)
    source = vars(function).get("source") or textwrap.dedent(inspect.getsource(function))
    assert source.count(words) == 1, f"{function.__name__} does not say {words!r} once"
    source = source.replace(words, instead)
    code = compile(f"from __future__ import annotations\n{source}", function.__code__.co_filename, "exec")
    made: dict[str, FunctionType] = {}
    exec(code, function.__globals__, made)  # noqa: S102 - our own source
    mutant = made[function.__code__.co_name]
    mutant.__name__ = name or mutant.__name__
    vars(mutant)["source"] = source  # for another change of it
    return mutant


def share_the_id(self: LockState, kind: type[Attempt] = Attempt) -> Attempt:
    """Give all attempts of a Lock object the same hold id."""
    attempt = CLAIM(self, kind)
    attempt.hold_id = attempt.writes.hold_id = self.newest = f"{self._nonce}.0"
    return attempt


def ask_for_the_last(self: Lease, ttl: float | None, now: float) -> bool:
    """Expect each renewal to succeed: if it does not, there is no other."""
    asks = ASK(self, ttl, now)
    if ttl is not None and asks:
        self.due = self.deadline
    return asks


def count_from_the_reply(self: Lease, record: Record, version: int, landed: InFlight | None, now: float) -> None:
    """Count the lease from when its answer came."""
    BELIEVE(self, record, version, landed, now)
    if landed is not None:
        self.deadline += now - landed.at


async def renew_or_create(runtime: Runtime, attempt: Attempt, ttl: float | None) -> None:
    """Write the record again where it is gone."""
    observed, lease = await request.read(runtime, attempt, NEVER), attempt.lease
    if observed.record is None and lease.record is not None:
        lease.version, lease.record = ABSENT, lease.record._replace(fence=lease.fence)
    await RENEW(runtime, attempt, ttl)


def renew_for_ever(self: Attempt, observed: Record | None, version: int) -> Record:
    """Leave the ttl out of what is written over an entry."""
    record = NEXT_RECORD(self, observed, version)
    return record if observed is None else record._replace(ttl=NEVER)


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


async def silence_is_release(
    runtime: Runtime, attempt: Attempt, lost: Write, failure: StoreError | ValueError, limit: float
) -> Observed:
    """Take a missing answer to a removal for "it is gone"."""
    if lost.record is None and isinstance(failure, StoreUnavailable):
        return NOTHING
    return await SETTLE(runtime, attempt, lost, failure, limit)


async def leave_at_no_answer(runtime: Runtime, attempts: Sequence[Attempt]) -> dict[Attempt, Observed]:
    """Take a missing answer to a batch of releases for "all are gone"."""
    removed = await REMOVE_TOGETHER(runtime, attempts)
    return {attempt: NOTHING for attempt in attempts if attempt.writes.releases} | removed


async def forget_at_release(
    runtime: Runtime, attempt: Attempt, limit: float = NEVER, removed: Observed | None = None
) -> None:
    """Forget the hold before the answer to its release."""
    try:
        await RELEASE(runtime, attempt, limit, removed)
    except StoreUnavailable:
        attempt.lease.record = None
        raise


async def roll_back_but_one(
    self: MultiAcquire[Holding], failure: BaseException, limit: float
) -> list[CaslockError | ValueError]:
    """Give back what was taken of several keys, but for the first."""
    for hold in self.taken[:1]:
        del self._holds[hold._state]
    return await ROLL_BACK(self, failure, limit)


def fence_by_chance(self: Attempt, observed: Record | None, version: int) -> Record:
    """Draw a fence for each tenure, as one draws an id."""
    record = NEXT_RECORD(self, observed, version)
    return record if record.fence is not None else record._replace(fence=random.randrange(1, 2**53))


def adopt_any_version(self: Adoption, record: Record | None) -> bool:
    """Take whatever has come in place of the ticket's hold since that was read."""
    return ADOPTABLE(self, record) or (self.before is not None and record is not None and bool(record.holds))


def adopt_by_fence(self: Adoption, record: Record | None) -> bool:
    """Take the tenure of the ticket, whether that was used or not."""
    return record is not None and record.fence == self.ticket.fence


async def hand_over_and_renew(self: LockState, hold: Holding) -> str:
    """Give the ticket away, and go on as the holder for the renewer."""
    attempt = hold._attempt
    async with attempt.mutex:
        ticket = await transfer.hand_over(self.runtime, attempt)
    attempt.lease.due = self.runtime.now()
    self.runtime.watch(attempt)
    return str(ticket)


def free_is_held(self: Attempt, record: Record | None) -> bool:
    """Take any record that is there for a held one."""
    return record is None or (not record.free and MAY_TAKE(self, record))


def tell_nobody(self: Lease) -> None:
    """Do not report a loss."""
    del self


def nothing_is_inherited(self: object) -> bool:
    """Take a forked child's copy of a hold for a hold."""
    del self
    return False


def never_forked(self: LockState) -> None:
    """Keep the identity, and all holds, in a forked child."""
    if not self.generation:
        BEGIN(self)


def remove_any_version(self: MemcachedStore, key: str, version: int) -> Entry | None:
    """Send ``md`` without the cas id."""
    del version
    name, ends = name_of(key, self._prefix), time.monotonic() + self._timeout
    return self._ask(self._connection(ends), b"md %b\r\nmg %b v c\r\nmn\r\n" % (name, name), ends, parse).entry


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
