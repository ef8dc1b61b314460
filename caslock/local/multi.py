"""Several locks as one: taken in one order, all or nothing, and lost together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from caslock.errors import (
    CaslockError,
    LockLost,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    with_notes,
)
from caslock.local.hold import Holding
from caslock.local.holds import Holds, being_released
from caslock.protocol import batch
from caslock.protocol.lease import NEVER
from caslock.protocol.life import HAD, RELEASING
from caslock.protocol.limits import PASSES, last_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from caslock.local.lock_state import LockState
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.runtime import Runtime
    from caslock.store import AsyncIdentifiedStore, IdentifiedStore

H = TypeVar("H", bound=Holding)

Makes: TypeAlias = "Mapping[LockState, Callable[[LockState, Attempt], H]]"
"""What makes the holds of each lock."""

_NO_ANSWERS: Final[batch.Answers] = {}

M = TypeVar("M", bound=Holds[Holding])


class MultiState(Generic[H, M]):
    """The state of one MultiLock object, for both APIs."""

    def __init__(self, makes: Makes[H], gather: Callable[[list[H]], M], *, of_locks: bool) -> None:
        """Sort by location and stored name, as every process does, and count duplicates once.

        Args:
            makes: for the state of each lock, what makes its holds.
            gather: makes a hold of several.
            of_locks: whether users have lock objects with these states, which keep their holds, too.

        """
        self._makes, self._gather, self._of_locks = makes, gather, of_locks
        self.states: tuple[LockState, ...] = _sorted(
            ((state.runtime.store.traits.location, _stored_name(state)), state) for state in makes
        )
        if not self.states:
            message = "a MultiLock needs at least one key"
            raise ValueError(message)
        self.runtime: Runtime = self.states[0].runtime
        self._runtimes = list(dict.fromkeys(state.runtime for state in self.states))
        self.committed: dict[M, None] = {}  # what the MultiLock object keeps until its release

    def begin(self, make: Callable[[LockState, Attempt], H], caller: object = None) -> MultiAcquire[H]:
        """Return what `acquire` is to do; only who calls this refers to it, and nothing is sent."""
        del make  # each lock has its own
        return MultiAcquire(self.states, self._makes, caller)

    async def acquire(self, several: MultiAcquire[H], timeout: float | None) -> M:
        """Acquire every lock in order, or none, under one deadline; what its caller holds is re-entered.

        After an error, nothing is left behind.  After an interrupt, call `undo`.
        """
        several.begin(timeout, self.runtime.now())
        try:
            if len(self._runtimes) > 1:
                several.states = await self._identified()
            await several.acquire()
        except Exception as error:
            await several.give_back(error)
            raise
        self._forget_released()
        held = self._gather(several.taken)
        for hold in held if self._of_locks else ():
            hold._state.committed[hold] = True
        return held

    @staticmethod
    async def undo(several: MultiAcquire[H], error: BaseException) -> None:
        """Leave nothing behind of an acquire that was interrupted; it can be called again."""
        await several.give_back(error)

    async def _identified(self) -> tuple[LockState, ...]:
        """Sort by what the servers say they are: two stores may be one server, under other names in other processes."""
        servers = {runtime: await _server(runtime) for runtime in self._runtimes}
        return _sorted(((servers[state.runtime], _stored_name(state)), state) for state in self.states)

    def _forget_released(self) -> None:
        """Forget what was released; of what got no answer, the newest can be released again at the lock."""
        committed = tuple(self.committed)
        for held in committed:
            states = {hold._attempt.state for hold in held if hold._is_open}
            if not states or (states <= RELEASING and held is not committed[-1]):
                self.committed.pop(held, None)

    def newest_hold(self, me: object = None) -> M:
        """Return what `me` (None: this thread or task) has acquired last and not released."""
        me = me or self.runtime.me()
        self._forget_released()
        for held in reversed(tuple(self.committed)):
            if all(hold._attempt.caller is me for hold in held):  # `acquire` may have re-entered holds of two tasks
                return held
        keys = ", ".join(repr(state.key) for state in self.states)
        message = f"the MultiLock of {keys} is not held by this thread or task"
        raise NotHeld(message)


class MultiAcquire(Generic[H]):
    """One acquire call of a MultiLock.

    While it waits for one key, it keeps no key that sorts after that one from others: it has no lease of it, no put
    that may still land, no turn in the local queue, and so no hand-over that is to reach it.  All wait in the
    same order, so the owner of the last key in that order never waits: there is no deadlock.
    """

    def __init__(self, states: Sequence[LockState], makes: Makes[H], caller: object = None) -> None:
        """Begin with nothing."""
        self.states = states
        self._makes = makes
        self._caller = caller
        self._holds: dict[LockState, H] = {}  # also of the keys that are not held (yet)
        self._timeout: float | None = None
        self._began = 0.0
        self._limit = NEVER

    def begin(self, timeout: float | None, now: float) -> None:
        """Note the one deadline for all keys."""
        self._timeout, self._began = timeout, now
        self._limit = NEVER if timeout is None else now + timeout

    @property
    def taken(self) -> list[H]:
        """The holds, in the order of their keys."""
        return [self._holds[state] for state in self.states if self._has(state)]

    @property
    def _each(self) -> Sequence[H]:
        """What it has begun to acquire."""
        return tuple(self._holds.values())

    def _has(self, state: LockState) -> bool:
        return state in self._holds and self._holds[state]._is_open

    async def acquire(self) -> None:
        """Acquire every lock in order: with each, all that are free at that moment and can travel together."""
        for index, state in enumerate(self.states):
            if self._re_enter(state):
                continue
            entered, answers = await self._take_free(self.states[index:])
            if not self._has(state):
                await self._win(state, entered=entered, answers=answers)
        for hold in self.taken:  # the first lease must have outlasted the last acquire
            hold.ensure_held()

    async def give_back(self, error: BaseException) -> None:
        """Give back what was taken, after a failure; raises `OutcomeUnknown` if that may have failed as well."""
        if not self._holds:
            return
        limit = last_start(self.states[0].runtime, self._limit)
        stuck = await self._roll_back(error, limit)
        unsure = [with_notes(trouble) for trouble in stuck if isinstance(trouble, (StoreError, ValueError))]
        left = [hold._attempt for hold in self._each if hold._attempt.state in RELEASING]
        unsure += [f"{each.loss}; its record expires within {each.lease.ttl:g} s" for each in left]
        if unsure and isinstance(error, NotAcquired):
            message = f"could not acquire all keys, and those acquired may not have been released: {unsure[0]}"
            unknown = OutcomeUnknown(message)
            unknown.key, unknown.location = error.key, error.location
            raise unknown from error

    async def _roll_back(self, failure: BaseException, limit: float) -> list[CaslockError | ValueError]:
        """Give back what was taken; return the errors of what could not be, and is released in the background.

        After a failure, no request begins at or after `limit`, nor after one request timeout if we were interrupted.
        """
        stuck: list[CaslockError | ValueError] = []
        begun = [(state, hold) for state, hold in self._holds.items() if hold._attempt.state not in HAD]
        holds = [hold for hold in self.taken if hold._attempt.state in HAD]
        interrupted = not isinstance(failure, (CaslockError, ValueError))  # a signal handler may raise any error
        if interrupted:  # one limit for all
            attempts = [hold._attempt for hold in self._each]
            now = attempts[0].runtime.now()
            limit = min([limit, *(last_start(attempt.runtime, now) for attempt in attempts)])
            for attempt in attempts:
                attempt.limit = min(attempt.limit, now)
        for state, hold in reversed(begun):
            with _noting(failure, stuck):
                await state.undo(hold, failure.__cause__ or failure if isinstance(failure, StoreError) else failure)
        for hold in holds:
            hold._keep_nothing()
        hangs = interrupted or isinstance(failure, StoreUnavailable)  # the store hangs, or may hang
        late = hangs and bool(holds) and holds[0]._state.runtime.now() >= limit
        with _noting(failure, stuck):  # what was re-entered needs no request
            await Holds([hold for hold in holds if not late or hold._attempt.levels != [hold]])._released(limit)
        for hold in holds:
            if hold._attempt.levels == [hold]:
                hold._state.release_later(hold)
                hold._attempt.levels.clear()  # nobody else has it: it is not released once more
                with _noting(failure, stuck):
                    raise being_released(hold)
        return stuck

    def _re_enter(self, state: LockState) -> bool:
        """Enter what the caller holds already; False: it does not hold the key."""
        hold = self._holds.get(state)
        if hold is None:
            hold = self._holds[state] = state.begin(self._makes[state], self._caller)
        if hold._is_open or state.re_enter(hold):
            return True
        hold._attempt.limit = self._limit
        return False

    async def _win(self, state: LockState, *, entered: bool, answers: batch.Answers = _NO_ANSWERS) -> None:
        """Wait for one key, as a single Lock does; `answers`: to first puts that were sent together."""
        left = max(0.0, self._limit - state.runtime.now())
        since = self._began if len(self.states) > 1 else None
        hold = self._holds[state]
        await state.win(hold, left, entered=entered, since=since, first=answers.get(hold._attempt))

    async def _take_free(self, states: Sequence[LockState]) -> tuple[bool, batch.Answers]:
        """Take the first of `states`, and with it those that follow, if they are free now: waits for nobody.

        On return it occupies no key after the first one that it could not take.  If the first is not held then,
        returns what `_win` needs: whether it is our turn in this process for that key, and the answers to first puts.
        """
        group = await self._enter_queues(states)
        entered, answers = group[:1] == [states[0]], _NO_ANSWERS
        for _ in range(PASSES):
            if len(group) < 2:  # noqa: PLR2004 - one alone is no batch
                break
            attempts = [self._holds[state]._attempt for state in group]
            shown = await batch.put_together(group[0].runtime, attempts, answers)
            answers = shown or _NO_ANSWERS
            # After no answer nothing is shown: then `_settle` asks for each.
            if shown is not None and all(each.is_in(observed.record) for each, observed in shown.items()):
                await self._settle(group, answers)
                return False, _NO_ANSWERS
            busy = 0 if shown is None else _first_busy(attempts, shown)
            if busy == len(group):
                continue  # nobody holds them: once more, at the versions that are there
            if self._timeout == 0:  # it never waits, so the order is free: try the busy key first
                for state in sorted(group, key=lambda state: state is not group[busy]):
                    await self._win(state, entered=True, answers=answers)
                return False, _NO_ANSWERS
            del group[max(1, busy) :]
            await self._let_go(self.states.index(group[-1]) + 1)
        if len(group) > 1:  # gave up: the records kept changing
            await self._let_go(self.states.index(group[1]))
        if group and not entered:  # the first was won alone, as nothing waits
            await self._win(group[0], entered=True, answers=answers)
            return False, _NO_ANSWERS
        return entered, answers

    async def _enter_queues(self, states: Sequence[LockState]) -> list[LockState]:
        """Take our turn at as many keys as have nobody else in this process, in order, and can travel together."""
        group: list[LockState] = []
        for state in states:
            runtime = state.runtime
            if group and (runtime.batching is None or runtime is not group[0].runtime):
                break
            if self._re_enter(state):
                continue
            attempt = self._holds[state]._attempt
            is_open = state.enter_at_once(attempt)
            if self._timeout == 0:
                if is_open:
                    group.append(state)
                else:
                    await self._win(state, entered=False)
                continue
            if not is_open or (group and attempt.turn.yields):
                await state.step_back(self._holds[state])
                break
            group.append(state)
            if attempt.turn.yields:
                break
        return group

    async def _settle(self, group: list[LockState], answers: batch.Answers) -> None:
        """Make holds of what was put together; where a put got no answer, that may fail."""
        for state in group:
            hold = self._holds[state]
            if not await state.settle(hold, answers.get(hold._attempt), self._began):
                await self._let_go(self.states.index(state))
                return

    async def _let_go(self, index: int) -> None:
        """Give back the key at `index` and those after it."""
        for state in reversed(self.states[index:]):
            hold = self._holds.get(state)
            if hold is not None and hold._is_open:
                hold._keep_nothing()
                await hold._released(last_start(state.runtime, self._limit))
                del self._holds[state]
            elif hold is not None:
                await state.step_back(hold)


def _first_busy(attempts: Sequence[Attempt], answers: batch.Answers) -> int:
    """Return the index of the first key that another owner holds; if there is none, the number of keys."""
    free = [attempt.may_take(answers[attempt].record) for attempt in attempts]
    return free.index(False) if False in free else len(free)


def _sorted(named: Iterable[tuple[tuple[str, str], LockState]]) -> tuple[LockState, ...]:
    states: dict[tuple[str, str], LockState] = {}
    for name, state in named:
        known = states.setdefault(name, state)
        if known.kind != state.kind:
            message = f"{state.key!r} can't be both {known.kind} and {state.kind}: use a key of its own for each"
            raise ValueError(message)
        states[name] = state
    return tuple(states[name] for name in sorted(states))


def _stored_name(state: LockState) -> str:
    home = state.runtime.home
    return cast("IdentifiedStore", home).stored_name(state.key) if hasattr(home, "stored_name") else state.key


async def _server(runtime: Runtime) -> str:
    """Return the name of the store's server: its own if it reports one, else the location of the store."""
    said: str | None = None
    if hasattr(runtime.home, "identify"):
        store = cast("AsyncIdentifiedStore", runtime.store)
        try:
            said = await store.identify()
        except StoreUnavailable:  # once more, as any read: the server may have been restarted
            said = await store.identify()
    return said or runtime.store.traits.location


@contextmanager
def _noting(failure: BaseException, stuck: list[CaslockError | ValueError]) -> Iterator[None]:
    """Add an error of the roll-back as a note to the failure that has caused it."""
    try:
        yield
    except (CaslockError, ValueError) as trouble:
        if isinstance(trouble, (OutcomeUnknown, LockLost)) or trouble.__cause__ is not (failure.__cause__ or failure):
            stuck.append(trouble)
            failure.add_note(with_notes(trouble))
