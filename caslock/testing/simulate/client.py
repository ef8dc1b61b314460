"""The law of this file: a client does what a user of the library does, with the real `LockState` and `MultiState`.

A thread that is interrupted takes back what it has begun, as `caslock.blocking` does; a task need not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from caslock.errors import CaslockError, StoreUnavailable
from caslock.hold import Holding
from caslock.lockstate import LockState
from caslock.multi import Holds, MultiState
from caslock.testing.simulate.world import Cancelled, Wait, World

if TYPE_CHECKING:
    from tenacity.wait import WaitBaseT

    from caslock.claim import Claim
    from caslock.testing.simulate.plan import ClientPlan, Round
    from caslock.testing.simulate.run import Run
    from caslock.turnstile import Turnstile

RELEASES = 3
"""How often a client releases what gave no answer."""


class NamedLockState(LockState):
    """The real one, but for its name, which chance would make."""

    def __init__(self, name: str, world: World, key: str, plan: ClientPlan, poll: WaitBaseT | None) -> None:
        """Make the state of the Lock object `name`."""
        self.name = name
        self.process = world
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
        cast("Client", claim.by).attempts += (claim,)
        return claim

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
    def turnstile(self) -> Turnstile:
        """The queue that its claims stand in."""
        return self._turnstile

    @property
    def unsettled(self) -> Holding | None:
        """A hold whose release went without an answer."""
        return self._unsettled


class Client:
    """A thread or task."""

    def __init__(self, run: Run, plan: ClientPlan, process: World, states: list[NamedLockState]) -> None:
        """Use the Lock objects `states`."""
        self.run = run
        self.plan = plan
        self.name = plan.name
        self.process = process
        self.states = states
        self.multi = MultiState[Holds[Holding]](states) if len(states) > 1 else None
        self.alive = True
        self.holding: tuple[Holding, ...] = ()  # what the program believes that it holds
        self.attempts: tuple[Claim, ...] = ()  # of the round
        self.prefixes = tuple(state.prefix for state in states)  # of the ids of its holds
        self.keepers = 0
        self.silent = 0  # requests of it that got no answer

    async def program(self) -> None:
        """Go through the rounds."""
        for _number, round_ in enumerate(self.plan.rounds):  # two may be alike, but not to the fingerprint
            with suppress(Cancelled):
                await Wait(self.process.now() + round_.pause)
                await self._round(round_)
            self.attempts = ()

    async def _round(self, round_: Round) -> None:
        run = self.run
        run.current.struck = run.current.deferred = False
        self.attempts = ()
        try:
            holds = await self._acquire(round_.timeout)
        except (CaslockError, Cancelled) as error:
            run.judge.failed(self, error)
            return
        self.holding = holds
        run.judge.acquired(self)
        try:
            for _number, stay in enumerate(round_.body):
                await Wait(self.process.now() + stay.seconds)
                if stay.extends:
                    for hold in holds:
                        await hold.renewed(stay.ttl)
        except (CaslockError, Cancelled) as error:
            run.tell(self.name, f"{type(error).__name__} in the body")
        run.judge.leaves(self)
        run.current.struck = False
        self.holding = ()
        told: BaseException | None = None  # of several holds one may be lost, and another give no answer
        for _ in range(RELEASES):
            try:
                await self._release(holds)
            except StoreUnavailable as trouble:
                told = trouble if hasattr(trouble, "__notes__") else told
                run.tell(self.name, "no answer to the release")
            except (CaslockError, Cancelled) as trouble:
                run.judge.left(self, holds, trouble)
                break
            else:
                run.judge.left(self, holds, told)
                break

    async def _acquire(self, timeout: float | None) -> tuple[Holding, ...]:
        made: list[Holding] = []

        def make(state: LockState, claim: Claim) -> Holding:
            made.append(Holding(state, claim))
            return made[-1]

        try:
            if self.multi is not None:
                return tuple(await self.multi.acquire(make, Holds, timeout))
            return (await self.states[0].acquire(make, timeout),)
        except Cancelled as error:
            if self.process.threads:
                await self._take_back(made, error)
            raise

    async def _take_back(self, made: list[Holding], error: BaseException) -> None:
        for hold in reversed(made):
            if hold.is_open:
                with suppress(CaslockError):
                    await hold.released()
        for state in self.states:
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
                            await hold.released()
            raise
