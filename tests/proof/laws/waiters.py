"""Waiters are served in order, and one that is interrupted leaves nothing."""

from __future__ import annotations

from typing import Final

import pytest

from caslock.testing.drive import done
from caslock.testing.faults import raising
from caslock.testing.stopwatch import Stopwatch
from tests.proof.laws.scene import TTL, AnyFaultyStore, AnyHold, Scene, attempt, each, scenario, take
from tests.support import protocol_functions as protocol

SOON: Final = 0.1
"""Seconds."""

SERVED: Final = protocol.LONGEST_WAIT / 2
"""Seconds within which a waiter that the store wakes is served."""


class Waiters:
    """The laws of waiting: a part of `LockContract`."""

    @scenario
    async def test_a_waiter_is_served_when_the_holder_leaves(self, scene: Scene) -> None:
        """The holder leaves while another client waits at the store: the waiter holds, long before a lease is over."""
        faulty = scene.faulty()
        theirs = await take(scene.rival())
        holds: list[AnyHold] = []

        async def wait() -> None:
            holds.append(await take(scene.lock(faulty, ttl=TTL), timeout=TTL))

        async def asked_again() -> bool:
            return len(faulty.log) > 1

        async def leave() -> None:
            await scene.until(asked_again, "the second request of a waiter", TTL)
            await scene.play.sleep(SOON)  # so that it waits in line; were it too short, it would be served all the same
            await done(theirs.release())

        with Stopwatch() as watch:
            await scene.play.together([wait(), leave()], 2)
        assert watch.seconds < SERVED
        (hold,) = holds
        assert hold._attempt.lease.fence > theirs._attempt.lease.fence or not scene.traits.fences
        hold.ensure_held()
        await done(hold.release())
        assert await scene.holder() is None

    @scenario
    async def test_a_waiter_that_is_interrupted_leaves_nothing(self, scene: Scene) -> None:
        """Whether or not the waiter's put was applied: nothing of it is left, and the next one holds at once."""

        async def interrupt(applied: bool, key: str) -> None:  # noqa: FBT001 - a case
            faulty = scene.faulty()
            lock = scene.lock(faulty, key, ttl=TTL)
            if lock._state.runtime.queueing is None:
                return
            theirs = await take(scene.rival(key))
            faulty.on("put_when_absent", 1, raising(scene.play.interruption, applied=applied))
            _leaves(scene, faulty, theirs)
            with pytest.raises(scene.play.interruption):
                await attempt(lock, timeout=TTL)
            assert await scene.holder(key) is None
            again = await take(scene.rival(key))
            await done(again.release())

        await each(scene, (True, False), interrupt)

    @scenario
    async def test_one_process_serves_all_its_waiters(self, scene: Scene) -> None:
        """Twenty locks of one process, each in its turn: one at a time, and their fences grow."""
        faulty = scene.faulty()
        fences: list[int] = []

        async def work() -> None:
            hold = await take(scene.lock(faulty, ttl=TTL), timeout=TTL)
            fences.append(hold._attempt.lease.fence)
            await scene.play.sleep(0)
            assert fences[-1] == hold._attempt.lease.fence
            await done(hold.release())

        await scene.play.together([work() for _ in range(20)], 20)
        assert fences == sorted(set(fences)) or not scene.traits.fences
        assert len(set(fences)) == 20
        assert await scene.holder() is None


def _leaves(scene: Scene, faulty: AnyFaultyStore, theirs: AnyHold) -> None:
    """Let the holder leave as soon as the waiter has been refused once and asks again."""
    left = False

    async def leave() -> None:
        nonlocal left
        if not left:
            left = True
            await done(theirs.release())

    again = scene.play.hook(leave)
    faulty.before("put_when_absent", 1, again)
    faulty.before("wait_while", 1, again)
    faulty.before("put_if_version", 2, again)
