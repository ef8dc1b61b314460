"""The clients of a run do what users of the library do, with the real `LockState` and `MultiState`.

Who is interrupted or cancelled has that finished in another flow, as `caslock.blocking` and `caslock.aio` have it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from caslock.errors import CaslockError, StoreError, StoreUnavailable, with_notes
from caslock.local import linger, tickets
from caslock.local.hold import Holding
from caslock.local.holds import Holds
from caslock.local.lock_state import LockState
from caslock.local.multi import MultiState
from caslock.local.read_write import ReadWriteState
from caslock.local.stamps import Stamps
from caslock.protocol.attempt import Attempt, LockSettings, Retry
from caslock.protocol.life import State
from caslock.protocol.transfer import Ticket, read_ticket
from tests.proof.simulator.runtime import Flow, Runtime
from tests.proof.simulator.waits import NEVER, Cancelled, Posted, Wait

if TYPE_CHECKING:
    import threading

    from tenacity.wait import WaitBaseT

    from caslock.local.queue import LocalQueue
    from caslock.protocol.exchange import Sent
    from caslock.protocol.record import Observed, Record
    from tests.proof.simulator.plan import ClientPlan, Round, Stay
    from tests.proof.simulator.run import Run


RELEASES = 3
"""How often a client releases what gave no answer."""

AGAIN = 0.5
"""Seconds for which a client waits to enter once more what it has entered."""


def settings_of(plan: ClientPlan, poll: WaitBaseT | None) -> LockSettings:
    """Return the settings of a client's lock."""
    return LockSettings(
        ttl=plan.ttl,
        owner=plan.owner,
        auto_renew=plan.auto_renew,
        max_hold=NEVER if plan.max_hold is None else plan.max_hold,
        min_hold=plan.min_hold or 0.0,
        linger=plan.linger or 0.0,
        retry=Retry(*plan.retry),
        poll=poll,
    )


