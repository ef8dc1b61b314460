"""The law of this file: several locks are always taken in one order, all or nothing, and lost together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from caslock import core
from caslock.claim import NEVER
from caslock.errors import CaslockError, LockLost, NotAcquired, NotHeld, OutcomeUnknown, StoreError, told
from caslock.hold import Holding

if TYPE_CHECKING:
    from collections.abc import Callable

    from caslock.claim import Claim
    from caslock.lockstate import LockState

H = TypeVar("H", bound=Holding)
H_co = TypeVar("H_co", bound=Holding, covariant=True)
L = TypeVar("L")


class Holds(Generic[H_co]):
    """The holds of several keys, which are taken, lost and released together."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Sequence[H_co]) -> None:
        """Take them in the order in which they were acquired."""
        self._holds = tuple(holds)

    def __repr__(self) -> str:
        """Say which keys, and for how long."""
        keys = ", ".join(repr(hold.key) for hold in self)
        return f"<{type(self).__name__} of {keys}: {self.remaining():.3g} s remaining>"

    def __iter__(self) -> Iterator[H_co]:
        """Go through the holds in the order in which they were acquired."""
        return iter(self._holds)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._holds)

    def __getitem__(self, key: str) -> H_co:
        """Give the hold of `key` (where several stores have that key: of the first in order)."""
        for hold in self._holds:
            if hold.key == key:
                return hold
        raise KeyError(key)

    @property
    def fences(self) -> dict[str, int]:
        """The fencing number of each key."""
        return {hold.key: hold.fence for hold in self._holds}

    @property
    def lost(self) -> bool:
        """Whether any lease is over: loss of one is loss of all."""
        return any(hold.lost for hold in self._holds)

    def remaining(self) -> float:
        """Seconds for which all leases are certain, if nothing renews them."""
        return min(hold.remaining() for hold in self._holds)

    def ensure_held(self) -> None:
        """Raise `LockLost` if any lease is over, `NotHeld` after the release; no request is made."""
        for hold in self._holds:
            hold.ensure_held()

    async def renewed(self, ttl: float | None) -> None:
        """Extend every hold."""
        for hold in self._holds:
            await hold.renewed(ttl)

    async def released(self) -> None:
        """Release every hold in reverse, all of them even when one release raises; then raise the first trouble.

        Where the store can, what leaves nothing behind travels as one request.
        """
        failure = await self._leave_together()
        for hold in reversed(self._holds):
            if not hold.is_open:
                continue
            try:
                await hold.released()
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - raised once the rest is released
                failure = _worse(failure, error)
        if failure is not None:
            raise failure

    async def _leave_together(self) -> BaseException | None:
        """Release as one request what can be; gives what has interrupted that."""
        leaving = [hold for hold in reversed(self._holds) if hold.leaves_key]
        if len(leaving) > 1 and all(hold.world.home is leaving[0].world.home for hold in leaving):
            try:
                await core.leave_together(leaving[0].world, [hold.claim for hold in leaving])
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - raised once all is released
                return error
        return None


M = TypeVar("M", bound=Holds[Holding])


