"""The law of this file: a client does what a user of the library does, with the real `LockState` and `MultiState`.

A thread that is interrupted takes back what it has begun, as `caslock.blocking` does; a task need not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from caslock.errors import CaslockError, StoreError, StoreUnavailable, told
from caslock.hold import Holding
from caslock.lockstate import LockState
from caslock.multi import Holds, MultiState
from caslock.testing.simulate.waits import Cancelled, Wait
from caslock.testing.simulate.world import Flow, World

if TYPE_CHECKING:
    import threading

    from tenacity.wait import WaitBaseT

    from caslock.claim import Claim
    from caslock.record import Record
    from caslock.testing.simulate.plan import ClientPlan, Round, Stay
    from caslock.testing.simulate.run import Run
    from caslock.turnstile import Turnstile

RELEASES = 3
"""How often a client releases what gave no answer."""

AGAIN = 0.5
"""Seconds for which a client waits to enter once more what it has entered."""


class NamedLockState(LockState):
    """The real one, but for its name, which chance would make."""

    def __init__(self, name: str, world: World, key: str, plan: ClientPlan, poll: WaitBaseT | None) -> None:
        """Make the state of the Lock object `name`."""
        self.name = name
        self.process = world
        self._breaking = False
        super().__init__(
            world,
            key,
            ttl=plan.ttl,
            owner=plan.owner,
            retry=plan.retry,
            auto_renew=plan.auto_renew,
            max_hold=plan.max_hold,
            poll=poll,
        )

    def _begin(self) -> None:
        super()._begin()
        self._nonce, self._host = self.name, "host"
        self.owner = self._given_owner or self.name
        self._terms = self._terms._replace(owner=self.owner)

    def _claim(self) -> Claim:
        claim = super()._claim()
        if self._breaking:
            self._breaking = False
            self.process.run.judge.breaks[claim.hold] = None
        else:
            cast("Client", claim.by).attempts += (claim,)
        return claim

    async def undo(self, claim: Claim, error: BaseException) -> None:
        """Tell the judge what was told of it: an interrupt of this may take the place of the error that tells."""
        try:
            await super().undo(claim, error)
        except CaslockError as trouble:
            self.process.run.judge.undone(claim, trouble)
            raise
        finally:
            self.process.run.judge.undone(claim, error)

    async def break_(self) -> Record | None:
        """Tell the judge whose hand it is, and what it has done."""
        self._breaking = True
        broken = await super().break_()
        self.process.run.judge.broke(self, broken)
        return broken

    async def release(self, hold: Holding) -> None:
        """Tell the judge when it begins and ends."""
        judge = self.process.run.judge
        judge.releasing(self)
        try:
            await super().release(hold)
        except GeneratorExit:
            raise
        except BaseException:
            judge.released(self)
            raise
        judge.released(self)

    @property
    def prefix(self) -> str:
        """What the ids of its holds begin with."""
        return f"{self._nonce}."

    @property
    def claims(self) -> dict[str, Claim]:
        """All that wait, hold or are being released."""
        return self._claims

    @property
    def guards(self) -> tuple[threading.Lock, threading.Lock]:
        """What a thread may have to wait for: its own, and that of its turnstile."""
        return self._guard, self._turnstile._guard  # noqa: SLF001 - nobody else looks

    @property
    def turnstile(self) -> Turnstile:
        """The queue that its claims stand in."""
        return self._turnstile

    @property
    def unsettled(self) -> Holding | None:
        """A hold whose release went without an answer."""
        return self._unsettled


class Client:
    """A thread or task."""

    def __init__(
        self, run: Run, plan: ClientPlan, process: World, states: list[NamedLockState], others: list[NamedLockState]
    ) -> None:
        """Use the Lock objects `states`, and elsewhere `others` of the same owner."""
        self.run = run
        self.plan = plan
        self.name = plan.name
        self.process = process
        self.places = states, others
        self.multis = [MultiState[Holds[Holding]](place) if len(place) > 1 else None for place in self.places]
        self.alive = True
        self.entered: list[tuple[Holding, ...]] = []  # what the program has to leave, the newest last
        self.holding: tuple[Holding, ...] = ()  # what it believes that it holds: all of these
        self.attempts: tuple[Claim, ...] = ()  # of the newest acquire
        self.prefixes = tuple(state.prefix for place in self.places for state in place)  # of the ids of its holds
        self._others = 0
        self.silent = 0  # requests of it that got no answer

    def next_name(self) -> str:
        """Name another coroutine of this client."""
        self._others += 1
        return f"{self.name}'{self._others}"

    async def program(self) -> None:
        """Go through the rounds."""
        for _number, round_ in enumerate(self.plan.rounds):  # two may be alike, but not to the fingerprint
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
            await self._enter(1 if self.places[1] else 0, AGAIN)
        elif stay.does == "leave" and len(self.entered) > 1:
            await self._leave()
        elif stay.does == "break":
            await self._break()

    async def _enter(self, place: int, timeout: float | None) -> None:
        judge = self.run.judge
        self.run.current.begin()
        self.attempts = ()
        try:
            holds = await self._acquire(place, timeout)
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
                await hold.renewed(ttl)
        except StoreError as trouble:  # the lease may go on for a while, and so does the body
            self.run.tell(self.name, f"{type(trouble).__name__} at the extension")

    async def _aside(self, ttl: float | None) -> None:
        holds = self.entered[-1]
        with suppress(CaslockError, Cancelled):
            await Wait(self.process.now())
            for hold in holds:
                await hold.renewed(ttl)

    async def _break(self) -> None:
        self.run.current.begin()
        for state in self.places[0]:
            await state.break_()

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
                loss = trouble if "was lost" in told(trouble) else loss
                self.run.tell(self.name, "no answer to the release")
            except (CaslockError, Cancelled) as trouble:
                if isinstance(trouble, CaslockError) or hasattr(trouble, "__notes__") or not any_open(holds):
                    judge.left(self, holds, trouble, again=tries > 0)
                    break
                self.run.tell(self.name, "interrupted twice at the release")
            else:
                judge.left(self, holds, loss)
                break

    async def _acquire(self, place: int, timeout: float | None) -> tuple[Holding, ...]:
        made: list[Holding] = []

        def make(state: LockState, claim: Claim) -> Holding:
            made.append(Holding(state, claim))
            return made[-1]

        multi = self.multis[place]
        try:
            if multi is not None:
                return tuple(await multi.acquire(make, Holds, timeout))
            return (await self.places[place][0].acquire(make, timeout),)
        except Cancelled as error:
            if self.process.threads:
                await self._take_back(place, made, error)
            raise

    async def _take_back(self, place: int, made: list[Holding], error: BaseException) -> None:
        for hold in reversed(made):
            if hold.is_open:
                with suppress(CaslockError):
                    await self._release((hold,))
        for state in self.places[place]:
            await state.take_back(error)

    async def _release(self, holds: tuple[Holding, ...]) -> None:
        released = Holds(holds).released if len(holds) > 1 else holds[0].released
        try:
            await released()
        except Cancelled:
            if self.process.threads:
                for hold in reversed(holds):
                    if hold.is_open:
                        with suppress(CaslockError):
                            await (self._release((hold,)) if len(holds) > 1 else hold.released())
            raise


def any_open(holds: tuple[Holding, ...]) -> bool:
    """Whether any of them is still to be released."""
    return any(hold.is_open for hold in holds)
