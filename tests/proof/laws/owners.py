"""Re-entry depends on the identity of the Lock, the thread or the task, never on a name."""

from __future__ import annotations

import pytest

from caslock.errors import NotHeld
from caslock.testing.drive import done
from tests.proof.laws.scene import TTL, AnyHold, AnyLock, Scene, attempt, scenario, take


class Owners:
    @scenario
    async def test_a_name_that_is_used_again_is_nobody(self, scene: Scene) -> None:
        """A new thread or task with the name, or number, of one that is gone does not hold what that one holds."""
        for _ in range(5):
            lock = scene.lock()

            async def leave(lock: AnyLock = lock) -> None:
                await done(lock.release())

            hold = await scene.play.elsewhere(take(lock), "worker")
            for name in ("worker", "another"):
                assert await scene.play.elsewhere(attempt(lock), name) is None
                with pytest.raises(NotHeld):
                    await scene.play.elsewhere(leave(), name)
            hold.ensure_held()
            await done(hold.release())

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
    @scenario
    async def test_an_owner_enters_from_anywhere(self, scene: Scene, order: tuple[int, ...]) -> None:
        """Locks with one explicit owner share a tenure, one fence, until the last release, in any thread or task."""
        locks = [scene.lock(store, owner="the same", ttl=TTL) for store in (scene.store, scene.another, scene.store)]
        holds = [await take(lock) for lock in locks[:2]] + [await scene.play.elsewhere(take(locks[2]), "another")]
        assert len({hold._attempt.lease.fence for hold in holds}) == 1
        for hold in holds:
            await done(hold.extend())
        assert len({hold._attempt.lease.fence for hold in holds}) == 1

        for number in order:
            assert await attempt(scene.rival()) is await attempt(scene.rival(owner="another")) is None
            holds[number].ensure_held()
            await done(holds[number].release())
        later = await take(scene.rival())
        assert later._attempt.lease.fence > holds[0]._attempt.lease.fence or not scene.traits.fences
        await done(later.release())

    @pytest.mark.parametrize("then", ["leaves", "renews", "leaves, and another comes"])
    @scenario
    async def test_the_record_may_change_between_two_steps(self, scene: Scene, then: str) -> None:
        """Between the two requests of a re-entry the other hold may be renewed or released, or another may come."""
        faulty = scene.faulty()
        first, second = (scene.lock(store, ttl=TTL, owner="the same") for store in (scene.another, faulty))
        outer = await take(first)
        others: list[AnyHold] = []

        async def move() -> None:
            await done(outer.extend() if then == "renews" else outer.release())
            if then == "leaves, and another comes":
                others.append(await take(scene.rival()))

        faulty.before("put_if_version", 2, scene.play.hook(move))
        inner = await attempt(second)

        holder = await scene.holder()
        assert holder is not None
        if others:
            assert inner is None
            others[0].ensure_held()
            await done(others[0].release())
        else:
            assert inner is not None
            assert inner._attempt.hold_id in holder.holds
            assert (inner._attempt.lease.fence == outer._attempt.lease.fence) == (then == "renews")
            await done(inner.release())
            if then == "renews":
                await done(outer.release())
        assert await scene.holder() is None
