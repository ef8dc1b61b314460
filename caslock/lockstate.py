"""The law of this file: what one Lock object knows of its own holds, for both APIs, as coroutines.

It behaves as `threading.RLock` does: one thread (or task) at a time, the same one re-enters at no request, n releases
for n acquires.  Identity is an object of the thread or task, never its name or number, which are used again.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, TypeVar

from caslock import core
from caslock.checks import MAX_NOTE_BYTES, MAX_OWNER_BYTES, key_of, retries, seconds, text, waiting
from caslock.claim import NEVER, Claim, Retry
from caslock.errors import CaslockError, NotAcquired, NotHeld
from caslock.hold import Holding
from caslock.request import World, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tenacity.wait import WaitBaseT

    from caslock.record import Record


class Settings(TypedDict, total=False):
    """What a lock may be told beside store, key and timeout; explained at `Lock`."""

    ttl: float
    owner: str | None
    auto_renew: bool
    max_hold: float | None
    on_lost: Callable[[Holding], object] | None
    note: str
    retry: Retry | tuple[int, int]
    poll: WaitBaseT | None


class Turnstile(Protocol):
    """Lets one thread (or task) of this process at a time past."""

    async def enter(self, timeout: float | None) -> bool:
        """Wait up to `timeout` seconds (None: for ever)."""
        ...

    def leave(self) -> None:
        """Let the next one in; any thread may do it."""
        ...


class Surroundings(World, Protocol):
    """What the state of a Lock needs beyond what the core does."""

    def me(self) -> object:
        """Identity of the thread or task that runs."""
        ...

    def mutex(self) -> AbstractAsyncContextManager[object]:
        """Make a mutex for one claim."""
        ...

    def turnstile(self) -> Turnstile:
        """Make a turnstile for one Lock object."""
        ...

    def watch(self, claim: Claim) -> None:
        """Have the keeper visit the claim."""
        ...

    def unwatch(self, claim: Claim) -> None:
        """Spare the keeper a claim that was released."""
        ...


H = TypeVar("H", bound=Holding)


class LockState:
    """The state of one Lock object."""

    def __init__(
        self,
        world: Surroundings,
        key: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = None,
        owner: str | None = None,
        auto_renew: bool = True,
        max_hold: float | None = None,
        on_lost: Callable[[Holding], object] | None = None,
        note: str = "",
        retry: Retry | tuple[int, int] = Retry(),
        poll: WaitBaseT | None = None,
    ) -> None:
        """Check everything, before any request; the arguments are explained at `Lock`."""
        self.world = world
        self.key = key_of(key)
        self.ttl = seconds("ttl", ttl)
        self.timeout = waiting(timeout)
        self.max_hold = NEVER if max_hold is None else seconds("max_hold", max_hold)
        self.auto_renew = auto_renew
        self.on_lost = on_lost
        self.note = text("note", note, MAX_NOTE_BYTES)
        self.retry = retries(retry)
        self.poll = poll
        self._given_owner = None if owner is None else text("owner", owner, MAX_OWNER_BYTES)
        if owner == "":
            message = "owner must not be empty: leave it out for a private one"
            raise ValueError(message)
        self.stack: list[Holding] = []
        self._begin()

    def _begin(self) -> None:
        """Take a fresh identity: at birth, and in a forked child, whose inherited holds are inert."""
        self._pid = os.getpid()
        self._host = socket.gethostname()
        nonce = secrets.token_hex(16)
        self.owner = self._given_owner or f"{self._host}:{nonce}"
        self.newest = ""  # hold id: for the simulator
        self._ids = (f"{nonce}.{number}" for number in itertools.count(1))
        self._turnstile = self.world.turnstile()
        self._guard = threading.Lock()  # of depth, ending and is_open: a hold may be released from another thread
        self._me: object = None
        self._since = ""
        self._unsettled: Holding | None = None  # a release went without an answer and may be called again

    def _claim(self) -> Claim:
        since = _wall_clock()
        self.newest = next(self._ids)
        return Claim(
            self.key,
            self.owner,
            self.newest,
            min(self.ttl, self.max_hold),
            self.world.mutex(),
            stamp=(since, self._host, self._pid, self.note),
            auto_renew=self.auto_renew,
            max_hold=self.max_hold,
            retry=self.retry,
        )

    async def acquire(self, make: Callable[[LockState, Claim], H], timeout: float | None) -> H:
        """Acquire or re-enter; raises `NotAcquired` after `timeout` seconds."""
        self._after_fork()
        if self._me is self.world.me():
            with self._guard:
                if self.stack and not self.stack[-1].inherited and not self.stack[-1].claim.ending:
                    hold = make(self, self.stack[-1].claim)
                    core.check(self.world, hold.claim)
                    hold.claim.depth += 1
                    self.stack.append(hold)
                    return hold
        began = self.world.now()
        if not await self._turnstile.enter(timeout):
            message = (
                f"lock {self.key!r} is held by {self.owner} (pid {self._pid} on {self._host}), in another thread "
                f"or task that uses the same Lock object, since {self._since} (waited {timeout:g} s)"
            )
            raise NotAcquired(message)
        try:
            return await self._contend(make, timeout, began)
        except BaseException:
            self._turnstile.leave()
            raise

    async def _contend(self, make: Callable[[LockState, Claim], H], timeout: float | None, began: float) -> H:
        claim = self._claim()
        left = None if timeout is None else max(0.0, timeout - (self.world.now() - began))
        if not await core.acquire(self.world, claim, left, self.poll):
            waited = f"waited {self.world.now() - began:.3g} s"
            message = f"lock {self.key!r} at {self.world.store.traits.place} is held by {claim.rival} ({waited})"
            if claim.rival is None or claim.rival.free:
                message = f"lock {self.key!r} changed hands faster than it could be taken ({waited})"
            raise NotAcquired(message)
        hold = make(self, claim)
        on_lost = self.on_lost
        if on_lost is not None:
            claim.on_loss.append(lambda: on_lost(hold))
        try:
            self.world.watch(claim)
        except BaseException as error:  # no thread to be had: a lease that nobody renews is not what was asked for
            await leave(_Ending(self.world, claim), error)
            raise
        self._me = self.world.me()
        self._since = claim.stamp[0]
        self._unsettled = None
        self.stack.append(hold)
        return hold

    async def release(self, hold: Holding) -> None:
        """Release one hold; the key is free after the last one."""
        self._after_fork()
        claim = hold.claim
        with self._guard:
            if not hold.is_open and not hold.inherited:
                message = f"this hold of {self.key!r} was released already"
                raise NotHeld(message)
            hold.is_open = False
            entered = hold in self.stack
            self.stack = [other for other in self.stack if other is not hold]
            if not hold.inherited:
                claim.depth -= 1
                claim.ending = claim.depth == 0
        if hold.inherited:
            return
        if not claim.ending:
            core.check(self.world, claim)
            return
        self.world.unwatch(claim)
        try:
            await core.release(self.world, claim)
        finally:
            if claim.record is not None:  # no answer: the hold is not forgotten
                claim.depth = 1
                hold.is_open = True
            self._unsettled = hold if hold.is_open else None
            if entered:
                self._me = None
                self._turnstile.leave()

    async def release_last(self) -> None:
        """Release the newest hold of this thread or task."""
        self._after_fork()
        if self.stack and (self.stack[-1].inherited or self._me is self.world.me()):
            await self.release(self.stack[-1])
        elif self._unsettled is not None and not self.stack:
            await self.release(self._unsettled)
        else:
            message = f"lock {self.key!r} is not held by this thread or task"
            raise NotHeld(message)

    async def holder(self) -> Record | None:
        """Who holds the key."""
        _, standing = await read(self.world, self._claim(), NEVER)
        return None if standing is None or standing.free else standing

    async def break_(self) -> Record | None:
        """Take the key away from whoever holds it."""
        return await core.break_(self.world, self._claim())

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()


class Leaving(Protocol):
    """Something whose newest hold can be released."""

    async def release_last(self) -> None:
        """Release it."""
        ...


async def leave(state: Leaving, error: BaseException | None) -> None:
    """Release at the end of a `with` body; trouble with that never masks the body's own exception."""
    try:
        await state.release_last()
    except CaslockError as trouble:
        if error is None:
            raise
        error.add_note(str(trouble))


@lru_cache(maxsize=1)
def _iso(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


def _wall_clock() -> str:
    """Tell the time for people; nothing compares it."""
    return _iso(int(time.time()))


class _Ending(NamedTuple):
    """A claim as `leave` wants it."""

    world: World
    claim: Claim

    async def release_last(self) -> None:
        """Release it."""
        await core.release(self.world, self.claim)
