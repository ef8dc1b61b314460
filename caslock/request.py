"""The law of this file: a request without an answer may have been applied, so look before you repeat it.

The sunny path is one request, and never enters tenacity.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from caslock.claim import NOBODY, Claim, Send, Standing
from caslock.errors import StoreError, StoreUnavailable
from caslock.record import Record, decode, encode
from caslock.store import ABSENT, AsyncBatchingStore, AsyncStore, AsyncWakingStore, Entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from tenacity.wait import WaitBaseT

T = TypeVar("T")


class World(Protocol):
    """All that the core needs from outside: one implementation for each API, and the simulator's."""

    @property
    def store(self) -> AsyncStore:
        """The store; its verbs never suspend where the API blocks."""
        ...

    @property
    def home(self) -> object:
        """The store object that was given: what shares it shares its requests and its queues."""
        ...

    @property
    def waking(self) -> AsyncWakingStore | None:
        """The same store, where it can wake those who wait."""
        ...

    @property
    def batching(self) -> AsyncBatchingStore | None:
        """The same store, where it can apply several requests as one."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` to its end, even while the caller is being cancelled."""
        ...


async def write_surely(world: World, claim: Claim, expected: int, bid: Record | None, limit: float) -> Standing:
    """Write `bid` (None: remove) where `expected` stands, and tell what stands then.

    After no answer: read first, and write again, `claim.retry.put` times, only if `expected` still stands.  Raises
    `StoreUnavailable` when that was not enough, or at `limit`.
    """
    try:
        return await write(world, claim, expected, bid)
    except StoreUnavailable as error:
        failure = error
    return await settle(world, claim, Unanswered(expected, bid, failure), limit)


class Unanswered(NamedTuple):
    """A write that has raised."""

    expected: int
    bid: Record | None
    failure: BaseException


async def settle(world: World, claim: Claim, lost: Unanswered, limit: float) -> Standing:
    """Go on after a write that got no answer, see `write_surely`; raise whatever else it has raised."""
    expected, bid, failure = lost
    unanswered(claim, bid, failure)
    if not isinstance(failure, StoreUnavailable):
        raise failure
    if world.now() >= limit:  # a lease that is over, or a waiting time: what comes after must not wait for us
        raise failure
    standing = await read(world, claim, limit)
    if standing[0] != expected:
        return standing  # it has landed, or never will
    if claim.retry.put < 1:
        raise failure

    async def again() -> Standing:
        try:
            return await write(world, claim, expected, bid and bid._replace(write=claim.mark()))
        except StoreUnavailable:
            standing = await read(world, claim, limit)
            if standing[0] != expected:
                return standing
            raise

    return await _retry(world, claim.retry.put, limit, again)


async def put_when_free(world: World, claim: Claim, seconds: float) -> Standing:
    """Have the store put the claim's first record as soon as nobody stands there, or after `seconds`."""
    assert world.waking is not None  # noqa: S101 - the caller has looked
    bid = claim.bid(None, ABSENT)
    value = sent(claim, ABSENT, bid, world.now())
    try:
        entry = await world.waking.put_when_free(claim.key, value, bid.ttl, seconds)
    except BaseException as error:
        unanswered(claim, bid, error)
        raise
    return answered(claim, bid, value, entry)


async def read(world: World, claim: Claim, limit: float) -> Standing:
    """Tell what stands, asking `claim.retry.get` times again after no answer."""

    async def get() -> Standing:
        return standing_of(await world.store.get(claim.key))

    try:
        return await get()
    except StoreUnavailable:
        if claim.retry.get < 1:
            raise
    return await _retry(world, claim.retry.get, limit, get)


async def write(world: World, claim: Claim, expected: int, bid: Record | None) -> Standing:
    """Write once."""
    value = sent(claim, expected, bid, world.now())
    try:
        if bid is None:
            return answered(claim, bid, value, await world.store.invalidate(claim.key, expected))
        return answered(claim, bid, value, await world.store.put_if_version(claim.key, value, expected, bid.ttl))
    except BaseException as error:
        unanswered(claim, bid, error)
        raise


def sent(claim: Claim, expected: int, bid: Record | None, now: float) -> bytes:
    """Give the value to be written now; it is remembered until an answer shows that it does not stand."""
    if bid is None:
        return b""
    if claim.hold in bid.holds:
        claim.sends[bid.write] = Send(expected, now, claim.lease)  # the ttl counts from before the request
    return encode(bid)


def answered(claim: Claim, bid: Record | None, value: bytes, entry: Entry | None) -> Standing:
    """Read the answer to a write."""
    if bid is None:
        if entry is None:
            return NOBODY
        claim.woke = entry.version == ABSENT
    elif entry is not None and entry.value == value:
        return entry.version, bid
    else:
        claim.sends.pop(bid.write, None)
    return standing_of(entry)


def unanswered(claim: Claim, bid: Record | None, error: BaseException) -> None:
    """Take note that a write has raised `error`."""
    if may_have_landed(error):
        claim.unanswered = True
    elif bid is not None:
        claim.sends.pop(bid.write, None)


def may_have_landed(error: BaseException) -> bool:
    """Whether a request that raised `error` may have been applied, or may be yet."""
    # A store refuses bad input by ValueError, before any I/O (a ttl that is too long for it, say).
    return error.sent if isinstance(error, StoreUnavailable) else not isinstance(error, (StoreError, ValueError))


def standing_of(entry: Entry | None) -> Standing:
    """Read an answer; `WOKEN` says as well that nothing stands."""
    return (ABSENT, None) if entry is None or entry.version == ABSENT else (entry.version, decode(entry.value))


async def _retry(world: World, times: int, limit: float, verb: Callable[[], Awaitable[T]]) -> T:
    """Run `verb` up to `times` times while it gets no answer, until `limit`."""
    tenacity = _tenacity()
    retrying = tenacity.AsyncRetrying(
        sleep=world.sleep,
        stop=lambda state: state.attempt_number >= times or world.now() >= limit,
        wait=tenacity.wait_random(0.0, 0.02),
        retry=tenacity.retry_if_exception_type(StoreUnavailable),
        reraise=True,
    )
    result: T = await retrying(verb)
    return result


def _tenacity() -> ModuleType:
    """Import tenacity when it is needed first: neither import of caslock nor the sunny path pays for it."""
    try:
        import tenacity  # noqa: PLC0415 - see above
    except BaseException:  # interrupted: half a package would never be imported again
        for name in [name for name in sys.modules if name.partition(".")[0] == "tenacity"]:
            del sys.modules[name]
        raise
    return tenacity


def pauses(poll: WaitBaseT | None, crowd: int = 0) -> Callable[[], float]:
    """Seconds to sleep before each next try: by `poll`, else jittered, from 5 ms (and 1 for each of a crowd) to 0.5 s.

    Ours double from one to the next.
    """
    tenacity = _tenacity()
    wait = poll or tenacity.wait_random_exponential(multiplier=0.005 + 0.001 * crowd, max=0.5)
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})

    def pause() -> float:
        seconds = float(wait(state))
        state.attempt_number += 1
        return seconds

    return pause