class NamedLockState(LockState):
    """The real one, but for its name, which chance would make."""

    _breaking = False

    def __init__(
        self, name: str, runtime: Runtime, key: str, plan: ClientPlan, poll: WaitBaseT | None, *more: object
    ) -> None:
        """Make one with the settings of `plan`; what the state of another kind of lock needs `more` comes last."""
        self.name, self.process = name, runtime
        super().__init__(runtime, key, settings_of(plan, poll), *more)
        self.begun()

    def _begin(self) -> None:
        super()._begin()
        self._known: dict[str, Attempt] = {}
        self._nonce = self.name
        self._terms = self._terms._replace(owner=self.settings.owner or self.name)
        self._stamps = Stamps(self._terms, "host")

    def _attempt(self, kind: type[Attempt] | None = None) -> Attempt:
        attempt = super()._attempt(kind)
        self._known[attempt.hold_id] = attempt
        if self._breaking:
            self._breaking = False
            self.process.run.judge.breaks[attempt.hold_id] = None
        else:
            cast("Client", attempt.caller).attempts += (attempt,)
        return attempt

    def begin_adoption(self, ticket: Ticket) -> Holding:
        """Begin to adopt with the settings of the ticket, as `SingleLock._adoption` does."""
        settings = self.settings._replace(ttl=min(ticket.ttl, ticket.max_hold), max_hold=ticket.max_hold)
        self._terms = self._terms._replace(settings=settings)
        return tickets.begin(self, Holding, ticket)

    async def undo(self, hold: Holding, error: BaseException) -> None:
        """Note how it ends: its caller may wait no longer."""
        before, flow = hold._attempt.state, self.process.run.current
        flow.undoes = True
        try:
            await super().undo(hold, error)
        except CaslockError as trouble:
            self.process.run.judge.undone(hold._attempt, trouble)
            raise
        finally:
            flow.undoes = False
        if before is not State.OVER:
            self.process.run.judge.undone(hold._attempt, error)

    async def force_release(self) -> Record | None:
        """Note the attempt that takes the key away, and what it has done."""
        self._breaking = True
        broken = await super().force_release()
        self.process.run.judge.broke(self, broken)
        return broken

    async def release(self, hold: Holding, limit: float = NEVER, removed: Observed | Sent | None = None) -> None:
        """Note when it begins and ends."""
        judge = self.process.run.judge
        judge.releasing(self)
        try:
            await super().release(hold, limit, removed)
        except CaslockError:
            judge.not_released(hold)
            judge.released(self)
            raise
        except Cancelled:  # it goes on in another flow
            judge.released(self, over=False)
            raise
        judge.released(self)

    @property
    def prefix(self) -> str:
        """The prefix of its hold ids."""
        return f"{self._nonce}."

    @property
    def attempts(self) -> dict[str, Attempt]:
        """All that wait, hold or are being released."""
        begun = State.ASKING, State.WITHDRAWING
        known = self._known.items()
        self._known = {name: attempt for name, attempt in known if name in self._held or attempt.state in begun}
        return self._known

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
    def __init__(
        self,
        run: Run,
        plan: ClientPlan,
        process: Runtime,
        states: list[NamedLockState],
        others: list[NamedLockState],
        *,
        adopting: list[NamedLockState],
    ) -> None:
        """Use the Lock objects `states`, elsewhere `others` of the same owner, and `adopting` for what is adopted."""
        self.run = run
        self.plan = plan
        self.name = plan.name
        self.process = process
        self.locations = states, others
        self.adopting = {state.key: state for state in adopting}
        self.multis = [
            MultiState(dict.fromkeys(location, Holding), Holds[Holding], of_locks=True) if len(location) > 1 else None
            for location in self.locations
        ]
        self.alive = True
        self.entered: list[tuple[Holding, ...]] = []  # what the program has to release, the newest last
        self.holding: tuple[Holding, ...] = ()  # what it believes that it holds: all of these
        self.attempts: tuple[Attempt, ...] = ()  # of the newest acquire
        self.prefixes = tuple(
            state.prefix for location in (*self.locations, adopting) for state in location
        )  # of the ids of its holds
        self.silent = 0  # requests of it that got no answer

    def next_name(self) -> str:
        """Name another coroutine of this client, by the first number that none has now."""
        return next(name for number in count(1) if (name := f"{self.name}'{number}") not in self.run.flows)

    async def program(self) -> None:
        for _number, round_ in enumerate(
            self.plan.rounds
        ):  # two may be equal, but the fingerprint must tell them apart
            with suppress(CaslockError, Cancelled):
                await Wait(self.process.now() + round_.pause)
                await (self._break() if round_.breaks else self._round(round_))
            self.attempts = ()

    async def _round(self, round_: Round) -> None:
        if not await (self._adopt(round_) if round_.adopts else self._enter(0, round_.timeout)):
            return
        try:
            for _number, stay in enumerate(round_.body):
                if not self.entered:  # it was handed over
                    break
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
        elif stay.does == "enter" and not self._has_downgraded:
            await self._enter(0, AGAIN)
        elif stay.does == "downgrade" and self.holding:
            await self._downgrade(self.holding[-1])
        elif stay.does == "enter elsewhere":
            await self._enter(1 if self.locations[1] else 0, AGAIN)
        elif stay.does == "leave" and len(self.entered) > 1:
            await self._leave()
        elif stay.does == "break":
            await self._break()
        elif stay.does == "hand over" and len(self.holding) == 1:
            await self._hand_over(self.holding[0])

    @property
    def _has_downgraded(self) -> bool:
        begun_with: tuple[LockState, ...] = tuple(self.locations[0])
        return any(isinstance(hold._state, ReadWriteState) and hold._state not in begun_with for hold in self.holding)

    async def _downgrade(self, hold: Holding) -> None:
        if isinstance(hold._state, ReadWriteState) and hold._attempt.levels == [hold]:
            self.run.current.begin()
            self.run.tell(self.name, "wants to read from now on")
            try:
                await hold._state.downgrade(hold)
            except StoreError as trouble:  # a renewal does it
                self.run.tell(self.name, f"{type(trouble).__name__} at the downgrade")

    async def _hand_over(self, hold: Holding) -> None:
        self.run.current.begin()
        try:
            text = await hold._state.hand_over(hold)
        except StoreError as trouble:  # it is still ours
            self.run.tell(self.name, f"{type(trouble).__name__} at the hand-over")
            return
        ticket = read_ticket(text)
        self.entered.clear()
        self.holding = ()
        self.run.tickets.append(ticket)
        self.run.judge.handed_over(self, ticket)

    async def _adopt(self, round_: Round) -> bool:
        judge, posted = self.run.judge, Posted(self.run.tickets, self.plan.keys, self._until(round_.timeout))
        await posted
        ticket = posted.newest
        if ticket is None or not ticket.max_hold:
            return False
        self.run.current.begin()
        self.attempts = ()
        try:
            hold = await self._adopted(self.adopting[ticket.key], ticket)
        except (CaslockError, Cancelled) as error:
            judge.not_adopted(self, error)
            raise
        self.entered.append((hold,))
        self.holding += (hold,)
        judge.adopted(self, hold, ticket)
        return True

    def _until(self, timeout: float | None) -> float:
        return NEVER if timeout is None else self.process.now() + timeout

    async def _adopted(self, state: NamedLockState, ticket: Ticket) -> Holding:
        begun = state.begin_adoption(ticket)
        try:
            hold = await tickets.adopt(begun)
        except Cancelled as error:
            await self.process.finish(begun._each, partial(state.undo, begun, error), error)
            raise
        state.committed[hold] = None
        return hold

    async def _enter(self, location: int, timeout: float | None) -> bool:
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
        return True

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
        state = holds[0]._state
        if len(holds) == 1 and state.settings.linger and linger.keep(state, holds[0]):
            judge.lingers(self, holds[0])
            return
        loss: BaseException | None = None  # of several holds one may be lost, and another give no answer
        interrupts: list[BaseException] = []
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
                interrupts += [trouble, trouble.__context__ or trouble]  # the first one gets the notes of the clean-up
                self.run.tell(self.name, "interrupted twice at the release")
            else:
                told = next((each for each in interrupts if "was lost" in with_notes(each)), None)  # meanwhile
                judge.left(self, holds, loss or told)
                break

    async def _acquire(self, location: int, timeout: float | None) -> tuple[Holding, ...]:
        state = self.multis[location] or self.locations[location][0]
        begun: Any = state.begin(Holding)
        try:
            held: Any = await state.acquire(begun, timeout)
        except Cancelled as error:
            await self.process.finish(begun._each, partial(state.undo, begun, error), error)
            raise
        state.committed[held] = None
        return tuple(held) if isinstance(held, Holds) else (held,)

    async def _release(self, holds: tuple[Holding, ...]) -> None:
        held = Holds(holds) if len(holds) > 1 else holds[0]
        try:
            await held._released()
        except Cancelled as error:
            await self.process.finish(held._each, held._released, error)
            raise


def any_open(holds: tuple[Holding, ...]) -> bool:
    """Whether any of them is still to be released."""
    return any(hold._is_open for hold in holds)
