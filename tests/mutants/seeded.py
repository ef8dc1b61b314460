"""The law of this file: a mutant is the real code with one thought left out, and it breaks by that and nothing else.

What other tests take out of the core, or break in a store, is theirs: the table has it from there.
"""

from __future__ import annotations

import math
import random
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from caslock import core, multi, request
from caslock.claim import NEVER, NOBODY, Claim, Standing
from caslock.errors import CaslockError, StoreUnavailable
from caslock.lockstate import LockState
from caslock.store import ABSENT, Entry
from caslock.stores.memcached import MemcachedStore, _Connection
from caslock.stores.memcached_wire import name_of
from caslock.stores.memory import MemoryStore
from caslock.stores.redis_links import Link, Links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caslock.hold import Holding
    from caslock.record import Record
    from caslock.request import Unanswered, World
    from caslock.stores.redis_links import _Kept

WRITE_SURELY, ROLL_BACK = request.write_surely, multi._roll_back
RENEW, RELEASE, LEAVE_TOGETHER, SETTLE = core.renew, core.release, core.leave_together, request.settle
STAND, BID, MAY_TAKE, CLAIM = Claim.stand, Claim.bid, Claim.may_take, LockState._claim
ASK, HANG_UP, CONNECT = MemcachedStore._ask, _Connection.close, MemcachedStore._connect
TAKE_LINK, CLOSE_LINK = Links._take, Link.close


class LooksBeforeItRemoves(MemoryStore):
    """Reads and removes in two steps."""

    def invalidate(self, key: str, version: int) -> Entry | None:
        """Look, think, and remove."""
        standing = self.get(key)
        if standing is None or standing.version != version:
            return standing
        time.sleep(0.05)
        standing = self.get(key)
        return super().invalidate(key, standing.version if standing else ABSENT)


class RenewsForEver(MemoryStore):
    """Forgets the ttl of what is written over an entry."""

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Entry | None:
        """Write, and never let it end."""
        return super().put_if_version(key, value, version, ttl if version == ABSENT else NEVER)


def share_the_id(self: LockState) -> Claim:
    """Give every attempt of a Lock object the same hold id."""
    claim = CLAIM(self)
    claim.hold = self.newest = f"{self._nonce}.0"
    return claim


def count_from_the_reply(self: Claim, record: Record, version: int, now: float) -> None:
    """Count the lease from when its answer came."""
    landed = self.sends.get(record.write)
    STAND(self, record, version, now)
    if landed is not None:
        self.deadline += now - landed.at


async def renew_or_create(world: World, claim: Claim, ttl: float) -> None:
    """Put the record anew where it is gone."""
    _, standing = await request.read(world, claim, NEVER)
    if standing is None and claim.record is not None:
        claim.version, claim.record = ABSENT, claim.record._replace(fence=claim.fence)
    await RENEW(world, claim, ttl)


def renew_for_ever(self: Claim, standing: Record | None, version: int) -> Record:
    """Leave the ttl out of what is written over an entry."""
    bid = BID(self, standing, version)
    return bid if standing is None else bid._replace(ttl=NEVER)


async def enter_again(world: World, claim: Claim, expected: int, bid: Record | None, limit: float) -> Standing:
    """Take the own record, found after no answer, for a hold to re-enter."""
    try:
        return await request.write(world, claim, expected, bid)
    except StoreUnavailable:
        version, standing = await request.read(world, claim, limit)
    if bid is None or not claim.stands_in(standing):
        return await WRITE_SURELY(world, claim, expected, bid, limit)
    deeper = claim.bid(standing, version)
    deeper = deeper._replace(holds=(*deeper.holds, f"{claim.hold}+"))
    return await WRITE_SURELY(world, claim, version, deeper, limit)


async def silence_is_release(world: World, claim: Claim, lost: Unanswered, limit: float) -> Standing:
    """Take a missing answer to a removal for "it is gone"."""
    if lost.bid is None and isinstance(lost.failure, StoreUnavailable):
        return NOBODY
    return await SETTLE(world, claim, lost, limit)


async def leave_at_no_answer(world: World, claims: Sequence[Claim]) -> None:
    """Take a missing answer to a batch of releases for "all are gone"."""
    await LEAVE_TOGETHER(world, claims)
    for claim in claims:
        if claim.left_in_time and claim.parted is None:
            claim.parted = ABSENT, None


async def forget_at_release(world: World, claim: Claim) -> None:
    """Forget the hold before the answer to its release."""
    try:
        await RELEASE(world, claim)
    except StoreUnavailable:
        claim.record = None
        raise


async def roll_back_but_one(
    begun: dict[LockState, Claim], holds: list[Holding], failure: BaseException, stuck: list[CaslockError]
) -> None:
    """Give back what was taken of several keys, but for the first."""
    await ROLL_BACK(begun, holds[1:], failure, stuck)


def fence_by_chance(self: Claim, standing: Record | None, version: int) -> Record:
    """Draw a fence for each tenure, as one draws an id."""
    bid = BID(self, standing, version)
    return bid if bid.fence is not None else bid._replace(fence=random.randrange(1, 2**53))


def free_is_held(self: Claim, record: Record | None) -> bool:
    """Take a record for held because it stands."""
    return record is None or (not record.free and MAY_TAKE(self, record))


def tell_nobody(claim: Claim) -> None:
    """Keep a loss to oneself."""
    del claim


def nothing_is_inherited(self: object) -> bool:
    """Take a forked child's copy of a hold for a hold."""
    del self
    return False


def never_forked(self: LockState) -> None:
    """Keep the identity, and all holds, in a forked child."""


def remove_any_version(self: MemcachedStore, key: str, version: int) -> Entry | None:
    """Send ``md`` without the cas id."""
    name = name_of(key, self._prefix)
    return self._ask(name, version, lambda _cas: b"md %b\r\n" % name)


TTL_AS_ASKED = SimpleNamespace(ceil=lambda seconds: math.ceil(seconds) - 2, inf=math.inf)
"""The module `math` for a memcached store: the two seconds that it adds to an exptime come to nothing."""


def origin_of_zero(self: MemcachedStore) -> _Connection:
    """Take the cas id alone for the version."""
    connection = CONNECT(self)
    connection.origin = 0
    return connection


def interrupted() -> bool:
    """Whether something that is no plain error is being handled."""
    return not isinstance(sys.exception(), Exception | None)


def ask_and_keep(self: MemcachedStore, name: bytes, version: int, command: Callable[[int], bytes]) -> Entry | None:
    """Hang up after plain errors only: an interrupted connection is the next request's."""
    connection = self._next_idle() or self._open()

    def close() -> None:
        self._idle.append(connection) if interrupted() else HANG_UP(connection)

    connection.close = close  # type: ignore[method-assign] # a mutant
    self._idle.append(connection)
    return ASK(self, name, version, command)


_stacks: dict[Link, list[Link]] = {}


def take_link(self: Links, kept: _Kept) -> Link:
    """Know where a connection came from."""
    link = TAKE_LINK(self, kept)
    _stacks[link] = kept.idle
    return link


def put_link_back(self: Link) -> None:
    """Close it after plain errors only: an interrupted connection is the next request's."""
    stack = _stacks.pop(self, None)
    stack.append(self) if interrupted() and stack is not None else CLOSE_LINK(self)
