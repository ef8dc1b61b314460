"""The law of this file: what one Lock object knows of its own holds, for both APIs, as coroutines.

It behaves as `threading.RLock` does: one thread (or task) at a time, the same one re-enters at no request, n releases
for n acquires.  Identity is an object of the thread or task, never its name or number, which are used again.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import socket
import threading
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypedDict, TypeVar

from caslock import core
from caslock.claim import NEVER, Claim, Retry
from caslock.errors import CaslockError, NotAcquired, NotHeld, StoreError
from caslock.record import Record, json_size
from caslock.request import World, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tenacity.wait import WaitBaseT

MAX_KEY: Final = 1024
MAX_OWNER_BYTES: Final = 512
MAX_NOTE_BYTES: Final = 1024
MAX_RETRY: Final = 100


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


class Holding:
    """One successful acquire: what the blocking and the asyncio hold have in common."""

    __slots__ = ("_pid", "_state", "claim", "is_open")

    def __init__(self, state: LockState, claim: Claim) -> None:
        """Begin as held."""
        self._state = state
        self.claim = claim
        self.is_open = True
        self._pid = os.getpid()

    def __repr__(self) -> str:
        """Say which key, and for how long."""
        state = "released" if not self.is_open else "lost" if self.lost else f"{self.remaining():.3g} s remaining"
        return f"<{type(self).__name__} of {self.key!r}: {state}>"

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy: this process never held it, and its release frees nothing."""
        return self._pid != os.getpid()

    @property
    def key(self) -> str:
        """The key that is held."""
        return self.claim.key

    @property
    def owner(self) -> str:
        """The owner, ``host:uuid`` unless it was given."""
        return self.claim.owner

    @property
    def fence(self) -> int:
        """The fencing number: larger than that of every earlier tenure of the key (Chubby calls it sequencer).

        Hand it to the protected resource, which must refuse any smaller one than it has seen.  Raises `StoreError`
        where the store can't promise that (``traits.fences`` is False).
        """
        traits = self._state.world.store.traits
        if not traits.fences:
            message = f"{traits.place} can't promise growing versions, so it has no fence to give"
            raise StoreError(message)
        return self.claim.fence

    @property
    def lost(self) -> bool:
        """Whether the lease is over, or was found to be taken away."""
        return bool(self.claim.lost) or self.inherited or self._state.world.now() >= self.claim.deadline

    def remaining(self) -> float:
        """Seconds for which the lease is certain, if nothing renews it; 0 when it is over."""
        return 0.0 if self.lost else max(0.0, self.claim.deadline - self._state.world.now())

    def ensure_held(self) -> None:
        """Raise `LockLost` if the lease is over, `NotHeld` after the release; no request is made."""
        self._mine()
        core.check(self._state.world, self.claim)

    async def renewed(self, ttl: float | None) -> None:
        """See `extend`."""
        self._mine()
        ttl = self.claim.ttl if ttl is None else seconds("ttl", ttl)
        await core.renew(self._state.world, self.claim, ttl)

    async def released(self) -> None:
        """See `release`."""
        await self._state.release(self)

    def _mine(self) -> None:
        if not self.is_open or self.inherited:
            message = f"this hold of {self.key!r} was released" if not self.is_open else f"{self.key!r}: held by a parent"
            raise NotHeld(message)


H = TypeVar("H", bound=Holding)


class LockState:
    """The state of one Lock object."""

    def __init__(  # noqa: PLR0913 - the public constructor's own arguments
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
        retry: Retry | tuple[int, int] = Retry(),  # noqa: B008 - an immutable tuple
        poll: WaitBaseT | None = None,
    ) -> None:
        """Check everything, before any request; the arguments are explained at `Lock`."""
        self.world = world
        self.key = _key(key)
        self.ttl = seconds("ttl", ttl)
        self.timeout = waiting(timeout)
        self.max_hold = NEVER if max_hold is None else seconds("max_hold", max_hold)
        self.auto_renew = auto_renew
        self.on_lost = on_lost
        self.note = _text("note", note, MAX_NOTE_BYTES)
        self.retry = _retry(retry)
        self.poll = poll
        self._given_owner = None if owner is None else _text("owner", owner, MAX_OWNER_BYTES)
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
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.newest = next(self._ids)
        return Claim(
            self.key,
            self.owner,
            self.newest,
            min(self.ttl, self.max_hold),
            self.world.mutex(),
            stamp=Record("", (), 0.0, since=since, host=self._host, pid=self._pid, note=self.note),
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
                f"lock {self.key!r} is held by {self.owner} (pid {self._pid} on {self._host}), in another thread or task "
                f"that uses the same Lock object, since {self._since} (waited {timeout:g} s)"
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
        self._since = claim.stamp.since
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


def seconds(name: str, value: float) -> float:
    """Check a length of time in seconds."""
    try:
        sound = math.isfinite(value) and value > 0
    except TypeError:
        message = f"{name} must be a number of seconds, not {value!r}"
        raise TypeError(message) from None
    if not sound:
        message = f"{name} must be finite and more than 0 seconds, not {value!r}"
        raise ValueError(message)
    return float(value)


def waiting(value: float | None) -> float | None:
    """Check a timeout in seconds; None is for ever, 0 one try."""
    return value if value is None or value == 0 else seconds("timeout", value)


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


class _Ending(NamedTuple):
    """A claim as `leave` wants it."""

    world: World
    claim: Claim

    async def release_last(self) -> None:
        """Release it."""
        await core.release(self.world, self.claim)


class Own(Enum):
    """Stands for "the timeout that the lock was made with"."""

    TIMEOUT = "the lock's own"


def wait_time(own: float | None, timeout: float | None | Own, *, blocking: bool) -> float | None:
    """Seconds to wait, from `threading.Lock.acquire`'s arguments."""
    if timeout is Own.TIMEOUT:
        return own if blocking else 0.0
    if not blocking and timeout != -1:
        message = "a timeout can't be given with blocking=False, which is one try"
        raise ValueError(message)
    if not blocking:
        return 0.0
    return None if timeout == -1 else waiting(timeout)


def _key(key: str) -> str:
    if not isinstance(key, str):
        message = f"key must be a str, not {type(key).__name__}"
        raise TypeError(message)
    if not 1 <= len(key) <= MAX_KEY:
        message = f"key must be 1 to {MAX_KEY:,} characters long, not {len(key):,}"
        raise ValueError(message)
    return _encodable("key", key)


def _text(name: str, text: str, most: int) -> str:
    if not isinstance(text, str):
        message = f"{name} must be a str, not {type(text).__name__}"
        raise TypeError(message)
    size = json_size(text)
    if size > most:
        message = f"{name} is too long: {size:,} bytes as JSON, at most {most:,}"
        raise ValueError(message)
    return _encodable(name, text)


def _encodable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{name} can't be encoded as UTF-8 (a lone surrogate at {error.start})"
        raise ValueError(message) from None
    return text


def _retry(retry: Retry | tuple[int, int]) -> Retry:
    checked = Retry(*retry)
    if not all(times in range(MAX_RETRY + 1) for times in checked):
        message = f"retry must be two numbers from 0 to {MAX_RETRY}, (get, put), not {retry!r}"
        raise ValueError(message)
    return checked