class MultiState(Generic[M]):
    """The state of one MultiLock object, for both APIs."""

    def __init__(self, states: Iterable[LockState]) -> None:
        """Sort by place and key, which every process does alike, and count duplicates once."""
        by_name = {(state.world.store.traits.place, state.key): state for state in states}
        if not by_name:
            message = "a MultiLock needs at least one key"
            raise ValueError(message)
        self.states = tuple(by_name[name] for name in sorted(by_name))
        self._world = self.states[0].world
        one_store = all(state.world.home is self._world.home for state in self.states)
        self._batches = one_store and len(self.states) > 1 and self._world.batching is not None
        self._held: list[tuple[object, M]] = []

    async def acquire(
        self, make: Callable[[LockState, Claim], H], gather: Callable[[list[H]], M], timeout: float | None
    ) -> M:
        """Acquire every lock in order, or none, under one deadline."""
        limit = NEVER if timeout is None else self._world.now() + timeout
        holds: dict[LockState, H] = {}
        begun: dict[LockState, Claim] = {}

        def left() -> float | None:
            return None if timeout is None else max(0.0, limit - self._world.now())

        try:
            if self._batches:
                await self._bid_together(make, left, holds, begun)
            for state in self.states:
                if state in begun:
                    holds[state] = await state.win(begun.pop(state), make, left(), entered=True)
                elif state not in holds:
                    holds[state] = await state.acquire(make, left())
            for hold in holds.values():  # the first lease must have outlasted the last acquire
                hold.ensure_held()
        except GeneratorExit:
            raise
        except BaseException as error:
            stuck: list[CaslockError] = []
            await self._world.finish(partial(_roll_back, begun, list(holds.values()), error, stuck))
            unsure = [trouble for trouble in stuck if isinstance(trouble, StoreError)]
            if unsure and isinstance(error, NotAcquired):
                message = (
                    f"not all keys were had, and what was had could not be given back for certain: {told(unsure[0])}"
                )
                raise OutcomeUnknown(message) from error
            raise
        held = gather([holds[state] for state in self.states])
        self._forget_released()
        self._held.append((self._world.me(), held))
        return held

    async def _bid_together(
        self,
        make: Callable[[LockState, Claim], H],
        left: Callable[[], float | None],
        holds: dict[LockState, H],
        begun: dict[LockState, Claim],
    ) -> None:
        """Wait for our turn at each key in this process, in order, then send the first puts of all as one request."""
        for state in self.states:
            hold = state.re_enter(make)
            if hold is not None:
                holds[state] = hold
            else:
                begun[state] = state.begin()
                await state.enter(begun[state], left())
        await core.bid_together(self._world, list(begun.values()))

    def _forget_released(self) -> None:
        for entry in tuple(self._held):
            if not any(hold.is_open for hold in entry[1]):
                with suppress(ValueError):  # another thread has been faster
                    self._held.remove(entry)

    def me(self) -> object:
        """Identity of the thread or task that runs."""
        return self._world.me()

    def newest_holds(self) -> M:
        """Give what this thread or task has acquired last and not released."""
        me = self._world.me()
        self._forget_released()
        for by, held in reversed(self._held):
            if by is me:
                return held
        message = f"{', '.join(repr(state.key) for state in self.states)}: not held by this thread or task"
        raise NotHeld(message)


def _worse(failure: BaseException | None, error: BaseException) -> BaseException:
    """Give the one to raise, with the other as its note.

    An interrupt comes before all errors, and a loss before a silence: what gave no answer can be released again.
    """
    if failure is None:
        return error
    interrupts = isinstance(failure, Exception) and not isinstance(error, Exception)
    if interrupts or (isinstance(error, LockLost) and isinstance(failure, StoreError)):
        failure, error = error, failure
    failure.add_note(told(error))
    return failure


async def _roll_back(
    begun: dict[LockState, Claim], holds: list[H], failure: BaseException, stuck: list[CaslockError]
) -> None:
    """Give back what was had, and tell in `stuck` what could not be."""
    for state in reversed(begun):
        with _noting(failure, stuck):
            await state.undo(begun[state], failure)
    with _noting(failure, stuck):
        await Holds(holds).released()


@contextmanager
def _noting(failure: BaseException, stuck: list[CaslockError]) -> Iterator[None]:
    """Let trouble on the way back be a note to what has sent us back."""
    try:
        yield
    except CaslockError as trouble:
        stuck.append(trouble)
        failure.add_note(told(trouble))


def given_keys(keys: Iterable[str]) -> list[str]:
    """Check that several keys were given, and not one string of characters."""
    if isinstance(keys, str):
        message = f"keys must be several: [{keys!r}], not {keys!r}"
        raise TypeError(message)
    return list(keys)


def given_locks(locks: object, kind: type[L]) -> list[L]:
    """Check that locks were given."""
    given: list[object] = list(locks) if isinstance(locks, Iterable) else []
    found = [lock for lock in given if isinstance(lock, kind)]
    if not isinstance(locks, Iterable) or len(found) != len(given):
        message = f"give a store and its keys, or several {kind.__name__}s, not {locks!r}"
        raise TypeError(message)
    return found
