"""The clients of a run do what users of the library do, with the real `LockState` and `MultiState`.

A thread that is interrupted takes back what it has begun, as `caslock.blocking` does; a task need not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from caslock.errors import CaslockError, StoreError, StoreUnavailable, with_notes
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiState
from caslock.local.stamps import Stamps
from caslock.protocol.attempt import LockSettings, Retry
from tests.proof.simulator.runtime import Flow, Runtime
from tests.proof.simulator.waits import NEVER, Cancelled, Wait

if TYPE_CHECKING:
    import threading

    from tenacity.wait import WaitBaseT

    from caslock.local.queue import LocalQueue
    from caslock.protocol.attempt import Attempt
    from caslock.protocol.record import Observed, Record
    from tests.proof.simulator.plan import ClientPlan, Round, Stay
    from tests.proof.simulator.run import Run

RELEASES = 3
"""How often a client releases what gave no answer."""

AGAIN = 0.5
"""Seconds for which a client waits to enter once more what it has entered."""


class NamedLockState(LockState):
    """The real one, but for its name, which chance would make."""

    def __init__(self, name: str, runtime: Runtime, key: str, plan: ClientPlan, poll: WaitBaseT | None) -> None:
        """Make the state of the Lock object `name`."""
        self.name = name
        self.process = runtime
        self._breaking = False
        settings = LockSettings(
            ttl=plan.ttl,
            owner=plan.owner,
            auto_renew=plan.auto_renew,
            max_hold=NEVER if plan.max_hold is None else plan.max_hold,
            min_hold=plan.min_hold or 0.0,
            retry=Retry(*plan.retry),
            poll=poll,
        )
        super().__init__(runtime, key, settings)
        self.begun()

    def _begin(self) -> None:
        super()._begin()
        self._nonce = self.name
        self._terms = terms = self._terms._replace(owner=self.settings.owner or self.name)
        self._stamps = Stamps(terms.owner, self.settings.ttl, "host", self.settings.note)

    def _attempt(self) -> Attempt:
        attempt = super()._attempt()
        if self._breaking:
            self._breaking = False
            self.process.run.judge.breaks[attempt.hold_id] = None
        else:
            cast("Client", attempt.caller).attempts += (attempt,)
        return attempt

    async def undo(self, attempt: Attempt, error: BaseException) -> None:
        """Note the error of the clean-up: an interrupt may take its place before the caller sees it."""
        try:
            await super().undo(attempt, error)
        except CaslockError as trouble:
            self.process.run.judge.undone(attempt, trouble)
            raise
        finally:
            self.process.run.judge.undone(attempt, error)

    async def force_release(self) -> Record | None:
        """Note the attempt that takes the key away, and what it has done."""
        self._breaking = True
        broken = await super().force_release()
        self.process.run.judge.broke(self, broken)
        return broken

    async def release(self, hold: Holding, limit: float = NEVER, removed: Observed | None = None) -> None:
        """Note when it begins and ends."""
        judge = self.process.run.judge
        judge.releasing(self)
        try:
            await super().release(hold, limit, removed)
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, CaslockError):
                judge.not_released(hold)
            judge.released(self)
            raise
        judge.released(self)

    @property
    def prefix(self) -> str:
        """The prefix of its hold ids."""
        return f"{self._nonce}."

    @property
    def attempts(self) -> dict[str, Attempt]:
        """All that wait, hold or are being released."""
        return self._attempts

    @property
    def guards(self) -> tuple[threading.RLock, threading.RLock]:
        """The guards that a thread may wait for: its own, and that of its local queue."""
        return self._guard, self._queue._guard

    @property
    def local_queue(self) -> LocalQueue:
        """The queue in which its attempts wait."""
        return self._queue

    @property
    def queued(self) -> tuple[list[Attempt | None], list[Attempt]]:
        """Who is inside the local queue of its key (None: an attempt that is gone), and who waits in it."""
        queue = self._queue
        return [reference() for reference in queue._inside], list(queue.waiting)

    @property
    def unsettled(self) -> Holding | None:
        """A hold whose release went without an answer."""
        return self._unsettled


class Client:
    """A thread or task."""

    def __init__(
        self, run: Run, plan: ClientPlan, process: Runtime, states: list[NamedLockState], others: list[NamedLockState]
    ) -> None:
        """Use the Lock objects `states`, and elsewhere `others` of the same owner."""
        self.run = run
        self.plan = plan
        self.name = plan.name
        self.process = process
        self.locations = states, others
        self.multis = [
            MultiState(location, Holds[Holding]) if len(location) > 1 else None for location in self.locations
        ]
        self.alive = True
        self.entered: list[tuple[Holding, ...]] = []  # what the program has to release, the newest last
        self.holding: tuple[Holding, ...] = ()  # what it believes that it holds: all of these
        self.attempts: tuple[Attempt, ...] = ()  # of the newest acquire
        self.prefixes = tuple(
            state.prefix for location in self.locations for state in location
        )  # of the ids of its holds
        self._others = 0
        self.silent = 0  # requests of it that got no answer

    def next_name(self) -> str:
        """Name another coroutine of this client."""
        self._others += 1
        return f"{self.name}'{self._others}"

    async def program(self) -> None:
        """Go through the rounds."""
        for _number, round_ in enumerate(
            self.plan.rounds
        ):  # two may be equal, but the fingerprint must tell them apart
            with suppress(CaslockError, Cancelled):
                await Wait(self.process.now() + round_.pause)
                await (self._break() if round_.breaks else self._round(round_))
            self.attempts = ()

    async def _round(self, round_: Round) -> None:
        await self._enter(0, round_.timeout)
        try:
            for _number, stay in enumerate(round_.body):
                await Wait(self.process.now() + stay.seconds)
                await self._do(stay)
        except (CaslockError, Cancelled) as error:
            self.run.judge.misses(self, error)
        while self.entered:
            await self._leave()

    async def _do(self, stay: Stay) -> None:
        if stay.does == "extend":
            await self._extend(stay.ttl)
        elif stay.does == "extend aside":
            self.run.start(Flow(self.next_name(), self, self._aside(stay.ttl), Wait()))
            await Wait(self.process.now())  # so that it may be the first
        elif stay.does == "enter":
            await self._enter(0, AGAIN)
        elif stay.does == "enter elsewhere":
            await self._enter(1 if self.locations[1] else 0, AGAIN)
        elif stay.does == "leave" and len(self.entered) > 1:
            await self._leave()
        elif stay.does == "break":
            await self._break()

    async def _enter(self, location: int, timeout: float | None) -> None:
        judge = self.run.judge
        self.run.current.begin()
        self.attempts = ()
        try:
            holds = await self._acquire(location, timeout)
        except (CaslockError, Cancelled) as error:
            judge.failed(self, error)
            raise
        self.entered.append(holds)
        self.holding += holds
        judge.acquired(self, holds)

    async def _extend(self, ttl: float | None) -> None:
        self.run.current.begin()
        try:
            for hold in self.entered[-1]:
                await self._renewed(hold, ttl)
        except StoreError as trouble:  # the lease may go on for a while, and so does the block
            self.run.tell(self.name, f"{type(trouble).__name__} at the extension")

    async def _aside(self, ttl: float | None) -> None:
        holds = self.entered[-1]
        with suppress(CaslockError, Cancelled):
            await Wait(self.process.now())
            for hold in holds:
                await self._renewed(hold, ttl)

    async def _renewed(self, hold: Holding, ttl: float | None) -> None:
        await hold._renewed(ttl)
        if ttl is not None and hold._attempt.terms.settings.max_hold == NEVER:
            self.run.judge.extended[hold._attempt.hold_id] = ttl

    async def _break(self) -> None:
        self.run.current.begin()
        for state in self.locations[0]:
            await state.force_release()

    async def _leave(self) -> None:
        judge, holds = self.run.judge, self.entered.pop()
        self.run.current.begin()
        judge.leaves(self, holds)
        self.holding = self.holding[: -len(holds)]
        loss: BaseException | None = None  # of several holds one may be lost, and another give no answer
        for tries in range(RELEASES):
            try:
                await self._release(holds)
            except StoreUnavailable as trouble:
                loss = trouble if "was lost" in with_notes(trouble) else loss
                self.run.tell(self.name, "no answer to the release")
            except (CaslockError, Cancelled) as trouble:
                if isinstance(trouble, CaslockError) or hasattr(trouble, "__notes__") or not any_open(holds):
                    judge.left(self, holds, trouble, again=tries > 0)
                    break
                self.run.tell(self.name, "interrupted twice at the release")
            else:
                judge.left(self, holds, loss)
                break

    async def _acquire(self, location: int, timeout: float | None) -> tuple[Holding, ...]:
        made: list[Holding] = []

        def make(state: LockState, attempt: Attempt) -> Holding:
            made.append(Holding(state, attempt))
            return made[-1]

        multi = self.multis[location]
        try:
            if multi is not None:
                return tuple(await multi.acquire(make, timeout))
            return (await self.locations[location][0].acquire(make, timeout),)
        except Cancelled as error:
            if self.process.threads:
                await self._take_back(location, made, error)
            raise

    async def _take_back(self, location: int, made: list[Holding], error: BaseException) -> None:
        try:
            for hold in reversed(made):
                if hold._is_open:
                    hold._keep_nothing()
                    try:
                        await self._release((hold,))
                    except CaslockError as trouble:
                        error.add_note(with_notes(trouble))
        except GeneratorExit:
            raise
        except Cancelled:
            await self._take_back_states(location, error)
            raise
        await self._take_back_states(location, error)

    async def _take_back_states(self, location: int, error: BaseException) -> None:
        for state in self.locations[location]:
            await state.take_back(error)

    async def _release(self, holds: tuple[Holding, ...]) -> None:
        released = Holds(holds)._released if len(holds) > 1 else holds[0]._released
        try:
            await released()
        except Cancelled:
            if self.process.threads:
                for hold in reversed(holds):
                    if hold._is_open:
                        with suppress(CaslockError):
                            await (self._release((hold,)) if len(holds) > 1 else hold._released())
            raise


def any_open(holds: tuple[Holding, ...]) -> bool:
    """Whether any of them is still to be released."""
    return any(hold._is_open for hold in holds)
